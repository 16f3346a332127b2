/* Nodes that are slower than they claim: what is remembered of them, and what it does to a route. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: notes the times of a step */
#include "client/routing/candidates.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/fake_node.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOW = 1000000000, BLOCKS = 4 };

static sn_slow_nodes *slow_nodes_read(const char *path, int64_t unix_ms) {
    sn_slow_nodes *nodes = NULL;
    REQUIRE(sn_slow_nodes_new(path, unix_ms, &nodes, &err));
    return nodes;
}

Test(slow_nodes, are_remembered_from_run_to_run_for_a_while) {
    const uint8_t boaster[SN_KEY_SIZE] = {1}, honest[SN_KEY_SIZE] = {2};
    char path[] = "/tmp/slow-nodes-XXXXXX";
    close(mkstemp(path));
    sn_slow_nodes *nodes = slow_nodes_read(path, NOW);
    sn_slow_nodes_note(nodes, boaster, 25000, 3000000, NOW);
    sn_slow_nodes_note(nodes, honest, 1000000, 3000000, NOW); /* three times as slow: it has other clients */
    sn_slow_nodes_free(&nodes);
    nodes = slow_nodes_read(path, NOW + 1000);
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, boaster, NOW + 1000), 3000000);
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, honest, NOW + 1000), 0);
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, boaster, NOW + SN_SLOW_MS), 0);
    sn_slow_nodes_note(nodes, boaster, 2900000, 3000000, NOW + 1000); /* it tells the truth now */
    sn_slow_nodes_free(&nodes);
    nodes = slow_nodes_read(path, NOW + 2000);
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, boaster, NOW + 2000), 0);
    sn_slow_nodes_free(&nodes);
    unlink(path);
}

Test(slow_nodes, a_damaged_file_and_too_many_nodes_do_no_harm) {
    char path[] = "/tmp/slow-nodes-XXXXXX";
    int fd = mkstemp(path);
    const char junk[] = "\xff\x00zz\n0011 5 5\nzz 1\n";
    cr_assert_eq(write(fd, junk, sizeof junk), (ssize_t)sizeof junk);
    close(fd);
    sn_slow_nodes *nodes = slow_nodes_read(path, NOW);
    for (int i = 0; i < 3 * SN_SLOW_NODES_MAX; i++) {
        uint8_t id[SN_KEY_SIZE] = {(uint8_t)i, (uint8_t)(i >> 8)};
        sn_slow_nodes_note(nodes, id, 1000, 1000000, NOW + i);
    }
    const uint8_t first[SN_KEY_SIZE] = {0};
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, first, NOW), 0, "the oldest one is forgotten");
    sn_slow_nodes_free(&nodes);
    nodes = slow_nodes_read(path, NOW);
    sn_slow_nodes_free(&nodes);
    unlink(path);
    nodes = slow_nodes_read("/nonexistent/slow-nodes", NOW);
    sn_slow_nodes_note(nodes, first, 1000, 1000000, NOW);
    cr_expect_eq(sn_slow_nodes_block_ns(nodes, first, NOW), 1000000);
    sn_slow_nodes_free(&nodes);
}

/* -- candidates ---------------------------------------------------------------------------------------------------- */

/* A directory of nodes over all blocks that announce these times of a token, in microseconds, and tokens a second
 * (NULL: none). */
static sn_directory *directory_of_rates(const uint64_t *decode_us, const uint64_t *rates, size_t n,
                                        sn_identity *identities) {
    sn_directory *d = NULL;
    sn_announcement *a = calloc(1, sizeof *a);
    REQUIRE(sn_directory_new(&d, &err));
    for (size_t i = 0; i < n; i++) {
        sn_buf sealed;
        REQUIRE(sn_identity_new(&identities[i], &err));
        *a = (sn_announcement){.address = "127.0.0.1:7001",
                               .protocol = SN_PROTOCOL_VERSION,
                               .sequence = 1,
                               .expires_unix_ms = NOW + 50000,
                               .state = SN_NODE_ONLINE,
                               .end_block = BLOCKS,
                               .n_blocks = BLOCKS,
                               .decode_us = decode_us[i],
                               .tokens_per_s = rates ? rates[i] : 0};
        memcpy(a->node, identities[i].id, SN_KEY_SIZE);
        memcpy(a->curve_key, identities[i].curve_key, SN_KEY_SIZE);
        sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
        REQUIRE(sn_announcement_seal(a, &identities[i], &sealed, &err));
        REQUIRE(sn_directory_add(d, sealed.data, sealed.len, NOW, &err));
        sn_buf_fini(&sealed);
    }
    free(a);
    return d;
}

