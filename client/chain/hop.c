/* Hops: opening a session at a node, keeping its timeline, and one step over a group of nodes.
 *
 * A step is one STEP message to the first node of the group. It names the session, the timeline hash on which it
 * continues, and the route: session and expected hash at each further node. Each node computes its blocks and pushes
 * the hidden states to the next one, which its session was opened with; the last one answers the client. The reply's
 * trace names every node with its time and its timeline hash after the step, so the client can check the route, take
 * over the hashes of pushed hops, and account the cost to each hop.
 *
 * The client computes the timeline hash of the first hop itself, because it has the rows that enter there. It keeps
 * these rows (remote.inputs) for replays, the newest ones within a limit, unless they can be made again.
 *
 * After a failure hops_find_failed finds out which hop caused it: the one that the ERROR names by its session, else the
 * first node that does not answer a STATUS request. */
#include "client/chain/hop.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/wire.h"
#include "client/chain/replica.h"
#include "net/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROBE_MS = 1000, /* a living node answers a STATUS within this time, */
    PROBE_SHARE = 8, /* or within this part of the time of a short step */
    RESUME_RETRY_US = 5000,
    ADAPTER_RETRY_US = 20000,
    ADAPTER_RETRIES_US = 3000000,
    INPUTS_LEAST = 2048 /* rows that stay, whatever the limit: steps that are in progress may be run again */
};

static sn_status hop_reserve_timeline(sn_hop *hop, int length, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    if (length < r->timeline_capacity) return SN_OK;
    size_t capacity = (size_t)length + (size_t)length / 2 + 64;
    sn_hash *timeline = realloc(r->timeline, capacity * sizeof *timeline);
    if (!timeline) return sn_fail(err, SN_STOP, "out of memory for a timeline of %d tokens", length);
    r->timeline = timeline;
    r->timeline_capacity = (int)capacity;
    return SN_OK;
}

sn_hash sn_hop_hash_with_kv(const sn_announcement *node, int block) {
    sn_hash weights;
    sn_kv_dtype dtype = SN_KV_F32;
    memcpy(weights.bytes, node->block_hash[block - (int)node->first_block], SN_HASH_SIZE);
    return sn_kv_dtype_of_element(node->kv_dtype, &dtype) ? sn_block_hash_with_kv_dtype(&weights, dtype) : weights;
}

sn_status sn_hop_init(sn_hop *hop, const sn_route_leg *leg, const sn_hash *model, const sn_hash *adapter_hash,
                      bool pushed, sn_err *err) {
    *hop = (sn_hop){.first = leg->first, .end = leg->end, .is_local = !leg->node};
    hop->report.first_block = leg->first;
    hop->report.end_block = leg->end;
    const sn_announcement *node = leg->node;
    if (!node) {
        hop->local = (sn_hop_local){0};
        snprintf(hop->report.node, sizeof hop->report.node, "local");
        return SN_OK;
    }
    char id[2 * SN_KEY_SIZE + 1];
    snprintf(hop->report.node, sizeof hop->report.node, "%.30s@%.40s",
             *node->name ? node->name : sn_hex(node->node, 4, id), node->address);
    sn_sanitize_text(hop->report.node); /* it may be cut inside a character, too */
    hop->pushed = pushed;
    sn_hop_remote *r = &hop->remote;
    *r = (sn_hop_remote){.model = *model, .adapter_hash = *adapter_hash, .tokens_max = (int)node->kv_tokens_max};
    r->pass_us = node->decode_us < INT32_MAX ? (int64_t)node->decode_us : INT32_MAX;
    memcpy(r->node, node->node, SN_KEY_SIZE);
    memcpy(r->curve_key, node->curve_key, SN_KEY_SIZE);
    memcpy(r->address, node->address, sizeof r->address);
    r->timeline = malloc(sizeof *r->timeline);
    if (!r->timeline) return sn_fail(err, SN_STOP, "out of memory");
    sn_hash blocks[SN_SPAN_BLOCKS_MAX];
    for (int b = hop->first; b < hop->end; b++) blocks[b - hop->first] = sn_hop_hash_with_kv(node, b);
    r->weights = sn_hash_of(blocks, (size_t)(hop->end - hop->first) * SN_HASH_SIZE);
    sn_hash begin = sn_timeline_begin(model->bytes, hop->first, hop->end, (const uint8_t(*)[SN_HASH_SIZE])blocks);
    r->timeline[0] = sn_timeline_with_adapter(&begin, adapter_hash->bytes);
    return SN_OK;
}

