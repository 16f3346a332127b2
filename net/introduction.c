/* Introductions over UDP (net/introduction.h). A datagram is 8 bytes of magic, an 8-byte nonce, and in an answer the
 * node's id, its CURVE key and a signature over all of them; a question is padded with zeros to the same length.
 *
 * One thread polls four descriptors: an eventfd that wakes it, one socket for each IP version to ask from, and in a
 * node the socket that answers. Each address that the program joins is a query with a random nonce; the thread sends it
 * again until an answer with this nonce and a valid signature arrives. Queries are never removed: a program joins few
 * addresses. Hosts are looked up elsewhere (net/lookup.h), so that a slow resolver stops neither questions nor answers;
 * what a query hands out is a numeric address: the one that answered, or, if the key is pinned, the first that was
 * found. The lock guards the list of queries.
 *
 * Answers have a rate for each source address and one for all, because a signature takes 30 us and source addresses of
 * datagrams can be forged: what is above them is read and dropped, which takes 2 us. */
#include "net/introduction.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/listen.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "net/address_limit.h"
#include "net/lan.h"
#include "net/lookup.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ANSWERS_BURST = 128, /* to one address at once, then in a second: a cluster of clients may share an address */
    ANSWERS_PER_S = 64,
    ALL_ANSWERS_PER_S = 4000, /* an eighth of what one core can sign */
    READS_AT_ONCE = 256,      /* questions, before anything else is done */
    RECEIVE_BUFFER = 1 << 20,
    QUERIES_MAX = 64,
    RETRY_US = 500000,       /* between the first EAGER_TRIES questions of a query */
    RETRY_SLOW_US = 5000000, /* between the later ones */
    TOLD_US = 60000000,      /* between two log lines about a host that is not found */
    LOOKUP_POLL_US = 20000,  /* while a host is being looked up, at first */
    EAGER_TRIES = 20,
    MAGIC_SIZE = 8,
    NONCE_SIZE = 8,
    SIGNED_SIZE = MAGIC_SIZE + NONCE_SIZE + 2 * SN_KEY_SIZE, /* magic, nonce, id, CURVE key */
    DATAGRAM_SIZE = SIGNED_SIZE + SN_SIGNATURE_SIZE,         /* of a question (padded) and of an answer */
};
static const char QUESTION[MAGIC_SIZE] = "SWARM?1", ANSWER[MAGIC_SIZE] = "SWARM!1";

typedef struct query {
    char address[SN_ADDRESS_MAX + 1]; /* as it was typed */
    sn_lookup *lookup;                /* of its host; NULL: begins with the next question */
    char numeric[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1];
    size_t n_numeric; /* 0: not yet found */
    bool pinned;
    uint8_t nonce[NONCE_SIZE], key[SN_KEY_SIZE];
    bool answered, taken; /* answered: `key` is known and numeric[0] has it; taken: was handed out */
    int tries;
    int64_t next_us; /* when the next question is due */
    int64_t told_us; /* when the log said last that the host is not found; 0: it has not */
} query;

struct sn_introducer {
    const sn_identity *identity;
    int serve_fd, ask_fd[2], wake_fd; /* serve_fd: -1 in a program that only asks; ask_fd: IPv4, IPv6 */
    void (*on_found)(void *);
    void *ctx;
    pthread_t thread;
    bool started;
    sn_address_limit *answers, *all_answers; /* all_answers: counts one address, of zeros */
    char bound[SN_ADDRESS_MAX + 1];          /* of a node */
    sn_lan *lan;                             /* of the thread; NULL: not asked for */
    pthread_mutex_t lock;                    /* guards the members below */
    bool stop, wants_lan;
    query queries[QUERIES_MAX];
    size_t n_queries;
};

/* The UDP address of a numeric HOST:PORT. to_listen: where a transport listens. */
static sn_status address_of(const char *address, bool to_listen, struct addrinfo **out, sn_err *err) {
    sn_host_port at;
    char port[8];
    sn_status status = sn_parse_host_port(address, to_listen ? SN_HOST_PORT_LISTEN : SN_HOST_PORT_DIAL, &at, err);
    if (status) return status;
    snprintf(port, sizeof port, "%d", at.port);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | (to_listen ? AI_PASSIVE : 0)};
    int rc = getaddrinfo(strcmp(at.host, "*") ? at.host : NULL, port, &hints, out);
    return rc ? sn_fail(err, SN_REFUSED, "%s is no address: %s", address, gai_strerror(rc)) : SN_OK;
}

/* -- answering -- */

