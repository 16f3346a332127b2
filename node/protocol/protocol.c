/* The life cycle of sn_protocol, the dispatch of messages and finished jobs, and the tables through which membership
 * and placement reach the rest of the node.
 *
 * One request is one function sn_protocol_on_X in the file of its subject (protocol_private.h lists them). It either
 * answers at once, or submits a job to the engine and keeps the message, whose tensor the job reads without a copy;
 * then sn_protocol_job_done leads to the function that answers. A session has at most one job that changes it in the
 * engine (session->pending.job) and any number that read its KV pages (session->migration.reads).
 *
 * sn_protocol_tick runs what is due by time: the announcement round, with which idle sessions are closed, then KV
 * migrations, placement and gossip, and returns the earliest time at which one of them is due again. */
#include "node/protocol/protocol_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BROUGHT_PER_CHARGE = 16, PROVEN_KEYS_EVERY_MS = 5000 };

/* -- messages out -------------------------------------------------------------------------------------------------- */

sn_msg *sn_protocol_new_msg(sn_msg_kind kind, uint64_t correlation_id) {
    sn_msg *msg = NULL;
    sn_err err;
    if (sn_msg_new(kind, correlation_id, &msg, &err)) sn_log(SN_LOG_ERROR, "reply not made", "text=%s", err.text);
    return msg;
}

void sn_protocol_send(sn_protocol *protocol, sn_peer peer, sn_msg **msg) {
    sn_err err;
    sn_msg_kind kind = (*msg)->kind;
    if (sn_transport_send(protocol->setup.transport, peer, msg, &err))
        sn_log_rated(SN_LOG_INFO, "message not sent", "kind=%s text=%s", sn_msg_kind_name(kind), err.text);
    sn_msg_free(msg);
}

/* -- messages in -------------------------------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b) { return memcmp(a, b, SN_KEY_SIZE); }

static void proven_keys_fini(sn_proven_keys *proven) {
    free(proven->keys);
    *proven = (sn_proven_keys){0};
}

static void proven_keys_read(sn_proven_keys *proven, const sn_directory *directory, int64_t unix_ms) {
    size_t n = sn_directory_count(directory);
    proven_keys_fini(proven);
    proven->read = true;
    proven->read_unix_ms = unix_ms;
    proven->keys = n ? malloc(n * sizeof *proven->keys) : NULL;
    for (size_t i = 0; proven->keys && i < n; i++)
        if (sn_directory_is_proven_at(directory, i, unix_ms))
            memcpy(proven->keys[proven->n++], sn_directory_at(directory, i)->curve_key, SN_KEY_SIZE);
    if (proven->n) qsort(proven->keys, proven->n, sizeof *proven->keys, compare_keys);
}

/* Whether it is the key of a live and proven node, as of PROVEN_KEYS_EVERY_MS ago or later. */
static bool proven_keys_has(sn_proven_keys *proven, const sn_directory *directory, const uint8_t key[SN_KEY_SIZE],
                            int64_t unix_ms) {
    int64_t age_ms = unix_ms - proven->read_unix_ms;
    if (!proven->read || age_ms < 0 || age_ms >= PROVEN_KEYS_EVERY_MS) proven_keys_read(proven, directory, unix_ms);
    return proven->n && bsearch(key, proven->keys, proven->n, sizeof *proven->keys, compare_keys);
}

/* Steps and KV pages that a node brings for all its clients come over one connection: one client shall not use up its
 * rate. That node has charged the client for what it repeats, and its clients together have SN_ALL_CHARGED_PER_S there,
 * which is what this makes of the rate of one connection. */
static bool is_free(sn_protocol *protocol) {
    const sn_directory *directory = sn_protocol_directory(protocol);
    if (!protocol->brought || !proven_keys_has(&protocol->proven, directory, protocol->brought, protocol->unix_ms))
        return false;
    return ++protocol->n_brought % BROUGHT_PER_CHARGE != 0;
}

void sn_protocol_charge(sn_protocol *protocol) {
    if (!protocol->sender || protocol->charged) return;
    protocol->charged = true;
    if (!is_free(protocol)) sn_transport_charge(protocol->setup.transport, protocol->sender);
}

