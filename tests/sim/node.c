/* A simulated node: the real protocol and the real scheduler, without threads.
 *
 * How it works: sim_node_poll does what the loop of node/node.c does between two waits (tick the protocol, apply its
 * decisions about blocks, leave when drained); poll_engine does what the engine's thread does
 * (node/engine/engine.c): it runs the scheduler, and the result takes effect batch_us later, in engine_done. Both
 * are events that schedule their successors. Each program and each set of loaded blocks has a number, its
 * incarnation, so that events of an earlier one are ignored. A stalled machine postpones its events until it
 * continues. */
#include "base/clock.h"
#include "kvcache/swap.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/require.h"

#include <string.h>

enum { SWAP_US = 200, KV_POLL_US = 20000, LAST_STEPS_US = 4 * SECOND_US, FLUSH_US = 50000 };

static sim_node *node_of_program(swarm *s, uint64_t which) {
    for (int i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].incarnation == which) return &s->nodes[i];
    return NULL;
}
sim_node *sim_node_of_engine(swarm *s, uint64_t which) {
    for (int i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].engine == which) return &s->nodes[i];
    return NULL;
}

static sim_actor *enter_actor(sim_node *node) { return sim_set_actor(node->swarm->time, &node->actor); }
static void leave_actor(sim_node *node, sim_actor *previous) { sim_set_actor(node->swarm->time, previous); }

/* A stalled machine does later what it would do now. */
static bool postpone_if_stalled(const sim_node *node, sim_action action, void *what, uint64_t which) {
    sim_time *time = node->swarm->time;
    if (sim_now(time) >= node->stalled_until_us) return false;
    sim_schedule(time, node->stalled_until_us, action, what, which);
    return true;
}

/* -- the engine -- */

static void poll_engine(void *owner, void *what, uint64_t which, bool ending);

static void schedule_engine(sim_node *node, int64_t delay_us) {
    int64_t at = sim_now(node->swarm->time) + delay_us;
    if (node->working || at >= node->engine_us) return;
    node->engine_us = at;
    sim_schedule(node->swarm->time, at, poll_engine, NULL, node->engine << 32 | (uint32_t)++node->engine_polls);
}

static bool submit_job(void *ctx, sn_job *job) {
    sim_node *node = ctx;
    if (!node->engine || node->jobs == 2 * node->sessions_max) return false;
    if (job->kind == SN_JOB_EXPERTS) {
        sim_part_submit(node, job);
        return true;
    }
    node->jobs++;
    sn_scheduler_add(node->scheduler, job);
    schedule_engine(node, 50);
    return true;
}

static sn_engine_stats read_stats(void *ctx) {
    const sim_node *node = ctx;
    if (!node->engine) return (sn_engine_stats){0};
    return (sn_engine_stats){.decode_us = node->decode_us,
                             .forward_passes = sn_scheduler_forward_passes(node->scheduler),
                             .kv_bytes = sn_kv_pool_bytes_used(node->pool),
                             .queued_steps = node->jobs,
                             .swapped_bytes = sn_swap_bytes(node->pool)};
}

static void free_jobs(sn_job *job) {
    for (sn_job *next; job; job = next) {
        next = job->next;
        sn_job_free(&job);
    }
}

/* Schedules the engine's next turn: soon if there is work, otherwise when there may be some. */
static void engine_continue(sim_node *node) {
    const sn_scheduler *scheduler = node->scheduler;
    node->engine_us = INT64_MAX;
    if (sn_scheduler_swapping(scheduler))
        schedule_engine(node, SWAP_US);
    else if (!sn_scheduler_idle(scheduler))
        schedule_engine(node, sn_scheduler_waiting(scheduler) ? KV_POLL_US : 20);
    else if (sn_swap_enabled(node->pool))
        schedule_engine(node, SECOND_US);
}

static void flip_bit(sim_node *node, sn_job *job) {
    if (!node->flips_bits || job->kind != SN_JOB_STEP || job->status || !sim_rng_bernoulli(&node->actor.random, 0.1))
        return;
    uint32_t *bits = sn_shared_buffer_data(job->output);
    bits[sim_rng_below(&node->actor.random, (uint64_t)job->n_tokens * SIM_EMBD)] ^= 1;
    node->swarm->stats.wrong_replies++;
}