static void remote_fini(sn_hop_remote *r, sn_link *link) {
    sn_err err;
    sn_msg *msg = NULL;
    /* A node that did not answer may have opened the session all the same. */
    if (r->peer && link && !sn_msg_new(SN_MSG_CLOSE, sn_link_new_correlation_id(), &msg, &err)) {
        memcpy(msg->close.session, r->session, SN_SESSION_ID_SIZE);
        if (sn_link_send(link, r->peer, &msg, &err)) {} /* the session then expires at the node */
    }
    sn_kv_replica_free(&r->replica, link);
    free(r->timeline);
    sn_kept_rows_fini(&r->inputs);
}

void sn_hop_fini(sn_hop *hop, sn_link *link) {
    if (hop->is_local)
        sn_kv_cache_free(&hop->local.kv);
    else
        remote_fini(&hop->remote, link);
    *hop = (sn_hop){0};
}

sn_status sn_hop_open(sn_hop *hop, sn_link *link, int max_tokens, const sn_hop_peers *peers, int64_t until_us,
                      sn_wait *wait, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL;
    *wait = (sn_wait){sn_link_new_correlation_id(), SN_MSG_OPEN_REPLY, until_us, .peers = &r->peer, .n_peers = 1};
    sn_status status = sn_msg_new(SN_MSG_OPEN, wait->correlation_id, &msg, err);
    if (status) return status;
    sn_random(r->session, sizeof r->session);
    memcpy(msg->open.session, r->session, SN_SESSION_ID_SIZE);
    memcpy(msg->open.model, r->model.bytes, SN_HASH_SIZE);
    if (peers->predecessor) memcpy(msg->open.predecessor, peers->predecessor, SN_KEY_SIZE);
    if (peers->kv_source) memcpy(msg->open.kv_source, peers->kv_source, SN_KEY_SIZE);
    if ((status = sn_announcement_list(peers->next, &msg->open.next, &msg->open.n_next, err))) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(msg->open.adapter, r->adapter_hash.bytes, SN_HASH_SIZE);
    msg->open.protocol = SN_PROTOCOL_VERSION;
    msg->open.first_block = (uint64_t)hop->first;
    msg->open.end_block = (uint64_t)hop->end;
    msg->open.max_tokens = (uint64_t)max_tokens;
    snprintf(msg->open.request_id, sizeof msg->open.request_id, "%s", r->request_id ? r->request_id : "");
    status = sn_link_dial(link, r->address, r->curve_key, &r->peer, err);
    if (!status) status = sn_link_send(link, r->peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

sn_status sn_hop_opened(sn_hop *hop, const sn_msg *reply, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    const uint64_t tokens = reply->open_reply.step_tokens_max, depth = reply->open_reply.prefill_depth_max;
    if (tokens < SN_SPAN_ROWS) /* each chunk of a prompt has its own time: chunks of one token would have no end */
        return sn_fail(err, SN_RETRY, "it takes steps of %d tokens, and %d are the least: it cannot be used",
                       (int)tokens, SN_SPAN_ROWS);
    r->prefill_depth_max = depth < SN_PREFILL_DEPTH_MAX ? (int)depth : SN_PREFILL_DEPTH_MAX;
    r->step_tokens_max = tokens < SN_SPAN_ROWS_MAX ? (int)tokens : SN_SPAN_ROWS_MAX;
    return SN_OK;
}

static sn_status hop_send_adapter(const sn_hop *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms,
                                  sn_err *err) {
    const sn_hop_remote *r = &hop->remote;
    sn_msg *msg = NULL, *reply = NULL;
    void *data;
    sn_status status = sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, err);
    if (!status) status = sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){bytes / sizeof(float)}, &data, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(data, image, bytes);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, r->model.bytes, SN_HASH_SIZE);
    memcpy(msg->adapter_put.hash, r->adapter_hash.bytes, SN_HASH_SIZE);
    sn_call call = {r->address, r->curve_key, SN_MSG_ADAPTER_PUT_REPLY, timeout_ms};
    status = sn_link_call(link, &call, &msg, NULL, &reply, err);
    sn_msg_free(&reply);
    return status;
}

/* A node answers RETRY while it loads or unloads an adapter, and when other sessions' adapters fill its memory. */
sn_status sn_hop_put_adapter(const sn_hop *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms,
                             sn_err *err) {
    int64_t now_us = sn_now_us(), end_us = now_us + (int64_t)timeout_ms * 1000;
    int64_t until_us = end_us < now_us + ADAPTER_RETRIES_US ? end_us : now_us + ADAPTER_RETRIES_US;
    for (;;) {
        int left_ms = (int)((end_us - sn_now_us()) / 1000);
        sn_status status = hop_send_adapter(hop, link, image, bytes, left_ms > 1 ? left_ms : 1, err);
        if (status != SN_RETRY || sn_now_us() + ADAPTER_RETRY_US > until_us) return status;
        status = sn_link_pause(link, ADAPTER_RETRY_US, err);
        if (status) return status;
    }
}