static sn_status introducer_listen(sn_introducer *in, const char *bound, sn_err *err) {
    struct addrinfo *at = NULL;
    sn_status status = address_of(bound, true, &at, err);
    if (status) return status;
    in->serve_fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (at->ai_family == AF_INET6) setsockopt(in->serve_fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (in->serve_fd < 0 || bind(in->serve_fd, at->ai_addr, at->ai_addrlen)) {
        int reason = errno;
        status = sn_fail(err, SN_REFUSED, "the UDP port of %s cannot be used (%s): choose another --listen address",
                         bound, strerror(reason));
        if (err && reason == EADDRINUSE) err->retry_after_ms = SN_PORT_RETRY_MS;
    }
    freeaddrinfo(at);
    int bytes = RECEIVE_BUFFER;
    if (!status) setsockopt(in->serve_fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (!status) status = sn_address_limit_new(ANSWERS_BURST, ANSWERS_PER_S, &in->answers, err);
    if (!status) status = sn_address_limit_new(ALL_ANSWERS_PER_S, ALL_ANSWERS_PER_S, &in->all_answers, err);
    return status;
}

static bool may_answer(sn_introducer *in, const struct sockaddr_storage *from) {
    static const uint8_t all[SN_ADDRESS_PREFIX];
    uint8_t prefix[SN_ADDRESS_PREFIX];
    int64_t now = sn_now_us();
    sn_address_prefix(from, prefix);
    return sn_address_limit_allows(in->answers, prefix, now) && sn_address_limit_allows(in->all_answers, all, now);
}

/* Reads one question and answers it; false: none waits. */
static bool introducer_answer(sn_introducer *in) {
    uint8_t data[DATAGRAM_SIZE + 1];
    struct sockaddr_storage from = {0};
    socklen_t from_len = sizeof from;
    sn_err err;
    ssize_t n = recvfrom(in->serve_fd, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n < 0) return false;
    if (n != DATAGRAM_SIZE || memcmp(data, QUESTION, MAGIC_SIZE) || !may_answer(in, &from)) return true;
    memcpy(data, ANSWER, MAGIC_SIZE); /* the question's nonce stays where it is */
    memcpy(data + MAGIC_SIZE + NONCE_SIZE, in->identity->id, SN_KEY_SIZE);
    memcpy(data + MAGIC_SIZE + NONCE_SIZE + SN_KEY_SIZE, in->identity->curve_key, SN_KEY_SIZE);
    if (sn_sign(in->identity, data, SIGNED_SIZE, data + SIGNED_SIZE, &err)) return true;
    if (sendto(in->serve_fd, data, DATAGRAM_SIZE, 0, (struct sockaddr *)&from, from_len) < 0)
        sn_log_rated(SN_LOG_DEBUG, "introduction not sent", "text=%s", strerror(errno));
    return true;
}

/* -- asking -- */

static void send_question(sn_introducer *in, const char *address, const uint8_t nonce[NONCE_SIZE]) {
    uint8_t data[DATAGRAM_SIZE] = {0};
    struct addrinfo *at = NULL;
    sn_err err;
    memcpy(data, QUESTION, MAGIC_SIZE);
    memcpy(data + MAGIC_SIZE, nonce, NONCE_SIZE);
    if (address_of(address, false, &at, &err)) return;
    if (sendto(in->ask_fd[at->ai_family == AF_INET6], data, sizeof data, 0, at->ai_addr, at->ai_addrlen) < 0)
        sn_log(SN_LOG_DEBUG, "introduction not requested", "address=%s text=%s", address, strerror(errno));
    freeaddrinfo(at);
}

/* The query's address that an answer came from; 0 if it came from none of them. */
static size_t answering_address(const query *q, const struct sockaddr_storage *from, socklen_t len) {
    char host[NI_MAXHOST], port[NI_MAXSERV], text[SN_ADDRESS_MAX + 1];
    if (getnameinfo((const struct sockaddr *)from, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        return 0;
    int n = snprintf(text, sizeof text, from->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    for (size_t i = 0; n > 0 && (size_t)n < sizeof text && i < q->n_numeric; i++)
        if (!strcmp(q->numeric[i], text)) return i;
    return 0;
}

static void introducer_receive(sn_introducer *in, int fd) {
    uint8_t data[DATAGRAM_SIZE + 1];
    struct sockaddr_storage from = {0};
    socklen_t from_len = sizeof from;
    ssize_t n = recvfrom(fd, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    const uint8_t *nonce = data + MAGIC_SIZE, *id = nonce + NONCE_SIZE, *key = id + SN_KEY_SIZE;
    if (n != DATAGRAM_SIZE || memcmp(data, ANSWER, MAGIC_SIZE) || !sn_verify(id, data, SIGNED_SIZE, data + SIGNED_SIZE))
        return;
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_queries; i++) {
        query *q = &in->queries[i];
        if (q->answered || !q->n_numeric || memcmp(q->nonce, nonce, NONCE_SIZE)) continue;
        memcpy(q->key, key, SN_KEY_SIZE);
        size_t answering = answering_address(q, &from, from_len);
        if (answering) memcpy(q->numeric[0], q->numeric[answering], SN_ADDRESS_MAX + 1);
        q->answered = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    if (any) in->on_found(in->ctx);
}

/* Looks up the query's host, for every question again until it is found. True: its addresses are known. */
static bool query_is_found(query *q, int64_t now_us) {
    sn_err err = {0};
    if (q->n_numeric) return true;
    sn_status status = q->lookup ? SN_OK : sn_lookup_start(q->address, &q->lookup, &err);
    if (!status) status = sn_lookup_wait(q->lookup, 0, q->numeric, &q->n_numeric, &err);
    if (status != SN_RETRY) sn_lookup_free(&q->lookup);
    bool failed = status && (status != SN_RETRY || q->tries == EAGER_TRIES);
    if (failed && (!q->told_us || now_us - q->told_us >= TOLD_US)) {
        sn_log(SN_LOG_WARN, "introduction failed", "text=%s", err.text);
        q->told_us = now_us;
    }
    return status == SN_OK;
}

/* Sends the questions that are due; returns in how many milliseconds the next one is. */
static int introducer_send_due(sn_introducer *in) {
    int64_t now = sn_now_us(), next = now + 60 * RETRY_SLOW_US;
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (query *q = in->queries; q < in->queries + in->n_queries; q++) {
        if (q->answered) continue;
        if (now >= q->next_us) {
            q->next_us = now + (++q->tries < EAGER_TRIES ? RETRY_US : RETRY_SLOW_US);
            bool found = query_is_found(q, now);
            if (!found && q->lookup && q->tries < EAGER_TRIES) q->next_us = now + LOOKUP_POLL_US;
            if (found && q->pinned) q->answered = any = true;
            for (size_t i = 0; found && !q->pinned && i < q->n_numeric; i++) send_question(in, q->numeric[i], q->nonce);
        }
        if (!q->answered && q->next_us < next) next = q->next_us;
    }
    pthread_mutex_unlock(&in->lock);
    if (any) in->on_found(in->ctx);
    return (int)((next - now) / 1000) + 1;
}

/* -- the local network */

/* Sends what is due there; returns in how many milliseconds more is, at most wait_ms. */
static int lan_tick(sn_introducer *in, bool wanted, int wait_ms) {
    sn_err err;
    if (!wanted) return wait_ms;
    if (!in->lan && sn_lan_new(in->identity, *in->bound ? in->bound : NULL, &in->lan, &err)) {
        sn_log_rated(SN_LOG_WARN, "introduction failed", "text=%s", err.text);
        return wait_ms < RETRY_SLOW_US / 1000 ? wait_ms : RETRY_SLOW_US / 1000;
    }
    int64_t now = sn_now_us(), due_ms = (sn_lan_tick(in->lan, now, sn_unix_ms()) - now) / 1000 + 1;
    return due_ms < wait_ms ? (int)due_ms : wait_ms;
}

/* Nodes that were found are as if their addresses had been given with their keys. */
static void lan_receive(sn_introducer *in) {
    bool found, any = false;
    query new = {.answered = true, .pinned = true};
    for (int i = 0; i < READS_AT_ONCE && sn_lan_receive(in->lan, sn_unix_ms(), &found, new.numeric[0], new.key); i++) {
        if (!found) continue;
        pthread_mutex_lock(&in->lock);
        if (in->n_queries < QUERIES_MAX) in->queries[in->n_queries++] = new;
        pthread_mutex_unlock(&in->lock);
        any = true;
    }
    if (any) in->on_found(in->ctx);
}

static void *introducer_run(void *arg) {
    sn_introducer *in = arg;
    for (;;) {
        pthread_mutex_lock(&in->lock);
        bool stop = in->stop, wants_lan = in->wants_lan;
        pthread_mutex_unlock(&in->lock);
        if (stop) return NULL;
        int wait_ms = lan_tick(in, wants_lan, introducer_send_due(in));
        struct pollfd fds[] = {{in->wake_fd, POLLIN, 0},
                               {in->ask_fd[0], POLLIN, 0},
                               {in->ask_fd[1], POLLIN, 0},
                               {in->serve_fd, POLLIN, 0},
                               {in->lan ? sn_lan_fd(in->lan) : -1, POLLIN, 0}}; /* poll ignores a descriptor of -1 */
        if (poll(fds, sizeof fds / sizeof *fds, wait_ms) <= 0) continue;
        uint64_t woken;
        if (fds[0].revents && read(in->wake_fd, &woken, sizeof woken) < 0) continue;
        if (fds[1].revents) introducer_receive(in, in->ask_fd[0]);
        if (fds[2].revents) introducer_receive(in, in->ask_fd[1]);
        if (fds[4].revents) lan_receive(in);
        for (int i = 0; fds[3].revents && i < READS_AT_ONCE && introducer_answer(in); i++) {}
    }
}

static void introducer_wake(sn_introducer *in) {
    uint64_t one = 1;
    if (write(in->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: the thread is awake */
}

sn_status sn_introducer_new(const sn_identity *identity, const char *bound, void (*on_found)(void *), void *ctx,
                            sn_introducer **out, sn_err *err) {
    sn_introducer *in = NULL;
    sn_status status = sn_calloc(&in, 1, sizeof *in, err);
    if (status) return status;
    in->identity = identity;
    snprintf(in->bound, sizeof in->bound, "%s", bound ? bound : "");
    in->on_found = on_found;
    in->ctx = ctx;
    pthread_mutex_init(&in->lock, NULL);
    in->serve_fd = -1;
    in->ask_fd[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    in->ask_fd[1] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* -1 on a machine without IPv6 */
    in->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (in->ask_fd[0] < 0 || in->wake_fd < 0)
        status = sn_fail(err, SN_STOP, "a UDP socket cannot be opened: %s", strerror(errno));
    if (!status && bound) status = introducer_listen(in, bound, err);
    if (!status && !sn_thread_start(&in->thread, introducer_run, in, NULL))
        status = sn_fail(err, SN_STOP, "the thread for introductions cannot be started");
    if (status)
        sn_introducer_free(&in);
    else
        in->started = true;
    *out = in;
    return status;
}

void sn_introducer_free(sn_introducer **introducer) {
    sn_introducer *in = *introducer;
    if (!in) return;
    if (in->started) {
        pthread_mutex_lock(&in->lock);
        in->stop = true;
        pthread_mutex_unlock(&in->lock);
        introducer_wake(in);
        pthread_join(in->thread, NULL);
    }
    for (size_t i = 0; i < in->n_queries; i++) sn_lookup_free(&in->queries[i].lookup);
    sn_lan_free(&in->lan);
    sn_address_limit_free(&in->answers);
    sn_address_limit_free(&in->all_answers);
    const int fds[] = {in->serve_fd, in->ask_fd[0], in->ask_fd[1], in->wake_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    pthread_mutex_destroy(&in->lock);
    free(in);
    *introducer = NULL;
}

sn_status sn_introducer_ask(sn_introducer *in, const char *address, sn_err *err) {
    query new = {0};
    sn_status status = sn_address_parse(address, new.address, new.key, &new.pinned, err);
    if (status) return status;
    if (!strcmp(new.address, SN_LAN)) {
        pthread_mutex_lock(&in->lock);
        in->wants_lan = true;
        pthread_mutex_unlock(&in->lock);
        introducer_wake(in);
        return SN_OK;
    }
    bool relayed = strlen(new.address) > strlen(SN_RELAYED) &&
                   !strcmp(new.address + strlen(new.address) - strlen(SN_RELAYED), SN_RELAYED);
    if (relayed && !(new.pinned &&sn_address_is_numeric(new.address)))
        return sn_fail(err, SN_REFUSED,
                       "%s: a node behind a relay is joined by numeric address and key, as in "
                       "192.0.2.1:31330/relay#KEY; or join the relay, HOST:PORT",
                       new.address);
    new.answered = new.pinned &&sn_address_is_numeric(new.address);
    if (new.answered) memcpy(new.numeric[0], new.address, sizeof new.address);
    sn_random(new.nonce, sizeof new.nonce);
    pthread_mutex_lock(&in->lock);
    if (in->n_queries == QUERIES_MAX)
        status = sn_fail(err, SN_REFUSED, "more than %d nodes to join: give fewer", QUERIES_MAX);
    else
        in->queries[in->n_queries++] = new;
    pthread_mutex_unlock(&in->lock);
    if (!status && new.answered) in->on_found(in->ctx); /* no question is needed */
    introducer_wake(in);
    return status;
}

void sn_introducer_ask_again(sn_introducer *in, const char *address) {
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (query *q = in->queries; q < in->queries + in->n_queries; q++) {
        if (!q->taken || q->pinned || strcmp(q->numeric[0], address) != 0) continue;
        q->answered = q->taken = false;
        q->tries = 0;
        q->next_us = 0;
        sn_random(q->nonce, sizeof q->nonce);
        any = true;
    }
    pthread_mutex_unlock(&in->lock);
    if (any) introducer_wake(in);
}

bool sn_introducer_next(sn_introducer *in, char address[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE]) {
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_queries && !any; i++) {
        query *q = &in->queries[i];
        if (!q->answered || q->taken) continue;
        memcpy(address, q->numeric[0], SN_ADDRESS_MAX + 1);
        memcpy(key, q->key, SN_KEY_SIZE);
        q->taken = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    return any;
}
