/* How nodes choose blocks: protocols with automatic placement, in time that the test controls. */
#include "tests/support/protocol_swarm.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static int count_uncovered(const protocol_swarm *c) {
    int n = 0;
    for (int b = 0; b < c->hp.n_blocks; b++) n += !protocol_swarm_serving(c, b);
    return n;
}

static uint64_t count_rebalances(const protocol_swarm *c) {
    uint64_t n = 0;
    for (int i = 0; i < c->n; i++) n += c->nodes[i].protocol->placement.rebalances;
    return n;
}

/* Six nodes that start together serve each of 12 blocks twice; those from `unreached` on are behind routers (0: none).
 */
static void expect_split(int unreached) {
    for (int round = 0; round < 5; round++) {
        protocol_swarm *c = protocol_swarm_new(12, 0);
        c->unreached = unreached;
        c->auto_blocks = 4;
        protocol_swarm_add(c, -1);
        for (int i = 1; i < 6; i++) protocol_swarm_add(c, 0);
        protocol_swarm_run(c, 25);
        for (int b = 0; b < 12; b++)
            cr_expect_eq(protocol_swarm_serving(c, b), 2, "block %d is served by %d, round %d", b,
                         protocol_swarm_serving(c, b), round);
        protocol_swarm_free(c);
    }
}

Test(placement, nodes_that_start_together_split_the_model, .timeout = 60) { expect_split(0); }

Test(placement, nodes_behind_routers_that_start_together_split_the_model, .timeout = 60) { expect_split(1); }

Test(placement, a_loading_node_announces_that_it_joins_and_fills_the_gap, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(4, 0);
    protocol_swarm_add(c, -1);
    protocol_swarm_add(c, 0);
    protocol_swarm_add(c, 0); /* blocks 0, 1 and 2 are served */
    protocol_swarm_run(c, 10);
    c->auto_blocks = 1;
    int late = protocol_swarm_add(c, 1);
    bool joined = false;
    for (int i = 0; i < 400 && !joined; i++) {
        protocol_swarm_run(c, 0.05);
        const sn_announcement *a =
            sn_directory_find(sn_protocol_directory(c->nodes[0].protocol), c->nodes[late].identity.id);
        joined = a && a->state == SN_NODE_JOINING && a->first_block == 3 && a->end_block == 4;
    }
    cr_expect(joined, "no node learned that it was about to serve block 3");
    cr_expect_eq(protocol_swarm_serving(c, 3), 0);
    protocol_swarm_run(c, 10);
    cr_expect_eq(protocol_swarm_serving(c, 3), 1);
    const sn_announcement *a =
        sn_directory_find(sn_protocol_directory(c->nodes[0].protocol), c->nodes[late].identity.id);
    cr_expect(a && a->state == SN_NODE_ONLINE);
    cr_expect_eq(a->tokens_per_s, 1000);
    protocol_swarm_free(c);
}

static int most_uncovered;
static void record_uncovered(protocol_swarm *c) {
    int n = count_uncovered(c);
    if (n > most_uncovered) most_uncovered = n;
}

/* Two of the three nodes that serve the first half fail, then all of the second half: the remaining nodes spread
 * over the model. */
Test(placement, redundant_nodes_fill_a_gap, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 30;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 6; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    cr_expect_eq(count_uncovered(c), 0);
    for (int i = 1; i < 6; i++)
        c->nodes[i].dead |= c->nodes[i].protocol->placement.first == 4; /* all three of them, except node 0 */
    if (c->nodes[0].protocol->placement.first == 4) c->nodes[0].dead = true;
    protocol_swarm_run(c, 5);
    cr_expect_eq(count_uncovered(c), 4);
    protocol_swarm_run(c, 240);
    cr_expect_eq(count_uncovered(c), 0, "%d blocks are still uncovered", count_uncovered(c));
    cr_expect_gt(count_rebalances(c), 0);
    protocol_swarm_free(c);
}

