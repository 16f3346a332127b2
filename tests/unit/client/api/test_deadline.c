/* --timeout bounds a call as a whole: connecting, retries and replays share it, whatever fails on the way. Time is
 * virtual. */
#include "base/clock.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { HOLDERS = 4, RETRIES = 5 };

typedef struct fixture {
    testbed *w;
    chain_fixture client;
    fake_node *fakes[HOLDERS];
    int64_t began_us;
} fixture;

static void fixture_begin(fixture *t) {
    *t = (fixture){.w = testbed_new(&(cluster_options){.kv_memory = 64})};
    cluster_add(t->w->cluster, 0, 2);
}

static void fixture_end(fixture *t) {
    chain_fixture_close(&t->client);
    for (int i = 0; i < HOLDERS; i++) fake_node_free(&t->fakes[i]);
    testbed_free(&t->w);
}

static sn_chain_options options_of(int timeout_ms, bool push) {
    sn_chain_options options = sn_chain_options_default();
    options.limits.timeout_ms = timeout_ms;
    options.limits.max_retries = RETRIES;
    options.routing.push = push;
    return options;
}

static void announce_fake(fixture *t, int i, int first, int end, fake_node_fault fault) {
    char address[32];
    snprintf(address, sizeof address, "fake%d:1", i);
    t->fakes[i] = fake_node_new(t->w, address, first, end, fault);
    fake_node_announce_to(t->fakes[i], t->client.link);
}

static void announce_fakes(fixture *t, fake_node_fault fault) {
    for (int i = 0; i < HOLDERS; i++) announce_fake(t, i, 2, 4, fault);
}

static void expect_in_time(const fixture *t, sn_status status, int timeout_ms, const char *what) {
    int ms = (int)((sn_now_us() - t->began_us) / 1000);
    cr_expect_eq(status, SN_RETRY, "%s: status %d, %s", what, (int)status, t->client.err.text);
    cr_expect(ms <= timeout_ms * 6 / 5, "%s: %d ms of %d", what, ms, timeout_ms);
}

static const int timeouts_ms[] = {500, 20000};

/* Every holder of blocks 2:4 falls silent at the first step that it gets: the present one, then those that replace it
 * and replay its tokens. */
Test(deadline, a_step_that_no_node_answers_ends_in_time) {
    for (int k = 0; k < 4; k++) {
        fixture t;
        fixture_begin(&t);
        for (int i = 0; i < HOLDERS; i++) cluster_add(t.w->cluster, 2, 4);
        chain_fixture_open(&t.client, t.w, options_of(timeouts_ms[k / 2], k % 2));
        chain_fixture_steps(&t.client, 0, 20, 20);
        for (int i = 1; i <= HOLDERS; i++) cluster_cut_off_at_step(t.w->cluster, i, 1);
        t.began_us = sn_now_us();
        expect_in_time(&t, chain_fixture_try_steps(&t.client, 20, 21, 1), timeouts_ms[k / 2], k % 2 ? "push" : "plain");
        fixture_end(&t);
    }
}

Test(deadline, opening_at_nodes_that_do_not_answer_ends_in_time) {
    for (int k = 0; k < 2; k++) {
        fixture t;
        fixture_begin(&t);
        chain_fixture_begin(&t.client, t.w);
        announce_fakes(&t, FAKE_OPEN_SILENT);
        t.began_us = sn_now_us();
        expect_in_time(&t, chain_fixture_try_open(&t.client, options_of(timeouts_ms[k], false)), timeouts_ms[k],
                       "open");
        fixture_end(&t);
    }
}

/* The nodes that replace a lost one open their sessions, and never answer the replay. */
Test(deadline, a_replay_that_no_node_answers_ends_in_time) {
    for (int k = 0; k < 2; k++) {
        fixture t;
        fixture_begin(&t);
        cluster_add(t.w->cluster, 2, 4);
        chain_fixture_open(&t.client, t.w, options_of(timeouts_ms[k], false));
        chain_fixture_steps(&t.client, 0, 20, 20);
        announce_fakes(&t, FAKE_SILENT);
        cluster_cut_off(t.w->cluster, 1);
        t.began_us = sn_now_us();
        expect_in_time(&t, chain_fixture_try_steps(&t.client, 20, 21, 1), timeouts_ms[k], "replay");
        fixture_end(&t);
    }
}

