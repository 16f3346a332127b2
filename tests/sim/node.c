/* A node's program: node.c's loop and engine.c's thread, turn by turn. */
#include "base/clock.h"
#include "kvcache/idle.h"
#include "node/core_private.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/need.h"

#include <string.h>

enum { PASS_US = 3000, MOVE_US = 200, ROOM_POLL_US = 20000, LAST_STEPS_US = 4 * SECOND_US, FLUSH_US = 50000 };

static void turn(sim_node *node);

static sim_node *living(swarm *s, uint64_t which) {
    for (int i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].life == which) return &s->nodes[i];
    return NULL;
}
static sim_node *computing(swarm *s, uint64_t which) {
    for (int i = 0; i < s->n_nodes; i++)
        if (s->nodes[i].engine == which) return &s->nodes[i];
    return NULL;
}

static sim_actor *enter(sim_node *node) { return sim_enter(node->swarm->time, &node->actor); }
static void leave(sim_node *node, sim_actor *was) { sim_enter(node->swarm->time, was); }

/* A machine that stands still does what it would do now when it goes on. */
static bool postponed(const sim_node *node, sim_action action, void *what, uint64_t which) {
    sim_time *time = node->swarm->time;
    if (sim_now(time) >= node->stalled_until_us) return false;
    sim_at(time, node->stalled_until_us, action, what, which);
    return true;
}

/* -- the engine -- */

static void engine_turn(void *world, void *what, uint64_t which, bool ending);

static void engine_soon(sim_node *node, int64_t delay_us) {
    int64_t at = sim_now(node->swarm->time) + delay_us;
    if (node->working || at >= node->engine_us) return;
    node->engine_us = at;
    sim_at(node->swarm->time, at, engine_turn, NULL, node->engine << 32 | (uint32_t)++node->engine_turns);
}

static bool submit(void *ctx, sn_job *job) {
    sim_node *node = ctx;
    if (!node->engine || node->jobs == 2 * node->sessions_max) return false;
    node->jobs++;
    sn_scheduler_add(node->scheduler, job);
    engine_soon(node, 50);
    return true;
}

static sn_engine_figures figures(void *ctx) {
    const sim_node *node = ctx;
    if (!node->engine) return (sn_engine_figures){0};
    return (sn_engine_figures){.decode_us = node->decode_us,
                               .passes = sn_scheduler_passes(node->scheduler),
                               .kv_bytes = sn_kv_pool_bytes_used(node->pool),
                               .queue = node->jobs,
                               .idle_bytes = sn_idle_bytes(node->pool)};
}

static void free_jobs(sn_job *job) {
    for (sn_job *next; job; job = next) {
        next = job->next;
        sn_job_free(&job);
    }
}

/* What an engine does between two passes: again soon, or when there may be something new. */
static void engine_goes_on(sim_node *node) {
    const sn_scheduler *scheduler = node->scheduler;
    node->engine_us = INT64_MAX;
    if (sn_scheduler_moving(scheduler)) engine_soon(node, MOVE_US);
    else if (!sn_scheduler_idle(scheduler)) engine_soon(node, sn_scheduler_waiting(scheduler) ? ROOM_POLL_US : 20);
    else if (sn_idle_there(node->pool)) engine_soon(node, SECOND_US);
}

static void bend(sim_node *node, sn_job *job) {
    if (!node->bends || job->kind != SN_JOB_STEP || job->status || !sim_chance(&node->actor.random, 0.1)) return;
    uint32_t *bits = sn_shared_data(job->output);
    bits[sim_below(&node->actor.random, (uint64_t)job->n_tokens * SIM_EMBD)] ^= 1;
    node->swarm->figures.lies++;
}

/* The pass's time is over: the core gets what was done in it. */
static void engine_done(void *world, void *what, uint64_t which, bool ending) {
    sn_job *job = what;
    sim_node *node = ending ? NULL : computing(world, which);
    if (!node) {
        free_jobs(job);
        return;
    }
    if (postponed(node, engine_done, what, which)) return;
    sim_actor *was = enter(node);
    node->working = false;
    for (sn_job *next; job; job = next) {
        next = job->next;
        node->jobs--;
        bend(node, job);
        sn_core_done(node->core, job, sn_now_us());
    }
    engine_goes_on(node);
    leave(node, was);
    turn(node);
}

static void engine_turn(void *world, void *what, uint64_t which, bool ending) {
    (void)what;
    sim_node *node = ending ? NULL : computing(world, which >> 32);
    if (!node || (uint32_t)node->engine_turns != (uint32_t)which) return;
    if (postponed(node, engine_turn, NULL, which)) return;
    sim_actor *was = enter(node);
    uint64_t passes = sn_scheduler_passes(node->scheduler);
    sn_job *done = sn_scheduler_run(node->scheduler, sn_now_us());
    int64_t took = sn_scheduler_passes(node->scheduler) > passes ? PASS_US : 20;
    node->engine_us = INT64_MAX;
    node->working = done || took == PASS_US;
    if (node->working) sim_at(node->swarm->time, sim_now(node->swarm->time) + took, engine_done, done, node->engine);
    else engine_goes_on(node);
    leave(node, was);
}

