/* One seed: draws a swarm, injects faults, stops them, and checks what must be true.
 *
 * How it works: sim_run draws a theme, nodes and clients from the seed, then runs events for FAULTS_US with random
 * faults (crashes, drains, stalls, slow machines, broken connections, partitions, wrong replies, wrong clocks, changed
 * bytes). After every event check_all checks the limits of nodes and clients; clients compare every hidden state, token
 * and gradient themselves (client.c, training.c). Then the faults stop, and after SETTLE_US every node must know every
 * other one, and every block must be served. When the clients of that time have ended, a new one must succeed at the
 * first try, and at the end no session and no KV page may be left.
 *
 * A failed check ends the process with the seed, which repeats the same events. */
#include "tests/sim/swarm.h"

#include "client/chain/known_prefixes.h"
#include "net/directory.h"
#include "tests/sim/model.h"
#include "tests/support/require.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum {
    NODES_MAX = 9,
    BATCH_US = 3000,
    FAULTS_US = 90 * SECOND_US,  /* time with faults */
    SETTLE_US = 100 * SECOND_US, /* time after the faults in which the swarm recovers */
    END_US = 3600 * (int64_t)SECOND_US,
    IDENTITIES = 1100,
};

void sim_fail(const swarm *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, %.6f s: ", (unsigned long long)s->seed, (double)sim_now(s->time) / 1e6 - 1000);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nto repeat: sim --seed %llu --trace\n", (unsigned long long)s->seed);
    va_end(args);
    _exit(1);
}

const sn_identity *sim_identity(int number) {
    static sn_identity *identities[IDENTITIES];
    if (identities[number]) return identities[number];
    sim_actor actor = {.random = {(uint64_t)number + 77}};
    sim_actor *previous = sim_set_actor(NULL, &actor);
    identities[number] = sim_alloc(sizeof(sn_identity));
    REQUIRE(sn_identity_new(identities[number], &err));
    sim_set_actor(NULL, previous);
    return identities[number];
}

/* -- drawing a swarm */

/* True with one probability in swarms of a theme, and with another one in the rest. */
static bool draw(swarm *s, double p, sim_theme theme, double p_in_theme) {
    return sim_rng_bernoulli(&s->random, s->theme == theme ? p_in_theme : p);
}

static sn_quota_limits draw_quota(swarm *s) {
    sim_rng *r = &s->random;
    sn_quota_limits quota = {0};
    if (sim_rng_bernoulli(r, 0.3)) quota.sessions = (size_t)sim_rng_between(r, 3, 6);
    if (sim_rng_bernoulli(r, 0.3)) quota.kv_bytes = (size_t)sim_rng_between(r, 32, 64);
    if (sim_rng_bernoulli(r, 0.5)) quota.steps_per_s = sim_rng_between(r, 3, 20);
    return quota;
}

