#include "net/introduce.h"

#include "base/clock.h"
#include "base/log.h"

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
    ASKED_MAX = 64,
    SOON_US = 500000,
    LATER_US = 5000000,
    EAGER_TRIES = 20,
    MAGIC_SIZE = 8,
    NONCE_SIZE = 8,
    SIGNED_SIZE = MAGIC_SIZE + NONCE_SIZE + 2 * SN_KEY_SIZE, /* magic, nonce, id, CURVE key */
    DATAGRAM_SIZE = SIGNED_SIZE + SN_SIGNATURE_SIZE,         /* of question (padded) and answer alike */
};
static const char QUESTION[MAGIC_SIZE] = "SWARM?1", ANSWER[MAGIC_SIZE] = "SWARM!1";

typedef struct asked {
    char address[SN_ADDRESS_MAX + 1];
    uint8_t nonce[NONCE_SIZE], key[SN_KEY_SIZE];
    bool answered, taken;
    int tries;
    int64_t next_us;
} asked;

struct sn_introducer {
    const sn_identity *identity;
    int serve_fd, ask_fd[2], wake_fd; /* ask_fd: IPv4, IPv6 */
    void (*found)(void *);
    void *ctx;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    bool stop;
    asked asked[ASKED_MAX];
    size_t n_asked;
};

