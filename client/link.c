#include "client/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/introduce.h"
#include "net/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS_MAX = 64, KNOWN_ASKED_MAX = 16, REASK_US = 300000, LAST_ANSWERS_US = 50000, PAGES_MAX = 4, PAGE_US = 1000000 };
enum { QUESTIONS_MAX = 512, LEAVING_MAX = 256, WAIT_MS_MAX = 60000 };

struct sn_link {
    sn_identity identity;
    sn_transport *transport;
    sn_introducer *introducer; /* NULL over other transports */
    sn_directory *directory;
    sn_seed seeds[SEEDS_MAX];
    size_t n_seeds;
    char joined[256]; /* the addresses as given, for sentences */
    uint64_t last_request;
    sn_peer *alive; /* dialled, and not lost */
    size_t n_alive, alive_room;
    struct {
        uint64_t request;
        sn_msg *answer;
    } questions[QUESTIONS_MAX];
    size_t n_questions;
    uint8_t leaving[LEAVING_MAX][SN_SESSION_ID_SIZE]; /* sessions whose nodes say that they leave, the newest ones */
    size_t n_leaving;
};

#define CONNECTION_LOST "the connection was lost, or none came about: is the node still running?"

static void wake(void *link) { sn_transport_wake(((sn_link *)link)->transport); }

static sn_status new_link(sn_link **out, sn_err *err) {
    sn_link *link = NULL;
    sn_status status = sn_calloc(&link, 1, sizeof *link, err);
    if (status) return status;
    status = sn_directory_new(&link->directory, err);
    if (status) sn_link_close(&link);
    /* Requests of one run must not be taken for those of an earlier one with the same identity. */
    else sn_random(&link->last_request, sizeof link->last_request);
    *out = link;
    return status;
}

static void note_address(sn_link *link, const char *address) {
    size_t n = strlen(link->joined);
    snprintf(link->joined + n, sizeof link->joined - n, "%s%s", n ? ", " : "", address);
}

static sn_status make_private(sn_link *link, const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    sn_transport *inner = link->transport;
    sn_status status = sn_swarm_key_load(path, key, err);
    if (status) return status;
    link->transport = NULL;
    status = sn_transport_private_new(&inner, &link->identity, key, &link->transport, err);
    explicit_bzero(key, sizeof key);
    return status;
}

sn_status sn_link_open(const char *const *join, size_t n_join, const char *identity_path,
                       const char *swarm_key_path, const sn_shape *shape, sn_link **out, sn_err *err) {
    sn_link *link = NULL;
    *out = NULL;
    sn_status status = new_link(&link, err);
    if (status) return status;
    status = identity_path ? sn_identity_load(identity_path, &link->identity, err) : sn_identity_new(&link->identity, err);
    if (!status) status = sn_transport_zmq_new(&link->identity, &link->transport, err);
    if (!status && shape && !sn_shape_is_none(shape)) {
        sn_transport *inner = link->transport;
        status = sn_transport_shaped_new(&inner, shape, NULL, &link->transport, err);
    }
    if (!status && swarm_key_path) status = make_private(link, swarm_key_path, err);
    if (!status) status = sn_introducer_new(NULL, NULL, wake, link, &link->introducer, err);
    for (size_t i = 0; i < n_join && !status; i++) {
        status = sn_introducer_ask(link->introducer, join[i], err);
        note_address(link, join[i]);
    }
    if (status) sn_link_close(&link);
    *out = link;
    return status;
}