void sn_protocol_refuse(sn_protocol *protocol, sn_peer peer, const sn_msg *request, const sn_err *why) {
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_ERROR, request ? request->correlation_id : 0);
    if (!msg) return;
    msg->error.status = (uint64_t)why->status;
    msg->error.reason = (uint64_t)why->reason;
    msg->error.wait_ms = why->retry_after_ms > 0 ? (uint64_t)why->retry_after_ms : 0;
    if (request && request->kind == SN_MSG_STEP) {
        memcpy(msg->error.session, request->step.session, SN_SESSION_ID_SIZE);
        msg->error.step = request->step.step;
    } else if (request && request->kind == SN_MSG_KV_PUT) {
        memcpy(msg->error.session, request->kv_put.session, SN_SESSION_ID_SIZE);
    } else if (request && request->kind == SN_MSG_STATE_PUT) {
        memcpy(msg->error.session, request->state_put.session, SN_SESSION_ID_SIZE);
    }
    snprintf(msg->error.text, sizeof msg->error.text, "%s", why->text);
    sn_protocol_charge(protocol);
    if (why->status <= SN_STOP) protocol->counters.refusals[why->status]++;
    char request_id[SN_REQUEST_ID_MAX + 1];
    const char *called = !request                       ? ""
                         : request->kind == SN_MSG_OPEN ? request->open.request_id
                         : request->kind == SN_MSG_STEP ? request->step.request_id
                                                        : "";
    sn_log_rated(SN_LOG_INFO, "request refused", "request_id=%s kind=%s text=%s",
                 sn_log_sanitize(called, request_id, sizeof request_id),
                 request ? sn_msg_kind_name(request->kind) : "-", why->text);
    sn_protocol_send(protocol, peer, &msg);
}

/* -- the tables given to membership and placement ------------------------------------------------------------------ */

static void host_send(void *ctx, sn_peer peer, sn_msg **msg) { sn_protocol_send(ctx, peer, msg); }
static void host_refuse(void *ctx, sn_peer peer, const sn_msg *request, const sn_err *why) {
    sn_protocol_refuse(ctx, peer, request, why);
}
static void host_meet(void *ctx, const sn_announcement *node, int64_t now_us) { sn_protocol_meet(ctx, node, now_us); }
static bool host_uses(void *ctx, sn_peer peer) { return sn_protocol_outgoing_has(ctx, peer); }
static void host_ask_key(void *ctx, const char *address) {
    const sn_protocol *protocol = ctx;
    protocol->setup.ask_key(protocol->setup.ctx, address);
}
static void host_describe(void *ctx, sn_announcement *own) { sn_protocol_describe(ctx, own); }

static void host_ask(void *ctx) { sn_membership_ask(((const sn_protocol *)ctx)->membership); }
static bool host_bootstrap_complete(void *ctx) {
    return sn_membership_bootstrap_complete(((const sn_protocol *)ctx)->membership);
}
static void host_announce(void *ctx, int64_t now_us, int64_t unix_ms) {
    sn_membership_announce(((sn_protocol *)ctx)->membership, now_us, unix_ms);
}
static void host_drain(void *ctx, int64_t unix_ms) { sn_protocol_drain(ctx, unix_ms); }
static size_t host_session_count(void *ctx) { return sn_protocol_session_count(ctx); }
static void host_close_sessions(void *ctx) {
    const sn_protocol *protocol = ctx;
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        sn_session *session = sn_sessions_at(protocol->sessions, i);
        if (!session->closing || !session->pending.job) sn_protocol_close_session(ctx, session);
    }
    sn_protocol_cancel_all_training(ctx); /* batches may take long, and the node serves no clients meanwhile */
}

/* -- life cycle ---------------------------------------------------------------------------------------------------- */

