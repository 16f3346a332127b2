#include "client/hop.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/wire.h"
#include "client/evidence.h"
#include "client/spare.h"
#include "net/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_MS = 1000, BUSY_AGAIN_US = 5000 }; /* a living node answers a STATUS at once */

static sn_status make_room(sn_hop_at *hop, int length, int n_embd, sn_err *err) {
    if (length < hop->room) return SN_OK;
    size_t room = (size_t)length + (size_t)length / 2 + 64, bytes;
    sn_hash *timeline = realloc(hop->timeline, room * sizeof *timeline);
    if (!timeline) return sn_fail(err, SN_STOP, "out of memory for a timeline of %d tokens", length);
    hop->timeline = timeline;
    if (!hop->pushed) {
        if (!sn_mul(room * sizeof(float), (size_t)n_embd, &bytes))
            return sn_fail(err, SN_STOP, "a timeline is too long");
        float *inputs = realloc(hop->inputs, bytes);
        if (!inputs) return sn_fail(err, SN_STOP, "out of memory to keep %d tokens for a replay", length);
        hop->inputs = inputs;
    }
    hop->room = (int)room;
    return SN_OK;
}

sn_status sn_hop_init(sn_hop_at *hop, const sn_stop *stop, const sn_hash *model, const sn_hash *tuned, bool pushed,
                      sn_err *err) {
    *hop = (sn_hop_at){.first = stop->first, .end = stop->end, .local = !stop->node, .tuned = *tuned};
    hop->report.first_block = stop->first;
    hop->report.end_block = stop->end;
    const sn_announcement *node = stop->node;
    if (!node) {
        snprintf(hop->report.node, sizeof hop->report.node, "local");
        return SN_OK;
    }
    char id[2 * SN_KEY_SIZE + 1];
    snprintf(hop->report.node, sizeof hop->report.node, "%.30s@%.40s",
             *node->name ? node->name : sn_hex(node->node, 4, id), node->address);
    hop->pushed = pushed;
    memcpy(hop->node, node->node, SN_KEY_SIZE);
    memcpy(hop->curve_key, node->curve_key, SN_KEY_SIZE);
    memcpy(hop->address, node->address, sizeof hop->address);
    hop->timeline = malloc(sizeof *hop->timeline);
    if (!hop->timeline) return sn_fail(err, SN_STOP, "out of memory");
    hop->model = *model;
    hop->weights = sn_hash_of(&node->block_hash[hop->first - (int)node->first_block],
                              (size_t)(hop->end - hop->first) * SN_HASH_SIZE);
    sn_hash begin =
        sn_timeline_begin(model->bytes, hop->first, hop->end, &node->block_hash[hop->first - (int)node->first_block]);
    hop->timeline[0] = sn_timeline_tuned(&begin, tuned->bytes);
    return SN_OK;
}

void sn_hop_fini(sn_hop_at *hop, sn_link *link) {
    sn_err err;
    sn_msg *msg = NULL;
    /* One that did not answer may have opened the session all the same. */
    if (hop->peer && link && !sn_msg_new(SN_MSG_CLOSE, sn_link_request(link), &msg, &err)) {
        memcpy(msg->close.session, hop->session, SN_SESSION_ID_SIZE);
        if (sn_link_send(link, hop->peer, &msg, &err)) {} /* its session expires by itself, too */
    }
    sn_spare_free(&hop->spare, link);
    sn_kv_free(&hop->kv);
    free(hop->timeline);
    free(hop->inputs);
    *hop = (sn_hop_at){0};
}

