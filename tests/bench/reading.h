/* Reading memory and nothing else, by all threads of a pool: the limit with which kernels that read weights are
 * compared. Measured beside them, in turns, because it changes from minute to minute. */
#ifndef TESTS_BENCH_READING_H
#define TESTS_BENCH_READING_H

#include "base/clock.h"
#include "base/pool.h"

#include <stdatomic.h>
#include <stdint.h>

enum { READ_CHUNK = 1 << 20, READ_WAYS = 4 };

typedef struct read_job {
    const uint64_t *at;
    size_t ahead; /* words */
    _Atomic uint64_t sum;
} read_job;

static void read_chunk(void *ctx, size_t item, int worker) {
    (void)worker;
    read_job *job = ctx;
    const uint64_t *p = job->at + item * (READ_CHUNK / 8), *end = p + READ_CHUNK / 8;
    uint64_t sum[8] = {0};
    for (; p < end; p += 8) {
        if (job->ahead) __builtin_prefetch(p + job->ahead, 0, 2);
        for (int i = 0; i < 8; i++) sum[i] += p[i];
    }
    for (int i = 0; i < 8; i++) job->sum += sum[i];
}

/* GB/s of reading the chunks that `bytes` hold. Turn by turn it is prefetched at another distance, as the best one
 * differs from machine to machine. */
static double read_speed(sn_pool *pool, const void *memory, size_t bytes, int turn) {
    static const size_t ahead[READ_WAYS] = {0, 256, 512, 1024};
    read_job job = {.at = memory, .ahead = ahead[turn % READ_WAYS]};
    const size_t chunks = bytes / READ_CHUNK;
    const int64_t start = sn_now_us();
    sn_pool_run(pool, chunks, read_chunk, &job);
    return (double)(chunks * READ_CHUNK) * 1e-3 / (double)(sn_now_us() - start);
}

#endif
