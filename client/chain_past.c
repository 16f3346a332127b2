/* The past of a whole chain, gathered from its hops and put into others: a session leaves the swarm for a file, and comes back over
 * another cut. */
#include "client/chain_private.h"

#include "base/clock.h"
#include "base/mem.h"
#include "net/timeline.h"

#include <stdlib.h>
#include <string.h>

/* Floats of one token's keys (or values) of one block. */
static size_t width(const sn_chain *chain) { return (size_t)chain->hp.n_kv_heads * (size_t)chain->hp.head_dim; }

/* Where block b's keys begin in an array (n_blocks, 2, n, width). */
static size_t at_block(const sn_chain *chain, int b, int n) { return (size_t)b * 2 * (size_t)n * width(chain); }

/* -- out ----------------------------------------------------------------------------------------------------------- */

static sn_status check_part(const sn_chain *chain, const sn_hop_at *hop, const sn_msg *part, int position, int n, sn_err *err) {
    const sn_wire_tensor *t = &part->tensor;
    uint64_t m = t->rank == 4 ? t->shape[2] : 0;
    if (t->dtype != SN_F32 || !m || m > (uint64_t)n || t->shape[0] != (uint64_t)(hop->end - hop->first) || t->shape[1] != 2 ||
        t->shape[3] != width(chain) || part->kv_part.n_marks != m || part->kv_part.position != (uint64_t)position)
        return sn_fail(err, SN_RETRY, "%s gave a past of another shape", hop->report.node);
    sn_hash hash = sn_hash_of(t->data, t->bytes);
    if (memcmp(hash.bytes, part->kv_part.hash, SN_HASH_SIZE))
        return sn_fail(err, SN_RETRY, "%s gave a past that is damaged", hop->report.node);
    if (sn_hop_knows(hop, position + (int)m) &&
        memcmp(hop->timeline[(size_t)position + m].bytes, part->kv_part.marks[m - 1].timeline, SN_HASH_SIZE))
        return sn_fail(err, SN_RETRY, "%s gave the past of another timeline", hop->report.node);
    return SN_OK;
}

/* Up to n tokens of a node's hop into out (n_blocks, 2, n_all, width), from row `done` of it on; *n: how many. */
static sn_status get_part(sn_chain *chain, sn_hop_at *hop, int position, int done, int n_all, int *n, float *out, sn_err *err) {
    sn_msg *msg = NULL, *part = NULL;
    sn_status status = sn_msg_new(SN_MSG_KV_GET, 0, &msg, err);
    if (status) return status;
    memcpy(msg->kv_get.session, hop->session, SN_SESSION_ID_SIZE);
    msg->kv_get.position = (uint64_t)position;
    msg->kv_get.tokens = (uint64_t)*n;
    status = sn_link_call(chain->options.link, hop->address, hop->curve_key, &msg, SN_MSG_KV_PART, chain->options.timeout_ms,
                          &hop->peer, &part, err);
    if (!status) status = check_part(chain, hop, part, position, *n, err);
    if (!status) {
        size_t m = (size_t)part->tensor.shape[2], row = width(chain);
        const float *from = part->tensor.data;
        for (int b = 2 * hop->first; b < 2 * hop->end; b++, from += m * row)
            memcpy(out + ((size_t)b * (size_t)n_all + (size_t)done) * row, from, m * row * sizeof *out);
        *n = (int)m;
    }
    sn_msg_free(&part);
    return status;
}

sn_status sn_chain_get_past(sn_chain *chain, int position, int n, float *out, sn_err *err) {
    if (position < 0 || n < 1 || n > chain->length - position)
        return sn_fail(err, SN_REFUSED, "%d tokens at position %d are not in the timeline of %d", n, position, chain->length);
    size_t half = (size_t)n * width(chain);
    sn_status status = SN_OK;
    for (size_t i = 0; i < chain->n_hops && !status; i++) {
        sn_hop_at *hop = &chain->hops[i];
        for (int b = hop->first; b < hop->end && hop->local && !status; b++) {
            float *k = out + at_block(chain, b, n);
            status = sn_span_kv_export(hop->span, hop->kv, b, position, n, k, k + half, err);
        }
        for (int done = 0, m; done < n && !hop->local && !status; done += m) {
            m = n - done;
            status = get_part(chain, hop, position + done, done, n, &m, out, err);
        }
    }
    return status;
}

/* -- in ------------------------------------------------------------------------------------------------------------ */

