/* The portal (portal.h): one thread, which polls all its connections.
 *
 * A passage is one connection that the portal holds, from its first byte to its end: one that was accepted and says
 * what it wants (STAGE_FIRST to STAGE_TOKEN), a client that waits for a relayed node (STAGE_WAITING), two that are
 * joined (STAGE_JOINED), or one that this portal makes (STAGE_DIALS). There are few of them, so the list to poll is
 * made anew in each turn, and a passage that has ended is removed at the end of the turn. The lock guards everything
 * but the passages, which are the thread's alone. */
#include "net/transport/portal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/address.h"
#include "net/transport/splice_private.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    FIRST_US = 5000000, /* for a newcomer to say what it wants */
    CALL_US = 10000000, /* for a relayed node to answer */
    DIAL_US = 5000000,  /* for a connection that this portal makes */
    IDLE_US = 60000000, /* ZMTP says something every five seconds */
    TURN_MS = 250,      /* between looks at deadlines */
    THROTTLED_MS = 5,   /* between refills of a rate that is used up */
    EXPECTED_MAX = 8,   /* tokens of dial-backs */
    QUEUE_MAX = 64,     /* between the thread and others, each way */
    CALLS_BURST = 64,   /* of one network address at once, */
    CALLS_PER_S = 16,   /* then in a second */
    MAGIC_SIZE = 8,
    TOKEN_LINE = MAGIC_SIZE + SN_TOKEN_SIZE,
    HEAD_MAX = 262, /* bytes of what a newcomer says: the longest SOCKS request */
    SOCKS = 5,
    SOCKS_REPLY = 10,
};
static const char DIAL_BACK[MAGIC_SIZE] = "SWARM<1", ANSWER[MAGIC_SIZE] = "SWARM>1";

typedef enum stage {
    STAGE_FIRST,   /* nothing is known of it */
    STAGE_METHODS, /* SOCKS: ways to authenticate, of which it must offer none */
    STAGE_REQUEST, /* SOCKS: the node that it wants */
    STAGE_TOKEN,   /* a dial-back, or the answer of a relayed node */
    STAGE_WAITING, /* the relayed node has been called */
    STAGE_JOINED,
    STAGE_LOCAL, /* listens on this machine for its own program, which wants a relayed node */
    STAGE_ASKS,  /* the program's connection is there: this portal connects to the relay, and asks it */
    STAGE_DIALS, /* this portal connects, and will send `head` */
    STAGE_ENDED,
} stage;

typedef struct passage {
    stage stage;
    int fd; /* -1: JOINED, whose splice has both, or ENDED */
    sn_splice *splice;
    int local;  /* ASKS: the program's connection */
    int number; /* LOCAL: its port */
    bool asked; /* ASKS: the request has been sent */
    int64_t until_us;
    struct sockaddr_storage other; /* its other end */
    uint8_t prefix[SN_ADDRESS_PREFIX];
    uint8_t head[HEAD_MAX];
    size_t len, want;                               /* of head: bytes that have come, or been sent; and are to */
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE]; /* WAITING, JOINED: the relayed node, and its call */
} passage;

typedef struct call {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
} call;

struct sn_portal {
    sn_portal_host host;
    int wake_fd;
    pthread_t thread;
    bool started;
    bool bridges; /* a client's: nothing is relayed for others */
    /* Of the thread. */
    passage *passages;     /* (capacity) */
    struct pollfd *polled; /* (2 * capacity + 1) */
    size_t n, capacity, first_served;
    int64_t budget, refilled_us; /* bytes that may be relayed now */
    sn_address_limit *calls_of_address;

    pthread_mutex_t lock; /* guards the members below */
    bool stop;
    passage queue[QUEUE_MAX]; /* for the thread to take over */
    size_t n_queue;
    struct {
        uint8_t token[SN_TOKEN_SIZE];
        bool reached;
    } expected[EXPECTED_MAX];
    size_t next_expected;
    int64_t bytes_per_s;
    uint8_t registered[SN_RELAYED_NODES_MAX][SN_KEY_SIZE];
    size_t n_registered;
    call calls[QUEUE_MAX];
    size_t n_calls, n_joined, n_dials;
    uint64_t relayed_bytes;
};

