#include "gateway/http/door.h"

#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { LOOK_MS = 200, STACK_BYTES = 128 << 10 };

struct sn_guest {
    sn_guest *next, **at; /* in the list; *at is this guest */
    int fd;
    int64_t until_us, crowded_until_us; /* INT64_MAX: any time */
};

struct sn_door {
    pthread_mutex_t lock;
    pthread_cond_t ends;
    pthread_t watcher;
    sn_guest *first;
    size_t n, places;
    bool watched, ending;
};

/* A socket that is shut down stays open until its guest has left, so its number stays its own. */
static void shut_late_ones(sn_door *door) {
    const int64_t now = sn_now_us();
    const bool crowded = door->n > door->places / 4 * 3;
    for (sn_guest *g = door->first; g; g = g->next) {
        if (now < (crowded ? g->crowded_until_us : g->until_us)) continue;
        g->until_us = g->crowded_until_us = INT64_MAX;
        (void)shutdown(g->fd, SHUT_RDWR);
        sn_log_rated(SN_LOG_INFO, "connection too slow", "crowded=%d", crowded);
    }
}

static void *watch(void *ctx) {
    sn_door *door = ctx;
    pthread_mutex_lock(&door->lock);
    while (!door->ending) {
        const int64_t until_us = sn_now_us() + LOOK_MS * 1000;
        const struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
        (void)pthread_cond_timedwait(&door->ends, &door->lock, &until);
        shut_late_ones(door);
    }
    pthread_mutex_unlock(&door->lock);
    return NULL;
}

sn_status sn_door_new(size_t places, sn_door **out, sn_err *err) {
    sn_door *door;
    pthread_condattr_t monotonic;
    pthread_attr_t attributes;
    *out = NULL;
    sn_status status = sn_calloc(&door, 1, sizeof *door, err);
    if (status) return status;
    door->places = places;
    pthread_mutex_init(&door->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&door->ends, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    door->watched = !pthread_create(&door->watcher, &attributes, watch, door);
    pthread_attr_destroy(&attributes);
    *out = door;
    if (door->watched) return SN_OK;
    sn_door_free(out);
    return sn_fail(err, SN_STOP, "cannot start the thread that watches connections");
}

void sn_door_free(sn_door **out) {
    sn_door *door = *out;
    if (!door) return;
    pthread_mutex_lock(&door->lock);
    door->ending = true;
    pthread_cond_signal(&door->ends);
    pthread_mutex_unlock(&door->lock);
    if (door->watched) pthread_join(door->watcher, NULL);
    pthread_cond_destroy(&door->ends);
    pthread_mutex_destroy(&door->lock);
    free(door);
    *out = NULL;
}

sn_guest *sn_door_enter(sn_door *door, int fd) {
    sn_guest *g;
    sn_err err;
    if (sn_calloc(&g, 1, sizeof *g, &err)) return NULL;
    *g = (sn_guest){.fd = fd, .at = &door->first, .until_us = INT64_MAX, .crowded_until_us = INT64_MAX};
    pthread_mutex_lock(&door->lock);
    g->next = door->first;
    if (g->next) g->next->at = &g->next;
    door->first = g;
    door->n++;
    pthread_mutex_unlock(&door->lock);
    return g;
}

void sn_door_leave(sn_door *door, sn_guest *g) {
    if (!g) return;
    pthread_mutex_lock(&door->lock);
    *g->at = g->next;
    if (g->next) g->next->at = g->at;
    door->n--;
    pthread_mutex_unlock(&door->lock);
    free(g);
}

void sn_door_allow(sn_door *door, sn_guest *g, int64_t ms, int64_t crowded_ms) {
    if (!g) return;
    const int64_t now = sn_now_us();
    pthread_mutex_lock(&door->lock);
    g->until_us = ms ? now + ms * 1000 : INT64_MAX;
    g->crowded_until_us = crowded_ms ? now + crowded_ms * 1000 : INT64_MAX;
    pthread_mutex_unlock(&door->lock);
}
