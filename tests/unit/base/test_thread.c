/* Threads that the library starts in a host program take none of its signals: their handlers expect its own threads. */
#include "base/clock.h"
#include "base/pool.h"
#include "blocks/expert_reader.h"
#include "net/introduction.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(signal) (1u << ((signal) - 1))
/* The signals from 1 to 31 that come from elsewhere and that a thread can block; those of its own faults it takes. */
static const uint64_t blockable = 0x7FFFFFFF & ~(BIT(SIGKILL) | BIT(SIGSTOP) | BIT(SIGSEGV) | BIT(SIGBUS) |
                                                 BIT(SIGILL) | BIT(SIGFPE) | BIT(SIGTRAP) | BIT(SIGSYS));

static uint64_t blocked_by(const char *thread) {
    char path[300], line[256];
    uint64_t blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "SigBlk:", 7)) blocked = strtoull(line + 7, NULL, 16);
    if (status) fclose(status);
    return blocked;
}

typedef struct threads {
    int n, takers;
} threads;

static threads count_threads_now(void) {
    threads t = {0};
    DIR *folder = opendir("/proc/self/task");
    cr_assert(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        if (*e->d_name == '.') continue;
        t.n++;
        t.takers += (blocked_by(e->d_name) & blockable) != blockable;
    }
    closedir(folder);
    return t;
}

/* A thread has the mask that it begins with only when it runs. */
static threads count_threads(void) {
    threads most = {0};
    for (int i = 0; i < 30; i++) {
        threads now = count_threads_now();
        if (now.takers >= most.takers) most = now;
        sn_sleep_us(1000);
    }
    return most;
}

static void on_found(void *ctx) { (void)ctx; }

Test(thread, of_the_library_takes_no_signal_of_the_host_program) {
    sn_pool *pool;
    sn_expert_reader *reader;
    sn_introducer *introducer;
    const threads before = count_threads();
    REQUIRE(sn_pool_new(3, &pool, &err));
    threads now = count_threads();
    cr_expect_eq(now.n, before.n + 2);
    cr_expect_eq(now.takers, before.takers, "a worker of a pool takes signals");
    REQUIRE(sn_expert_reader_new(&reader, &err));
    now = count_threads();
    cr_expect_gt(now.n, before.n + 2);
    cr_expect_eq(now.takers, before.takers, "a thread that reads experts takes signals");
    const int n = now.n;
    REQUIRE(sn_introducer_new(NULL, NULL, on_found, NULL, &introducer, &err));
    now = count_threads();
    cr_expect_eq(now.n, n + 1);
    cr_expect_eq(now.takers, before.takers, "the thread for introductions takes signals");
    sn_introducer_free(&introducer);
    cr_expect(sn_expert_reader_free(&reader, 60000));
    sn_pool_free(&pool);
}
