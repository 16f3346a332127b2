#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "net/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sn_status sn_core_new(const sn_core_setup *setup, int64_t now_us, sn_core **out, sn_err *err) {
    sn_core *core = NULL;
    sn_status status = sn_calloc(&core, 1, sizeof *core, err);
    if (status) return status;
    core->setup = *setup;
    core->hp = setup->span.hp;
    core->started_us = now_us;
    snprintf(core->address, sizeof core->address, "%s", setup->address);
    snprintf(core->name, sizeof core->name, "%s", setup->name);
    sn_buf_init(&core->sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    core->gossip.seed = sn_node_tag(setup->identity->id);
    core->gossip.bytes_per_s =
        setup->gossip_bytes_per_s ? (int64_t)setup->gossip_bytes_per_s : SN_GOSSIP_BYTES_PER_S;
    sn_core_seat_begin(core, now_us);
    core->hasher = sn_hasher_new();
    if (!core->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) status = sn_sessions_new(setup->sessions_max, &core->sessions, err);
    if (!status) status = sn_directory_new(&core->directory, err);
    if (!status) status = sn_quota_new(&setup->quota, &core->quota, err);
    if (!status && setup->directory_max) sn_directory_limit(core->directory, setup->directory_max);
    if (status) sn_core_free(&core);
    *out = core;
    return status;
}

void sn_core_free(sn_core **core) {
    sn_core *c = *core;
    if (!c) return;
    for (size_t i = 0; c->sessions && i < sn_sessions_count(c->sessions); i++)
        sn_core_moves_free(sn_sessions_at(c->sessions, i), true);
    sn_sessions_free(&c->sessions);
    sn_core_tunings_free(c);
    sn_directory_free(&c->directory);
    sn_quota_free(&c->quota);
    sn_hasher_free(c->hasher);
    sn_buf_fini(&c->sealed);
    free(c);
    *core = NULL;
}

sn_msg *sn_core_new_msg(sn_msg_kind kind, uint64_t request) {
    sn_msg *msg = NULL;
    sn_err err;
    if (sn_msg_new(kind, request, &msg, &err)) sn_log(SN_LOG_ERROR, "answer lost", "text=%s", err.text);
    return msg;
}

void sn_core_send(sn_core *core, sn_peer peer, sn_msg **msg) {
    sn_err err;
    sn_msg_kind kind = (*msg)->kind;
    if (sn_transport_send(core->setup.transport, peer, msg, &err))
        sn_log(SN_LOG_INFO, "message not sent", "kind=%s text=%s", sn_msg_kind_name(kind), err.text);
    sn_msg_free(msg);
}

void sn_core_refuse(sn_core *core, sn_peer peer, const sn_msg *request, const sn_err *why) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_ERROR, request ? request->request : 0);
    if (!msg) return;
    msg->error.status = (uint64_t)why->status;
    msg->error.wait_ms = why->wait_ms > 0 ? (uint64_t)why->wait_ms : 0;
    if (request && request->kind == SN_MSG_STEP) {
        memcpy(msg->error.session, request->step.session, SN_SESSION_ID_SIZE);
        msg->error.step = request->step.step;
    } else if (request && request->kind == SN_MSG_KV_PUT) {
        memcpy(msg->error.session, request->kv_put.session, SN_SESSION_ID_SIZE);
    }
    snprintf(msg->error.text, sizeof msg->error.text, "%s", why->text);
    if (why->status <= SN_STOP) core->refusals[why->status]++;
    char flow[SN_FLOW_MAX + 1];
    const char *called = !request                            ? ""
                         : request->kind == SN_MSG_OPEN ? request->open.flow
                         : request->kind == SN_MSG_STEP ? request->step.flow
                                                        : "";
    sn_log(SN_LOG_INFO, "refused", "flow=%s kind=%s text=%s", sn_log_word(called, flow, sizeof flow),
           request ? sn_msg_kind_name(request->kind) : "-", why->text);
    sn_core_send(core, peer, &msg);
}

/* -- sessions ------------------------------------------------------------------------------------------------------ */

