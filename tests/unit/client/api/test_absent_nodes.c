/* Nodes that are announced and not there, or return, or whose place others have: a text goes on, and waits for none of
 * them. */
#include "base/clock.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

enum { TIMEOUT_MS = 10000 };
static const sn_chain_limits few_retries = {
    .timeout_ms = TIMEOUT_MS, .max_retries = 3, .prefill_depth = SN_PREFILL_DEPTH_MAX};
static const sn_chain_limits one_retry = {
    .timeout_ms = TIMEOUT_MS, .max_retries = 1, .prefill_depth = SN_PREFILL_DEPTH_MAX};

/* Announces a node that is there no longer, which any route prefers; *id: of it. No program listens at the address, or
 * another node, as after a restart with new keys. */
static void announce_dead(chain_fixture *r, const char *address, int first, int end, uint8_t id[SN_KEY_SIZE]) {
    sn_identity identity;
    sn_buf sealed;
    sn_directory *directory = sn_link_directory(r->link);
    REQUIRE(sn_identity_new(&identity, &err));
    make_announcement_of(r->w, &identity, address, first, end, 1, &sealed);
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, sn_unix_ms(), &err));
    sn_directory_prove(directory, identity.id, INT64_MAX);
    memcpy(id, identity.id, SN_KEY_SIZE);
    sn_buf_fini(&sealed);
}

/* k nodes die together with the one that computes; one lives. Each that is dead costs next to no time. */
Test(absent_nodes, nodes_that_die_together_end_no_text) {
    const int dead[] = {1, 3, 6, 12};
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++)
        for (int push = 0; push < 2; push++) {
            testbed *w = testbed_of_halves(1);
            chain_fixture r;
            uint8_t id[SN_KEY_SIZE];
            chain_fixture_open(&r, w, (sn_chain_options){.limits = few_retries, .routing.push = push});
            chain_fixture_steps(&r, 0, 20, 20);
            for (int k = 0; k < dead[i]; k++) {
                char address[32];
                snprintf(address, sizeof address, "dead%d:1", k);
                announce_dead(&r, address, 2, 4, id);
            }
            cluster_kill(w->cluster, cluster_node_of_block(r.chain, 2));
            int64_t began_us = sn_now_us();
            cr_expect_eq(chain_fixture_try_steps(&r, 20, 40, 1), SN_OK, "%d dead: %s", dead[i], r.err.text);
            cr_expect_lt(sn_now_us() - began_us, SN_ABSENCE_US, "%d dead", dead[i]);
            cr_expect_eq(sn_chain_failovers(r.chain), 1);
            chain_fixture_close(&r);
            testbed_free(&w);
        }
}

