/* The scheduler: which jobs go into the next pass over the span. No threads, no queues: the engine runs it in
 * production, tests by hand. Belongs to the device's thread.
 *
 * A pass is over the same blocks with the same tuning; kinds of passes take turns. It takes every session that has such
 * work: decode steps first, so that a prompt never stops others from writing, then
 * prompts in chunks, clients in turns. A job that finds the cache full waits until its deadline for others to give room (room.h). Rows whose pages
 * are known (kvcache/prefix.h) are taken over instead of computed; of two that read the same beginning at once, the second
 * waits for the pages of the first. Training comes last: a sequence at a time, when no step can run. */
#ifndef SN_NODE_SCHEDULER_H
#define SN_NODE_SCHEDULER_H

#include "node/job.h"

typedef struct sn_scheduler sn_scheduler;

enum {
    SN_DECODE_ROWS_MAX = 8,    /* a job with no more rows left counts as decoding */
    SN_PROMPT_ROWS_BESIDE = 64, /* of prompts in a pass that also decodes, as long as nobody has said how long a row takes */
    SN_PROMPT_DELAY_US = 10000, /* after that: as many as take so long, or as long as the rows that decode */
    SN_GATHER_ROWS = 4,         /* a pass with so many waits for no more */
    SN_GATHER_US_MAX = 2000,    /* nor longer than half a pass of one row, and this */
};

sn_status sn_scheduler_new(sn_span *span, sn_kv_pool *pool, sn_scheduler **out, sn_err *err) SN_MUST_USE;
void sn_scheduler_free(sn_scheduler **scheduler); /* NULL-safe; jobs still in it are freed */

/* A pass of one row takes decode_us, and each further row adds row_ns; 0: not known. By that the delay is bounded which prompts
 * add to the steps of those who write, and the wait for more rows. */
void sn_scheduler_pace(sn_scheduler *scheduler, uint64_t decode_us, uint64_t row_ns);

void sn_scheduler_add(sn_scheduler *scheduler, sn_job *job); /* owns the job until it comes out of run */

/* Sessions that were in one pass have their answers together, and come back together, but one by one. So where the first of them is
 * there, its pass is worth a short wait for the others: a few rows cost hardly more than one. Until when nothing is to be run
 * but what else comes is to be added; 0: run now. Who does not come in time is not waited for again, and a lone session never waits. */
int64_t sn_scheduler_gathers(const sn_scheduler *scheduler, int64_t now_us);

/* One pass (or the closing of sessions), and some moving of pages. Returns the jobs that ended as a list by `next`, NULL if none. */
sn_job *sn_scheduler_run(sn_scheduler *scheduler, int64_t now_us);

bool sn_scheduler_idle(const sn_scheduler *scheduler);    /* no jobs at all */
bool sn_scheduler_waiting(const sn_scheduler *scheduler); /* all of its jobs wait for room, and none is being made */
bool sn_scheduler_moving(const sn_scheduler *scheduler);  /* pages are to be moved: run it again soon, jobs or not */
uint64_t sn_scheduler_passes(const sn_scheduler *scheduler);
int sn_scheduler_rows(const sn_scheduler *scheduler); /* of the newest run's pass, if it went over the whole span; else 0 */
/* What crossed the borders of devices in its passes; more than the plan says is warned of in the log. */
const sn_guard_watch *sn_scheduler_watch(const sn_scheduler *scheduler);

#endif
