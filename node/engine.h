/* The engine: the thread that owns a device, its span and the sessions' past. Jobs go in and come out through bounded
 * queues; everything below it needs no lock. */
#ifndef SN_NODE_ENGINE_H
#define SN_NODE_ENGINE_H

#include "node/scheduler.h"
#include "node/speed.h"

typedef struct sn_engine sn_engine;

typedef struct sn_engine_figures { /* read from any thread */
    uint64_t passes, compute_us, guard_bytes, kv_bytes, queue;
    uint64_t decode_us, prompt_tokens_per_s; /* of passes over the whole span (node/speed.h); 0: not measured */
    uint64_t shared_pages, shared_tokens; /* pages of two sessions or more; tokens taken over instead of computed */
    uint64_t idle_bytes; /* set aside */
} sn_engine_figures;

/* Starts the thread. `speed`: measured before; it goes on being measured. `finished` is called on the thread after jobs were put
 * out: it must only wake somebody. The span and pool are borrowed, and touched by nobody else until the engine is freed. */
sn_status sn_engine_new(sn_span *span, sn_kv_pool *pool, size_t jobs_max, sn_speed speed, void (*finished)(void *),
                        void *ctx, sn_engine **out, sn_err *err) SN_MUST_USE;
/* Ends the pass in hand, frees every job that is left, and the thread. NULL-safe. */
void sn_engine_free(sn_engine **engine);

bool sn_engine_submit(sn_engine *engine, sn_job *job) SN_MUST_USE; /* false: jobs_max are in it, the job stays yours */
sn_job *sn_engine_take(sn_engine *engine);                         /* a finished job or NULL; never waits */
sn_engine_figures sn_engine_read(const sn_engine *engine);

#endif
