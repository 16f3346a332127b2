#include "tests/sim/scale.h"

#include "base/clock.h"
#include "client/link.h"
#include "client/offer.h"
#include "client/route.h"
#include "node/core_private.h"
#include "tests/sim/net.h"
#include "tests/support/need.h"

#include <math.h>
#include <string.h>

enum {
    BOOTSTRAPS = 8, /* nodes that stay and that everybody is told to join */
    SAMPLE_US = 10 * SECOND_US,
    VISITORS = 5, /* clients that come new in each sample */
    SAMPLED = 40, /* nodes looked at in each sample */
    ROUTES_MAX = 4096,
    CLIENTS_MAX = 4096,
};

typedef struct scale scale;

typedef struct member {
    scale *s;
    int number, place;
    sim_actor actor;
    sn_identity identity;
    char address[SN_ADDRESS_MAX + 1];
    sn_hash *hashes;   /* of its span */
    int n_blocks;      /* that it has room for */
    uint64_t block_us; /* a token through one block */
    uint64_t life;     /* of the program; 0: none runs */
    sn_core *core;
    sn_transport *transport;
    bool serving;
    int first, end;
    int64_t due_us; /* when its turn is; later ones are not asked for */
} member;

struct scale {
    sim_scale_plan plan;
    sim_time *time;
    sim_net *net;
    sim_random random;
    member *members;
    int n_members;
    sn_hparams hp;
    sn_hash model, *block_hash;
    uint64_t lives, moves;
    sim_scale_figures f;
    int samples, nodes_sampled;
    double *costs;
    sim_task *clients[CLIENTS_MAX];
    void *client_ctx[CLIENTS_MAX];
    int n_clients;
    bool watches;
};

/* -- nodes -- */

static bool submit(void *ctx, sn_job *job) {
    (void)ctx;
    (void)job;
    return false;
}

static sn_engine_figures figures(void *ctx) {
    const member *m = ctx;
    uint64_t us = m->block_us * (uint64_t)m->n_blocks;
    return (sn_engine_figures){.decode_us = us, .prompt_tokens_per_s = 20000000 / us};
}

static void turn(member *m);

static void on_turn(void *world, void *what, uint64_t which, bool ending) {
    (void)world;
    member *m = what;
    if (ending || m->life != which || m->due_us > sim_now(m->s->time)) return;
    m->due_us = INT64_MAX;
    turn(m);
}

static void on_loaded(void *world, void *what, uint64_t which, bool ending) {
    (void)world;
    member *m = what;
    if (ending || m->life != which) return;
    sim_actor *was = sim_enter(m->s->time, &m->actor);
    const sn_span_facts span = {
        .first = m->first, .end = m->end, .hp = &m->s->hp, .block_hash = m->s->block_hash + m->first};
    sn_core_serve(m->core, &span, (size_t)8 << 30, sn_now_us(), sn_unix_ms());
    m->serving = true;
    sim_enter(m->s->time, was);
    turn(m);
}

static void turn(member *m) {
    scale *s = m->s;
    sim_actor *was = sim_enter(s->time, &m->actor);
    int64_t next = sim_global_us(&m->actor, sn_core_tick(m->core, sn_now_us(), sn_unix_ms()));
    int first, end;
    if (sn_core_wants_to_move(m->core)) {
        m->serving = false;
        s->moves++;
        sn_core_vacate(m->core, sn_now_us(), sn_unix_ms());
        next = sim_now(s->time);
    }
    if (sn_core_wants_blocks(m->core, &first, &end)) {
        m->first = first;
        m->end = end;
        sim_at(s->time, sim_now(s->time) + sim_between(&s->random, 10, 60) * SECOND_US, on_loaded, m, m->life);
    }
    sim_enter(s->time, was);
    if (next >= m->due_us) return;
    m->due_us = next > sim_now(s->time) ? next : sim_now(s->time) + 1;
    sim_at(s->time, m->due_us, on_turn, m, m->life);
}

static void receive(void *ctx, sn_event *event) {
    member *m = ctx;
    sn_core_handle(m->core, event, sn_now_us(), sn_unix_ms());
    turn(m);
}

