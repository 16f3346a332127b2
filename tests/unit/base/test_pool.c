#include "base/pool.h"

#include "base/clock.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

static sn_err err;

enum { ITEMS = 1000 };
typedef struct counts {
    atomic_int item[ITEMS], worker[4];
    int plain[ITEMS]; /* written by the item, read by the caller afterwards */
} counts;

static void count_item(void *ctx, size_t item, int worker) {
    counts *c = ctx;
    atomic_fetch_add(&c->item[item], 1);
    atomic_fetch_add(&c->worker[worker], 1);
    c->plain[item] = (int)item + 1;
}

Test(pool, runs_every_item_once_with_any_number_of_threads) {
    for (int threads = 1; threads <= 4; threads++) {
        sn_pool *pool;
        cr_assert_eq(sn_pool_new(threads, &pool, &err), SN_OK, "%s", err.text);
        cr_assert_eq(sn_pool_threads(pool), threads);
        for (size_t n = 0; n <= ITEMS; n = n * 3 + 1)
            for (int repeat = 0; repeat < 50; repeat++) {
                static counts c;
                memset(&c, 0, sizeof c);
                sn_pool_run(pool, n, count_item, &c);
                for (size_t i = 0; i < ITEMS; i++) {
                    cr_assert_eq(c.item[i], i < n);
                    cr_assert_eq(c.plain[i], i < n ? (int)i + 1 : 0);
                }
            }
        sn_pool_free(&pool);
        cr_assert_null(pool);
        sn_pool_free(&pool);
    }
}

Test(pool, one_thread_runs_inline_and_in_order) {
    sn_pool *pool;
    cr_assert_eq(sn_pool_new(1, &pool, &err), SN_OK);
    static counts c;
    sn_pool_run(pool, 10, count_item, &c);
    cr_assert_eq(c.worker[0], 10);
    sn_pool_free(&pool);
}

/* An item that ends when all three threads have joined the work. */
static void slow_item(void *ctx, size_t item, int worker) {
    (void)item;
    atomic_int *counted = ctx;
    atomic_fetch_or(counted, 1 << worker);
    for (int64_t until = sn_now_us() + 20000000; atomic_load(counted) != 7 && sn_now_us() < until;) sn_sleep_us(1000);
}

Test(pool, wakes_sleeping_workers) {
    sn_pool *pool;
    cr_assert_eq(sn_pool_new(3, &pool, &err), SN_OK);
    for (int i = 0; i < 5; i++) {
        sn_sleep_us(3000); /* far longer than the workers spin */
        atomic_int counted = 0;
        sn_pool_run(pool, 6, slow_item, &counted);
        cr_assert_eq(counted, 7);
    }
    sn_pool_free(&pool);
}

Test(pool, refuses_invalid_thread_counts) {
    sn_pool *pool;
    cr_assert_eq(sn_pool_new(-1, &pool, &err), SN_REFUSED);
    cr_assert_eq(sn_pool_new(SN_POOL_THREADS_MAX + 1, &pool, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "1024"));
    cr_assert_null(pool);
    cr_assert_eq(sn_pool_new(0, &pool, &err), SN_OK);
    cr_assert_geq(sn_pool_threads(pool), 1);
    sn_pool_free(&pool);
}
