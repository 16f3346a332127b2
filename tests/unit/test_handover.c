/* Nodes that leave hand the past of their sessions to others, and nodes that die suddenly leave a copy behind: the chain goes on
 * with the same bits and next to nothing is computed twice. */
#include "base/clock.h"
#include "tests/support/need.h"
#include "tests/support/run.h"

#include <criterion/criterion.h>
#include <string.h>

static world *new_world(void) { return world_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10}); }

/* Steps of one token, back and forth (of a pushed chain the hashes at these positions are known), until a node has been taken
 * over from, or 20 seconds. Ends at position 60. */
static void steps_until_taken_over(run *r, uint64_t times) {
    int64_t until = sn_now_us() + 20000000;
    for (int at = 50; sn_chain_taken_over(r->chain) < times && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
        run_on(r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_assert_eq(sn_chain_taken_over(r->chain), times);
    run_on(r, 50, 60, 1);
}

static void await_left(const world *w, int node) {
    int64_t until = sn_now_us() + 20000000;
    while (!cluster_has_left(w->cluster, node) && sn_now_us() < until) sn_sleep_us(2000);
    cr_assert(cluster_has_left(w->cluster, node), "node %d has not left", node);
}

/* Until every hop's past has a whole copy elsewhere. */
static void await_copies(run *r) {
    for (size_t k = 0; k < sn_chain_hops(r->chain, NULL, 0); k++)
        cr_assert_eq(sn_chain_await_copy(r->chain, k, 10000, &r->err), SN_OK, "%s", r->err.text);
}

Test(handover, who_waits_for_a_copy_that_nobody_can_keep_is_told_so) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 4);
    run_open(&r, w, (sn_chain_options){.replica = true});
    run_on(&r, 0, 10, 10);
    cr_expect_eq(sn_chain_await_copy(r.chain, 0, 300, &r.err), SN_RETRY);
    cr_expect(strstr(r.err.text, "no copy of the past of blocks 0:4"), "%s", r.err.text);
    cr_expect_eq(sn_chain_await_copy(r.chain, 1, 0, &r.err), SN_REFUSED);
    run_close(&r);
    world_free(&w);
}

/* -- leaving ------------------------------------------------------------------------------------------------------- */

/* cuts: where blocks 0..4 are cut over nodes; two nodes for each piece. Every node that is used leaves, one after the other. */
static void expect_all_leave(const int *cuts, bool push) {
    world *w = new_world();
    run r;
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; cuts[i] < 4; i++) cluster_add(w->cluster, cuts[i], cuts[i + 1]);
    run_open(&r, w, (sn_chain_options){.push = push});
    run_on(&r, 0, 50, 20);
    uint64_t times = 0;
    for (int i = 0; cuts[i] < 4; i++) {
        int leaves = cluster_holder(r.chain, cuts[i]);
        cluster_drain(w->cluster, leaves);
        steps_until_taken_over(&r, ++times);
        cr_expect_neq(cluster_holder(r.chain, cuts[i]), leaves);
        await_left(w, leaves);
    }
    run_on(&r, 60, WORLD_TOKENS, 7);
    run_on(&r, 20, 70, 9); /* a rewind behind all of it */
    cr_expect_eq(sn_chain_replayed(r.chain), 0, "%d tokens were computed again", (int)sn_chain_replayed(r.chain));
    cr_expect_eq(sn_chain_failovers(r.chain), times);
    run_close(&r);
    world_free(&w);
}

Test(handover, every_node_of_a_chain_leaves_and_nothing_is_computed_again) {
    expect_all_leave((int[]){0, 2, 4}, false);
    expect_all_leave((int[]){0, 1, 3, 4}, false);
}

Test(handover, every_node_of_a_pushed_chain_leaves_and_nothing_is_computed_again) {
    expect_all_leave((int[]){0, 2, 4}, true);
    expect_all_leave((int[]){0, 1, 3, 4}, true);
}