sn_status sn_hop_open(sn_hop_at *hop, sn_link *link, const sn_hash *model, int max_tokens, const uint8_t *predecessor,
                      const uint8_t *source, int timeout_ms, sn_err *err) {
    sn_msg *msg = NULL, *opened = NULL;
    sn_status status = sn_msg_new(SN_MSG_OPEN, 0, &msg, err);
    if (status) return status;
    sn_random(hop->session, sizeof hop->session);
    memcpy(msg->open.session, hop->session, SN_SESSION_ID_SIZE);
    memcpy(msg->open.model, model->bytes, SN_HASH_SIZE);
    if (predecessor) memcpy(msg->open.predecessor, predecessor, SN_KEY_SIZE);
    if (source) memcpy(msg->open.source, source, SN_KEY_SIZE);
    memcpy(msg->open.tuning, hop->tuned.bytes, SN_HASH_SIZE);
    msg->open.protocol = SN_PROTOCOL;
    msg->open.first_block = (uint64_t)hop->first;
    msg->open.end_block = (uint64_t)hop->end;
    msg->open.max_tokens = (uint64_t)max_tokens;
    snprintf(msg->open.flow, sizeof msg->open.flow, "%s", hop->flow ? hop->flow : "");
    status = sn_link_call(link, hop->address, hop->curve_key, &msg, SN_MSG_OPENED, timeout_ms, &hop->peer, &opened, err);
    if (status) return status;
    uint64_t tokens = opened->opened.step_tokens_max, ahead = opened->opened.steps_ahead_max;
    sn_msg_free(&opened);
    if (!tokens) return sn_fail(err, SN_RETRY, "%s takes steps of no tokens: it cannot be used", hop->address);
    hop->steps_ahead_max = ahead < SN_STEPS_AHEAD_MAX ? (int)ahead : SN_STEPS_AHEAD_MAX;
    hop->step_tokens_max = tokens < SN_SPAN_ROWS_MAX ? (int)tokens : SN_SPAN_ROWS_MAX;
    return SN_OK;
}

sn_status sn_hop_record(sn_hop_at *hop, int position, int n, int n_embd, const float *rows, sn_hasher *hasher,
                        sn_err *err) {
    sn_status status = make_room(hop, position + n, n_embd, err);
    if (status) return status;
    float *kept = hop->inputs + (size_t)position * (size_t)n_embd; /* a replay may read from here, too */
    memmove(kept, rows, (size_t)n * (size_t)n_embd * sizeof *rows);
    sn_wire_round(hop->takes, kept, (size_t)n * (size_t)n_embd);
    rows = kept;
    for (int i = 0; i < n; i++)
        hop->timeline[position + i + 1] =
            sn_timeline_next(hasher, &hop->timeline[position + i], rows + (size_t)i * (size_t)n_embd, (size_t)n_embd);
    hop->length = position + n;
    return SN_OK;
}

sn_status sn_hop_note(sn_hop_at *hop, int position, int n, const uint8_t timeline[SN_HASH_SIZE], sn_err *err) {
    sn_status status = make_room(hop, position + n, 0, err);
    if (status) return status;
    for (int i = 1; i < n; i++) hop->timeline[position + i] = (sn_hash){{0}};
    memcpy(hop->timeline[position + n].bytes, timeline, SN_HASH_SIZE);
    hop->length = position + n;
    return SN_OK;
}

bool sn_hop_knows(const sn_hop_at *hop, int position) {
    static const sn_hash unknown;
    return hop->local || (position <= hop->length && memcmp(&hop->timeline[position], &unknown, sizeof unknown));
}

/* -- a past from elsewhere ------------------------------------------------------------------------------------------ */

static bool is_known(const sn_hash *hash) {
    static const sn_hash unknown;
    return memcmp(hash, &unknown, sizeof unknown) != 0;
}

/* The hash at a position of a hop whose past was copied from one with that timeline. */
static sn_hash copied_hash(const sn_hop_at *hop, const sn_hash *timeline, int position) {
    bool same = !memcmp(&hop->timeline[0], &timeline[0], sizeof *timeline);
    if (!position) return hop->timeline[0];
    return same || !is_known(&timeline[position]) ? timeline[position]
                                                  : sn_timeline_graft(&hop->timeline[0], timeline[position].bytes);
}

