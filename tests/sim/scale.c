/* The simulator of large swarms (scale.h).
 *
 * How it works: a member is a host that comes and goes, with a real protocol but without weights; poll_member does
 * what the loop of node/node.c does between two waits. New clients (client_main) ask three random members for
 * announcements and plan a route, which evaluate_route compares with the best route under full knowledge. After a
 * warm-up, measure_swarm takes samples every plan.sample_s seconds; then measure_healing ends a tenth of the serving
 * members at once and measures how long recovery takes. Everything depends on the seed only. */
#include "tests/sim/scale.h"

#include "base/clock.h"
#include "client/net/link.h"
#include "client/routing/candidates.h"
#include "client/routing/route.h"
#include "node/membership/membership_private.h" /* private: prefetches what nodes read */
#include "node/protocol/protocol_private.h"     /* private: reads the announcement of every simulated node */
#include "tests/sim/net.h"
#include "tests/support/require.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum {
    BOOTSTRAP_NODES = 8,         /* nodes that stay, which all nodes are told to join */
    CLIENTS_PER_SAMPLE = 5,      /* new clients in each sample */
    DIRECTORIES_PER_SAMPLE = 40, /* nodes whose directory is read in each sample */
    ROUTES_MAX = 4096,
    CLIENTS_MAX = 4096,
};

typedef struct scale scale;

typedef struct member {
    scale *s;
    int number, host;
    sim_actor actor;
    sn_identity identity;
    char address[SN_ADDRESS_MAX + 1];
    sn_hash *hashes;      /* of its span */
    int n_blocks;         /* capacity */
    uint64_t block_us;    /* time of a token in one block */
    uint64_t incarnation; /* number of the running program; 0: none runs */
    sn_protocol *protocol;
    const sn_membership *membership; /* the protocol's */
    sn_transport *transport;
    bool serving;
    int first, end;
    int64_t due_us; /* time of its next poll; events at other times are ignored */
} member;

struct scale {
    sim_scale_plan plan;
    sim_time *time;
    sim_net *net;
    sim_rng random;
    member *members;
    int n_members;
    sn_hparams hp;
    sn_hash model, *block_hash;
    uint64_t incarnations, rebalances;
    sim_scale_stats f;
    int samples, nodes_sampled;
    double *costs;
    sim_task *clients[CLIENTS_MAX];
    void *client_ctx[CLIENTS_MAX];
    int n_clients;
    bool measuring;
};

/* -- nodes -- */

static bool refuse_job(void *ctx, sn_job *job) {
    (void)ctx;
    (void)job;
    return false;
}

static sn_engine_stats read_stats(void *ctx) {
    const member *m = ctx;
    uint64_t us = m->block_us * (uint64_t)m->n_blocks;
    return (sn_engine_stats){.decode_us = us, .prompt_tokens_per_s = 20000000 / us};
}

static void poll_member(member *m);

static void on_due(void *owner, void *what, uint64_t which, bool ending) {
    (void)owner;
    member *m = what;
    if (ending || m->incarnation != which || m->due_us > sim_now(m->s->time)) return;
    m->due_us = INT64_MAX;
    poll_member(m);
}

static void on_loaded(void *owner, void *what, uint64_t which, bool ending) {
    (void)owner;
    member *m = what;
    if (ending || m->incarnation != which) return;
    sim_actor *previous = sim_set_actor(m->s->time, &m->actor);
    const sn_span_info span = {.first = m->first,
                               .end = m->end,
                               .hp = &m->s->hp,
                               .block_hash = m->s->block_hash + m->first,
                               .rows_max = SN_SPAN_ROWS};
    sn_protocol_serve(m->protocol, &span, (sn_kv_room){.bytes_max = (size_t)8 << 30}, sn_now_us(), sn_unix_ms());
    m->serving = true;
    sim_set_actor(m->s->time, previous);
    poll_member(m);
}

