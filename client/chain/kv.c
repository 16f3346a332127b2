/* The KV cache of a whole chain, read from its hops and written to the hops of another chain: a session is saved to a
 * file, and continues later over another route. */
#include "client/chain/chain_private.h"

#include "base/mem.h"
#include "net/timeline.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Where block b's keys begin in an array of the keys of n tokens, then their values, of each block. */
static size_t chain_kv_offset(const sn_chain *chain, int b, int n) { return (size_t)n * sn_kv_width(&chain->hp, 0, b); }

/* The same numbers of a token, of the hop's blocks. */
static size_t hop_kv_floats(const sn_chain *chain, const sn_hop *hop) {
    return sn_kv_width(&chain->hp, hop->first, hop->end);
}

/* Rows of an array of the keys of n tokens, then their values, then their index keys, of each block: those of tokens
 * from `row` on. */
typedef struct kv_place {
    float *at;
    size_t n, row;
} kv_place;

/* Copies n tokens of the hop's blocks. `from` is only read. */
static void kv_copy_rows(const sn_hparams *hp, const sn_hop *hop, size_t n, kv_place to, kv_place from) {
    for (int part = 0; part < 3 * (hop->end - hop->first); part++) {
        const int b = hop->first + part / 3;
        const size_t widths[] = {sn_kv_key_width(hp, b), sn_kv_value_width(hp, b), sn_kv_index_width(hp, b)},
                     width = widths[part % 3];
        memcpy(to.at + to.row * width, from.at + from.row * width, n * width * sizeof *to.at);
        to.at += to.n * width, from.at += from.n * width;
    }
}

/* -- reading
 * ----------------------------------------------------------------------------------------------------------- */

static sn_status kv_check_reply(const sn_chain *chain, const sn_hop *hop, const sn_msg *reply, int position, int n,
                                sn_err *err) {
    const sn_wire_tensor *t = &reply->tensor;
    uint64_t shape[SN_TENSOR_RANK_MAX], m = reply->kv_get_reply.n_token_timelines;
    const int rank = sn_kv_tensor_shape(&chain->hp, hop->first, hop->end, m, shape);
    int part = sn_kv_transfer_tokens(hop_kv_floats(chain, hop) * sizeof(float));
    if (m < (uint64_t)(n < part ? n : part)) /* each part has its own time: parts of one token would have no end */
        return sn_fail(err, SN_RETRY, "%s sent fewer KV pages than it must", hop->report.node);
    if (t->dtype != SN_F32 || m > (uint64_t)n || t->rank != rank ||
        memcmp(t->shape, shape, (size_t)rank * sizeof *shape) || reply->kv_get_reply.position != (uint64_t)position)
        return sn_fail(err, SN_RETRY, "%s sent KV pages of another shape", hop->report.node);
    sn_hash hash = sn_hash_of(t->data, t->bytes);
    if (memcmp(hash.bytes, reply->kv_get_reply.tensor_hash, SN_HASH_SIZE))
        return sn_fail(err, SN_RETRY, "%s sent damaged KV pages", hop->report.node);
    if (sn_hops_know_hash(hop, 1, position + (int)m) &&
        memcmp(hop->remote.timeline[(size_t)position + m].bytes, reply->kv_get_reply.token_timelines[m - 1].timeline,
               SN_HASH_SIZE))
        return sn_fail(err, SN_RETRY, "%s sent KV pages of another timeline", hop->report.node);
    return SN_OK;
}

/* Reads up to *n tokens of a remote hop into out, which holds n_all tokens of all blocks, from row `done` on; *n: how
 * many came. */
static sn_status hop_get_part(sn_chain *chain, sn_hop *hop, int position, int done, int n_all, int *n, float *out,
                              sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL, *reply = NULL;
    sn_status status = sn_msg_new(SN_MSG_KV_GET, 0, &msg, err);
    if (status) return status;
    memcpy(msg->kv_get.session, r->session, SN_SESSION_ID_SIZE);
    msg->kv_get.position = (uint64_t)position;
    msg->kv_get.tokens = (uint64_t)*n;
    sn_call call = {r->address, r->curve_key, SN_MSG_KV_GET_REPLY, sn_chain_left_ms(chain, INT_MAX)};
    status = sn_link_call(chain->options.link, &call, &msg, &r->peer, &reply, err);
    if (!status) status = kv_check_reply(chain, hop, reply, position, *n, err);
    if (!status) {
        size_t m = reply->kv_get_reply.n_token_timelines;
        const kv_place to = {out + chain_kv_offset(chain, hop->first, n_all), (size_t)n_all, (size_t)done},
                       from = {(float *)reply->tensor.data, m, 0};
        kv_copy_rows(&chain->hp, hop, m, to, from);
        *n = (int)m;
    }
    sn_msg_free(&reply);
    return status;
}