/* A node that hangs must not take the time in which another one can answer. */
Test(deadline, a_node_that_hangs_leaves_time_for_another_one) {
    for (int k = 0; k < 4; k++) {
        fixture t;
        fixture_begin(&t);
        for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
        chain_fixture_open(&t.client, t.w, options_of(timeouts_ms[k / 2], k % 2));
        chain_fixture_steps(&t.client, 0, 20, 20);
        cluster_cut_off(t.w->cluster, cluster_node_of_block(t.client.chain, 2));
        cr_expect_eq(chain_fixture_try_steps(&t.client, 20, 30, 2), SN_OK, "%s", t.client.err.text);
        fixture_end(&t);
    }
}

/* Nor may one that asks to be asked later, each time. */
Test(deadline, a_node_that_puts_a_client_off_leaves_time_for_another_one) {
    for (int k = 0; k < 2; k++) {
        fixture t;
        fixture_begin(&t);
        chain_fixture_begin(&t.client, t.w);
        announce_fakes(&t, FAKE_ERROR_LATER);
        cr_assert_eq(chain_fixture_try_open(&t.client, options_of(timeouts_ms[k], false)), SN_OK);
        for (int i = 1; i < HOLDERS; i++) fake_node_free(&t.fakes[i]);
        cluster_add(t.w->cluster, 2, 4);
        t.began_us = sn_now_us();
        cr_expect_eq(chain_fixture_try_steps(&t.client, 0, 1, 1), SN_OK, "%s", t.client.err.text);
        int ms = (int)((sn_now_us() - t.began_us) / 1000);
        cr_expect(ms <= timeouts_ms[k] * 4 / 5, "%d ms of %d", ms, timeouts_ms[k]);
        fixture_end(&t);
    }
}

/* A step waits for the node that is to hold a copy of its KV cache, and can do without. */
Test(deadline, looking_for_a_replica_among_silent_nodes_costs_little_time) {
    enum { SILENT = 20, OPEN_US = 2000000, US = 60000000 };
    fixture t = {.w = testbed_new(&(cluster_options){.kv_memory = 64})};
    fake_node *silent[SILENT];
    sn_chain_options options = options_of(20000, false);
    int asked = 0, position = 0;
    int64_t longest_us = 0;
    options.kv.replica = true;
    cluster_add(t.w->cluster, 0, 4);
    chain_fixture_open(&t.client, t.w, options);
    for (int i = 0; i < SILENT; i++) {
        char address[32];
        snprintf(address, sizeof address, "silent%d:1", i);
        silent[i] = fake_node_new(t.w, address, 0, 4, FAKE_OPEN_SILENT);
        fake_node_announce_to(silent[i], t.client.link);
    }
    t.began_us = sn_now_us();
    while (sn_now_us() - t.began_us < US) {
        int64_t began_us = sn_now_us();
        chain_fixture_steps(&t.client, position, position + 1, 1);
        position = (position + 1) % 40;
        if (sn_now_us() - began_us > longest_us) longest_us = sn_now_us() - began_us;
        sn_sleep_us(500000);
    }
    for (int i = 0; i < SILENT; i++) asked += fake_node_requests(silent[i]);
    cr_expect_leq(longest_us, 2 * OPEN_US + OPEN_US / 4, "a step took %lld us", (long long)longest_us);
    cr_expect(asked > 2 && asked < SILENT * 3 / 4, "%d nodes were asked", asked);
    chain_fixture_close(&t.client);
    for (int i = 0; i < SILENT; i++) fake_node_free(&silent[i]);
    testbed_free(&t.w);
}