static void draw_node(swarm *s, int first, int end) {
    sim_rng *r = &s->random;
    int number = s->n_nodes++;
    sim_node *node = &s->nodes[number];
    *node = (sim_node){.swarm = s, .number = number, .first = first, .end = end, .identity = sim_identity(number)};
    snprintf(node->actor.name, sizeof node->actor.name, "node%d", number);
    node->actor.offset_us = sim_rng_between(r, 0, 1000 * (int64_t)SECOND_US);
    node->actor.drift_ppm = sim_rng_between(r, -2000, 2000);
    node->actor.unix_offset_ms = sim_rng_between(r, -3000, 3000);
    node->actor.random = sim_rng_fork(r);
    node->sessions_max = sim_rng_bernoulli(r, 0.1) ? 2 : 16;
    node->decode_us = (uint64_t)sim_rng_between(r, 100, 2000);
    node->batch_us = sim_rng_bernoulli(r, 0.1) ? sim_rng_between(r, 10000, 300000) : BATCH_US;
    node->load_us_max = sim_rng_between(r, SECOND_US / 5, 8 * SECOND_US);
    node->pages = (size_t)(sim_rng_bernoulli(r, 0.15) ? sim_rng_between(r, 4, 8) : 64);
    if (s->theme == SIM_RECURRENT && node->pages < 16) node->pages = 16; /* states take a quarter of the memory */
    node->prefix_cache_memory = draw(s, 0.6, SIM_PREFIXES, 1) ? (size_t)sim_rng_between(r, 1 << 12, 1 << 16) : 0;
    node->swap_pages = sim_rng_bernoulli(r, 0.4) ? (size_t)sim_rng_between(r, 1, 32) : 0;
    node->swap_after_us = sim_rng_bernoulli(r, 0.8) ? sim_rng_between(r, SECOND_US, 5 * SECOND_US) : 0;
    node->prefix_cache_shared = draw(s, 0.5, SIM_PREFIXES, 0.9);
    node->tune_bytes_max = draw(s, 0.3, SIM_TRAINING, 0.8) ? 1 << 22 : 0;
    if (sim_rng_bernoulli(r, 0.3)) node->quota = draw_quota(s);
    node->host = sim_host_new(s->net, &node->actor, node->identity->curve_key);
    snprintf(node->address, sizeof node->address, "node%d:1", node->host);
}

/* Every block at two nodes at least, then more nodes with random spans. */
static void draw_dense_nodes(swarm *s) {
    sim_rng *r = &s->random;
    for (int copy = 0; copy < 2; copy++) {
        int cut = (int)sim_rng_below(r, SIM_BLOCKS);
        if (cut) draw_node(s, 0, cut);
        draw_node(s, cut, SIM_BLOCKS);
    }
    int more = (int)sim_rng_below(r, NODES_MAX - 4);
    for (int i = 0; i < more; i++) {
        int first = (int)sim_rng_below(r, SIM_BLOCKS), end = (int)sim_rng_between(r, first + 1, SIM_BLOCKS);
        draw_node(s, first, end);
    }
    /* A node may choose its blocks itself: as many as it would have been given. */
    bool choose_blocks = sim_rng_bernoulli(r, 0.4);
    for (int i = 0; i < s->n_nodes && choose_blocks; i++)
        if (sim_rng_bernoulli(r, 0.9)) s->nodes[i].auto_blocks = s->nodes[i].end - s->nodes[i].first;
}

/* Two groups for each span of blocks, whose nodes divide the experts; their parts may overlap. At times a node with all
 * experts of all blocks. */
static void draw_expert_nodes(swarm *s) {
    sim_rng *r = &s->random;
    int cut = (int)sim_rng_below(r, SIM_BLOCKS);
    for (int first = 0, end = cut ? cut : SIM_BLOCKS; first < SIM_BLOCKS; first = end, end = SIM_BLOCKS)
        for (int group = 0; group < 2; group++) {
            int middle = (int)sim_rng_between(r, 1, SIM_MIXTURE_EXPERTS - 1);
            int more = (int)sim_rng_between(r, 0, SIM_MIXTURE_EXPERTS - 1 - middle);
            draw_node(s, first, end);
            sim_part_new(&s->nodes[s->n_nodes - 1], 0, middle + more);
            draw_node(s, first, end);
            sim_part_new(&s->nodes[s->n_nodes - 1], middle, SIM_MIXTURE_EXPERTS);
        }
    if (sim_rng_bernoulli(r, 0.7)) return;
    draw_node(s, 0, SIM_BLOCKS);
    sim_part_new(&s->nodes[s->n_nodes - 1], 0, 0);
}

static void retire_node(void *owner, void *what, uint64_t which, bool ending);

/* Room for every block once and for a few twice. The nodes choose their blocks, and one leaves for good: the rest has
 * room enough, so moving must close the gap. Nodes 0 and 1 stay, which the others join. */
