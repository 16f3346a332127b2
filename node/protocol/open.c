/* OPEN and CLOSE: how sessions begin and end, and what the quota of their client allows.
 *
 * A session is opened for blocks that this node serves, under an id that the client chose at random, and belongs to the
 * CURVE key of that client. An OPEN that is repeated, because its reply was lost, finds its session and is answered
 * again.
 *
 * A session is closed by its owner, without its owner (expiry.c), or because the node moves to other blocks. Its KV
 * cache belongs to the device thread; so it is closed in steps: jobs in the engine
 * are cancelled, when they have returned a CLOSE job frees the KV cache, and when that has returned the session is
 * removed. */
#include "node/protocol/protocol_private.h"

#include "base/log.h"
#include "net/timeline.h"

#include <stdlib.h>
#include <string.h>

/* -- the quota of a client, counted over its sessions -------------------------------------------------------------- */

static size_t session_kv_bytes(const sn_protocol *protocol, const sn_session *session, int tokens) {
    size_t pages = ((size_t)tokens + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS;
    size_t floats = 0; /* as if blocks with a recurrent state had keys and values */
    for (int b = session->first; b < session->end; b++)
        floats +=
            sn_kv_key_width(protocol->hp, b) + sn_kv_value_width(protocol->hp, b) + sn_kv_index_width(protocol->hp, b);
    return pages * SN_KV_PAGE_TOKENS * floats * sizeof(float);
}

static sn_status quota_check_open(const sn_protocol *protocol, const uint8_t client[SN_KEY_SIZE], sn_err *err) {
    size_t open = 0;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        const sn_session *session = sn_sessions_at(protocol->sessions, i);
        open += !session->closing && !memcmp(session->owner, client, SN_KEY_SIZE);
    }
    return sn_quota_session(protocol->quota, open, err);
}

/* As how many steps one of so many rows counts, at this position: rows beyond SN_SPAN_ROWS count like further steps.
 * Behind a rewind, rows of a session with recurrent states are computed again from the newest state that is left, at
 * most all before the position: they count as in training. The state before the last step is always left. Likewise
 * before the first step behind KV pages of another node. */
static int steps_of(const sn_protocol *protocol, const sn_session *session, uint64_t position, uint64_t rows) {
    bool back = position < (uint64_t)session->length && position < (uint64_t)session->last_reply.position;
    bool first = session->migration.imported && !session->last_reply.computed && position <= (uint64_t)session->length;
    int own = rows ? (int)((rows + SN_SPAN_ROWS - 1) / SN_SPAN_ROWS) : 1;
    if ((!back && !first) || !sn_n_recurrent(protocol->hp, session->first, session->end)) return own;
    return own + ((int)position + SN_SPAN_ROWS - 1) / SN_SPAN_ROWS;
}

/* Whether the session may have so many tokens, beside the owner's other sessions. */
static sn_status quota_check_kv(const sn_protocol *protocol, const sn_session *session, int tokens, sn_err *err) {
    size_t bytes = session_kv_bytes(protocol, session, tokens);
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        const sn_session *other = sn_sessions_at(protocol->sessions, i);
        if (other != session && !memcmp(other->owner, session->owner, SN_KEY_SIZE))
            bytes += session_kv_bytes(protocol, other, other->length);
    }
    return sn_quota_kv(protocol->quota, bytes, err);
}

sn_status sn_protocol_quota_kv_put(sn_protocol *protocol, const sn_session *session, int tokens, int64_t now_us,
                                   sn_err *err) {
    sn_status status = quota_check_kv(protocol, session, tokens, err);
    return status ? status : sn_quota_step(protocol->quota, session->owner, now_us, err);
}

sn_status sn_protocol_quota_step(sn_protocol *protocol, const sn_session *session, const sn_msg *msg, int64_t now_us,
                                 sn_err *err) {
    uint64_t rows = msg->tensor.shape[0], end = msg->step.position + rows;
    int steps = steps_of(protocol, session, msg->step.position, rows);
    sn_status status = sn_quota_steps(protocol->quota, session->owner, steps, now_us, err);
    if (status || end > (uint64_t)session->max_tokens) return status; /* step_check_session refuses it */
    return quota_check_kv(protocol, session, (int)end, err);
}

