/* How items are distributed: one 64-bit word holds the number of items of the run and the index of the next one. A
 * worker claims an item by compare-and-swap on the whole word. A claim that succeeds proves that the run it read is the
 * current one, and that run cannot end before the claimed item does. Therefore fn and ctx are read only after a claim,
 * and a worker that slept through a whole run does no harm.
 *
 * A worker without items spins for SPIN_US, then sleeps on a condition variable. sn_pool_run stores the work word and
 * then reads the number of sleepers; a worker raises that number and then reads the work word; both in sequentially
 * consistent order, so that no wake-up is lost. At the end of a run the caller spins until `done` equals the number of
 * items. */
#include "base/pool.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPIN_US = 50,        /* how long a worker without items spins before it sleeps */
    SPIN_CHECK = 32,     /* pauses between two reads of the clock */
    YIELD_AFTER = 20000, /* pauses, about a millisecond: after that the workers of the last items may need this core */
    CACHE_LINE = 64,
};

typedef struct pool_worker {
    sn_pool *pool;
    pthread_t thread;
    int index;
} pool_worker;

struct sn_pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t work; /* items of the run << 32 | index of the next item */
    sn_pool_fn fn;
    void *ctx;
    _Alignas(CACHE_LINE) _Atomic uint64_t done; /* items finished */
    _Alignas(CACHE_LINE) _Atomic int sleepers;
    _Atomic int stop;
    pthread_mutex_t lock; /* for sleeping and waking only */
    pthread_cond_t wake;
    int n_threads;
    int n_started; /* threads to join, without the caller */
    pool_worker *workers;
};

static bool has_work(uint64_t work) { return (uint32_t)work < work >> 32; }

/* Runs items until none is left to claim. */
static void pool_run_items(sn_pool *pool, int worker) {
    uint64_t work = atomic_load_explicit(&pool->work, memory_order_acquire);
    while (has_work(work)) {
        if (!atomic_compare_exchange_weak_explicit(&pool->work, &work, work + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        pool->fn(pool->ctx, (uint32_t)work, worker);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        work = atomic_load_explicit(&pool->work, memory_order_acquire);
    }
}

/* Returns true when there is work (or a stop), false when it is time to sleep. */
static bool worker_spin(sn_pool *pool) {
    int64_t until = sn_now_us() + SPIN_US;
    do {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (has_work(atomic_load_explicit(&pool->work, memory_order_relaxed)) || atomic_load(&pool->stop))
                return true;
            sn_pool_relax();
        }
    } while (sn_now_us() < until);
    return false;
}

static void worker_sleep(sn_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_work(atomic_load(&pool->work)) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg) {
    pool_worker *worker = arg;
    sn_pool *pool = worker->pool;
    while (!atomic_load(&pool->stop)) {
        pool_run_items(pool, worker->index);
        if (!worker_spin(pool)) worker_sleep(pool);
    }
    return NULL;
}

static void pool_wake_all(sn_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void sn_pool_run(sn_pool *pool, size_t n_items, sn_pool_fn fn, void *ctx) {
    assert(n_items <= UINT32_MAX);
    if (pool->n_started == 0 || n_items <= 1) {
        for (size_t i = 0; i < n_items; i++) fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->work, (uint64_t)n_items << 32); /* sequentially consistent with `sleepers`: see the top */
    if (atomic_load(&pool->sleepers) > 0) pool_wake_all(pool);
    pool_run_items(pool, 0);
    for (unsigned i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < n_items; i++) {
        if (i > YIELD_AFTER)
            sched_yield();
        else
            sn_pool_relax();
    }
}

sn_status sn_pool_new(int n_threads, sn_pool **out, sn_err *err) {
    *out = NULL;
    if (n_threads < 0 || n_threads > SN_POOL_THREADS_MAX)
        return sn_fail(err, SN_REFUSED, "%d threads: give a number from 1 to %d, or 0 for as many as there are cores",
                       n_threads, SN_POOL_THREADS_MAX);
    if (n_threads == 0) n_threads = (int)sn_min_size((size_t)sn_cores(), SN_POOL_THREADS_MAX);
    sn_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool) return sn_fail(err, SN_STOP, "out of memory: a pool of threads needs %zu bytes", sizeof *pool);
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->n_threads = n_threads;
    sn_status status = sn_calloc(&pool->workers, (size_t)n_threads, sizeof *pool->workers, err);
    if (status) goto out;
    for (int i = 1; i < n_threads; i++) {
        pool_worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        if (!sn_thread_start(&worker->thread, worker_main, worker, NULL)) {
            status = sn_fail(err, SN_STOP, "thread %d of %d could not be started: ask for fewer", i + 1, n_threads);
            goto out;
        }
        pool->n_started++;
    }
    *out = pool;
    pool = NULL;
out:
    sn_pool_free(&pool);
    return status;
}

void sn_pool_free(sn_pool **pool) {
    sn_pool *p = *pool;
    if (!p) return;
    atomic_store(&p->stop, 1);
    pool_wake_all(p);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p->workers);
    free(p);
    *pool = NULL;
}

int sn_pool_threads(const sn_pool *pool) { return pool->n_threads; }
