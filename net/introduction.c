/* Introductions over UDP (net/introduction.h). A datagram is 8 bytes of magic, an 8-byte nonce, and in an answer the
 * node's id, its CURVE key and a signature over all of them; a question is padded with zeros to the same length.
 *
 * One thread polls four descriptors: an eventfd that wakes it, one socket for each IP version to ask from, and in a
 * node the socket that answers. Each address that the program joins is a query with a random nonce; the thread sends it
 * again until an answer with this nonce and a valid signature arrives. Queries are never removed: a program joins few
 * addresses. The lock guards the list of queries; host names are resolved without it, because that can take seconds. */
#include "net/introduction.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    QUERIES_MAX = 64,
    RETRY_US = 500000,       /* between the first EAGER_TRIES questions of a query */
    RETRY_SLOW_US = 5000000, /* between the later ones */
    EAGER_TRIES = 20,
    MAGIC_SIZE = 8,
    NONCE_SIZE = 8,
    SIGNED_SIZE = MAGIC_SIZE + NONCE_SIZE + 2 * SN_KEY_SIZE, /* magic, nonce, id, CURVE key */
    DATAGRAM_SIZE = SIGNED_SIZE + SN_SIGNATURE_SIZE,         /* of a question (padded) and of an answer */
};
static const char QUESTION[MAGIC_SIZE] = "SWARM?1", ANSWER[MAGIC_SIZE] = "SWARM!1";

typedef struct query {
    char address[SN_ADDRESS_MAX + 1];
    uint8_t nonce[NONCE_SIZE], key[SN_KEY_SIZE];
    bool answered, taken; /* answered: `key` is known; taken: sn_introducer_next has handed it out */
    int tries;
    int64_t next_us; /* when the next question is due */
} query;

struct sn_introducer {
    const sn_identity *identity;
    int serve_fd, ask_fd[2], wake_fd; /* serve_fd: -1 in a program that only asks; ask_fd: IPv4, IPv6 */
    void (*on_found)(void *);
    void *ctx;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the members below */
    bool stop;
    query queries[QUERIES_MAX];
    size_t n_queries;
};

/* The UDP addresses of HOST:PORT. to_listen: of an address at which a transport listens. */
static sn_status address_resolve(const char *address, bool to_listen, struct addrinfo **out, sn_err *err) {
    sn_host_port at;
    char port[8];
    sn_status status = sn_parse_host_port(address, to_listen ? SN_HOST_PORT_LISTEN : SN_HOST_PORT_DIAL, &at, err);
    if (status) return status;
    snprintf(port, sizeof port, "%d", at.port);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    int rc = getaddrinfo(strcmp(at.host, "*") ? at.host : NULL, port, &hints, out);
    if (rc) return sn_fail(err, SN_REFUSED, "the host of %s cannot be found: %s", address, gai_strerror(rc));
    return SN_OK;
}

/* -- answering -- */

static sn_status introducer_listen(sn_introducer *in, const char *bound, sn_err *err) {
    struct addrinfo *at = NULL;
    sn_status status = address_resolve(bound, true, &at, err);
    if (status) return status;
    in->serve_fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (in->serve_fd < 0 || bind(in->serve_fd, at->ai_addr, at->ai_addrlen))
        status = sn_fail(err, SN_REFUSED, "the UDP port of %s cannot be used (%s): choose another --listen address",
                         bound, strerror(errno));
    freeaddrinfo(at);
    return status;
}

static void introducer_answer(sn_introducer *in) {
    uint8_t data[DATAGRAM_SIZE + 1];
    struct sockaddr_storage from;
    socklen_t from_len = sizeof from;
    sn_err err;
    ssize_t n = recvfrom(in->serve_fd, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n != DATAGRAM_SIZE || memcmp(data, QUESTION, MAGIC_SIZE)) return;
    memcpy(data, ANSWER, MAGIC_SIZE); /* the question's nonce stays where it is */
    memcpy(data + MAGIC_SIZE + NONCE_SIZE, in->identity->id, SN_KEY_SIZE);
    memcpy(data + MAGIC_SIZE + NONCE_SIZE + SN_KEY_SIZE, in->identity->curve_key, SN_KEY_SIZE);
    if (sn_sign(in->identity, data, SIGNED_SIZE, data + SIGNED_SIZE, &err)) return;
    if (sendto(in->serve_fd, data, DATAGRAM_SIZE, 0, (struct sockaddr *)&from, from_len) < 0)
        sn_log(SN_LOG_DEBUG, "introduction not sent", "text=%s", strerror(errno));
}

/* -- asking -- */