size_t sn_hops_group_end(const sn_hop *hops, size_t n_hops, size_t i) {
    size_t j = i + 1;
    while (j < n_hops && hops[j].pushed) j++;
    return j;
}

/* -- the timeline ----------------------------------------------------------------------------------------------------
 */

static bool hash_is_known(const sn_hash *hash) {
    static const sn_hash unknown;
    return memcmp(hash, &unknown, sizeof unknown) != 0;
}

/* Keeps the rows of the step, as they travel. */
static sn_status hop_keep_rows(sn_hop *hop, const sn_step *step, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    if (r->source) return SN_OK;
    sn_status status =
        sn_kept_rows_put(&r->inputs, hop->input_dtype, step->position, step->n, step->n_embd, step->in, err);
    if (status || !r->inputs_max) return status;
    const size_t by_tokens = (size_t)(step->position + step->n) * r->inputs_token_max;
    sn_kept_rows_limit(&r->inputs, by_tokens ? sn_min_size(r->inputs_max, by_tokens) : r->inputs_max, INPUTS_LEAST);
    return SN_OK;
}

sn_status sn_hop_record(sn_hop *hop, const sn_step *step, sn_hasher *hasher, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    size_t width = (size_t)step->n_embd;
    float *row = NULL; /* as it travels, if that is not as it is */
    sn_status status = hop_reserve_timeline(hop, step->position + step->n, err);
    if (!status) status = hop_keep_rows(hop, step, err);
    if (!status && hop->input_dtype != SN_F32) status = sn_calloc(&row, width, sizeof *row, err);
    for (int i = 0; i < step->n && !status; i++) {
        sn_hash *hash = &r->timeline[step->position + i];
        const float *in = step->in + (size_t)i * width;
        if (row) {
            memcpy(row, in, width * sizeof *row);
            sn_wire_round(hop->input_dtype, row, width);
        }
        hash[1] = sn_timeline_next(hasher, hash, row ? row : in, width);
    }
    free(row);
    if (!status) hop->length = step->position + step->n;
    return status;
}

sn_status sn_hop_keep_inputs(sn_hop *hop, const sn_step *step, sn_err *err) {
    if (hop->is_local || hop->pushed || hop->remote.inputs.from != SN_ROWS_NONE) return SN_OK;
    return hop_keep_rows(hop, step, err);
}

/* Drops positions from step->position on and notes the hash after the step, as the node of a pushed hop states it, and
 * those within it, where it states them (NULL: not asked for): the next step may begin there. */
static sn_status hop_note_hash(sn_hop *hop, const sn_step *step, const uint8_t timeline[SN_HASH_SIZE],
                               const sn_blob *within, sn_err *err) {
    const int end = step->position + step->n;
    const bool told = within && within->len == (size_t)step->n * SN_HASH_SIZE;
    sn_status status = hop_reserve_timeline(hop, end, err);
    if (status) return status;
    for (int i = step->position + 1; i < end; i++) hop->remote.timeline[i] = (sn_hash){{0}};
    if (told) memcpy(&hop->remote.timeline[step->position + 1], within->data, within->len);
    memcpy(hop->remote.timeline[end].bytes, timeline, SN_HASH_SIZE);
    hop->length = end;
    return SN_OK;
}

static bool hop_knows_hash(const sn_hop *hop, int position) {
    return hop->is_local || (position <= hop->length && hash_is_known(&hop->remote.timeline[position]));
}

bool sn_hops_know_hash(const sn_hop *hops, size_t n_hops, int position) {
    size_t i = 0;
    while (i < n_hops && hop_knows_hash(&hops[i], position)) i++;
    return i == n_hops;
}

int sn_hops_known_from(const sn_hop *hops, size_t n_hops, int position) {
    int from = position;
    while (from >= 0 && !sn_hops_know_hash(hops, n_hops, from)) from--;
    return from < 0 || from == position || sn_hop_can_replay(&hops[0], from) ? from : -1;
}

bool sn_hop_can_replay(const sn_hop *hop, int from) {
    return !hop->is_local && !hop->pushed && (hop->remote.source || hop->remote.inputs.from <= from);
}