/* Node 1 has 1:4; 1:2 and 2:4 take its place, then one of these dies whose input the client has never seen. */
static void expect_split(bool push, int dies) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 1);
    cluster_add(w->cluster, 1, 4);
    run_open(&r, w, (sn_chain_options){.push = push});
    run_on(&r, 0, 50, 20);
    cluster_add(w->cluster, 1, 2);
    cluster_add(w->cluster, 2, 4);
    cluster_drain(w->cluster, 1);
    steps_until_taken_over(&r, 1);
    cr_expect_eq(cluster_holder(r.chain, 1), 2);
    cr_expect_eq(cluster_holder(r.chain, 3), 3);
    await_left(w, 1);
    run_on(&r, 60, 70, 3);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    cluster_add(w->cluster, dies == 2 ? 1 : 2, dies == 2 ? 2 : 4);
    cluster_cut_off(w->cluster, dies);
    run_on(&r, 70, WORLD_TOKENS, 3);
    cr_expect_geq(sn_chain_replayed(r.chain), 70);
    cr_expect_eq(cluster_holder(r.chain, dies == 2 ? 1 : 2), 4);
    run_on(&r, 30, 60, 8);
    run_close(&r);
    world_free(&w);
}

Test(handover, two_nodes_together_take_over_what_one_had) {
    for (int push = 0; push < 2; push++)
        for (int dies = 2; dies < 4; dies++) expect_split(push, dies);
}

Test(handover, a_node_that_nobody_can_take_over_from_serves_on_until_its_time_is_up) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 1});
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    run_open(&r, w, (sn_chain_options){0});
    run_on(&r, 0, 40, 40);
    cluster_drain(w->cluster, 1);
    run_on(&r, 40, 45, 1);
    cr_expect_not(cluster_has_left(w->cluster, 1));
    await_left(w, 1);
    cluster_add(w->cluster, 2, 4); /* late: the past is gone, and computed again */
    run_on(&r, 45, 50, 1);
    cr_expect_geq(sn_chain_replayed(r.chain), 45);
    run_close(&r);
    world_free(&w);
}