static void draw_sparse_nodes(swarm *s) {
    sim_rng *r = &s->random;
    int room = 0, most = 0;
    while (room < SIM_BLOCKS || s->n_nodes < 2) {
        int blocks = (int)sim_rng_between(r, 1, 3);
        draw_node(s, 0, blocks);
        room += blocks;
        if (blocks > most) most = blocks;
    }
    draw_node(s, 0, most);
    for (int i = 0; i < s->n_nodes; i++) s->nodes[i].auto_blocks = s->nodes[i].end;
    if (sim_rng_bernoulli(r, 0.8))
        sim_schedule(s->time, sim_now(s->time) + sim_rng_between(r, 20 * SECOND_US, FAULTS_US), retire_node, NULL,
                     (uint64_t)sim_rng_between(r, 2, s->n_nodes - 1));
}

static bool chats_only(const swarm *s) { return s->theme == SIM_RECURRENT || s->theme == SIM_EXPERTS; }

static int draw_chunk_rows(sim_rng *r) { return sim_rng_bernoulli(r, 0.6) ? (int)sim_rng_between(r, 1, 8) : 0; }

static sim_client_plan draw_chat(swarm *s, int text) {
    sim_rng *r = &s->random;
    bool longer = s->theme == SIM_REPLICAS || s->theme == SIM_PREFIXES;
    int other = s->theme == SIM_PREFIXES ? text ^ 1 : (int)sim_rng_below(r, SIM_PROMPTS);
    return (sim_client_plan){
        .text = sim_rng_bernoulli(r, 0.7) ? text : other,
        .tokens = (int)sim_rng_between(r, 1, sim_rng_bernoulli(r, 0.5) ? 3 : 24),
        .turns = (int)sim_rng_between(r, longer ? 3 : 1, longer ? 7 : 5),
        .push = draw(s, 0.5, SIM_REPLICAS, 0.7),
        .receipts = sim_rng_bernoulli(r, 0.2),
        .throughput = sim_rng_bernoulli(r, 0.2),
        .replica = draw(s, 0.2, SIM_REPLICAS, 1),
        .audit = s->bits_flipped || sim_rng_bernoulli(r, 0.1),
        .audit_here = sim_rng_bernoulli(r, 0.5),
        .adapter = draw(s, 0.05, SIM_TRAINING, 0.5) && !chats_only(s) ? (int)sim_rng_between(r, 1, SIM_ADAPTERS) : 0,
        .saves = draw(s, 0.15, SIM_PREFIXES, 0.6),
        .drafts = sim_rng_bernoulli(r, 0.4) ? sim_rng_bernoulli(r, 0.4) ? 5 : 23 : 0,
        .cancels = sim_rng_bernoulli(r, 0.3),
        .chunk_rows = draw_chunk_rows(r)};
}

static void draw_clients(swarm *s) {
    sim_rng *r = &s->random;
    int text = (int)sim_rng_below(r, SIM_PROMPTS); /* most clients of one swarm use the same text */
    if (s->theme == SIM_PREFIXES) text = (text < 6 ? 4 : 10) + text % 2; /* prompts of more than a page */
    s->n_clients = (int)sim_rng_between(r, 1, 3);
    s->clients = sim_alloc(((size_t)s->n_clients + 1) * sizeof *s->clients);
    for (int i = 0; i < s->n_clients; i++) {
        sim_client_plan plan = draw_chat(s, text);
        plan.timeout_ms = (int)sim_rng_between(r, 500, 6000);
        plan.max_retries = (int)sim_rng_between(r, 1, 6);
        plan.begin_us = sim_rng_between(r, SECOND_US, s->theme == SIM_PREFIXES ? FAULTS_US / 3 : FAULTS_US);
        if (chats_only(s)) {
        } else if (!i && draw(s, 0.03, SIM_PREFIXES, 0.5)) {
            plan = (sim_client_plan){.kind = SIM_POISONS,
                                     .text = text,
                                     .timeout_ms = 5000,
                                     .max_retries = 3,
                                     .begin_us = sim_rng_between(r, 5 * SECOND_US, 20 * SECOND_US)};
        } else if (draw(s, 0.03, SIM_TRAINING, 0.4)) {
            plan.kind = SIM_TRAINS;
            plan.adapter = (int)sim_rng_between(r, 1, SIM_ADAPTERS);
        }
        s->clients[i] = sim_client_new(s, i, &plan);
    }
}