sn_status sn_hop_resume(sn_hop_at *hop, sn_link *link, int position, uint64_t step, const uint8_t *predecessor,
                        const sn_hash *timeline, int timeout_ms, int *length, sn_err *err) {
    int64_t until = sn_now_us() + (int64_t)timeout_ms * 1000;
    sn_msg *msg = NULL, *resumed = NULL;
    sn_status status;
    do { /* a part of its past may just be coming in, or a step be ending */
        status = sn_msg_new(SN_MSG_RESUME, 0, &msg, err);
        if (status) return status;
        memcpy(msg->resume.session, hop->session, SN_SESSION_ID_SIZE);
        msg->resume.position = (uint64_t)position;
        msg->resume.step = step;
        if (predecessor) memcpy(msg->resume.predecessor, predecessor, SN_KEY_SIZE);
        int left_ms = (int)((until - sn_now_us()) / 1000);
        status = sn_link_call(link, hop->address, hop->curve_key, &msg, SN_MSG_RESUMED, left_ms > 1 ? left_ms : 1, &hop->peer,
                              &resumed, err);
        if (status == SN_RETRY && sn_now_us() < until) sn_sleep_us(BUSY_AGAIN_US);
    } while (status == SN_RETRY && sn_now_us() < until);
    if (status) return status;
    uint64_t there = resumed->resumed.length;
    sn_hash hash;
    memcpy(hash.bytes, resumed->resumed.timeline, SN_HASH_SIZE);
    sn_msg_free(&resumed);
    if (there > (uint64_t)position)
        return sn_fail(err, SN_REBUILD, "%s has a past of more tokens than asked for", hop->report.node);
    *length = (int)there;
    sn_hash expected = copied_hash(hop, timeline, *length);
    if (!is_known(&expected) || memcmp(&hash, &expected, sizeof hash))
        return sn_fail(err, SN_REBUILD, "the past at %s is not the one of this session", hop->report.node);
    hop->step = step;
    return SN_OK;
}

sn_status sn_hop_take_over(sn_hop_at *hop, sn_hop_at *old, int position, int n_embd, sn_err *err) {
    bool inputs = !hop->pushed && !old->pushed && hop->first == old->first;
    int room = old->room > position ? old->room : position;
    sn_status status = make_room(hop, room, inputs ? 0 : n_embd, err);
    if (status) return status;
    for (int i = 1; i <= position; i++) hop->timeline[i] = copied_hash(hop, old->timeline, i);
    if (inputs) { /* old keeps what hop had: nothing */
        free(hop->inputs);
        hop->inputs = old->inputs;
        old->inputs = NULL;
        hop->room = old->room;
    }
    hop->inputs_from = inputs ? old->inputs_from : position;
    hop->length = position;
    return SN_OK;
}

sn_status sn_hop_begin_at(sn_hop_at *hop, int position, int n_embd, const sn_hash *marks, const float *inputs, sn_err *err) {
    sn_status status = make_room(hop, position, n_embd, err);
    if (status) return status;
    for (int i = 1; i <= position; i++) hop->timeline[i] = copied_hash(hop, marks, i);
    bool known = inputs && !hop->pushed;
    if (known) memcpy(hop->inputs, inputs, (size_t)position * (size_t)n_embd * sizeof *inputs);
    hop->inputs_from = known ? 0 : position;
    hop->length = position;
    return SN_OK;
}

bool sn_hop_can_replay(const sn_hop_at *hop, int from) {
    return !hop->local && !hop->pushed && hop->inputs_from <= from;
}

/* -- a step over nodes -----------------------------------------------------------------------------------------------
 */

static sn_status new_step(const sn_hop_at *hops, size_t n_hops, uint64_t request, size_t ahead, int position, int n,
                          int n_embd, const float *rows, sn_msg **out, sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_STEP, request, &msg, err);
    if (status) return status;
    sn_msg_step *step = &msg->step;
    memcpy(step->session, hops[0].session, SN_SESSION_ID_SIZE);
    memcpy(step->timeline, hops[0].timeline[position].bytes, SN_HASH_SIZE);
    step->step = hops[0].step + ahead + 1;
    step->position = (uint64_t)position;
    step->reply_dtype = hops[n_hops - 1].gives;
    snprintf(step->flow, sizeof step->flow, "%s", hops[0].flow ? hops[0].flow : "");
    step->receipt = hops[0].signs;
    status = sn_list_new(n_hops - 1, SN_HOPS_MAX, sizeof *step->route, &step->route, err);
    if (!status) step->n_route = n_hops - 1;
    for (size_t i = 1; i < n_hops && !status; i++) {
        sn_hop *hop = &step->route[i - 1];
        memcpy(hop->address, hops[i].address, sizeof hop->address);
        memcpy(hop->curve_key, hops[i].curve_key, SN_KEY_SIZE);
        memcpy(hop->session, hops[i].session, SN_SESSION_ID_SIZE);
        hop->dtype = hops[i].takes;
        if (!ahead) memcpy(hop->timeline, hops[i].timeline[position].bytes, SN_HASH_SIZE);
    }
    /* The transport may still be sending when the rows change here: the message has a copy of its own. */
    void *data = NULL;
    uint64_t shape[] = {(uint64_t)n, (uint64_t)n_embd};
    if (!status) status = sn_msg_new_tensor(msg, hops[0].takes, 2, shape, &data, err);
    if (!status) sn_wire_encode(hops[0].takes, rows, (size_t)n * (size_t)n_embd, data);
    if (status) sn_msg_free(&msg);
    *out = msg;
    return status;
}

