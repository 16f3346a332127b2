/* Route planning compared with exhaustive search: in hundreds of small swarms no route is cheaper than the planned
 * one. */
#include "client/routing/route.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>

enum { BLOCKS = 6, CANDIDATES = 6, SWARMS = 600 };
static const sn_announcement ANNOUNCEMENT;

typedef struct swarm {
    sn_candidate at[CANDIDATES];
    sn_candidate_link links[CANDIDATES * CANDIDATES];
    size_t n, n_links;
    bool push;
} swarm;

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}
static int random_below(uint64_t *state, int n) { return (int)(next_random(state) % (uint64_t)n); }

/* Half of the pairs are measured. */
static void make_swarm(swarm *s, uint64_t seed) {
    enum { WIDEST = 4 };
    uint64_t state = seed * 977 + 5;
    s->push = random_below(&state, 2);
    s->n = CANDIDATES;
    s->n_links = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        int first = random_below(&state, BLOCKS), end = first + 1 + random_below(&state, WIDEST);
        s->at[i] = (sn_candidate){.node = random_below(&state, 12) ? &ANNOUNCEMENT : NULL,
                                  .eligibility = random_below(&state, 10) ? SN_ELIGIBLE : SN_INELIGIBLE_BANNED,
                                  .first = first,
                                  .end = end < BLOCKS ? end : BLOCKS,
                                  .rtt_ns = 1 + random_below(&state, 40000),
                                  .queue_ns = random_below(&state, 20000),
                                  .block_ns = random_below(&state, 3000),
                                  .tokens_per_s = 1 + random_below(&state, 100)};
        s->at[i].blocks_max = random_below(&state, 4) ? BLOCKS : 1 + random_below(&state, BLOCKS);
        if (!s->at[i].node) s->at[i].rtt_ns = 0;
    }
    int64_t rtt[CANDIDATES][CANDIDATES] = {0};
    for (int i = 0; i < CANDIDATES; i++)
        for (int k = 0; k < i; k++)
            if (random_below(&state, 2)) rtt[i][k] = rtt[k][i] = 1 + random_below(&state, 60000);
    for (int i = 0; i < CANDIDATES; i++) {
        s->at[i].links = &s->links[s->n_links];
        for (int k = 0; k < CANDIDATES; k++)
            if (rtt[i][k] && s->at[i].node && s->at[k].node) {
                s->links[s->n_links++] = (sn_candidate_link){(size_t)k, rtt[i][k]};
                s->at[i].n_links++;
            }
    }
}

/* Tries every route from block p on. through: the least cost over each candidate. */
static void try_all_routes(const swarm *s, sn_route_leg *legs, size_t n, int p, int64_t *least, int64_t *through) {
    if (p >= BLOCKS || n >= BLOCKS) {
        int64_t cost = sn_route_cost(s->at, legs, n, s->push);
        if (cost < *least) *least = cost;
        for (size_t i = 0; i < n; i++)
            if (cost < through[legs[i].candidate]) through[legs[i].candidate] = cost;
        return;
    }
    for (size_t u = 0; u < s->n; u++) {
        const sn_candidate *o = &s->at[u];
        if (o->eligibility != SN_ELIGIBLE || o->first > p || p >= o->end || (n && legs[n - 1].candidate == u)) continue;
        for (int e = p + 1; e <= o->end && e - p <= o->blocks_max; e++) {
            legs[n] = (sn_route_leg){o->node, p, e, u};
            try_all_routes(s, legs, n + 1, e, least, through);
        }
    }
}

static void check_route(const swarm *s, const sn_route *best, int first, int end) {
    int p = first;
    for (size_t i = 0; i < best->n; p = best->legs[i++].end) {
        const sn_route_leg *leg = &best->legs[i];
        const sn_candidate *o = &s->at[leg->candidate];
        cr_expect(leg->first == p && o->first <= p && p < leg->end && leg->end <= o->end);
        cr_expect(leg->node == o->node && o->eligibility == SN_ELIGIBLE && leg->end - leg->first <= o->blocks_max);
    }
    cr_expect_eq(p, end);
    cr_expect_eq(best->cost_ns, sn_route_cost(s->at, best->legs, best->n, s->push));
}

Test(route_quality, no_route_is_cheaper_than_the_planned_one) {
    static swarm s;
    int found = 0, long_routes = 0;
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        sn_route_leg legs[BLOCKS + 1];
        int64_t least = INT64_MAX, through[CANDIDATES], planned[CANDIDATES];
        sn_route best;
        sn_err why;
        make_swarm(&s, seed);
        for (int i = 0; i < CANDIDATES; i++) through[i] = INT64_MAX;
        try_all_routes(&s, legs, 0, 0, &least, through);
        sn_status status = sn_route_shortest(s.at, s.n, s.push, 0, BLOCKS, &best, &why);
        cr_assert_eq(status, least == INT64_MAX ? SN_RETRY : SN_OK, "seed %llu: %s", (unsigned long long)seed,
                     why.text);
        REQUIRE(sn_route_cost_through(s.at, s.n, s.push, 0, BLOCKS, planned, &err));
        for (int i = 0; i < CANDIDATES; i++)
            cr_expect_eq(planned[i], through[i], "seed %llu, through %d: %lld, not %lld", (unsigned long long)seed, i,
                         (long long)planned[i], (long long)through[i]);
        if (status) continue;
        check_route(&s, &best, 0, BLOCKS);
        cr_assert_eq(best.cost_ns, least, "seed %llu: %lld, but the least cost is %lld", (unsigned long long)seed,
                     (long long)best.cost_ns, (long long)least);
        found++;
        long_routes += best.n > 2;
        sn_route drawn, again;
        REQUIRE(sn_route_sample(s.at, s.n, s.push, 0, BLOCKS, seed, &drawn, &err));
        REQUIRE(sn_route_sample(s.at, s.n, s.push, 0, BLOCKS, seed, &again, &err));
        check_route(&s, &drawn, 0, BLOCKS);
        cr_expect(drawn.n == again.n && !memcmp(drawn.legs, again.legs, drawn.n * sizeof *drawn.legs));
    }
    cr_expect(found > SWARMS / 4 && long_routes > SWARMS / 10, "%d swarms with a way, %d of several nodes", found,
              long_routes);
}

