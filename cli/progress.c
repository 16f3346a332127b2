#include "cli/progress.h"

#include "base/clock.h"
#include "base/terminal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 1000, TERMINAL_EVERY_MS = 200, LOG_EVERY_MS = 10000 };

struct sn_progress_bar {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool end, terminal;
    atomic_size_t done, total;
    _Atomic(const char *) unit;
    int64_t began_us;
    char what[96];
};

static void progress_show(sn_progress_bar *p) {
    char part[96] = "", left[32] = "";
    size_t done = atomic_load(&p->done), total = atomic_load(&p->total);
    const char *unit = atomic_load(&p->unit);
    double seconds = (double)(sn_now_us() - p->began_us) / 1e6;
    if (total && done && done < total) {
        int64_t s = (int64_t)(seconds / (double)done * (double)(total - done));
        snprintf(left, sizeof left, " %lld:%02lld left,", (long long)(s / 60), (long long)(s % 60));
    }
    if (total)
        snprintf(part, sizeof part, " %zu of %zu%s%s, %d %%,%s", done, total, unit ? " " : "", unit ? unit : "",
                 (int)(100.0 * (double)done / (double)total), left);
    if (p->terminal) sn_terminal_control(stderr, "\r\033[K");
    fprintf(stderr, p->terminal ? "%s:%s %.0f s" : "%s:%s %.0f s\n", p->what, part, seconds);
    fflush(stderr);
}

/* Waits at most `ms` with the lock held; true when the end was announced. */
static bool progress_wait_ms(sn_progress_bar *p, int64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!p->end)
        if (pthread_cond_timedwait(&p->ended, &p->lock, &until) == ETIMEDOUT) break;
    return p->end;
}

static void *progress_thread(void *progress) {
    sn_progress_bar *p = progress;
    bool shown = false;
    pthread_mutex_lock(&p->lock);
    for (int64_t ms = p->terminal ? FIRST_MS : LOG_EVERY_MS; !progress_wait_ms(p, ms);
         ms = p->terminal ? TERMINAL_EVERY_MS : LOG_EVERY_MS) {
        progress_show(p);
        shown = true;
    }
    pthread_mutex_unlock(&p->lock);
    if (shown && p->terminal) sn_terminal_control(stderr, "\r\033[K");
    return NULL;
}

sn_progress_bar *sn_progress_bar_begin(const char *what) {
    sn_progress_bar *p = calloc(1, sizeof *p);
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
    /* Signals interrupt calls of the main thread only. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, progress_thread, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return p;
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

void sn_progress_bar_set(sn_progress_bar *p, size_t done, size_t total) {
    if (!p) return;
    atomic_store(&p->done, done);
    atomic_store(&p->total, total);
}

void sn_progress_bar_unit(sn_progress_bar *p, const char *unit) {
    if (p) atomic_store(&p->unit, unit);
}

void sn_progress_bar_end(sn_progress_bar **bar) {
    sn_progress_bar *p = *bar;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *bar = NULL;
}
