/* KV transfer: KV pages of a session as one tensor, read from a span and written to another one; the work of the jobs
 * SN_JOB_KV_READ and SN_JOB_KV_WRITE. The tensor is float32 (blocks, 2, tokens, sn_kv_width / 2): for each block
 * all keys, then all values. The functions that take a span belong to the device thread, the sizes to any thread. */
#ifndef SN_NODE_ENGINE_KV_TRANSFER_H
#define SN_NODE_ENGINE_KV_TRANSFER_H

#include "node/engine/job.h"

/* Floats per token of such a tensor over that many blocks. */
size_t sn_kv_transfer_row_floats(const sn_hparams *hp, int blocks);
/* Tokens per part: bounds the bytes, so that a part delays neither the device nor the network for long. */
int sn_kv_transfer_part_tokens(const sn_hparams *hp, int blocks);

sn_status sn_kv_transfer_read(const sn_span *span, sn_job *job) SN_MUST_USE; /* fills job->output and kv_read.hash */
/* Appends to the KV cache, where pages are reserved; the tensor is checked like any outside tensor (device/guard.h).
 * SN_RETRY: its bytes do not have the hash kv_write.hash. */
sn_status sn_kv_transfer_write(const sn_span *span, sn_job *job) SN_MUST_USE;

#endif