sn_status sn_link_over(sn_transport **transport, const sn_seed *seeds, size_t n_seeds, sn_link **out, sn_err *err) {
    sn_link *link = NULL;
    *out = NULL;
    if (n_seeds > SEEDS_MAX) return sn_fail(err, SN_REFUSED, "at most %d nodes can be joined", SEEDS_MAX);
    sn_status status = new_link(&link, err);
    if (status) return status;
    link->transport = *transport;
    *transport = NULL;
    link->n_seeds = n_seeds;
    for (size_t i = 0; i < n_seeds; i++) {
        link->seeds[i] = seeds[i];
        note_address(link, seeds[i].address);
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
    for (size_t i = 0; i < l->n_questions; i++) sn_msg_free(&l->questions[i].answer);
    free(l->alive);
    free(l);
    *link = NULL;
}

sn_directory *sn_link_directory(sn_link *link) { return link->directory; }
const uint8_t *sn_link_curve_key(const sn_link *link) { return link->identity.curve_key; }
uint64_t sn_link_request(sn_link *link) { return ++link->last_request; }

/* -- requests ------------------------------------------------------------------------------------------------------ */

bool sn_link_stands(const sn_link *link, sn_peer peer) {
    for (size_t i = 0; i < link->n_alive; i++)
        if (link->alive[i] == peer) return true;
    return false;
}

sn_status sn_link_dial(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_peer *out,
                       sn_err *err) {
    sn_status status = sn_transport_dial(link->transport, address, curve_key, out, err);
    if (status || sn_link_stands(link, *out)) return status;
    if (link->n_alive == link->alive_room) {
        size_t room = 2 * link->alive_room + 16;
        sn_peer *alive = realloc(link->alive, room * sizeof *alive);
        if (!alive) return sn_fail(err, SN_STOP, "out of memory: no room for another connection");
        link->alive = alive;
        link->alive_room = room;
    }
    link->alive[link->n_alive++] = *out;
    return SN_OK;
}

sn_status sn_link_send(sn_link *link, sn_peer peer, sn_msg **msg, sn_err *err) {
    sn_status status = sn_link_stands(link, peer) ? sn_transport_send(link->transport, peer, msg, err)
                                            : sn_fail(err, SN_RETRY, CONNECTION_LOST);
    sn_msg_free(msg);
    return status;
}

static void forget(sn_link *link, sn_peer peer) {
    sn_transport_hang_up(link->transport, peer);
    for (size_t i = 0; i < link->n_alive; i++)
        if (link->alive[i] == peer) link->alive[i] = link->alive[--link->n_alive];
}

/* Keeps what was asked by sn_link_ask, and who leaves; takes *msg then. */
static void keep(sn_link *link, sn_msg **msg) {
    if (*msg && (*msg)->kind == SN_MSG_LEAVING && !sn_link_leaving(link, (*msg)->leaving.session))
        memcpy(link->leaving[link->n_leaving++ % LEAVING_MAX], (*msg)->leaving.session, SN_SESSION_ID_SIZE);
    for (size_t i = 0; *msg && i < link->n_questions; i++)
        if (link->questions[i].request == (*msg)->request && !link->questions[i].answer) {
            link->questions[i].answer = *msg;
            *msg = NULL;
        }
}

/* Whatever else comes next, or nothing. Connections that were lost are forgotten. */
sn_status sn_link_hear(sn_link *link, int64_t deadline_us, sn_event *event, sn_err *err) {
    sn_status status = sn_transport_recv(link->transport, deadline_us, event, err);
    if (status) return status;
    if (event->lost) {
        sn_log(SN_LOG_INFO, "node lost", "text=%s", event->bad.text);
        forget(link, event->peer);
    } else if (!event->msg && event->peer) {
        sn_log(SN_LOG_WARN, "bad message", "text=%s", event->bad.text);
    }
    keep(link, &event->msg);
    return SN_OK;
}

/* An answer to `request`, or NULL in *out when something else came. *from (NULL allowed): who sent it. */
static sn_status receive(sn_link *link, uint64_t request, int64_t deadline_us, sn_msg **out, sn_peer *from, sn_err *err) {
    sn_event event;
    *out = NULL;
    sn_status status = sn_link_hear(link, deadline_us, &event, err);
    if (status) return status;
    if (from) *from = event.peer;
    if (event.msg && event.msg->request == request) *out = event.msg;
    else sn_msg_free(&event.msg); /* late answer to something given up */
    return SN_OK;
}

void sn_link_attend(sn_link *link) {
    for (int i = 0; i < 64; i++) {
        sn_event event;
        sn_err err;
        if (sn_link_hear(link, 0, &event, &err) || !event.peer) return;
        sn_msg_free(&event.msg);
    }
}

bool sn_link_leaving(const sn_link *link, const uint8_t session[SN_SESSION_ID_SIZE]) {
    for (size_t i = 0; i < link->n_leaving && i < LEAVING_MAX; i++)
        if (!memcmp(link->leaving[i], session, SN_SESSION_ID_SIZE)) return true;
    return false;
}

sn_status sn_link_ask(sn_link *link, sn_peer peer, sn_msg **msg, uint64_t *request, sn_err *err) {
    *request = (*msg)->request = sn_link_request(link);
    if (link->n_questions == QUESTIONS_MAX) {
        sn_msg_free(msg);
        return sn_fail(err, SN_RETRY, "%d questions are open already", QUESTIONS_MAX);
    }
    link->questions[link->n_questions].request = *request;
    link->questions[link->n_questions++].answer = NULL;
    sn_status status = sn_link_send(link, peer, msg, err);
    if (status) sn_link_forget(link, *request);
    return status;
}

sn_msg *sn_link_answer(sn_link *link, uint64_t request) {
    for (size_t i = 0; i < link->n_questions; i++) {
        sn_msg *answer = link->questions[i].answer;
        if (link->questions[i].request != request || !answer) continue;
        link->questions[i] = link->questions[--link->n_questions];
        return answer;
    }
    return NULL;
}

void sn_link_forget(sn_link *link, uint64_t request) {
    for (size_t i = 0; i < link->n_questions; i++)
        if (link->questions[i].request == request) {
            sn_msg_free(&link->questions[i].answer);
            link->questions[i] = link->questions[--link->n_questions];
            return;
        }
}

static sn_status take_answer(sn_msg **msg, sn_msg_kind wanted, uint8_t *session, sn_err *err) {
    if ((*msg)->kind == wanted) return SN_OK;
    sn_status status;
    if ((*msg)->kind == SN_MSG_ERROR) {
        uint64_t code = (*msg)->error.status;
        if (session) memcpy(session, (*msg)->error.session, SN_SESSION_ID_SIZE);
        status = code > SN_OK && code <= SN_STOP ? (sn_status)code : SN_RETRY;
        if (status == SN_STOP) status = SN_RETRY; /* it is the node that cannot go on, not we */
        (void)sn_fail(err, status, "%s", (*msg)->error.text);
        err->wait_ms = (*msg)->error.wait_ms < WAIT_MS_MAX ? (int)(*msg)->error.wait_ms : WAIT_MS_MAX;
    } else {
        status = sn_fail(err, SN_RETRY, "it answered %s where %s was due", sn_msg_kind_name((*msg)->kind),
                         sn_msg_kind_name(wanted));
    }
    sn_msg_free(msg);
    return status;
}

bool sn_link_lost(const sn_link *link, sn_wait *wait) {
    wait->lost = false;
    for (size_t i = wait->n_peers; i-- > 0;)
        if (!sn_link_stands(link, wait->peers[i])) {
            wait->lost = true;
            wait->lost_peer = i;
        }
    return wait->lost;
}

/* Which of them the message answers: n if none. */
static size_t answered(const sn_wait *waits, size_t n, const sn_msg *msg) {
    size_t i = 0;
    while (msg && i < n && waits[i].request != msg->request) i++;
    return msg ? i : n;
}

sn_status sn_link_wait_any(sn_link *link, sn_wait *waits, size_t n, size_t *which, sn_msg **out, sn_err *err) {
    int64_t began = sn_now_us(), soonest = INT64_MAX;
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        memset(waits[i].session, 0, sizeof waits[i].session);
        if (waits[i].deadline_us < soonest) soonest = waits[i].deadline_us;
    }
    for (;;) {
        sn_event event;
        for (*which = 0; *which < n; ++*which)
            if (sn_link_lost(link, &waits[*which])) return sn_fail(err, SN_RETRY, CONNECTION_LOST);
        *which = 0;
        sn_status status = sn_link_hear(link, soonest, &event, err);
        if (status) return status;
        size_t i = answered(waits, n, event.msg);
        if (i < n) {
            *which = i;
            *out = event.msg;
            return take_answer(out, waits[i].wanted, waits[i].session, err);
        }
        sn_msg_free(&event.msg); /* late answer to something given up */
        for (int64_t now = sn_now_us(); *which < n; ++*which)
            if (now >= waits[*which].deadline_us)
                return sn_fail(err, SN_RETRY, "no answer within %.1f seconds",
                               (double)(waits[*which].deadline_us - began) / 1e6);
    }
}