/* After a step without an answer every node of a pushing group is asked whether it is there. */
Test(deadline, nodes_that_take_their_time_to_answer_do_not_add_up) {
    fixture t = {.w = testbed_new(&(cluster_options){.kv_memory = 64})};
    sn_chain_options options = options_of(8 * FAKE_PONDERS_MS + 80, true);
    options.limits.max_retries = 0;
    chain_fixture_begin(&t.client, t.w);
    for (int i = 0; i < HOLDERS; i++) announce_fake(&t, i, i, i + 1, FAKE_PONDERS); /* of a model of four blocks */
    cr_assert_eq(chain_fixture_try_open(&t.client, options), SN_OK, "%s", t.client.err.text);
    t.began_us = sn_now_us();
    expect_in_time(&t, chain_fixture_try_steps(&t.client, 0, 1, 1), options.limits.timeout_ms, "probes");
    fixture_end(&t);
}

/* Each piece of a long session has its own limit: all of them together may take longer. */
Test(deadline, a_session_may_last_longer_than_its_timeout) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 2, 4);
    chain_fixture_open(&t.client, t.w, options_of(500, false));
    for (int at = 0; at < 12; at += 2) {
        chain_fixture_steps(&t.client, at, at + 2, 2);
        sn_sleep_us(300000);
    }
    fixture_end(&t);
}

/* -- addresses that answer late */

typedef struct late_node {
    int64_t from_us; /* node 1 is reached from then on, and by the client only */
} late_node;

static sn_hub_action keep_node1_apart(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const late_node *late = ctx;
    bool one = !strcmp(from, "node1:1") || !strcmp(to, "node1:1"),
         zero = !strcmp(from, "node0:1") || !strcmp(to, "node0:1");
    (void)msg;
    return one && (zero || sn_now_us() < late->from_us) ? SN_DROP : SN_DELIVER;
}

Test(deadline, a_joined_address_that_answers_late_is_waited_for) {
    fixture t;
    late_node late = {.from_us = INT64_MAX};
    fixture_begin(&t);
    sn_hub_set_filter(cluster_hub(t.w->cluster), keep_node1_apart, &late);
    cluster_add(t.w->cluster, 2, 4);
    chain_fixture_begin(&t.client, t.w);
    late.from_us = sn_now_us() + 12000000;
    cr_expect_eq(chain_fixture_try_open(&t.client, options_of(20000, false)), SN_OK, "%s", t.client.err.text);
    chain_fixture_steps(&t.client, 0, 20, 10);
    chain_fixture_close(&t.client);
    late.from_us = INT64_MAX;
    chain_fixture_begin(&t.client, t.w);
    t.began_us = sn_now_us();
    expect_in_time(&t, chain_fixture_try_open(&t.client, options_of(20000, false)), 20000, "never");
    cr_expect(strstr(t.client.err.text, "node1:1 has not answered"), "%s", t.client.err.text);
    sn_hub_set_filter(cluster_hub(t.w->cluster), NULL, NULL);
    fixture_end(&t);
}

/* -- swarms of other models */

static sn_hub_action drop_late(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const int64_t *until_us = ctx;
    (void)from, (void)to, (void)msg;
    return sn_now_us() < *until_us ? SN_DELIVER : SN_DROP;
}

/* The look for nodes of other models, which would explain the failure, shares the time of the call. */
Test(deadline, a_node_of_another_model_that_falls_silent_costs_no_more_time) {
    fixture t = {.w = testbed_new(&(cluster_options){.kv_memory = 64})};
    cluster_add_of(t.w->cluster, SN_FIXTURES "/golden/qwen3", 0, 1);
    chain_fixture_begin(&t.client, t.w);
    t.began_us = sn_now_us();
    int64_t until_us = t.began_us + 100000;
    sn_hub_set_filter(cluster_hub(t.w->cluster), drop_late, &until_us);
    expect_in_time(&t, chain_fixture_try_open(&t.client, options_of(500, false)), 500, "another model");
    sn_hub_set_filter(cluster_hub(t.w->cluster), NULL, NULL);
    fixture_end(&t);
}
