#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

bool sn_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx, int *error) {
    /* What the thread's own instructions cause stays with it: blocked, it would end the process without the handler. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int failed = pthread_create(thread, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) *error = failed;
    return !failed;
}