static void poll_member(member *m) {
    scale *s = m->s;
    sim_actor *previous = sim_set_actor(s->time, &m->actor);
    int64_t next = sim_global_us(&m->actor, sn_protocol_tick(m->protocol, sn_now_us(), sn_unix_ms()));
    int first, end;
    if (sn_protocol_wants_rebalance(m->protocol)) {
        m->serving = false;
        s->rebalances++;
        sn_protocol_vacate(m->protocol, sn_now_us(), sn_unix_ms());
        next = sim_now(s->time);
    }
    if (sn_protocol_wants_blocks(m->protocol, &first, &end)) {
        m->first = first;
        m->end = end;
        sim_schedule(s->time, sim_now(s->time) + sim_rng_between(&s->random, 10, 60) * SECOND_US, on_loaded, m,
                     m->incarnation);
    }
    sim_set_actor(s->time, previous);
    if (next >= m->due_us) return;
    m->due_us = next > sim_now(s->time) ? next : sim_now(s->time) + 1;
    sim_schedule(s->time, m->due_us, on_due, m, m->incarnation);
}

static void receive_event(void *ctx, sn_event *event) {
    member *m = ctx;
    sn_protocol_handle(m->protocol, event, sn_now_us(), sn_unix_ms());
    poll_member(m);
}

static void prefetch(const void *from, const void *end) {
    for (const char *at = from; at < (const char *)end; at += 64) __builtin_prefetch(at);
}

/* What nearly every event of a node reads. Prefetching a node's data halves the time of an event where the data of all
 * nodes do not fit into the caches. */
static void prepare_event(sim_action action, const void *what, int level) {
    const member *m = action == on_due ? what : sim_net_prepare(action, what, level);
    if (!m || !level) return;
    if (level == 1) prefetch(m, m + 1);
    if (level == 1 || !m->incarnation) return;
    const sn_protocol *p = m->protocol;
    const sn_membership *c = m->membership;
    const sn_gossip *g = &c->gossip;
    if (level == 3) {
        prefetch(c->directory, (const char *)c->directory + 64);
        prefetch(p->sessions, (const char *)p->sessions + 64);
        return;
    }
    prefetch(&p->setup, &p->setup.ctx);
    prefetch(&p->membership, &p->placement.setup);
    prefetch(&p->placement.state, &p->quota);
    prefetch(&p->outgoing.n, &p->counters);
    prefetch(&c->setup, &c->setup + 1);
    prefetch(&c->directory, &c->bootstrap_peers[2]);
    prefetch(&c->n_bootstrap_peers, &g->changes.changes[0]);
    prefetch(&g->changes.n, &g->rejoin[0]);
    prefetch(&c->allowance.all, &c->allowance.all + 1);
}

static void start_member(member *m) {
    scale *s = m->s;
    char bound[SN_ADDRESS_MAX + 1];
    sim_actor *previous = sim_set_actor(s->time, &m->actor);
    m->incarnation = ++s->incarnations;
    m->due_us = INT64_MAX;
    m->transport = sim_transport_new(s->net, m->host, receive_event, m);
    REQUIRE(sn_transport_listen(m->transport, m->address, bound, &err));
    const sn_protocol_setup setup = {.transport = m->transport,
                                     .identity = &m->identity,
                                     .address = m->address,
                                     .name = "",
                                     .span = {.hp = &s->hp},
                                     .loading = true,
                                     .placement = {.auto_blocks = m->n_blocks,
                                                   .expects_others = m->number > 0,
                                                   .rebalance_us = 300 * (int64_t)SECOND_US,
                                                   .rebalance_gain = 20,
                                                   .drain_us_max = 10 * SECOND_US},
                                     .model = s->model,
                                     .sessions_max = 64,
                                     .session_timeout_us = 600 * (int64_t)SECOND_US,
                                     .kv_timeout_us = SECOND_US,
                                     .submit = refuse_job,
                                     .read_stats = read_stats,
                                     .ctx = m};
    REQUIRE(sn_protocol_new(&setup, sn_now_us(), &m->protocol, &err));
    m->membership = m->protocol->membership;
    int known = (int)sim_rng_below(&s->random, BOOTSTRAP_NODES);
    for (int i = 0; i < 2; i++) {
        const member *other = &s->members[(known + i) % BOOTSTRAP_NODES];
        if (other != m) sn_protocol_join(m->protocol, other->address, other->identity.curve_key);
    }
    sim_set_actor(s->time, previous);
    poll_member(m);
}

