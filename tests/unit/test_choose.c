/* Which blocks a node serves, as pure logic: single choices by hand, then some hundred swarms by seed. */
#include "node/choose.h"

#include "base/random.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_census begin(int n_blocks) {
    sn_census c;
    sn_err err = {0};
    cr_assert_eq(sn_census_begin(&c, n_blocks, &err), SN_OK, "%s", err.text);
    return c;
}

static int choose(const sn_census *c, int n) {
    uint64_t seed = 1;
    return sn_choose_window(c, n, &seed);
}

static int move(const sn_census *c, int first, int end, uint64_t rate, int gain) {
    uint64_t seed = 1;
    return sn_choose_move(c, first, end, rate, gain, &seed);
}

Test(choose, fills_a_gap_before_it_helps_the_slow) {
    sn_census c = begin(10);
    sn_census_add(&c, 0, 6, 1, true);
    sn_census_add(&c, 7, 10, 1000, true);
    for (uint64_t seed = 0; seed < 20; seed++) { /* windows of 3 with block 6, and the two slow ones before it, are least */
        uint64_t s = seed;
        cr_assert_eq(sn_choose_window(&c, 3, &s), 4);
    }
}

/* Petals would take the window with the least sum, 3:5; the slowest single block is 0. */
Test(choose, compares_sorted_throughputs_and_not_their_sum) {
    sn_census c = begin(5);
    const uint64_t rates[] = {2, 100, 100, 5, 5};
    memcpy(c.rate, rates, sizeof rates);
    cr_assert_eq(choose(&c, 2), 0);
}

Test(choose, leaves_no_scraps) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        sn_census c = begin(30);
        uint64_t s = seed;
        for (int i = 0; i < 3; i++) {
            int first = sn_choose_window(&c, 10, &s);
            cr_assert_eq(first % 10, 0, "seed %llu: %d", (unsigned long long)seed, first);
            sn_census_add(&c, first, first + 10, 7, false);
        }
        for (int b = 0; b < 30; b++) cr_assert_eq(c.rate[b], 7);
    }
}

Test(choose, seeds_choose_differently_among_equals) {
    int chosen[3] = {0};
    for (uint64_t seed = 0; seed < 90; seed++) {
        sn_census c = begin(30);
        uint64_t s = seed, again = seed;
        int first = sn_choose_window(&c, 10, &s);
        cr_assert_eq(first, sn_choose_window(&c, 10, &again), "the same seed chooses the same");
        chosen[first / 10]++;
    }
    for (int i = 0; i < 3; i++) cr_assert_gt(chosen[i], 15);
}

Test(choose, knows_whether_a_window_is_still_the_best) {
    sn_census c = begin(6);
    sn_census_add(&c, 0, 2, 5, true);
    cr_assert(sn_is_best_window(&c, 2, 2) && sn_is_best_window(&c, 4, 2));
    cr_assert_not(sn_is_best_window(&c, 0, 2));
    cr_assert_not(sn_is_best_window(&c, 1, 2));
    sn_census_add(&c, 4, 6, 5, false);
    cr_assert_not(sn_is_best_window(&c, 4, 2));
}

Test(choose, takes_the_whole_model_when_it_can) {
    sn_census c = begin(SN_CENSUS_BLOCKS_MAX);
    cr_assert_eq(choose(&c, SN_CENSUS_BLOCKS_MAX), 0);
    sn_err err;
    cr_assert_eq(sn_census_begin(&c, SN_CENSUS_BLOCKS_MAX + 1, &err), SN_REFUSED);
}

Test(move, never_uncovers_a_block) {
    sn_census c = begin(4);
    sn_census_add(&c, 1, 2, 1, true); /* we: 0:2; blocks 2 and 3 are served by nobody, 0 by us alone */
    cr_assert_eq(move(&c, 0, 2, 100, 20), 0);
    cr_assert(!sn_may_leave(&c, 0, 2, 2));
    cr_assert(sn_may_leave(&c, 0, 2, 0));
    sn_census_add(&c, 0, 1, 1, false); /* one that only joins serves nobody yet */
    cr_assert_eq(move(&c, 0, 2, 100, 20), 0);
    sn_census_add(&c, 0, 1, 1, true);
    cr_assert_eq(move(&c, 0, 2, 100, 20), 2);
}

Test(move, is_made_only_for_enough) {
    sn_census c = begin(4); /* with us at 0:2 the throughputs are 15 15 10 10; at 2:4 they would be 10 10 15 15 */
    sn_census_add(&c, 0, 4, 10, true);
    cr_assert_eq(move(&c, 0, 2, 5, 0), 0);
    c = begin(4); /* 25 25 10 10; there 20 20 15 15: the slowest gains half */
    sn_census_add(&c, 0, 2, 20, true);
    sn_census_add(&c, 2, 4, 10, true);
    cr_assert_eq(move(&c, 0, 2, 5, 50), 2);
    cr_assert_eq(move(&c, 0, 2, 5, 51), 0);
}