sn_status sn_hop_inputs(const sn_hop *hop, int position, int n, int n_embd, float *out, sn_err *err) {
    const sn_hop_remote *r = &hop->remote;
    if (!r->source) {
        if (!sn_kept_rows_have(&r->inputs, position, n))
            return sn_fail(err, SN_RETRY, "blocks %d:%d cannot be computed again: their inputs are not known here",
                           hop->first, hop->end);
        sn_kept_rows_get(&r->inputs, position, n, n_embd, out);
        return SN_OK;
    }
    sn_status status = r->source->rows(r->source->ctx, position, n, out, err);
    if (!status) sn_wire_round(hop->input_dtype, out, (size_t)n * (size_t)n_embd);
    return status;
}

/* The hash at a position of a hop whose KV cache was copied from a session with this timeline. */
static sn_hash replicated_hash(const sn_hop *hop, const sn_hash *timeline, int position) {
    const sn_hash *begin = &hop->remote.timeline[0];
    bool same = !memcmp(begin, &timeline[0], sizeof *timeline);
    if (!position) return *begin;
    return same || !hash_is_known(&timeline[position]) ? timeline[position]
                                                       : sn_timeline_graft(begin, timeline[position].bytes);
}

sn_status sn_hop_resume(sn_hop *hop, sn_link *link, const sn_resume_point *at, int timeout_ms, int *length,
                        sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;
    r->step_sent = at->step;
    sn_msg *msg = NULL, *reply = NULL;
    sn_status status;
    do { /* KV pages may still be coming in, or a step be ending */
        status = sn_msg_new(SN_MSG_RESUME, 0, &msg, err);
        if (status) return status;
        memcpy(msg->resume.session, r->session, SN_SESSION_ID_SIZE);
        msg->resume.position = (uint64_t)at->position;
        msg->resume.step = at->step;
        if (at->predecessor) memcpy(msg->resume.predecessor, at->predecessor, SN_KEY_SIZE);
        if ((status = sn_announcement_list(at->next, &msg->resume.next, &msg->resume.n_next, err))) {
            sn_msg_free(&msg);
            return status;
        }
        int left_ms = (int)((until - sn_now_us()) / 1000);
        sn_call call = {r->address, r->curve_key, SN_MSG_RESUME_REPLY, left_ms > 1 ? left_ms : 1};
        status = sn_link_call(link, &call, &msg, &r->peer, &reply, err);
        if (status == SN_RETRY && sn_now_us() < until && sn_link_pause(link, RESUME_RETRY_US, err)) status = SN_STOP;
    } while (status == SN_RETRY && sn_now_us() < until);
    if (status) return status;
    uint64_t there = reply->resume_reply.length;
    sn_hash hash;
    memcpy(hash.bytes, reply->resume_reply.timeline, SN_HASH_SIZE);
    sn_msg_free(&reply);
    if (there > (uint64_t)at->position)
        return sn_fail(err, SN_REBUILD, "%s holds a KV cache of more tokens than asked for", hop->report.node);
    *length = (int)there;
    sn_hash expected = replicated_hash(hop, at->timeline, *length);
    if (!hash_is_known(&expected) || memcmp(&hash, &expected, sizeof hash))
        return sn_fail(err, SN_REBUILD, "the KV cache at %s is not the one of this session", hop->report.node);
    r->step = at->step;
    return SN_OK;
}

sn_status sn_hop_copy_timeline(sn_hop *hop, sn_hop *source_hop, int position, sn_err *err) {
    sn_hop_remote *r = &hop->remote, *source = &source_hop->remote;
    bool inputs = !hop->pushed && !source_hop->pushed && hop->first == source_hop->first;
    sn_status status = hop_reserve_timeline(hop, position, err);
    if (status) return status;
    for (int i = 1; i <= position; i++) r->timeline[i] = replicated_hash(hop, source->timeline, i);
    sn_kept_rows_fini(&r->inputs);
    if (inputs) r->inputs = source->inputs;
    if (inputs) source->inputs = (sn_kept_rows){0};
    if (!inputs) r->inputs.from = SN_ROWS_NONE;
    hop->length = position;
    return SN_OK;
}

sn_status sn_hop_set_timeline(sn_hop *hop, int position, int n_embd, const sn_hash *token_timelines,
                              const float *inputs, sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    sn_status status = hop_reserve_timeline(hop, position, err);
    if (status) return status;
    for (int i = 1; i <= position; i++) r->timeline[i] = replicated_hash(hop, token_timelines, i);
    sn_kept_rows_fini(&r->inputs);
    r->inputs.from = SN_ROWS_NONE;
    hop->length = position;
    if (!inputs || hop->pushed) return SN_OK;
    return hop_keep_rows(hop, &(sn_step){0, position, n_embd, inputs, NULL}, err);
}

