/* The virtual clock of tests over clusters: it leaps when no thread has anything to do, and never before. */
#include "base/clock.h"
#include "base/queue.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { SECOND = 1000000, ROUNDS = 50 };

static int64_t real_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec / 1000;
}

Test(virtual_clock, a_timed_wait_without_wakeup_ends_at_once, .timeout = 180) {
    virtual_clock_begin();
    int64_t begun = sn_now_us(), unix_ms = sn_unix_ms(), real = real_us();
    sn_sleep_us(3600ll * SECOND);
    cr_expect_geq(sn_now_us() - begun, 3600ll * SECOND);
    cr_expect_geq(sn_unix_ms() - unix_ms, 3600 * 1000);
    cr_expect_lt(real_us() - real, 60 * SECOND);
}

/* Works for a while, asleep in the kernel and then busy, and only then pushes its result. */
static void *worker_main(void *ctx) {
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (int64_t until = real_us() + 20000; real_us() < until;) {}
    if (!sn_queue_push(ctx, ctx)) abort();
    return NULL;
}

Test(virtual_clock, does_not_leap_while_a_thread_runs, .timeout = 180) {
    sn_queue *queue = NULL;
    virtual_clock_begin();
    REQUIRE(sn_queue_new(1, &queue, &err));
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        cr_assert(!pthread_create(&thread, NULL, worker_main, queue));
        cr_assert_eq(sn_queue_pop(queue, sn_now_us() + 10 * SECOND), queue, "round %d: the wait ended before the work",
                     i);
        pthread_join(thread, NULL);
    }
    sn_queue_free(&queue);
}

typedef struct pair {
    sn_queue *there, *back;
} pair;

static void *responder_main(void *ctx) {
    pair *p = ctx;
    setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    for (int i = 0; i < ROUNDS; i++)
        if (!sn_queue_push(p->back, sn_queue_pop(p->there, sn_now_us() + 3600ll * SECOND))) abort();
    return NULL;
}

/* Both threads are in a wait when one of them was woken and has not run yet: the clock must not leap then. */
Test(virtual_clock, a_woken_thread_runs_before_a_timeout, .timeout = 180) {
    pair p = {0};
    pthread_t thread;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    /* of all threads from now on: a woken thread has to wait for the processor */
    cr_assert(!sched_setaffinity(0, sizeof one, &one));
    virtual_clock_begin();
    REQUIRE(sn_queue_new(1, &p.there, &err));
    REQUIRE(sn_queue_new(1, &p.back, &err));
    int64_t begun = sn_now_us();
    cr_assert(!pthread_create(&thread, NULL, responder_main, &p));
    for (int i = 0; i < ROUNDS; i++) {
        nanosleep(&(struct timespec){0, 3000000}, NULL); /* the watcher thread has gone to sleep */
        cr_assert(sn_queue_push(p.there, &p));
        cr_assert_eq(sn_queue_pop(p.back, sn_now_us() + 3600ll * SECOND), &p);
    }
    pthread_join(thread, NULL);
    cr_expect_lt(sn_now_us() - begun, 3600ll * SECOND, "the clock leapt while a thread had something to do");
    sn_queue_free(&p.there);
    sn_queue_free(&p.back);
}
