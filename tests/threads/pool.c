/* The thread pool: plain writes by items, read by the caller and by items of later runs. For ThreadSanitizer, which
 * cannot run under Criterion. */
#include "base/pool.h"

#include "base/clock.h"

#include <stdio.h>

enum { THREADS = 4, ITEMS = 64, RUNS = 3000 };

typedef struct job {
    int run;
    int *cells;
} job;

static void count_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const job *j = ctx;
    j->cells[item] = j->cells[item] + j->run;
}

int main(void) {
    static int cells[ITEMS];
    sn_pool *pool;
    sn_err err;
    if (sn_pool_new(THREADS, &pool, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    long wanted = 0;
    for (int run = 1; run <= RUNS; run++) {
        job j = {run, cells}; /* on the stack: a worker that is late must not read it after the run */
        sn_pool_run(pool, ITEMS, count_item, &j);
        wanted += run;
        if (run % 500 == 0) sn_sleep_us(1000); /* lets the workers fall asleep */
    }
    sn_pool_free(&pool);
    for (int i = 0; i < ITEMS; i++)
        if (cells[i] != wanted) {
            fprintf(stderr, "cell %d is %d, not %ld\n", i, cells[i], wanted);
            return 1;
        }
    return 0;
}
