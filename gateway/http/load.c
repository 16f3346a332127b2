#include "gateway/http/load.h"

#include "base/cgroup.h"
#include "base/clock.h"

#include <time.h>

enum { LOOK_MS = 200, SLICE_US = 200000 };

struct sn_load_waiter {
    sn_load_waiter *next;
    uint64_t owner, turn;
    pthread_cond_t wake;
};

void sn_load_init(sn_load *load) {
    *load = (sn_load){.preparing_max = (size_t)sn_cores(), .slice_us = SLICE_US};
    pthread_mutex_init(&load->lock, NULL);
}

void sn_load_fini(sn_load *load) { pthread_mutex_destroy(&load->lock); }

/* The bytes of an owner. */
static size_t *bytes_of(sn_load *load, uint64_t owner) {
    size_t i = 0;
    while (i < load->n_owners && load->owners[i].owner != owner) i++;
    if (i == load->n_owners) {
        load->owners[load->n_owners++].owner = owner;
        load->owners[i].bytes = 0;
    }
    return &load->owners[i].bytes;
}

static void forget_idle_owners(sn_load *load) {
    for (size_t i = 0; i < load->n_owners;)
        if (!load->owners[i].bytes)
            load->owners[i] = load->owners[--load->n_owners];
        else
            i++;
}

bool sn_load_take(sn_load *load, sn_taken *taken, size_t bytes) {
    const size_t counted = bytes > SN_LOAD_SMALL ? bytes : 0, before = taken->counted;
    if (counted == before) return true;
    pthread_mutex_lock(&load->lock);
    size_t *own = bytes_of(load, taken->owner);
    const bool fits = counted < before || (counted - before <= SN_LOAD_SHARE_MAX - *own &&
                                           counted - before <= SN_LOAD_BYTES_MAX - load->bytes);
    if (fits) {
        *own = *own - before + counted;
        load->bytes = load->bytes - before + counted;
        taken->counted = counted;
    }
    forget_idle_owners(load);
    pthread_mutex_unlock(&load->lock);
    return fits;
}

size_t sn_load_get_bytes(sn_load *load) {
    pthread_mutex_lock(&load->lock);
    const size_t bytes = load->bytes;
    pthread_mutex_unlock(&load->lock);
    return bytes;
}

void sn_load_give_back(sn_load *load, sn_taken *taken) { (void)!sn_load_take(load, taken, 0); }

/* -- processors: all with the lock held, but for the last three functions -- */

/* Behind those of its turn: the first request of an owner has the turn after the one that is served now, each further
 * one a later turn. */
static void enter(sn_load *load, sn_load_waiter *w) {
    sn_load_waiter **at = &load->first;
    w->turn = load->turn;
    for (const sn_load_waiter *other = load->first; other; other = other->next)
        if (other->owner == w->owner) w->turn = other->turn; /* the last one is the latest */
    w->turn++;
    while (*at && (*at)->turn <= w->turn) at = &(*at)->next;
    w->next = *at;
    *at = w;
    load->waiting++;
}

static bool is_next(const sn_load *load, const sn_load_waiter *w) {
    return load->first == w && load->preparing < load->preparing_max;
}

static void wake_next(const sn_load *load) {
    if (load->first && is_next(load, load->first)) pthread_cond_signal(&load->first->wake);
}

/* Takes the processor, if it is its turn, or gives up. */
static bool leave(sn_load *load, const sn_load_waiter *w) {
    const bool good = is_next(load, w);
    sn_load_waiter **at = &load->first;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    load->waiting--;
    load->preparing += good;
    if (good && w->turn > load->turn) load->turn = w->turn;
    wake_next(load);
    return good;
}

static void wait_in_line(sn_load *load, sn_load_waiter *w, int64_t until_us, bool (*has_left)(const void *ctx),
                         const void *ctx) {
    for (int64_t now = sn_now_us(); !is_next(load, w) && now < until_us; now = sn_now_us()) {
        const int64_t look_us = now + LOOK_MS * 1000, wake_us = look_us < until_us ? look_us : until_us;
        const struct timespec wake = {wake_us / 1000000, wake_us % 1000000 * 1000};
        (void)pthread_cond_timedwait(&w->wake, &load->lock, &wake);
        if (has_left(ctx)) return;
    }
}

bool sn_load_begin(sn_load *load, uint64_t owner, int64_t wait_ms, bool (*has_left)(const void *ctx), const void *ctx) {
    sn_load_waiter w = {.owner = owner};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_lock(&load->lock);
    enter(load, &w);
    wait_in_line(load, &w, sn_now_us() + wait_ms * 1000, has_left, ctx);
    const bool good = leave(load, &w);
    pthread_mutex_unlock(&load->lock);
    pthread_cond_destroy(&w.wake);
    return good;
}

void sn_load_end(sn_load *load) {
    pthread_mutex_lock(&load->lock);
    load->preparing--;
    wake_next(load);
    pthread_mutex_unlock(&load->lock);
}

bool sn_load_is_wanted(sn_load *load, uint64_t owner, int64_t since_us) {
    const int64_t had_us = sn_now_us() - since_us;
    pthread_mutex_lock(&load->lock);
    const sn_load_waiter *w = had_us < load->slice_us ? NULL : load->first;
    while (w && w->owner == owner) w = w->next;
    pthread_mutex_unlock(&load->lock);
    return w != NULL;
}