Test(route_quality, cost_is_links_plus_work_of_each_leg) {
    const sn_candidate_link to[] = {{1, 30}, {0, 30}};
    sn_candidate at[] = {
        {.node = &ANNOUNCEMENT, .end = 2, .rtt_ns = 100, .queue_ns = 7, .block_ns = 10, .links = &to[0], .n_links = 1},
        {.node = &ANNOUNCEMENT,
         .first = 2,
         .end = 5,
         .rtt_ns = 60,
         .queue_ns = 3,
         .block_ns = 20,
         .links = &to[1],
         .n_links = 1},
        {.first = 2, .end = 3}};
    const sn_route_leg two[] = {{&ANNOUNCEMENT, 0, 2, 0}, {&ANNOUNCEMENT, 2, 5, 1}};
    const sn_route_leg local[] = {{&ANNOUNCEMENT, 0, 2, 0}, {NULL, 2, 3, 2}, {&ANNOUNCEMENT, 3, 5, 1}};
    cr_expect_eq(sn_route_cost(at, two, 2, false), 50 + 7 + 2 * 10 + 50 + 30 + 3 + 3 * 20 + 30);
    cr_expect_eq(sn_route_cost(at, two, 2, true), 50 + 7 + 2 * 10 + 15 + 3 + 3 * 20 + 30);
    cr_expect_eq(sn_route_cost(at, local, 3, true), 50 + 7 + 2 * 10 + 50 + 30 + 3 + 2 * 20 + 30);
    at[0].n_links = at[1].n_links = 0; /* not measured: estimated as half of their distance from the client */
    cr_expect_eq(sn_route_cost(at, two, 2, true), 50 + 7 + 2 * 10 + 25 + 15 + 3 + 3 * 20 + 30);
}

Test(route_quality, load_spreads_by_node_throughput) {
    sn_candidate at[] = {
        {.node = &ANNOUNCEMENT, .end = 4, .blocks_max = 4, .tokens_per_s = 10},
        {.node = &ANNOUNCEMENT, .end = 4, .blocks_max = 4, .tokens_per_s = 30},
        {.node = &ANNOUNCEMENT, .end = 4, .blocks_max = 4, .tokens_per_s = 60, .eligibility = SN_INELIGIBLE_DENIED}};
    int times[3] = {0};
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        sn_route best;
        REQUIRE(sn_route_sample(at, 3, false, 0, 4, seed, &best, &err));
        times[best.legs[0].candidate]++;
    }
    cr_expect_eq(times[2], 0);
    cr_expect(times[1] > 2850 && times[1] < 3150, "%d of 4000 to the node with three quarters of the throughput",
              times[1]);
}

Test(route_quality, a_route_with_too_many_legs_is_replaced_by_a_shorter_one) {
    static sn_candidate at[SN_HOPS_MAX + 2];
    enum { LONG = SN_HOPS_MAX + 1 };
    for (int b = 0; b < LONG; b++)
        at[b] = (sn_candidate){.node = &ANNOUNCEMENT, .first = b, .end = b + 1, .blocks_max = 1};
    at[LONG] = (sn_candidate){
        .node = &ANNOUNCEMENT, .end = LONG, .blocks_max = LONG, .rtt_ns = 1000000000, .block_ns = 1000000};
    sn_route best;
    REQUIRE(sn_route_shortest(at, LONG + 1, false, 0, LONG, &best, &err));
    cr_expect(best.n <= SN_HOPS_MAX);
    cr_expect_eq(best.legs[best.n - 1].end, LONG);
}

Test(route_quality, reroutes_only_when_the_gain_is_twice_the_cost) {
    cr_expect(sn_route_is_worth_rerouting(1000, 500, 10000, 100));
    cr_expect_not(sn_route_is_worth_rerouting(1000, 500, 10000, 41), "20 tokens gain only once the cost");
    cr_expect(sn_route_is_worth_rerouting(1000, 500, 10000, 42));
    cr_expect_not(sn_route_is_worth_rerouting(1000, 801, 0, 1000000), "the gain is less than a fifth");
    cr_expect_not(sn_route_is_worth_rerouting(1000, 1000, 0, 1000000));
    cr_expect_not(sn_route_is_worth_rerouting(0, 0, 0, 1000000));
}
