/* How it works: the wrapped calls count the threads that wait. When all threads wait, a watcher thread asks the
 * kernel whether all of them sleep and none was woken without having run yet. If no wait began or ended meanwhile,
 * no thread can have made progress: then the clock leaps to the first deadline of a waiter, and the waiters of that
 * deadline are woken.
 *
 * Between leaps the clock advances with the processor time of the process, so that a machine that stalls stops the
 * clock.
 *
 * Waits with a deadline become waits without one (pthread_cond_wait); the watcher's broadcast ends them. */
#include "tests/support/virtual_clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t __real_sn_now_us(void);
int64_t __real_sn_unix_ms(void);
void __real_sn_sleep_us(int64_t us);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *ctx);
int __real_pthread_join(pthread_t thread, void **out);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int64_t __wrap_sn_now_us(void);
int64_t __wrap_sn_unix_ms(void);
void __wrap_sn_sleep_us(int64_t us);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *ctx);
int __wrap_pthread_join(pthread_t thread, void **out);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);

enum { POLL_US_MAX = 1000 };

/* A thread that was started and not joined; the first thread of the program has no entry. */
typedef struct member {
    struct member *next;
    pthread_t thread;
    void *(*fn)(void *);
    void *ctx;
    atomic_int tid; /* 0: it does not run yet */
    bool ended;
} member;

typedef struct waiter {
    struct waiter *next, **at;
    pthread_cond_t *cond; /* NULL: a join */
    int64_t deadline_us;
} waiter;

static const int64_t NEVER = INT64_MAX;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when all threads may wait */
    member *members;
    waiter *waiters;
    size_t n_members, n_ended;
    atomic_size_t n_waiting,
        /* read with the lock held, changed without it: a thread that was woken must not wait for the lock unnoticed */
        changes;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static atomic_bool begun, still; /* still: processor time does not count */
static _Atomic int64_t leapt_us, last_us;
static _Atomic int64_t watch_us; /* processor time of the watcher, which is no time of the test */
static int64_t begin_us, begin_unix_ms, begin_cpu_us;

static int64_t read_us(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t __wrap_sn_now_us(void) {
    if (!atomic_load(&begun)) return __real_sn_now_us();
    int64_t cpu_us =
        atomic_load(&still) ? 0 : read_us(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_us - atomic_load(&watch_us);
    int64_t now = begin_us + cpu_us + atomic_load(&leapt_us);
    int64_t last = atomic_load(&last_us);
    while (last < now && !atomic_compare_exchange_weak(&last_us, &last, now)) {}
    return last < now ? now : last;
}

int64_t __wrap_sn_unix_ms(void) {
    return atomic_load(&begun) ? begin_unix_ms + (__wrap_sn_now_us() - begin_us) / 1000 : __real_sn_unix_ms();
}

/* -- waits */

static bool all_wait(void) { return atomic_load(&all.n_waiting) + all.n_ended == all.n_members + 1; }

static void signal_if_all_wait(void) {
    if (all_wait()) pthread_cond_signal(&all.changed);
}

static void enter_wait(waiter *w) {
    pthread_mutex_lock(&all.lock);
    w->next = all.waiters;
    w->at = &all.waiters;
    if (w->next) w->next->at = &w->next;
    all.waiters = w;
    atomic_fetch_add(&all.changes, 1);
    atomic_fetch_add(&all.n_waiting, 1);
    signal_if_all_wait();
    pthread_mutex_unlock(&all.lock);
}

static void leave_wait(waiter *w) {
    atomic_fetch_sub(&all.n_waiting, 1);
    atomic_fetch_add(&all.changes, 1);
    pthread_mutex_lock(&all.lock);
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    pthread_mutex_unlock(&all.lock);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock) {
    waiter w = {.cond = cond, .deadline_us = NEVER};
    enter_wait(&w);
    int rc = __real_pthread_cond_wait(cond, lock);
    leave_wait(&w);
    return rc;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until) {
    waiter w = {.cond = cond, .deadline_us = (int64_t)until->tv_sec * 1000000 + until->tv_nsec / 1000};
    if (!atomic_load(&begun)) return __real_pthread_cond_timedwait(cond, lock, until);
    if (__wrap_sn_now_us() >= w.deadline_us) return ETIMEDOUT;
    enter_wait(&w);
    int rc = __real_pthread_cond_wait(cond, lock); /* may wake spuriously, as any wait may */
    leave_wait(&w);
    return !rc && __wrap_sn_now_us() >= w.deadline_us ? ETIMEDOUT : rc;
}

void __wrap_sn_sleep_us(int64_t us) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    if (!atomic_load(&begun)) {
        __real_sn_sleep_us(us);
        return;
    }
    int64_t deadline_us = __wrap_sn_now_us() + us;
    struct timespec until = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    pthread_mutex_lock(&lock);
    while (__wrap_pthread_cond_timedwait(&cond, &lock, &until) != ETIMEDOUT) {}
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

/* -- threads */

static void *run_member(void *ctx) {
    member *m = ctx;
    atomic_store(&m->tid, (int)gettid());
    void *result = m->fn(m->ctx);
    pthread_mutex_lock(&all.lock);
    m->ended = true;
    all.n_ended++;
    signal_if_all_wait();
    pthread_mutex_unlock(&all.lock);
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *ctx) {
    member *m = calloc(1, sizeof *m);
    if (!m) return EAGAIN;
    m->fn = fn;
    m->ctx = ctx;
    pthread_mutex_lock(&all.lock);
    int rc = __real_pthread_create(thread, attr, run_member, m);
    if (rc) {
        free(m);
    } else {
        m->thread = *thread;
        m->next = all.members;
        all.members = m;
        all.n_members++;
    }
    pthread_mutex_unlock(&all.lock);
    return rc;
}

int __wrap_pthread_join(pthread_t thread, void **out) {
    waiter w = {.deadline_us = NEVER};
    enter_wait(&w);
    int rc = __real_pthread_join(thread, out);
    leave_wait(&w);
    if (rc) return rc;
    pthread_mutex_lock(&all.lock);
    for (member **at = &all.members, *m; (m = *at); at = &m->next) {
        if (!pthread_equal(m->thread, thread)) continue;
        *at = m->next;
        free(m);
        all.n_members--;
        all.n_ended--;
        break;
    }
    pthread_mutex_unlock(&all.lock);
    return rc;
}

/* -- leaps */

/* The kernel's state of a thread ('S': sleeps); '-': there is no such thread. */
static char state_of(int tid) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file) return '-';
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] ? name_end[2] : '-';
}

