/* The device thread's loop: it takes jobs from the inbox, computes a part of an EXPERTS of another node, runs one
 * round of the scheduler, and puts finished jobs into the outbox. In a forward pass that waits for experts of other
 * nodes the same inbox is read (engine_serve_rounds), so that what those nodes ask of this one does not wait for the
 * pass. */
#include "node/engine/engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "kvcache/swap.h"

#include <pthread.h>
#include <stdlib.h>

enum { KV_POLL_US = 2000, IDLE_US = 1000000 };

struct sn_engine {
    sn_scheduler *scheduler;
    sn_expert_rounds *rounds;
    sn_job *experts, **experts_end; /* EXPERTS that wait, in the order of their turns */
    uint64_t pair_ns;               /* running mean of what a pair of them takes; 0: not known */
    sn_span *span;
    sn_kv_pool *pool;
    sn_queue *inbox, *outbox;
    void (*finished)(void *);
    void *ctx;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    atomic_size_t jobs; /* in the engine, from sn_engine_submit to sn_engine_next_finished */
    size_t jobs_max;
    _Atomic uint64_t forward_passes, compute_us, device_transfer_bytes, kv_bytes, shared_pages, prefix_cached_tokens,
        swapped_bytes, expert_hits, experts_ahead, expert_misses, expert_bytes, expert_wait_us;
    sn_throughput throughput; /* the engine thread's; the next two are published copies */
    _Atomic uint64_t decode_us, prompt_tokens_per_s;
    _Atomic uint32_t lost_devices;
    atomic_int working_first, working_end;
};

static void engine_publish_throughput(sn_engine *e) {
    atomic_store(&e->decode_us, e->throughput.decode_us);
    atomic_store(&e->prompt_tokens_per_s, e->throughput.prompt_tokens_per_s);
}

/* lost_devices comes last, so that a thread that reads it first finds the range that belongs to it, or a newer one. */
static void engine_publish_working(sn_engine *e) {
    int first, end;
    sn_span_working(e->span, &first, &end);
    atomic_store(&e->working_first, first);
    atomic_store(&e->working_end, end);
    atomic_store(&e->lost_devices, sn_span_lost_devices(e->span));
}

static void engine_publish_stats(sn_engine *e, int64_t busy_us) {
    sn_throughput_update(&e->throughput, sn_scheduler_rows(e->scheduler), sn_scheduler_pass_us(e->scheduler));
    sn_scheduler_set_throughput(e->scheduler, e->throughput.decode_us, e->throughput.row_ns);
    engine_publish_throughput(e);
    engine_publish_working(e);
    atomic_store(&e->forward_passes, sn_scheduler_forward_passes(e->scheduler));
    atomic_store(&e->device_transfer_bytes, sn_scheduler_watch(e->scheduler)->bytes);
    atomic_store(&e->kv_bytes, sn_kv_pool_bytes_used(e->pool));
    atomic_store(&e->shared_pages, sn_prefix_cache_pages_shared(e->pool));
    atomic_store(&e->swapped_bytes, sn_swap_bytes(e->pool));
    atomic_store(&e->prefix_cached_tokens, sn_prefix_cache_hit_tokens(e->pool));
    const sn_expert_counts experts = sn_span_expert_counts(e->span);
    atomic_store(&e->expert_hits, experts.hits);
    atomic_store(&e->experts_ahead, experts.ahead);
    atomic_store(&e->expert_misses, experts.misses);
    atomic_store(&e->expert_bytes, experts.bytes);
    atomic_fetch_add(&e->compute_us, (uint64_t)busy_us);
}

/* Puts finished jobs into the outbox, whose capacity is jobs_max. */
static void engine_publish_jobs(sn_engine *e, sn_job *done) {
    bool any = done;
    while (done) {
        sn_job *next = done->next;
        if (!sn_queue_push(e->outbox, done)) abort();
        done = next;
    }
    if (any) e->finished(e->ctx);
}

/* -- experts for other nodes, and from them --------------------------------------------------------------------- */

static void engine_take(sn_engine *e, sn_job *job) {
    if (job->kind != SN_JOB_EXPERTS) {
        sn_scheduler_add(e->scheduler, job);
        return;
    }
    sn_scheduler_note_others(e->scheduler, sn_now_us());
    job->next = NULL;
    *e->experts_end = job;
    e->experts_end = &job->next;
}

/* Computes the next pairs of an EXPERTS in the order of its experts, so that each is read once for many rows: so many
 * pairs that they delay what waits by no more than prefill rows delay decode rows (scheduler.h). */