/* -- OPEN and CLOSE ------------------------------------------------------------------------------------------------ */

static sn_status session_check_open(const sn_protocol *protocol, const sn_msg_open *open, sn_err *err) {
    uint64_t first = (uint64_t)protocol->placement.working_first, end = (uint64_t)protocol->placement.working_end;
    if (open->protocol != SN_PROTOCOL_VERSION)
        return sn_fail(err, SN_REFUSED, "this node speaks protocol %d, not %llu: use a matching version",
                       SN_PROTOCOL_VERSION, (unsigned long long)open->protocol);
    if (!sn_placement_serving(&protocol->placement))
        return sn_fail(err, SN_RETRY, "this node is loading its blocks: use another one");
    const char *lacking = sn_protocol_experts_lacking(protocol);
    if (lacking) return sn_fail(err, SN_RETRY, "no node that this one knows holds %s: use another one", lacking);
    if (first == end) return sn_fail(err, SN_RETRY, "this node has lost the device of its blocks: use another one");
    if (protocol->draining || protocol->placement.state == SN_PLACEMENT_REBALANCE_PENDING)
        return sn_fail(err, SN_RETRY, "this node is leaving: use another one");
    if (memcmp(open->model, protocol->setup.model.bytes, SN_HASH_SIZE))
        return sn_fail(err, SN_REFUSED, "this node serves another model (%s): open the same file", protocol->hp->name);
    if (open->first_block < first || open->first_block >= open->end_block || open->end_block > end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not here: this node serves %llu:%llu",
                       (unsigned long long)open->first_block, (unsigned long long)open->end_block,
                       (unsigned long long)first, (unsigned long long)end);
    if (open->max_tokens > (uint64_t)protocol->hp->index_topk)
        SN_TRY(sn_check_cuts(protocol->hp, (int)open->first_block, (int)open->end_block, err));
    if (!open->max_tokens || open->max_tokens > (uint64_t)protocol->hp->n_ctx)
        return sn_fail(err, SN_REFUSED, "a session of %llu tokens is longer than the model's context of %d",
                       (unsigned long long)open->max_tokens, protocol->hp->n_ctx);
    return SN_OK;
}

/* The first hash of a session's timeline: model, blocks, their weights, adapter, and whether it is a long one. */
static sn_hash timeline_begin(const sn_protocol *protocol, const sn_msg_open *open) {
    int first = (int)open->first_block, end = (int)open->end_block;
    sn_hash hashes[SN_SPAN_BLOCKS_MAX];
    const sn_span_info *span = &protocol->setup.span;
    for (int b = first; b < end; b++) hashes[b - first] = sn_span_info_hash_with_kv(span, b);
    sn_hash begin = sn_timeline_begin(protocol->setup.model.bytes, first, end, (const uint8_t(*)[SN_HASH_SIZE])hashes);
    begin = sn_timeline_with_adapter(&begin, open->adapter);
    return sn_timeline_if_long(&begin, sn_is_long(protocol->hp, (int)open->max_tokens));
}

/* Log lines of all nodes name a session's work by the request_id of its client. Clients cause them, so they have a
 * rate, which honest ones do not reach. */
void sn_protocol_log_session(const char *event, const sn_session *session) {
    enum { LINES = 400 }; /* in ten seconds: 0.6 GB a day */
    char id[9];
    sn_log_rated_at(LINES, SN_LOG_INFO, event, "request_id=%s session=%s blocks=%d:%d tokens=%d steps=%llu",
                    session->request_id, sn_hex(session->id, 4, id), session->first, session->end, session->length,
                    (unsigned long long)session->last_reply.step);
}