/* 0:2, 1:3, 3:5 of six blocks: nobody covers 5, and nobody can in one move. 1:3 goes to 2:4, which frees 3:5 to go to 4:6. */
Test(move, brings_a_surplus_to_the_gap_in_steps) {
    sn_census c = begin(6);
    sn_census_add(&c, 0, 2, 1, true);
    sn_census_add(&c, 3, 5, 1, true);
    cr_assert_eq(move(&c, 1, 3, 1, 20), 2);
    c = begin(6);
    sn_census_add(&c, 0, 2, 1, true);
    sn_census_add(&c, 2, 4, 1, true);
    cr_assert_eq(move(&c, 3, 5, 1, 20), 4);
}

/* -- swarms by seed -- */

enum { NODES_MAX = 40, SWARMS = 250 };

typedef struct swarm {
    uint64_t seed;
    int n, n_blocks, gain;
    struct {
        int first, n;
        uint64_t rate;
        bool pinned;
    } nodes[NODES_MAX];
} swarm;

static sn_census others(const swarm *s, int except) {
    sn_census c = begin(s->n_blocks);
    for (int i = 0; i < s->n; i++)
        if (i != except) sn_census_add(&c, s->nodes[i].first, s->nodes[i].first + s->nodes[i].n, s->nodes[i].rate, true);
    return c;
}

static int uncovered(const swarm *s) {
    sn_census c = others(s, -1);
    int n = 0;
    for (int b = 0; b < s->n_blocks; b++) n += !c.serving[b];
    return n;
}

static uint64_t slowest(const swarm *s) {
    sn_census c = others(s, -1);
    uint64_t least = UINT64_MAX;
    for (int b = 0; b < s->n_blocks; b++) least = c.rate[b] < least ? c.rate[b] : least;
    return least;
}

/* Nodes anywhere, as if they had joined without knowing of each other. `alike`: all of the same length. */
static swarm scatter(uint64_t seed, bool alike) {
    swarm s = {.seed = seed, .gain = 20};
    s.n_blocks = 4 + (int)sn_seeded_below(&s.seed, 60);
    s.n = 2 + (int)sn_seeded_below(&s.seed, NODES_MAX - 2);
    int length = 1 + (int)sn_seeded_below(&s.seed, (uint64_t)s.n_blocks);
    for (int i = 0; i < s.n; i++) {
        s.nodes[i].n = alike ? length : 1 + (int)sn_seeded_below(&s.seed, (uint64_t)s.n_blocks);
        s.nodes[i].first = (int)sn_seeded_below(&s.seed, (uint64_t)(s.n_blocks - s.nodes[i].n + 1));
        s.nodes[i].rate = 1 + sn_seeded_below(&s.seed, 100);
    }
    return s;
}

/* Lets a node that the seed names move, if it wants to. Checks what holds for every move. */
static bool let_one_move(swarm *s) {
    int i = (int)sn_seeded_below(&s->seed, (uint64_t)s->n), before = uncovered(s), from = s->nodes[i].first;
    uint64_t least = slowest(s);
    sn_census c = others(s, i);
    if (s->nodes[i].pinned) return false;
    s->nodes[i].first = sn_choose_move(&c, from, from + s->nodes[i].n, s->nodes[i].rate, s->gain, &s->seed);
    if (s->nodes[i].first == from) return false;
    int after = uncovered(s);
    cr_assert(s->nodes[i].first >= 0 && s->nodes[i].first + s->nodes[i].n <= s->n_blocks);
    cr_assert_leq(after, before, "a move uncovered a block");
    if (!before) cr_assert(slowest(s) * 100 >= least * 120, "a move for too little");
    return true;
}

/* Moves until nobody has wanted to for a while. */
static int settle(swarm *s) {
    int moves = 0;
    for (int quiet = 0; quiet < 12 * s->n; quiet++)
        if (let_one_move(s)) {
            quiet = 0;
            cr_assert_lt(++moves, 100 * s->n, "the nodes dance");
        }
    return moves;
}

Test(move, swarms_come_to_rest_and_cover_what_they_can) {
    int moved = 0, total = 0;
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        swarm s = scatter(seed, true);
        moved += settle(&s) > 0;
        total += s.n * s.nodes[0].n >= s.n_blocks;
        if (s.n * s.nodes[0].n >= s.n_blocks)
            cr_assert_eq(uncovered(&s), 0, "seed %llu: %d nodes of %d leave a gap in %d blocks", (unsigned long long)seed,
                         s.n, s.nodes[0].n, s.n_blocks);
    }
    cr_assert_gt(moved, SWARMS / 4);
    cr_assert_gt(total, SWARMS / 2);
}

Test(move, swarms_of_unlike_and_pinned_nodes_come_to_rest) {
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        swarm s = scatter(seed + 10000, false);
        for (int i = 0; i < s.n; i++) s.nodes[i].pinned = !sn_seeded_below(&s.seed, 4);
        (void)settle(&s);
    }
}
