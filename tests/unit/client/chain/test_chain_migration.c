/* Draining nodes migrate the KV caches of their sessions to other nodes, and nodes that fail leave a KV replica: the
 * chain continues with the same bits and recomputes almost nothing. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: a test turns pushing off */
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

static testbed *new_testbed(void) { return testbed_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10}); }

/* Steps of one token back and forth (a pushed chain knows the hashes at these positions), until `times` replicas are
 * promoted or 20 seconds have passed. Ends at position 60. */
static void step_until_promoted(chain_fixture *r, uint64_t times) {
    int64_t until = sn_now_us() + 20000000;
    for (int at = 50; sn_chain_replicas_promoted(r->chain) < times && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
        chain_fixture_steps(r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_assert_eq(sn_chain_replicas_promoted(r->chain), times);
    chain_fixture_steps(r, 50, 60, 1);
}

static void await_left(const testbed *w, int node) {
    int64_t until = sn_now_us() + 20000000;
    while (!cluster_has_left(w->cluster, node) && sn_now_us() < until) sn_sleep_us(2000);
    cr_assert(cluster_has_left(w->cluster, node), "node %d has not left", node);
}

/* Waits until the KV cache of every hop is completely replicated. */
static void await_replicas(chain_fixture *r) {
    for (size_t k = 0; k < sn_chain_hops(r->chain, NULL, 0); k++)
        cr_assert_eq(sn_chain_await_replica(r->chain, k, 10000, &r->err), SN_OK, "%s", r->err.text);
}

Test(chain_migration, waiting_for_a_replica_fails_without_another_node) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.kv.replica = true});
    chain_fixture_steps(&r, 0, 10, 10);
    cr_expect_eq(sn_chain_await_replica(r.chain, 0, 300, &r.err), SN_RETRY);
    cr_expect(strstr(r.err.text, "no KV replica of blocks 0:4"), "%s", r.err.text);
    cr_expect_eq(sn_chain_await_replica(r.chain, 1, 0, &r.err), SN_REFUSED);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* It can do without one: it looks for a node for 50 ms, again after pauses that double. */
Test(chain_migration, a_token_hardly_waits_for_a_replica_that_no_node_can_hold) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.kv.replica = true});
    int64_t began_us = sn_now_us();
    chain_fixture_steps(&r, 0, 1, 1);
    cr_expect_lt(sn_now_us() - began_us, 150000);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* -- draining */

/* cuts: where blocks 0..4 are cut into spans; two nodes serve each span. All nodes in use drain, one after the
 * other. */
static void expect_drain_without_replay(const int *cuts, bool push) {
    testbed *w = new_testbed();
    chain_fixture r;
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; cuts[i] < 4; i++) cluster_add(w->cluster, cuts[i], cuts[i + 1]);
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push});
    chain_fixture_steps(&r, 0, 50, 20);
    uint64_t times = 0;
    for (int i = 0; cuts[i] < 4; i++) {
        int leaves = cluster_node_of_block(r.chain, cuts[i]);
        cluster_drain(w->cluster, leaves);
        step_until_promoted(&r, ++times);
        cr_expect_neq(cluster_node_of_block(r.chain, cuts[i]), leaves);
        await_left(w, leaves);
    }
    chain_fixture_steps(&r, 60, TESTBED_TOKENS, 7);
    chain_fixture_steps(&r, 20, 70, 9); /* rewinds to before all of it */
    cr_expect_eq(sn_chain_replayed(r.chain), 0, "%d tokens were recomputed", (int)sn_chain_replayed(r.chain));
    cr_expect_eq(sn_chain_failovers(r.chain), times);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(chain_migration, draining_every_node_of_a_chain_recomputes_nothing) {
    expect_drain_without_replay((int[]){0, 2, 4}, false);
    expect_drain_without_replay((int[]){0, 1, 3, 4}, false);
}

Test(chain_migration, draining_every_node_of_a_pushed_chain_recomputes_nothing) {
    expect_drain_without_replay((int[]){0, 2, 4}, true);
    expect_drain_without_replay((int[]){0, 1, 3, 4}, true);
}

/* Node 1 serves 1:4; 1:2 and 2:4 replace it, then one of these fails, the input of which the client has not seen. */
static void expect_split(bool push, int failing) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 1);
    cluster_add(w->cluster, 1, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push});
    chain_fixture_steps(&r, 0, 50, 20);
    cluster_add(w->cluster, 1, 2);
    cluster_add(w->cluster, 2, 4);
    cluster_drain(w->cluster, 1);
    step_until_promoted(&r, 1);
    cr_expect_eq(cluster_node_of_block(r.chain, 1), 2);
    cr_expect_eq(cluster_node_of_block(r.chain, 3), 3);
    await_left(w, 1);
    chain_fixture_steps(&r, 60, 70, 3);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    cluster_add(w->cluster, failing == 2 ? 1 : 2, failing == 2 ? 2 : 4);
    cluster_cut_off(w->cluster, failing);
    chain_fixture_steps(&r, 70, TESTBED_TOKENS, 3);
    cr_expect_geq(sn_chain_replayed(r.chain), 70);
    cr_expect_eq(cluster_node_of_block(r.chain, failing == 2 ? 1 : 2), 4);
    chain_fixture_steps(&r, 30, 60, 8);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(chain_migration, two_nodes_replace_one) {
    for (int push = 0; push < 2; push++)
        for (int failing = 2; failing < 4; failing++) expect_split(push, failing);
}