/* An answer is taken only if it is one to this step: from these nodes, on this timeline, of this shape, finite. Decodes it. */
static sn_status check_result(const sn_hop_at *hops, size_t n_hops, const sn_msg *result, int position, int n,
                              int n_embd, float *out, size_t *failed, sn_err *err) {
    static const uint8_t unknown[SN_HASH_SIZE]; /* means that to us: nobody may answer it */
    const sn_wire_tensor *t = &result->tensor;
    *failed = n_hops - 1;
    if (result->result.n_trace != n_hops)
        return sn_fail(err, SN_RETRY, "the answer went over %zu nodes, not %zu", result->result.n_trace, n_hops);
    for (size_t i = 0; i < n_hops; i++) {
        const sn_trace *trace = &result->result.trace[i];
        bool other = memcmp(trace->node, hops[i].node, SN_KEY_SIZE);
        if (!other && memcmp(trace->timeline, unknown, sizeof unknown)) continue;
        *failed = i;
        return other ? sn_fail(err, SN_RETRY, "another node answered in place of %s", hops[i].report.node)
                     : sn_fail(err, SN_RETRY, "%s answered without its timeline", hops[i].report.node);
    }
    if (memcmp(result->result.trace[0].timeline, hops[0].timeline[position + n].bytes, SN_HASH_SIZE)) {
        *failed = 0;
        return sn_fail(err, SN_RETRY, "%s answered on another timeline", hops[0].report.node);
    }
    if (t->dtype != hops[n_hops - 1].gives || t->rank != 2 || t->shape[0] != (uint64_t)n || t->shape[1] != (uint64_t)n_embd)
        return sn_fail(err, SN_RETRY, "%s answered hidden states of another shape", hops[n_hops - 1].report.node);
    sn_wire_decode(t->dtype, t->data, (size_t)n * (size_t)n_embd, out);
    for (size_t i = 0; i < (size_t)n * (size_t)n_embd; i++)
        if (!isfinite(out[i]))
            return sn_fail(err, SN_RETRY, "%s answered hidden states that are no numbers",
                           hops[n_hops - 1].report.node);
    return SN_OK;
}

static void account(sn_hop_at *hops, size_t n_hops, const sn_msg *result, int n, int64_t elapsed_us) {
    uint64_t in_nodes = 0;
    for (size_t i = 0; i < n_hops; i++) {
        const sn_trace *trace = &result->result.trace[i];
        hops[i].report.steps++;
        hops[i].report.tokens += (uint64_t)n;
        hops[i].report.queue_us += hops[i].last_queue_us = trace->queue_us;
        hops[i].report.compute_us += hops[i].last_compute_us = trace->compute_us;
        in_nodes += trace->queue_us + trace->compute_us;
    }
    hops[0].last_network_us = (uint64_t)elapsed_us > in_nodes ? (uint64_t)elapsed_us - in_nodes : 0;
    hops[0].report.network_us += hops[0].last_network_us;
}

/* Who is to blame for a step that failed: the hop that `session` names; else the first node that does not answer. */
static size_t find_failed(const sn_hop_at *hops, size_t n_hops, sn_link *link, const uint8_t *session, int timeout_ms) {
    size_t i;
    for (i = 0; i < n_hops; i++)
        if (!memcmp(hops[i].session, session, SN_SESSION_ID_SIZE)) return i;
    for (i = 0; n_hops > 1 && i < n_hops; i++) {
        sn_msg *msg = NULL, *alive = NULL;
        sn_err err;
        if (sn_msg_new(SN_MSG_STATUS, 0, &msg, &err)) return 0;
        msg->status.protocol = SN_PROTOCOL;
        int probe_ms = timeout_ms < PROBE_MS ? timeout_ms : PROBE_MS;
        if (sn_link_call(link, hops[i].address, hops[i].curve_key, &msg, SN_MSG_STATUS_IS, probe_ms, NULL, &alive, &err))
            return i;
        sn_msg_free(&alive);
    }
    return n_hops > 1 ? n_hops : 0;
}

