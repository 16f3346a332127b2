/* The portal's thread (portal.h), which polls all its connections.
 *
 * A passage is one connection that the portal holds, from its first byte to its end: one that was accepted and says
 * what it wants (SN_PASSAGE_FIRST to SN_PASSAGE_TOKEN), a client that waits for a relayed node (SN_PASSAGE_WAITING),
 * two that are joined (SN_PASSAGE_JOINED), or one that this portal makes (SN_PASSAGE_DIALS). There are
 * few of them, so the list to poll is made anew in each turn, and a passage that has ended is removed at the end of the
 * turn. */
#include "net/transport/portal_private.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/parse.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

enum {
    CALL_US = 10000000, /* for a relayed node to answer */
    IDLE_US = 60000000, /* ZMTP says something every five seconds */
    TURN_MS = 250,      /* between looks at deadlines */
    THROTTLED_MS = 5,   /* between refills of a rate that is used up */
    SOCKS = 5,
    SOCKS_REPLY = 10,
};

void sn_portal_wake_thread(sn_portal *g) {
    uint64_t one = 1;
    if (write(g->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: the thread is awake */
}

static void host_wake(const sn_portal *g) {
    if (g->host.wake) g->host.wake(g->host.ctx);
}

/* -- passages ------------------------------------------------------------------------------------------------------ */

void sn_passage_end(sn_passage *p) {
    if (p->fd >= 0) close(p->fd);
    sn_splice_free(&p->splice);
    p->fd = -1;
    p->stage = SN_PASSAGE_ENDED;
}

static bool is_unfinished(const sn_passage *p) { return p->stage <= SN_PASSAGE_WAITING; }

bool sn_portal_is_registered(const sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    for (size_t i = 0; i < g->n_registered; i++)
        if (!memcmp(g->registered[i], key, SN_KEY_SIZE)) return true;
    return false;
}

/* Whether this client may wait for its node beside the others: one network address has a quarter of the node's
 * connections, and all clients leave a quarter of the places to what brings tokens and to what this portal dials. */
static bool client_has_room(const sn_portal *g, const sn_passage *client) {
    size_t clients = 0, of_node = 0, of_address = 0;
    for (const sn_passage *p = g->passages; p < g->passages + g->n; p++) {
        if (p->stage != SN_PASSAGE_WAITING && p->stage != SN_PASSAGE_JOINED) continue;
        clients++;
        if (memcmp(p->key, client->key, SN_KEY_SIZE)) continue;
        of_node++;
        of_address += !memcmp(p->prefix, client->prefix, SN_ADDRESS_PREFIX);
    }
    return clients < g->capacity - g->capacity / 4 && of_node < SN_RELAYED_CONNECTIONS_MAX &&
           of_address < SN_RELAYED_OF_CLIENT_MAX;
}

/* Sends a few bytes at once: the socket of a peer that follows the protocol has room for them. */
static bool send_all(int fd, const void *data, size_t len) { return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len; }

static void socks_reply(int fd, uint8_t code) {
    const uint8_t reply[SOCKS_REPLY] = {SOCKS, code, 0, 1};
    (void)!send_all(fd, reply, sizeof reply);
}

/* Notes a call for the node that has this key. False: no node has registered it, or a limit is reached. */
static bool passage_call(sn_portal *g, sn_passage *p) {
    if (!client_has_room(g, p)) return false;
    if (!sn_address_limit_allows(g->calls_of_address, p->prefix, sn_now_us())) return false;
    sn_random(p->token, sizeof p->token);
    pthread_mutex_lock(&g->lock);
    bool called = sn_portal_is_registered(g, p->key) && g->n_calls < SN_PORTAL_QUEUE_MAX;
    if (called) {
        memcpy(g->calls[g->n_calls].key, p->key, SN_KEY_SIZE);
        memcpy(g->calls[g->n_calls++].token, p->token, SN_TOKEN_SIZE);
    }
    pthread_mutex_unlock(&g->lock);
    return called;
}

/* The request is complete: 5, connect, 0, a name, its length, the name, a port that says nothing. */
static bool passage_request(sn_portal *g, sn_passage *p, int64_t now) {
    enum { NAME_AT = 5, UNREACHABLE = 4 };
    char hex[2 * SN_KEY_SIZE + 1];
    memcpy(hex, p->head + NAME_AT, sizeof hex - 1);
    hex[sizeof hex - 1] = 0;
    bool named = !memcmp(p->head + NAME_AT + 2 * SN_KEY_SIZE, ".swarm", 6) && !sn_unhex(hex, p->key, SN_KEY_SIZE, NULL);
    if (!named || !passage_call(g, p)) {
        socks_reply(p->fd, UNREACHABLE);
        return false;
    }
    p->stage = SN_PASSAGE_WAITING;
    p->until_us = now + CALL_US;
    host_wake(g);
    return true;
}

static void dial_back_came(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < SN_PORTAL_EXPECTED_MAX; i++)
        if (!memcmp(g->expected[i].token, token, SN_TOKEN_SIZE)) g->expected[i].reached = true;
    pthread_mutex_unlock(&g->lock);
    host_wake(g);
}

/* A relayed node answers the call with this token: its connection and the client's are joined. */
static void passage_join(sn_portal *g, sn_passage *answer, int64_t now) {
    const uint8_t *token = answer->head + SN_PORTAL_MAGIC_SIZE;
    for (sn_passage *p = g->passages; p < g->passages + g->n; p++) {
        if (p->stage != SN_PASSAGE_WAITING || memcmp(p->token, token, SN_TOKEN_SIZE)) continue;
        sn_err err;
        socks_reply(p->fd, 0);
        sn_status status = sn_splice_new(p->fd, answer->fd, now, &p->splice, &err);
        p->fd = answer->fd = -1;
        p->stage = status ? SN_PASSAGE_ENDED : SN_PASSAGE_JOINED;
        return;
    }
}

/* What is in `head` is complete. False: the passage ends. */
static bool passage_advance(sn_portal *g, sn_passage *p, int64_t now) {
    enum { NO_AUTHENTICATION = 0, CONNECT = 1, NAME = 3 };
    const uint8_t *head = p->head;
    switch (p->stage) {
    case SN_PASSAGE_FIRST:
        p->stage = head[0] == SOCKS ? SN_PASSAGE_METHODS : SN_PASSAGE_TOKEN;
        p->want = head[0] == SOCKS ? 2 : SN_TOKEN_LINE;
        return true;
    case SN_PASSAGE_METHODS:
        if (p->want == 2 && head[1]) {
            p->want += head[1];
            return true;
        }
        if (!memchr(head + 2, NO_AUTHENTICATION, p->want - 2) || !send_all(p->fd, "\5", 2)) return false;
        p->stage = SN_PASSAGE_REQUEST;
        p->len = 0;
        p->want = 5;
        return true;
    case SN_PASSAGE_REQUEST:
        if (head[0] != SOCKS || head[1] != CONNECT || head[3] != NAME || head[4] != SN_RELAY_NAME_LEN) return false;
        if (p->len > 5) return passage_request(g, p, now);
        p->want += SN_RELAY_NAME_LEN + 2;
        return true;
    case SN_PASSAGE_TOKEN:
        if (!memcmp(head, SN_DIAL_BACK_MAGIC, SN_PORTAL_MAGIC_SIZE)) dial_back_came(g, head + SN_PORTAL_MAGIC_SIZE);
        if (!memcmp(head, SN_ANSWER_MAGIC, SN_PORTAL_MAGIC_SIZE)) passage_join(g, p, now);
        return false; /* a joined one has given its descriptor away */
    default:
        return false;
    }
}

/* Reads what a newcomer says, and not a byte more: what follows belongs to others. */
static void passage_read(sn_portal *g, sn_passage *p, int64_t now) {
    for (;;) {
        bool waits = p->stage == SN_PASSAGE_WAITING; /* it has nothing to say until it is joined */
        uint8_t surplus;
        ssize_t n = waits ? recv(p->fd, &surplus, 1, MSG_PEEK) : recv(p->fd, p->head + p->len, p->want - p->len, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (n > 0 && !waits) p->len += (size_t)n;
        if (n <= 0 || waits || (p->len == p->want && !passage_advance(g, p, now))) {
            sn_passage_end(p);
            return;
        }
    }
}

/* Sends the token line when the connection is made; then a dial-back is complete, and an answer is the listener's. */
static void passage_write(sn_portal *g, sn_passage *p) {
    ssize_t n = send(p->fd, p->head + p->len, p->want - p->len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) p->len += (size_t)n;
    if (n > 0 && p->len < p->want) return;
    if (n > 0 && !memcmp(p->head, SN_ANSWER_MAGIC, SN_PORTAL_MAGIC_SIZE)) {
        g->host.adopt(g->host.ctx, p->fd, &p->other);
        p->fd = -1;
    }
    sn_passage_end(p);
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */

/* Whether one more connection may come from this address. What comes leaves an eighth of the places to what this portal
 * makes itself. */
static bool has_room(const sn_portal *g, const sn_passage *newcomer) {
    size_t of_address = 0, unfinished = 0;
    for (const sn_passage *p = g->passages; p < g->passages + g->n; p++) {
        if (!is_unfinished(p)) continue;
        unfinished++;
        of_address += !memcmp(p->prefix, newcomer->prefix, SN_ADDRESS_PREFIX);
    }
    if (newcomer->stage == SN_PASSAGE_DIALS) return g->n < g->capacity;
    return g->n < g->capacity - g->capacity / 8 && unfinished < g->capacity / 2 &&
           of_address < SN_PORTAL_OF_ADDRESS_MAX;
}

/* Ends the connections of nodes that have come by another way. With the lock. */
static void end_renewed(sn_portal *g) {
    for (size_t i = 0; i < g->n_renewed; i++)
        for (sn_passage *p = g->passages; p < g->passages + g->n; p++)
            if (p->stage == SN_PASSAGE_JOINED && !memcmp(p->key, g->renewed[i], SN_KEY_SIZE)) sn_passage_end(p);
    g->n_renewed = 0;
}

static void take_queued(sn_portal *g) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n_queue; i++) {
        if (has_room(g, &g->queue[i]))
            g->passages[g->n++] = g->queue[i];
        else
            sn_passage_end(&g->queue[i]);
    }
    g->n_queue = 0;
    end_renewed(g);
    pthread_mutex_unlock(&g->lock);
}

static void refill(sn_portal *g, int64_t bytes_per_s, int64_t now) {
    int64_t passed = now - g->refilled_us, most = bytes_per_s / 10 + SN_SPLICE_BYTES;
    if (passed > 1000000) passed = 1000000;
    g->budget += passed * (bytes_per_s / 1000) / 1000;
    if (g->budget > most) g->budget = most;
    g->refilled_us = now;
}

static struct pollfd polled_for(int fd, short events) {
    return (struct pollfd){.fd = events ? fd : -1, .events = events};
}

/* Fills the list to poll: two entries for each passage, then the descriptor that wakes. */
static void make_polled(sn_portal *g) {
    for (size_t i = 0; i < g->n; i++) {
        const sn_passage *p = &g->passages[i];
        bool joined = p->stage == SN_PASSAGE_JOINED;
        for (int side = 0; side < 2; side++)
            g->polled[2 * i + (size_t)side] =
                joined ? polled_for(p->splice->fd[side], sn_splice_events(p->splice, side, g->budget > 0))
                : side ? polled_for(-1, 0)
                       : polled_for(p->fd, p->stage == SN_PASSAGE_DIALS ? POLLOUT : POLLIN);
    }
    g->polled[2 * g->n] = polled_for(g->wake_fd, POLLIN);
}

static void serve_passage(sn_portal *g, sn_passage *p, bool ready, int64_t now) {
    if (p->stage == SN_PASSAGE_JOINED) {
        if ((ready && !sn_splice_move(p->splice, &g->budget, now)) || now - p->splice->moved_us > IDLE_US)
            sn_passage_end(p);
        return;
    }
    if (ready && p->stage == SN_PASSAGE_DIALS)
        passage_write(g, p);
    else if (ready)
        passage_read(g, p, now);
    if (p->stage != SN_PASSAGE_JOINED && p->stage != SN_PASSAGE_ENDED && now > p->until_us) sn_passage_end(p);
}

/* Removes what has ended, and counts what is left. */
static void clear_ended(sn_portal *g, int64_t spent) {
    size_t kept = 0, joined = 0, dials = 0, next = g->next_served;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n; i++) {
        sn_passage *p = &g->passages[i];
        if (i == next) g->next_served = kept;
        if (p->stage == SN_PASSAGE_WAITING && !sn_portal_is_registered(g, p->key)) sn_passage_end(p);
        if (p->stage == SN_PASSAGE_ENDED) continue;
        joined += p->stage == SN_PASSAGE_JOINED;
        dials += p->stage == SN_PASSAGE_DIALS;
        if (kept != i) g->passages[kept] = *p;
        kept++;
    }
    g->n = kept;
    g->n_joined = joined;
    g->n_dials = dials;
    g->relayed_bytes += (uint64_t)spent;
    pthread_mutex_unlock(&g->lock);
}