/* -- the network thread -- */

static size_t page_bytes(sn_span *span) {
    sn_kv_pool *pool = NULL;
    NEED(sn_span_kv_pool(span, 1 << 20, &pool, &err));
    size_t bytes = sn_kv_pool_bytes(pool) / (sn_kv_pool_tokens(pool) / SN_KV_PAGE_TOKENS);
    sn_kv_pool_free(&pool);
    return bytes;
}

static void free_pool(sim_node *node) {
    if (node->pool && sn_kv_pool_bytes_used(node->pool))
        sim_wrong(node->swarm, "node %d left %zu bytes of cache behind", node->number, sn_kv_pool_bytes_used(node->pool));
    sn_kv_pool_free(&node->pool);
}

static void end_program(sim_node *node) {
    node->life = node->engine = 0;
    sn_scheduler_free(&node->scheduler);
    sn_core_free(&node->core);
    sn_transport_free(&node->transport);
    free_pool(node);
}

static void begin_to_serve(void *world, void *what, uint64_t which, bool ending) {
    sim_node *node = ending ? NULL : living(world, which);
    (void)what;
    if (!node || postponed(node, begin_to_serve, NULL, which)) return;
    sn_span *span = sim_model_span(node->first, node->end);
    sim_actor *was = enter(node);
    NEED(sn_span_kv_pool(span, node->pages * page_bytes(span), &node->pool, &err));
    NEED(sn_prefix_share(node->pool, SIM_EMBD, node->prefix_memory, &err));
    if (node->idle_pages)
        NEED(sn_idle_open(node->pool, NULL, node->idle_pages * page_bytes(span), node->idle_after_us, &err));
    NEED(sn_scheduler_new(span, node->pool, &node->scheduler, &err));
    node->engine = ++node->swarm->lives;
    node->working = false;
    node->engine_us = INT64_MAX;
    sn_span_facts facts = sn_span_describe(span);
    sn_core_serve(node->core, &facts, sn_kv_pool_bytes(node->pool), sn_now_us(), sn_unix_ms());
    sim_note(node->swarm->time, "serves", (uint64_t)node->number, (uint64_t)(node->first << 8 | node->end));
    leave(node, was);
    turn(node);
}

/* What the core has decided about the blocks that are served. True: it wants to be asked again at once. */
static bool attend(sim_node *node) {
    swarm *s = node->swarm;
    bool moves = sn_core_wants_to_move(node->core);
    if (moves) {
        if (node->jobs) sim_wrong(s, "node %d moves with %zu jobs in its engine", node->number, node->jobs);
        node->engine = 0;
        sn_scheduler_free(&node->scheduler);
        free_pool(node);
        sn_core_vacate(node->core, sn_now_us(), sn_unix_ms());
        s->figures.moves++;
    }
    if (sn_core_wants_blocks(node->core, &node->first, &node->end))
        sim_at(s->time, sim_now(s->time) + sim_between(&node->actor.random, SECOND_US / 10, node->load_us_max),
               begin_to_serve, NULL, node->life);
    return moves;
}

static void on_tick(void *world, void *what, uint64_t which, bool ending) {
    (void)what;
    sim_node *node = ending ? NULL : living(world, which >> 32);
    if (!node || (uint32_t)node->ticks != (uint32_t)which) return;
    if (!postponed(node, on_tick, NULL, which)) turn(node);
}

static void say_leave(sim_node *node) {
    sn_core_leave(node->core, sn_unix_ms());
    node->leaving = true;
    node->leave_by_us = sim_now(node->swarm->time) + LAST_STEPS_US;
}

/* What the loop does between two waits. */
static void turn(sim_node *node) {
    swarm *s = node->swarm;
    sim_actor *was = enter(node);
    int64_t next = sim_now(s->time) + FLUSH_US;
    if (!node->leaving) {
        next = sim_global_us(&node->actor, sn_core_tick(node->core, sn_now_us(), sn_unix_ms()));
        if (!node->drains && attend(node)) next = sim_now(s->time);
        bool late = sim_now(s->time) >= node->drain_by_us;
        if (node->drains && next > node->drain_by_us) next = node->drain_by_us;
        if (node->drains && (late || !sn_core_sessions(node->core))) say_leave(node);
    }
    leave(node, was);
    if (node->leaving && (!sn_core_busy(node->core) || sim_now(s->time) >= node->leave_by_us)) {
        sim_note(s->time, "left", (uint64_t)node->number, 0);
        end_program(node);
        return;
    }
    sim_at(s->time, next, on_tick, NULL, node->life << 32 | (uint32_t)++node->ticks);
}

