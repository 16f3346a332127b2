#include "base/thread.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

bool sn_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx, int *error) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