/* The time of the forward pass is over: the protocol receives the finished jobs. */
static void engine_done(void *owner, void *what, uint64_t which, bool ending) {
    sn_job *job = what;
    sim_node *node = ending ? NULL : sim_node_of_engine(owner, which);
    if (!node) {
        free_jobs(job);
        return;
    }
    if (postpone_if_stalled(node, engine_done, what, which)) return;
    sim_actor *previous = enter_actor(node);
    node->working = false;
    for (sn_job *next; job; job = next) {
        next = job->next;
        node->jobs--;
        flip_bit(node, job);
        sn_protocol_job_done(node->protocol, job, sn_now_us());
    }
    engine_continue(node);
    leave_actor(node, previous);
    sim_node_poll(node);
}

static void poll_engine(void *owner, void *what, uint64_t which, bool ending) {
    (void)what;
    sim_node *node = ending ? NULL : sim_node_of_engine(owner, which >> 32);
    if (!node || (uint32_t)node->engine_polls != (uint32_t)which) return;
    if (postpone_if_stalled(node, poll_engine, NULL, which)) return;
    node->engine_us = INT64_MAX;
    node->working = true;
    sim_actor *previous = enter_actor(node);
    if (node->part)
        sim_part_run_pass(node);
    else
        sim_node_run_pass(node);
    leave_actor(node, previous);
}

void sim_node_run_pass(sim_node *node) {
    uint64_t engine = node->engine, forward_passes = sn_scheduler_forward_passes(node->scheduler);
    sn_job *done = sn_scheduler_run(node->scheduler, sn_now_us());
    bool computed = sn_scheduler_forward_passes(node->scheduler) > forward_passes;
    int64_t took = computed ? node->batch_us : 20;
    node->working = done || computed;
    if (node->working)
        sim_schedule(node->swarm->time, sim_now(node->swarm->time) + took, engine_done, done, engine);
    else
        engine_continue(node);
}

/* -- the network thread */

static size_t page_bytes(sn_span *span) {
    sn_kv_pool *pool = NULL;
    REQUIRE(sn_span_kv_pool(span, 1 << 20, &pool, &err));
    size_t bytes = sn_kv_pool_bytes(pool) / (sn_kv_pool_tokens(pool) / SN_KV_PAGE_TOKENS);
    sn_kv_pool_free(&pool);
    return bytes;
}

static void free_pool(sim_node *node) {
    if (node->pool && sn_kv_pool_bytes_used(node->pool))
        sim_fail(node->swarm, "node %d left %zu bytes of KV cache allocated", node->number,
                 sn_kv_pool_bytes_used(node->pool));
    sn_kv_pool_free(&node->pool);
}

static void end_program(sim_node *node) {
    sn_node_stats stats;
    sn_protocol_read_stats(node->protocol, &stats);
    for (int i = 0; i < SN_QUOTA_KINDS; i++) node->swarm->stats.quota_refusals += stats.quota_refusals[i];
    node->swarm->stats.rounds += stats.experts.rounds;
    node->swarm->stats.rounds_failed += stats.experts.failed;
    node->swarm->stats.holders_dropped += stats.experts.dropped;
    if (node->part) sim_part_end(node);
    node->incarnation = node->engine = 0;
    sn_scheduler_free(&node->scheduler);
    sn_protocol_free(&node->protocol);
    sn_transport_free(&node->transport);
    free_pool(node);
}

static void start_serving(void *owner, void *what, uint64_t which, bool ending) {
    sim_node *node = ending ? NULL : node_of_program(owner, which);
    (void)what;
    if (!node || postpone_if_stalled(node, start_serving, NULL, which)) return;
    sn_span *span = node->part ? sim_part_serve(node) : sim_model_span(node->first, node->end);
    sim_actor *previous = enter_actor(node);
    REQUIRE(sn_span_kv_pool(span, node->pages * page_bytes(span), &node->pool, &err));
    REQUIRE(sn_prefix_cache_enable(node->pool, SIM_EMBD, node->prefix_cache_memory, &err));
    if (node->swap_pages)
        REQUIRE(sn_swap_enable(node->pool, NULL, node->swap_pages * page_bytes(span), node->swap_after_us, &err));
    REQUIRE(sn_scheduler_new(span, node->pool, &node->scheduler, &err));
    node->engine = ++node->swarm->incarnations;
    node->working = false;
    node->engine_us = INT64_MAX;
    sn_span_info info = sn_span_describe(span);
    sn_protocol_serve(node->protocol, &info, sn_kv_room_of(node->pool), sn_now_us(), sn_unix_ms());
    sim_trace_event(node->swarm->time, "serves", (uint64_t)node->number, (uint64_t)(node->first << 8 | node->end));
    leave_actor(node, previous);
    sim_node_poll(node);
}