Test(chain_migration, a_draining_node_without_successor_serves_until_its_timeout) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 1});
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 40, 40);
    cluster_drain(w->cluster, 1);
    chain_fixture_steps(&r, 40, 45, 1);
    cr_expect_not(cluster_has_left(w->cluster, 1));
    await_left(w, 1);
    cluster_add(w->cluster, 2, 4); /* too late: the KV cache is gone and is recomputed */
    chain_fixture_steps(&r, 45, 50, 1);
    cr_expect_geq(sn_chain_replayed(r.chain), 45);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* An idle client learns of the drain, too, if it polls. */
Test(chain_migration, an_idle_client_that_polls_keeps_its_kv_cache) {
    testbed *w = new_testbed();
    chain_fixture r;
    for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 40, 40);
    int leaves = cluster_node_of_block(r.chain, 0);
    cluster_drain(w->cluster, leaves);
    int64_t until = sn_now_us() + 20000000;
    while (!cluster_has_left(w->cluster, leaves) && sn_now_us() < until) {
        sn_chain_poll(r.chain);
        sn_sleep_us(2000);
    }
    chain_fixture_steps(&r, 40, 60, 4);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* -- failing with a KV replica */

/* Nodes for 0:2, 1:3, 3:4 and one more of each; the one that serves `block` is cut off at a step. */
static void expect_replica(bool push, int block, int chunk) {
    testbed *w = new_testbed();
    chain_fixture r;
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < 3; i++) cluster_add(w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push, .kv.replica = true});
    chain_fixture_steps(&r, 0, 50, 25);
    await_replicas(&r);
    int failing = cluster_node_of_block(r.chain, block);
    cluster_cut_off_at_step(w->cluster, failing, 2);
    chain_fixture_steps(&r, 50, 75, chunk);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1, "push %d block %d", push, block);
    cr_expect_leq(sn_chain_replayed(r.chain), 2 * chunk, "push %d block %d: %d tokens", push, block,
                  (int)sn_chain_replayed(r.chain));
    chain_fixture_steps(&r, 33, TESTBED_TOKENS, 5);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(chain_migration, a_replica_saves_the_replay_after_a_node_death) {
    for (int block = 1; block < 4; block += 2) expect_replica(false, block, 1);
    expect_replica(false, 1, 10);
}

Test(chain_migration, a_replica_saves_the_replay_within_a_pushed_chain) {
    for (int block = 0; block < 4; block += block ? 2 : 1) expect_replica(true, block, 1);
    expect_replica(true, 1, 10);
}

/* The node at the address that ctx points to is cut off, and the others exaggerate. */
static sn_hub_action lengthen_resumes(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    if (!strcmp(from, ctx) || !strcmp(to, ctx)) return SN_DROP;
    if (msg->kind == SN_MSG_RESUME_REPLY) ((sn_msg *)(uintptr_t)msg)->resume_reply.length = 1 << 30;
    return SN_DELIVER;
}