static sn_status protocol_new_membership(sn_protocol *protocol, const sn_protocol_setup *setup, sn_err *err) {
    const sn_membership_setup membership = {
        .transport = setup->transport,
        .identity = setup->identity,
        .address = setup->address,
        .name = setup->name,
        .directory_max = setup->directory_max,
        .gossip_bytes_per_s = setup->gossip_bytes_per_s,
        .host = {.send = host_send,
                 .refuse = host_refuse,
                 .describe = host_describe,
                 .meet = host_meet,
                 .uses = host_uses,
                 .ask_key = setup->ask_key ? host_ask_key : NULL,
                 .ctx = protocol},
    };
    return sn_membership_new(&membership, &protocol->membership, err);
}

static sn_status protocol_new_reach(sn_protocol *protocol, const sn_protocol_setup *setup, sn_err *err) {
    sn_status status = sn_relaying_new(setup->transport, protocol->membership, setup->reach.relay_bytes_per_s,
                                       &protocol->relaying, err);
    const sn_reach_setup reach = {.transport = setup->transport,
                                  .membership = protocol->membership,
                                  .relaying = protocol->relaying,
                                  .listen = setup->reach.listen,
                                  .asks = setup->reach.asks,
                                  .host = setup->reach.host};
    return status ? status : sn_reach_new(&reach, &protocol->reach, err);
}

static void protocol_init_placement(sn_protocol *protocol, const sn_protocol_setup *setup, int64_t now_us) {
    sn_placement_setup placement = {
        .policy = setup->placement,
        .host = {.bootstrap_complete = host_bootstrap_complete,
                 .ask = host_ask,
                 .meet = host_meet,
                 .announce = host_announce,
                 .drain = host_drain,
                 .session_count = host_session_count,
                 .close_sessions = host_close_sessions,
                 .ctx = protocol},
        .directory = sn_membership_directory(protocol->membership),
        .node = setup->identity->id,
        .n_blocks = setup->span.hp->n_blocks,
        .first = setup->span.first,
        .end = setup->span.end,
        .loading = setup->loading,
    };
    memcpy(placement.model, setup->model.bytes, SN_KEY_SIZE);
    sn_placement_init(&protocol->placement, &placement, now_us);
}

sn_status sn_protocol_new(const sn_protocol_setup *setup, int64_t now_us, sn_protocol **out, sn_err *err) {
    sn_protocol *protocol = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&protocol, 1, sizeof *protocol, err);
    if (status) return status;
    protocol->setup = *setup;
    protocol->setup.address = protocol->setup.name = NULL;
    protocol->hp = setup->span.hp;
    protocol->started_us = now_us;
    protocol->hasher = sn_hasher_new();
    if (!protocol->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) status = sn_sessions_new(setup->sessions_max, &protocol->sessions, err);
    if (!status) status = sn_quota_new(&setup->quota, &protocol->quota, err);
    if (!status) status = protocol_new_membership(protocol, setup, err);
    if (!status && setup->transport->portal) status = protocol_new_reach(protocol, setup, err);
    if (!status)
        protocol_init_placement(protocol, setup, now_us);
    else
        sn_protocol_free(&protocol);
    *out = protocol;
    return status;
}

void sn_protocol_free(sn_protocol **protocol) {
    sn_protocol *p = *protocol;
    if (!p) return;
    for (size_t i = 0; p->sessions && i < sn_sessions_count(p->sessions); i++)
        sn_kv_migration_free(sn_sessions_at(p->sessions, i), true);
    sn_sessions_free(&p->sessions);
    proven_keys_fini(&p->proven);
    sn_adapter_table_clear(&p->adapters);
    sn_protocol_experts_forget(p);
    sn_reach_free(&p->reach);
    sn_relaying_free(&p->relaying);
    sn_membership_free(&p->membership);
    sn_quota_free(&p->quota);
    sn_hasher_free(p->hasher);
    free(p);
    *protocol = NULL;
}

/* -- messages and jobs in ------------------------------------------------------------------------------------------ */

static void protocol_set_time(sn_protocol *protocol, int64_t now_us, int64_t unix_ms) {
    protocol->unix_ms = unix_ms;
    protocol->unix_offset_ms = unix_ms - now_us / 1000;
}

