/* A scheduler by hand: one span on the CPU, a KV pool, and steps that the test adds and runs batch by batch, in time
 * that it controls (passes take none by the virtual clock). A failure here ends the process. */
#ifndef SN_TESTS_SCHEDULER_FIXTURE_H
#define SN_TESTS_SCHEDULER_FIXTURE_H

#include "node/engine/scheduler.h"

enum { SCHEDULER_SESSIONS = 24, EMBD = 64, PAGE = SN_KV_PAGE_TOKENS };

typedef struct scheduler_fixture {
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv_cache *kv[SCHEDULER_SESSIONS];
    float *rows; /* (SN_SPAN_ROWS_MAX, EMBD) */
    size_t page;
    int64_t now;
} scheduler_fixture;

void scheduler_fixture_begin(scheduler_fixture *b, int pages);
/* batch_rows: of the device (sn_device_options). */
void scheduler_fixture_begin_with_rows(scheduler_fixture *b, int pages, int batch_rows);
void scheduler_fixture_end(scheduler_fixture *b);

/* Adds a step of n tokens for session s over all blocks to the scheduler. It waits up to 10 s for KV pages. */
sn_job *add_step(scheduler_fixture *b, int s, int position, int n);
/* The same of this client, which the scheduler knows from when the step comes. */
void add_clients_step(scheduler_fixture *b, uint64_t client, int s, int position, int n);
/* The same over blocks [first, end). */
sn_job *add_step_over(scheduler_fixture *b, int s, int position, int n, int first, int end);
/* The same over all blocks, at position 0; it waits up to a minute. */
sn_job *add_step_with_priority(scheduler_fixture *b, int s, int n, int priority);
void add_close(scheduler_fixture *b, int s);

/* Runs one batch. All finished jobs must have `status`; frees them and returns their number. *sessions has a bit for
 * each of their sessions. */
int run_batch(scheduler_fixture *b, sn_status status, unsigned *sessions);

#endif
