/* A session moves to a better way while it goes on, and no bit changes. */
#include "base/clock.h"
#include "tests/support/need.h"
#include "tests/support/run.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 8, PATIENCE_MS = 20000 };

static size_t hops(const run *r) { return sn_chain_hops(r->chain, NULL, 0); }

/* Token by token, from the prompt on over and over again, until the chain has this many hops; false: not within `ms`.
 */
static bool goes_on_until(run *r, size_t n_hops, int ms) {
    int64_t until_us = sn_now_us() + (int64_t)ms * 1000;
    for (int position = PROMPT; sn_now_us() < until_us;
         position = position + 1 < WORLD_TOKENS ? position + 1 : PROMPT) {
        run_on(r, position, position + 1, 1);
        if (hops(r) == n_hops) return true;
    }
    return false;
}

static void expect_move(bool push) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    for (int b = 0; b < 4; b++) cluster_add(w->cluster, b, b + 1);
    run r;
    run_open(&r, w, (sn_chain_options){.push = push, .measure = true, .replan_ms = 1});
    run_on(&r, 0, PROMPT, PROMPT);
    cr_assert_eq(hops(&r), 4);
    cr_expect_not(goes_on_until(&r, 1, 100), "there is nothing better yet");
    cluster_add(w->cluster, 0, 4);
    cr_expect(goes_on_until(&r, 1, PATIENCE_MS), "push %d: one node instead of four is not found", push);
    cr_expect_geq(sn_chain_moves(r.chain), 1);
    for (int position = PROMPT; position < WORLD_TOKENS; position++) run_on(&r, position, position + 1, 1);
    if (!push) cr_expect_eq(sn_chain_failovers(r.chain), 0); /* a rewind of a row of nodes counts as one */
    run_close(&r);
    world_free(&w);
}

Test(replan, moves_to_a_node_that_spares_three_ways) { expect_move(false); }
Test(replan, moves_a_row_of_nodes_that_push) { expect_move(true); }

Test(replan, stays_where_it_is_when_it_is_not_asked_to) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    for (int b = 0; b < 4; b += 2) cluster_add(w->cluster, b, b + 2);
    run r;
    run_open(&r, w, (sn_chain_options){.measure = true});
    cluster_add(w->cluster, 0, 4);
    run_on(&r, 0, PROMPT, PROMPT);
    cr_expect_not(goes_on_until(&r, 1, 300));
    run_close(&r);
    world_free(&w);
}

Test(replan, nodes_are_asked_all_at_once_and_a_dead_one_costs_no_more_than_the_limit) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    for (int i = 0; i < 3; i++) cluster_add(w->cluster, 0, 4);
    run r;
    run_open(&r, w, (sn_chain_options){0});
    const sn_announcement *nodes[3];
    sn_poll polls[3];
    NEED(sn_link_discover(r.link, NULL, PATIENCE_MS, &err));
    sn_directory *directory = sn_link_directory(r.link);
    for (int tries = 0; sn_directory_count(directory) < 3 && tries < 100; tries++) {
        sn_sleep_us(20000);
        NEED(sn_link_discover(r.link, NULL, PATIENCE_MS, &err));
    }
    cr_assert_eq(sn_directory_count(directory), 3);
    for (size_t i = 0; i < 3; i++) nodes[i] = sn_directory_at(directory, i);
    NEED(sn_link_poll(r.link, nodes, 3, PATIENCE_MS, false, polls, &err));
    for (int i = 0; i < 3; i++) {
        cr_expect(polls[i].answered && polls[i].rtt_us > 0 && polls[i].rtt_us < 20000000, "%s", polls[i].why_not);
        cr_expect_eq(polls[i].status.sessions_max, 64);
    }
    cluster_cut_off(w->cluster, 1);
    NEED(sn_link_poll(r.link, nodes, 3, PATIENCE_MS, false, polls, &err));
    int answered = 0;
    for (int i = 0; i < 3; i++) {
        answered += polls[i].answered;
        cr_expect(polls[i].answered || strstr(polls[i].why_not, "no answer"), "%s", polls[i].why_not);
    }
    cr_expect_eq(answered, 2);
    run_close(&r);
    world_free(&w);
}