static void portal_wake_thread(sn_portal *g) {
    uint64_t one = 1;
    if (write(g->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: the thread is awake */
}

static void host_wake(const sn_portal *g) {
    if (g->host.wake) g->host.wake(g->host.ctx);
}

/* -- passages ------------------------------------------------------------------------------------------------------ */

static void passage_end(passage *p) {
    if (p->fd >= 0) close(p->fd);
    if (p->stage == STAGE_ASKS && p->local >= 0) close(p->local);
    sn_splice_free(&p->splice);
    p->fd = -1;
    p->stage = STAGE_ENDED;
}

static bool is_unfinished(const passage *p) { return p->stage <= STAGE_WAITING; }

/* With the lock. */
static bool is_registered(const sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    for (size_t i = 0; i < g->n_registered; i++)
        if (!memcmp(g->registered[i], key, SN_KEY_SIZE)) return true;
    return false;
}

static size_t connections_of(const sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    size_t n = 0;
    for (const passage *p = g->passages; p < g->passages + g->n; p++)
        n += (p->stage == STAGE_WAITING || p->stage == STAGE_JOINED) && !memcmp(p->key, key, SN_KEY_SIZE);
    return n;
}

/* Sends a few bytes at once: the socket of a peer that follows the protocol has room for them. */
static bool send_all(int fd, const void *data, size_t len) { return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len; }

static void socks_reply(int fd, uint8_t code) {
    const uint8_t reply[SOCKS_REPLY] = {SOCKS, code, 0, 1};
    (void)!send_all(fd, reply, sizeof reply);
}

/* Notes a call for the node that has this key. False: no node has registered it, or a limit is reached. */
static bool passage_call(sn_portal *g, passage *p) {
    if (connections_of(g, p->key) >= SN_RELAYED_CONNECTIONS_MAX) return false;
    if (!sn_address_limit_allows(g->calls_of_address, p->prefix, sn_now_us())) return false;
    sn_random(p->token, sizeof p->token);
    pthread_mutex_lock(&g->lock);
    bool called = is_registered(g, p->key) && g->n_calls < QUEUE_MAX;
    if (called) {
        memcpy(g->calls[g->n_calls].key, p->key, SN_KEY_SIZE);
        memcpy(g->calls[g->n_calls++].token, p->token, SN_TOKEN_SIZE);
    }
    pthread_mutex_unlock(&g->lock);
    return called;
}

/* The request is complete: 5, connect, 0, a name, its length, the name, a port that says nothing. */
static bool passage_request(sn_portal *g, passage *p, int64_t now) {
    enum { NAME_AT = 5, UNREACHABLE = 4 };
    char hex[2 * SN_KEY_SIZE + 1];
    memcpy(hex, p->head + NAME_AT, sizeof hex - 1);
    hex[sizeof hex - 1] = 0;
    bool named = !memcmp(p->head + NAME_AT + 2 * SN_KEY_SIZE, ".swarm", 6) && !sn_unhex(hex, p->key, SN_KEY_SIZE, NULL);
    if (!named || !passage_call(g, p)) {
        socks_reply(p->fd, UNREACHABLE);
        return false;
    }
    p->stage = STAGE_WAITING;
    p->until_us = now + CALL_US;
    host_wake(g);
    return true;
}

static void dial_back_came(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < EXPECTED_MAX; i++)
        if (!memcmp(g->expected[i].token, token, SN_TOKEN_SIZE)) g->expected[i].reached = true;
    pthread_mutex_unlock(&g->lock);
    host_wake(g);
}

/* A relayed node answers the call with this token: its connection and the client's are joined. */
static void passage_join(sn_portal *g, passage *answer, int64_t now) {
    const uint8_t *token = answer->head + MAGIC_SIZE;
    for (passage *p = g->passages; p < g->passages + g->n; p++) {
        if (p->stage != STAGE_WAITING || memcmp(p->token, token, SN_TOKEN_SIZE)) continue;
        sn_err err;
        socks_reply(p->fd, 0);
        sn_status status = sn_splice_new(p->fd, answer->fd, now, &p->splice, &err);
        p->fd = answer->fd = -1;
        p->stage = status ? STAGE_ENDED : STAGE_JOINED;
        return;
    }
}

/* What is in `head` is complete. False: the passage ends. */
static bool passage_advance(sn_portal *g, passage *p, int64_t now) {
    enum { NO_AUTHENTICATION = 0, CONNECT = 1, NAME = 3 };
    const uint8_t *head = p->head;
    switch (p->stage) {
    case STAGE_FIRST:
        p->stage = head[0] == SOCKS ? STAGE_METHODS : STAGE_TOKEN;
        p->want = head[0] == SOCKS ? 2 : TOKEN_LINE;
        return true;
    case STAGE_METHODS:
        if (p->want == 2 && head[1]) {
            p->want += head[1];
            return true;
        }
        if (!memchr(head + 2, NO_AUTHENTICATION, p->want - 2) || !send_all(p->fd, "\5", 2)) return false;
        p->stage = STAGE_REQUEST;
        p->len = 0;
        p->want = 5;
        return true;
    case STAGE_REQUEST:
        if (head[0] != SOCKS || head[1] != CONNECT || head[3] != NAME || head[4] != SN_RELAY_NAME_LEN) return false;
        if (p->len > 5) return passage_request(g, p, now);
        p->want += SN_RELAY_NAME_LEN + 2;
        return true;
    case STAGE_TOKEN:
        if (!memcmp(head, DIAL_BACK, MAGIC_SIZE)) dial_back_came(g, head + MAGIC_SIZE);
        if (!memcmp(head, ANSWER, MAGIC_SIZE)) passage_join(g, p, now);
        return false; /* a joined one has given its descriptor away */
    default:
        return false;
    }
}

/* Reads what a newcomer says, and not a byte more: what follows belongs to others. */
static void passage_read(sn_portal *g, passage *p, int64_t now) {
    for (;;) {
        bool waits = p->stage == STAGE_WAITING; /* it has nothing to say until it is joined */
        uint8_t surplus;
        ssize_t n = waits ? recv(p->fd, &surplus, 1, MSG_PEEK) : recv(p->fd, p->head + p->len, p->want - p->len, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (n > 0 && !waits) p->len += (size_t)n;
        if (n <= 0 || waits || (p->len == p->want && !passage_advance(g, p, now))) {
            passage_end(p);
            return;
        }
    }
}

/* A program of this machine has connected: the relay is asked for the node that it wants. SOCKS takes greeting and
 * request one after the other without a wait in between. */
static void local_accept(sn_portal *g, const passage *l, int64_t now) {
    passage p = {.stage = STAGE_ASKS, .until_us = now + FIRST_US + CALL_US, .other = l->other};
    char name[SN_RELAY_NAME_LEN + 1];
    int one = 1;
    p.local = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (p.local < 0) return;
    p.fd = socket(p.other.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = p.other.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    const uint8_t begin[] = {SOCKS, 1, 0, SOCKS, 1, 0, 3, SN_RELAY_NAME_LEN};
    sn_relay_name(l->key, name);
    memcpy(p.head, begin, sizeof begin);
    memcpy(p.head + sizeof begin, name, SN_RELAY_NAME_LEN);
    p.want = sizeof begin + SN_RELAY_NAME_LEN + 2;
    p.head[p.want - 1] = 1;
    bool room = p.fd >= 0 && g->n < g->capacity;
    if (!room || (connect(p.fd, (const struct sockaddr *)&p.other, len) && errno != EINPROGRESS)) {
        passage_end(&p);
        return;
    }
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(p.local, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    g->passages[g->n++] = p;
}

/* Sends the request, then reads what the relay says, and not a byte more. */
static void passage_ask(passage *p, int64_t now) {
    enum { ANSWERS = 2 + SOCKS_REPLY };
    ssize_t n = p->asked ? recv(p->fd, p->head + p->len, p->want - p->len, 0)
                         : send(p->fd, p->head + p->len, p->want - p->len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) p->len += (size_t)n;
    bool complete = n > 0 && p->len == p->want;
    if (complete && !p->asked) {
        p->asked = true;
        p->len = 0;
        p->want = ANSWERS;
        return;
    }
    if (complete && !p->head[3]) {
        sn_err err;
        int local = p->local, fd = p->fd;
        p->local = p->fd = -1;
        p->stage = sn_splice_new(local, fd, now, &p->splice, &err) ? STAGE_ENDED : STAGE_JOINED;
        return;
    }
    if (n <= 0 || complete) passage_end(p);
}

/* Sends the token line when the connection is made; then a dial-back is complete, and an answer is the listener's. */
static void passage_write(sn_portal *g, passage *p) {
    ssize_t n = send(p->fd, p->head + p->len, p->want - p->len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) p->len += (size_t)n;
    if (n > 0 && p->len < p->want) return;
    if (n > 0 && !memcmp(p->head, ANSWER, MAGIC_SIZE)) {
        g->host.adopt(g->host.ctx, p->fd, &p->other);
        p->fd = -1;
    }
    passage_end(p);
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */

/* Whether one more connection may come from this address. */
static bool has_room(const sn_portal *g, const passage *newcomer) {
    size_t of_address = 0, unfinished = 0;
    for (const passage *p = g->passages; p < g->passages + g->n; p++) {
        if (!is_unfinished(p)) continue;
        unfinished++;
        of_address += !memcmp(p->prefix, newcomer->prefix, SN_ADDRESS_PREFIX);
    }
    if (newcomer->stage == STAGE_DIALS || newcomer->stage == STAGE_LOCAL) return g->n < g->capacity;
    return g->n < g->capacity && unfinished < g->capacity / 2 && of_address < SN_PORTAL_OF_ADDRESS_MAX;
}

static void take_queued(sn_portal *g) {
    passage queue[QUEUE_MAX];
    pthread_mutex_lock(&g->lock);
    size_t n = g->n_queue;
    memcpy(queue, g->queue, n * sizeof *queue);
    g->n_queue = 0;
    pthread_mutex_unlock(&g->lock);
    for (size_t i = 0; i < n; i++) {
        for (passage *p = g->passages; queue[i].stage == STAGE_ENDED && p < g->passages + g->n; p++)
            if (p->stage == STAGE_LOCAL && p->number == queue[i].number) passage_end(p);
        if (queue[i].stage == STAGE_ENDED) continue;
        if (has_room(g, &queue[i]))
            g->passages[g->n++] = queue[i];
        else
            passage_end(&queue[i]);
    }
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
        const passage *p = &g->passages[i];
        bool joined = p->stage == STAGE_JOINED;
        for (int side = 0; side < 2; side++)
            g->polled[2 * i + (size_t)side] =
                joined ? polled_for(p->splice->fd[side], sn_splice_events(p->splice, side, g->budget > 0))
                : side ? polled_for(-1, 0)
                       : polled_for(p->fd, p->stage == STAGE_DIALS || (p->stage == STAGE_ASKS && !p->asked) ? POLLOUT
                                                                                                            : POLLIN);
    }
    g->polled[2 * g->n] = polled_for(g->wake_fd, POLLIN);
}

static void serve_passage(sn_portal *g, passage *p, bool ready, int64_t now) {
    if (p->stage == STAGE_JOINED) {
        if ((ready && !sn_splice_move(p->splice, &g->budget, now)) || now - p->splice->moved_us > IDLE_US)
            passage_end(p);
        return;
    }
    if (ready && p->stage == STAGE_DIALS)
        passage_write(g, p);
    else if (ready && p->stage == STAGE_LOCAL)
        local_accept(g, p, now);
    else if (ready && p->stage == STAGE_ASKS)
        passage_ask(p, now);
    else if (ready)
        passage_read(g, p, now);
    if (p->stage != STAGE_JOINED && p->stage != STAGE_LOCAL && p->stage != STAGE_ENDED && now > p->until_us)
        passage_end(p);
}

/* Removes what has ended, and counts what is left. */
static void clear_ended(sn_portal *g, int64_t spent) {
    size_t kept = 0, joined = 0, dials = 0;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n; i++) {
        passage *p = &g->passages[i];
        if (p->stage == STAGE_WAITING && !is_registered(g, p->key)) passage_end(p);
        if (p->stage == STAGE_ENDED) continue;
        joined += p->stage == STAGE_JOINED;
        dials += p->stage == STAGE_DIALS;
        if (kept != i) g->passages[kept] = *p;
        kept++;
    }
    g->n = kept;
    g->n_joined = joined;
    g->n_dials = dials;
    g->relayed_bytes += (uint64_t)spent;
    pthread_mutex_unlock(&g->lock);
}

/* One turn; false: the portal ends. */
static bool portal_turn(sn_portal *g) {
    pthread_mutex_lock(&g->lock);
    int64_t bytes_per_s = g->bridges ? INT64_MAX / 4096 : g->bytes_per_s; /* a program's own bytes have no rate */
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
    size_t n = g->n;
    g->first_served++; /* so that none is always the last to find something of the rate */
    for (size_t k = 0; k < n; k++) {
        size_t i = (g->first_served + k) % n;
        serve_passage(g, &g->passages[i], g->polled[2 * i].revents || g->polled[2 * i + 1].revents, now);
    }
    clear_ended(g, before - g->budget);
    return true;
}

static void *portal_run(void *arg) {
    sn_portal *g = arg;
    while (portal_turn(g)) {}
    return NULL;
}

/* -- for other threads --------------------------------------------------------------------------------------------- */

/* Gives the passage to the thread, which then owns its descriptor. */
static sn_status portal_push(sn_portal *g, const passage *p, sn_err *err) {
    pthread_mutex_lock(&g->lock);
    bool dials = p->stage == STAGE_DIALS;
    bool room = g->n_queue < QUEUE_MAX && !g->stop && (!dials || g->n_dials < SN_PORTAL_DIALS_MAX);
    if (room) {
        g->queue[g->n_queue++] = *p;
        g->n_dials += dials;
    }
    pthread_mutex_unlock(&g->lock);
    portal_wake_thread(g);
    if (room) return SN_OK;
    if (p->fd >= 0) close(p->fd);
    return sn_fail(err, SN_RETRY, "this node makes too many connections at the moment: ask again later");
}

void sn_portal_take(sn_portal *g, int fd, const struct sockaddr_storage *from) {
    passage p = {.stage = STAGE_FIRST, .fd = fd, .want = 1, .until_us = sn_now_us() + FIRST_US, .other = *from};
    int one = 1;
    sn_err err;
    sn_address_prefix(from, p.prefix);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (portal_push(g, &p, &err)) sn_log_rated(SN_LOG_INFO, "connection refused", "text=%s", err.text);
}

/* Begins to connect to a numeric address; the token line follows when the connection is made. */
static sn_status portal_dial(sn_portal *g, const char *address, const char magic[MAGIC_SIZE],
                             const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    passage p = {.stage = STAGE_DIALS, .want = TOKEN_LINE, .until_us = sn_now_us() + DIAL_US};
    socklen_t len;
    int one = 1;
    sn_status status = sn_address_read(address, &p.other, &len, err);
    if (status) return status;
    p.fd = socket(p.other.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(p.head, magic, MAGIC_SIZE);
    memcpy(p.head + MAGIC_SIZE, token, SN_TOKEN_SIZE);
    if (p.fd < 0 || (connect(p.fd, (const struct sockaddr *)&p.other, len) && errno != EINPROGRESS)) {
        status = sn_fail(err, SN_RETRY, "%s cannot be dialled: %s", address, strerror(errno));
        if (p.fd >= 0) close(p.fd);
        return status;
    }
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return portal_push(g, &p, err);
}

sn_status sn_portal_bridge(sn_portal *g, const char *relay, const uint8_t key[SN_KEY_SIZE], int *port, sn_err *err) {
    passage p = {.stage = STAGE_LOCAL};
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len;
    sn_status status = sn_address_read(relay, &p.other, &len, err);
    if (status) return status;
    len = sizeof own;
    p.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(p.key, key, SN_KEY_SIZE);
    if (p.fd < 0 || bind(p.fd, (const struct sockaddr *)&own, len) || listen(p.fd, 4) ||
        getsockname(p.fd, (struct sockaddr *)&own, &len)) {
        status = sn_fail(err, SN_RETRY, "a relay cannot be dialled: %s", strerror(errno));
        if (p.fd >= 0) close(p.fd);
        return status;
    }
    *port = p.number = ntohs(own.sin_port);
    return portal_push(g, &p, err);
}

void sn_portal_unbridge(sn_portal *g, int port) {
    const passage p = {.stage = STAGE_ENDED, .fd = -1, .number = port};
    sn_err err;
    (void)!portal_push(g, &p, &err);
}

sn_status sn_portal_dial_back(sn_portal *g, const char *address, const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    return portal_dial(g, address, DIAL_BACK, token, err);
}

sn_status sn_portal_answer(sn_portal *g, const char *relay, const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    return portal_dial(g, relay, ANSWER, token, err);
}

void sn_portal_expect(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    pthread_mutex_lock(&g->lock);
    size_t at = g->next_expected++ % EXPECTED_MAX;
    memcpy(g->expected[at].token, token, SN_TOKEN_SIZE);
    g->expected[at].reached = false;
    pthread_mutex_unlock(&g->lock);
}

bool sn_portal_was_reached(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    bool reached = false;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < EXPECTED_MAX; i++)
        reached |= g->expected[i].reached && !memcmp(g->expected[i].token, token, SN_TOKEN_SIZE);
    pthread_mutex_unlock(&g->lock);
    return reached;
}

void sn_portal_set_rate(sn_portal *g, int64_t bytes_per_s) {
    pthread_mutex_lock(&g->lock);
    g->bytes_per_s = bytes_per_s;
    pthread_mutex_unlock(&g->lock);
    portal_wake_thread(g);
}

sn_status sn_portal_register(sn_portal *g, const uint8_t key[SN_KEY_SIZE], sn_err *err) {
    sn_status status = SN_OK;
    pthread_mutex_lock(&g->lock);
    if (!g->bytes_per_s)
        status = sn_fail(err, SN_REFUSED, "this node relays nothing: ask another one");
    else if (!is_registered(g, key) && g->n_registered == SN_RELAYED_NODES_MAX)
        status = sn_fail(err, SN_RETRY, "this node relays for %d nodes already: ask another one", SN_RELAYED_NODES_MAX);
    else if (!is_registered(g, key))
        memcpy(g->registered[g->n_registered++], key, SN_KEY_SIZE);
    pthread_mutex_unlock(&g->lock);
    return status;
}

void sn_portal_unregister(sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n_registered; i++)
        if (!memcmp(g->registered[i], key, SN_KEY_SIZE))
            memmove(g->registered[i], g->registered[--g->n_registered], SN_KEY_SIZE);
    pthread_mutex_unlock(&g->lock);
    portal_wake_thread(g);
}

bool sn_portal_next_call(sn_portal *g, uint8_t key[SN_KEY_SIZE], uint8_t token[SN_TOKEN_SIZE]) {
    pthread_mutex_lock(&g->lock);
    bool any = g->n_calls > 0;
    if (any) {
        memcpy(key, g->calls[0].key, SN_KEY_SIZE);
        memcpy(token, g->calls[0].token, SN_TOKEN_SIZE);
        memmove(g->calls, g->calls + 1, --g->n_calls * sizeof *g->calls);
    }
    pthread_mutex_unlock(&g->lock);
    return any;
}

sn_portal_stats sn_portal_read_stats(sn_portal *g) {
    pthread_mutex_lock(&g->lock);
    sn_portal_stats stats = {.relayed_nodes = g->n_registered,
                             .relayed_connections = g->n_joined,
                             .relayed_bytes = g->relayed_bytes,
                             .places = g->bytes_per_s ? SN_RELAYED_NODES_MAX - g->n_registered : 0};
    pthread_mutex_unlock(&g->lock);
    return stats;
}

/* -- creation and release ------------------------------------------------------------------------------------------ */

sn_status sn_portal_new(const sn_portal_host *host, size_t connections_max, sn_portal **out, sn_err *err) {
    sn_portal *g = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&g, 1, sizeof *g, err);
    if (status) return status;
    g->host = *host;
    g->bridges = !host->adopt;
    g->capacity = connections_max;
    pthread_mutex_init(&g->lock, NULL);
    for (size_t i = 0; i < EXPECTED_MAX; i++) sn_random(g->expected[i].token, SN_TOKEN_SIZE);
    g->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (g->wake_fd < 0) status = sn_fail(err, SN_STOP, "no descriptor is left to listen with: %s", strerror(errno));
    if (!status) status = sn_calloc(&g->passages, g->capacity, sizeof *g->passages, err);
    if (!status) status = sn_calloc(&g->polled, 2 * g->capacity + 1, sizeof *g->polled, err);
    if (!status) status = sn_address_limit_new(CALLS_BURST, CALLS_PER_S, &g->calls_of_address, err);
    if (!status && !sn_thread_start(&g->thread, portal_run, g, NULL))
        status = sn_fail(err, SN_STOP, "the thread of the portal cannot be started");
    g->started = !status;
    if (status) sn_portal_free(&g);
    *out = g;
    return status;
}

void sn_portal_stop(sn_portal *g) {
    if (!g || !g->started) return;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_mutex_unlock(&g->lock);
    portal_wake_thread(g);
    pthread_join(g->thread, NULL);
    g->started = false;
}

void sn_portal_free(sn_portal **portal) {
    sn_portal *g = *portal;
    if (!g) return;
    sn_portal_stop(g);
    for (size_t i = 0; i < g->n; i++) passage_end(&g->passages[i]);
    for (size_t i = 0; i < g->n_queue; i++) passage_end(&g->queue[i]);
    if (g->wake_fd >= 0) close(g->wake_fd);
    sn_address_limit_free(&g->calls_of_address);
    pthread_mutex_destroy(&g->lock);
    free(g->passages);
    free(g->polled);
    free(g);
    *portal = NULL;
}