sn_status sn_link_wait(sn_link *link, sn_wait *wait, sn_msg **out, sn_err *err) {
    size_t which;
    return sn_link_wait_any(link, wait, 1, &which, out, err);
}

sn_status sn_link_call(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_msg **msg,
                       sn_msg_kind wanted, int timeout_ms, sn_peer *peer, sn_msg **out, sn_err *err) {
    sn_peer to = 0;
    sn_wait wait = {.request = sn_link_request(link), .wanted = wanted, .peers = &to, .n_peers = 1};
    (*msg)->request = wait.request;
    wait.deadline_us = sn_now_us() + (int64_t)timeout_ms * 1000;
    *out = NULL;
    sn_status status = sn_link_dial(link, address, curve_key, &to, err);
    if (!status) status = sn_link_send(link, to, msg, err);
    sn_msg_free(msg);
    if (!status) status = sn_link_wait(link, &wait, out, err);
    if (peer) *peer = to;
    return status ? sn_err_context(err, "%s", address) : SN_OK;
}

/* -- asking many at once --------------------------------------------------------------------------------------------- */

typedef struct polled {
    sn_peer peer;
    int64_t sent_us;
    bool over;
} polled;

static sn_status ask_status(sn_link *link, const sn_announcement *node, uint64_t request, polled *p, sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_STATUS, request, &msg, err);
    if (status) return status;
    msg->status.protocol = SN_PROTOCOL;
    status = sn_link_dial(link, node->address, node->curve_key, &p->peer, err);
    p->sent_us = sn_now_us();
    if (!status) status = sn_link_send(link, p->peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

static void give_up(polled *p, sn_poll *out, const char *why) {
    p->over = true;
    if (!out->answered) snprintf(out->why_not, sizeof out->why_not, "%.159s", why);
}

/* The first answer says how the node is, the second one how far. */
static void take_status(sn_link *link, const sn_announcement *node, const sn_event *event, uint64_t next, polled *p,
                        sn_poll *out) {
    sn_err why = {0};
    bool again = out->answered;
    if (event->msg->kind != SN_MSG_STATUS_IS) {
        give_up(p, out, event->msg->kind == SN_MSG_ERROR ? event->msg->error.text : "it answered something else");
        return;
    }
    out->answered = true;
    out->status = event->msg->status_is;
    out->rtt_us = sn_now_us() - p->sent_us;
    p->over = again || ask_status(link, node, next, p, &why);
}

sn_status sn_link_poll(sn_link *link, const sn_announcement *const *nodes, size_t n, int timeout_ms, bool hurry,
                       sn_poll *out, sn_err *err) {
    int64_t began_us = sn_now_us(), deadline_us = began_us + (int64_t)timeout_ms * 1000;
    uint64_t base = link->last_request + 1;
    polled *p = NULL;
    sn_status status = sn_calloc(&p, n, sizeof *p, err);
    if (status) return status;
    link->last_request += 2 * n;
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n && !status; i++) {
        sn_err why;
        status = ask_status(link, nodes[i], base + i, &p[i], &why);
        if (status) give_up(&p[i], &out[i], why.text);
        if (status == SN_STOP) *err = why;
        else status = SN_OK;
    }
    for (size_t left = n; left && !status && sn_now_us() < deadline_us;) {
        sn_event event;
        status = sn_link_hear(link, deadline_us, &event, err);
        if (status) break;
        uint64_t k = event.msg ? event.msg->request - base : UINT64_MAX;
        if (k < 2 * n && event.peer == p[k % n].peer)
            take_status(link, nodes[k % n], &event, base + n + k % n, &p[k % n], &out[k % n]);
        sn_msg_free(&event.msg);
        left = 0;
        for (size_t i = 0; i < n; i++) {
            if (event.lost && event.peer == p[i].peer && !p[i].over) give_up(&p[i], &out[i], CONNECTION_LOST);
            left += !p[i].over;
        }
        int64_t now_us = sn_now_us(), soon_us = now_us + (now_us - began_us) + LAST_ANSWERS_US;
        if (hurry && 2 * left <= n && soon_us < deadline_us) deadline_us = soon_us;
        if (2 * left <= n) hurry = false; /* the limit is set */
    }
    for (size_t i = 0; i < n; i++)
        if (!p[i].over) give_up(&p[i], &out[i], "no answer in time");
    free(p);
    return status;
}

