#include "base/thread.h"

#include <errno.h>
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

/* Idle is below every niceness, also where the program itself runs nicer than others. */
void sn_thread_step_back(void) {
    enum { STEP = 10, IO_OF_THREAD = 1, IO_IDLE = 3 << 13 }; /* linux/ioprio.h, which not all C libraries bring */
    const struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none)) {
        errno = 0;
        int now = getpriority(PRIO_PROCESS, 0);
        if (!errno) setpriority(PRIO_PROCESS, 0, now + STEP);
    }
    (void)syscall(SYS_ioprio_set, IO_OF_THREAD, 0, IO_IDLE);
}