static sn_status check_open(const sn_core *core, const sn_msg_open *open, sn_err *err) {
    uint64_t first = (uint64_t)core->seat.first, end = (uint64_t)core->seat.end;
    if (open->protocol != SN_PROTOCOL)
        return sn_fail(err, SN_REFUSED, "this node speaks protocol %d, not %llu: use a matching version", SN_PROTOCOL,
                       (unsigned long long)open->protocol);
    if (!sn_core_serving(core)) return sn_fail(err, SN_RETRY, "this node is loading its blocks: use another one");
    if (core->draining || core->seat.state == SN_SEAT_PARTING)
        return sn_fail(err, SN_RETRY, "this node is leaving: use another one");
    if (memcmp(open->model, core->setup.model.bytes, SN_HASH_SIZE))
        return sn_fail(err, SN_REFUSED, "this node serves another model (%s): open the same file", core->hp->name);
    if (open->first_block < first || open->first_block >= open->end_block || open->end_block > end)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu are not here: this node serves %llu:%llu",
                       (unsigned long long)open->first_block, (unsigned long long)open->end_block,
                       (unsigned long long)first, (unsigned long long)end);
    if (!open->max_tokens || open->max_tokens > (uint64_t)core->hp->n_ctx)
        return sn_fail(err, SN_REFUSED, "a session of %llu tokens is longer than the model's context of %d",
                       (unsigned long long)open->max_tokens, core->hp->n_ctx);
    return SN_OK;
}

static sn_hash begin_timeline(const sn_core *core, int first, int end, const uint8_t tuning[SN_KEY_SIZE]) {
    uint8_t hashes[SN_SPAN_BLOCKS_MAX][SN_HASH_SIZE];
    const sn_span_facts *span = &core->setup.span;
    for (int b = first; b < end; b++) memcpy(hashes[b - first], span->block_hash[b - span->first].bytes, SN_HASH_SIZE);
    sn_hash begin = sn_timeline_begin(core->setup.model.bytes, first, end, (const uint8_t(*)[SN_HASH_SIZE])hashes);
    return sn_timeline_tuned(&begin, tuning);
}

static sn_status open_session(sn_core *core, const sn_event *event, int64_t now_us, sn_err *err) {
    const sn_msg_open *open = &event->msg->open;
    sn_status status = check_open(core, open, err);
    if (status) return status;
    sn_session *session = sn_sessions_find(core->sessions, open->session);
    sn_tuned *tuned = NULL;
    if ((status = sn_core_use_tuning(core, open->tuning, now_us, &tuned, err))) return status;
    bool again = session && !memcmp(session->owner, event->key, SN_KEY_SIZE) && !session->length && !session->job &&
                 !session->resumed && session->tuned == tuned &&
                 session->first == (int)open->first_block && session->end == (int)open->end_block && !session->closing;
    if (session && !again) return sn_fail(err, SN_REFUSED, "this session id is in use: choose another one at random");
    if (!session) {
        if ((status = sn_core_quota_open(core, event->key, err))) return status;
        sn_hash begin = begin_timeline(core, (int)open->first_block, (int)open->end_block, open->tuning);
        status = sn_sessions_add(core->sessions, open->session, &begin, &session, err);
        if (status) return status;
        session->tuned = tuned;
        if (tuned) tuned->users++;
    }
    memcpy(session->owner, event->key, SN_KEY_SIZE);
    memcpy(session->predecessor, open->predecessor, SN_KEY_SIZE);
    memcpy(session->source, open->source, SN_KEY_SIZE);
    session->owner_peer = event->peer;
    session->first = (int)open->first_block;
    session->end = (int)open->end_block;
    session->max_tokens = (int)open->max_tokens;
    session->used_us = now_us;
    sn_log_word(open->flow, session->flow, sizeof session->flow);
    return SN_OK;
}

/* What happens to sessions can be followed through the logs of all nodes by its flow. */
static void log_session(const char *event, const sn_session *session) {
    char id[9];
    sn_log(SN_LOG_INFO, event, "flow=%s session=%s blocks=%d:%d tokens=%d steps=%llu", session->flow,
           sn_hex(session->id, 4, id), session->first, session->end, session->length,
           (unsigned long long)session->last_step);
}