/* True: the event is no message, and has been handled. */
static bool protocol_handle_end(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    if (event->lost) {
        sn_protocol_outgoing_lost(protocol, event->peer);
        sn_protocol_experts_lost(protocol, event->peer, now_us);
        if (protocol->reach) sn_reach_peer_lost(protocol->reach, event->peer, now_us);
        sn_membership_peer_lost(protocol->membership, event);
    } else if (event->gone) {
        sn_protocol_peer_gone(protocol, event->peer, now_us);
        if (protocol->relaying) sn_relaying_peer_gone(protocol->relaying, event->peer);
    } else if (!event->msg && event->peer) {
        const sn_msg unreadable = {.kind = SN_MSG_KIND_COUNT, .correlation_id = event->correlation_id};
        sn_protocol_refuse(protocol, event->peer, &unreadable, &event->err);
    }
    return !event->msg;
}

static void protocol_handle_reach(sn_protocol *protocol, const sn_event *event, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    if (!protocol->reach) {
        (void)sn_fail(&err, SN_REFUSED, "this node listens at no TCP port of its own: ask another one");
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
    } else if (event->msg->kind == SN_MSG_DIAL_BACK) {
        sn_relaying_on_dial_back(protocol->relaying, event, now_us);
    } else if (event->msg->kind == SN_MSG_RELAY) {
        sn_relaying_on_relay(protocol->relaying, event, now_us);
    } else {
        sn_reach_handle(protocol->reach, event, now_us, unix_ms);
    }
}

/* The refusal of a request of this node; each part knows its own. */
static void protocol_handle_error(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    if (protocol->reach && sn_reach_on_error(protocol->reach, event, now_us)) return;
    if (sn_protocol_experts_on_error(protocol, event, now_us)) return;
    if (!sn_kv_migration_on_error(protocol, event, now_us)) sn_protocol_on_error(protocol, event);
}

static void protocol_handle_kv(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    if (event->msg->kind == SN_MSG_KV_SEND)
        sn_kv_migration_on_send(protocol, event, now_us);
    else if (event->msg->kind == SN_MSG_KV_PUT)
        sn_protocol_on_kv_put(protocol, event, now_us);
    else if (event->msg->kind == SN_MSG_STATE_PUT)
        sn_protocol_on_state_put(protocol, event, now_us);
    else if (event->msg->kind == SN_MSG_KV_GET)
        sn_protocol_on_kv_get(protocol, event, now_us);
    else if (event->msg->kind == SN_MSG_ATTACH)
        sn_protocol_on_attach(protocol, event, now_us);
    else
        sn_kv_migration_on_put_reply(protocol, event, now_us);
}

/* Whether such a message becomes a job or waits for its turn; when it is refused, or answered without that, its handler
 * charges it. */
static bool brings_work(sn_msg_kind kind) {
    return kind == SN_MSG_STEP || kind == SN_MSG_KV_PUT || kind == SN_MSG_STATE_PUT || kind == SN_MSG_KV_GET ||
           kind == SN_MSG_ATTACH || kind == SN_MSG_ADAPTER_PUT || kind == SN_MSG_WEIGHTS || kind == SN_MSG_FORWARD ||
           kind == SN_MSG_BACKWARD || kind == SN_MSG_EXPERTS;
}

/* What comes over a connection that this node has made. A node that asks makes one of its own, which has a rate; any
 * node that is announced may be dialled, and such a connection has none. */
static bool answers_this_node(sn_msg_kind kind) {
    return kind == SN_MSG_PEERS_REPLY || kind == SN_MSG_PONG || kind == SN_MSG_DIAL_BACK_REPLY ||
           kind == SN_MSG_RELAY_REPLY || kind == SN_MSG_RELAY_CALL || kind == SN_MSG_EXPERTS_REPLY ||
           kind == SN_MSG_KV_PUT_REPLY || kind == SN_MSG_STATE_PUT_REPLY || kind == SN_MSG_ERROR;
}