static void receive(void *ctx, sn_event *event);

static void receive_late(void *world, void *what, uint64_t which, bool ending) {
    sn_event *event = what;
    sim_node *node = ending ? NULL : living(world, which);
    if (node) {
        sim_actor *was = enter(node);
        receive(node, event); /* takes its message */
        leave(node, was);
    } else {
        sn_msg_free(&event->msg);
    }
    free(event);
}

static void receive(void *ctx, sn_event *event) {
    sim_node *node = ctx;
    swarm *s = node->swarm;
    if (sim_now(s->time) < node->stalled_until_us) { /* it waits in the socket */
        sn_event *late = sim_alloc(sizeof *late);
        *late = *event;
        sim_at(s->time, node->stalled_until_us, receive_late, late, node->life);
        return;
    }
    sn_core_handle(node->core, event, sn_now_us(), sn_unix_ms());
    turn(node);
}

/* -- life and death -- */

static void new_core(sim_node *node) {
    const sn_core_setup setup = {.transport = node->transport,
                                 .identity = node->identity,
                                 .address = node->address,
                                 .name = node->actor.name,
                                 .span = {.hp = sn_model_hparams(sim_model_get()->model),
                                          .first = node->auto_blocks ? 0 : node->first,
                                          .end = node->auto_blocks ? 0 : node->end},
                                 .loading = true,
                                 .auto_blocks = node->auto_blocks,
                                 .expects_others = true,
                                 .rebalance_us = 15 * SECOND_US,
                                 .rebalance_gain = 20,
                                 .move_us_max = 5 * SECOND_US,
                                 .model = sim_model_get()->id,
                                 .sessions_max = node->sessions_max,
                                 .idle_us_max = 40 * SECOND_US,
                                 .room_us_max = SECOND_US,
                                 .share_all = node->share_all,
                                 .submit = submit,
                                 .read = figures,
                                 .ctx = node};
    NEED(sn_core_new(&setup, sn_now_us(), &node->core, &err));
}

void sim_node_start(sim_node *node) {
    swarm *s = node->swarm;
    char bound[SN_ADDRESS_MAX + 1];
    sim_actor *was = enter(node);
    node->life = ++s->lives;
    node->jobs = 0;
    node->drains = node->leaving = false;
    node->stalled_until_us = 0;
    node->transport = sim_transport_new(s->net, node->place, receive, node);
    NEED(sn_transport_listen(node->transport, node->address, bound, &err));
    new_core(node);
    const sim_node *joined = &s->nodes[node->number ? 0 : 1 % s->n_nodes];
    sn_core_join(node->core, joined->address, joined->identity->curve_key);
    leave(node, was);
    sim_note(s->time, "start", (uint64_t)node->number, 0);
    turn(node);
}

void sim_node_crash(sim_node *node, bool silent) {
    if (!node->life) return;
    sim_note(node->swarm->time, "crash", (uint64_t)node->number, silent);
    sim_place_crash(node->swarm->net, node->place, silent);
    end_program(node);
}

void sim_node_drain(sim_node *node, int64_t drain_us) {
    if (!node->life || node->drains) return;
    sim_note(node->swarm->time, "drain", (uint64_t)node->number, 0);
    sim_actor *was = enter(node);
    sn_core_drain(node->core, sn_unix_ms());
    node->drains = true;
    node->drain_by_us = sim_now(node->swarm->time) + drain_us;
    leave(node, was);
    turn(node);
}

void sim_node_stall(sim_node *node, int64_t until_us) {
    if (!node->life) return;
    sim_note(node->swarm->time, "stall", (uint64_t)node->number, (uint64_t)until_us);
    node->stalled_until_us = until_us;
}

void sim_node_check(const sim_node *node) {
    if (!node->life) return;
    size_t sessions = sn_sessions_count(node->core->sessions);
    if (sessions > node->sessions_max)
        sim_wrong(node->swarm, "node %d has %zu sessions, its limit is %zu", node->number, sessions, node->sessions_max);
    if (node->engine && sn_kv_pool_bytes_used(node->pool) > sn_kv_pool_bytes(node->pool))
        sim_wrong(node->swarm, "node %d uses more cache than it has", node->number);
    if (node->jobs > 2 * node->sessions_max) sim_wrong(node->swarm, "node %d has %zu jobs", node->number, node->jobs);
}

bool sim_node_is_clean(const sim_node *node) {
    bool empty = !node->engine || !sn_kv_pool_bytes_used(node->pool);
    return !node->life || (!sn_sessions_count(node->core->sessions) && empty);
}