/* Each part has the time of a call, also where the node puts it off. */
static sn_status hop_get_kv(sn_chain *chain, sn_hop *hop, int position, int n, float *out, sn_err *err) {
    sn_status status = SN_OK;
    for (int done = 0, m; done < n && !status; done += m) {
        sn_chain_begin_call(chain);
        do {
            m = n - done;
            status = hop_get_part(chain, hop, position + done, done, n, &m, out, err);
        } while (sn_chain_is_put_off(chain, chain->call.deadline_us, &status, err));
    }
    return status;
}

sn_status sn_chain_get_kv(sn_chain *chain, int position, int n, float *out, sn_err *err) {
    if (position < 0 || n < 1 || n > chain->length - position)
        return sn_fail(err, SN_REFUSED, "%d tokens at position %d are not in the timeline of %d", n, position,
                       chain->length);
    sn_chain_begin_call(chain);
    sn_status status = chain->unsettled ? sn_chain_settle(chain, chain->length, err) : SN_OK;
    for (size_t i = 0; i < chain->n_hops && !status; i++) {
        sn_hop *hop = &chain->hops[i];
        for (int b = hop->first; b < hop->end && hop->is_local && !status; b++) {
            float *k = out + chain_kv_offset(chain, b, n);
            float *v = k + (size_t)n * sn_kv_key_width(&chain->hp, b);
            status = sn_span_kv_export(hop->local.span, hop->local.kv, b, position, n, k, v, err);
            v += (size_t)n * sn_kv_value_width(&chain->hp, b);
            if (sn_chooses_keys(&chain->hp, b) && !status)
                status = sn_span_index_export(hop->local.span, hop->local.kv, b, position, n, v, err);
        }
        if (!hop->is_local) status = hop_get_kv(chain, hop, position, n, out, err);
    }
    return status;
}

/* -- writing
 * ------------------------------------------------------------------------------------------------------------ */

/* KV pages of all blocks, and the timeline that they belong to. */
typedef struct kv_rows {
    float *data; /* only read; of each block the keys of n tokens, then their values, then their index keys */
    int position, n;
    const sn_hash *token_timelines;
} kv_rows;

/* A KV_PUT of the hop's blocks for `n` of the tokens, from row `first` on. */
static sn_status kv_put_msg_new(const sn_chain *chain, const sn_hop *hop, const kv_rows *rows, int first, int n,
                                sn_msg **out, sn_err *err) {
    sn_msg *msg = NULL;
    void *data = NULL;
    const sn_hash *timeline = rows->token_timelines + rows->position + first;
    uint64_t shape[SN_TENSOR_RANK_MAX];
    const int rank = sn_kv_tensor_shape(&chain->hp, hop->first, hop->end, (uint64_t)n, shape);
    sn_status status = sn_msg_new(SN_MSG_KV_PUT, 0, &msg, err);
    if (status) return status;
    *out = msg;
    sn_msg_kv_put *put = &msg->kv_put;
    memcpy(put->session, hop->remote.session, SN_SESSION_ID_SIZE);
    memcpy(put->origin, rows->token_timelines[0].bytes, SN_KEY_SIZE);
    memcpy(put->timeline, timeline->bytes, SN_KEY_SIZE);
    put->position = (uint64_t)(rows->position + first);
    status =
        sn_list_new((size_t)n, SN_KV_TRANSFER_TOKENS_MAX, sizeof *put->token_timelines, &put->token_timelines, err);
    if (!status) status = sn_msg_new_tensor(msg, SN_F32, rank, shape, &data, err);
    if (status) return status;
    put->n_token_timelines = (size_t)n;
    for (int i = 0; i < n; i++) memcpy(put->token_timelines[i].timeline, timeline[i + 1].bytes, SN_KEY_SIZE);
    const kv_place to = {data, (size_t)n, 0},
                   from = {rows->data + chain_kv_offset(chain, hop->first, rows->n), (size_t)rows->n, (size_t)first};
    kv_copy_rows(&chain->hp, hop, (size_t)n, to, from);
    sn_hash hash = sn_hash_of(data, msg->tensor.bytes);
    memcpy(put->tensor_hash, hash.bytes, SN_HASH_SIZE);
    return SN_OK;
}

/* Writes `n` of the tokens, from row `first` on: as many as nodes accept in one part. */
static sn_status hop_put_part(sn_chain *chain, sn_hop *hop, const kv_rows *rows, int first, int n, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL, *reply = NULL;
    sn_call call = {r->address, r->curve_key, SN_MSG_KV_PUT_REPLY, sn_chain_left_ms(chain, INT_MAX)};
    sn_status status = kv_put_msg_new(chain, hop, rows, first, n, &msg, err);
    if (!status) status = sn_link_call(chain->options.link, &call, &msg, &r->peer, &reply, err);
    if (!status && reply->kv_put_reply.length != (uint64_t)(rows->position + first + n))
        status = sn_fail(err, SN_RETRY, "%s did not take the KV pages", hop->report.node);
    sn_msg_free(&msg);
    sn_msg_free(&reply);
    return status;
}