/* All nodes serve one half: they spread, no block is ever uncovered, and then they stay. */
Test(placement, moves_never_uncover_a_block_and_converge, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->rebalance_s = 20;
    protocol_swarm_add(c, -1); /* the first node serves block 0 as configured: it stays */
    c->auto_blocks = 4;
    for (int i = 1; i < 10; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    /* all but two serve the first half, as if other nodes had been there when they joined */
    for (int i = 1; i < 10; i++) {
        const sn_span_info facts = {
            .hp = &c->hp, .first = i < 8 ? 0 : 4, .end = i < 8 ? 4 : 8, .block_hash = c->block_hash};
        sn_protocol_serve(c->nodes[i].protocol, &facts, (sn_kv_room){.bytes_max = 1 << 20}, c->now_us, c->unix_ms);
    }
    most_uncovered = 0;
    c->on_step = record_uncovered;
    protocol_swarm_run(c, 400);
    uint64_t before = count_rebalances(c);
    cr_expect_eq(most_uncovered, 0, "moves left %d blocks uncovered", most_uncovered);
    for (int b = 0; b < 8; b++)
        cr_expect_geq(protocol_swarm_serving(c, b), 4, "block %d: %d", b, protocol_swarm_serving(c, b));
    protocol_swarm_run(c, 300);
    cr_expect_eq(count_rebalances(c), before, "the nodes do not settle");
    cr_expect_eq(c->nodes[0].protocol->placement.first, 0);
    cr_expect_eq(c->nodes[0].protocol->placement.rebalances, 0);
    protocol_swarm_free(c);
}

/* Two nodes serve the first half and none the second, and both consider moving there at the same moment: neither may
 * move before it knows that the other one stays. */
Test(placement, two_nodes_never_leave_the_same_blocks_at_once, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 40;
    protocol_swarm_add(c, -1);
    protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 25);
    const sn_span_info facts = {.hp = &c->hp, .first = 0, .end = 4, .block_hash = c->block_hash};
    for (int i = 0; i < 2; i++) {
        sn_protocol_serve(c->nodes[i].protocol, &facts, (sn_kv_room){.bytes_max = 1 << 20}, c->now_us, c->unix_ms);
        c->nodes[i].protocol->placement.look_us = INT64_MAX; /* as in a swarm of which they do not know all */
    }
    protocol_swarm_run(c, 10);
    most_uncovered = 0;
    c->on_step = record_uncovered;
    c->partition = 1; /* long enough that both have decided before they learn of each other */
    for (int i = 0; i < 2; i++) c->nodes[i].protocol->placement.due_us = c->nodes[i].due_us = c->now_us;
    protocol_swarm_run(c, 0.1);
    for (int i = 0; i < 2; i++) cr_assert_eq(c->nodes[i].protocol->placement.state, SN_PLACEMENT_REBALANCE_PENDING);
    c->partition = 0;
    for (int i = 0; i < 2; i++) sn_membership_announce(c->nodes[i].protocol->membership, c->now_us, c->unix_ms);
    protocol_swarm_run(c, 400);
    cr_expect_leq(most_uncovered, 4, "both moved: %d blocks were uncovered", most_uncovered);
    cr_expect_eq(count_uncovered(c), 0, "neither node has moved since");
    cr_expect_eq(count_rebalances(c), 1);
    protocol_swarm_free(c);
}

/* -- gaps -----------------------------------------------------------------------------------------------------------
 */

/* Seconds until every block is served, `most` at most. */
static double run_until_covered(protocol_swarm *c, int most) {
    int64_t begin_us = c->now_us;
    while (count_uncovered(c) && c->now_us - begin_us < most * (int64_t)PROTOCOL_SWARM_SECOND)
        protocol_swarm_run(c, 0.5);
    return (double)(c->now_us - begin_us) / PROTOCOL_SWARM_SECOND;
}

/* n nodes of 2 to 5 blocks, with places for `slots` blocks in all. */
static protocol_swarm *tight_swarm(uint64_t seed, int n, int slots) {
    protocol_swarm *c = protocol_swarm_new(61, 0);
    c->rebalance_s = 300;
    for (int i = 0; i < n; i++) {
        int least = (slots - 5 * (n - 1 - i) > 2) ? slots - 5 * (n - 1 - i) : 2;
        int most = slots - 2 * (n - 1 - i) < 5 ? slots - 2 * (n - 1 - i) : 5;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        c->auto_blocks = least + (int)((seed >> 33) % (uint64_t)(most - least + 1));
        slots -= c->auto_blocks;
        protocol_swarm_add(c, i ? 0 : -1);
        protocol_swarm_run(c, 3);
    }
    return c;
}

/* A node says that it leaves, and ends. */
static void leave(protocol_swarm *c, int i) {
    sn_protocol_leave(c->nodes[i].protocol, c->unix_ms);
    c->nodes[i].dead = true;
}

