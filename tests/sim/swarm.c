/* One seed: a swarm is drawn, lives through a time of faults, then through a time of peace in which all must be well. */
#include "tests/sim/swarm.h"

#include "net/directory.h"
#include "node/core_private.h"
#include "tests/sim/model.h"
#include "tests/support/need.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum {
    NODES_MAX = 9,
    FAULTS_US = 90 * SECOND_US,   /* the time of faults */
    SETTLE_US = 100 * SECOND_US,  /* after which a swarm at peace knows itself */
    END_US = 3600 * (int64_t)SECOND_US,
    IDENTITIES = 1100,
};

void sim_wrong(const swarm *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, %.6f s: ", (unsigned long long)s->seed, (double)sim_now(s->time) / 1e6 - 1000);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nagain: sim --seed %llu --trace\n", (unsigned long long)s->seed);
    va_end(args);
    _exit(1);
}

const sn_identity *sim_identity(int number) {
    static sn_identity *identities[IDENTITIES];
    if (identities[number]) return identities[number];
    sim_actor actor = {.random = {(uint64_t)number + 77}};
    sim_actor *was = sim_enter(NULL, &actor);
    identities[number] = sim_alloc(sizeof(sn_identity));
    NEED(sn_identity_new(identities[number], &err));
    sim_enter(NULL, was);
    return identities[number];
}

/* -- drawing a swarm -- */

static void draw_node(swarm *s, int number, int first, int end) {
    sim_random *r = &s->random;
    sim_node *node = &s->nodes[number];
    *node = (sim_node){.swarm = s, .number = number, .first = first, .end = end, .identity = sim_identity(number)};
    snprintf(node->actor.name, sizeof node->actor.name, "node%d", number);
    node->actor.offset_us = sim_between(r, 0, 1000 * (int64_t)SECOND_US);
    node->actor.drift_ppm = sim_between(r, -2000, 2000);
    node->actor.unix_offset_ms = sim_between(r, -3000, 3000);
    node->actor.random = sim_fork(r);
    node->sessions_max = sim_chance(r, 0.1) ? 2 : 16;
    node->decode_us = (uint64_t)sim_between(r, 100, 2000);
    node->load_us_max = sim_between(r, SECOND_US / 5, 8 * SECOND_US);
    node->pages = (size_t)(sim_chance(r, 0.15) ? sim_between(r, 4, 8) : 64);
    node->prefix_memory = sim_chance(r, 0.6) ? (size_t)sim_between(r, 1 << 12, 1 << 16) : 0;
    node->idle_pages = sim_chance(r, 0.4) ? (size_t)sim_between(r, 1, 32) : 0;
    node->idle_after_us = sim_chance(r, 0.8) ? sim_between(r, SECOND_US, 5 * SECOND_US) : 0;
    node->share_all = sim_chance(r, 0.5);
    node->place = sim_place_new(s->net, &node->actor, node->identity->curve_key);
    snprintf(node->address, sizeof node->address, "mem://%d", node->place);
}

/* Every block at two nodes at least, then others anywhere. */
static void draw_nodes(swarm *s) {
    sim_random *r = &s->random;
    s->nodes = sim_alloc((NODES_MAX) * sizeof *s->nodes);
    for (int copy = 0; copy < 2; copy++) {
        int cut = (int)sim_below(r, SIM_BLOCKS);
        if (cut) draw_node(s, s->n_nodes++, 0, cut);
        draw_node(s, s->n_nodes++, cut, SIM_BLOCKS);
    }
    int more = (int)sim_below(r, NODES_MAX - 4);
    for (int i = 0; i < more; i++) {
        int first = (int)sim_below(r, SIM_BLOCKS), end = (int)sim_between(r, first + 1, SIM_BLOCKS);
        draw_node(s, s->n_nodes++, first, end);
    }
    /* They may choose for themselves: as many blocks as they would have been given. */
    bool choose = sim_chance(r, 0.4);
    for (int i = 0; i < s->n_nodes && choose; i++)
        if (sim_chance(r, 0.9)) s->nodes[i].auto_blocks = s->nodes[i].end - s->nodes[i].first;
}

static void draw_clients(swarm *s) {
    sim_random *r = &s->random;
    int text = (int)sim_below(r, SIM_PROMPTS); /* clients of one swarm have much in common */
    s->n_clients = (int)sim_between(r, 1, 3);
    s->clients = sim_alloc(((size_t)s->n_clients + 1) * sizeof *s->clients);
    for (int i = 0; i < s->n_clients; i++) {
        sim_client_plan plan = {.text = sim_chance(r, 0.7) ? text : (int)sim_below(r, SIM_PROMPTS),
                                .tokens = (int)sim_between(r, 1, sim_chance(r, 0.5) ? 3 : 24),
                                .turns = (int)sim_between(r, 1, 5),
                                .push = sim_chance(r, 0.5),
                                .receipts = sim_chance(r, 0.2),
                                .throughput = sim_chance(r, 0.2),
                                .replica = sim_chance(r, 0.3),
                                .audit = s->bent || sim_chance(r, 0.1),
                                .audit_here = sim_chance(r, 0.5),
                                .timeout_ms = (int)sim_between(r, 500, 6000),
                                .max_retries = (int)sim_between(r, 1, 6),
                                .guesses = (s->seed + (uint64_t)i) % 3 == 0,
                                .begin_us = sim_between(r, SECOND_US, FAULTS_US)};
        s->clients[i] = sim_client_new(s, i, &plan);
    }
}