static sn_status split(const char *plain, char host[SN_ADDRESS_MAX + 1], char port[8], sn_err *err) {
    const char *colon = strrchr(plain, ':');
    if (strncmp(plain, "tcp://", 6) || !colon || colon < plain + 7 || !colon[1] || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(plain) > SN_ADDRESS_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' is no address: write tcp://HOST:PORT, or tcp://HOST:PORT#KEY", plain);
    size_t n = (size_t)(colon - plain - 6);
    const char *from = plain + 6;
    if (n > 2 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2; /* [::1] */
    memcpy(host, from, n);
    host[n] = 0;
    snprintf(port, 8, "%s", colon + 1);
    return SN_OK;
}

sn_status sn_address_parse(const char *text, char plain[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE], bool *pinned,
                           sn_err *err) {
    char host[SN_ADDRESS_MAX + 1], port[8];
    const char *hash = strchr(text, '#');
    size_t n = hash ? (size_t)(hash - text) : strlen(text);
    if (n > SN_ADDRESS_MAX) return sn_fail(err, SN_REFUSED, "an address has at most %d characters", SN_ADDRESS_MAX);
    memcpy(plain, text, n);
    plain[n] = 0;
    *pinned = hash;
    return hash ? sn_unhex(hash + 1, key, SN_KEY_SIZE, err) : split(plain, host, port, err);
}

static sn_status resolve(const char *plain, bool passive, struct addrinfo **out, sn_err *err) {
    char host[SN_ADDRESS_MAX + 1], port[8];
    sn_status status = split(plain, host, port, err);
    if (status) return status;
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = passive ? AI_PASSIVE : 0};
    int rc = getaddrinfo(strcmp(host, "*") ? host : NULL, port, &hints, out);
    if (rc) return sn_fail(err, SN_REFUSED, "the host of %s cannot be found: %s", plain, gai_strerror(rc));
    return SN_OK;
}

/* -- serving --------------------------------------------------------------------------------------------------------- */

static sn_status listen_at(sn_introducer *in, const char *bound, sn_err *err) {
    struct addrinfo *at = NULL;
    sn_status status = resolve(bound, true, &at, err);
    if (status) return status;
    in->serve_fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (in->serve_fd < 0 || bind(in->serve_fd, at->ai_addr, at->ai_addrlen))
        status = sn_fail(err, SN_REFUSED, "UDP port of %s cannot be used (%s): choose another --listen address", bound,
                         strerror(errno));
    freeaddrinfo(at);
    return status;
}

static void serve(sn_introducer *in) {
    uint8_t data[DATAGRAM_SIZE + 1];
    struct sockaddr_storage from;
    socklen_t from_len = sizeof from;
    sn_err err;
    ssize_t n = recvfrom(in->serve_fd, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n != DATAGRAM_SIZE || memcmp(data, QUESTION, MAGIC_SIZE)) return;
    memcpy(data, ANSWER, MAGIC_SIZE); /* the nonce behind it stays */
    memcpy(data + MAGIC_SIZE + NONCE_SIZE, in->identity->id, SN_KEY_SIZE);
    memcpy(data + MAGIC_SIZE + NONCE_SIZE + SN_KEY_SIZE, in->identity->curve_key, SN_KEY_SIZE);
    if (sn_sign(in->identity, data, SIGNED_SIZE, data + SIGNED_SIZE, &err)) return;
    if (sendto(in->serve_fd, data, DATAGRAM_SIZE, 0, (struct sockaddr *)&from, from_len) < 0)
        sn_log(SN_LOG_DEBUG, "introduction not sent", "text=%s", strerror(errno));
}

/* -- asking ---------------------------------------------------------------------------------------------------------- */

static void ask(sn_introducer *in, const char *address, const uint8_t nonce[NONCE_SIZE]) {
    uint8_t data[DATAGRAM_SIZE] = {0};
    struct addrinfo *at = NULL;
    sn_err err;
    memcpy(data, QUESTION, MAGIC_SIZE);
    memcpy(data + MAGIC_SIZE, nonce, NONCE_SIZE);
    if (resolve(address, false, &at, &err)) {
        sn_log(SN_LOG_WARN, "no introduction", "text=%s", err.text);
        return;
    }
    for (struct addrinfo *a = at; a; a = a->ai_next)
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            if (sendto(in->ask_fd[a->ai_family == AF_INET6], data, sizeof data, 0, a->ai_addr, a->ai_addrlen) < 0)
                sn_log(SN_LOG_DEBUG, "introduction not asked", "address=%s text=%s", address, strerror(errno));
    freeaddrinfo(at);
}

static void hear(sn_introducer *in, int fd) {
    uint8_t data[DATAGRAM_SIZE + 1];
    ssize_t n = recv(fd, data, sizeof data, 0);
    const uint8_t *nonce = data + MAGIC_SIZE, *id = nonce + NONCE_SIZE, *key = id + SN_KEY_SIZE;
    if (n != DATAGRAM_SIZE || memcmp(data, ANSWER, MAGIC_SIZE) || !sn_verify(id, data, SIGNED_SIZE, data + SIGNED_SIZE))
        return;
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_asked; i++) {
        asked *a = &in->asked[i];
        if (a->answered || memcmp(a->nonce, nonce, NONCE_SIZE)) continue;
        memcpy(a->key, key, SN_KEY_SIZE);
        a->answered = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    if (any) in->found(in->ctx);
}

/* Asks where it is time, and says in how many milliseconds it is time again. */
static int ask_due(sn_introducer *in) {
    int64_t now = sn_now_us(), next = now + 60 * LATER_US;
    for (size_t i = 0;; i++) {
        char address[SN_ADDRESS_MAX + 1] = "";
        uint8_t nonce[NONCE_SIZE] = {0};
        pthread_mutex_lock(&in->lock);
        asked *a = i < in->n_asked ? &in->asked[i] : NULL;
        if (a && !a->answered && now >= a->next_us) {
            memcpy(address, a->address, sizeof address);
            memcpy(nonce, a->nonce, sizeof nonce);
            a->next_us = now + (++a->tries < EAGER_TRIES ? SOON_US : LATER_US);
        }
        if (a && !a->answered && a->next_us < next) next = a->next_us;
        pthread_mutex_unlock(&in->lock);
        if (!a) break;
        if (*address) ask(in, address, nonce); /* without the lock: finding a host can take its time */
    }
    return (int)((next - now) / 1000) + 1;
}

static void *run(void *arg) {
    sn_introducer *in = arg;
    for (;;) {
        pthread_mutex_lock(&in->lock);
        bool stop = in->stop;
        pthread_mutex_unlock(&in->lock);
        if (stop) return NULL;
        int wait_ms = ask_due(in);
        struct pollfd fds[] = {{in->wake_fd, POLLIN, 0}, {in->ask_fd[0], POLLIN, 0}, {in->ask_fd[1], POLLIN, 0},
                               {in->serve_fd, POLLIN, 0}}; /* poll passes over a descriptor of -1 */
        if (poll(fds, 4, wait_ms) <= 0) continue;
        uint64_t woken;
        if (fds[0].revents && read(in->wake_fd, &woken, sizeof woken) < 0) continue;
        if (fds[1].revents) hear(in, in->ask_fd[0]);
        if (fds[2].revents) hear(in, in->ask_fd[1]);
        if (fds[3].revents) serve(in);
    }
}

static void wake(sn_introducer *in) {
    uint64_t one = 1;
    if (write(in->wake_fd, &one, sizeof one) < 0) return; /* it is awake already */
}

sn_status sn_introducer_new(const sn_identity *identity, const char *bound, void (*found)(void *), void *ctx,
                            sn_introducer **out, sn_err *err) {
    sn_introducer *in = NULL;
    sn_status status = sn_calloc(&in, 1, sizeof *in, err);
    if (status) return status;
    in->identity = identity;
    in->found = found;
    in->ctx = ctx;
    pthread_mutex_init(&in->lock, NULL);
    in->serve_fd = -1;
    in->ask_fd[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    in->ask_fd[1] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* -1 where there is no IPv6 */
    in->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (in->ask_fd[0] < 0 || in->wake_fd < 0) status = sn_fail(err, SN_STOP, "no socket is to be had: %s", strerror(errno));
    if (!status && bound) status = listen_at(in, bound, err);
    if (!status && pthread_create(&in->thread, NULL, run, in)) status = sn_fail(err, SN_STOP, "no thread is to be had");
    if (status) sn_introducer_free(&in);
    else in->started = true;
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
        wake(in);
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
    asked new = {0};
    sn_status status = sn_address_parse(address, new.address, new.key, &new.answered, err);
    if (status) return status;
    sn_random(new.nonce, sizeof new.nonce);
    pthread_mutex_lock(&in->lock);
    if (in->n_asked == ASKED_MAX) status = sn_fail(err, SN_REFUSED, "at most %d nodes can be joined", ASKED_MAX);
    else in->asked[in->n_asked++] = new;
    pthread_mutex_unlock(&in->lock);
    if (!status && new.answered) in->found(in->ctx); /* its key is known: nobody has to be asked */
    wake(in);
    return status;
}

bool sn_introducer_take(sn_introducer *in, char address[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE]) {
    bool any = false;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < in->n_asked && !any; i++) {
        asked *a = &in->asked[i];
        if (!a->answered || a->taken) continue;
        memcpy(address, a->address, sizeof a->address);
        memcpy(key, a->key, SN_KEY_SIZE);
        a->taken = any = true;
    }
    pthread_mutex_unlock(&in->lock);
    return any;
}