/* True: it was a question over such a connection. */
static bool drop_question(sn_event *event) {
    if (!event->dialled || !event->msg || answers_this_node(event->msg->kind)) return false;
    sn_log_rated(SN_LOG_INFO, "message dropped", "kind=%s text=it came over a connection that this node has made",
                 sn_msg_kind_name(event->msg->kind));
    sn_msg_free(&event->msg);
    return true;
}

static void protocol_handle_message(sn_protocol *protocol, sn_event *event, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    if (protocol->orphans) sn_protocol_owner_is_here(protocol, event);
    sn_msg_kind kind = event->msg->kind;
    if (kind == SN_MSG_STEP || kind == SN_MSG_KV_PUT || kind == SN_MSG_STATE_PUT) protocol->brought = event->key;
    if (!brings_work(kind)) sn_protocol_charge(protocol);
    switch (event->msg->kind) {
    case SN_MSG_PEERS:
    case SN_MSG_PEERS_REPLY:
    case SN_MSG_PING:
    case SN_MSG_PONG:
        sn_membership_handle(protocol->membership, event, now_us, unix_ms);
        if (event->msg->kind == SN_MSG_PONG) sn_protocol_experts_pong(protocol, event, now_us);
        if (event->msg->kind == SN_MSG_PONG) sn_protocol_met(protocol, event);
        break;
    case SN_MSG_OPEN:
        sn_protocol_on_open(protocol, event, now_us);
        break;
    case SN_MSG_STEP:
        protocol->sharing.stepped_us = now_us;
        sn_protocol_on_step(protocol, event, now_us);
        break;
    case SN_MSG_CLOSE:
        sn_protocol_on_close(protocol, event);
        break;
    case SN_MSG_STATUS:
        sn_protocol_on_status(protocol, event, now_us);
        break;
    case SN_MSG_DIAL_BACK:
    case SN_MSG_DIAL_BACK_REPLY:
    case SN_MSG_RELAY:
    case SN_MSG_RELAY_REPLY:
    case SN_MSG_RELAY_CALL:
        protocol_handle_reach(protocol, event, now_us, unix_ms);
        break;
    case SN_MSG_ERROR:
        protocol_handle_error(protocol, event, now_us);
        break;
    case SN_MSG_EXPERTS:
    case SN_MSG_EXPERTS_REPLY:
        sn_protocol_on_experts(protocol, event, now_us);
        break;
    case SN_MSG_KV_SEND:
    case SN_MSG_KV_PUT:
    case SN_MSG_KV_PUT_REPLY:
    case SN_MSG_STATE_PUT:
    case SN_MSG_STATE_PUT_REPLY:
    case SN_MSG_KV_GET:
    case SN_MSG_ATTACH:
        protocol_handle_kv(protocol, event, now_us);
        break;
    case SN_MSG_RESUME:
        sn_protocol_on_resume(protocol, event, now_us);
        break;
    case SN_MSG_ADAPTER_PUT:
        sn_protocol_on_adapter_put(protocol, event, now_us);
        break;
    case SN_MSG_ADAPTERS:
        sn_protocol_on_adapters(protocol, event);
        break;
    case SN_MSG_WEIGHTS_OFFER:
        sn_protocol_on_weights_offer(protocol, event);
        break;
    case SN_MSG_WEIGHTS:
        sn_protocol_on_weights(protocol, event);
        break;
    case SN_MSG_FORWARD:
    case SN_MSG_BACKWARD:
        sn_protocol_on_training_batch(protocol, event, now_us);
        break;
    default:
        (void)sn_fail(&err, SN_REFUSED, "a node takes no %s: it is a reply", sn_msg_kind_name(event->msg->kind));
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
    }
    sn_msg_free(&event->msg); /* NULL where the handler keeps the message for its job */
}

void sn_protocol_handle(sn_protocol *protocol, sn_event *event, int64_t now_us, int64_t unix_ms) {
    if (drop_question(event)) return;
    protocol_set_time(protocol, now_us, unix_ms);
    protocol->sender = event->peer;
    protocol->charged = false;
    if (!protocol_handle_end(protocol, event, now_us)) protocol_handle_message(protocol, event, now_us, unix_ms);
    protocol->sender = 0;
    protocol->brought = NULL;
}