sn_status sn_hop_attached(sn_hop *hop, const int *positions, const sn_hash *timelines, size_t stride, size_t n,
                          sn_err *err) {
    sn_hop_remote *r = &hop->remote;
    const int length = positions[n - 1];
    sn_status status = hop_reserve_timeline(hop, length, err);
    if (status) return status;
    memset(r->timeline + 1, 0, (size_t)length * sizeof *r->timeline); /* not known */
    for (size_t k = 0; k < n; k++) r->timeline[positions[k]] = timelines[k * stride];
    sn_kept_rows_fini(&r->inputs);
    r->inputs.from = SN_ROWS_NONE;
    hop->length = length;
    return SN_OK;
}

/* -- a step over nodes ------------------------------------------------------------------------------------------------
 */

static sn_status step_msg_new(const sn_hop *hops, size_t n_hops, uint64_t correlation_id, size_t n_in_flight,
                              const sn_step *step, sn_msg **out, sn_err *err) {
    const sn_hop_remote *to = &hops[0].remote;
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_STEP, correlation_id, &msg, err);
    if (status) return status;
    sn_msg_step *m = &msg->step;
    memcpy(m->session, to->session, SN_SESSION_ID_SIZE);
    memcpy(m->timeline, to->timeline[step->position].bytes, SN_HASH_SIZE);
    m->step = to->step + n_in_flight + 1;
    m->position = (uint64_t)step->position;
    m->reply_dtype = hops[n_hops - 1].output_dtype;
    snprintf(m->request_id, sizeof m->request_id, "%s", to->request_id ? to->request_id : "");
    m->wants_receipt = to->wants_receipt;
    m->wants_timelines = n_hops > 1 && step->n > 1 && step->n <= SN_TIMELINES_MAX;
    status = sn_list_new(n_hops - 1, SN_HOPS_MAX, sizeof *m->route, &m->route, err);
    if (!status) m->n_route = n_hops - 1;
    for (size_t i = 1; i < n_hops && !status; i++) {
        const sn_hop_remote *next = &hops[i].remote;
        sn_route_entry *entry = &m->route[i - 1];
        memcpy(entry->session, next->session, SN_SESSION_ID_SIZE);
        entry->dtype = hops[i].input_dtype;
        if (hop_knows_hash(&hops[i], step->position))
            memcpy(entry->timeline, next->timeline[step->position].bytes, SN_HASH_SIZE);
    }
    /* The message has a copy of the rows: the transport may still be sending when the caller changes them. */
    void *data = NULL;
    uint64_t shape[] = {(uint64_t)step->n, (uint64_t)step->n_embd};
    if (!status) status = sn_msg_new_tensor(msg, hops[0].input_dtype, 2, shape, &data, err);
    if (!status) sn_wire_encode(hops[0].input_dtype, step->in, (size_t)step->n * (size_t)step->n_embd, data);
    if (status) sn_msg_free(&msg);
    *out = msg;
    return status;
}

/* A reply is accepted only if it is one to this step: from these nodes, on this timeline, of this shape, with numbers
 * that can be computed with. Decodes it into step->out. */
static sn_status step_check_reply(const sn_hop *hops, size_t n_hops, const sn_step *step, const sn_msg *result,
                                  size_t *failed, sn_err *err) {
    static const uint8_t unknown[SN_HASH_SIZE]; /* all zero stands for "unknown", so no node may answer it */
    const sn_msg_step_reply *reply = &result->step_reply;
    const sn_wire_tensor *t = &result->tensor;
    const sn_hop *last = &hops[n_hops - 1];
    size_t size = (size_t)step->n * (size_t)step->n_embd;
    *failed = n_hops - 1;
    if (reply->n_trace != n_hops)
        return sn_fail(err, SN_RETRY, "the reply came over %zu nodes, not %zu", reply->n_trace, n_hops);
    for (size_t i = 0; i < n_hops; i++) {
        const sn_trace *trace = &reply->trace[i];
        bool other = memcmp(trace->node, hops[i].remote.node, SN_KEY_SIZE);
        if (!other && memcmp(trace->timeline, unknown, sizeof unknown)) continue;
        *failed = i;
        return other ? sn_fail(err, SN_RETRY, "another node answered in place of %s", hops[i].report.node)
                     : sn_fail(err, SN_RETRY, "%s answered without its timeline", hops[i].report.node);
    }
    if (memcmp(reply->trace[0].timeline, hops[0].remote.timeline[step->position + step->n].bytes, SN_HASH_SIZE)) {
        *failed = 0;
        return sn_fail(err, SN_RETRY, "%s answered on another timeline", hops[0].report.node);
    }
    if (t->dtype != last->output_dtype || t->rank != 2 || t->shape[0] != (uint64_t)step->n ||
        t->shape[1] != (uint64_t)step->n_embd)
        return sn_fail(err, SN_RETRY, "%s answered hidden states of another shape", last->report.node);
    sn_wire_decode(t->dtype, t->data, size, step->out);
    if (!sn_wire_is_usable(step->out, size))
        return sn_fail(err, SN_RETRY, "%s answered hidden states that are not finite, or are far too large",
                       last->report.node);
    return SN_OK;
}

