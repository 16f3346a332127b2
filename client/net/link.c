/* Requests over a transport.
 *
 * Every message comes in through sn_link_receive. It keeps two kinds for later: replies to asynchronous requests
 * (requests[], found by correlation id) and notices of draining sessions (draining[], a ring). Everything else goes to
 * the function that is waiting at that time, which matches correlation ids and drops the rest: late replies to requests
 * that were given up. `alive` lists the connections that were dialled and are not lost; waiting checks it first, so a
 * lost connection ends a wait at once and not at its deadline. */
#include "client/net/link_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/transport/private_swarm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRY_AFTER_MS_MAX = 60000,
    CANCEL_POLL_US = 100000 /* how often a wait looks at the flag that ends it; a signal ends the wait at once */
};

#define CONNECTION_LOST "the connection was lost or could not be made: is the node still running?"

static void link_wake(void *link) { sn_transport_wake(((sn_link *)link)->transport); }

static sn_status link_new(sn_link **out, sn_err *err) {
    sn_link *link = NULL;
    sn_status status = sn_calloc(&link, 1, sizeof *link, err);
    if (status) return status;
    status = sn_directory_new(&link->directory, err);
    if (status) sn_link_close(&link);
    *out = link;
    return status;
}

static void link_note_address(sn_link *link, const char *address) {
    size_t n = strlen(link->joined);
    snprintf(link->joined + n, sizeof link->joined - n, "%s%s", n ? ", " : "", address);
}

static sn_status link_make_private(sn_link *link, const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    sn_transport *inner = link->transport;
    sn_status status = sn_swarm_key_load(path, key, err);
    if (status) return status;
    link->transport = NULL;
    status = sn_transport_private_swarm_new(&inner, &link->identity, key, &link->transport, err);
    explicit_bzero(key, sizeof key);
    return status;
}

sn_status sn_link_open(const sn_link_options *options, sn_link **out, sn_err *err) {
    sn_link *link = NULL;
    *out = NULL;
    sn_status status = link_new(&link, err);
    if (status) return status;
    if (options->identity)
        link->identity = *options->identity;
    else
        status = sn_identity_new(&link->identity, err);
    if (!status) status = sn_transport_zmq_new(&link->identity, &link->transport, err);
    if (!status && !sn_emulated_link_is_none(&options->shape)) {
        sn_transport *inner = link->transport;
        status = sn_transport_emulated_new(&inner, &options->shape, NULL, &link->transport, err);
    }
    if (!status && options->swarm_key_path) status = link_make_private(link, options->swarm_key_path, err);
    if (!status) status = sn_introducer_new(NULL, NULL, link_wake, link, &link->introducer, err);
    for (size_t i = 0; i < options->n_join && !status; i++) {
        status = sn_introducer_ask(link->introducer, options->join[i], err);
        link_note_address(link, options->join[i]);
        link->n_joined++;
    }
    if (status) sn_link_close(&link);
    *out = link;
    return status;
}

sn_status sn_link_open_transport(sn_transport **transport, const sn_seed *seeds, size_t n_seeds, sn_link **out,
                                 sn_err *err) {
    sn_link *link = NULL;
    *out = NULL;
    if (n_seeds > LINK_SEEDS_MAX) return sn_fail(err, SN_REFUSED, "at most %d nodes can be joined", LINK_SEEDS_MAX);
    sn_status status = link_new(&link, err);
    if (status) return status;
    link->transport = *transport;
    *transport = NULL;
    if (link->transport->dials_names) sn_directory_accept_names(link->directory);
    link->n_seeds = link->n_joined = n_seeds;
    for (size_t i = 0; i < n_seeds; i++) {
        link->seeds[i] = seeds[i];
        link_note_address(link, seeds[i].address);
    }
    *out = link;
    return SN_OK;
}