/* -- faults -- */

static void fault(void *world, void *what, uint64_t which, bool ending);

static void revive(void *world, void *what, uint64_t which, bool ending) {
    swarm *s = world;
    (void)what;
    if (ending) return;
    if (!s->nodes[which].life) sim_node_start(&s->nodes[which]);
    s->figures.joins++;
}

static void heal(void *world, void *what, uint64_t which, bool ending) {
    swarm *s = world;
    (void)what;
    (void)which;
    if (ending) return;
    sim_note(s->time, "heal", 0, 0);
    for (int i = 0; i < s->n_nodes; i++) sim_place_side(s->net, s->nodes[i].place, 0);
}

static void partition(swarm *s) {
    sim_note(s->time, "partition", 0, 0);
    s->figures.partitions++;
    for (int i = 0; i < s->n_nodes; i++) sim_place_side(s->net, s->nodes[i].place, (int)sim_below(&s->random, 2));
    sim_at(s->time, sim_now(s->time) + sim_between(&s->random, SECOND_US, 70 * SECOND_US), heal, NULL, 0);
}

static void kill_one(swarm *s, sim_node *node) {
    bool drains = sim_chance(&s->random, 0.3);
    if (drains) sim_node_drain(node, sim_between(&s->random, 0, 20 * SECOND_US));
    else sim_node_crash(node, sim_chance(&s->random, 0.3));
    if (drains) s->figures.drains++;
    else s->figures.crashes++;
    int64_t back = sim_now(s->time) + sim_between(&s->random, SECOND_US / 10, 40 * SECOND_US);
    sim_at(s->time, back, revive, NULL, (uint64_t)node->number);
}

static void next_fault(swarm *s, int64_t mean_us) {
    int64_t at = sim_now(s->time) + (int64_t)sim_exponential(&s->random, (double)mean_us) + 1000;
    sim_at(s->time, at, fault, NULL, (uint64_t)mean_us);
}

static void fault(void *world, void *what, uint64_t which, bool ending) {
    swarm *s = world;
    (void)what;
    if (ending || sim_now(s->time) > 1000 * (int64_t)SECOND_US + FAULTS_US) return;
    sim_random *r = &s->random;
    sim_node *node = &s->nodes[sim_below(r, (uint64_t)s->n_nodes)];
    uint64_t kind = sim_below(r, 10);
    if (kind < 4) {
        kill_one(s, node);
    } else if (kind < 6) {
        sim_node_stall(node, sim_now(s->time) + sim_between(r, SECOND_US / 10, 12 * SECOND_US));
        s->figures.stalls++;
    } else if (kind < 9) {
        sim_net_cut(s->net);
        s->figures.cuts++;
    } else {
        partition(s);
    }
    next_fault(s, (int64_t)which);
}

/* A liar as far as a client without an audit can tell: what it answers cannot be true. */
static void lie(void *ctx, sn_msg *msg) {
    sim_node *node = ctx;
    swarm *s = node->swarm;
    if (msg->kind != SN_MSG_RESULT || !sim_chance(&node->actor.random, 0.05)) return;
    s->figures.lies++;
    float *row = (float *)(uintptr_t)msg->tensor.data;
    switch (sim_below(&node->actor.random, 4)) {
    case 0: row[0] = __builtin_nanf(""); break;
    case 1: memset(msg->result.trace[msg->result.n_trace - 1].timeline, 0, SN_HASH_SIZE); break;
    case 2: msg->result.trace[0].node[3] ^= 1; break;
    default: msg->result.n_trace = 0;
    }
}

static void draw_faults(swarm *s) {
    sim_random *r = &s->random;
    sim_faults *f = sim_net_faults(s->net);
    if (sim_chance(r, 0.4)) f->loss = sim_unit(r) * 0.05;
    if (sim_chance(r, 0.4)) f->doubling = sim_unit(r) * 0.2;
    if (sim_chance(r, 0.4)) f->overtaking = sim_unit(r) * 0.1;
    if (sim_chance(r, 0.2)) {
        sim_node *liar = &s->nodes[sim_below(r, (uint64_t)s->n_nodes)];
        sim_place_tamper(s->net, liar->place, lie, liar);
    }
    s->bent = sim_chance(r, 0.1);
    if (s->bent) s->nodes[sim_below(r, (uint64_t)s->n_nodes)].bends = true;
    if (sim_chance(r, 0.1)) s->nodes[sim_below(r, (uint64_t)s->n_nodes)].actor.unix_offset_ms = sim_between(r, -90000, 90000);
    if (sim_chance(r, 0.8)) next_fault(s, sim_between(r, SECOND_US, 20 * SECOND_US));
}