static void on_open(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_err err;
    if (open_session(core, event, now_us, &err)) {
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    sn_msg *msg = sn_core_new_msg(SN_MSG_OPENED, event->msg->request);
    if (!msg) return;
    const sn_session *session = sn_sessions_find(core->sessions, event->msg->open.session);
    log_session("session opened", session);
    memcpy(msg->opened.session, event->msg->open.session, SN_SESSION_ID_SIZE);
    msg->opened.step_tokens_max = SN_SPAN_ROWS_MAX;
    msg->opened.steps_ahead_max = SN_STEPS_AHEAD_MAX;
    sn_core_send(core, event->peer, &msg);
}

void sn_core_close_session(sn_core *core, sn_session *session) {
    session->closing = true;
    while (session->n_ahead) sn_msg_free(&session->ahead[--session->n_ahead].msg);
    sn_core_moves_free(session, false);
    if (session->job) atomic_store(&session->job->cancelled, true);
    if (session->job || session->reads) return; /* they come back soon: sn_core_done goes on here */
    sn_job *job = calloc(1, sizeof *job);
    if (!job) return; /* the next tick tries again */
    *job = (sn_job){.kind = SN_JOB_CLOSE, .session = session, .kv = &session->kv};
    if (core->setup.submit(core->setup.ctx, job)) {
        session->job = job;
        core->jobs++;
    } else {
        sn_job_free(&job);
    }
}

static void on_close(sn_core *core, const sn_event *event) {
    const uint8_t *id = event->msg->close.session;
    sn_session *session = sn_sessions_find(core->sessions, id);
    if (session && memcmp(session->owner, event->key, SN_KEY_SIZE)) {
        sn_err err;
        (void)sn_fail(&err, SN_REFUSED, "this session belongs to another client: only its owner may close it");
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    if (session && !session->closing) sn_core_close_session(core, session);
    sn_msg *msg = sn_core_new_msg(SN_MSG_CLOSED, event->msg->request); /* one that is gone is closed, too */
    if (!msg) return;
    memcpy(msg->closed.session, id, SN_SESSION_ID_SIZE);
    sn_core_send(core, event->peer, &msg);
}

static void on_status(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_STATUS_IS, event->msg->request);
    if (!msg) return;
    sn_engine_figures figures = core->setup.read(core->setup.ctx);
    msg->status_is = (sn_msg_status_is){
        .uptime_ms = (uint64_t)(now_us - core->started_us) / 1000,
        .sessions = sn_sessions_count(core->sessions),
        .sessions_max = core->setup.sessions_max,
        .kv_bytes = figures.kv_bytes,
        .kv_bytes_max = core->setup.kv_bytes_max,
        .weight_bytes = core->setup.span.bytes,
        .queue = figures.queue,
        .steps = core->steps,
        .tokens = core->tokens,
        .passes = figures.passes,
        .compute_us = figures.compute_us,
        .guard_bytes = figures.guard_bytes,
        .draining = core->draining,
        .shared_pages = figures.shared_pages,
        .shared_tokens = figures.shared_tokens,
        .idle_bytes = figures.idle_bytes,
    };
    sn_core_send(core, event->peer, &msg);
}

/* -- what the daemon calls ----------------------------------------------------------------------------------------- */

static void note_time(sn_core *core, int64_t now_us, int64_t unix_ms) {
    core->unix_ms = unix_ms;
    core->unix_ahead_ms = unix_ms - now_us / 1000;
}

void sn_core_handle(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms) {
    note_time(core, now_us, unix_ms);
    if (event->lost) {
        sn_core_on_loss(core, event);
        return;
    }
    if (!event->msg) {
        if (event->peer) sn_core_refuse(core, event->peer, NULL, &event->bad);
        return;
    }
    sn_err err;
    switch (event->msg->kind) {
    case SN_MSG_PEERS:
        sn_core_on_peers(core, event, now_us, unix_ms);
        break;
    case SN_MSG_PEERS_ARE:
        sn_core_on_peers_are(core, event, now_us, unix_ms);
        break;
    case SN_MSG_PING:
        sn_core_on_ping(core, event);
        break;
    case SN_MSG_PONG:
        sn_core_on_pong(core, event, now_us);
        break;
    case SN_MSG_OPEN:
        on_open(core, event, now_us);
        break;
    case SN_MSG_STEP:
        sn_core_on_step(core, event, now_us);
        break; /* keeps the message when it becomes a job */
    case SN_MSG_CLOSE:
        on_close(core, event);
        break;
    case SN_MSG_STATUS:
        on_status(core, event, now_us);
        break;
    case SN_MSG_ERROR:
        if (!sn_core_move_refused(core, event, now_us)) sn_core_on_error(core, event);
        break;
    case SN_MSG_KV_SEND:
        sn_core_on_send(core, event, now_us);
        break;
    case SN_MSG_KV_PUT:
        sn_core_on_put(core, event, now_us);
        break; /* keeps the message when it becomes a job */
    case SN_MSG_KV_TAKEN:
        sn_core_on_taken(core, event, now_us);
        break;
    case SN_MSG_KV_GET:
        sn_core_on_get(core, event);
        break;
    case SN_MSG_RESUME:
        sn_core_on_resume(core, event, now_us);
        break;
    case SN_MSG_TUNE:
        sn_core_on_tune(core, event, now_us);
        break; /* keeps the message when it becomes a job, as do FORWARD and BACKWARD */
    case SN_MSG_ADAPTERS:
        sn_core_on_adapters(core, event);
        break;
    case SN_MSG_FORWARD:
    case SN_MSG_BACKWARD:
        sn_core_on_batch(core, event, now_us);
        break;
    default:
        (void)sn_fail(&err, SN_REFUSED, "a node takes no %s: it is an answer", sn_msg_kind_name(event->msg->kind));
        sn_core_refuse(core, event->peer, event->msg, &err);
    }
    sn_msg_free(&event->msg);
}

void sn_core_done(sn_core *core, sn_job *job, int64_t now_us) {
    sn_session *session = job->session;
    core->unix_ms = now_us / 1000 + core->unix_ahead_ms;
    core->jobs--;
    if (job->kind == SN_JOB_TRAIN) {
        sn_core_train_done(core, job, now_us);
        sn_job_free(&job);
        return;
    }
    if (job->kind == SN_JOB_READ) {
        sn_core_read_done(core, session, job, now_us);
    } else {
        session->job = NULL;
        if (job->kind == SN_JOB_STEP) sn_core_step_done(core, session, job, now_us);
        else if (job->kind == SN_JOB_WRITE) sn_core_put_done(core, session, job, now_us);
        sn_msg_free(&session->asked);
        sn_core_next_step(core, session, now_us);
    }
    if (job->kind == SN_JOB_CLOSE) {
        log_session("session closed", session);
        if (session->tuned) session->tuned->users--;
        sn_sessions_remove(core->sessions, session);
    } else if (session->closing && !session->job && !session->reads) sn_core_close_session(core, session);
    sn_job_free(&job);
}

int64_t sn_core_tick(sn_core *core, int64_t now_us, int64_t unix_ms) {
    note_time(core, now_us, unix_ms);
    if (now_us >= core->announce_us) {
        sn_core_announce_round(core, now_us, unix_ms);
        for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
            sn_session *session = sn_sessions_at(core->sessions, i);
            bool idle = now_us - session->used_us > core->setup.idle_us_max && !session->job;
            if (idle) log_session("session expired", session);
            if ((idle || session->closing) && !session->job) sn_core_close_session(core, session);
        }
    }
    const int64_t due_us[] = {core->announce_us, sn_core_moves_tick(core, now_us), sn_core_seat(core, now_us, unix_ms),
                              sn_core_gossip(core, now_us, unix_ms)};
    int64_t next_us = due_us[0];
    for (size_t i = 1; i < sizeof due_us / sizeof *due_us; i++) next_us = due_us[i] < next_us ? due_us[i] : next_us;
    return next_us;
}

void sn_core_drain(sn_core *core, int64_t unix_ms) {
    core->draining = true;
    sn_core_announce(core, 0, unix_ms);
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
        const sn_session *session = sn_sessions_at(core->sessions, i);
        sn_msg *msg = sn_core_new_msg(SN_MSG_LEAVING, 0);
        if (!msg) return;
        memcpy(msg->leaving.session, session->id, SN_SESSION_ID_SIZE);
        sn_core_send(core, session->owner_peer, &msg);
    }
}

void sn_core_leave(sn_core *core, int64_t unix_ms) {
    core->draining = core->leaving = true;
    sn_core_announce(core, 0, unix_ms);
}

size_t sn_core_sessions(const sn_core *core) { return sn_sessions_count(core->sessions); }

bool sn_core_busy(const sn_core *core) { return core->jobs > 0; }