void sn_link_close(sn_link **link) {
    sn_link *l = *link;
    if (!l) return;
    sn_introducer_free(&l->introducer); /* before the transport that it wakes */
    sn_transport_free(&l->transport);
    sn_directory_free(&l->directory);
    for (size_t i = 0; i < l->n_requests; i++) sn_msg_free(&l->requests[i].reply);
    for (size_t i = 0; i < l->n_seeds; i++) sn_msg_free(&l->answers[i].late);
    free(l->alive);
    free(l);
    *link = NULL;
}

sn_directory *sn_link_directory(sn_link *link) { return link->directory; }
/* A reply is taken over any connection, because routes and sessions move between connections: a random id
 * says that its sender has seen the request. */
uint64_t sn_link_new_correlation_id(void) {
    uint64_t id;
    sn_random(&id, sizeof id);
    return id ? id : 1;
}

/* -- requests ------------------------------------------------------------------------------------------------------ */

bool sn_link_is_connected(const sn_link *link, sn_peer peer) {
    for (size_t i = 0; i < link->n_alive; i++)
        if (link->alive[i] == peer) return true;
    return false;
}

sn_status sn_link_dial(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_peer *out,
                       sn_err *err) {
    sn_status status = sn_transport_dial(link->transport, address, curve_key, out, err);
    if (status || sn_link_is_connected(link, *out)) return status;
    SN_TRY(sn_grow(&link->alive, &link->alive_capacity, link->n_alive + 1, sizeof *link->alive, err));
    link->alive[link->n_alive++] = *out;
    return SN_OK;
}

sn_status sn_link_send(sn_link *link, sn_peer peer, sn_msg **msg, sn_err *err) {
    sn_status status = sn_link_is_connected(link, peer) ? sn_transport_send(link->transport, peer, msg, err)
                                                        : sn_fail(err, SN_RETRY, CONNECTION_LOST);
    sn_msg_free(msg);
    return status;
}

int64_t sn_link_round_trip_us(const sn_link *link, sn_peer peer) {
    return sn_transport_round_trip_us(link->transport, peer);
}

size_t sn_link_connections(const sn_link *link) { return link->n_alive; }

void sn_link_hang_up(sn_link *link, sn_peer peer) {
    sn_transport_hang_up(link->transport, peer);
    for (size_t i = 0; i < link->n_alive; i++)
        if (link->alive[i] == peer) link->alive[i] = link->alive[--link->n_alive];
}

/* A peer that invents sessions replaces its own ones, and not what others have said. */
static void link_note_draining(sn_link *link, sn_peer peer, const uint8_t session[SN_SESSION_ID_SIZE]) {
    size_t at = link->n_draining % LINK_DRAINING_MAX, of_peer = 0;
    if (sn_link_is_draining(link, peer, session)) return;
    for (size_t i = 0; i < link->n_draining && i < LINK_DRAINING_MAX; i++)
        if (link->draining[i].peer == peer && ++of_peer == LINK_DRAINING_MAX / 4) at = i;
    link->n_draining += of_peer < LINK_DRAINING_MAX / 4;
    link->draining[at].peer = peer;
    memcpy(link->draining[at].session, session, SN_SESSION_ID_SIZE);
}

/* Keeps replies to asynchronous requests, taking *msg, and notes draining sessions. */
static void link_keep_message(sn_link *link, sn_peer from, sn_msg **msg) {
    if (*msg && (*msg)->kind == SN_MSG_DRAINING) link_note_draining(link, from, (*msg)->draining.session);
    for (size_t i = 0; *msg && i < link->n_requests; i++)
        if (link->requests[i].correlation_id == (*msg)->correlation_id && !link->requests[i].reply) {
            link->requests[i].reply = *msg;
            *msg = NULL;
        }
}

/* What a node sends is no message: returns whether it is taken for lost. A joined node that has never answered may have
 * another swarm key, for example: it is asked again and again, so the log says it once. */