/* A client that is not at work hears of it, too, if it looks now and then. */
Test(handover, a_pause_is_no_reason_to_lose_a_past) {
    world *w = new_world();
    run r;
    for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 4);
    run_open(&r, w, (sn_chain_options){0});
    run_on(&r, 0, 40, 40);
    int leaves = cluster_holder(r.chain, 0);
    cluster_drain(w->cluster, leaves);
    int64_t until = sn_now_us() + 20000000;
    while (!cluster_has_left(w->cluster, leaves) && sn_now_us() < until) {
        sn_chain_attend(r.chain);
        sn_sleep_us(2000);
    }
    run_on(&r, 40, 60, 4);
    cr_expect_eq(sn_chain_taken_over(r.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    run_close(&r);
    world_free(&w);
}

/* -- dying with a copy elsewhere ----------------------------------------------------------------------------------- */

/* Nodes for 0:2, 1:3, 3:4 and spares of them; the one that holds `block` is cut off at a step. */
static void expect_replica(bool push, int block, int chunk) {
    world *w = new_world();
    run r;
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < 3; i++) cluster_add(w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    run_open(&r, w, (sn_chain_options){.push = push, .replica = true});
    run_on(&r, 0, 50, 25);
    await_copies(&r);
    int dies = cluster_holder(r.chain, block);
    cluster_cut_off_at_step(w->cluster, dies, 2);
    run_on(&r, 50, 75, chunk);
    cr_expect_eq(sn_chain_taken_over(r.chain), 1, "push %d block %d", push, block);
    cr_expect_leq(sn_chain_replayed(r.chain), 2 * chunk, "push %d block %d: %d tokens", push, block,
                  (int)sn_chain_replayed(r.chain));
    run_on(&r, 33, WORLD_TOKENS, 5);
    run_close(&r);
    world_free(&w);
}

Test(handover, a_sudden_death_costs_no_replay_where_a_copy_is_kept) {
    for (int block = 1; block < 4; block += 2) expect_replica(false, block, 1);
    expect_replica(false, 1, 10);
}

Test(handover, nor_in_the_middle_of_a_pushed_chain) {
    for (int block = 0; block < 4; block += block ? 2 : 1) expect_replica(true, block, 1);
    expect_replica(true, 1, 10);
}

Test(handover, a_copy_follows_rewinds) {
    for (int push = 0; push < 2; push++) {
        world *w = new_world();
        run r;
        for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
        run_open(&r, w, (sn_chain_options){.push = push, .replica = true});
        run_on(&r, 0, 70, 35);
        run_on(&r, 20, 40, 3);
        run_on(&r, 31, 50, 1);
        await_copies(&r);
        cluster_cut_off(w->cluster, cluster_holder(r.chain, 2));
        run_on(&r, 50, WORLD_TOKENS, 4);
        run_close(&r);
        world_free(&w);
    }
}

/* -- leaving the swarm and coming back ----------------------------------------------------------------------------- */

/* The past of 50 tokens is gathered from one cut and put into another one; then a node dies whose inputs nobody has seen. */
static void expect_moved(bool push, int dies) {
    world *w = new_world();
    run r, s;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    run_open(&r, w, (sn_chain_options){.push = push});
    run_on(&r, 0, 50, 13);
    float *rows = malloc(sizeof(float) * 50 * (size_t)w->n_blocks * 2 * 64 * 64);
    NEED(sn_chain_get_past(r.chain, 0, 50, rows, &err));
    run_close(&r);
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < 3; i++) cluster_add(w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    const char *only[] = {"node2", "node3", "node4", "node5", "node6", "node7"};
    run_open(&s, w, (sn_chain_options){.push = push, .pick = {only, 6, NULL, 0}});
    sn_hash marks[51];
    for (int i = 0; i <= 50; i++) marks[i] = sn_hash_of(&i, sizeof i);
    NEED(sn_chain_put_past(s.chain, 0, 50, rows, marks, &err));
    NEED(sn_chain_go_on(s.chain, 50, marks, w->inputs, &err));
    run_on(&s, 50, 70, 6);
    run_on(&s, 33, 50, 5); /* a rewind into what was put there */
    cr_expect_eq(sn_chain_replayed(s.chain), 0);
    cluster_cut_off(w->cluster, cluster_holder(s.chain, dies));
    run_on(&s, 50, WORLD_TOKENS, 6);
    cr_expect_geq(sn_chain_replayed(s.chain), 50);
    free(rows);
    run_close(&s);
    world_free(&w);
}

Test(handover, a_past_is_gathered_and_split_anew_and_survives_a_death_there) {
    for (int dies = 0; dies < 4; dies += 3) expect_moved(false, dies);
    expect_moved(true, 2);
}

Test(handover, a_past_that_is_not_the_one_that_it_is_said_to_be_is_not_gone_on_with) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 4);
    run_open(&r, w, (sn_chain_options){0});
    run_on(&r, 0, 20, 20);
    float *rows = malloc(sizeof(float) * 20 * (size_t)w->n_blocks * 2 * 64 * 64);
    NEED(sn_chain_get_past(r.chain, 0, 20, rows, &err));
    cr_expect_eq(sn_chain_get_past(r.chain, 0, 21, rows, &r.err), SN_REFUSED);
    run_close(&r);
    sn_hash marks[21] = {{{1}}}, others[21] = {{{2}}};
    run_open(&r, w, (sn_chain_options){0});
    NEED(sn_chain_put_past(r.chain, 0, 10, rows, marks, &err));
    cr_expect_eq(sn_chain_put_past(r.chain, 12, 5, rows, marks, &r.err), SN_RETRY, "a part is missing");
    for (int i = 1; i < 21; i++) others[i] = (sn_hash){{3}};
    cr_expect_eq(sn_chain_go_on(r.chain, 10, others, r.w->inputs, &r.err), SN_REBUILD, "%s", r.err.text);
    run_close(&r);
    free(rows);
    world_free(&w);
}
