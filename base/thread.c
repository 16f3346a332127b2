#include "base/thread.h"

#include <sched.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

void sn_thread_no_signals(sigset_t *before) {
    /* What the thread's own instructions cause stays with it: blocked, it would end the process without the handler. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, before);
}
void sn_thread_signals(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

bool sn_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx, int *error) {
    sigset_t before;
    sn_thread_no_signals(&before);
    int failed = pthread_create(thread, NULL, run, ctx);
    sn_thread_signals(&before);
    if (error) *error = failed;
    return !failed;
}

/* An idle thread on a busy machine would take seconds to hear that it is to end, so idle is only where there is no
 * niceness left above that of the program. */
void sn_thread_step_back(void) {
    enum { STEP = 10, NICEST = 19, IO_OF_THREAD = 1, IO_IDLE = 3 << 13 }; /* linux/ioprio.h */
    const struct sched_param none = {0};
    const int now = getpriority(PRIO_PROCESS, 0); /* on Linux of the thread */
    if (now + STEP > NICEST || setpriority(PRIO_PROCESS, 0, now + STEP)) (void)sched_setscheduler(0, SCHED_IDLE, &none);
    (void)syscall(SYS_ioprio_set, IO_OF_THREAD, 0, IO_IDLE);
}
