/* A session moves to a faster route while it continues, and no bit changes. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: when a better route is looked for again */
#include "tests/support/fake_node.h"
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 8, TIMEOUT_MS = 20000 };

static size_t count_hops(const chain_fixture *r) { return sn_chain_hops(r->chain, NULL, 0); }

/* Steps token by token, from the prompt on again and again, until the chain has this many hops; false if that takes
 * longer than `ms`. */
static bool step_until_hops(chain_fixture *r, size_t n_hops, int ms) {
    int64_t until_us = sn_now_us() + (int64_t)ms * 1000;
    for (int position = PROMPT; sn_now_us() < until_us;
         position = position + 1 < TESTBED_TOKENS ? position + 1 : PROMPT) {
        chain_fixture_steps(r, position, position + 1, 1);
        if (count_hops(r) == n_hops) return true;
    }
    return false;
}

static void expect_reroute(bool push) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    for (int b = 0; b < 4; b++) cluster_add(w->cluster, b, b + 1);
    chain_fixture r;
    chain_fixture_open(
        &r, w, (sn_chain_options){.routing.push = push, .routing.measure = true, .routing.reroute_every_ms = 1});
    chain_fixture_steps(&r, 0, PROMPT, PROMPT);
    cr_assert_eq(count_hops(&r), 4);
    cr_expect_not(step_until_hops(&r, 1, 100), "rerouted without a better route");
    cluster_add(w->cluster, 0, 4);
    cr_expect(step_until_hops(&r, 1, TIMEOUT_MS), "push %d: the route over one node was not found", push);
    cr_expect_geq(sn_chain_reroutes(r.chain), 1);
    for (int position = PROMPT; position < TESTBED_TOKENS; position++)
        chain_fixture_steps(&r, position, position + 1, 1);
    if (!push) cr_expect_eq(sn_chain_failovers(r.chain), 0); /* a rewind of a pushed chain counts as a failover */
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(reroute, moves_to_one_node_that_replaces_four) { expect_reroute(false); }
Test(reroute, moves_a_chain_of_pushing_nodes) { expect_reroute(true); }

Test(reroute, stays_when_rerouting_is_off) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    for (int b = 0; b < 4; b += 2) cluster_add(w->cluster, b, b + 2);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){.routing.measure = true});
    cluster_add(w->cluster, 0, 4);
    chain_fixture_steps(&r, 0, PROMPT, PROMPT);
    cr_expect_not(step_until_hops(&r, 1, 300));
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* The better route is over a node that opens no session; another one that is invented may be the next. */
Test(reroute, is_tried_less_often_when_it_failed) {
    enum { EVERY_MS = 60000 };
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    for (int b = 0; b < 4; b++) cluster_add(w->cluster, b, b + 1);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){.routing.reroute_every_ms = EVERY_MS});
    chain_fixture_steps(&r, 0, PROMPT, PROMPT);
    fake_node *fake = fake_node_new(w, "fake:1", 0, 4, FAKE_OPEN_REFUSED);
    fake_node_announce_to(fake, r.link);
    r.chain->reroute_us = 1; /* it is due */
    r.chain->reroute_rest = 1;
    const int64_t before_us = sn_now_us();
    chain_fixture_steps(&r, PROMPT, PROMPT + 1, 1);
    cr_expect_eq(fake_node_requests(fake), 1);
    cr_expect_eq(count_hops(&r), 4);
    cr_expect_geq(r.chain->reroute_us, before_us + 2000LL * EVERY_MS);
    chain_fixture_close(&r);
    fake_node_free(&fake);
    testbed_free(&w);
}

Test(reroute, polls_all_nodes_at_once_within_the_time_limit) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    for (int i = 0; i < 3; i++) cluster_add(w->cluster, 0, 4);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){0});
    const sn_announcement *nodes[3];
    sn_node_reply polls[3];
    const sn_link_query query = {nodes, 3, .status = true, .timeout_ms = TIMEOUT_MS};
    REQUIRE(sn_link_discover(r.link, NULL, TIMEOUT_MS, &err));
    sn_directory *directory = sn_link_directory(r.link);
    for (int tries = 0; sn_directory_count(directory) < 3 && tries < 100; tries++) {
        sn_sleep_us(20000);
        REQUIRE(sn_link_discover(r.link, NULL, TIMEOUT_MS, &err));
    }
    cr_assert_eq(sn_directory_count(directory), 3);
    for (size_t i = 0; i < 3; i++) nodes[i] = sn_directory_at(directory, i);
    REQUIRE(sn_link_query_nodes(r.link, &query, polls, &err));
    for (int i = 0; i < 3; i++) {
        cr_expect(polls[i].answered && polls[i].rtt_us > 0 && polls[i].rtt_us < 20000000, "%s", polls[i].error);
        cr_expect_eq(polls[i].status.sessions_max, 64);
    }
    cluster_cut_off(w->cluster, 1);
    REQUIRE(sn_link_query_nodes(r.link, &query, polls, &err));
    int answered = 0;
    for (int i = 0; i < 3; i++) {
        answered += polls[i].answered;
        cr_expect(polls[i].answered || strstr(polls[i].error, "no answer"), "%s", polls[i].error);
    }
    cr_expect_eq(answered, 2);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(reroute, a_node_cannot_answer_a_question_to_another_one) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    fake_node *forger = fake_node_new(w, "forger:1", 0, 1, FAKE_FORGES);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){0});
    fake_node_announce_to(forger, r.link);
    cr_assert_eq(sn_directory_count(sn_link_directory(r.link)), 2);
    size_t first = strcmp(sn_directory_at(sn_link_directory(r.link), 0)->name, "fake") != 0;
    const sn_announcement *nodes[] = {
        sn_directory_at(sn_link_directory(r.link), first), /* the ids come in this order */
        sn_directory_at(sn_link_directory(r.link), !first)};
    const sn_link_query query = {nodes, 2, .status = true, .timeout_ms = 500};
    sn_node_reply replies[2];
    cluster_cut_off(w->cluster, 0);
    REQUIRE(sn_link_query_nodes(r.link, &query, replies, &err));
    cr_expect(replies[0].answered, "%s", replies[0].error);
    cr_expect(!replies[1].answered && strstr(replies[1].error, "no answer in time"), "%s", replies[1].error);
    chain_fixture_close(&r);
    fake_node_free(&forger);
    testbed_free(&w);
}