static void end_member(member *m, bool silent) {
    if (!m->incarnation) return;
    sim_host_crash(m->s->net, m->host, silent);
    m->incarnation = 0;
    m->serving = false;
    sn_protocol_free(&m->protocol);
    sn_transport_free(&m->transport);
}

static double weibull(sim_rng *random, double mean) { /* Weibull distribution with shape 0.6 */
    return mean / tgamma(1 + 1 / 0.6) * pow(-log1p(-sim_rng_uniform(random)), 1 / 0.6);
}

static void toggle_presence(void *owner, void *what, uint64_t which, bool ending) {
    scale *s = owner;
    member *m = what;
    (void)which;
    if (ending) return;
    double stay = weibull(&s->random, s->plan.stay_s);
    if (m->incarnation) { /* half of the nodes announce that they leave */
        bool announces = sim_rng_bernoulli(&s->random, 0.5);
        sim_actor *previous = sim_set_actor(s->time, &m->actor);
        if (announces) sn_protocol_leave(m->protocol, sn_unix_ms());
        sim_set_actor(s->time, previous);
        end_member(m, !announces);
        stay = sim_rng_exponential(&s->random, s->plan.stay_s / 5.0);
    } else {
        start_member(m);
    }
    sim_schedule(s->time, sim_now(s->time) + (int64_t)(stay * 1e6), toggle_presence, m, 0);
}

static void new_member(scale *s, int number) {
    member *m = &s->members[number];
    sim_rng *r = &s->random;
    *m = (member){.s = s, .number = number};
    m->actor = (sim_actor){.offset_us = sim_rng_between(r, 0, 1000 * (int64_t)SECOND_US),
                           .unix_offset_ms = sim_rng_between(r, -2000, 2000),
                           .random = sim_rng_fork(r)};
    sim_actor *previous = sim_set_actor(s->time, &m->actor);
    REQUIRE(sn_identity_new(&m->identity, &err));
    sim_set_actor(s->time, previous);
    m->n_blocks = (int)sim_rng_between(r, s->plan.room_least, s->plan.room_most);
    m->block_us = (uint64_t)sim_rng_between(r, 300, 3000);
    m->host = sim_host_new(s->net, &m->actor, m->identity.curve_key);
    snprintf(m->address, sizeof m->address, "node%d:1", m->host);
    bool stays = number < BOOTSTRAP_NODES;
    int64_t when = (int64_t)(sim_rng_uniform(r) * (stays ? 1 : 120) * SECOND_US);
    if (!stays && sim_rng_bernoulli(r, 1.0 / 6)) when += (int64_t)(sim_rng_exponential(r, s->plan.stay_s / 5.0) * 1e6);
    sim_schedule(s->time, sim_now(s->time) + when, toggle_presence, m, 0);
}

/* -- clients: the route that a new client finds, and the best one */

typedef struct new_client {
    scale *s;
    sim_actor actor;
    int host, nodes[3];
} new_client;

static sn_status plan_over(const scale *s, const sn_directory *directory, sn_route *out, sn_err *err) {
    sn_candidates candidates = {0};
    sn_candidate_query query = {.directory = directory, .model = s->model, .n_blocks = s->plan.blocks};
    sn_status status = sn_candidates_make(&query, &candidates, err);
    if (!status) status = sn_route_shortest(candidates.at, candidates.n, true, 0, s->plan.blocks, out, err);
    sn_candidates_fini(&candidates);
    return status;
}

static sn_status plan_with_full_knowledge(scale *s, sn_route *out, sn_err *err) {
    sn_directory *all = NULL;
    sn_status status = sn_directory_new(&all, err);
    if (!status) sn_directory_accept_names(all);
    for (int i = 0; i < s->n_members && !status; i++) {
        const member *m = &s->members[i];
        if (!m->serving) continue;
        sn_blob own = sn_membership_own_announcement(m->protocol->membership);
        status = sn_directory_add(all, own.data, own.len, sn_unix_ms(), err);
    }
    if (!status) status = plan_over(s, all, out, err);
    sn_directory_free(&all);
    return status;
}