/* Applies the placement's decisions about the served blocks. True: the protocol wants to be polled again at once. */
static bool apply_placement(sim_node *node) {
    swarm *s = node->swarm;
    bool rebalances = sn_protocol_wants_rebalance(node->protocol);
    if (rebalances) {
        if (node->jobs) sim_fail(s, "node %d rebalances with %zu jobs in its engine", node->number, node->jobs);
        node->engine = 0;
        sn_scheduler_free(&node->scheduler);
        free_pool(node);
        sn_protocol_vacate(node->protocol, sn_now_us(), sn_unix_ms());
        s->stats.rebalances++;
    }
    if (sn_protocol_wants_blocks(node->protocol, &node->first, &node->end))
        sim_schedule(s->time,
                     sim_now(s->time) + sim_rng_between(&node->actor.random, SECOND_US / 10, node->load_us_max),
                     start_serving, NULL, node->incarnation);
    return rebalances;
}

static void on_tick(void *owner, void *what, uint64_t which, bool ending) {
    (void)what;
    sim_node *node = ending ? NULL : node_of_program(owner, which >> 32);
    if (!node || (uint32_t)node->ticks != (uint32_t)which) return;
    if (!postpone_if_stalled(node, on_tick, NULL, which)) sim_node_poll(node);
}

static void announce_leave(sim_node *node) {
    sn_protocol_leave(node->protocol, sn_unix_ms());
    node->leaving = true;
    node->leave_by_us = sim_now(node->swarm->time) + LAST_STEPS_US;
}

/* What the loop of node/node.c does between two waits. */
void sim_node_poll(sim_node *node) {
    swarm *s = node->swarm;
    sim_actor *previous = enter_actor(node);
    int64_t next = sim_now(s->time) + FLUSH_US;
    if (!node->leaving) {
        next = sim_global_us(&node->actor, sn_protocol_tick(node->protocol, sn_now_us(), sn_unix_ms()));
        if (!node->drains && apply_placement(node)) next = sim_now(s->time);
        bool late = sim_now(s->time) >= node->drain_by_us;
        if (node->drains && next > node->drain_by_us) next = node->drain_by_us;
        if (node->drains && (late || !sn_protocol_session_count(node->protocol))) announce_leave(node);
    }
    leave_actor(node, previous);
    if (node->leaving && (!sn_protocol_busy(node->protocol) || sim_now(s->time) >= node->leave_by_us)) {
        sim_trace_event(s->time, "left", (uint64_t)node->number, 0);
        end_program(node);
        return;
    }
    sim_schedule(s->time, next, on_tick, NULL, node->incarnation << 32 | (uint32_t)++node->ticks);
}

static void receive_event(void *ctx, sn_event *event);

static void receive_delayed(void *owner, void *what, uint64_t which, bool ending) {
    sn_event *event = what;
    sim_node *node = ending ? NULL : node_of_program(owner, which);
    if (node) {
        sim_actor *previous = enter_actor(node);
        receive_event(node, event); /* takes the message */
        leave_actor(node, previous);
    } else {
        sn_msg_free(&event->msg);
    }
    free(event);
}

static void receive_event(void *ctx, sn_event *event) {
    sim_node *node = ctx;
    swarm *s = node->swarm;
    if (sim_now(s->time) < node->stalled_until_us) { /* the message waits in the socket */
        sn_event *late = sim_alloc(sizeof *late);
        *late = *event;
        sim_schedule(s->time, node->stalled_until_us, receive_delayed, late, node->incarnation);
        return;
    }
    sn_protocol_handle(node->protocol, event, sn_now_us(), sn_unix_ms());
    sim_node_poll(node);
}

