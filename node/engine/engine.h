/* The engine: the thread that owns the devices, the span on them and the KV pool (the device thread).
 *
 * sn_engine runs the scheduler (scheduler.h) in a loop. Jobs enter and leave through bounded queues, so nothing below
 * the engine needs a lock. Two kinds of work pass the scheduler by: experts that other nodes ask for (SN_JOB_EXPERTS)
 * are computed one between two batches, and while a batch waits for experts of other nodes (expert_rounds.h). The
 * network thread submits jobs and takes finished ones; sn_engine_read may be called on any thread. */
#ifndef SN_NODE_ENGINE_ENGINE_H
#define SN_NODE_ENGINE_ENGINE_H

#include "node/engine/expert_rounds.h"
#include "node/engine/scheduler.h"
#include "node/engine/throughput.h"

typedef struct sn_engine sn_engine;

typedef struct sn_engine_stats {
    uint64_t forward_passes, compute_us, device_transfer_bytes, kv_bytes, queued_steps;
    uint64_t decode_us, prompt_tokens_per_s; /* over the whole span (throughput.h); 0: not measured */
    uint64_t shared_pages;                   /* KV pages that two sessions or more use */
    uint64_t prefix_cached_tokens;           /* attached from the prefix cache instead of computed */
    uint64_t swapped_bytes;                  /* KV pages of idle sessions, swapped out */
    sn_expert_counts experts;                /* sn_span_expert_counts */
    uint32_t lost_devices;                   /* sn_span_lost_devices */
    int working_first, working_end;          /* sn_span_working */
    uint64_t expert_wait_us;                 /* that forward passes waited for experts of other nodes */
} sn_engine_stats;

/* Starts the thread. `throughput` was measured before; the engine keeps it up to date. `finished` is called on the
 * thread when finished jobs or rounds can be taken; it may only wake another thread. The span and the pool are
 * borrowed, and no other thread may touch them until the engine is freed. */
sn_status sn_engine_new(sn_span *span, sn_kv_pool *pool, size_t jobs_max, sn_throughput throughput,
                        void (*finished)(void *), void *ctx, sn_engine **out, sn_err *err) SN_MUST_USE;
/* Waits for the running pass, ends the thread, frees all jobs that are left. Accepts NULL. */
void sn_engine_free(sn_engine **engine);

/* Takes the job. False: jobs_max jobs are in the engine; the caller keeps the job. */
bool sn_engine_submit(sn_engine *engine, sn_job *job) SN_MUST_USE;
sn_job *sn_engine_next_finished(sn_engine *engine); /* or NULL; never waits */
/* The next round that other nodes are to be asked for, which is then the caller's; NULL: none. */
sn_expert_round *sn_engine_next_round(sn_engine *engine);
/* Gives a round back that was answered or has failed. Takes it. */
void sn_engine_answer_round(sn_engine *engine, sn_expert_round *round);
sn_engine_stats sn_engine_read(const sn_engine *engine);

#endif