static bool is_serving(const scale *s, const sn_announcement *a) {
    const member *m = &s->members[strtoul(a->address + strlen("node"), NULL, 10)];
    return m->serving && (uint64_t)m->first == a->first_block && (uint64_t)m->end == a->end_block;
}

static uint64_t gossip_bytes(const sim_net *net) {
    const sim_traffic *t = sim_net_traffic(net);
    return t->bytes[SN_MSG_PEERS] + t->bytes[SN_MSG_PEERS_REPLY] + t->bytes[SN_MSG_PING] + t->bytes[SN_MSG_PONG];
}

static void evaluate_route(scale *s, const sn_directory *known) {
    sn_route found, best;
    sn_err err;
    if (plan_with_full_knowledge(s, &best, &err)) return; /* there is no route */
    s->f.routes++;
    if (plan_over(s, known, &found, &err)) {
        s->f.routes_none++;
        return;
    }
    bool dead = false;
    for (size_t i = 0; i < found.n; i++) dead |= !is_serving(s, found.legs[i].node);
    s->f.routes_dead += dead;
    s->costs[s->f.routes - s->f.routes_none - 1] = (double)found.cost_ns / (double)best.cost_ns;
}

static void client_main(void *ctx) {
    new_client *v = ctx;
    scale *s = v->s;
    sn_seed seeds[3] = {0};
    sn_link *link = NULL;
    sn_err err;
    for (int i = 0; i < 3; i++) {
        const member *m = &s->members[v->nodes[i]];
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", m->address);
        memcpy(seeds[i].curve_key, m->identity.curve_key, SN_KEY_SIZE);
    }
    sn_transport *transport = sim_transport_new(s->net, v->host, NULL, NULL);
    if (sn_link_open_transport(&transport, seeds, 3, &link, &err)) abort();
    bool received = !sn_link_discover(link, &s->model, 3000, &err);
    if (s->measuring && received) evaluate_route(s, sn_link_directory(link));
    sn_link_close(&link);
}

static int random_member(scale *s) {
    for (;;) {
        int i = (int)sim_rng_below(&s->random, (uint64_t)s->n_members);
        if (s->members[i].incarnation) return i;
    }
}

static void start_client(scale *s) {
    if (s->n_clients == CLIENTS_MAX) return;
    new_client *v = sim_alloc(sizeof *v);
    uint8_t key[SN_KEY_SIZE];
    v->s = s;
    v->actor.random = sim_rng_fork(&s->random);
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)sim_rng_next(&v->actor.random);
    for (int i = 0; i < 3; i++) v->nodes[i] = random_member(s);
    v->host = sim_host_new(s->net, &v->actor, key);
    s->client_ctx[s->n_clients] = v;
    s->clients[s->n_clients++] = sim_task_new(s->time, &v->actor, client_main, v);
}

/* -- measurements */

/* The actual state: returns the number of served blocks; *slowest is the throughput of the slowest block divided by
 * the mean. */
static int measure_coverage(const scale *s, double *slowest) {
    double rate[1024] = {0}, sum = 0, least = INFINITY;
    int covered = 0;
    for (int i = 0; i < s->n_members; i++) {
        const member *m = &s->members[i];
        for (int b = m->first; m->serving && b < m->end; b++)
            rate[b] += 1e6 / (double)(m->block_us * (uint64_t)m->n_blocks);
    }
    for (int b = 0; b < s->plan.blocks; b++) {
        covered += rate[b] > 0;
        sum += rate[b];
        least = fmin(least, rate[b]);
    }
    *slowest = sum > 0 ? least * s->plan.blocks / sum : 0;
    return covered;
}

typedef struct knowledge {
    double known, dead, covered;
} knowledge;