/* -- faults -- */

static void inject_fault(void *owner, void *what, uint64_t which, bool ending);

static void restart_node(void *owner, void *what, uint64_t which, bool ending) {
    swarm *s = owner;
    (void)what;
    if (ending || s->nodes[which].retired) return;
    if (!s->nodes[which].incarnation) sim_node_start(&s->nodes[which]);
    s->stats.joins++;
}

static void retire_node(void *owner, void *what, uint64_t which, bool ending) {
    swarm *s = owner;
    (void)what;
    if (ending) return;
    s->nodes[which].retired = true;
    s->stats.retired++;
    sim_node_crash(&s->nodes[which], sim_rng_bernoulli(&s->random, 0.5));
}

static void heal_partition(void *owner, void *what, uint64_t which, bool ending) {
    swarm *s = owner;
    (void)what;
    (void)which;
    if (ending) return;
    sim_trace_event(s->time, "heal", 0, 0);
    for (int i = 0; i < s->n_nodes; i++) sim_host_set_side(s->net, s->nodes[i].host, 0);
}

static void start_partition(swarm *s) {
    sim_trace_event(s->time, "partition", 0, 0);
    s->stats.partitions++;
    for (int i = 0; i < s->n_nodes; i++) sim_host_set_side(s->net, s->nodes[i].host, (int)sim_rng_below(&s->random, 2));
    sim_schedule(s->time, sim_now(s->time) + sim_rng_between(&s->random, SECOND_US, 70 * SECOND_US), heal_partition,
                 NULL, 0);
}

static void stop_or_kill_node(swarm *s, sim_node *node) {
    bool drain = sim_rng_bernoulli(&s->random, 0.3);
    if (drain)
        sim_node_drain(node, sim_rng_between(&s->random, 0, 20 * SECOND_US));
    else
        sim_node_crash(node, sim_rng_bernoulli(&s->random, 0.3));
    if (drain)
        s->stats.drains++;
    else
        s->stats.crashes++;
    int64_t back = sim_now(s->time) + sim_rng_between(&s->random, SECOND_US / 10, 40 * SECOND_US);
    sim_schedule(s->time, back, restart_node, NULL, (uint64_t)node->number);
}

static void next_fault(swarm *s, int64_t mean_us) {
    int64_t at = sim_now(s->time) + (int64_t)sim_rng_exponential(&s->random, (double)mean_us) + 1000;
    sim_schedule(s->time, at, inject_fault, NULL, (uint64_t)mean_us);
}

/* The machine computes slowly for a while. The end of an earlier such time may end this one, too. */
static void end_slow_time(void *owner, void *what, uint64_t which, bool ending) {
    swarm *s = owner;
    (void)what;
    if (!ending) s->nodes[which].batch_us = BATCH_US;
}

static void slow_node(swarm *s, sim_node *node) {
    sim_rng *r = &s->random;
    node->batch_us = sim_rng_between(r, 50000, 2 * SECOND_US);
    sim_schedule(s->time, sim_now(s->time) + sim_rng_between(r, SECOND_US, 30 * SECOND_US), end_slow_time, NULL,
                 (uint64_t)node->number);
    s->stats.slow++;
}