/* -- the receipts of a step's nodes: each must be about this step, and every node must have received what the node
 * before it sent. Such faults show at once; whether the numbers are right only an audit finds out. */

static const char *receipt_mismatch(const sn_hop *hop, const sn_receipt *r, const sn_trace *trace,
                                    const sn_step *step) {
    const sn_hop_remote *remote = &hop->remote;
    if (memcmp(r->node, remote->node, SN_KEY_SIZE)) return "another node signed it";
    if (memcmp(r->session, remote->session, SN_SESSION_ID_SIZE) || r->step != remote->step + 1)
        return "it is about another step";
    if (memcmp(r->model, remote->model.bytes, SN_HASH_SIZE) || memcmp(&r->weights, &remote->weights, SN_HASH_SIZE) ||
        r->first_block != (uint32_t)hop->first || r->end_block != (uint32_t)hop->end)
        return "it is about other blocks";
    if (r->position != (uint64_t)step->position || r->n != (uint32_t)step->n) return "it is about other tokens";
    if (r->n_embd != (uint32_t)step->n_embd) return "it is about rows of another width";
    if (memcmp(&r->timeline_before, &remote->timeline[step->position], SN_HASH_SIZE) ||
        memcmp(&r->timeline_after, trace->timeline, SN_HASH_SIZE))
        return "it is about another timeline";
    if (r->input_dtype != (uint8_t)hop->input_dtype || r->output_dtype != (uint8_t)hop->output_dtype)
        return "hidden states came or went as another type than was asked for";
    if (r->kv_dtype != (uint8_t)remote->kv_dtype) return "keys and values are kept in another type than was asked for";
    return NULL;
}

static bool hash_is_of_tensor(const sn_hash *hash, const sn_wire_tensor *t) {
    sn_hash real = sn_hash_of(t->data, t->bytes);
    return !memcmp(hash, &real, sizeof real);
}

sn_status sn_hops_check_receipts(sn_hop *hops, size_t n_hops, const sn_hash *sent, const sn_msg *result,
                                 const sn_step *step, size_t *failed, sn_err *err) {
    const sn_msg_step_reply *reply = &result->step_reply;
    sn_receipt opened[SN_HOPS_MAX];
    *failed = n_hops - 1;
    if (reply->n_receipts != n_hops)
        return sn_fail(err, SN_RETRY, "%zu receipts came from %zu nodes", reply->n_receipts, n_hops);
    for (size_t i = 0; i < n_hops; i++) {
        const sn_blob *sealed = &reply->receipts[i];
        sn_receipt *r = &opened[i];
        const char *node = hops[i].report.node, *wrong = NULL;
        sn_err reason = {0};
        *failed = i;
        if (sn_receipt_open(sealed->data, sealed->len, r, &reason)) wrong = reason.text;
        if (!wrong) wrong = receipt_mismatch(&hops[i], r, &reply->trace[i], step);
        if (!wrong && !i && memcmp(&r->input, sent, sizeof *sent)) wrong = "it is about another input";
        if (!wrong && i + 1 == n_hops && !hash_is_of_tensor(&r->output, &result->tensor))
            wrong = "it is about another output";
        if (wrong) return sn_fail(err, SN_RETRY, "the receipt of %s is not valid: %.200s", node, wrong);
        if (i && (memcmp(&r->input, &r[-1].output, sizeof r->input) || r->input_dtype != r[-1].output_dtype)) {
            *failed = n_hops; /* either of the two; without pushing between them it will show which */
            return sn_fail(err, SN_RETRY, "%s signed other bytes as sent than %s signed as received",
                           hops[i - 1].report.node, node);
        }
    }
    for (size_t i = 0; i < n_hops; i++) {
        memcpy(hops[i].remote.receipt, reply->receipts[i].data, SN_RECEIPT_SIZE);
        hops[i].remote.last_receipt = opened[i];
    }
    return SN_OK;
}

