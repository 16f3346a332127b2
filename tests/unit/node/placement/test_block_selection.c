/* Which blocks a node serves, as pure logic: single decisions constructed by hand, then some hundred swarms drawn
 * from seeds. */
#include "node/placement/block_selection.h"

#include "base/random.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_block_coverage coverage_begin(int n_blocks) {
    sn_block_coverage c;
    sn_err err = {0};
    cr_assert_eq(sn_block_coverage_begin(&c, n_blocks, &err), SN_OK, "%s", err.text);
    return c;
}

static int select_window(const sn_block_coverage *c, int n) {
    uint64_t seed = 1;
    return sn_block_selection_window(c, n, &seed);
}

static int rebalance(const sn_block_coverage *c, int first, int end, uint64_t rate, int gain) {
    uint64_t seed = 1;
    return sn_block_selection_rebalance(c, first, end, rate, gain, &seed);
}

Test(block_selection, fills_a_gap_before_slow_blocks) {
    sn_block_coverage c = coverage_begin(10);
    sn_block_coverage_add(&c, 0, 6, 1, true);
    sn_block_coverage_add(&c, 7, 10, 1000, true);
    for (uint64_t seed = 0; seed < 20;
         seed++) { /* windows of 3 with block 6 and the two slow blocks before it have the least throughput */
        uint64_t s = seed;
        cr_assert_eq(sn_block_selection_window(&c, 3, &s), 4);
    }
}

/* Petals would choose the window with the least sum, 3:5; the slowest single block is 0. */
Test(block_selection, compares_sorted_throughputs_and_not_their_sum) {
    sn_block_coverage c = coverage_begin(5);
    const uint64_t rates[] = {2, 100, 100, 5, 5};
    memcpy(c.rate, rates, sizeof rates);
    cr_assert_eq(select_window(&c, 2), 0);
}

Test(block_selection, tiles_the_model_without_remainders) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        sn_block_coverage c = coverage_begin(30);
        uint64_t s = seed;
        for (int i = 0; i < 3; i++) {
            int first = sn_block_selection_window(&c, 10, &s);
            cr_assert_eq(first % 10, 0, "seed %llu: %d", (unsigned long long)seed, first);
            sn_block_coverage_add(&c, first, first + 10, 7, false);
        }
        for (int b = 0; b < 30; b++) cr_assert_eq(c.rate[b], 7);
    }
}

Test(block_selection, the_seed_decides_between_equal_windows) {
    int chosen[3] = {0};
    for (uint64_t seed = 0; seed < 90; seed++) {
        sn_block_coverage c = coverage_begin(30);
        uint64_t s = seed, again = seed;
        int first = sn_block_selection_window(&c, 10, &s);
        cr_assert_eq(first, sn_block_selection_window(&c, 10, &again), "the same seed chooses the same");
        chosen[first / 10]++;
    }
    for (int i = 0; i < 3; i++) cr_assert_gt(chosen[i], 15);
}

Test(block_selection, recognises_the_best_window) {
    sn_block_coverage c = coverage_begin(6);
    sn_block_coverage_add(&c, 0, 2, 5, true);
    cr_assert(sn_block_selection_is_best(&c, 2, 2) && sn_block_selection_is_best(&c, 4, 2));
    cr_assert_not(sn_block_selection_is_best(&c, 0, 2));
    cr_assert_not(sn_block_selection_is_best(&c, 1, 2));
    sn_block_coverage_add(&c, 4, 6, 5, false);
    cr_assert_not(sn_block_selection_is_best(&c, 4, 2));
}

Test(block_selection, selects_the_whole_model_when_it_fits) {
    sn_block_coverage c = coverage_begin(SN_BLOCK_COVERAGE_MAX);
    cr_assert_eq(select_window(&c, SN_BLOCK_COVERAGE_MAX), 0);
    sn_err err;
    cr_assert_eq(sn_block_coverage_begin(&c, SN_BLOCK_COVERAGE_MAX + 1, &err), SN_REFUSED);
}

Test(rebalance, never_uncovers_a_block) {
    sn_block_coverage c = coverage_begin(4);
    /* own span: 0:2; blocks 2 and 3 are served by no node, block 0 by this node alone */
    sn_block_coverage_add(&c, 1, 2, 1, true);
    cr_assert_eq(rebalance(&c, 0, 2, 100, 20), 0);
    cr_assert(!sn_block_selection_may_leave(&c, 0, 2, 2));
    cr_assert(sn_block_selection_may_leave(&c, 0, 2, 0));
    sn_block_coverage_add(&c, 0, 1, 1, false); /* a node that is joining does not serve yet */
    cr_assert_eq(rebalance(&c, 0, 2, 100, 20), 0);
    sn_block_coverage_add(&c, 0, 1, 1, true);
    cr_assert_eq(rebalance(&c, 0, 2, 100, 20), 2);
}

Test(rebalance, requires_a_minimum_gain) {
    sn_block_coverage c =
        coverage_begin(4); /* with this node at 0:2 the throughputs are 15 15 10 10; at 2:4 they would be 10 10 15 15 */
    sn_block_coverage_add(&c, 0, 4, 10, true);
    cr_assert_eq(rebalance(&c, 0, 2, 5, 0), 0);
    c = coverage_begin(4); /* 25 25 10 10; at the other place 20 20 15 15: the slowest block gains half */
    sn_block_coverage_add(&c, 0, 2, 20, true);
    sn_block_coverage_add(&c, 2, 4, 10, true);
    cr_assert_eq(rebalance(&c, 0, 2, 5, 50), 2);
    cr_assert_eq(rebalance(&c, 0, 2, 5, 51), 0);
}