static void start(member *m) {
    scale *s = m->s;
    char bound[SN_ADDRESS_MAX + 1];
    sim_actor *was = sim_enter(s->time, &m->actor);
    m->life = ++s->lives;
    m->due_us = INT64_MAX;
    m->transport = sim_transport_new(s->net, m->place, receive, m);
    NEED(sn_transport_listen(m->transport, m->address, bound, &err));
    const sn_core_setup setup = {.transport = m->transport,
                                 .identity = &m->identity,
                                 .address = m->address,
                                 .name = "",
                                 .span = {.hp = &s->hp},
                                 .loading = true,
                                 .auto_blocks = m->n_blocks,
                                 .expects_others = m->number > 0,
                                 .rebalance_us = 300 * (int64_t)SECOND_US,
                                 .rebalance_gain = 20,
                                 .move_us_max = 10 * SECOND_US,
                                 .model = s->model,
                                 .sessions_max = 64,
                                 .idle_us_max = 600 * (int64_t)SECOND_US,
                                 .room_us_max = SECOND_US,
                                 .submit = submit,
                                 .read = figures,
                                 .ctx = m};
    NEED(sn_core_new(&setup, sn_now_us(), &m->core, &err));
    int known = (int)sim_below(&s->random, BOOTSTRAPS);
    for (int i = 0; i < 2; i++) {
        const member *other = &s->members[(known + i) % BOOTSTRAPS];
        if (other != m) sn_core_join(m->core, other->address, other->identity.curve_key);
    }
    sim_enter(s->time, was);
    turn(m);
}

static void end_member(member *m, bool silent) {
    if (!m->life) return;
    sim_place_crash(m->s->net, m->place, silent);
    m->life = 0;
    m->serving = false;
    sn_core_free(&m->core);
    sn_transport_free(&m->transport);
}

static double weibull(sim_random *random, double mean) { /* of shape 0.6 */
    return mean / tgamma(1 + 1 / 0.6) * pow(-log1p(-sim_unit(random)), 1 / 0.6);
}

static void come_or_go(void *world, void *what, uint64_t which, bool ending) {
    scale *s = world;
    member *m = what;
    (void)which;
    if (ending) return;
    double stay = weibull(&s->random, s->plan.stay_s);
    if (m->life) { /* half of them say so */
        bool says = sim_chance(&s->random, 0.5);
        sim_actor *was = sim_enter(s->time, &m->actor);
        if (says) sn_core_leave(m->core, sn_unix_ms());
        sim_enter(s->time, was);
        end_member(m, !says);
        stay = sim_exponential(&s->random, s->plan.stay_s / 5);
    } else {
        start(m);
    }
    sim_at(s->time, sim_now(s->time) + (int64_t)(stay * 1e6), come_or_go, m, 0);
}

static void new_member(scale *s, int number) {
    member *m = &s->members[number];
    sim_random *r = &s->random;
    *m = (member){.s = s, .number = number};
    m->actor = (sim_actor){.offset_us = sim_between(r, 0, 1000 * (int64_t)SECOND_US),
                           .unix_offset_ms = sim_between(r, -2000, 2000),
                           .random = sim_fork(r)};
    sim_actor *was = sim_enter(s->time, &m->actor);
    NEED(sn_identity_new(&m->identity, &err));
    sim_enter(s->time, was);
    m->n_blocks = (int)sim_between(r, s->plan.blocks / 20, s->plan.blocks / 5);
    m->block_us = (uint64_t)sim_between(r, 300, 3000);
    m->place = sim_place_new(s->net, &m->actor, m->identity.curve_key);
    snprintf(m->address, sizeof m->address, "mem://%d", m->place);
    bool stays = number < BOOTSTRAPS;
    int64_t when = (int64_t)(sim_unit(r) * (stays ? 1 : 120) * SECOND_US);
    if (!stays && sim_chance(r, 1.0 / 6)) when += (int64_t)(sim_exponential(r, s->plan.stay_s / 5) * 1e6);
    sim_at(s->time, sim_now(s->time) + when, come_or_go, m, 0);
}

/* -- clients: the route that one finds who comes new, and the best there is -- */

typedef struct visitor {
    scale *s;
    sim_actor actor;
    int place, nodes[3];
} visitor;

static sn_status plan_over(const scale *s, const sn_directory *directory, sn_route *out, sn_err *err) {
    sn_offers offers = {0};
    sn_offer_wish wish = {.directory = directory, .model = s->model, .n_blocks = s->plan.blocks};
    sn_status status = sn_offers_make(&wish, &offers, err);
    if (!status) status = sn_route_shortest(offers.at, offers.n, true, 0, s->plan.blocks, out, err);
    sn_offers_fini(&offers);
    return status;
}

static sn_status best_of_all(scale *s, sn_route *out, sn_err *err) {
    sn_directory *all = NULL;
    sn_status status = sn_directory_new(&all, err);
    for (int i = 0; i < s->n_members && !status; i++) {
        const member *m = &s->members[i];
        if (m->serving) status = sn_directory_take(all, m->core->sealed.data, m->core->sealed.len, sn_unix_ms(), err);
    }
    if (!status) status = plan_over(s, all, out, err);
    sn_directory_free(&all);
    return status;
}

static bool is_serving(const scale *s, const sn_announcement *a) {
    const member *m = &s->members[strtoul(a->address + strlen("mem://"), NULL, 10)];
    return m->serving && (uint64_t)m->first == a->first_block && (uint64_t)m->end == a->end_block;
}