static void inject_fault(void *owner, void *what, uint64_t which, bool ending) {
    swarm *s = owner;
    (void)what;
    if (ending || sim_now(s->time) > 1000 * (int64_t)SECOND_US + FAULTS_US) return;
    sim_rng *r = &s->random;
    sim_node *node = &s->nodes[sim_rng_below(r, (uint64_t)s->n_nodes)];
    uint64_t kind = sim_rng_below(r, 11);
    if (kind == 10) {
        slow_node(s, node);
    } else if (kind < 4) {
        stop_or_kill_node(s, node);
    } else if (kind < 6) {
        sim_node_stall(node, sim_now(s->time) + sim_rng_between(r, SECOND_US / 10, 12 * SECOND_US));
        s->stats.stalls++;
    } else if (kind < 9) {
        sim_net_break_connection(s->net);
        s->stats.cuts++;
    } else {
        start_partition(s);
    }
    next_fault(s, (int64_t)which);
}

/* Makes a reply that cannot be true, which a client notices without an audit. */
static void tamper_message(void *ctx, sn_msg *msg) {
    sim_node *node = ctx;
    swarm *s = node->swarm;
    bool step = msg->kind == SN_MSG_STEP_REPLY, kv = msg->kind == SN_MSG_KV_GET_REPLY || msg->kind == SN_MSG_KV_PUT;
    if ((!step && !kv) || !sim_rng_bernoulli(&node->actor.random, step ? 0.05 : 0.5)) return;
    s->stats.wrong_replies++;
    float *row = (float *)(uintptr_t)msg->tensor.data;
    if (kv) { /* other keys and values than their hash says */
        row[sim_rng_below(&node->actor.random, msg->tensor.bytes / sizeof *row)] += 1;
        return;
    }
    switch (sim_rng_below(&node->actor.random, 4)) {
    case 0:
        row[0] = __builtin_nanf("");
        break;
    case 1:
        memset(msg->step_reply.trace[msg->step_reply.n_trace - 1].timeline, 0, SN_HASH_SIZE);
        break;
    case 2:
        msg->step_reply.trace[0].node[3] ^= 1;
        break;
    default:
        msg->step_reply.n_trace = 0;
    }
}

static void draw_faults(swarm *s) {
    sim_rng *r = &s->random;
    sim_faults *f = sim_net_faults(s->net);
    if (draw(s, 0.4, SIM_REPLICAS, 0.3)) f->loss = sim_rng_uniform(r) * 0.05;
    if (draw(s, 0.4, SIM_REPLICAS, 0.9)) f->duplication = sim_rng_uniform(r) * (s->theme == SIM_REPLICAS ? 0.4 : 0.2);
    if (draw(s, 0.4, SIM_REPLICAS, 0.8)) f->reordering = sim_rng_uniform(r) * 0.1;
    /* A changed EXPERTS would ask for another expert, which nothing but CURVE excludes. */
    if (draw(s, 0.05, SIM_GARBLED, 1) && s->theme != SIM_EXPERTS) f->garbling = sim_rng_uniform(r) * 0.05;
    s->garbles = f->garbling > 0;
    if (draw(s, 0.2, SIM_PREFIXES, 0.4)) {
        sim_node *byzantine = &s->nodes[sim_rng_below(r, (uint64_t)s->n_nodes)];
        sim_host_set_tamper(s->net, byzantine->host, tamper_message, byzantine);
    }
    s->bits_flipped = draw(s, 0.1, SIM_PREFIXES, 0);
    if (s->bits_flipped) s->nodes[sim_rng_below(r, (uint64_t)s->n_nodes)].flips_bits = true;
    for (int i = 0; i < s->n_nodes && s->bits_flipped; i++) { /* room for a session, its auditor and its replacement */
        if (s->nodes[i].pages < 12) s->nodes[i].pages = 12;
        if (s->nodes[i].sessions_max < 4) s->nodes[i].sessions_max = 4;
    }
    if (sim_rng_bernoulli(r, 0.1))
        s->nodes[sim_rng_below(r, (uint64_t)s->n_nodes)].actor.unix_offset_ms = sim_rng_between(r, -90000, 90000);
    if (draw(s, 0.8, SIM_PREFIXES, 0.4)) next_fault(s, sim_rng_between(r, SECOND_US, 20 * SECOND_US));
}

