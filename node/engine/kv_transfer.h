/* KV transfer: a session's KV pages and snapshots as tensors, read from a span and written to another one; the work of
 * the jobs SN_JOB_KV_READ and SN_JOB_KV_WRITE. Their tensor has the shape of sn_kv_tensor_shape: for each block with
 * attention all keys, then all values, then its index keys if it has some, and where some blocks are recurrent then the
 * rows that entered the first block. A snapshot is the states of the recurrent blocks at one position, one after the
 * other, and travels in pieces. The functions that take a span belong to the device thread, the sizes to any thread. */
#ifndef SN_NODE_ENGINE_KV_TRANSFER_H
#define SN_NODE_ENGINE_KV_TRANSFER_H

#include "node/engine/job.h"

/* Floats per token of such a tensor over blocks [first, end). */
size_t sn_kv_transfer_row_floats(const sn_hparams *hp, int first, int end);
/* Tokens per part: bounds the bytes, so that a part delays neither the device nor the network for long. */
int sn_kv_transfer_part_tokens(const sn_hparams *hp, int first, int end);
/* Floats of a piece of a snapshot, at most: as many bytes. 0: the blocks have no states. */
size_t sn_kv_transfer_piece_floats(const sn_hparams *hp, int first, int end);

sn_status sn_kv_transfer_read(const sn_span *span, sn_job *job) SN_MUST_USE; /* fills job->output and kv_read.hash */
/* Appends to the KV cache, where pages are reserved, or adds a piece of a snapshot; the tensor is checked like any
 * outside tensor (device/guard.h). SN_RETRY: its bytes do not have the hash kv_write.hash. */
sn_status sn_kv_transfer_write(const sn_span *span, sn_job *job) SN_MUST_USE;

#endif
