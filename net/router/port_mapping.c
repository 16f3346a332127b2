/* A port that the router opens (port_mapping.h). The thread asks by each way in turn (router_private.h), which takes
 * some seconds where no router speaks any; by what has answered, it is asked again for each renewal. */
#include "net/router/port_mapping.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/router/router_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RETRY_S = 300 }; /* after routers that open nothing */

struct sn_port_mapping {
    void (*wake)(void *);
    void *ctx;
    const sn_router_way *const *ways;
    size_t n_ways;
    pthread_t thread;
    bool started;
    /* Of the thread. */
    const sn_router_way *by; /* that opened the port; NULL: none */
    sn_router_port port;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    bool stop;
    char own[SN_ADDRESS_MAX + 1];     /* this machine's address */
    char address[SN_ADDRESS_MAX + 1]; /* empty: none */
};

static void mapping_set(sn_port_mapping *m) {
    char address[SN_ADDRESS_MAX + 1] = "";
    if (m->by) {
        int len = snprintf(address, sizeof address, "%s:%d", m->port.host, m->port.outside);
        if (len < 0 || (size_t)len >= sizeof address) *address = 0;
    }
    pthread_mutex_lock(&m->lock);
    bool changed = strcmp(address, m->address) != 0;
    snprintf(m->address, sizeof m->address, "%s", address);
    pthread_mutex_unlock(&m->lock);
    if (!changed) return;
    sn_log(SN_LOG_INFO, "router", "address=%s by=%s", *address ? address : "-", m->by ? m->by->name : "-");
    m->wake(m->ctx);
}

static void mapping_close(sn_port_mapping *m) {
    if (m->by) m->by->close(&m->port);
    m->by = NULL;
    sn_router_port none = {.inside = m->port.inside};
    memcpy(none.own, m->port.own, sizeof none.own);
    m->port = none;
}

/* Whether this machine still has the address for which the port was asked. */
static bool mapping_is_here(sn_port_mapping *m) {
    pthread_mutex_lock(&m->lock);
    bool here = !strcmp(m->port.own, m->own);
    pthread_mutex_unlock(&m->lock);
    return here;
}

static void mapping_renew(sn_port_mapping *m) {
    if (!mapping_is_here(m)) mapping_close(m);
    pthread_mutex_lock(&m->lock);
    memcpy(m->port.own, m->own, sizeof m->own);
    pthread_mutex_unlock(&m->lock);
    if (m->by && !m->by->open(&m->port)) mapping_close(m);
    bool six = *m->port.own == '[';
    for (size_t i = 0; i < m->n_ways && !m->by; i++)
        if ((six ? m->ways[i]->six : m->ways[i]->four) && m->ways[i]->open(&m->port)) m->by = m->ways[i];
    mapping_set(m);
}

/* Until the port is asked for again: a router that keeps it for less than was asked hears that in time, too. */
static int mapping_pause_s(const sn_port_mapping *m) {
    if (!m->by) return RETRY_S;
    int third = m->port.seconds / 3;
    if (!m->port.seconds || third > SN_ROUTER_RENEW_S) return SN_ROUTER_RENEW_S;
    return third ? third : 1;
}

/* False: the mapping ends. */
static bool mapping_wait(sn_port_mapping *m, int seconds) {
    int64_t until_us = sn_now_us() + (int64_t)seconds * 1000000;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    pthread_mutex_lock(&m->lock);
    for (int waited = 0; !m->stop && waited != ETIMEDOUT && !strcmp(m->port.own, m->own);)
        waited = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    bool go_on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

static void *mapping_run(void *arg) {
    sn_port_mapping *m = arg;
    do {
        mapping_renew(m);
    } while (mapping_wait(m, mapping_pause_s(m)));
    mapping_close(m);
    return NULL;
}

sn_status sn_port_mapping_new_by(const sn_router_way *const *ways, size_t n, int port, const char *own,
                                 void (*wake)(void *), void *ctx, sn_port_mapping **out, sn_err *err) {
    sn_port_mapping *m = NULL;
    pthread_condattr_t monotonic;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->ways = ways;
    m->n_ways = n;
    m->port.inside = port;
    snprintf(m->own, sizeof m->own, "%s", own);
    m->wake = wake;
    m->ctx = ctx;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    m->started = sn_thread_start(&m->thread, mapping_run, m, NULL);
    if (m->started)
        *out = m;
    else
        sn_port_mapping_free(&m);
    return *out ? SN_OK : sn_fail(err, SN_STOP, "the thread that asks the router cannot be started");
}

sn_status sn_port_mapping_new(int port, const char *own, void (*wake)(void *), void *ctx, sn_port_mapping **out,
                              sn_err *err) {
    static const sn_router_way *const ways[] = {&sn_router_pcp, &sn_router_natpmp, &sn_router_upnp};
    return sn_port_mapping_new_by(ways, sizeof ways / sizeof *ways, port, own, wake, ctx, out, err);
}

void sn_port_mapping_free(sn_port_mapping **mapping) {
    sn_port_mapping *m = *mapping;
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->started) pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *mapping = NULL;
}

void sn_port_mapping_move(sn_port_mapping *m, const char *own) {
    pthread_mutex_lock(&m->lock);
    snprintf(m->own, sizeof m->own, "%s", own);
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

bool sn_port_mapping_read(sn_port_mapping *m, char address[SN_ADDRESS_MAX + 1]) {
    pthread_mutex_lock(&m->lock);
    memcpy(address, m->address, sizeof m->address);
    pthread_mutex_unlock(&m->lock);
    return *address;
}