/* -- what must be true */

static void check_all(const swarm *s) {
    for (int i = 0; i < s->n_nodes; i++) sim_node_check(&s->nodes[i]);
    for (int i = 0; i < s->n_clients; i++) sim_client_check(s->clients[i]);
}

static void run_until(swarm *s, int64_t until_us) {
    while (sim_run_next(s->time, until_us)) check_all(s);
}

static bool clients_ended(const swarm *s) {
    for (int i = 0; i < s->n_clients; i++)
        if (!sim_client_ended(s->clients[i])) return false;
    return true;
}

static void stop_faults(swarm *s) {
    sim_trace_event(s->time, "faults stopped", 0, 0);
    *sim_net_faults(s->net) = (sim_faults){0};
    heal_partition(s, NULL, 0, false);
    for (int i = 0; i < s->n_nodes; i++) {
        sim_node *node = &s->nodes[i];
        sim_host_set_tamper(s->net, node->host, NULL, NULL);
        node->actor.unix_offset_ms %= 3000;
        if (node->batch_us > SECOND_US / 10) node->batch_us = SECOND_US / 10;
        if (!node->incarnation && !node->retired) sim_node_start(node);
    }
}

static bool nodes_serve_all(const swarm *s, bool honest, int *missing) {
    for (*missing = 0; *missing < SIM_BLOCKS; ++*missing) {
        bool served = false;
        for (int i = 0; i < s->n_nodes && !served; i++) {
            const sim_node *node = &s->nodes[i];
            served = node->engine && node->first <= *missing && *missing < node->end && !(honest && node->flips_bits);
        }
        if (!served) return false;
    }
    return true;
}

bool sim_honest_nodes_suffice(const swarm *s) {
    int missing;
    return nodes_serve_all(s, true, &missing);
}

/* After the faults every node knows every other one. */
static void check_knowledge(const swarm *s) {
    int missing, live = 0;
    for (int i = 0; i < s->n_nodes; i++) live += !s->nodes[i].retired;
    for (int i = 0; i < s->n_nodes; i++) {
        const sim_node *node = &s->nodes[i];
        if (node->retired) continue;
        if (!node->incarnation) sim_fail(s, "node %d is down", i);
        size_t known = sn_directory_count(sn_protocol_directory(node->protocol));
        if (known != (size_t)live) sim_fail(s, "node %d knows %zu of %d nodes after the faults", i, known, live);
    }
    if (!nodes_serve_all(s, false, &missing)) sim_fail(s, "after the faults no node serves block %d", missing);
}

static void check_clean(const swarm *s) {
    for (int i = 0; i < s->n_nodes; i++)
        if (!sim_node_is_clean(&s->nodes[i])) sim_fail(s, "node %d holds sessions or KV pages of no client", i);
}

static void swarm_fini(swarm *s) {
    for (int i = 0; i < s->n_nodes; i++) sim_node_crash(&s->nodes[i], true);
    for (int i = 0; i < s->n_nodes; i++) sim_part_free(&s->nodes[i]);
    sim_time_free(&s->time);
    for (int i = 0; i < s->n_clients; i++) sim_client_free(&s->clients[i]);
    sn_known_prefixes_free(&s->prefixes);
    sim_net_free(&s->net);
    free(s->clients);
    free(s->nodes);
}