/* Serves all. Where the rate is used up before all have had their part, the next turn begins behind the last one that
 * had some. */
static void serve_all(sn_portal *g, int64_t now) {
    for (size_t k = 0, n = g->n, first = g->next_served; k < n; k++) {
        size_t i = (first + k) % n;
        int64_t before = g->budget;
        serve_passage(g, &g->passages[i], g->polled[2 * i].revents || g->polled[2 * i + 1].revents, now);
        if (g->budget < before) g->next_served = (i + 1) % n;
    }
}

/* One turn; false: the portal ends. */
static bool portal_turn(sn_portal *g) {
    pthread_mutex_lock(&g->lock);
    int64_t bytes_per_s = g->bytes_per_s;
    bool stop = g->stop;
    pthread_mutex_unlock(&g->lock);
    if (stop) return false;
    take_queued(g);
    make_polled(g);
    int wait_ms = !g->n ? -1 : g->budget <= 0 && bytes_per_s ? THROTTLED_MS : TURN_MS;
    if (poll(g->polled, 2 * g->n + 1, wait_ms) < 0 && errno != EINTR) return false;
    int64_t now = sn_now_us();
    uint64_t woken;
    if (g->polled[2 * g->n].revents && read(g->wake_fd, &woken, sizeof woken) < 0) return true;
    refill(g, bytes_per_s, now);
    int64_t before = g->budget;
    serve_all(g, now);
    clear_ended(g, before - g->budget);
    return true;
}

void *sn_portal_run(void *arg) {
    sn_portal *g = arg;
    while (portal_turn(g)) {}
    return NULL;
}