static void introducer_send_query(sn_introducer *in, const char *address, const uint8_t nonce[NONCE_SIZE]) {
    uint8_t data[DATAGRAM_SIZE] = {0};
    struct addrinfo *at = NULL;
    sn_err err;
    memcpy(data, QUESTION, MAGIC_SIZE);
    memcpy(data + MAGIC_SIZE, nonce, NONCE_SIZE);
    if (address_resolve(address, false, &at, &err)) {
        sn_log(SN_LOG_WARN, "introduction failed", "text=%s", err.text);
        return;
    }
    for (struct addrinfo *a = at; a; a = a->ai_next)
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            if (sendto(in->ask_fd[a->ai_family == AF_INET6], data, sizeof data, 0, a->ai_addr, a->ai_addrlen) < 0)
                sn_log(SN_LOG_DEBUG, "introduction not requested", "address=%s text=%s", address, strerror(errno));
    freeaddrinfo(at);
}

static void introducer_receive(sn_introducer *in, int fd) {
    uint8_t data[DATAGRAM_SIZE + 1];
    ssize_t n = recv(fd, data, sizeof data, 0);
    const uint8_t *nonce = data + MAGIC_SIZE, *id = nonce + NONCE_SIZE, *key = id + SN_KEY_SIZE;
    if (n != DATAGRAM_SIZE || memcmp(data, ANSWER, MAGIC_SIZE) || !sn_verify(id, data, SIGNED_SIZE, data + SIGNED_SIZE))
        return;
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_queries; i++) {
        query *q = &in->queries[i];
        if (q->answered || memcmp(q->nonce, nonce, NONCE_SIZE)) continue;
        memcpy(q->key, key, SN_KEY_SIZE);
        q->answered = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    if (any) in->on_found(in->ctx);
}

/* Sends the questions that are due; returns in how many milliseconds the next one is. */
static int introducer_send_due(sn_introducer *in) {
    int64_t now = sn_now_us(), next = now + 60 * RETRY_SLOW_US;
    for (size_t i = 0;; i++) {
        char address[SN_ADDRESS_MAX + 1] = "";
        uint8_t nonce[NONCE_SIZE] = {0};
        pthread_mutex_lock(&in->lock);
        query *q = i < in->n_queries ? &in->queries[i] : NULL;
        if (q && !q->answered && now >= q->next_us) {
            memcpy(address, q->address, sizeof address);
            memcpy(nonce, q->nonce, sizeof nonce);
            q->next_us = now + (++q->tries < EAGER_TRIES ? RETRY_US : RETRY_SLOW_US);
        }
        if (q && !q->answered && q->next_us < next) next = q->next_us;
        pthread_mutex_unlock(&in->lock);
        if (!q) break;
        if (*address)
            introducer_send_query(in, address, nonce); /* without the lock: resolving a name can take seconds */
    }
    return (int)((next - now) / 1000) + 1;
}

static void *introducer_run(void *arg) {
    sn_introducer *in = arg;
    for (;;) {
        pthread_mutex_lock(&in->lock);
        bool stop = in->stop;
        pthread_mutex_unlock(&in->lock);
        if (stop) return NULL;
        int wait_ms = introducer_send_due(in);
        struct pollfd fds[] = {{in->wake_fd, POLLIN, 0},
                               {in->ask_fd[0], POLLIN, 0},
                               {in->ask_fd[1], POLLIN, 0},
                               {in->serve_fd, POLLIN, 0}}; /* poll ignores a descriptor of -1 */
        if (poll(fds, 4, wait_ms) <= 0) continue;
        uint64_t woken;
        if (fds[0].revents && read(in->wake_fd, &woken, sizeof woken) < 0) continue;
        if (fds[1].revents) introducer_receive(in, in->ask_fd[0]);
        if (fds[2].revents) introducer_receive(in, in->ask_fd[1]);
        if (fds[3].revents) introducer_answer(in);
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
    if (!status && pthread_create(&in->thread, NULL, introducer_run, in))
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
    const int fds[] = {in->serve_fd, in->ask_fd[0], in->ask_fd[1], in->wake_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    pthread_mutex_destroy(&in->lock);
    free(in);
    *introducer = NULL;
}

sn_status sn_introducer_ask(sn_introducer *in, const char *address, sn_err *err) {
    query new = {0};
    sn_status status = sn_address_parse(address, new.address, new.key, &new.answered, err);
    if (status) return status;
    sn_random(new.nonce, sizeof new.nonce);
    pthread_mutex_lock(&in->lock);
    if (in->n_queries == QUERIES_MAX)
        status = sn_fail(err, SN_REFUSED, "more than %d nodes to join: give fewer", QUERIES_MAX);
    else
        in->queries[in->n_queries++] = new;
    pthread_mutex_unlock(&in->lock);
    if (!status && new.answered) in->on_found(in->ctx); /* the key is pinned: no question is needed */
    introducer_wake(in);
    return status;
}

bool sn_introducer_next(sn_introducer *in, char address[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE]) {
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_queries && !any; i++) {
        query *q = &in->queries[i];
        if (!q->answered || q->taken) continue;
        memcpy(address, q->address, sizeof q->address);
        memcpy(key, q->key, SN_KEY_SIZE);
        q->taken = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    return any;
}