/* Before the text begins it is the same. */
Test(absent_nodes, dead_nodes_end_no_opening) {
    enum { DEAD = 8 };
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    uint8_t id[SN_KEY_SIZE];
    chain_fixture_begin(&r, w);
    for (int k = 0; k < DEAD; k++) announce_dead(&r, k % 2 ? "dead:1" : "gone:1", 2, 4, id);
    cr_expect_eq(chain_fixture_try_open(&r, (sn_chain_options){0}), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* A node fails in the middle of a text, and each one that takes its place dies in the replay. */
Test(absent_nodes, nodes_that_die_in_a_replay_end_no_text) {
    enum { DYING = 5 };
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    fake_node *dying[DYING];
    chain_fixture_open(&r, w, (sn_chain_options){.limits = one_retry});
    chain_fixture_steps(&r, 0, 20, 20);
    for (int k = 0; k < DYING; k++) {
        char address[32];
        snprintf(address, sizeof address, "dying%d:1", k);
        dying[k] = fake_node_new(w, address, 2, 4, FAKE_DIES);
        fake_node_announce_to(dying[k], r.link);
    }
    cluster_kill(w->cluster, 1);
    cluster_add(w->cluster, 2, 4);
    cr_expect_eq(chain_fixture_try_steps(&r, 20, 40, 1), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    for (int k = 0; k < DYING; k++) fake_node_free(&dying[k]);
    testbed_free(&w);
}

static void *restart_later(void *w) {
    sn_sleep_us(3000000);
    cluster_restart(((testbed *)w)->cluster, 1);
    return NULL;
}

/* The only node of some blocks is gone, and comes back with its identity within the time of the step. */
Test(absent_nodes, a_node_that_returns_is_used_at_once) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    pthread_t restarting;
    chain_fixture_open(&r, w, (sn_chain_options){.limits = few_retries});
    chain_fixture_steps(&r, 0, 20, 20);
    cluster_kill(w->cluster, 1);
    cr_assert_eq(pthread_create(&restarting, NULL, restart_later, w), 0);
    cr_expect_eq(chain_fixture_try_steps(&r, 20, 40, 1), SN_OK, "%s", r.err.text);
    pthread_join(restarting, NULL);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Nor do nodes that open no session, for example because they are full. */
Test(absent_nodes, nodes_that_refuse_a_session_end_no_text) {
    enum { FULL = 8 };
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    fake_node *full[FULL];
    chain_fixture_open(&r, w, (sn_chain_options){.limits = few_retries});
    chain_fixture_steps(&r, 0, 20, 20);
    for (int k = 0; k < FULL; k++) {
        char address[32];
        snprintf(address, sizeof address, "full%d:1", k);
        full[k] = fake_node_new(w, address, 2, 4, FAKE_OPEN_REFUSED);
        fake_node_announce_to(full[k], r.link);
    }
    cluster_add(w->cluster, 2, 4);
    cluster_kill(w->cluster, 1);
    cr_expect_eq(chain_fixture_try_steps(&r, 20, 40, 1), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    for (int k = 0; k < FULL; k++) fake_node_free(&full[k]);
    testbed_free(&w);
}

/* The client knows one node of these blocks, which takes its patience and does not answer; another one has joined. */
Test(absent_nodes, a_silent_node_does_not_hide_one_that_has_joined) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    chain_fixture_begin(&r, w);
    REQUIRE(sn_link_discover(r.link, NULL, TIMEOUT_MS, &err));
    fake_node *silent = fake_node_new(w, "silent:1", 2, 4, FAKE_OPEN_SILENT);
    fake_node_announce_to(silent, r.link);
    cluster_add(w->cluster, 2, 4);
    cr_expect_eq(chain_fixture_try_open(&r, (sn_chain_options){0}), SN_OK, "%s", r.err.text);
    cr_expect_eq(fake_node_requests(silent), 1);
    chain_fixture_close(&r);
    fake_node_free(&silent);
    testbed_free(&w);
}

/* The search for the blocks ends when its patience does, however often nodes that are not there could be tried. */
Test(absent_nodes, an_opening_over_dead_nodes_only_ends_before_its_timeout) {
    enum { LONG_MS = 40000 };
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    chain_fixture r;
    uint8_t id[SN_KEY_SIZE];
    cluster_add(w->cluster, 0, 2);
    chain_fixture_begin(&r, w);
    announce_dead(&r, "dead:1", 2, 4, id);
    int64_t began_us = sn_now_us();
    sn_chain_options options = {.limits = few_retries};
    options.limits.timeout_ms = LONG_MS;
    cr_expect_eq(chain_fixture_try_open(&r, options), SN_RETRY, "%s", r.err.text);
    cr_expect_lt(sn_now_us() - began_us, INT64_C(4000000), "3 s are the patience of one search, of two it were 5 s");
    cr_expect(strstr(r.err.text, "2:4") && strstr(r.err.text, "dead:1"), "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* A node that was restarted with new keys: what the one before it announced does not count any more. */
Test(absent_nodes, a_node_restarted_with_other_keys_leaves_no_ghost) {
    testbed *w = testbed_of_halves(1);
    chain_fixture r;
    uint8_t ghost[SN_KEY_SIZE], dead[SN_KEY_SIZE];
    chain_fixture_open(&r, w, (sn_chain_options){.limits = few_retries});
    chain_fixture_steps(&r, 0, 20, 20);
    int first = cluster_node_of_block(r.chain, 2);
    announce_dead(&r, sn_node_address(cluster_node(w->cluster, 3 - first)), 2, 4, ghost);
    announce_dead(&r, "dead:1", 2, 4, dead);
    cluster_kill(w->cluster, first);
    cr_expect_eq(chain_fixture_try_steps(&r, 20, 40, 1), SN_OK, "%s", r.err.text);
    const sn_directory *directory = sn_link_directory(r.link);
    cr_expect_eq(sn_directory_find_expiry(directory, ghost), 0);
    cr_expect_neq(sn_directory_find_expiry(directory, dead), 0, "it may be back soon");
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Without a joined node the others that are known are asked, and not only after a while. */
Test(absent_nodes, discovery_asks_others_at_once_when_no_joined_node_is_there) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_begin(&r, w); /* joins node 0 */
    cluster_add(w->cluster, 0, 4);
    for (int i = 0; i < 100 && sn_directory_count(sn_link_directory(r.link)) < 2; i++) {
        REQUIRE(sn_link_discover(r.link, NULL, TIMEOUT_MS, &err));
        sn_sleep_us(200000);
    }
    cluster_kill(w->cluster, 0);
    int64_t began_us = sn_now_us();
    cr_expect_eq(sn_link_discover(r.link, NULL, TIMEOUT_MS, &r.err), SN_OK, "%s", r.err.text);
    cr_expect_lt(sn_now_us() - began_us, 200000);
    cluster_kill(w->cluster, 1);
    cr_expect_eq(sn_link_discover(r.link, NULL, 1500, &r.err), SN_RETRY);
    cr_expect(strstr(r.err.text, "within 1.5 seconds") && strstr(r.err.text, "node0:1 was lost"), "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
}