/* Each of eight blocks is served twice; both nodes with the first two leave, and each of the others could fill in. */
Test(placement, a_gap_is_filled_within_seconds_by_one_node, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 2;
    c->rebalance_s = 300;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 8; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    cr_assert_eq(count_uncovered(c), 0);
    int first = c->nodes[0].protocol->placement.first;
    uint64_t before = count_rebalances(c);
    for (int i = 0; i < 8; i++)
        if (c->nodes[i].protocol->placement.first == first) leave(c, i);
    for (int i = 0; i < 8; i++)
        c->nodes[i].protocol->placement.look_us = c->now_us + PROTOCOL_SWARM_SECOND; /* all at once */
    protocol_swarm_run(c, 1);
    cr_assert_eq(count_uncovered(c), 2);
    protocol_swarm_run(c, 2.9);
    c->partition = 4; /* while all decide who is to move, and confirm it */
    protocol_swarm_run(c, 1.4);
    c->partition = 0;
    for (int i = 0; i < 8; i++)
        if (!c->nodes[i].dead) sn_membership_announce(c->nodes[i].protocol->membership, c->now_us, c->unix_ms);
    cr_expect_leq(run_until_covered(c, 60), 6, "of which its blocks load for two seconds");
    protocol_swarm_run(c, 30);
    cr_expect_eq(count_rebalances(c) - before, 1, "%d nodes moved", (int)(count_rebalances(c) - before));
    protocol_swarm_free(c);
}

/* A stranger may say for ever that it drains: then it is not the node that moves. */
Test(placement, a_node_that_drains_for_ever_keeps_no_gap_open, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 2;
    c->rebalance_s = 3000;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 8; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    cr_assert_eq(count_uncovered(c), 0);
    int drains = 0, left = 0;
    for (int i = 1; i < 8; i++) /* whose turn it is before that of all others */
        if (sn_node_tag(c->nodes[i].identity.id) < sn_node_tag(c->nodes[drains].identity.id)) drains = i;
    sn_protocol_drain(c->nodes[drains].protocol, c->unix_ms);
    while (c->nodes[left].protocol->placement.first == c->nodes[drains].protocol->placement.first) left++;
    int first = c->nodes[left].protocol->placement.first;
    for (int i = 0; i < 8; i++)
        if (c->nodes[i].protocol->placement.first == first) leave(c, i);
    protocol_swarm_run(c, 1);
    cr_assert_eq(count_uncovered(c), 2);
    cr_expect_leq(run_until_covered(c, 400), 100);
    cr_expect_eq(c->nodes[drains].protocol->draining, true);
    protocol_swarm_free(c);
}

/* Without a word, a node is believed alive for a minute. Where no node is free, several shift, one after the other. */
static void expect_tight_swarm_heals(uint64_t seed, int n, int slots) {
    protocol_swarm *c = tight_swarm(seed, n, slots);
    cr_expect_leq(run_until_covered(c, 600), 60, "seed %d", (int)seed);
    protocol_swarm_run(c, 60);
    uint64_t before = count_rebalances(c);
    c->nodes[5].dead = true;
    protocol_swarm_run(c, 1);
    most_uncovered = 0;
    c->on_step = record_uncovered;
    int lost = count_uncovered(c);
    cr_assert_gt(lost, 0);
    double seconds = run_until_covered(c, 900);
    cr_expect_leq(seconds, 60 + 8 * 10, "seed %d: %.1f s", (int)seed, seconds);
    cr_expect_leq(count_rebalances(c) - before, 10, "seed %d: %d moves", (int)seed,
                  (int)(count_rebalances(c) - before));
    cr_expect_leq(most_uncovered, lost + 5, "%d blocks more: those of more than one node that loads",
                  most_uncovered - lost);
    protocol_swarm_free(c);
}
Test(placement, twenty_nodes_with_few_places_more_than_blocks_close_their_gaps, .timeout = 120) {
    for (uint64_t seed = 1; seed <= 3; seed++) expect_tight_swarm_heals(seed, 20, 68);
}
Test(placement, forty_nodes_with_few_places_more_than_blocks_close_their_gaps, .timeout = 120) {
    expect_tight_swarm_heals(4, 40, 96);
}

/* Nodes whose owners have given them their blocks do not move, and others do not know that. */
Test(placement, nodes_that_do_not_move_are_passed_over, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(3, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 6; i++) protocol_swarm_add(c, 0); /* two for each block */
    c->auto_blocks = 1;
    c->rebalance_s = 300;
    protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    int last = c->nodes[6].protocol->placement.first, gap = (last + 1) % 3;
    for (int i = 0; i < 6; i++)
        if (i % 3 == gap) leave(c, i);
    protocol_swarm_run(c, 1);
    cr_assert_eq(count_uncovered(c), 1);
    cr_expect_leq(run_until_covered(c, 120), 40);
    cr_expect_eq(c->nodes[6].protocol->placement.rebalances, 1);
    protocol_swarm_free(c);
}