static void experts_compute(sn_engine *e, sn_job *job) {
    enum { PAIRS_MIN = 16 };
    sn_experts_task *task = job->experts;
    size_t width = (size_t)sn_span_hparams(e->span)->n_embd;
    size_t most = e->pair_ns ? SN_PREFILL_DELAY_US * 1000 / e->pair_ns : SN_PREFILL_ROWS_CONCURRENT;
    size_t pairs = sn_experts_task_next(task, most < PAIRS_MIN ? PAIRS_MIN : most);
    int64_t begun_us = sn_now_us();
    float *rows = NULL; /* then the outputs */
    int32_t *ids = NULL;
    if (!job->started_us) job->started_us = begun_us;
    if (!job->output)
        job->status = sn_shared_buffer_new(task->n_pairs * width * sizeof(float), &job->output, &job->err);
    if (!job->status) job->status = sn_calloc(&rows, 2 * pairs * width, sizeof *rows, &job->err);
    if (!job->status) job->status = sn_calloc(&ids, pairs * (size_t)task->k, sizeof *ids, &job->err);
    if (!job->status) {
        const int n = sn_experts_task_part(task, pairs, width, rows, ids);
        const sn_expert_request request = {job->first, n, (int)width, task->k, rows, ids};
        job->status = sn_span_run_experts(e->span, &request, rows + pairs * width, &job->err);
    }
    if (!job->status) sn_experts_task_place(task, rows + pairs * width, width, sn_shared_buffer_data(job->output));
    free(rows);
    free(ids);
    uint64_t ns = (uint64_t)(sn_now_us() - begun_us) * 1000 / pairs + 1;
    e->pair_ns = e->pair_ns ? (7 * e->pair_ns + ns) / 8 : ns;
}

/* Computes a part of the oldest EXPERTS, which then lets the others go first; false: there is none. */
static bool engine_compute_experts(sn_engine *e) {
    sn_job *job = e->experts;
    if (!job) return false;
    e->experts = job->next;
    if (!e->experts) e->experts_end = &e->experts;
    if (atomic_load(&job->cancelled))
        job->status = sn_fail(&job->err, SN_REFUSED, "the connection of the node has ended");
    else
        experts_compute(e, job);
    if (!job->status && job->experts->pairs_done < job->experts->n_pairs) {
        engine_take(e, job);
        return true;
    }
    job->next = NULL;
    job->finished_us = sn_now_us();
    engine_publish_jobs(e, job);
    return true;
}

/* What the device thread does in a forward pass that waits for a round: experts for other nodes; jobs of its own wait
 * for the end of the pass. */
static bool engine_serve_rounds(void *ctx, int64_t until_us) {
    sn_engine *e = ctx;
    int64_t begun_us = sn_now_us();
    sn_job *job = sn_queue_pop(e->inbox, e->experts ? 0 : until_us);
    atomic_fetch_add(&e->expert_wait_us, (uint64_t)(sn_now_us() - begun_us));
    if (job) engine_take(e, job);
    (void)engine_compute_experts(e);
    return !atomic_load(&e->stop);
}

static void engine_round_asked(void *ctx) {
    const sn_engine *e = ctx;
    e->finished(e->ctx);
}

static sn_status engine_new_rounds(sn_engine *e, sn_err *err) {
    const sn_expert_rounds_host host = {engine_round_asked, engine_serve_rounds, e};
    sn_status status = sn_expert_rounds_new(&host, &e->rounds, err);
    if (!status) sn_span_set_expert_exchange(e->span, sn_expert_rounds_exchange(e->rounds));
    return status;
}

static void *engine_run(void *arg) {
    sn_engine *e = arg;
    bool steps_had_their_turn = true; /* since the last part for other nodes */
    while (!atomic_load(&e->stop)) {
        int64_t now = sn_now_us(), wait = 0;
        if (e->experts || sn_scheduler_swapping(e->scheduler))
            wait = 0;
        else if (sn_scheduler_idle(e->scheduler))
            wait = now + IDLE_US;
        else if (sn_scheduler_waiting(e->scheduler))
            wait = now + KV_POLL_US;
        for (sn_job *job = sn_queue_pop(e->inbox, wait); job; job = sn_queue_pop(e->inbox, 0)) engine_take(e, job);
        if (steps_had_their_turn || sn_scheduler_idle(e->scheduler)) steps_had_their_turn = !engine_compute_experts(e);
        now = sn_now_us();
        int64_t until = sn_scheduler_batch_wait(e->scheduler, now);
        if (until) {
            sn_job *more = sn_queue_pop(e->inbox, until);
            if (more) engine_take(e, more);
            continue;
        }
        steps_had_their_turn |= !sn_scheduler_idle(e->scheduler);
        sn_job *done = sn_scheduler_run(e->scheduler, now);
        engine_publish_stats(e, sn_now_us() - now);
        engine_publish_jobs(e, done);
    }
    return NULL;
}