void sn_protocol_job_done(sn_protocol *protocol, sn_job *job, int64_t now_us) {
    sn_session *session = job->session;
    protocol->unix_ms = now_us / 1000 + protocol->unix_offset_ms;
    protocol->jobs--;
    if (job->kind == SN_JOB_TRAIN || job->kind == SN_JOB_EXPERTS) {
        if (job->kind == SN_JOB_TRAIN)
            sn_protocol_training_done(protocol, job, now_us);
        else
            sn_protocol_experts_done(protocol, job);
        sn_job_free(&job);
        return;
    }
    if (job->kind == SN_JOB_KV_READ) {
        sn_protocol_kv_read_done(protocol, session, job, now_us);
    } else {
        session->pending.job = NULL;
        if (job->kind == SN_JOB_STEP)
            sn_protocol_step_done(protocol, session, job, now_us);
        else if (job->kind == SN_JOB_KV_WRITE)
            sn_protocol_kv_put_done(protocol, session, job, now_us);
        else if (job->kind == SN_JOB_ATTACH)
            sn_protocol_attach_done(protocol, session, job, now_us);
        sn_msg_free(&session->pending.request_msg);
        sn_protocol_next_step(protocol, session, now_us);
    }
    if (job->kind == SN_JOB_CLOSE) {
        sn_protocol_session_closed(protocol, session);
    } else if (session->closing && !session->pending.job && !session->migration.reads)
        sn_protocol_close_session(protocol, session);
    sn_job_free(&job);
}

/* -- time ---------------------------------------------------------------------------------------------------------- */

/* A node that leaves, or drains because its owner stops it, keeps its blocks. */
static int64_t protocol_tick_placement(sn_protocol *protocol, int64_t now_us, int64_t unix_ms) {
    bool rebalancing = protocol->placement.state == SN_PLACEMENT_REBALANCING;
    if (protocol->leaving || (protocol->draining && !rebalancing)) return INT64_MAX;
    return sn_placement_tick(&protocol->placement, now_us, unix_ms);
}

int64_t sn_protocol_tick(sn_protocol *protocol, int64_t now_us, int64_t unix_ms) {
    protocol_set_time(protocol, now_us, unix_ms);
    if (sn_membership_round(protocol->membership, now_us, unix_ms)) {
        sn_protocol_close_idle_sessions(protocol, now_us);
        sn_protocol_forget_replies(protocol, now_us);
    }
    int64_t orphans_us = sn_protocol_close_orphans(protocol, now_us);
    int64_t outgoing_us = sn_protocol_outgoing_tick(protocol, now_us);
    int64_t migration_us = sn_kv_migration_tick(protocol, now_us);
    int64_t experts_us = sn_protocol_experts_tick(protocol, now_us);
    int64_t placement_us = protocol_tick_placement(protocol, now_us, unix_ms);
    int64_t next_us = sn_membership_tick(protocol->membership, now_us, unix_ms);
    int64_t sharing_us = sn_protocol_sharing_tick(protocol, now_us);
    if (sharing_us < next_us) next_us = sharing_us;
    if (protocol->relaying) sn_relaying_tick(protocol->relaying, now_us);
    int64_t reach_us = protocol->reach ? sn_reach_tick(protocol->reach, now_us, unix_ms) : INT64_MAX;
    if (reach_us < next_us) next_us = reach_us;
    if (outgoing_us < next_us) next_us = outgoing_us;
    if (experts_us < next_us) next_us = experts_us;
    if (orphans_us < next_us) next_us = orphans_us;
    if (migration_us < next_us) next_us = migration_us;
    return placement_us < next_us ? placement_us : next_us;
}

/* -- what the owner calls ------------------------------------------------------------------------------------------ */

void sn_protocol_join(sn_protocol *protocol, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    sn_membership_join(protocol->membership, address, curve_key);
}

bool sn_protocol_wants_found(sn_protocol *protocol, int64_t now_us) {
    return sn_membership_wants_found(protocol->membership, now_us);
}