Test(chain_migration, a_replica_of_more_tokens_than_there_are_is_not_used) {
    testbed *w = new_testbed();
    char gone[16];
    chain_fixture r;
    for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.kv.replica = true});
    chain_fixture_steps(&r, 0, 50, 25);
    await_replicas(&r);
    snprintf(gone, sizeof gone, "node%d:1", cluster_node_of_block(r.chain, 0));
    sn_hub_set_filter(cluster_hub(w->cluster), lengthen_resumes, gone);
    chain_fixture_steps(&r, 50, 60, 1);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 0);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(chain_migration, a_replica_follows_rewinds) {
    for (int push = 0; push < 2; push++) {
        testbed *w = new_testbed();
        chain_fixture r;
        for (int twice = 0; twice < 2; twice++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
        chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push, .kv.replica = true});
        chain_fixture_steps(&r, 0, 70, 35);
        chain_fixture_steps(&r, 20, 40, 3);
        chain_fixture_steps(&r, 31, 50, 1);
        await_replicas(&r);
        cluster_cut_off(w->cluster, cluster_node_of_block(r.chain, 2));
        chain_fixture_steps(&r, 50, TESTBED_TOKENS, 4);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

/* Nodes 0 and 1 push; the replica of node 0, over nodes 2 and 3, does not, as when an announcement is about to expire.
 * Of a step of several tokens node 1 has told the hash at its end only. So when node 0 fails at a rewind into this
 * step, the chain continues from the step's beginning: its first rows enter node 2 again, and node 3 must get what
 * node 2 makes of them, which the client has never seen. Nothing else is computed again. */
static void expect_replica_without_push(int rewind) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = true, .kv.replica = true});
    chain_fixture_steps(&r, 0, 50, 25);
    r.chain->push = false;
    cluster_add(w->cluster, 0, 1);
    cluster_add(w->cluster, 1, 2);
    chain_fixture_steps(&r, 50, 57, 7);
    cr_assert_eq(sn_chain_await_replica(r.chain, 0, 10000, &r.err), SN_OK, "%s", r.err.text);
    cluster_cut_off_at_step(w->cluster, 0, 1);
    chain_fixture_steps(&r, rewind, rewind + 7, 7);
    chain_fixture_steps(&r, rewind + 3, rewind + 10, 7); /* into a step that node 3 has pushed */
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1, "rewind to %d", rewind);
    cr_expect_eq(sn_chain_failovers(r.chain), 1, "rewind to %d", rewind);
    cr_expect_eq(sn_chain_replayed(r.chain), 0, "rewind to %d", rewind);
    chain_fixture_steps(&r, 33, TESTBED_TOKENS, 5); /* before what node 3 got: now everything is replayed */
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(chain_migration, a_replica_that_does_not_push_gets_the_rows_that_enter_it) {
    expect_replica_without_push(52);
    expect_replica_without_push(57);
}

/* -- export and import */

/* The KV cache of 50 tokens is exported from one cut and imported into another one; then a node fails, the inputs of
 * which the client has not seen. */
static void expect_export_resumes(bool push, int failing) {
    testbed *w = new_testbed();
    chain_fixture r, s;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push});
    chain_fixture_steps(&r, 0, 50, 13);
    float *rows[2];
    const int parts[2][2] = {{0, 30}, {30, 20}}; /* as of a session file of several chunks */
    for (int i = 0; i < 2; i++) {
        rows[i] = malloc(sizeof(float) * 50 * (size_t)w->n_blocks * 2 * 64 * 64);
        REQUIRE(sn_chain_get_kv(r.chain, parts[i][0], parts[i][1], rows[i], &err));
    }
    chain_fixture_close(&r);
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < 3; i++) cluster_add(w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    const char *only[] = {"node2", "node3", "node4", "node5", "node6", "node7"};
    chain_fixture_open(&s, w, (sn_chain_options){.routing.push = push, .routing.node_filter = {only, 6, NULL, 0}});
    sn_hash marks[51];
    for (int i = 0; i <= 50; i++) marks[i] = sn_hash_of(&i, sizeof i);
    for (int i = 0; i < 2; i++) REQUIRE(sn_chain_put_kv(s.chain, parts[i][0], parts[i][1], rows[i], marks, &err));
    REQUIRE(sn_chain_resume(s.chain, 50, marks, w->inputs, &err));
    chain_fixture_steps(&s, 50, 70, 6);
    chain_fixture_steps(&s, 33, 50, 5); /* rewinds into the imported KV cache */
    cr_expect_eq(sn_chain_replayed(s.chain), 0);
    cluster_cut_off(w->cluster, cluster_node_of_block(s.chain, failing));
    chain_fixture_steps(&s, 50, TESTBED_TOKENS, 6);
    cr_expect_geq(sn_chain_replayed(s.chain), 50);
    free(rows[0]), free(rows[1]);
    chain_fixture_close(&s);
    testbed_free(&w);
}

Test(chain_migration, exported_kv_resumes_over_another_cut_and_survives_a_death) {
    for (int failing = 0; failing < 4; failing += 3) expect_export_resumes(false, failing);
    expect_export_resumes(true, 2);
}

Test(chain_migration, refuses_to_resume_imported_kv_with_other_hashes) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 20, 20);
    float *rows = malloc(sizeof(float) * 20 * (size_t)w->n_blocks * 2 * 64 * 64);
    REQUIRE(sn_chain_get_kv(r.chain, 0, 20, rows, &err));
    cr_expect_eq(sn_chain_get_kv(r.chain, 0, 21, rows, &r.err), SN_REFUSED);
    chain_fixture_close(&r);
    sn_hash marks[21] = {{{1}}}, others[21] = {{{2}}};
    chain_fixture_open(&r, w, (sn_chain_options){0});
    REQUIRE(sn_chain_put_kv(r.chain, 0, 10, rows, marks, &err));
    cr_expect_eq(sn_chain_put_kv(r.chain, 12, 5, rows, marks, &r.err), SN_RETRY, "a chunk is missing");
    for (int i = 1; i < 21; i++) others[i] = (sn_hash){{3}};
    cr_expect_eq(sn_chain_resume(r.chain, 10, others, r.w->inputs, &r.err), SN_REBUILD, "%s", r.err.text);
    chain_fixture_close(&r);
    free(rows);
    testbed_free(&w);
}