static knowledge sample_knowledge(scale *s) {
    knowledge k = {0};
    for (int i = 0; i < DIRECTORIES_PER_SAMPLE; i++) {
        const sn_directory *d = sn_protocol_directory(s->members[random_member(s)].protocol);
        bool served[1024] = {false};
        size_t n = 0, dead = 0, covered = 0;
        for (size_t j = 0; j < sn_directory_count(d); j++) {
            const sn_announcement *a = sn_directory_at(d, j);
            if (a->state != SN_NODE_ONLINE) continue;
            bool serving = is_serving(s, a);
            n++;
            dead += !serving;
            for (uint64_t b = a->first_block; serving && b < a->end_block; b++) served[b] = true;
        }
        for (int b = 0; b < s->plan.blocks; b++) covered += served[b];
        k.known += (double)n / DIRECTORIES_PER_SAMPLE;
        k.dead += n ? (double)dead / (double)n / DIRECTORIES_PER_SAMPLE : 0;
        k.covered += (double)covered / s->plan.blocks / DIRECTORIES_PER_SAMPLE;
    }
    return k;
}

static int count_serving(const scale *s) {
    int n = 0;
    for (int i = 0; i < s->n_members; i++) n += s->members[i].serving;
    return n;
}

static void take_sample(scale *s) {
    double slowest;
    int covered = measure_coverage(s, &slowest);
    knowledge k = sample_knowledge(s);
    s->samples++;
    s->f.nodes += count_serving(s);
    s->f.covered += covered == s->plan.blocks;
    s->f.blocks_covered += (double)covered / s->plan.blocks;
    s->f.slowest += slowest;
    s->f.known += k.known;
    s->f.known_dead += k.dead;
    s->f.known_covered += k.covered;
}

static void run_for(scale *s, double seconds) {
    int64_t until = sim_now(s->time) + (int64_t)(seconds * 1e6);
    while (!(s->plan.skip && *s->plan.skip) && sim_run_next(s->time, until)) {}
}

static bool is_skipped(const scale *s) {
    bool skipped = s->plan.skip && *s->plan.skip;
    if (skipped) *s->plan.skip = 0;
    return skipped;
}

static void print_progress(const scale *s, const char *what) {
    double slowest;
    if (!s->plan.progress) return;
    int covered = measure_coverage(s, &slowest);
    fprintf(stderr, "%7.0f s %-7s %5d nodes serve, %3d of %d blocks, slowest %.2f, %.1f M events, %.0f s of a core\n",
            (double)sim_now(s->time) / 1e6 - 1000, what, count_serving(s), covered, s->plan.blocks, slowest,
            (double)sim_event_count(s->time) / 1e6, (double)clock() / CLOCKS_PER_SEC);
}

static int compare_costs(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void measure_swarm(scale *s) {
    uint64_t *before = sim_alloc((size_t)s->n_members * sizeof *before), most = 0;
    for (int i = 0; i < s->n_members; i++) before[i] = sim_host_bytes_sent(s->net, s->members[i].host);
    uint64_t all = gossip_bytes(s->net), rebalances = s->rebalances;
    int64_t begin = sim_now(s->time);
    s->measuring = true;
    for (int at = 0; at < s->plan.measure_s && !is_skipped(s); at += s->plan.sample_s) {
        for (int i = 0; i < CLIENTS_PER_SAMPLE; i++) start_client(s);
        run_for(s, s->plan.sample_s);
        take_sample(s);
        print_progress(s, "measure");
    }
    run_for(s, 4);
    s->measuring = false;
    double seconds = (double)(sim_now(s->time) - begin) / 1e6;
    s->f.watched_s = seconds;
    for (int i = 0; i < s->n_members; i++) {
        uint64_t sent = sim_host_bytes_sent(s->net, s->members[i].host) - before[i];
        if (sent > most) most = sent;
    }
    free(before);
    sim_scale_stats *f = &s->f;
    double *const means[] = {&f->nodes, &f->covered,    &f->blocks_covered, &f->slowest,
                             &f->known, &f->known_dead, &f->known_covered};
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) *means[i] /= s->samples;
    f->bytes_per_s = (double)(gossip_bytes(s->net) - all) / seconds / f->nodes;
    f->bytes_per_s_most = (double)most / seconds;
    f->rebalances_per_node_hour = (double)(s->rebalances - rebalances) / f->nodes / seconds * 3600;
    size_t n = (size_t)(f->routes - f->routes_none);
    qsort(s->costs, n, sizeof *s->costs, compare_costs);
    for (size_t i = 0; i < n; i++) f->route_cost += s->costs[i] / (double)n;
    f->route_cost_p95 = n ? s->costs[n * 95 / 100] : 0;
}

