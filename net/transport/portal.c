/* The portal's functions for other threads, creation and release (portal.h). What they want of the thread
 * (portal_thread.c) waits in a queue. */
#include "net/transport/portal_private.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "net/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    FIRST_US = 5000000, /* for a newcomer to say what it wants */
    DIAL_US = 5000000,  /* for a connection that this portal makes */
    CALLS_BURST = 64,   /* of one network address at once, */
    CALLS_PER_S = 16,   /* then in a second */
};

/* Gives the passage to the thread, which then owns its descriptor. */
static sn_status portal_push(sn_portal *g, const sn_passage *p, sn_err *err) {
    pthread_mutex_lock(&g->lock);
    bool dials = p->stage == SN_PASSAGE_DIALS;
    bool room = g->n_queue < SN_PORTAL_QUEUE_MAX && !g->stop && (!dials || g->n_dials < SN_PORTAL_DIALS_MAX);
    if (room) {
        g->queue[g->n_queue++] = *p;
        g->n_dials += dials;
    }
    pthread_mutex_unlock(&g->lock);
    sn_portal_wake_thread(g);
    if (room) return SN_OK;
    if (p->fd >= 0) close(p->fd);
    return sn_fail(err, SN_RETRY, "this node makes too many connections at the moment: ask again later");
}

void sn_portal_take(sn_portal *g, int fd, const struct sockaddr_storage *from) {
    sn_passage p = {.stage = SN_PASSAGE_FIRST, .fd = fd, .want = 1, .until_us = sn_now_us() + FIRST_US, .other = *from};
    int one = 1;
    sn_err err;
    sn_address_prefix(from, p.prefix);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (portal_push(g, &p, &err)) sn_log_rated(SN_LOG_INFO, "connection refused", "text=%s", err.text);
}

/* Begins to connect to a numeric address; the token line follows when the connection is made. */
static sn_status portal_dial(sn_portal *g, const char *address, const char magic[SN_PORTAL_MAGIC_SIZE],
                             const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    sn_passage p = {.stage = SN_PASSAGE_DIALS, .want = SN_TOKEN_LINE, .until_us = sn_now_us() + DIAL_US};
    socklen_t len;
    int one = 1;
    sn_status status = sn_address_read(address, &p.other, &len, err);
    if (status) return status;
    p.fd = socket(p.other.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(p.head, magic, SN_PORTAL_MAGIC_SIZE);
    memcpy(p.head + SN_PORTAL_MAGIC_SIZE, token, SN_TOKEN_SIZE);
    if (p.fd < 0 || (connect(p.fd, (const struct sockaddr *)&p.other, len) && errno != EINPROGRESS)) {
        status = sn_fail(err, SN_RETRY, "%s cannot be dialled: %s", address, strerror(errno));
        if (p.fd >= 0) close(p.fd);
        return status;
    }
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return portal_push(g, &p, err);
}

sn_status sn_portal_dial_back(sn_portal *g, const char *address, const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    return portal_dial(g, address, SN_DIAL_BACK_MAGIC, token, err);
}

sn_status sn_portal_answer(sn_portal *g, const char *relay, const uint8_t token[SN_TOKEN_SIZE], sn_err *err) {
    return portal_dial(g, relay, SN_ANSWER_MAGIC, token, err);
}

void sn_portal_expect(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    pthread_mutex_lock(&g->lock);
    size_t at = g->next_expected++ % SN_PORTAL_EXPECTED_MAX;
    memcpy(g->expected[at].token, token, SN_TOKEN_SIZE);
    g->expected[at].reached = false;
    pthread_mutex_unlock(&g->lock);
}

bool sn_portal_was_reached(sn_portal *g, const uint8_t token[SN_TOKEN_SIZE]) {
    bool reached = false;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < SN_PORTAL_EXPECTED_MAX; i++)
        reached |= g->expected[i].reached && !memcmp(g->expected[i].token, token, SN_TOKEN_SIZE);
    pthread_mutex_unlock(&g->lock);
    return reached;
}

void sn_portal_set_rate(sn_portal *g, int64_t bytes_per_s) {
    pthread_mutex_lock(&g->lock);
    g->bytes_per_s = bytes_per_s;
    pthread_mutex_unlock(&g->lock);
    sn_portal_wake_thread(g);
}

sn_status sn_portal_register(sn_portal *g, const uint8_t key[SN_KEY_SIZE], sn_err *err) {
    sn_status status = SN_OK;
    pthread_mutex_lock(&g->lock);
    if (!g->bytes_per_s)
        status = sn_fail(err, SN_REFUSED, "this node relays nothing: ask another one");
    else if (!sn_portal_is_registered(g, key) && g->n_registered == SN_RELAYED_NODES_MAX)
        status = sn_fail(err, SN_RETRY, "this node relays for %d nodes already: ask another one", SN_RELAYED_NODES_MAX);
    else if (!sn_portal_is_registered(g, key))
        memcpy(g->registered[g->n_registered++], key, SN_KEY_SIZE);
    pthread_mutex_unlock(&g->lock);
    return status;
}

void sn_portal_renew(sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    pthread_mutex_lock(&g->lock);
    if (g->n_renewed < SN_RELAYED_NODES_MAX) memcpy(g->renewed[g->n_renewed++], key, SN_KEY_SIZE);
    pthread_mutex_unlock(&g->lock);
    sn_portal_wake_thread(g);
}

void sn_portal_unregister(sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n_registered; i++)
        if (!memcmp(g->registered[i], key, SN_KEY_SIZE))
            memmove(g->registered[i], g->registered[--g->n_registered], SN_KEY_SIZE);
    pthread_mutex_unlock(&g->lock);
    sn_portal_wake_thread(g);
}

bool sn_portal_serves(sn_portal *g, const uint8_t key[SN_KEY_SIZE]) {
    pthread_mutex_lock(&g->lock);
    bool serves = sn_portal_is_registered(g, key);
    pthread_mutex_unlock(&g->lock);
    return serves;
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
    g->capacity = connections_max;
    pthread_mutex_init(&g->lock, NULL);
    for (size_t i = 0; i < SN_PORTAL_EXPECTED_MAX; i++) sn_random(g->expected[i].token, SN_TOKEN_SIZE);
    g->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (g->wake_fd < 0) status = sn_fail(err, SN_STOP, "no descriptor is left to listen with: %s", strerror(errno));
    if (!status) status = sn_calloc(&g->passages, g->capacity, sizeof *g->passages, err);
    if (!status) status = sn_calloc(&g->polled, 2 * g->capacity + 1, sizeof *g->polled, err);
    if (!status) status = sn_address_limit_new(CALLS_BURST, CALLS_PER_S, &g->calls_of_address, err);
    if (!status && !sn_thread_start(&g->thread, sn_portal_run, g, NULL))
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
    sn_portal_wake_thread(g);
    pthread_join(g->thread, NULL);
    g->started = false;
}

void sn_portal_free(sn_portal **portal) {
    sn_portal *g = *portal;
    if (!g) return;
    sn_portal_stop(g);
    for (size_t i = 0; i < g->n; i++) sn_passage_end(&g->passages[i]);
    for (size_t i = 0; i < g->n_queue; i++) sn_passage_end(&g->queue[i]);
    if (g->wake_fd >= 0) close(g->wake_fd);
    sn_address_limit_free(&g->calls_of_address);
    pthread_mutex_destroy(&g->lock);
    free(g->passages);
    free(g->polled);
    free(g);
    *portal = NULL;
}