/* -- the reply --------------------------------------------------------------------------------------------------------
 */

/* A part of the time that is left: what nodes state is together no more than what has passed here. */
static uint64_t take_time(uint64_t *left_us, uint64_t stated_us) {
    uint64_t us = stated_us < *left_us ? stated_us : *left_us;
    *left_us -= us;
    return us;
}

static void hops_account_step(sn_hop *hops, size_t n_hops, const sn_msg *result, int n, int64_t elapsed_us) {
    uint64_t left_us = elapsed_us > 0 ? (uint64_t)elapsed_us : 0;
    for (size_t i = 0; i < n_hops; i++) {
        const sn_trace *trace = &result->step_reply.trace[i];
        hops[i].report.steps++;
        hops[i].report.tokens += (uint64_t)n;
        hops[i].report.queue_us += hops[i].remote.last_queue_us = take_time(&left_us, trace->queue_us);
        hops[i].report.compute_us += hops[i].remote.last_compute_us = take_time(&left_us, trace->compute_us);
    }
    hops[0].report.network_us += hops[0].remote.last_network_us = left_us;
    if ((int64_t)left_us < hops[0].remote.answer_us) hops[0].remote.answer_us = (int64_t)left_us;
}

static sn_status hop_ask_status(const sn_hop *hop, sn_link *link, uint64_t correlation_id, sn_peer *peer, sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_STATUS, correlation_id, &msg, err);
    if (status) return status;
    msg->status.protocol = SN_PROTOCOL_VERSION;
    status = sn_link_dial(link, hop->remote.address, hop->remote.curve_key, peer, err);
    if (!status) status = sn_link_send(link, *peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

/* All are asked at once: the times that nodes take to answer must not add up. */
size_t sn_hops_find_silent(const sn_hop *hops, size_t n_hops, sn_link *link, int64_t step_us) {
    int64_t probe_ms = step_us / 1000 / PROBE_SHARE;
    probe_ms = probe_ms < 1 ? 1 : probe_ms < PROBE_MS ? probe_ms : PROBE_MS;
    int64_t until_us = sn_now_us() + probe_ms * 1000;
    sn_peer peers[SN_HOPS_MAX];
    sn_wait waits[SN_HOPS_MAX]; /* for answers of hops hop_of[], in order */
    size_t hop_of[SN_HOPS_MAX], n = 0, silent = n_hops, which;
    sn_err err;
    for (size_t i = 0; i < n_hops && i < silent; i++) {
        uint64_t id = sn_link_new_correlation_id();
        waits[n] = (sn_wait){id, SN_MSG_STATUS_REPLY, until_us, .peers = &peers[i], .n_peers = 1};
        if (hop_ask_status(&hops[i], link, id, &peers[i], &err)) silent = i;
        hop_of[n++] = i;
    }
    while (n && hop_of[0] < silent) {
        sn_msg *alive = NULL;
        sn_status status = sn_link_wait_any(link, waits, n, &which, &alive, &err);
        sn_msg_free(&alive);
        if (status && hop_of[which] < silent) silent = hop_of[which];
        n--;
        memmove(waits + which, waits + which + 1, (n - which) * sizeof *waits);
        memmove(hop_of + which, hop_of + which + 1, (n - which) * sizeof *hop_of);
    }
    return silent;
}

/* The hop that caused a failed step: the one that an ERROR has named by its session, else the first one whose node does
 * not answer. */
static size_t hops_find_failed(const sn_hop *hops, size_t n_hops, sn_link *link, const sn_step_in_flight *in_flight) {
    for (size_t i = 0; i < n_hops; i++)
        if (!memcmp(hops[i].remote.session, in_flight->wait.session, SN_SESSION_ID_SIZE)) return i;
    return n_hops == 1 ? 0 : sn_hops_find_silent(hops, n_hops, link, in_flight->until_us - in_flight->began_us);
}

sn_status sn_hops_send(sn_hop *hops, size_t n_hops, sn_link *link, size_t n_in_flight, sn_peer *peers,
                       sn_step_in_flight *step, sn_err *err) {
    sn_msg *msg = NULL;
    step->began_us = sn_now_us();
    step->wait = (sn_wait){.correlation_id = sn_link_new_correlation_id(),
                           .wanted = SN_MSG_STEP_REPLY,
                           .deadline_us = step->until_us,
                           .peers = peers,
                           .n_peers = n_hops};
    for (size_t i = 0; i < n_hops; i++) peers[i] = hops[i].remote.peer;
    for (size_t i = 1; i < n_hops; i++) /* what they held behind it is not what it will be */
        if (hops[i].length > step->step.position) hops[i].length = step->step.position;
    sn_status status = step_msg_new(hops, n_hops, step->wait.correlation_id, n_in_flight, &step->step, &msg, err);
    if (status) return status;
    for (size_t i = 0; i < n_hops; i++)
        if (hops[i].remote.step_sent < msg->step.step) hops[i].remote.step_sent = msg->step.step;
    return sn_link_send(link, hops[0].remote.peer, &msg, err);
}

/* The hash of the step's tensor as it went to the first hop. */
static sn_status hop_hash_input(const sn_hop *hop, const sn_step *step, sn_hash *out, sn_err *err) {
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, (size_t)step->n * (size_t)step->n_embd, sizeof *rows, err);
    if (!status) status = sn_hop_inputs(hop, step->position, step->n, step->n_embd, rows, err);
    if (!status) status = sn_rows_hash(rows, step->n, step->n_embd, hop->input_dtype, out, err);
    free(rows);
    return status;
}