/* Spans 0:2, 1:3, 3:5 of six blocks: no node serves 5, and no single move can cover it. 1:3 moves to 2:4, which
 * allows 3:5 to move to 4:6. */
Test(rebalance, moves_surplus_nodes_to_a_gap_in_steps) {
    sn_block_coverage c = coverage_begin(6);
    sn_block_coverage_add(&c, 0, 2, 1, true);
    sn_block_coverage_add(&c, 3, 5, 1, true);
    cr_assert_eq(rebalance(&c, 1, 3, 1, 20), 2);
    c = coverage_begin(6);
    sn_block_coverage_add(&c, 0, 2, 1, true);
    sn_block_coverage_add(&c, 2, 4, 1, true);
    cr_assert_eq(rebalance(&c, 3, 5, 1, 20), 4);
}

/* -- swarms drawn from seeds */

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

static sn_block_coverage coverage_of_others(const swarm *s, int except) {
    sn_block_coverage c = coverage_begin(s->n_blocks);
    for (int i = 0; i < s->n; i++)
        if (i != except)
            sn_block_coverage_add(&c, s->nodes[i].first, s->nodes[i].first + s->nodes[i].n, s->nodes[i].rate, true);
    return c;
}

static int count_uncovered(const swarm *s) {
    sn_block_coverage c = coverage_of_others(s, -1);
    int n = 0;
    for (int b = 0; b < s->n_blocks; b++) n += !c.serving[b];
    return n;
}

static uint64_t slowest_rate(const swarm *s) {
    sn_block_coverage c = coverage_of_others(s, -1);
    uint64_t least = UINT64_MAX;
    for (int b = 0; b < s->n_blocks; b++) least = c.rate[b] < least ? c.rate[b] : least;
    return least;
}

/* Nodes at random windows, as if they had joined without knowledge of each other. `alike`: all windows have the same
 * length. */
static swarm random_swarm(uint64_t seed, bool same_length) {
    swarm s = {.seed = seed, .gain = 20};
    s.n_blocks = 4 + (int)sn_rng_below(&s.seed, 60);
    s.n = 2 + (int)sn_rng_below(&s.seed, NODES_MAX - 2);
    int length = 1 + (int)sn_rng_below(&s.seed, (uint64_t)s.n_blocks);
    for (int i = 0; i < s.n; i++) {
        s.nodes[i].n = same_length ? length : 1 + (int)sn_rng_below(&s.seed, (uint64_t)s.n_blocks);
        s.nodes[i].first = (int)sn_rng_below(&s.seed, (uint64_t)(s.n_blocks - s.nodes[i].n + 1));
        s.nodes[i].rate = 1 + sn_rng_below(&s.seed, 100);
    }
    return s;
}

/* Lets one node, chosen by the seed, move if it wants to. Checks what must hold for every move. */
static bool let_one_move(swarm *s) {
    int i = (int)sn_rng_below(&s->seed, (uint64_t)s->n), before = count_uncovered(s), from = s->nodes[i].first;
    uint64_t least = slowest_rate(s);
    sn_block_coverage c = coverage_of_others(s, i);
    if (s->nodes[i].pinned) return false;
    s->nodes[i].first =
        sn_block_selection_rebalance(&c, from, from + s->nodes[i].n, s->nodes[i].rate, s->gain, &s->seed);
    if (s->nodes[i].first == from) return false;
    int after = count_uncovered(s);
    cr_assert(s->nodes[i].first >= 0 && s->nodes[i].first + s->nodes[i].n <= s->n_blocks);
    cr_assert_leq(after, before, "a move uncovered a block");
    if (!before) cr_assert(slowest_rate(s) * 100 >= least * 120, "a move gained too little");
    return true;
}

/* Moves nodes until none has wanted to move for a while. */
static int run_until_settled(swarm *s) {
    int moves = 0;
    for (int quiet = 0; quiet < 12 * s->n; quiet++)
        if (let_one_move(s)) {
            quiet = 0;
            cr_assert_lt(++moves, 100 * s->n, "the nodes do not settle");
        }
    return moves;
}

Test(rebalance, swarms_converge_and_cover_what_they_can) {
    int moved = 0, total = 0;
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        swarm s = random_swarm(seed, true);
        moved += run_until_settled(&s) > 0;
        total += s.n * s.nodes[0].n >= s.n_blocks;
        if (s.n * s.nodes[0].n >= s.n_blocks)
            cr_assert_eq(count_uncovered(&s), 0, "seed %llu: %d nodes of %d leave a gap in %d blocks",
                         (unsigned long long)seed, s.n, s.nodes[0].n, s.n_blocks);
    }
    cr_assert_gt(moved, SWARMS / 4);
    cr_assert_gt(total, SWARMS / 2);
}

Test(rebalance, swarms_of_unequal_and_pinned_nodes_converge) {
    for (uint64_t seed = 0; seed < SWARMS; seed++) {
        swarm s = random_swarm(seed + 10000, false);
        for (int i = 0; i < s.n; i++) s.nodes[i].pinned = !sn_rng_below(&s.seed, 4);
        (void)run_until_settled(&s);
    }
}
