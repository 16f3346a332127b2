#include "node/engine/kv_transfer.h"

#include "device/guard.h"
#include "net/message.h"

#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

size_t sn_kv_transfer_row_floats(const sn_hparams *hp, int first, int end) {
    int recurrent = sn_n_recurrent(hp, first, end);
    return sn_kv_width(hp, first, end) + (recurrent ? (size_t)hp->n_embd : 0);
}

int sn_kv_transfer_part_tokens(const sn_hparams *hp, int first, int end) {
    return sn_kv_transfer_tokens(sn_kv_transfer_row_floats(hp, first, end) * sizeof(float));
}

size_t sn_kv_transfer_piece_floats(const sn_hparams *hp, int first, int end) {
    size_t all = sn_span_state_floats(hp, first, end), most = SN_KV_TRANSFER_SIZE_MAX / sizeof(float);
    return all < most ? all : most;
}

/* Sessions over blocks without states whose KV pool keeps states, too, for other blocks of the node. */
static sn_status check_recurrent(const sn_span *span, const sn_job *job, sn_err *err) {
    bool states = sn_n_recurrent(sn_span_hparams(span), job->first, job->end);
    if (!*job->kv) return sn_fail(err, SN_REBUILD, "this session has no KV pages any more");
    if (sn_kv_cache_is_recurrent(*job->kv) == states) return SN_OK;
    return sn_fail(err, SN_REFUSED, "blocks %d:%d are not copied: other blocks of the node hold recurrent states",
                   job->first, job->end);
}

/* ---- snapshots ---- */

/* Where the states of the job's blocks begin in a snapshot of the span. */
static size_t first_float(const sn_span *span, const sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    const int first = sn_span_first(span);
    return sn_n_states(hp, first, job->first) ? sn_span_state_floats(hp, first, job->first) : 0;
}

static sn_status state_read(const sn_span *span, sn_job *job) {
    sn_state_piece *piece = &job->kv_read.piece;
    size_t all = sn_span_state_floats(sn_span_hparams(span), job->first, job->end);
    const float *state = piece->position ? sn_kv_cache_snapshot(*job->kv, piece->position) : NULL;
    if (!state) { /* a snapshot may be given up at any time: the newest one instead, from the start */
        piece->position = sn_kv_cache_newest_snapshot(*job->kv);
        piece->offset = 0;
        if (piece->position <= job->kv_read.newer_than) piece->position = 0;
        state = sn_kv_cache_snapshot(*job->kv, piece->position);
    }
    if (!piece->position) return SN_OK;
    if (piece->n > all - piece->offset) piece->n = all - piece->offset;
    job->position = piece->position;
    sn_device *device = sn_kv_cache_states_device(*job->kv);
    void *out = sn_shared_buffer_data(job->output);
    sn_status status = device->ops->download(device, out, state + first_float(span, job) + piece->offset,
                                             piece->n * sizeof *state, &job->err);
    if (!status) job->kv_read.hash = sn_hash_of(out, piece->n * sizeof *state);
    return status;
}

static sn_status state_write(const sn_span *span, sn_job *job) {
    sn_state_piece *piece = &job->kv_write.piece;
    const int64_t shape[] = {1, (int64_t)piece->n};
    size_t all = sn_span_state_floats(sn_span_hparams(span), job->first, job->end), done = piece->offset + piece->n;
    sn_tensor state = {.name = "a snapshot", .dtype = SN_F32, .rank = 2, .shape = {1, (int64_t)piece->n}};
    float *to = sn_kv_cache_incoming_state(*job->kv, piece->position, piece->offset);
    piece->held = 0;
    if (!to) return SN_OK; /* the sender begins again */
    state.data = job->kv_write.input.data;
    sn_status status = sn_guard(&state, sn_kv_cache_states_device(*job->kv), 2, shape,
                                to + first_float(span, job) + piece->offset, NULL, &job->err);
    return status ? status : sn_kv_cache_state_came(*job->kv, piece->n, done == all, &piece->held, &job->err);
}

/* ---- KV pages ---- */

