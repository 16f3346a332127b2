/* A pool of worker threads under one calling thread, for work that is distributed many thousand times per second.
 *
 * A run distributes items 0..n-1 in that order, each to exactly one worker; a free worker takes the next item. The
 * caller is worker 0 and works, too. The others spin for some tens of microseconds after their last item, so that the
 * next run finds them awake, and then sleep. A run ends when all its items are done: it does not wait for a worker that
 * has no item, for example because its core is busy.
 *
 * One thread at a time may call the functions of a pool. sn_pool_new returns SN_REFUSED for an impossible number of
 * threads and SN_STOP when memory or threads are out. */
#ifndef SN_BASE_POOL_H
#define SN_BASE_POOL_H

#include "base/err.h"

#include <stddef.h>

typedef struct sn_pool sn_pool;

/* The body of a loop that waits a very short time for another thread. */
static inline void sn_pool_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Called for one item. `worker` is less than the number of threads; two concurrent calls never have the same one. */
typedef void (*sn_pool_fn)(void *ctx, size_t item, int worker);

enum { SN_POOL_THREADS_MAX = 1024 };

/* n_threads: workers, the caller included; with 1 no thread is started. 0: the number of cores that this process may
 * use (base/cgroup.h). */
sn_status sn_pool_new(int n_threads, sn_pool **out, sn_err *err) SN_MUST_USE;
void sn_pool_free(sn_pool **pool); /* accepts NULL; ends and joins the threads */

int sn_pool_threads(const sn_pool *pool);

/* Returns when fn has returned for every item; the caller then sees everything that the items wrote. Must not be called
 * from within an item. n_items < 2^32. */
void sn_pool_run(sn_pool *pool, size_t n_items, sn_pool_fn fn, void *ctx);

#endif