static sn_status session_open(sn_protocol *protocol, const sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_open *open = &event->msg->open;
    sn_status status = session_check_open(protocol, open, err);
    if (status) return status;
    sn_session *session = sn_sessions_find(protocol->sessions, open->session);
    sn_adapter_entry *adapter_entry = NULL;
    sn_outgoing_target next = {0};
    if (open->n_next && (status = sn_protocol_read_target(protocol, open->next, &next, err))) return status;
    if ((status = sn_adapter_table_use(&protocol->adapters, open->adapter, now_us, &adapter_entry, err))) return status;
    bool repeated = session && !memcmp(session->owner, event->key, SN_KEY_SIZE) && !session->length &&
                    !session->pending.job && !session->migration.resumed && session->adapter_entry == adapter_entry &&
                    session->first == (int)open->first_block && session->end == (int)open->end_block &&
                    sn_is_long(protocol->hp, session->max_tokens) == sn_is_long(protocol->hp, (int)open->max_tokens) &&
                    !session->closing;
    if (session && !repeated)
        return sn_fail(err, SN_REFUSED, "this session id is in use: choose another one at random");
    if (!session) {
        if ((status = quota_check_open(protocol, event->key, err))) return status;
        if (sn_sessions_count(protocol->sessions) == protocol->setup.sessions_max)
            sn_protocol_make_room(protocol, event->key, now_us);
        sn_hash begin = timeline_begin(protocol, open);
        status = sn_sessions_add(protocol->sessions, open->session, &begin, &session, err);
        if (status) return status;
        protocol->counters.sessions++;
        session->opened_us = now_us;
        session->adapter_entry = adapter_entry;
        if (adapter_entry) adapter_entry->users++;
    }
    memcpy(session->owner, event->key, SN_KEY_SIZE);
    memcpy(session->predecessor, open->predecessor, SN_KEY_SIZE);
    memcpy(session->migration.source, open->kv_source, SN_KEY_SIZE);
    session->next = next;
    session->owner_peer = event->peer;
    session->first = (int)open->first_block;
    session->end = (int)open->end_block;
    session->max_tokens = (int)open->max_tokens;
    session->used_us = now_us;
    sn_log_sanitize(open->request_id, session->request_id, sizeof session->request_id);
    return SN_OK;
}

void sn_protocol_on_open(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_err err;
    if (session_open(protocol, event, now_us, &err)) {
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_OPEN_REPLY, event->msg->correlation_id);
    if (!msg) return;
    const sn_session *session = sn_sessions_find(protocol->sessions, event->msg->open.session);
    sn_protocol_log_session("session opened", session);
    if (*session->next.address) sn_protocol_dial_early(protocol, session->owner, &session->next, now_us);
    memcpy(msg->open_reply.session, event->msg->open.session, SN_SESSION_ID_SIZE);
    msg->open_reply.step_tokens_max = (uint64_t)protocol->setup.span.rows_max;
    msg->open_reply.prefill_depth_max = SN_PREFILL_DEPTH_MAX;
    sn_protocol_send(protocol, event->peer, &msg);
}

void sn_protocol_close_session(sn_protocol *protocol, sn_session *session) {
    session->closing = true;
    while (session->pending.n_queued) sn_msg_free(&session->pending.queue[--session->pending.n_queued].msg);
    sn_kv_migration_free(session, false);
    if (session->pending.job) atomic_store(&session->pending.job->cancelled, true);
    if (session->pending.job || session->migration.reads)
        return; /* sn_protocol_job_done calls this function again when they have returned */
    sn_job *job = calloc(1, sizeof *job);
    if (!job) return; /* the next tick tries again */
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = session, .kv = &session->kv};
    if (protocol->setup.submit(protocol->setup.ctx, job)) {
        session->pending.job = job;
        protocol->jobs++;
    } else {
        sn_job_free(&job);
    }
}

void sn_protocol_on_close(sn_protocol *protocol, const sn_event *event) {
    const uint8_t *id = event->msg->close.session;
    sn_session *session = sn_sessions_find(protocol->sessions, id);
    if (session && memcmp(session->owner, event->key, SN_KEY_SIZE)) {
        sn_err err;
        (void)sn_fail(&err, SN_REFUSED, "this session belongs to another client: only its owner may close it");
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
        return;
    }
    if (session && !session->closing) sn_protocol_close_session(protocol, session);
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_CLOSE_REPLY,
                                      event->msg->correlation_id); /* a session that does not exist is closed */
    if (!msg) return;
    memcpy(msg->close_reply.session, id, SN_SESSION_ID_SIZE);
    sn_protocol_send(protocol, event->peer, &msg);
}

void sn_protocol_session_closed(sn_protocol *protocol, sn_session *session) {
    sn_protocol_log_session("session closed", session);
    if (session->adapter_entry) session->adapter_entry->users--;
    if (session->owner_gone_us) protocol->orphans--;
    sn_sessions_remove(protocol->sessions, session);
}
