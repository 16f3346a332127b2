#include "node/engine/kv_transfer.h"

#include "net/message.h"

#include <string.h>

size_t sn_kv_transfer_row_floats(const sn_hparams *hp, int blocks) { return (size_t)blocks * sn_kv_width(hp); }

int sn_kv_transfer_part_tokens(const sn_hparams *hp, int blocks) {
    return sn_kv_transfer_tokens(sn_kv_transfer_row_floats(hp, blocks) * sizeof(float));
}

sn_status sn_kv_transfer_read(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    size_t keys = (size_t)job->n_tokens * sn_kv_key_width(hp), all = (size_t)job->n_tokens * sn_kv_width(hp);
    float *at = sn_shared_buffer_data(job->output);
    sn_status status = *job->kv ? SN_OK : sn_fail(&job->err, SN_REBUILD, "this session has no KV pages any more");
    for (int b = job->first; b < job->end && !status; b++, at += all)
        status = sn_span_kv_export(span, *job->kv, b, job->position, job->n_tokens, at, at + keys, &job->err);
    if (!status)
        job->kv_read.hash =
            sn_hash_of(sn_shared_buffer_data(job->output),
                       (size_t)job->n_tokens * sn_kv_transfer_row_floats(hp, job->end - job->first) * sizeof(float));
    return status;
}

sn_status sn_kv_transfer_write(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    int n = job->n_tokens;
    size_t heads = (size_t)hp->n_kv_heads, keys = (size_t)n * sn_kv_key_width(hp), all = (size_t)n * sn_kv_width(hp);
    const float *at = job->kv_write.input.data;
    sn_hash hash = sn_hash_of(at, (size_t)n * sn_kv_transfer_row_floats(hp, job->end - job->first) * sizeof(float));
    if (memcmp(hash.bytes, job->kv_write.hash.bytes, SN_HASH_SIZE))
        return sn_fail(&job->err, SN_RETRY,
                       "the KV pages were damaged in transit: they do not have the hash that came with them");
    sn_tensor k = {.name = "imported keys",
                   .dtype = SN_F32,
                   .rank = 3,
                   .shape = {n, hp->n_kv_heads, (int64_t)(sn_kv_key_width(hp) / heads)}},
              v = k;
    v.name = "imported values";
    v.shape[2] = (int64_t)(sn_kv_value_width(hp) / heads);
    sn_status status = SN_OK;
    for (int b = job->first; b < job->end && !status; b++, at += all) {
        k.data = at;
        v.data = at + keys;
        status = sn_span_kv_import(span, *job->kv, b, n, &k, &v, &job->err);
    }
    if (!status) sn_kv_cache_append(*job->kv, n);
    return status;
}