/* -- what must be true -- */

static void check_all(const swarm *s) {
    for (int i = 0; i < s->n_nodes; i++) sim_node_check(&s->nodes[i]);
    for (int i = 0; i < s->n_clients; i++) sim_client_check(s->clients[i]);
}

static void run_until(swarm *s, int64_t until_us) {
    while (sim_step(s->time, until_us)) check_all(s);
}

static bool clients_ended(const swarm *s) {
    for (int i = 0; i < s->n_clients; i++)
        if (!sim_client_ended(s->clients[i])) return false;
    return true;
}

static void make_peace(swarm *s) {
    sim_note(s->time, "peace", 0, 0);
    *sim_net_faults(s->net) = (sim_faults){0};
    heal(s, NULL, 0, false);
    for (int i = 0; i < s->n_nodes; i++) {
        sim_node *node = &s->nodes[i];
        sim_place_tamper(s->net, node->place, NULL, NULL);
        node->actor.unix_offset_ms %= 3000;
        if (!node->life) sim_node_start(node);
    }
}

/* At peace everybody knows everybody. */
static void check_knowledge(const swarm *s) {
    bool served[SIM_BLOCKS] = {false};
    for (int i = 0; i < s->n_nodes; i++) {
        const sim_node *node = &s->nodes[i];
        if (!node->life) sim_wrong(s, "node %d is down", i);
        for (int b = node->first; b < node->end && node->engine; b++) served[b] = true;
        size_t known = sn_directory_count(node->core->directory);
        if (known != (size_t)s->n_nodes) sim_wrong(s, "node %d knows %zu of %d nodes at peace", i, known, s->n_nodes);
    }
    for (int b = 0; b < SIM_BLOCKS; b++)
        if (!served[b]) sim_wrong(s, "at peace nobody serves block %d", b);
}

static void check_clean(const swarm *s) {
    for (int i = 0; i < s->n_nodes; i++)
        if (!sim_node_is_clean(&s->nodes[i])) sim_wrong(s, "node %d holds sessions that nobody has", i);
}

static void swarm_fini(swarm *s) {
    for (int i = 0; i < s->n_nodes; i++) sim_node_crash(&s->nodes[i], true);
    sim_time_free(&s->time);
    for (int i = 0; i < s->n_clients; i++) sim_client_free(&s->clients[i]);
    sim_net_free(&s->net);
    free(s->clients);
    free(s->nodes);
}

sim_figures sim_run(uint64_t seed, sim_options options) {
    swarm s = {.seed = seed, .random = {seed}};
    s.random = sim_fork(&s.random); /* neighbours have nothing in common */
    s.time = sim_time_new(&s);
    s.net = sim_net_new(s.time, sim_fork(&s.random));
    sim_trace(s.time, options.traced);
    draw_nodes(&s);
    draw_faults(&s);
    for (int i = 0; options.bend_bits && i < s.n_nodes; i++) s.nodes[i].bends = true;
    if (options.bend_bits) s.bent = false;
    int64_t begin = sim_now(s.time);
    for (int i = 0; i < s.n_nodes; i++) sim_at(s.time, begin + sim_between(&s.random, 0, 3 * SECOND_US), revive, NULL, (uint64_t)i);
    draw_clients(&s);
    run_until(&s, begin + FAULTS_US + 45 * SECOND_US);
    make_peace(&s);
    run_until(&s, sim_now(s.time) + SETTLE_US);
    check_knowledge(&s);
    sim_client_plan last = {.text = (int)sim_below(&s.random, SIM_PROMPTS),
                            .tokens = 8,
                            .turns = 2,
                            .push = sim_chance(&s.random, 0.5),
                            .must_succeed = true,
                            .audit = s.bent,
                            .timeout_ms = 5000,
                            .max_retries = 1};
    s.clients[s.n_clients] = sim_client_new(&s, s.n_clients, &last);
    s.n_clients++;
    while (!clients_ended(&s)) {
        if (sim_now(s.time) > begin + END_US) sim_wrong(&s, "clients go on for ever");
        run_until(&s, sim_now(s.time) + SECOND_US);
    }
    run_until(&s, sim_now(s.time) + 60 * SECOND_US); /* sessions of clients that vanished have expired by now */
    check_clean(&s);
    for (int i = 0; options.traced && i < s.n_clients; i++) fprintf(stderr, "client %d: %s\n", i, sim_client_story(s.clients[i]));
    s.figures.events = sim_events(s.time);
    s.figures.trace = sim_trace_hash(s.time);
    s.figures.virtual_us = sim_now(s.time) - begin;
    sim_figures figures = s.figures;
    swarm_fini(&s);
    return figures;
}