sn_status sn_engine_new(sn_span *span, sn_kv_pool *pool, size_t jobs_max, sn_throughput throughput,
                        void (*finished)(void *), void *ctx, sn_engine **out, sn_err *err) {
    sn_engine *e = NULL;
    sn_status status = sn_calloc(&e, 1, sizeof *e, err);
    if (status) return status;
    e->span = span;
    e->pool = pool;
    e->finished = finished;
    e->ctx = ctx;
    e->jobs_max = jobs_max;
    e->throughput = throughput;
    e->experts_end = &e->experts;
    engine_publish_throughput(e);
    engine_publish_working(e);
    status = sn_scheduler_new(span, pool, &e->scheduler, err);
    if (!status) status = sn_queue_new(jobs_max, &e->inbox, err);
    if (!status) status = sn_queue_new(jobs_max, &e->outbox, err);
    if (!status) status = engine_new_rounds(e, err);
    if (!status && pthread_create(&e->thread, NULL, engine_run, e))
        status = sn_fail(err, SN_STOP, "the system has no thread left");
    if (status)
        sn_engine_free(&e);
    else
        e->started = true;
    *out = e;
    return status;
}

static void queue_free_jobs(sn_queue *queue) {
    if (!queue) return;
    for (sn_job *job = sn_queue_pop(queue, 0); job; job = sn_queue_pop(queue, 0)) sn_job_free(&job);
}

void sn_engine_free(sn_engine **engine) {
    sn_engine *e = *engine;
    if (!e) return;
    if (e->started) {
        atomic_store(&e->stop, true);
        sn_queue_wake(e->inbox);
        pthread_join(e->thread, NULL);
    }
    queue_free_jobs(e->inbox);
    queue_free_jobs(e->outbox);
    for (sn_job *job = e->experts; job; job = e->experts) {
        e->experts = job->next;
        sn_job_free(&job);
    }
    sn_scheduler_free(&e->scheduler);
    sn_span_set_expert_exchange(e->span, NULL);
    sn_expert_rounds_free(&e->rounds);
    sn_queue_free(&e->inbox);
    sn_queue_free(&e->outbox);
    free(e);
    *engine = NULL;
}

bool sn_engine_submit(sn_engine *e, sn_job *job) {
    if (atomic_fetch_add(&e->jobs, 1) >= e->jobs_max || !sn_queue_push(e->inbox, job)) {
        atomic_fetch_sub(&e->jobs, 1);
        return false;
    }
    return true;
}

sn_job *sn_engine_next_finished(sn_engine *e) {
    sn_job *job = sn_queue_pop(e->outbox, 0);
    if (job) atomic_fetch_sub(&e->jobs, 1);
    return job;
}

sn_expert_round *sn_engine_next_round(sn_engine *e) { return sn_expert_rounds_next(e->rounds); }

void sn_engine_answer_round(sn_engine *e, sn_expert_round *round) {
    sn_expert_rounds_answer(e->rounds, round);
    sn_queue_wake(e->inbox);
}

sn_engine_stats sn_engine_read(const sn_engine *e) {
    uint32_t lost = atomic_load(&e->lost_devices); /* before the range */
    return (sn_engine_stats){.forward_passes = atomic_load(&e->forward_passes),
                             .compute_us = atomic_load(&e->compute_us),
                             .device_transfer_bytes = atomic_load(&e->device_transfer_bytes),
                             .kv_bytes = atomic_load(&e->kv_bytes),
                             .queued_steps = atomic_load(&e->jobs),
                             .decode_us = atomic_load(&e->decode_us),
                             .prompt_tokens_per_s = atomic_load(&e->prompt_tokens_per_s),
                             .shared_pages = atomic_load(&e->shared_pages),
                             .prefix_cached_tokens = atomic_load(&e->prefix_cached_tokens),
                             .swapped_bytes = atomic_load(&e->swapped_bytes),
                             .experts = {.hits = atomic_load(&e->expert_hits),
                                         .ahead = atomic_load(&e->experts_ahead),
                                         .misses = atomic_load(&e->expert_misses),
                                         .bytes = atomic_load(&e->expert_bytes)},
                             .expert_wait_us = atomic_load(&e->expert_wait_us),
                             .lost_devices = lost,
                             .working_first = atomic_load(&e->working_first),
                             .working_end = atomic_load(&e->working_end)};
}
