/* The scheduler: which jobs go into the next forward pass over the span (continuous batching).
 *
 * sn_scheduler holds all jobs that were submitted and not finished. Each call of sn_scheduler_run forms one batch and
 * runs it. It has no thread and no queue of its own: the engine's thread calls it in production, tests call it
 * directly. All functions belong to the device thread.
 *
 * A batch is made of rows of several sessions that go through the same blocks with the same adapter; kinds of batches
 * (blocks, adapter) alternate. Decode steps are added first, so that a prompt never stops decoding sessions; then
 * prefill rows, in chunks that are bounded while others decode, alternating between clients. A step for which no KV
 * pages are free waits until its deadline (kv_admission.h). Rows whose KV pages the prefix cache has are attached
 * instead of computed; of two steps that compute the same prefix at once, the second waits for the pages of the first.
 * Training runs in pieces that delay a step no longer than a prompt does: when no step can run or is expected soon, or
 * after steps had twice the time of the piece before. Clients take turns with it.
 *
 * Errors: a job that fails is returned with job->status and job->err set; SN_RETRY: no KV pages became free in time. */
#ifndef SN_NODE_ENGINE_SCHEDULER_H
#define SN_NODE_ENGINE_SCHEDULER_H

#include "node/engine/job.h"

typedef struct sn_scheduler sn_scheduler;

enum {
    SN_DECODE_ROWS_MAX = 8,          /* a step with at most so many rows left counts as decoding */
    SN_PREFILL_ROWS_CONCURRENT = 64, /* prefill rows per batch while others decode, before the time per row is known */
    SN_PREFILL_DELAY_US = 10000, /* afterwards: time that prefill rows may add to a batch, or as many rows as decode; */
    SN_PREFILL_DELAYS_MAX = 4,   /* so many times that where more prompts wait than rows decode, in their ratio */
    SN_PREFILL_ALONE_US = 100000, /* while no session decodes: time that a pass of more than SN_SPAN_ROWS may take */
    SN_BATCH_WAIT_ROWS = 4,       /* a batch with so many decode rows waits for no more */
    SN_BATCH_WAIT_US_MAX = 2000,  /* nor does it wait for more than this, or half the time of a pass of one row */
};

sn_status sn_scheduler_new(sn_span *span, sn_kv_pool *pool, sn_scheduler **out, sn_err *err) SN_MUST_USE;
void sn_scheduler_free(sn_scheduler **scheduler); /* accepts NULL; frees the jobs that it holds */

/* A pass of one row takes decode_us, each further row adds row_ns; 0: not known. These bound the batch wait, and the
 * delay that prefill rows add to decoding sessions. */
void sn_scheduler_set_throughput(sn_scheduler *scheduler, uint64_t decode_us, uint64_t row_ns);

/* Takes the job, until sn_scheduler_run returns it; also while that runs, within an exchange of experts
 * (expert_rounds.h). */
void sn_scheduler_add(sn_scheduler *scheduler, sn_job *job);

/* The batch wait. Sessions that were in one batch get their replies together, so their next steps arrive shortly after
 * one another. Once the first of them is here, its pass is worth a short wait for the others, because a few more rows
 * hardly cost more than one. Returns until when to wait for jobs before the next sn_scheduler_run; 0: run now. A
 * session that does not arrive in time is not waited for again, and a single session never waits. */
int64_t sn_scheduler_batch_wait(sn_scheduler *scheduler, int64_t now_us);

/* Something else waits for the device thread at short intervals, as a decoding session does (EXPERTS of other nodes):
 * passes are kept short for a while. */
void sn_scheduler_note_others(sn_scheduler *scheduler, int64_t now_us);

/* One round: closes sessions, copies at most one part of KV pages in or out, swaps some pages, and runs one batch.
 * Returns the jobs that are finished as a list by `next`; NULL: none. */
sn_job *sn_scheduler_run(sn_scheduler *scheduler, int64_t now_us);

bool sn_scheduler_idle(const sn_scheduler *scheduler);     /* holds no jobs */
bool sn_scheduler_waiting(const sn_scheduler *scheduler);  /* all jobs wait, and no swap is going on */
bool sn_scheduler_swapping(const sn_scheduler *scheduler); /* pages are to be swapped: run it again soon, jobs or not */
uint64_t sn_scheduler_forward_passes(const sn_scheduler *scheduler);
/* Rows of the newest round's batch if it went over the whole span; 0 otherwise. And what its pass took, without what
 * else the round did. */
int sn_scheduler_rows(const sn_scheduler *scheduler);
int64_t sn_scheduler_pass_us(const sn_scheduler *scheduler);
/* Bytes that crossed device borders in its passes; more than a plan predicts is logged. */
const sn_guard_monitor *sn_scheduler_watch(const sn_scheduler *scheduler);

#endif