sn_status sn_hops_receive(sn_hop *hops, size_t n_hops, const sn_step_in_flight *in_flight, const sn_msg *result,
                          size_t *failed, sn_err *err) {
    const sn_step *step = &in_flight->step;
    const sn_hop_remote *first = &hops[0].remote;
    sn_status status = step_check_reply(hops, n_hops, step, result, failed, err);
    if (!status && first->wants_receipt) {
        sn_hash sent;
        status = hop_hash_input(&hops[0], step, &sent, err);
        if (!status) status = sn_hops_check_receipts(hops, n_hops, &sent, result, step, failed, err);
    }
    for (size_t i = 1; i < n_hops && !status; i++)
        status = hop_note_hash(&hops[i], step, result->step_reply.trace[i].timeline,
                               result->step_reply.n_timelines == n_hops ? &result->step_reply.timelines[i] : NULL, err);
    if (status) return status;
    hops_account_step(hops, n_hops, result, step->n, sn_now_us() - in_flight->began_us);
    for (size_t i = 0; i < n_hops; i++) hops[i].remote.step++;
    return SN_OK;
}

/* In a group every node could say something about another one: what concerns a hop is believed of that hop's node only.
 * Else any of them may be at fault: n_hops, and without pushing it will show which. */
static size_t hops_believe(const sn_hop *hops, size_t n_hops, size_t failed, sn_peer from) {
    return n_hops == 1 || failed == n_hops || hops[failed].remote.peer == from ? failed : n_hops;
}

sn_status sn_hops_blame(const sn_hop *hops, size_t n_hops, sn_link *link, sn_step_in_flight *in_flight, size_t *failed,
                        sn_err *err) {
    sn_wait *wait = &in_flight->wait;
    if (*failed == SN_HOP_UNKNOWN && sn_link_lost(link, wait)) {
        *failed = wait->lost_peer;
        return sn_fail(err, SN_REBUILD, "the connection was lost: is the node still running?");
    }
    if (*failed == SN_HOP_UNKNOWN) *failed = hops_find_failed(hops, n_hops, link, in_flight);
    if (wait->from) *failed = hops_believe(hops, n_hops, *failed, wait->from);
    return err->status;
}

/* -- a step here ------------------------------------------------------------------------------------------------------
 */

sn_status sn_hop_step_local(sn_hop *hop, const sn_step *step, sn_err *err) {
    sn_hop_local *local = &hop->local;
    int64_t began = sn_now_us();
    if (sn_kv_cache_length(local->kv) > step->position) sn_kv_cache_rewind(local->kv, step->position);
    sn_status status = sn_kv_cache_reserve(local->kv, step->n, err);
    if (status) return status;
    sn_kv_cache_usage_of(local->kv)->is_long = hop->is_long;
    sn_tensor input = {
        .name = "hidden states", .data = step->in, .dtype = SN_F32, .rank = 2, .shape = {step->n, step->n_embd}};
    sn_span_sequence sequence = {local->kv, &input, 0, step->n, step->out};
    status = sn_span_forward_adapter(local->span, hop->first, hop->end, local->adapter, 1, &sequence, NULL, err);
    if (status) {
        sn_kv_cache_rewind(local->kv, step->position); /* frees the pages that were reserved */
        return status;
    }
    sn_wire_round(hop->output_dtype, step->out, (size_t)step->n * (size_t)step->n_embd);
    hop->length = step->position + step->n;
    hop->report.steps++;
    hop->report.tokens += (uint64_t)step->n;
    hop->report.compute_us += (uint64_t)(sn_now_us() - began);
    return SN_OK;
}
