#include "gateway/http/load.h"

#include "base/clock.h"

#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 200 };

void sn_load_init(sn_load *load) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_condattr_t monotonic;
    *load = (sn_load){.preparing_max = processors > 1 ? (size_t)processors : 1};
    pthread_mutex_init(&load->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&load->left, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void sn_load_fini(sn_load *load) {
    pthread_cond_destroy(&load->left);
    pthread_mutex_destroy(&load->lock);
}

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

bool sn_load_begin(sn_load *load) {
    const int64_t until_us = sn_now_us() + LOOK_MS * 1000;
    const struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    int late = 0;
    pthread_mutex_lock(&load->lock);
    while (load->preparing == load->preparing_max && !late)
        late = pthread_cond_timedwait(&load->left, &load->lock, &until);
    const bool good = load->preparing < load->preparing_max;
    load->preparing += good;
    pthread_mutex_unlock(&load->lock);
    return good;
}

void sn_load_end(sn_load *load) {
    pthread_mutex_lock(&load->lock);
    load->preparing--;
    pthread_cond_signal(&load->left);
    pthread_mutex_unlock(&load->lock);
}
