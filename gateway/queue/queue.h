/* Many requests over one swarm: a bounded queue of jobs, and workers that run them, each on a thread and in a session
 * of its own.
 *
 * Central types: sn_server_job, one generation that a caller describes by a prompt and a function; sn_server_queue. A
 * worker keeps its session open when a job has ended. A job goes to the idle worker whose session, of a job of the same
 * owner, has the longest beginning in common with the prompt, if it continues most of that session; else to one whose
 * session is of least use, so that conversations that go on find theirs. What a session holds of another owner is
 * dropped. A session without a job for a while is closed; before that, those that were used longest ago, when nodes
 * lack memory: as far as that is known before (tokens_max), and when a node says so to a job, which runs once more then
 * if it has told nothing.
 *
 * The queue is ordered by turns: the first job of an owner has the turn that is served now, each further one a later
 * turn, so that owners are served round robin however many jobs one of them has. Of an owner's jobs the one with the
 * shortest prompt has the earliest turn. When the queue is full, a job with an earlier turn takes the place of the one
 * with the latest.
 *
 * An owner that runs a job already leaves an eighth of the sessions (of four or more, at least one) to owners that run
 * none, so that a newcomer begins at once. While
 * jobs of several owners run, a quarter of the sessions compute at once, shared equally: the other jobs wait at their
 * next token for their turns among the jobs of their owner (sn_server_queue_take_turn).
 *
 * Any thread may call these functions. A job belongs to the caller, which waits for its end (sn_server_queue_finish)
 * before its memory goes. */
#ifndef SN_GATEWAY_QUEUE_QUEUE_H
#define SN_GATEWAY_QUEUE_QUEUE_H

#include "base/mem.h"
#include "include/swarm.h"

#include <stdint.h>

typedef struct sn_server_queue sn_server_queue;

typedef struct sn_server_queue_options {
    const swarm_model *model;
    swarm_connection *connection;
    const swarm_options *session; /* of "session"; may be NULL */
    size_t sessions_max, queue_max;
    int64_t idle_ms;       /* a session without a job for this time is closed */
    size_t tokens_max;     /* that nodes have memory for: idle sessions make room for a job. 0: not known */
} sn_server_queue_options; /* all borrowed for the queue's life */

typedef struct sn_server_job {
    const int32_t *prompt; /* (n_prompt), for the choice of a session; borrowed until the end */
    size_t n_prompt;
    uint64_t owner; /* whose it is: jobs of other owners get their turns between its own, and see nothing of it */
    bool fresh;     /* needs a session without tokens, which is opened for it and closed at its end */
    void *ctx;
    /* The work, on a worker's thread. */
    swarm_code (*run)(void *ctx, swarm_session *session, swarm_error **error);
    /* Whether nothing of the work was shown yet, so that it may run once more; NULL: it may not. On the worker's
     * thread, after run. */
    bool (*may_repeat)(void *ctx);
    /* Called once for a job that was submitted, after run or instead of it (no session could be opened; the job was
     * cancelled while it waited: then by the thread that cancels; it was displaced from the queue, SWARM_RETRY without
     * an error: then by the thread that submits). The error is borrowed. No lock of the queue is held; it must not
     * wait for a job's end.
     */
    void (*end)(void *ctx, swarm_code code, const swarm_error *error);
    /* The queue's. */
    struct sn_server_job *next;
    struct sn_server_worker *worker;
    uint64_t turn, computes; /* since when it computes, or waits to; in order */
    int overtaken;           /* by so many shorter ones of its owner */
    bool waits, paused, cancelled, repeated, ended;
} sn_server_job;

sn_status sn_server_queue_new(const sn_server_queue_options *options, sn_server_queue **out, sn_err *err) SN_MUST_USE;
/* All jobs have ended. */
void sn_server_queue_free(sn_server_queue **queue);

/* Puts n jobs of one owner into the queue, all or none. SN_RETRY: the queue has no room for them (retry_after_ms says
 * when there may be), or the queue drains. Jobs of owners who have more of them may lose their places. */
enum { SN_SERVER_RETRY_AFTER_MS = 2000 };
sn_status sn_server_queue_submit(sn_server_queue *queue, sn_server_job *const *jobs, size_t n, sn_err *err) SN_MUST_USE;
/* Ends a job early, within about a second: it is taken out of the queue, or its session is cancelled. */
void sn_server_queue_cancel(sn_server_queue *queue, sn_server_job *job);
void sn_server_queue_cancel_all(sn_server_queue *queue);
/* Waits for the end of a job. Of one that was cancelled that is within about a second, as calls of the C API end within
 * a second then (swarm_cancel_set) and what `run` does besides waits for nothing; else when `run` has done its work,
 * whose steps have the limit of the session's option "timeout". */
void sn_server_queue_finish(sn_server_queue *queue, sn_server_job *job);

/* `run` calls this after each token, with no lock held: it returns when the next one may be computed, or at once when
 * the job is cancelled. */
void sn_server_queue_take_turn(sn_server_queue *queue, sn_server_job *job);

/* From now on submits are refused. */
void sn_server_queue_drain(sn_server_queue *queue);

typedef struct sn_server_queue_load {
    size_t running, queued, sessions; /* jobs, jobs, sessions that are open */
    bool draining;
} sn_server_queue_load;
sn_server_queue_load sn_server_queue_get_load(sn_server_queue *queue);

#endif