static void draw_swarm(swarm *s, sim_options options) {
    static const sim_theme themes[] = {SIM_MIXED,    SIM_MIXED,    SIM_MIXED,  SIM_MIXED,   SIM_REPLICAS,
                                       SIM_REPLICAS, SIM_PREFIXES, SIM_SPARSE, SIM_GARBLED, SIM_TRAINING};
    s->theme = themes[sim_rng_below(&s->random, sizeof themes / sizeof *themes)];
    if (s->theme == SIM_MIXED && s->seed % 8 == 5) s->theme = SIM_RECURRENT;
    if (s->theme == SIM_MIXED && s->seed % 8 == 2) s->theme = SIM_EXPERTS;
    if (options.theme) s->theme = options.theme;
    sim_model_use(s->theme == SIM_RECURRENT ? SIM_STATES : s->theme == SIM_EXPERTS ? SIM_MIXTURE : SIM_USUAL);
    s->nodes = sim_alloc(NODES_MAX * sizeof *s->nodes);
    REQUIRE(sn_known_prefixes_new(SN_KNOWN_PREFIXES_BYTES, NULL, &s->prefixes, &err));
    (s->theme == SIM_SPARSE ? draw_sparse_nodes : s->theme == SIM_EXPERTS ? draw_expert_nodes : draw_dense_nodes)(s);
    draw_faults(s);
    for (int i = 0; options.flip_bits && i < s->n_nodes; i++) s->nodes[i].flips_bits = true;
    if (options.flip_bits) s->bits_flipped = false;
    for (int i = 0; i < s->n_nodes; i++)
        sim_schedule(s->time, sim_now(s->time) + sim_rng_between(&s->random, 0, 3 * SECOND_US), restart_node, NULL,
                     (uint64_t)i);
    draw_clients(s);
}

static void await_clients(swarm *s, int64_t until_us) {
    while (!clients_ended(s)) {
        if (sim_now(s->time) > until_us) sim_fail(s, "clients do not end");
        run_until(s, sim_now(s->time) + SECOND_US);
    }
}

/* A new client, when no other client is left, succeeds at the first try. */
static void run_last_client(swarm *s) {
    sim_client_plan last = {.text = (int)sim_rng_below(&s->random, SIM_PROMPTS),
                            .tokens = 8,
                            .turns = 2,
                            .push = sim_rng_bernoulli(&s->random, 0.5),
                            .must_succeed = true,
                            .chunk_rows = draw_chunk_rows(&s->random),
                            .audit = s->bits_flipped,
                            .timeout_ms = 5000,
                            .max_retries = 1};
    s->clients[s->n_clients] = sim_client_new(s, s->n_clients, &last);
    s->n_clients++;
}

void sim_stats_add(sim_stats *sum, const sim_stats *stats) {
    for (int i = 0; i < SIM_STATS_SUMMED; i++) (&sum->events)[i] += (&stats->events)[i];
    sum->virtual_us += stats->virtual_us;
}

sim_stats sim_run(uint64_t seed, sim_options options) {
    swarm s = {.seed = seed, .random = {seed}};
    s.random = sim_rng_fork(&s.random); /* seeds next to each other give independent sequences */
    s.time = sim_time_new(&s);
    s.net = sim_net_new(s.time, sim_rng_fork(&s.random));
    sim_trace_enable(s.time, options.traced);
    int64_t begin = sim_now(s.time);
    draw_swarm(&s, options);
    run_until(&s, begin + FAULTS_US + 45 * SECOND_US);
    stop_faults(&s);
    run_until(&s, sim_now(s.time) + SETTLE_US);
    check_knowledge(&s);
    await_clients(&s, begin + END_US);
    run_last_client(&s);
    await_clients(&s, begin + END_US);
    run_until(&s, sim_now(s.time) + 60 * SECOND_US); /* sessions of clients that vanished have expired by now */
    check_clean(&s);
    for (int i = 0; options.traced && i < s.n_clients; i++)
        fprintf(stderr, "client %d: %s\n", i, sim_client_report(s.clients[i]));
    s.stats.events = sim_event_count(s.time);
    s.stats.garbled = sim_net_garbled(s.net);
    s.stats.trace = sim_trace_hash(s.time);
    s.stats.virtual_us = sim_now(s.time) - begin;
    swarm_fini(&s); /* counts refusals of quotas */
    return s.stats;
}