static uint64_t told(const sim_net *net) {
    const sim_traffic *t = sim_net_traffic(net);
    return t->bytes[SN_MSG_PEERS] + t->bytes[SN_MSG_PEERS_ARE] + t->bytes[SN_MSG_PING] + t->bytes[SN_MSG_PONG];
}

static void judge(scale *s, const sn_directory *known) {
    sn_route found, best;
    sn_err err;
    if (best_of_all(s, &best, &err)) return; /* there is no way */
    s->f.routes++;
    if (plan_over(s, known, &found, &err)) {
        s->f.routes_none++;
        return;
    }
    bool dead = false;
    for (size_t i = 0; i < found.n; i++) dead |= !is_serving(s, found.stops[i].node);
    s->f.routes_dead += dead;
    s->costs[s->f.routes - s->f.routes_none - 1] = (double)found.cost_ns / (double)best.cost_ns;
}

static void visit(void *ctx) {
    visitor *v = ctx;
    scale *s = v->s;
    sn_seed seeds[3] = {0};
    sn_link *link = NULL;
    sn_err err;
    for (int i = 0; i < 3; i++) {
        const member *m = &s->members[v->nodes[i]];
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", m->address);
        memcpy(seeds[i].curve_key, m->identity.curve_key, SN_KEY_SIZE);
    }
    sn_transport *transport = sim_transport_new(s->net, v->place, NULL, NULL);
    if (sn_link_over(&transport, seeds, 3, &link, &err)) abort();
    bool heard = !sn_link_discover(link, &s->model, 3000, &err);
    if (s->watches && heard) judge(s, sn_link_directory(link));
    sn_link_close(&link);
}

static int someone(scale *s) {
    for (;;) {
        int i = (int)sim_below(&s->random, (uint64_t)s->n_members);
        if (s->members[i].life) return i;
    }
}

static void send_visitor(scale *s) {
    if (s->n_clients == CLIENTS_MAX) return;
    visitor *v = sim_alloc(sizeof *v);
    uint8_t key[SN_KEY_SIZE];
    v->s = s;
    v->actor.random = sim_fork(&s->random);
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)sim_next(&v->actor.random);
    for (int i = 0; i < 3; i++) v->nodes[i] = someone(s);
    v->place = sim_place_new(s->net, &v->actor, key);
    s->client_ctx[s->n_clients] = v;
    s->clients[s->n_clients++] = sim_task_new(s->time, &v->actor, visit, v);
}

/* -- figures -- */