static void measure_healing(scale *s) {
    sim_scale_stats *f = &s->f;
    double slowest, normal;
    (void)measure_coverage(s, &normal);
    int n = count_serving(s) / 10;
    while (n > 0) {
        member *m = &s->members[random_member(s)];
        if (m->number < BOOTSTRAP_NODES || !m->serving) continue;
        end_member(m, true);
        n--;
    }
    f->covered_least = 1;
    f->heal_s = f->forget_s = f->slowest_s = -1;
    for (int at = 0; at <= s->plan.heal_s && !is_skipped(s); at++) {
        f->healed_s = at;
        int covered = measure_coverage(s, &slowest);
        double share = (double)covered / s->plan.blocks;
        if (share < f->covered_least) f->covered_least = share;
        if (share == 1 && f->heal_s < 0) f->heal_s = at;
        if (slowest >= 0.9 * normal && f->slowest_s < 0) f->slowest_s = at;
        if (f->forget_s < 0 && at % 2 == 0 && sample_knowledge(s).dead <= 1.25 * f->known_dead) f->forget_s = at;
        if (at % 30 == 0) print_progress(s, "heal");
        run_for(s, 1);
    }
}

static void begin_simulation(scale *s) {
    sim_rng model = {4711};
    s->random = (sim_rng){s->plan.seed};
    s->random = sim_rng_fork(&s->random);
    s->time = sim_time_new(s);
    s->net = sim_net_new(s->time, sim_rng_fork(&s->random));
    sim_net_hand_over(s->net);
    sim_fake_signatures();
    sim_set_prepare(s->time, prepare_event);
    s->hp = (sn_hparams){.n_blocks = s->plan.blocks, .n_embd = 4096, .n_ctx = 8192, .n_kv_heads = 8, .head_dim = 128};
    s->block_hash = sim_alloc((size_t)s->plan.blocks * sizeof *s->block_hash);
    for (size_t i = 0; i < (size_t)s->plan.blocks * SN_HASH_SIZE; i++)
        ((uint8_t *)s->block_hash)[i] = (uint8_t)sim_rng_next(&model);
    for (int i = 0; i < SN_HASH_SIZE; i++) s->model.bytes[i] = (uint8_t)sim_rng_next(&model);
    s->n_members = s->plan.nodes * 6 / 5;
    s->members = sim_alloc((size_t)s->n_members * sizeof *s->members);
    s->costs = sim_alloc(ROUTES_MAX * sizeof *s->costs);
    for (int i = 0; i < s->n_members; i++) new_member(s, i);
}

sim_scale_stats sim_scale(const sim_scale_plan *plan) {
    scale *s = sim_alloc(sizeof *s);
    s->plan = *plan;
    begin_simulation(s);
    for (int at = 0; at < plan->warm_s && !is_skipped(s); at += 30) {
        run_for(s, 30);
        print_progress(s, "warm");
    }
    measure_swarm(s);
    measure_healing(s);
    s->f.events = (double)sim_event_count(s->time);
    sim_scale_stats f = s->f;
    for (int i = 0; i < s->n_members; i++) end_member(&s->members[i], true);
    sim_time_free(&s->time);
    for (int i = 0; i < s->n_clients; i++) {
        sim_task_free(&s->clients[i]);
        free(s->client_ctx[i]);
    }
    sim_net_free(&s->net);
    free(s->members);
    free(s->block_hash);
    free(s->costs);
    free(s);
    return f;
}
