/* A session's past as bytes, out of a span and into another one: the jobs SN_JOB_READ and SN_JOB_WRITE. Float32 (blocks, 2,
 * tokens, n_kv_heads * head_dim): of each block the keys, then the values. Belongs to the device's thread. */
#ifndef SN_NODE_PAST_H
#define SN_NODE_PAST_H

#include "node/job.h"

/* Floats of a token's past in that many blocks. */
size_t sn_past_row(const sn_hparams *hp, int blocks);
/* Tokens of a part: bounded in bytes, so that neither the device nor the network is kept from others for long. */
int sn_past_part_tokens(const sn_hparams *hp, int blocks);

sn_status sn_past_read(const sn_span *span, sn_job *job) SN_MUST_USE; /* fills job->output and job->hash */
/* Through the guard to the end of the past, where room is reserved. SN_REFUSED: not the bytes of job->hash. */
sn_status sn_past_write(const sn_span *span, sn_job *job) SN_MUST_USE;

#endif