/* -- start and end */

static void new_protocol(sim_node *node) {
    sn_quota_limits quota = node->quota;
    quota.kv_bytes *= page_bytes(sim_model_span(0, 1));
    const sn_protocol_setup setup = {.transport = node->transport,
                                     .identity = node->identity,
                                     .address = node->address,
                                     .name = node->actor.name,
                                     .span = {.hp = sn_model_hparams(sim_model_get()->model),
                                              .first = node->auto_blocks ? 0 : node->first,
                                              .end = node->auto_blocks ? 0 : node->end},
                                     .loading = true,
                                     .placement = {.auto_blocks = node->auto_blocks,
                                                   .expects_others = true,
                                                   .rebalance_us = 15 * SECOND_US,
                                                   .rebalance_gain = 20,
                                                   .drain_us_max = 5 * SECOND_US},
                                     .model = sim_model_get()->id,
                                     .sessions_max = node->sessions_max,
                                     .session_timeout_us = 40 * SECOND_US,
                                     .kv_timeout_us = SECOND_US,
                                     .prefix_cache_shared = node->prefix_cache_shared,
                                     .tune_bytes_max = node->tune_bytes_max,
                                     .quota = quota,
                                     .submit = submit_job,
                                     .read_stats = read_stats,
                                     .answer_round = sim_part_answer,
                                     .ctx = node};
    REQUIRE(sn_protocol_new(&setup, sn_now_us(), &node->protocol, &err));
}

void sim_node_start(sim_node *node) {
    swarm *s = node->swarm;
    char bound[SN_ADDRESS_MAX + 1];
    sim_actor *previous = enter_actor(node);
    node->incarnation = ++s->incarnations;
    node->jobs = 0;
    node->drains = node->leaving = false;
    node->stalled_until_us = 0;
    node->transport = sim_transport_new(s->net, node->host, receive_event, node);
    REQUIRE(sn_transport_listen(node->transport, node->address, bound, &err));
    new_protocol(node);
    const sim_node *bootstrap = &s->nodes[node->number ? 0 : 1 % s->n_nodes];
    sn_protocol_join(node->protocol, bootstrap->address, bootstrap->identity->curve_key);
    leave_actor(node, previous);
    sim_trace_event(s->time, "start", (uint64_t)node->number, 0);
    sim_node_poll(node);
}

void sim_node_crash(sim_node *node, bool silent) {
    if (!node->incarnation) return;
    sim_trace_event(node->swarm->time, "crash", (uint64_t)node->number, silent);
    sim_host_crash(node->swarm->net, node->host, silent);
    end_program(node);
}

void sim_node_drain(sim_node *node, int64_t drain_us) {
    if (!node->incarnation || node->drains) return;
    sim_trace_event(node->swarm->time, "drain", (uint64_t)node->number, 0);
    sim_actor *previous = enter_actor(node);
    sn_protocol_drain(node->protocol, sn_unix_ms());
    node->drains = true;
    node->drain_by_us = sim_now(node->swarm->time) + drain_us;
    leave_actor(node, previous);
    sim_node_poll(node);
}

void sim_node_stall(sim_node *node, int64_t until_us) {
    if (!node->incarnation) return;
    sim_trace_event(node->swarm->time, "stall", (uint64_t)node->number, (uint64_t)until_us);
    node->stalled_until_us = until_us;
}

void sim_node_check(const sim_node *node) {
    if (!node->incarnation) return;
    size_t sessions = sn_protocol_session_count(node->protocol);
    if (sessions > node->sessions_max)
        sim_fail(node->swarm, "node %d has %zu sessions, its limit is %zu", node->number, sessions, node->sessions_max);
    if (node->engine && sn_kv_pool_bytes_used(node->pool) > sn_kv_pool_bytes(node->pool))
        sim_fail(node->swarm, "node %d uses more KV cache than it has", node->number);
    if (node->jobs > 2 * node->sessions_max) sim_fail(node->swarm, "node %d has %zu jobs", node->number, node->jobs);
}

bool sim_node_is_clean(const sim_node *node) {
    bool empty = !node->engine || !sn_kv_pool_bytes_used(node->pool);
    return !node->incarnation || (!sn_protocol_session_count(node->protocol) && empty);
}
