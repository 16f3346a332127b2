/* Nodes that divide the experts of their blocks: the real rounds and exchange (node/engine/expert_rounds.h).
 *
 * How it works: a node's forward passes run in a task, which waits in the middle of a pass for experts of other nodes
 * while the other machines go on. A round that a pass begins reaches the protocol by an event, and its answer wakes the
 * task. What other nodes ask for is computed EXPERTS_US later, also while a pass waits, as the device thread does
 * (node/engine/engine.c). A program that ends runs its pass for the last time, which then fails. Each such node has a
 * device and a span of its own, because a device computes one pass at a time. */
#include "base/clock.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/require.h"

#include <stdlib.h>

enum { EXPERTS_US = 1000, PAIRS_AT_ONCE = 3 };

struct sim_part {
    sn_expert_range experts;
    sn_device *device;
    sn_span *span;
    sim_task *task;
    bool due, over; /* what the task does next: a pass; its end */
    /* -- of the running engine */
    sn_expert_rounds *rounds;
    bool stops;
    size_t jobs;
};

static void task_main(void *ctx) {
    sim_node *node = ctx;
    sim_part *part = node->part;
    while (!part->over) {
        if (part->due) {
            part->due = false;
            sim_node_run_pass(node);
        } else {
            sim_task_wait(INT64_MAX);
        }
    }
}

void sim_part_run_pass(sim_node *node) {
    node->part->due = true;
    sim_task_wake(node->part->task);
}

/* -- rounds: between a pass and the protocol */

static void take_rounds(void *owner, void *what, uint64_t which, bool ending) {
    (void)what;
    sim_node *node = ending ? NULL : sim_node_of_engine(owner, which);
    if (!node) return;
    sim_time *time = node->swarm->time;
    if (sim_now(time) < node->stalled_until_us) {
        sim_schedule(time, node->stalled_until_us, take_rounds, NULL, which);
        return;
    }
    sim_actor *previous = sim_set_actor(time, &node->actor);
    for (sn_expert_round *round; (round = sn_expert_rounds_next(node->part->rounds));)
        sn_protocol_ask_experts(node->protocol, round, sn_now_us());
    sim_set_actor(time, previous);
    sim_node_poll(node);
}

static void round_asked(void *ctx) {
    const sim_node *node = ctx;
    sim_schedule(node->swarm->time, sim_now(node->swarm->time), take_rounds, NULL, node->engine);
}

static bool wait_for_round(void *ctx, int64_t until_us) {
    const sim_node *node = ctx;
    if (!node->part->stops) sim_task_wait(sim_global_us(&node->actor, until_us));
    return !node->part->stops;
}

void sim_part_answer(void *ctx, sn_expert_round *round) {
    const sim_node *node = ctx;
    if (!node->part->rounds) {
        sn_expert_round_free(&round);
        return;
    }
    sn_expert_rounds_answer(node->part->rounds, round);
    sim_task_wake(node->part->task);
}

/* -- what other nodes ask for */

static sn_status compute_part(const sim_node *node, sn_job *job, sn_err *err) {
    sn_experts_task *task = job->experts;
    size_t left = task->n_pairs - task->pairs_done, pairs = left < PAIRS_AT_ONCE ? left : PAIRS_AT_ONCE;
    float rows[PAIRS_AT_ONCE * SIM_EMBD], out[PAIRS_AT_ONCE * SIM_EMBD];
    int32_t ids[PAIRS_AT_ONCE * SIM_MIXTURE_EXPERTS];
    int n = sn_experts_task_part(task, pairs, SIM_EMBD, rows, ids);
    const sn_expert_request request = {job->first, n, SIM_EMBD, task->k, rows, ids};
    sn_status status = sn_span_run_experts(node->part->span, &request, out, err);
    if (!status) sn_experts_task_place(task, out, SIM_EMBD, sn_shared_buffer_data(job->output));
    return status;
}