/* -- discovery ----------------------------------------------------------------------------------------------------- */

static void take_seeds(sn_link *link) {
    while (link->introducer && link->n_seeds < SEEDS_MAX) {
        sn_seed *seed = &link->seeds[link->n_seeds];
        if (!sn_introducer_take(link->introducer, seed->address, seed->curve_key)) return;
        link->n_seeds++;
    }
}

static sn_status ask_peer(sn_link *link, sn_peer peer, const sn_hash *model, uint64_t request, uint64_t from_tag,
                          sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_PEERS, request, &msg, err);
    if (status) return status;
    msg->peers.protocol = SN_PROTOCOL;
    msg->peers.from_tag = from_tag;
    if (model) memcpy(msg->peers.model, model->bytes, SN_KEY_SIZE);
    status = sn_link_send(link, peer, &msg, err);
    return status == SN_RETRY ? SN_OK : status; /* that one cannot be reached now: another may */
}

static sn_status ask_one(sn_link *link, const char *address, const uint8_t *curve_key, const sn_hash *model,
                         uint64_t request, sn_err *err) {
    sn_peer peer;
    sn_status status = sn_link_dial(link, address, curve_key, &peer, err);
    if (status) return status == SN_RETRY ? SN_OK : status;
    return ask_peer(link, peer, model, request, 0, err);
}