static sn_status put_part(sn_chain *chain, sn_hop_at *hop, int position, int n, const float *in, const sn_hash *marks, sn_err *err) {
    sn_msg *msg = NULL, *taken = NULL;
    void *data = NULL;
    sn_status status = sn_msg_new(SN_MSG_KV_PUT, 0, &msg, err);
    if (status) return status;
    sn_msg_kv_put *put = &msg->kv_put;
    memcpy(put->session, hop->session, SN_SESSION_ID_SIZE);
    memcpy(put->origin, marks[0].bytes, SN_KEY_SIZE);
    put->position = (uint64_t)position;
    uint64_t shape[] = {(uint64_t)(hop->end - hop->first), 2, (uint64_t)n, width(chain)};
    status = sn_list_new((size_t)n, SN_PAST_TOKENS_MAX, sizeof *put->marks, &put->marks, err);
    if (!status) put->n_marks = (size_t)n;
    for (int i = 0; i < n && !status; i++) memcpy(put->marks[i].timeline, marks[position + i + 1].bytes, SN_KEY_SIZE);
    if (!status) status = sn_msg_new_tensor(msg, SN_F32, 4, shape, &data, err);
    if (!status) {
        memcpy(data, in + at_block(chain, hop->first, n), msg->tensor.bytes);
        sn_hash hash = sn_hash_of(data, msg->tensor.bytes);
        memcpy(put->hash, hash.bytes, SN_HASH_SIZE);
        status = sn_link_call(chain->options.link, hop->address, hop->curve_key, &msg, SN_MSG_KV_TAKEN, chain->options.timeout_ms,
                              &hop->peer, &taken, err);
    }
    if (!status && taken->kv_taken.length != (uint64_t)(position + n))
        status = sn_fail(err, SN_RETRY, "%s did not take a past", hop->report.node);
    sn_msg_free(&msg);
    sn_msg_free(&taken);
    return status;
}

static sn_status put_local(sn_chain *chain, sn_hop_at *hop, int n, const float *in, sn_err *err) {
    size_t half = (size_t)n * width(chain);
    sn_tensor k = {.name = "past keys", .dtype = SN_F32, .rank = 3, .shape = {n, chain->hp.n_kv_heads, chain->hp.head_dim}}, v = k;
    v.name = "past values";
    sn_status status = sn_kv_reserve(hop->kv, n, err);
    for (int b = hop->first; b < hop->end && !status; b++) {
        k.data = in + at_block(chain, b, n);
        v.data = (const float *)k.data + half;
        status = sn_span_kv_import(hop->span, hop->kv, b, n, &k, &v, err);
    }
    if (!status) sn_kv_append(hop->kv, n);
    return status;
}

sn_status sn_chain_put_past(sn_chain *chain, int position, int n, const float *in, const sn_hash *marks, sn_err *err) {
    if (chain->length || position < 0 || n < 1 || n > SN_PAST_TOKENS_MAX || n > chain->options.max_tokens - position)
        return sn_fail(err, SN_REFUSED, "%d tokens of a past do not fit at position %d", n, position);
    sn_status status = SN_OK;
    for (size_t i = 0; i < chain->n_hops && !status; i++) {
        sn_hop_at *hop = &chain->hops[i];
        status = hop->local ? put_local(chain, hop, n, in, err) : put_part(chain, hop, position, n, in, marks, err);
        if (status) sn_err_context(err, "blocks %d:%d", hop->first, hop->end);
    }
    return status;
}

sn_status sn_chain_go_on(sn_chain *chain, int position, const sn_hash *marks, const float *inputs, sn_err *err) {
    const uint8_t *before = NULL;
    for (size_t i = 0; i < chain->n_hops; i++) {
        sn_hop_at *hop = &chain->hops[i];
        int length = 0;
        if (!hop->local) {
            sn_status status = sn_hop_resume(hop, chain->options.link, position, 0, hop->pushed ? before : NULL, marks,
                                             chain->options.timeout_ms, &length, err);
            if (!status && length < position) status = sn_fail(err, SN_RETRY, "%s lost a part of the past", hop->report.node);
            if (!status) status = sn_hop_begin_at(hop, position, chain->hp.n_embd, marks, i ? NULL : inputs, err);
            if (status) return status;
        }
        hop->length = position;
        before = hop->local ? NULL : hop->curve_key;
    }
    chain->length = position;
    return SN_OK;
}
