/* Threads of a library. */
#ifndef SN_BASE_THREAD_H
#define SN_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Starts a thread that takes no signals but those of its own faults: the others stay with the program's own threads,
 * whose handlers expect them. Returns false where none can be started, and then sets *error (or NULL) to an errno. Any
 * thread may call it. */
bool sn_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx, int *error);

/* Until sn_thread_signals(before) the calling thread takes no such signals either, nor do threads that a library starts
 * in it meanwhile. *before: what it took. */
void sn_thread_no_signals(sigset_t *before);
void sn_thread_signals(const sigset_t *before);

/* The calling thread, and those that it starts from now on, let the others of this program go first, however nice it
 * runs, at the processor and at the disk. */
void sn_thread_step_back(void);

#endif
