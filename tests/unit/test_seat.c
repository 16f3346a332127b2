/* How nodes find their places: cores that choose their blocks themselves, in time that the test makes. */
#include "tests/support/crowd.h"

#include <criterion/criterion.h>

static int uncovered(const crowd *c) {
    int n = 0;
    for (int b = 0; b < c->hp.n_blocks; b++) n += !crowd_serving(c, b);
    return n;
}

static uint64_t moves(const crowd *c) {
    uint64_t n = 0;
    for (int i = 0; i < c->n; i++) n += c->nodes[i].core->seat.moves;
    return n;
}

Test(seat, nodes_that_start_at_once_share_the_model_between_them, .timeout = 60) {
    for (int round = 0; round < 5; round++) {
        crowd *c = crowd_new(12, 0);
        c->auto_blocks = 4;
        crowd_add(c, -1);
        for (int i = 1; i < 6; i++) crowd_add(c, 0);
        crowd_run(c, 25);
        for (int b = 0; b < 12; b++)
            cr_expect_eq(crowd_serving(c, b), 2, "block %d is served by %d, round %d", b, crowd_serving(c, b), round);
        crowd_free(c);
    }
}

Test(seat, a_node_says_that_it_joins_while_it_loads_and_takes_the_gap, .timeout = 60) {
    crowd *c = crowd_new(4, 0);
    crowd_add(c, -1);
    crowd_add(c, 0);
    crowd_add(c, 0); /* 0, 1 and 2 are served */
    crowd_run(c, 10);
    c->auto_blocks = 1;
    int late = crowd_add(c, 1);
    bool joined = false;
    for (int i = 0; i < 400 && !joined; i++) {
        crowd_run(c, 0.05);
        const sn_announcement *a = sn_directory_find(c->nodes[0].core->directory, c->nodes[late].identity.id);
        joined = a && a->state == SN_NODE_JOINING && a->first_block == 3 && a->end_block == 4;
    }
    cr_expect(joined, "nobody heard that it was about to serve block 3");
    cr_expect_eq(crowd_serving(c, 3), 0);
    crowd_run(c, 10);
    cr_expect_eq(crowd_serving(c, 3), 1);
    const sn_announcement *a = sn_directory_find(c->nodes[0].core->directory, c->nodes[late].identity.id);
    cr_expect(a && a->state == SN_NODE_ONLINE);
    cr_expect_eq(a->tokens_per_s, 1000);
    crowd_free(c);
}

static int watched_uncovered;
static void watch_coverage(crowd *c) {
    int n = uncovered(c);
    if (n > watched_uncovered) watched_uncovered = n;
}

/* Two of three holders of the first half die, then the whole second half: those who are left spread over the model. */
Test(seat, a_gap_is_filled_by_who_can_be_spared, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 30;
    crowd_add(c, -1);
    for (int i = 1; i < 6; i++) crowd_add(c, 0);
    crowd_run(c, 40);
    cr_expect_eq(uncovered(c), 0);
    for (int i = 1; i < 6; i++) c->nodes[i].gone |= c->nodes[i].core->seat.first == 4; /* all three of them, but for node 0 */
    if (c->nodes[0].core->seat.first == 4) c->nodes[0].gone = true;
    crowd_run(c, 5);
    cr_expect_eq(uncovered(c), 4);
    crowd_run(c, 240);
    cr_expect_eq(uncovered(c), 0, "%d blocks are still uncovered", uncovered(c));
    cr_expect_gt(moves(c), 0);
    crowd_free(c);
}

/* Nodes piled up on one half: they spread, no block is ever uncovered, and then they rest. */
Test(seat, moves_never_uncover_a_block_and_come_to_an_end, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    c->rebalance_s = 20;
    crowd_add(c, -1); /* the first one serves block 0, given: it stays */
    c->auto_blocks = 4;
    for (int i = 1; i < 10; i++) crowd_add(c, 0);
    crowd_run(c, 30);
    for (int i = 1; i < 10; i++) { /* all but two to the first half, as if others had been there when they came */
        const sn_span_facts facts = {
            .hp = &c->hp, .first = i < 8 ? 0 : 4, .end = i < 8 ? 4 : 8, .block_hash = c->block_hash};
        sn_core_serve(c->nodes[i].core, &facts, 1 << 20, c->now_us, c->unix_ms);
    }
    watched_uncovered = 0;
    c->watch = watch_coverage;
    crowd_run(c, 400);
    uint64_t before = moves(c);
    cr_expect_eq(watched_uncovered, 0, "moves left %d blocks uncovered", watched_uncovered);
    for (int b = 0; b < 8; b++) cr_expect_geq(crowd_serving(c, b), 4, "block %d: %d", b, crowd_serving(c, b));
    crowd_run(c, 300);
    cr_expect_eq(moves(c), before, "the nodes dance");
    cr_expect_eq(c->nodes[0].core->seat.first, 0);
    cr_expect_eq(c->nodes[0].core->seat.moves, 0);
    crowd_free(c);
}

/* Two hold the first half, nobody the second, and both think of going there at the same moment: neither may before it has seen
 * that the other stays. */
Test(seat, two_that_would_leave_the_same_blocks_at_once_do_not, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 40;
    crowd_add(c, -1);
    crowd_add(c, 0);
    crowd_run(c, 25);
    const sn_span_facts facts = {.hp = &c->hp, .first = 0, .end = 4, .block_hash = c->block_hash};
    for (int i = 0; i < 2; i++) sn_core_serve(c->nodes[i].core, &facts, 1 << 20, c->now_us, c->unix_ms);
    crowd_run(c, 10);
    watched_uncovered = 0;
    c->watch = watch_coverage;
    c->cut = 1; /* for so long that both have decided before they hear of each other */
    for (int i = 0; i < 2; i++) c->nodes[i].core->seat.due_us = c->nodes[i].due_us = c->now_us;
    crowd_run(c, 0.1);
    for (int i = 0; i < 2; i++) cr_assert_eq(c->nodes[i].core->seat.state, SN_SEAT_PARTING);
    c->cut = 0;
    for (int i = 0; i < 2; i++) sn_core_announce(c->nodes[i].core, c->now_us, c->unix_ms);
    crowd_run(c, 400);
    cr_expect_leq(watched_uncovered, 4, "both left: %d blocks were uncovered", watched_uncovered);
    cr_expect_eq(uncovered(c), 0, "neither has moved since");
    cr_expect_eq(moves(c), 1);
    crowd_free(c);
}
