#include "node/placement/gap.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static sn_gap_move move;

/* Nodes with these windows, tags 1, 2, ... in their order. */
static size_t make_nodes(const int (*windows)[2], size_t n, sn_gap_node *out) {
    for (size_t i = 0; i < n; i++) out[i] = (sn_gap_node){windows[i][0], windows[i][1], i + 1, true, false};
    return n;
}
#define NODES(...)                                                                                                     \
    static const int windows[][2] = {__VA_ARGS__};                                                                     \
    sn_gap_node nodes[sizeof windows / sizeof *windows];                                                               \
    size_t n = make_nodes(windows, sizeof windows / sizeof *windows, nodes)

static void expect_move(sn_gap_node *nodes, size_t n, int n_blocks, uint64_t tag, int to) {
    sn_gap_plan(nodes, n, n_blocks, 0, &move);
    cr_expect_eq(move.tag, tag, "node %d is to move", (int)move.tag);
    cr_expect(!tag || move.to == to, "to %d", move.to);
}

Test(gap, whoever_leaves_nothing_open_and_loads_least_fills_it) {
    NODES({0, 4}, {0, 4}, {4, 6}, {4, 6}, {8, 12});
    cr_expect(sn_gap_exists(nodes, n, 12));
    expect_move(nodes, n, 12, 3, 6); /* two blocks to load, not four */
}

Test(gap, nodes_that_had_their_turn_are_passed_over) {
    static const uint64_t turns[] = {3, 4, 1, 2, 0};
    for (int passed = 0; passed < 5; passed++) {
        NODES({0, 4}, {0, 4}, {4, 6}, {4, 6}, {8, 12});
        sn_gap_plan(nodes, n, 12, passed, &move);
        cr_expect_eq(move.tag, turns[passed], "node %d is to move after %d", (int)move.tag, passed);
    }
}

Test(gap, a_node_at_its_edge_shifts_over_it) {
    NODES({0, 4}, {3, 6}, {0, 3}, {7, 10});
    expect_move(nodes, n, 10, 2, 4); /* a block to load; node 3 would load three */
}

Test(gap, a_chain_is_walked_from_its_end) {
    NODES({0, 3}, {2, 5}, {5, 8}, {9, 12});
    expect_move(nodes, n, 12, 2, 3);
    nodes[1].first = 3;
    nodes[1].end = 6; /* it has moved; while it loads, the next one waits for it */
    nodes[1].serves = false;
    expect_move(nodes, n, 12, 3, 6);
    cr_expect(move.waits);
    nodes[1].serves = true;
    expect_move(nodes, n, 12, 3, 6);
    cr_expect_not(move.waits);
    nodes[2].first = 6;
    nodes[2].end = 9;
    cr_expect_not(sn_gap_exists(nodes, n, 12));
}

Test(gap, blocks_that_two_of_a_chain_hold_are_left_by_one_of_them) {
    NODES({0, 2}, {0, 2}, {0, 2}, {6, 8}); /* two of the three may leave */
    expect_move(nodes, n, 8, 1, 2);
    nodes[0].first = 2;
    nodes[0].end = 4;
    expect_move(nodes, n, 8, 2, 4);
    nodes[1].first = 4;
    nodes[1].end = 6;
    cr_expect_not(sn_gap_exists(nodes, n, 8));
}

Test(gap, a_long_gap_is_filled_by_parts) {
    NODES({0, 2}, {0, 2}, {0, 2});
    expect_move(nodes, n, 6, 1, 2);
}

Test(gap, without_a_second_holder_nothing_moves) {
    NODES({0, 4}, {4, 8}, {10, 12});
    expect_move(nodes, n, 12, 0, 0);
}

Test(gap, a_gap_that_cannot_be_filled_does_not_hide_another_one) {
    NODES({1, 2}, {3, 4}, {4, 5}, {4, 5});
    expect_move(nodes, n, 5, 3, 0); /* blocks 0 and 2 are open, and one node is free */
}

Test(gap, nodes_that_stay_load_or_drain_are_not_counted_on) {
    NODES({0, 4}, {0, 4}, {4, 6}, {4, 6}, {8, 12});
    nodes[2].stays = nodes[3].stays = true;
    expect_move(nodes, n, 12, 1, 4); /* of four blocks, it takes 4:8 */
    nodes[0].serves = false;
    expect_move(nodes, n, 12, 2, 4);
    cr_expect(move.waits);
}

/* Swarms with room for all blocks, after some nodes are gone: move by move all gaps are closed where as many blocks are
 * held twice, no move opens one, and all nodes make the same plan. */
Test(gap, random_swarms_close_their_gaps_without_opening_others) {
    enum { BLOCKS = 61, NODES_MAX = 40 };
    srandom(7);
    int moves = 0, closed = 0;
    for (int round = 0; round < 200; round++) {
        sn_gap_node nodes[NODES_MAX], other[NODES_MAX];
        size_t n = 0;
        for (int slots = 0; n < NODES_MAX && slots < 68; n++) {
            int size = 2 + (int)(random() % 4), first = (int)(random() % (BLOCKS - size + 1));
            nodes[n] = (sn_gap_node){first, first + size, (uint64_t)random() + 1, true, false};
            slots += size;
        }
        for (int step = 0; step < 200; step++) {
            for (size_t i = 0; i < n; i++) other[i] = nodes[n - 1 - i];
            sn_gap_move same;
            sn_gap_plan(nodes, n, BLOCKS, 0, &move);
            sn_gap_plan(other, n, BLOCKS, 0, &same);
            cr_assert(move.tag == same.tag && move.to == same.to);
            if (!move.tag) break;
            int before[BLOCKS] = {0}, after[BLOCKS] = {0}, opened = 0;
            for (size_t i = 0; i < n; i++) {
                for (int b = nodes[i].first; b < nodes[i].end; b++) before[b]++;
                if (nodes[i].tag == move.tag) {
                    nodes[i].end += move.to - nodes[i].first;
                    nodes[i].first = move.to;
                }
                for (int b = nodes[i].first; b < nodes[i].end; b++) after[b]++;
            }
            for (int b = 0; b < BLOCKS; b++) opened += before[b] && !after[b];
            cr_assert_eq(opened, 0, "round %d", round);
            moves++;
        }
        closed += !sn_gap_exists(nodes, n, BLOCKS);
    }
    cr_expect_geq(closed, 195, "%d of 200 swarms have no gap", closed);
    cr_expect_leq(moves / 200, 40, "%d moves", moves);
    cr_log_info("closed %d, moves %d", closed, moves);
}
