#include "node/engine/kv_transfer.h"

#include "net/message.h"

#include <string.h>

size_t sn_kv_transfer_row_floats(const sn_hparams *hp, int blocks) {
    return (size_t)blocks * 2 * (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
}

int sn_kv_transfer_part_tokens(const sn_hparams *hp, int blocks) {
    return sn_kv_transfer_tokens(sn_kv_transfer_row_floats(hp, blocks) * sizeof(float));
}

sn_status sn_kv_transfer_read(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    size_t floats = (size_t)job->n_tokens * sn_kv_transfer_row_floats(hp, 1) / 2;
    float *at = sn_shared_buffer_data(job->output);
    sn_status status = *job->kv ? SN_OK : sn_fail(&job->err, SN_REBUILD, "this session has no KV pages any more");
    for (int b = job->first; b < job->end && !status; b++, at += 2 * floats)
        status = sn_span_kv_export(span, *job->kv, b, job->position, job->n_tokens, at, at + floats, &job->err);
    if (!status)
        job->kv_read.hash =
            sn_hash_of(sn_shared_buffer_data(job->output),
                       (size_t)job->n_tokens * sn_kv_transfer_row_floats(hp, job->end - job->first) * sizeof(float));
    return status;
}

sn_status sn_kv_transfer_write(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    int n = job->n_tokens;
    size_t floats = (size_t)n * sn_kv_transfer_row_floats(hp, 1) / 2;
    const float *at = job->kv_write.input.data;
    sn_hash hash = sn_hash_of(at, (size_t)n * sn_kv_transfer_row_floats(hp, job->end - job->first) * sizeof(float));
    if (memcmp(hash.bytes, job->kv_write.hash.bytes, SN_HASH_SIZE))
        return sn_fail(&job->err, SN_RETRY,
                       "the KV pages were damaged in transit: they do not have the hash that came with them");
    sn_tensor k = {.dtype = SN_F32, .rank = 3, .shape = {n, hp->n_kv_heads, hp->head_dim}}, v = k;
    k.name = "imported keys";
    v.name = "imported values";
    sn_status status = SN_OK;
    for (int b = job->first; b < job->end && !status; b++, at += 2 * floats) {
        k.data = at;
        v.data = at + floats;
        status = sn_span_kv_import(span, *job->kv, b, n, &k, &v, &job->err);
    }
    if (!status) sn_kv_cache_append(*job->kv, n);
    return status;
}