static bool link_note_rejection(sn_link *link, const sn_event *event) {
    sn_log_level level = SN_LOG_WARN;
    bool may_answer = false;
    for (size_t i = 0; i < link->n_seeds; i++) {
        if (link->seed_peers[i] != event->peer) continue;
        if (link->answers[i].rejections++) level = SN_LOG_DEBUG;
        link->rejected = event->err;
        may_answer = !link->answers[i].answered;
    }
    sn_log_rated(level, "bad message", "text=%s", event->err.text);
    return !may_answer;
}

/* What was announced for an address where another key speaks now is forgotten. Of a joined node the key may be another
 * one when it returns, so it is asked for again. */
static void link_note_outage(sn_link *link, const sn_event *event) {
    sn_log(SN_LOG_INFO, "node lost", "text=%s", event->err.text);
    link->fell_silent = event->silent;
    if (*event->other_at) sn_directory_retire(link->directory, event->other_at, event->key);
    for (size_t i = 0; i < link->n_seeds; i++) {
        if (link->seed_peers[i] != event->peer) continue;
        link->outage = event->err;
        link->answers[i].asked_again = true;
        if (link->introducer) sn_introducer_ask_again(link->introducer, link->seeds[i].address);
    }
    sn_link_hang_up(link, event->peer);
}

/* The first message of a joined node shows that it is there. A list of nodes that comes after the discovery that asked
 * for it, because another node was faster, is kept for the next one: the directory changes during discoveries only. */
static void link_note_answer(sn_link *link, sn_peer from, sn_msg **msg) {
    for (size_t i = 0; i < link->n_seeds && *msg; i++) {
        if (link->answers[i].answered || link->seed_peers[i] != from) continue;
        link->answers[i].answered = true;
        if ((*msg)->kind != SN_MSG_PEERS_REPLY || (*msg)->correlation_id == link->discovery) continue;
        link->answers[i].late = *msg;
        *msg = NULL;
    }
}

const char *sn_link_unanswered(const sn_link *link) {
    for (size_t i = 0; i < link->n_seeds; i++)
        if (!link->answers[i].answered || link->answers[i].late) return link->seeds[i].address;
    return link->n_seeds < link->n_joined ? link->joined : NULL;
}

void sn_link_set_cancel(sn_link *link, const sn_cancel *cancel) { link->cancel = cancel; }

bool sn_link_is_cancelled(const sn_link *link) { return sn_is_cancelled(link->cancel); }

static sn_status link_check_cancel(const sn_link *link, sn_err *err) {
    return sn_is_cancelled(link->cancel) ? sn_fail(err, SN_STOP, "the wait for a node was cancelled") : SN_OK;
}

/* The end of this part of a wait: the deadline, or sooner, when the flag is to be looked at. */
static int64_t next_look_us(const sn_link *link, int64_t deadline_us) {
    int64_t look_us = sn_now_us() + CANCEL_POLL_US;
    return link->cancel && look_us < deadline_us ? look_us : deadline_us;
}

sn_status sn_link_pause(const sn_link *link, int64_t us, sn_err *err) {
    int64_t until_us = sn_now_us() + us;
    sn_status status;
    while (!(status = link_check_cancel(link, err)) && sn_now_us() < until_us)
        sn_sleep_us(next_look_us(link, until_us) - sn_now_us());
    return status;
}

static sn_status link_receive(sn_link *link, int64_t deadline_us, sn_event *event, sn_err *err) {
    for (;;) {
        int64_t until_us = next_look_us(link, deadline_us);
        sn_status status = link_check_cancel(link, err);
        if (!status) status = sn_transport_recv(link->transport, until_us, event, err);
        bool quiet = !status && !event->peer && !event->msg;
        if (!quiet || until_us == deadline_us || sn_now_us() < until_us) return status;
    }
}

sn_status sn_link_receive(sn_link *link, int64_t deadline_us, sn_event *event, sn_err *err) {
    sn_status status = link_receive(link, deadline_us, event, err);
    if (status) return status;
    if (event->lost) {
        link_note_outage(link, event);
    } else if (!event->msg && event->peer && link_note_rejection(link, event)) {
        sn_link_hang_up(link, event->peer);
    }
    link_note_answer(link, event->peer, &event->msg);
    link_keep_message(link, event->peer, &event->msg);
    return SN_OK;
}

