/* Routes against brute force: on hundreds of small swarms no way is cheaper than the one that is planned. */
#include "client/route.h"

#include "tests/support/need.h"

#include <criterion/criterion.h>

enum { BLOCKS = 6, OFFERS = 6, SWARMS = 600 };
static const sn_announcement a_node;

typedef struct swarm {
    sn_offer at[OFFERS];
    sn_offer_link links[OFFERS * OFFERS];
    size_t n, n_links;
    bool push;
} swarm;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}
static int below(uint64_t *state, int n) { return (int)(next(state) % (uint64_t)n); }

/* Half of the pairs are measured. */
static void make_swarm(swarm *s, uint64_t seed) {
    enum { WIDEST = 4 };
    uint64_t state = seed * 977 + 5;
    s->push = below(&state, 2);
    s->n = OFFERS;
    s->n_links = 0;
    for (int i = 0; i < OFFERS; i++) {
        int first = below(&state, BLOCKS), end = first + 1 + below(&state, WIDEST);
        s->at[i] = (sn_offer){.node = below(&state, 12) ? &a_node : NULL,
                              .verdict = below(&state, 10) ? SN_OFFER_USABLE : SN_OFFER_BANNED,
                              .first = first,
                              .end = end < BLOCKS ? end : BLOCKS,
                              .rtt_ns = 1 + below(&state, 40000),
                              .queue_ns = below(&state, 20000),
                              .block_ns = below(&state, 3000),
                              .tokens_per_s = 1 + below(&state, 100)};
        s->at[i].room = below(&state, 4) ? BLOCKS : 1 + below(&state, BLOCKS);
        if (!s->at[i].node) s->at[i].rtt_ns = 0;
    }
    int64_t rtt[OFFERS][OFFERS] = {0};
    for (int i = 0; i < OFFERS; i++)
        for (int k = 0; k < i; k++)
            if (below(&state, 2)) rtt[i][k] = rtt[k][i] = 1 + below(&state, 60000);
    for (int i = 0; i < OFFERS; i++) {
        s->at[i].links = &s->links[s->n_links];
        for (int k = 0; k < OFFERS; k++)
            if (rtt[i][k] && s->at[i].node && s->at[k].node) {
                s->links[s->n_links++] = (sn_offer_link){(size_t)k, rtt[i][k]};
                s->at[i].n_links++;
            }
    }
}

/* Tries every way from block p on. through: the least cost of those over each offer. */
static void try_all(const swarm *s, sn_stop *stops, size_t n, int p, int64_t *least, int64_t *through) {
    if (p >= BLOCKS || n >= BLOCKS) {
        int64_t cost = sn_route_cost(s->at, stops, n, s->push);
        if (cost < *least) *least = cost;
        for (size_t i = 0; i < n; i++)
            if (cost < through[stops[i].offer]) through[stops[i].offer] = cost;
        return;
    }
    for (size_t u = 0; u < s->n; u++) {
        const sn_offer *o = &s->at[u];
        if (o->verdict != SN_OFFER_USABLE || o->first > p || p >= o->end || (n && stops[n - 1].offer == u)) continue;
        for (int e = p + 1; e <= o->end && e - p <= o->room; e++) {
            stops[n] = (sn_stop){o->node, p, e, u};
            try_all(s, stops, n + 1, e, least, through);
        }
    }
}

static void check_way(const swarm *s, const sn_route *way, int first, int end) {
    int p = first;
    for (size_t i = 0; i < way->n; p = way->stops[i++].end) {
        const sn_stop *stop = &way->stops[i];
        const sn_offer *o = &s->at[stop->offer];
        cr_expect(stop->first == p && o->first <= p && p < stop->end && stop->end <= o->end);
        cr_expect(stop->node == o->node && o->verdict == SN_OFFER_USABLE && stop->end - stop->first <= o->room);
    }
    cr_expect_eq(p, end);
    cr_expect_eq(way->cost_ns, sn_route_cost(s->at, way->stops, way->n, s->push));
}