sn_status sn_hops_send(sn_hop_at *hops, size_t n_hops, sn_link *link, size_t ahead, int position, int n, int n_embd,
                       const float *rows, int timeout_ms, sn_flight *out, sn_err *err) {
    sn_msg *msg = NULL;
    int64_t now = sn_now_us(), longest = (int64_t)timeout_ms * 1000 * (int64_t)(ahead + 1); /* those before it come first */
    *out = (sn_flight){sn_link_request(link), position, n, now, now + longest};
    sn_status status = new_step(hops, n_hops, out->request, ahead, position, n, n_embd, rows, &msg, err);
    return status ? status : sn_link_send(link, hops[0].peer, &msg, err);
}

sn_wait sn_hops_wait(const sn_hop_at *hops, size_t n_hops, const sn_flight *flight, sn_peer *peers) {
    for (size_t i = 0; i < n_hops; i++) peers[i] = hops[i].peer;
    return (sn_wait){.request = flight->request,
                     .wanted = SN_MSG_RESULT,
                     .deadline_us = flight->deadline_us,
                     .peers = peers,
                     .n_peers = n_hops};
}

sn_status sn_hops_take(sn_hop_at *hops, size_t n_hops, const sn_flight *flight, const sn_msg *result, int n_embd, float *out,
                       size_t *failed, sn_err *err) {
    int position = flight->position, n = flight->n;
    sn_status status = check_result(hops, n_hops, result, position, n, n_embd, out, failed, err);
    if (!status && hops[0].signs) {
        sn_hash sent;
        status = sn_rows_hash(hops[0].inputs + (size_t)position * (size_t)n_embd, n, n_embd, hops[0].takes, &sent, err);
        if (!status) status = sn_hops_take_receipts(hops, n_hops, &sent, result, position, n, failed, err);
    }
    for (size_t i = 1; i < n_hops && !status; i++)
        status = sn_hop_note(&hops[i], position, n, result->result.trace[i].timeline, err);
    if (status) return status;
    account(hops, n_hops, result, n, sn_now_us() - flight->began_us);
    for (size_t i = 0; i < n_hops; i++) hops[i].step++;
    return SN_OK;
}

sn_status sn_hops_step(sn_hop_at *hops, size_t n_hops, sn_link *link, int position, int n, int n_embd,
                       const float *rows, int timeout_ms, float *out, size_t *failed, sn_err *err) {
    sn_msg *result = NULL;
    sn_peer peers[SN_HOPS_MAX];
    sn_flight flight;
    *failed = 0;
    sn_status status = sn_hops_send(hops, n_hops, link, 0, position, n, n_embd, rows, timeout_ms, &flight, err);
    sn_wait wait = sn_hops_wait(hops, n_hops, &flight, peers);
    if (!status) status = sn_link_wait(link, &wait, &result, err);
    if (status && status != SN_STOP && sn_link_lost(link, &wait)) {
        *failed = wait.lost_peer;
        status = sn_fail(err, SN_REBUILD, "the connection was lost: is the node still running?");
    } else if (status)
        *failed = find_failed(hops, n_hops, link, wait.session, timeout_ms);
    else
        status = sn_hops_take(hops, n_hops, &flight, result, n_embd, out, failed, err);
    sn_msg_free(&result);
    return status;
}

sn_status sn_hop_step_local(sn_hop_at *hop, int position, int n, int n_embd, const float *rows, float *out,
                            sn_err *err) {
    int64_t began = sn_now_us();
    if (sn_kv_length(hop->kv) > position) sn_kv_rewind(hop->kv, position);
    sn_status status = sn_kv_reserve(hop->kv, n, err);
    if (status) return status;
    sn_tensor input = {.name = "hidden states", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, n_embd}};
    sn_span_part part = {hop->kv, &input, 0, n, out};
    status = sn_span_forward_tuned(hop->span, hop->first, hop->end, hop->tuning, 1, &part, NULL, err);
    if (status) {
        sn_kv_rewind(hop->kv, position); /* gives back the room that was reserved */
        return status;
    }
    sn_wire_round(hop->gives, out, (size_t)n * (size_t)n_embd);
    hop->length = position + n;
    hop->report.steps++;
    hop->report.tokens += (uint64_t)n;
    hop->report.compute_us += (uint64_t)(sn_now_us() - began);
    return SN_OK;
}