static sn_directory *directory_of(const uint64_t *decode_us, size_t n, sn_identity *identities) {
    return directory_of_rates(decode_us, NULL, n, identities);
}

static int64_t block_ns(const sn_directory *d, const sn_slow_nodes *slow, const sn_identity *node) {
    sn_candidate_query query = {
        .directory = d, .slow_nodes = slow, .now_us = 1, .unix_ms = NOW, .n_blocks = BLOCKS, .wire = SN_F32};
    sn_candidates list;
    int64_t ns = 0;
    REQUIRE(sn_candidates_make(&query, &list, &err));
    for (size_t i = 0; i < list.n; i++)
        if (!memcmp(list.at[i].node->node, node->id, SN_KEY_SIZE)) ns = list.at[i].block_ns;
    sn_candidates_fini(&list);
    return ns;
}

Test(slow_nodes, the_claim_of_a_stranger_does_not_count_and_that_of_a_proven_node_a_little) {
    sn_identity node[4];
    sn_directory *d = directory_of((const uint64_t[]){8000, 8000, 100, 100}, 4, node);
    for (int i = 0; i < 3; i++) sn_directory_prove(d, node[i].id, NOW + 60000);
    cr_expect_eq(block_ns(d, NULL, &node[0]), 2000000);
    cr_expect_eq(block_ns(d, NULL, &node[2]), 500000, "a proven node counts as at most four times as fast as others");
    cr_expect_eq(block_ns(d, NULL, &node[3]), 4000000, "a stranger counts as half as fast as others");
    sn_directory_free(&d);
}

Test(slow_nodes, a_node_that_was_slower_than_it_claimed_is_planned_with_what_was_measured) {
    sn_identity node[3];
    sn_directory *d = directory_of((const uint64_t[]){8000, 100, 8000}, 3, node);
    for (int i = 0; i < 3; i++) sn_directory_prove(d, node[i].id, NOW + 60000);
    sn_slow_nodes *slow = slow_nodes_read(NULL, NOW);
    cr_expect_lt(block_ns(d, slow, &node[1]), block_ns(d, slow, &node[0]));
    sn_slow_nodes_note(slow, node[1].id, 25000, 9000000, NOW);
    cr_expect_eq(block_ns(d, slow, &node[1]), 9000000);
    cr_expect_eq(block_ns(d, slow, &node[0]), 2000000);
    sn_slow_nodes_free(&slow);
    sn_directory_free(&d);
}

/* A stranger on one hop would else cost less than two hops of proven nodes that answer late. */
Test(slow_nodes, a_stranger_that_has_not_answered_costs_more_than_any_known_node) {
    sn_identity node[3];
    sn_directory *d = directory_of((const uint64_t[]){8000, 100, 100}, 3, node);
    sn_peer_stats *stats = NULL;
    sn_candidates list;
    int64_t cost[3] = {0};
    sn_directory_prove(d, node[0].id, NOW + 60000);
    REQUIRE(sn_peer_stats_new(&stats, &err));
    sn_peer_stats_note_silence(stats, node[0].id, 5000000, 1);
    sn_peer_stats_note_rtt(stats, node[1].id, 10000, 1);
    sn_peer_stats_note_silence(stats, node[2].id, 5000000, 1);
    const sn_candidate_query query = {
        .directory = d, .peer_stats = stats, .now_us = 1, .unix_ms = NOW, .n_blocks = BLOCKS, .wire = SN_F32};
    REQUIRE(sn_candidates_make(&query, &list, &err));
    for (size_t i = 0; i < list.n; i++)
        for (int k = 0; k < 3; k++)
            if (!memcmp(list.at[i].node->node, node[k].id, SN_KEY_SIZE))
                cost[k] = list.at[i].rtt_ns + list.at[i].queue_ns;
    cr_expect_geq(cost[2], 10 * cost[0], "a silent stranger costs %ld ms, a known node %ld", (long)(cost[2] / 1000000),
                  (long)(cost[0] / 1000000));
    cr_expect_lt(cost[1], cost[0], "a stranger that has answered costs %ld ms", (long)(cost[1] / 1000000));
    sn_candidates_fini(&list);
    sn_peer_stats_free(&stats);
    sn_directory_free(&d);
}