/* *out: the next message if it is the reply with this correlation id, else NULL. *from (NULL allowed): its sender. */
sn_status sn_link_receive_reply(sn_link *link, uint64_t correlation_id, int64_t deadline_us, sn_msg **out,
                                sn_peer *from, sn_err *err) {
    sn_event event;
    *out = NULL;
    sn_status status = sn_link_receive(link, deadline_us, &event, err);
    if (status) return status;
    if (from) *from = event.peer;
    if (event.msg && event.msg->correlation_id == correlation_id)
        *out = event.msg;
    else
        sn_msg_free(&event.msg); /* a late reply to a request that was given up */
    return SN_OK;
}

void sn_link_poll(sn_link *link) {
    for (int i = 0; i < 64; i++) {
        sn_event event;
        sn_err err;
        if (sn_link_receive(link, 0, &event, &err) || !event.peer) return;
        sn_msg_free(&event.msg);
    }
}

bool sn_link_is_draining(const sn_link *link, sn_peer peer, const uint8_t id[SN_SESSION_ID_SIZE]) {
    for (size_t i = 0; i < link->n_draining && i < LINK_DRAINING_MAX; i++)
        if (link->draining[i].peer == peer && !memcmp(link->draining[i].session, id, SN_SESSION_ID_SIZE)) return true;
    return false;
}

sn_status sn_link_request_async(sn_link *link, sn_peer peer, sn_msg **msg, uint64_t *correlation_id, sn_err *err) {
    *correlation_id = (*msg)->correlation_id = sn_link_new_correlation_id();
    if (link->n_requests == LINK_REQUESTS_MAX) {
        sn_msg_free(msg);
        return sn_fail(err, SN_RETRY, "%d requests are open already", LINK_REQUESTS_MAX);
    }
    link->requests[link->n_requests].correlation_id = *correlation_id;
    link->requests[link->n_requests++].reply = NULL;
    sn_status status = sn_link_send(link, peer, msg, err);
    if (status) sn_link_cancel_request(link, *correlation_id);
    return status;
}

sn_msg *sn_link_take_reply(sn_link *link, uint64_t correlation_id) {
    for (size_t i = 0; i < link->n_requests; i++) {
        sn_msg *reply = link->requests[i].reply;
        if (link->requests[i].correlation_id != correlation_id || !reply) continue;
        link->requests[i] = link->requests[--link->n_requests];
        return reply;
    }
    return NULL;
}

void sn_link_cancel_request(sn_link *link, uint64_t correlation_id) {
    for (size_t i = 0; i < link->n_requests; i++)
        if (link->requests[i].correlation_id == correlation_id) {
            sn_msg_free(&link->requests[i].reply);
            link->requests[i] = link->requests[--link->n_requests];
            return;
        }
}

/* A reply of another kind is freed and becomes an error. session (NULL allowed): the session that an ERROR names. */
sn_status sn_link_check_reply(sn_msg **msg, sn_msg_kind wanted, uint8_t *session, sn_err *err) {
    if ((*msg)->kind == wanted) return SN_OK;
    sn_status status;
    if ((*msg)->kind == SN_MSG_ERROR) {
        if (session) memcpy(session, (*msg)->error.session, SN_SESSION_ID_SIZE);
        status = (sn_status)(*msg)->error.status;
        if (status == SN_OK || status == SN_STOP) status = SN_RETRY; /* the node cannot go on; this program can */
        const uint64_t reason = (*msg)->error.reason;
        (void)sn_fail_because(err, status, reason < SN_REASONS ? (sn_reason)reason : SN_REASON_NONE, "%s",
                              (*msg)->error.text);
        uint64_t wait_ms = (*msg)->error.wait_ms;
        err->retry_after_ms = wait_ms < RETRY_AFTER_MS_MAX ? (int)wait_ms : RETRY_AFTER_MS_MAX;
    } else {
        status = sn_fail(err, SN_RETRY, "it answered %s where %s was due", sn_msg_kind_name((*msg)->kind),
                         sn_msg_kind_name(wanted));
    }
    sn_msg_free(msg);
    return status;
}