/* -- a stranger who announces invented nodes ----------------------------------------------------------------------- */

enum { INVENTED = 12 };

static struct {
    sn_identity identity[INVENTED];
    int first, end; /* of all of them */
    int loading;    /* so many of them say that they load */
    int64_t due_us;
} stranger;

/* Tells every node of them anew. */
static void stranger_announces(const protocol_swarm *c, int i) {
    static sn_announcement a;
    sn_buf sealed;
    a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                          .sequence = (uint64_t)c->unix_ms,
                          .expires_unix_ms = (uint64_t)c->unix_ms + SN_ANNOUNCE_LIFE_MS,
                          .state = i < stranger.loading ? SN_NODE_JOINING : SN_NODE_ONLINE,
                          .first_block = (uint64_t)stranger.first,
                          .end_block = (uint64_t)stranger.end,
                          .n_blocks = (uint64_t)c->hp.n_blocks,
                          .tokens_per_s = (uint64_t)(INT64_MAX >> 8)};
    memcpy(a.node, stranger.identity[i].id, SN_KEY_SIZE);
    memcpy(a.curve_key, stranger.identity[i].curve_key, SN_KEY_SIZE);
    snprintf(a.address, sizeof a.address, "invented%d:1", i);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(&a, &stranger.identity[i], &sealed, &err));
    for (int k = 0; k < c->n; k++)
        REQUIRE(
            sn_directory_add(c->nodes[k].protocol->membership->directory, sealed.data, sealed.len, c->unix_ms, &err));
    sn_buf_fini(&sealed);
}

static void stranger_step(protocol_swarm *c) {
    record_uncovered(c);
    if (c->now_us < stranger.due_us) return;
    stranger.due_us = c->now_us + 20 * (int64_t)PROTOCOL_SWARM_SECOND;
    for (int i = 0; i < INVENTED; i++) stranger_announces(c, i);
}

static void stranger_begin(protocol_swarm *c, int first, int end, int loading) {
    for (int i = 0; i < INVENTED; i++) REQUIRE(sn_identity_new(&stranger.identity[i], &err));
    stranger.first = first;
    stranger.end = end;
    stranger.loading = loading;
    stranger.due_us = 0;
    most_uncovered = 0;
    c->on_step = stranger_step;
}

/* Two nodes serve each half, and invented ones say that they serve one of them, very fast. */
Test(placement, invented_nodes_drive_no_node_from_its_blocks, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 20;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 4; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    for (int b = 0; b < 8; b++) cr_assert_eq(protocol_swarm_serving(c, b), 2);
    uint64_t before = count_rebalances(c);
    stranger_begin(c, 0, 4, 3);
    protocol_swarm_run(c, 300);
    cr_expect_eq(count_rebalances(c), before, "%d moved", (int)(count_rebalances(c) - before));
    cr_expect_eq(most_uncovered, 0, "%d blocks were left to invented nodes", most_uncovered);
    protocol_swarm_free(c);
}

Test(placement, blocks_of_invented_nodes_are_a_gap_for_one_that_joins, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 4;
    protocol_swarm_add(c, -1);
    protocol_swarm_run(c, 10);
    int first = c->nodes[0].protocol->placement.first ? 0 : 4;
    stranger_begin(c, first, first + 4, 0);
    protocol_swarm_run(c, 1);
    protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    cr_expect_eq(count_uncovered(c), 0, "%d blocks are left to invented nodes", count_uncovered(c));
    protocol_swarm_free(c);
}

Test(placement, blocks_of_invented_nodes_are_a_gap_for_a_redundant_one, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    c->auto_blocks = 4;
    c->rebalance_s = 30;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 6; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    cr_assert_eq(count_uncovered(c), 0);
    stranger_begin(c, 4, 8, 3);
    for (int i = 0; i < 6; i++) c->nodes[i].dead |= c->nodes[i].protocol->placement.first == 4;
    protocol_swarm_run(c, 5);
    cr_assert_eq(count_uncovered(c), 4);
    protocol_swarm_run(c, 240);
    cr_expect_eq(count_uncovered(c), 0, "%d blocks are left to invented nodes", count_uncovered(c));
    protocol_swarm_free(c);
}