/* What a route for much work (--route throughput) is drawn by. measured: number of a node that has done a step; -1:
 * none has. */
static void rates_of(const sn_directory *d, const sn_identity *nodes, size_t n, int measured, double *rates) {
    sn_peer_stats *stats = NULL;
    sn_candidates list;
    REQUIRE(sn_peer_stats_new(&stats, &err));
    if (measured >= 0) sn_peer_stats_note_step(stats, nodes[measured].id, BLOCKS, 1, 0, 8000, 1);
    const sn_candidate_query query = {
        .directory = d, .peer_stats = stats, .now_us = 1, .unix_ms = NOW, .n_blocks = BLOCKS, .wire = SN_F32};
    REQUIRE(sn_candidates_make(&query, &list, &err));
    for (size_t i = 0; i < list.n; i++)
        for (size_t k = 0; k < n; k++)
            if (!memcmp(list.at[i].node->node, nodes[k].id, SN_KEY_SIZE)) rates[k] = list.at[i].tokens_per_s;
    if (measured >= 0)
        cr_expect_eq(list.at[0].block_measured + list.at[1].block_measured + list.at[2].block_measured, 1);
    sn_candidates_fini(&list);
    sn_peer_stats_free(&stats);
}

Test(slow_nodes, the_throughput_that_a_stranger_claims_does_not_count) {
    sn_identity node[3];
    sn_directory *d = directory_of((const uint64_t[]){8000, 8000, 100}, 3, node);
    double rate[3] = {0};
    for (int i = 0; i < 2; i++) sn_directory_prove(d, node[i].id, NOW + 60000);
    rates_of(d, node, 3, -1, rate);
    cr_expect(rate[0] > 0 && rate[0] == rate[1]);
    cr_expect(rate[2] > 0 && rate[2] <= rate[0] / 2, "%g beside %g", rate[2], rate[0]);
    sn_directory_free(&d);
}

/* A node cannot buy belief in its throughput with one step that it does. Two known nodes have no middle but the lower
 * one. */
Test(slow_nodes, the_throughput_that_a_measured_node_claims_counts_a_little) {
    for (int proven = 1; proven <= 2; proven++) {
        sn_identity node[3];
        const uint64_t times[] = {8000, 8000, 8000}, claims[] = {100, 100, 10000000000000000u};
        sn_directory *d = directory_of_rates(times, claims, 3, node);
        double rate[3] = {0};
        for (int i = 0; i < proven; i++) sn_directory_prove(d, node[i].id, NOW + 60000);
        rates_of(d, node, 3, 2, rate);
        cr_expect_eq(rate[0], 100);
        cr_expect_eq(rate[2], 400, "%g, of %d proven nodes 100 each", rate[2], proven);
        sn_directory_free(&d);
    }
}

/* -- what a chain notes -------------------------------------------------------------------------------------------- */

/* Of nodes that push to each other the last one tells the times of all. */
Test(slow_nodes, who_answers_for_a_group_cannot_have_another_node_remembered_as_slow) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    sn_slow_nodes *slow = slow_nodes_read(NULL, NOW);
    chain_fixture r;
    sn_identity honest;
    sn_buf sealed;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.max_tokens = TESTBED_TOKENS, .routing.slow_nodes = slow});
    REQUIRE(sn_identity_new(&honest, &err));
    make_announcement_of(w, &honest, "honest:1", 0, 2, 1, &sealed);
    REQUIRE(sn_directory_add(sn_link_directory(r.link), sealed.data, sealed.len, sn_unix_ms(), &err));
    sn_hop *hops = calloc(2, sizeof *hops);
    cr_assert(hops);
    hops[0].end = hops[1].first = 2;
    hops[1].end = 4;
    hops[1].pushed = true;
    hops[0].remote.last_compute_us = 1000000;
    memcpy(hops[0].remote.node, honest.id, SN_KEY_SIZE);
    sn_chain_note_step(r.chain, hops, 0, 2, 1);
    cr_expect_eq(sn_slow_nodes_block_ns(slow, honest.id, sn_unix_ms()), 0);
    sn_chain_note_step(r.chain, hops, 0, 1, 1);
    cr_expect_gt(sn_slow_nodes_block_ns(slow, honest.id, sn_unix_ms()), 0, "its own word counts");
    free(hops);
    sn_buf_fini(&sealed);
    sn_slow_nodes_free(&slow);
    chain_fixture_close(&r);
    testbed_free(&w);
}