bool sn_link_fell_silent(const sn_link *link) { return link->fell_silent; }

static void link_watch(sn_link *link, const sn_wait *waits, size_t n, bool on) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < waits[i].n_peers; k++) sn_transport_watch(link->transport, waits[i].peers[k], on);
}

bool sn_link_lost(const sn_link *link, sn_wait *wait) {
    wait->lost = false;
    for (size_t i = wait->n_peers; i-- > 0;)
        if (!sn_link_is_connected(link, wait->peers[i])) {
            wait->lost = true;
            wait->lost_peer = i;
        }
    return wait->lost;
}

/* Index of the wait that the message answers; n: none. */
static size_t waits_find(const sn_wait *waits, size_t n, const sn_msg *msg) {
    size_t i = 0;
    while (msg && i < n && waits[i].correlation_id != msg->correlation_id) i++;
    return msg ? i : n;
}

static sn_status link_wait_any(sn_link *link, sn_wait *waits, size_t n, size_t *which, sn_msg **out, sn_err *err) {
    int64_t began = sn_now_us(), soonest = INT64_MAX;
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        memset(waits[i].session, 0, sizeof waits[i].session);
        waits[i].from = 0;
        if (waits[i].deadline_us < soonest) soonest = waits[i].deadline_us;
    }
    for (;;) {
        sn_event event;
        for (*which = 0; *which < n; ++*which)
            if (sn_link_lost(link, &waits[*which])) return sn_fail(err, SN_RETRY, CONNECTION_LOST);
        *which = 0;
        sn_status status = sn_link_receive(link, soonest, &event, err);
        if (status) return status;
        size_t i = waits_find(waits, n, event.msg);
        if (i < n) {
            *which = i;
            *out = event.msg;
            waits[i].from = event.peer;
            return sn_link_check_reply(out, waits[i].wanted, waits[i].session, err);
        }
        sn_msg_free(&event.msg); /* a late reply to a request that was given up */
        for (int64_t now = sn_now_us(); *which < n; ++*which)
            if (now >= waits[*which].deadline_us)
                return sn_fail(err, SN_RETRY, "no answer within %.1f seconds",
                               (double)(waits[*which].deadline_us - began) / 1e6);
    }
}

sn_status sn_link_wait_any(sn_link *link, sn_wait *waits, size_t n, size_t *which, sn_msg **out, sn_err *err) {
    link_watch(link, waits, n, true);
    sn_status status = link_wait_any(link, waits, n, which, out, err);
    link_watch(link, waits, n, false);
    return status;
}

sn_status sn_link_wait(sn_link *link, sn_wait *wait, sn_msg **out, sn_err *err) {
    size_t which;
    return sn_link_wait_any(link, wait, 1, &which, out, err);
}

sn_status sn_link_call(sn_link *link, const sn_call *call, sn_msg **msg, sn_peer *peer, sn_msg **out, sn_err *err) {
    sn_peer to = 0;
    sn_wait wait = {.correlation_id = sn_link_new_correlation_id(),
                    .wanted = call->wanted,
                    .deadline_us = sn_now_us() + (int64_t)call->timeout_ms * 1000,
                    .peers = &to,
                    .n_peers = 1};
    (*msg)->correlation_id = wait.correlation_id;
    *out = NULL;
    sn_status status = sn_link_dial(link, call->address, call->curve_key, &to, err);
    if (!status) status = sn_link_send(link, to, msg, err);
    sn_msg_free(msg);
    if (!status) status = sn_link_wait(link, &wait, out, err);
    if (peer) *peer = to;
    return status ? sn_err_context(err, "%s", call->address) : SN_OK;
}