sn_status sn_kv_transfer_read(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    const size_t n = (size_t)job->n_tokens;
    float *at = sn_shared_buffer_data(job->output);
    sn_status status = check_recurrent(span, job, &job->err);
    if (status) return status;
    if (job->kv_read.piece.n) return state_read(span, job);
    if (job->n_tokens > sn_kv_cache_length(*job->kv) - job->position) /* its pages were given to others */
        return sn_fail(&job->err, SN_REBUILD, "the KV pages of this session are lost: open a new one and replay");
    for (int b = job->first; b < job->end && !status; b++) {
        if (hp->recurrent[b]) continue;
        float *values = at + n * sn_kv_key_width(hp, b);
        status = sn_span_kv_export(span, *job->kv, b, job->position, job->n_tokens, at, values, &job->err);
        at = values + n * sn_kv_value_width(hp, b);
        if (sn_chooses_keys(hp, b) && !status)
            status = sn_span_index_export(span, *job->kv, b, job->position, job->n_tokens, at, &job->err);
        at += n * sn_kv_index_width(hp, b);
    }
    if (!status && sn_kv_cache_is_recurrent(*job->kv))
        status = sn_kv_cache_rows_read(*job->kv, job->position, job->n_tokens, at, &job->err);
    if (!status)
        job->kv_read.hash =
            sn_hash_of(sn_shared_buffer_data(job->output),
                       (size_t)job->n_tokens * sn_kv_transfer_row_floats(hp, job->first, job->end) * sizeof(float));
    return status;
}

/* The rows that entered, behind keys and values. */
static sn_status rows_write(const sn_span *span, const sn_job *job, const float *from, sn_err *err) {
    const int64_t shape[] = {job->n_tokens, sn_span_hparams(span)->n_embd};
    sn_tensor rows = {.name = "imported rows", .dtype = SN_F32, .rank = 2, .shape = {shape[0], shape[1]}, .data = from};
    float *host = NULL;
    sn_status status = sn_calloc(&host, (size_t)shape[0] * (size_t)shape[1], sizeof *host, err);
    if (!status) status = sn_guard(&rows, NULL, 2, shape, host, NULL, err);
    if (!status) status = sn_kv_cache_rows_write(*job->kv, job->n_tokens, host, err);
    free(host);
    return status;
}

static sn_status pages_write(const sn_span *span, sn_job *job) {
    const sn_hparams *hp = sn_span_hparams(span);
    int n = job->n_tokens;
    const float *at = job->kv_write.input.data;
    sn_status status = SN_OK;
    for (int b = job->first; b < job->end && !status; b++) {
        if (hp->recurrent[b]) continue;
        const float *values = at + (size_t)n * sn_kv_key_width(hp, b);
        status = sn_span_kv_import_rows(span, *job->kv, b, n, at, values, &job->err);
        at = values + (size_t)n * sn_kv_value_width(hp, b);
        if (sn_chooses_keys(hp, b) && !status) status = sn_span_index_import(span, *job->kv, b, n, at, &job->err);
        at += (size_t)n * sn_kv_index_width(hp, b);
    }
    if (!status && sn_kv_cache_is_recurrent(*job->kv)) status = rows_write(span, job, at, &job->err);
    if (!status) sn_kv_cache_append(*job->kv, n);
    return status;
}

sn_status sn_kv_transfer_write(const sn_span *span, sn_job *job) {
    const size_t row = sn_kv_transfer_row_floats(sn_span_hparams(span), job->first, job->end);
    const size_t n = job->kv_write.piece.n ? job->kv_write.piece.n : (size_t)job->n_tokens * row;
    sn_hash hash = sn_hash_of(job->kv_write.input.data, n * sizeof(float));
    if (memcmp(hash.bytes, job->kv_write.hash.bytes, SN_HASH_SIZE))
        return sn_fail(&job->err, SN_RETRY,
                       "the KV pages were damaged in transit: they do not have the hash that came with them");
    sn_status status = check_recurrent(span, job, &job->err);
    if (status) return status;
    return job->kv_write.piece.n ? state_write(span, job) : pages_write(span, job);
}