static void compute_experts(const sim_node *node, sn_job *job) {
    sn_experts_task *task = job->experts;
    job->started_us = job->finished_us = sn_now_us();
    if (atomic_load(&job->cancelled)) {
        job->status = sn_fail(&job->err, SN_REFUSED, "the connection of the node has ended");
        return;
    }
    job->status = sn_shared_buffer_new(task->n_pairs * SIM_EMBD * sizeof(float), &job->output, &job->err);
    while (!job->status && task->pairs_done < task->n_pairs) job->status = compute_part(node, job, &job->err);
}

static void experts_done(void *owner, void *what, uint64_t which, bool ending) {
    sn_job *job = what;
    sim_node *node = ending ? NULL : sim_node_of_engine(owner, which);
    if (!node) {
        sn_job_free(&job);
        return;
    }
    sim_time *time = node->swarm->time;
    if (sim_now(time) < node->stalled_until_us) {
        sim_schedule(time, node->stalled_until_us, experts_done, job, which);
        return;
    }
    sim_actor *previous = sim_set_actor(time, &node->actor);
    compute_experts(node, job);
    node->part->jobs--;
    sn_protocol_job_done(node->protocol, job, sn_now_us());
    sim_set_actor(time, previous);
    sim_node_poll(node);
}

void sim_part_submit(sim_node *node, sn_job *job) {
    if (++node->part->jobs > SN_EXPERT_JOBS_MAX) sim_fail(node->swarm, "node %d computes for too many", node->number);
    sim_schedule(node->swarm->time, sim_now(node->swarm->time) + EXPERTS_US, experts_done, job, node->engine);
}

/* -- life */

void sim_part_new(sim_node *node, int first, int end) {
    sim_part *part = node->part = sim_alloc(sizeof *part);
    part->experts = (sn_expert_range){first, end};
    part->task = sim_task_new(node->swarm->time, &node->actor, task_main, node);
}

static void load_span(sim_node *node) {
    sim_part *part = node->part;
    const sn_device_options options = {.threads = 1};
    const sn_model *model = sim_model_get()->model;
    sn_block_cost costs[SIM_BLOCKS];
    sn_plan_device device = {.id = {SN_DEVICE_CPU, 0}, .budget = 1 << 30};
    const sn_span_part what = {node->first, node->end, part->experts};
    const sn_plan_query query = {.first = node->first,
                                 .end = node->end,
                                 .experts = part->experts,
                                 .costs = costs,
                                 .devices = &device,
                                 .n_devices = 1};
    sn_plan plan;
    REQUIRE(sn_device_open(device.id, &options, &part->device, &err));
    REQUIRE(sn_span_costs(model, part->device, &what, 1 << 20, costs, &device.scratch, &err));
    REQUIRE(sn_plan_auto(&query, &plan, &err));
    REQUIRE(sn_span_load_plan(model, &plan, &part->device, NULL, NULL, NULL, &part->span, &err));
}

sn_span *sim_part_serve(sim_node *node) {
    sim_part *part = node->part;
    const sn_expert_rounds_host host = {round_asked, wait_for_round, node};
    if (!part->span) load_span(node);
    part->stops = false;
    part->jobs = 0;
    REQUIRE(sn_expert_rounds_new(&host, &part->rounds, &err));
    sn_span_set_expert_exchange(part->span, sn_expert_rounds_exchange(part->rounds));
    return part->span;
}

void sim_part_end(sim_node *node) {
    sim_part *part = node->part;
    if (!part->rounds) return;
    part->stops = true;
    part->due = false;
    sim_task_run(part->task);
    sn_span_set_expert_exchange(part->span, NULL);
    sn_expert_rounds_free(&part->rounds);
}

void sim_part_free(sim_node *node) {
    sim_part *part = node->part;
    if (!part) return;
    part->over = true;
    sim_task_run(part->task);
    sim_task_free(&part->task);
    sn_span_free(&part->span);
    sn_device_close(&part->device);
    free(part);
    node->part = NULL;
}