Test(route_quality, no_way_is_cheaper_than_the_planned_one) {
    static swarm s;
    int found = 0, long_ways = 0;
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        sn_stop stops[BLOCKS + 1];
        int64_t least = INT64_MAX, through[OFFERS], planned[OFFERS];
        sn_route way;
        sn_err why;
        make_swarm(&s, seed);
        for (int i = 0; i < OFFERS; i++) through[i] = INT64_MAX;
        try_all(&s, stops, 0, 0, &least, through);
        sn_status status = sn_route_shortest(s.at, s.n, s.push, 0, BLOCKS, &way, &why);
        cr_assert_eq(status, least == INT64_MAX ? SN_RETRY : SN_OK, "seed %llu: %s", (unsigned long long)seed,
                     why.text);
        NEED(sn_route_through(s.at, s.n, s.push, 0, BLOCKS, planned, &err));
        for (int i = 0; i < OFFERS; i++)
            cr_expect_eq(planned[i], through[i], "seed %llu, through %d: %lld, not %lld", (unsigned long long)seed, i,
                         (long long)planned[i], (long long)through[i]);
        if (status) continue;
        check_way(&s, &way, 0, BLOCKS);
        cr_assert_eq(way.cost_ns, least, "seed %llu: %lld, but %lld can be had", (unsigned long long)seed,
                     (long long)way.cost_ns, (long long)least);
        found++;
        long_ways += way.n > 2;
        sn_route drawn, again;
        NEED(sn_route_draw(s.at, s.n, s.push, 0, BLOCKS, seed, &drawn, &err));
        NEED(sn_route_draw(s.at, s.n, s.push, 0, BLOCKS, seed, &again, &err));
        check_way(&s, &drawn, 0, BLOCKS);
        cr_expect(drawn.n == again.n && !memcmp(drawn.stops, again.stops, drawn.n * sizeof *drawn.stops));
    }
    cr_expect(found > SWARMS / 4 && long_ways > SWARMS / 10, "%d swarms with a way, %d of several nodes", found,
              long_ways);
}

Test(route_quality, a_token_costs_its_ways_and_what_is_done_at_each_stop) {
    const sn_offer_link to[] = {{1, 30}, {0, 30}};
    sn_offer at[] = {
        {.node = &a_node, .end = 2, .rtt_ns = 100, .queue_ns = 7, .block_ns = 10, .links = &to[0], .n_links = 1},
        {.node = &a_node,
         .first = 2,
         .end = 5,
         .rtt_ns = 60,
         .queue_ns = 3,
         .block_ns = 20,
         .links = &to[1],
         .n_links = 1},
        {.first = 2, .end = 3}};
    const sn_stop two[] = {{&a_node, 0, 2, 0}, {&a_node, 2, 5, 1}};
    const sn_stop local[] = {{&a_node, 0, 2, 0}, {NULL, 2, 3, 2}, {&a_node, 3, 5, 1}};
    cr_expect_eq(sn_route_cost(at, two, 2, false), 50 + 7 + 2 * 10 + 50 + 30 + 3 + 3 * 20 + 30);
    cr_expect_eq(sn_route_cost(at, two, 2, true), 50 + 7 + 2 * 10 + 15 + 3 + 3 * 20 + 30);
    cr_expect_eq(sn_route_cost(at, local, 3, true), 50 + 7 + 2 * 10 + 50 + 30 + 3 + 2 * 20 + 30);
    at[0].n_links = at[1].n_links = 0; /* not measured: as far as half of what they are from the client */
    cr_expect_eq(sn_route_cost(at, two, 2, true), 50 + 7 + 2 * 10 + 25 + 15 + 3 + 3 * 20 + 30);
}

Test(route_quality, much_work_spreads_as_nodes_are_fast) {
    sn_offer at[] = {{.node = &a_node, .end = 4, .room = 4, .tokens_per_s = 10},
                     {.node = &a_node, .end = 4, .room = 4, .tokens_per_s = 30},
                     {.node = &a_node, .end = 4, .room = 4, .tokens_per_s = 60, .verdict = SN_OFFER_DENIED}};
    int times[3] = {0};
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        sn_route way;
        NEED(sn_route_draw(at, 3, false, 0, 4, seed, &way, &err));
        times[way.stops[0].offer]++;
    }
    cr_expect_eq(times[2], 0);
    cr_expect(times[1] > 2850 && times[1] < 3150, "%d of 4000 to the node with three quarters of the throughput",
              times[1]);
}

Test(route_quality, a_route_that_takes_too_many_stops_is_made_of_fewer) {
    static sn_offer at[SN_HOPS_MAX + 2];
    enum { LONG = SN_HOPS_MAX + 1 };
    for (int b = 0; b < LONG; b++) at[b] = (sn_offer){.node = &a_node, .first = b, .end = b + 1, .room = 1};
    at[LONG] = (sn_offer){.node = &a_node, .end = LONG, .room = LONG, .rtt_ns = 1000000000, .block_ns = 1000000};
    sn_route way;
    NEED(sn_route_shortest(at, LONG + 1, false, 0, LONG, &way, &err));
    cr_expect(way.n <= SN_HOPS_MAX);
    cr_expect_eq(way.stops[way.n - 1].end, LONG);
}

Test(route_quality, a_session_moves_when_that_comes_back_twice_over) {
    cr_expect(sn_route_is_worth_moving(1000, 500, 10000, 100));
    cr_expect_not(sn_route_is_worth_moving(1000, 500, 10000, 41), "20 tokens bring it back once");
    cr_expect(sn_route_is_worth_moving(1000, 500, 10000, 42));
    cr_expect_not(sn_route_is_worth_moving(1000, 801, 0, 1000000), "not a fifth better");
    cr_expect_not(sn_route_is_worth_moving(1000, 1000, 0, 1000000));
    cr_expect_not(sn_route_is_worth_moving(0, 0, 0, 1000000));
}