/* What is true: how many blocks are served, and how much the slowest one carries in shares of the mean. */
static int coverage(const scale *s, double *slowest) {
    double rate[1024] = {0}, sum = 0, least = INFINITY;
    int covered = 0;
    for (int i = 0; i < s->n_members; i++) {
        const member *m = &s->members[i];
        for (int b = m->first; m->serving && b < m->end; b++) rate[b] += 1e6 / (double)(m->block_us * (uint64_t)m->n_blocks);
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

static knowledge look_into(scale *s) {
    knowledge k = {0};
    for (int i = 0; i < SAMPLED; i++) {
        const sn_directory *d = s->members[someone(s)].core->directory;
        bool held[1024] = {false};
        size_t n = 0, dead = 0, covered = 0;
        for (size_t j = 0; j < sn_directory_count(d); j++) {
            const sn_announcement *a = sn_directory_at(d, j);
            if (a->state != SN_NODE_ONLINE) continue;
            bool there = is_serving(s, a);
            n++;
            dead += !there;
            for (uint64_t b = a->first_block; there && b < a->end_block; b++) held[b] = true;
        }
        for (int b = 0; b < s->plan.blocks; b++) covered += held[b];
        k.known += (double)n / SAMPLED;
        k.dead += n ? (double)dead / (double)n / SAMPLED : 0;
        k.covered += (double)covered / s->plan.blocks / SAMPLED;
    }
    return k;
}

static int serving(const scale *s) {
    int n = 0;
    for (int i = 0; i < s->n_members; i++) n += s->members[i].serving;
    return n;
}

static void sample(scale *s) {
    double slowest;
    int covered = coverage(s, &slowest);
    knowledge k = look_into(s);
    s->samples++;
    s->f.nodes += serving(s);
    s->f.covered += covered == s->plan.blocks;
    s->f.blocks_covered += (double)covered / s->plan.blocks;
    s->f.slowest += slowest;
    s->f.known += k.known;
    s->f.known_dead += k.dead;
    s->f.known_covered += k.covered;
}

static void advance(scale *s, double seconds) {
    int64_t until = sim_now(s->time) + (int64_t)(seconds * 1e6);
    while (sim_step(s->time, until)) {}
}

static void talk(const scale *s, const char *what) {
    double slowest;
    if (!s->plan.talks) return;
    int covered = coverage(s, &slowest);
    fprintf(stderr, "%7.0f s %-6s %5d nodes serve, %3d of %d blocks, slowest %.2f, %.1f M events\n",
            (double)sim_now(s->time) / 1e6 - 1000, what, serving(s), covered, s->plan.blocks, slowest,
            (double)sim_events(s->time) / 1e6);
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void watch(scale *s) {
    uint64_t *before = sim_alloc((size_t)s->n_members * sizeof *before), most = 0;
    for (int i = 0; i < s->n_members; i++) before[i] = sim_place_sent(s->net, s->members[i].place);
    uint64_t all = told(s->net), moves = s->moves;
    int64_t begin = sim_now(s->time);
    s->watches = true;
    for (double at = 0; at < s->plan.watch_s; at += SAMPLE_US / 1e6) {
        for (int i = 0; i < VISITORS; i++) send_visitor(s);
        advance(s, SAMPLE_US / 1e6);
        sample(s);
        talk(s, "watch");
    }
    advance(s, 4);
    s->watches = false;
    double seconds = (double)(sim_now(s->time) - begin) / 1e6;
    for (int i = 0; i < s->n_members; i++) {
        uint64_t sent = sim_place_sent(s->net, s->members[i].place) - before[i];
        if (sent > most) most = sent;
    }
    free(before);
    sim_scale_figures *f = &s->f;
    double *const means[] = {&f->nodes, &f->covered, &f->blocks_covered, &f->slowest, &f->known, &f->known_dead, &f->known_covered};
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) *means[i] /= s->samples;
    f->bytes_per_s = (double)(told(s->net) - all) / seconds / f->nodes;
    f->bytes_per_s_most = (double)most / seconds;
    f->moves_per_node_hour = (double)(s->moves - moves) / f->nodes / seconds * 3600;
    size_t n = (size_t)(f->routes - f->routes_none);
    qsort(s->costs, n, sizeof *s->costs, by_size);
    for (size_t i = 0; i < n; i++) f->route_cost += s->costs[i] / (double)n;
    f->route_cost_p95 = n ? s->costs[n * 95 / 100] : 0;
}

static void watch_healing(scale *s) {
    sim_scale_figures *f = &s->f;
    double slowest, normal;
    (void)coverage(s, &normal);
    int n = serving(s) / 10;
    while (n > 0) {
        member *m = &s->members[someone(s)];
        if (m->number < BOOTSTRAPS || !m->serving) continue;
        end_member(m, true);
        n--;
    }
    f->covered_least = 1;
    f->heal_s = f->forget_s = f->slowest_s = -1;
    for (double at = 0; at <= s->plan.heal_s; at++) {
        int covered = coverage(s, &slowest);
        double share = (double)covered / s->plan.blocks;
        if (share < f->covered_least) f->covered_least = share;
        if (share == 1 && f->heal_s < 0) f->heal_s = at;
        if (slowest >= 0.9 * normal && f->slowest_s < 0) f->slowest_s = at;
        if (f->forget_s < 0 && (int)at % 2 == 0 && look_into(s).dead <= 1.25 * f->known_dead) f->forget_s = at;
        if (!((int)at % 30)) talk(s, "heal");
        advance(s, 1);
    }
}

static void begin_world(scale *s) {
    sim_random model = {4711};
    s->random = (sim_random){s->plan.seed};
    s->random = sim_fork(&s->random);
    s->time = sim_time_new(s);
    s->net = sim_net_new(s->time, sim_fork(&s->random));
    s->hp = (sn_hparams){.n_blocks = s->plan.blocks, .n_embd = 4096, .n_ctx = 8192, .n_kv_heads = 8, .head_dim = 128};
    s->block_hash = sim_alloc((size_t)s->plan.blocks * sizeof *s->block_hash);
    for (size_t i = 0; i < (size_t)s->plan.blocks * SN_HASH_SIZE; i++) ((uint8_t *)s->block_hash)[i] = (uint8_t)sim_next(&model);
    for (int i = 0; i < SN_HASH_SIZE; i++) s->model.bytes[i] = (uint8_t)sim_next(&model);
    s->n_members = s->plan.nodes * 6 / 5;
    s->members = sim_alloc((size_t)s->n_members * sizeof *s->members);
    s->costs = sim_alloc(ROUTES_MAX * sizeof *s->costs);
    for (int i = 0; i < s->n_members; i++) new_member(s, i);
}

sim_scale_figures sim_scale(const sim_scale_plan *plan) {
    scale *s = sim_alloc(sizeof *s);
    s->plan = *plan;
    begin_world(s);
    for (double at = 0; at < plan->warm_s; at += 30) {
        advance(s, 30);
        talk(s, "warm");
    }
    watch(s);
    watch_healing(s);
    s->f.events = (double)sim_events(s->time);
    sim_scale_figures f = s->f;
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
