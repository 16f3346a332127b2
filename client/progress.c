#include "client/cmd.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 1000, TERMINAL_EVERY_MS = 200, LOG_EVERY_MS = 10000 };

struct sn_progress_shown {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool end, terminal;
    atomic_size_t done, of;
    int64_t began_us;
    char what[96];
};

static void show(sn_progress_shown *p) {
    char part[64] = "";
    size_t done = atomic_load(&p->done), of = atomic_load(&p->of);
    if (of) snprintf(part, sizeof part, " %zu of %zu,", done, of);
    double seconds = (double)(sn_now_us() - p->began_us) / 1e6;
    fprintf(stderr, p->terminal ? "\r\033[K%s:%s %.0f s" : "%s:%s %.0f s\n", p->what, part, seconds);
    fflush(stderr);
}

/* Waits, with the lock held; true when the end has come. */
static bool wait_ms(sn_progress_shown *p, int64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!p->end)
        if (pthread_cond_timedwait(&p->ended, &p->lock, &until) == ETIMEDOUT) break;
    return p->end;
}

static void *run(void *progress) {
    sn_progress_shown *p = progress;
    bool shown = false;
    pthread_mutex_lock(&p->lock);
    for (int64_t ms = p->terminal ? FIRST_MS : LOG_EVERY_MS; !wait_ms(p, ms);
         ms = p->terminal ? TERMINAL_EVERY_MS : LOG_EVERY_MS) {
        show(p);
        shown = true;
    }
    pthread_mutex_unlock(&p->lock);
    if (shown && p->terminal) fputs("\r\033[K", stderr);
    return NULL;
}

sn_progress_shown *sn_progress_begin(const char *what) {
    sn_progress_shown *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->began_us = sn_now_us();
    p->terminal = isatty(STDERR_FILENO);
    snprintf(p->what, sizeof p->what, "%s", what);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->ended, &clock);
    pthread_condattr_destroy(&clock);
    /* Signals are for the main thread, whose waits they shall end. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return p;
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

void sn_progress_set(sn_progress_shown *p, size_t done, size_t of) {
    if (!p) return;
    atomic_store(&p->done, done);
    atomic_store(&p->of, of);
}

void sn_progress_end(sn_progress_shown **shown) {
    sn_progress_shown *p = *shown;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *shown = NULL;
}