bool sn_protocol_join_found(sn_protocol *protocol, const char *address, const uint8_t curve_key[SN_KEY_SIZE],
                            int64_t now_us) {
    return sn_membership_join_found(protocol->membership, address, curve_key, now_us);
}

bool sn_protocol_wants_blocks(sn_protocol *protocol, int *first, int *end) {
    return !protocol->leaving && sn_placement_wants_blocks(&protocol->placement, first, end);
}

void sn_protocol_serve(sn_protocol *protocol, const sn_span_info *span, sn_kv_room kv, int64_t now_us,
                       int64_t unix_ms) {
    protocol->setup.span = *span;
    protocol->setup.span.hp = protocol->hp;
    protocol->setup.kv = kv;
    sn_placement_serve(&protocol->placement, span->first, span->end, now_us);
    sn_protocol_experts_served(protocol, now_us);
    if (sn_membership_own_announcement(protocol->membership).len)
        sn_membership_announce(protocol->membership, now_us, unix_ms);
}

void sn_protocol_publish_adapters(sn_protocol *protocol, sn_adapter_store *store) {
    sn_adapter_table_publish(&protocol->adapters, store);
}

bool sn_protocol_wants_rebalance(const sn_protocol *protocol) {
    return protocol->placement.state == SN_PLACEMENT_REBALANCING && !protocol->leaving &&
           !sn_protocol_session_count(protocol) && !protocol->jobs;
}

void sn_protocol_vacate(sn_protocol *protocol, int64_t now_us, int64_t unix_ms) {
    sn_placement_vacate(&protocol->placement);
    protocol->draining = false;
    sn_protocol_experts_forget(protocol);
    sn_adapter_table_clear(&protocol->adapters);
    protocol->setup.span.block_hash = NULL; /* it pointed into the old span */
    protocol->setup.kv = (sn_kv_room){0};
    sn_membership_announce(protocol->membership, now_us, unix_ms);
}

void sn_protocol_narrow(sn_protocol *protocol, int first, int end, int64_t now_us, int64_t unix_ms) {
    sn_placement_narrow(&protocol->placement, first, end);
    sn_membership_announce(protocol->membership, now_us, unix_ms);
}

void sn_protocol_reload(sn_protocol *protocol, int64_t now_us, int64_t unix_ms) {
    if (!protocol->draining) sn_placement_reload(&protocol->placement, now_us, unix_ms);
}

void sn_protocol_not_loaded(sn_protocol *protocol, bool again, int64_t now_us, int64_t unix_ms) {
    sn_placement_not_loaded(&protocol->placement, again);
    sn_membership_announce(protocol->membership, now_us, unix_ms);
}

void sn_protocol_drain(sn_protocol *protocol, int64_t unix_ms) {
    protocol->draining = true;
    sn_membership_announce(protocol->membership, 0, unix_ms);
    for (size_t i = 0; i < sn_sessions_count(protocol->sessions); i++) {
        const sn_session *session = sn_sessions_at(protocol->sessions, i);
        sn_msg *msg = sn_protocol_new_msg(SN_MSG_DRAINING, 0);
        if (!msg) return;
        memcpy(msg->draining.session, session->id, SN_SESSION_ID_SIZE);
        sn_protocol_send(protocol, session->owner_peer, &msg);
    }
}

void sn_protocol_leave(sn_protocol *protocol, int64_t unix_ms) {
    protocol->draining = protocol->leaving = true;
    sn_membership_announce(protocol->membership, 0, unix_ms);
}

size_t sn_protocol_bootstrap_answered(const sn_protocol *protocol) {
    return sn_membership_bootstrap_answered(protocol->membership);
}
size_t sn_protocol_session_count(const sn_protocol *protocol) { return sn_sessions_count(protocol->sessions); }

bool sn_protocol_busy(const sn_protocol *protocol) { return protocol->jobs > 0; }

const char *sn_protocol_address(const sn_protocol *protocol) { return sn_membership_address(protocol->membership); }

const sn_directory *sn_protocol_directory(const sn_protocol *protocol) {
    return sn_membership_directory(protocol->membership);
}