/* As hop_get_kv. */
static sn_status hop_put_kv(sn_chain *chain, sn_hop *hop, const kv_rows *rows, sn_err *err) {
    sn_status status = SN_OK;
    int most = sn_kv_transfer_tokens(hop_kv_floats(chain, hop) * sizeof(float));
    for (int done = 0, n; done < rows->n && !status; done += n) {
        sn_chain_begin_call(chain);
        n = rows->n - done < most ? rows->n - done : most;
        do status = hop_put_part(chain, hop, rows, done, n, err);
        while (sn_chain_is_put_off(chain, chain->call.deadline_us, &status, err));
    }
    return status;
}

static sn_status hop_put_kv_local(sn_chain *chain, sn_hop *hop, int n, const float *in, sn_err *err) {
    const sn_hop_local *local = &hop->local;
    sn_status status = sn_kv_cache_reserve(local->kv, n, err);
    for (int b = hop->first; b < hop->end && !status; b++) {
        const float *keys = in + chain_kv_offset(chain, b, n),
                    *values = keys + (size_t)n * sn_kv_key_width(&chain->hp, b);
        status = sn_span_kv_import_rows(local->span, local->kv, b, n, keys, values, err);
        values += (size_t)n * sn_kv_value_width(&chain->hp, b);
        if (sn_chooses_keys(&chain->hp, b) && !status)
            status = sn_span_index_import(local->span, local->kv, b, n, values, err);
    }
    if (!status) sn_kv_cache_append(local->kv, n);
    return status;
}

sn_status sn_chain_put_kv(sn_chain *chain, int position, int n, const float *in, const sn_hash *token_timelines,
                          sn_err *err) {
    if (chain->length || position < 0 || n < 1 || n > SN_KV_TRANSFER_TOKENS_MAX || n > chain->max_tokens - position)
        return sn_fail(err, SN_REFUSED, "KV pages of %d tokens do not fit at position %d", n, position);
    const kv_rows rows = {(float *)(uintptr_t)in, position, n, token_timelines};
    sn_status status = SN_OK;
    for (size_t i = 0; i < chain->n_hops && !status; i++) {
        sn_hop *hop = &chain->hops[i];
        status = hop->is_local ? hop_put_kv_local(chain, hop, n, in, err) : hop_put_kv(chain, hop, &rows, err);
        if (status) sn_err_context(err, "blocks %d:%d", hop->first, hop->end);
    }
    return status;
}

/* The first hop keeps what the source gives, if it must: then a verifier needs it. */
static sn_status hop_keep_source(const sn_chain *chain, sn_hop *hop, int position, sn_err *err) {
    const size_t width = (size_t)chain->hp.n_embd;
    float *rows = NULL;
    if (!chain->source.rows || hop->remote.source) return SN_OK;
    sn_status status = sn_calloc(&rows, (size_t)SN_SPAN_ROWS * width, sizeof *rows, err);
    for (int at = 0, n; at < position && !status; at += n) {
        n = position - at < SN_SPAN_ROWS ? position - at : SN_SPAN_ROWS;
        status = chain->source.rows(chain->source.ctx, at, n, rows, err);
        if (!status)
            status = sn_kept_rows_put(&hop->remote.inputs, hop->input_dtype, at, n, chain->hp.n_embd, rows, err);
    }
    free(rows);
    return status;
}

sn_status sn_chain_resume(sn_chain *chain, int position, const sn_hash *token_timelines, const float *inputs,
                          sn_err *err) {
    const uint8_t *before = NULL;
    sn_chain_begin_call(chain);
    for (size_t i = 0; i < chain->n_hops; i++) {
        sn_hop *hop = &chain->hops[i];
        int length = 0;
        if (!hop->is_local) {
            sn_resume_point at = {position, 0, hop->pushed ? before : NULL, NULL, token_timelines};
            sn_status status =
                sn_hop_resume(hop, chain->options.link, &at, sn_chain_left_ms(chain, INT_MAX), &length, err);
            if (!status && length < position)
                status = sn_fail(err, SN_RETRY, "%s lost a part of the KV cache", hop->report.node);
            if (!status)
                status = sn_hop_set_timeline(hop, position, chain->hp.n_embd, token_timelines, i ? NULL : inputs, err);
            if (!status && !i && !inputs) status = hop_keep_source(chain, hop, position, err);
            if (status) return status;
        }
        hop->length = position;
        before = hop->is_local ? NULL : hop->remote.curve_key;
    }
    chain->length = position;
    return SN_OK;
}