static bool all_sleep(void) {
    size_t changes = atomic_load(&all.changes);
    if (!all_wait() || state_of((int)getpid()) != 'S') return false;
    for (const member *m = all.members; m; m = m->next) {
        char state = atomic_load(&m->tid) ? state_of(m->tid) : 'R';
        if (state != 'S' && !(state == '-' && m->ended)) return false;
    }
    return all_wait() && changes == atomic_load(&all.changes);
}

/* Leaps to the first deadline, if there is one, and wakes its waiters. */
static void leap_to_deadline(void) {
    int64_t first = NEVER, now = __wrap_sn_now_us();
    for (const waiter *w = all.waiters; w; w = w->next)
        if (w->deadline_us < first) first = w->deadline_us;
    if (first == NEVER) return;
    if (first > now) atomic_fetch_add(&leapt_us, first - now);
    for (const waiter *w = all.waiters; w; w = w->next)
        if (w->deadline_us <= first) pthread_cond_broadcast(w->cond);
}

static void *watch_main(void *ctx) {
    pthread_mutex_lock(&all.lock);
    for (int64_t again_us = 0;; again_us = again_us < POLL_US_MAX / 2 ? 2 * again_us + 10 : POLL_US_MAX) {
        while (!all_wait()) {
            again_us = 0;
            __real_pthread_cond_wait(&all.changed, &all.lock);
        }
        if (all_sleep()) leap_to_deadline();
        atomic_store(&watch_us, read_us(CLOCK_THREAD_CPUTIME_ID));
        pthread_mutex_unlock(&all.lock);
        __real_sn_sleep_us(again_us);
        pthread_mutex_lock(&all.lock);
    }
    return ctx;
}

void virtual_clock_begin(void) {
    pthread_t watcher;
    if (atomic_load(&begun)) return;
    begin_us = __real_sn_now_us();
    begin_unix_ms = __real_sn_unix_ms();
    begin_cpu_us = read_us(CLOCK_PROCESS_CPUTIME_ID);
    atomic_store(&last_us, begin_us);
    if (__real_pthread_create(&watcher, NULL, watch_main, NULL)) abort();
    pthread_detach(watcher);
    atomic_store(&begun, true);
}

void virtual_clock_begin_still(void) {
    atomic_store(&still, true);
    virtual_clock_begin();
}

void virtual_clock_advance(int64_t us) { atomic_fetch_add(&leapt_us, us); }