/* The joined nodes whose key has come since, and a few of those that were heard of: the joined ones may be gone. */
static sn_status ask_all(sn_link *link, size_t from_seed, const sn_hash *model, uint64_t request, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = from_seed; i < link->n_seeds && !status; i++)
        status = ask_one(link, link->seeds[i].address, link->seeds[i].curve_key, model, request, err);
    for (size_t i = 0; i < sn_directory_count(link->directory) && i < KNOWN_ASKED_MAX && !from_seed && !status; i++) {
        const sn_announcement *node = sn_directory_at(link->directory, i);
        status = ask_one(link, node->address, node->curve_key, model, request, err);
    }
    return status;
}

static void take_announcements(sn_link *link, const sn_msg_peers_are *peers) {
    sn_err err;
    for (size_t i = 0; i < peers->n_announcements; i++)
        if (sn_directory_take(link->directory, peers->announcements[i].data, peers->announcements[i].len, sn_unix_ms(),
                              &err))
            sn_log(SN_LOG_DEBUG, "announcement dropped", "text=%s", err.text);
}

/* A large swarm: a node tells of it page by page. A few more from anywhere are sample enough; all clients reading the same
 * first pages would all choose the same nodes. */
static sn_status read_on(sn_link *link, sn_peer from, const sn_hash *model, sn_err *err) {
    uint64_t tag;
    sn_random(&tag, sizeof tag);
    for (int page = 0; page < PAGES_MAX && tag; page++) {
        uint64_t request = sn_link_request(link);
        int64_t deadline = sn_now_us() + PAGE_US;
        sn_msg *msg = NULL;
        sn_status status = ask_peer(link, from, model, request, tag, err);
        while (!status && !msg && sn_now_us() < deadline) status = receive(link, request, deadline, &msg, NULL, err);
        if (status || !msg) return status;
        tag = 0;
        if (msg->kind == SN_MSG_PEERS_ARE) {
            take_announcements(link, &msg->peers_are);
            tag = msg->peers_are.next;
        }
        sn_msg_free(&msg);
    }
    return SN_OK;
}

sn_status sn_link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) {
    int64_t deadline = sn_now_us() + (int64_t)timeout_ms * 1000, ask_again = 0;
    uint64_t request = sn_link_request(link);
    size_t asked = 0, refusals = 0;
    sn_peer from = 0;
    sn_status status = SN_OK;
    sn_directory_expire(link->directory, sn_unix_ms());
    for (int64_t now = sn_now_us(); now < deadline && !status; now = sn_now_us()) {
        take_seeds(link);
        if (now >= ask_again) {
            asked = 0;
            ask_again = now + REASK_US;
        }
        if (!asked || asked < link->n_seeds) status = ask_all(link, asked, model, request, err);
        asked = link->n_seeds;
        sn_msg *msg = NULL;
        if (!status) status = receive(link, request, ask_again < deadline ? ask_again : deadline, &msg, &from, err);
        if (status || !msg) continue;
        sn_status refused = take_answer(&msg, SN_MSG_PEERS_ARE, NULL, err);
        if (refused && ++refusals >= link->n_seeds) return refused;
        if (refused) continue; /* another one may do better */
        take_announcements(link, &msg->peers_are);
        bool more = msg->peers_are.next != 0;
        sn_msg_free(&msg);
        return more ? read_on(link, from, model, err) : SN_OK;
    }
    if (status) return status;
    return sn_fail(err, SN_RETRY, "no node answered at %s within %.1f seconds: is it running, and the address right?",
                   *link->joined ? link->joined : "any address (none was given: use --join)", timeout_ms / 1e3);
}
