/* A pool of worker threads under one calling thread, for work that is shared out many thousand times a second.
 *
 * A run hands out items 0..n-1, each to exactly one worker, in that order: whoever is free takes the next. The
 * caller is worker 0 and works too; the others spin for some tens of microseconds after their last item, so that the
 * next run finds them awake, and then sleep. A worker that comes too late (its core is busy with something else) is not
 * waited for: the run is over when its items are. */
#ifndef SN_BASE_POOL_H
#define SN_BASE_POOL_H

#include "base/err.h"

#include <stddef.h>

typedef struct sn_pool sn_pool;

/* What a thread does while it waits for another for a very short time. */
static inline void sn_pool_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Called for one item; `worker` is below the pool's threads, and no two calls at a time have the same one. */
typedef void (*sn_pool_fn)(void *ctx, size_t item, int worker);

enum { SN_POOL_THREADS_MAX = 1024 };

/* n_threads: workers, the caller among them; with 1 no thread is started. 0: as many as this process may use cores. */
sn_status sn_pool_new(int n_threads, sn_pool **out, sn_err *err) SN_MUST_USE;
void sn_pool_free(sn_pool **pool); /* NULL-safe; ends and joins the threads */

int sn_pool_threads(const sn_pool *pool);

/* Returns when fn has returned for every item; what the items wrote is then visible to the caller. One thread at a time
 * may call this, never from within an item. n_items below 2^32. */
void sn_pool_run(sn_pool *pool, size_t n_items, sn_pool_fn fn, void *ctx);

#endif
