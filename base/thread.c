#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

bool sn_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx, int *error) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) *error = failed;
    return !failed;
}
