/* Nodes fail, hang, lose sessions and reply wrongly; the chain continues with the same bits through other nodes, or
 * reports soon which blocks are missing. */
#include "base/clock.h"
#include "tests/support/fake_node.h"
#include "tests/support/memory_transport.h"
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/tiny_model.h"
#include "client/chain/chain_private.h" /* private: takes the connections of a chain away */

#include <criterion/criterion.h>
#include <string.h>

enum {
    TIMEOUT_MS = 10000,
    SOON_MS = 60000
}; /* in virtual time. SOON: the longest time that an error may take; several timeouts */

static testbed *new_testbed(void) { return testbed_new(&(cluster_options){.kv_memory = 64}); }

/* Opens a chain over the present nodes and, if not NULL, a faulty one. */
static sn_status open_with(chain_fixture *r, testbed *w, sn_chain_options options, const fake_node *faulty) {
    chain_fixture_begin(r, w);
    if (faulty) fake_node_announce_to(faulty, r->link);
    if (!options.limits.timeout_ms)
        options.limits =
            (sn_chain_limits){.timeout_ms = TIMEOUT_MS, .max_retries = 3, .prefill_depth = SN_PREFILL_DEPTH_MAX};
    return chain_fixture_try_open(r, options);
}

/* -- nodes that fall silent */

/* Node 0 serves 0:2; node 1 serves 2:4 and is cut off at its n-th step; nodes 2 and 3 together can replace it. */
static void expect_survival(int at_step, int chunk, bool push) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cluster_cut_off_at_step(w->cluster, 1, at_step);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.routing.push = push}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, TESTBED_TOKENS, chunk), SN_OK, "%s", r.err.text);
    cr_expect_geq(sn_chain_failovers(r.chain), 1);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(failover, survives_a_node_cut_off_during_prefill) {
    expect_survival(2, 40, false);
    expect_survival(2, 40, true);
}

Test(failover, survives_a_node_cut_off_during_decoding) {
    expect_survival(60, 1, false);
    expect_survival(60, 1, true);
}

Test(failover, survives_a_node_cut_off_before_its_session_is_open) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    fake_node *dead = fake_node_new(w, "dead:1", 2, 4, FAKE_OPEN_SILENT);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, dead), SN_OK, "%s", r.err.text);
    cr_expect_eq(fake_node_requests(dead), 1);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, TESTBED_TOKENS, 32), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    fake_node_free(&dead);
    testbed_free(&w);
}

static void expect_error_soon(sn_status status, const chain_fixture *r, int64_t began, const char *what) {
    int64_t ms = (sn_now_us() - began) / 1000;
    cr_expect_eq(status, SN_RETRY, "%s: status %d, %s", what, status, r->err.text);
    cr_expect(ms < SOON_MS, "%s took %lld ms", what, (long long)ms);
    cr_expect(strstr(r->err.text, "2:4"), "%s: which blocks? %s", what, r->err.text);
}

Test(failover, reports_missing_blocks_soon_when_no_node_can_take_over) {
    for (int push = 0; push < 2; push++) {
        testbed *w = testbed_of_halves(0);
        chain_fixture r;
        cr_assert_eq(open_with(&r, w, (sn_chain_options){.routing.push = push}, NULL), SN_OK, "%s", r.err.text);
        cr_assert_eq(chain_fixture_try_steps(&r, 0, 20, 20), SN_OK);
        cluster_cut_off(w->cluster, 1);
        int64_t began = sn_now_us();
        expect_error_soon(chain_fixture_try_steps(&r, 20, 21, 1), &r, began, push ? "pushing" : "by the client");
        cr_expect(strstr(r.err.text, "no answer"), "%s", r.err.text);
        cr_expect_eq(sn_chain_length(r.chain), 20);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

/* -- nodes that reply wrongly */

static void expect_survival_of(fake_node_fault fault, bool push) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    fake_node *faulty = fake_node_new(w, "byzantine:1", 2, 4, fault);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.routing.push = push}, faulty), SN_OK, "fault %d: %s", fault,
                 r.err.text);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 40, 10), SN_OK, "fault %d, push %d: %s", fault, push, r.err.text);
    cr_expect_geq(fake_node_requests(faulty), 1, "fault %d: the fake node got no request", fault);
    chain_fixture_close(&r);
    fake_node_free(&faulty);
    testbed_free(&w);
}

Test(failover, continues_over_other_nodes_after_a_malformed_reply) {
    for (int fault = 0; fault < FAKE_FAULTS; fault++) expect_survival_of((fake_node_fault)fault, false);
}

Test(failover, continues_after_a_malformed_reply_of_the_last_pushing_node) {
    for (int fault = 0; fault < FAKE_FAULTS; fault++)
        if (fault != FAKE_WRONG_TIMELINE && fault != FAKE_SILENT) expect_survival_of((fake_node_fault)fault, true);
}

/* A node's REBUILD ends neither a call nor an opening as an audit's verdict does. */
Test(failover, no_node_gives_the_verdict_of_an_audit) {
    for (int i = 0; i < 2; i++) {
        testbed *w = new_testbed();
        chain_fixture r;
        const sn_chain_options options = {.limits = {.timeout_ms = TIMEOUT_MS, .prefill_depth = SN_PREFILL_DEPTH_MAX}};
        cluster_add(w->cluster, 0, 2);
        fake_node *faulty = fake_node_new(w, "byzantine:1", 2, 4, i ? FAKE_ERROR_REBUILD : FAKE_OPEN_REBUILD);
        sn_status status = open_with(&r, w, options, faulty);
        if (i) {
            cr_assert_eq(status, SN_OK, "%s", r.err.text);
            status = chain_fixture_try_steps(&r, 0, 1, 1);
        }
        cr_expect_eq(status, SN_RETRY, "status %d: %s", (int)status, r.err.text);
        cr_expect_geq(fake_node_requests(faulty), 1);
        chain_fixture_close(&r);
        fake_node_free(&faulty);
        testbed_free(&w);
    }
}

/* While the chain waits for node 1, which is cut off, a node that it asked before sends errors. */
Test(failover, a_node_cannot_answer_for_another_one) {
    testbed *w = testbed_of_halves(1);
    chain_fixture r;
    fake_node *forger = fake_node_new(w, "forger:1", 0, 1, FAKE_FORGES); /* the route with fewer hops passes it by */
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.routing.measure = true}, forger), SN_OK, "%s", r.err.text);
    cr_assert_eq(chain_fixture_try_steps(&r, 0, 5, 1), SN_OK, "%s", r.err.text);
    cluster_cut_off(w->cluster, cluster_node_of_block(r.chain, 2));
    cr_expect_eq(chain_fixture_try_steps(&r, 5, 10, 1), SN_OK, "%s", r.err.text);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    cr_expect_eq(fake_node_requests(forger), 0);
    chain_fixture_close(&r);
    fake_node_free(&forger);
    testbed_free(&w);
}

/* A chain that has opened sessions at a fake node with blocks 0:2 and at a real one with blocks 2:4. */
static fake_node *open_behind_fake(chain_fixture *r, testbed *w, fake_node_fault fault, bool push) {
    cluster_add(w->cluster, 2, 4);
    fake_node *fake = fake_node_new(w, "fake:1", 0, 2, fault);
    cr_assert_eq(open_with(r, w, (sn_chain_options){.routing.push = push}, fake), SN_OK, "%s", r->err.text);
    return fake;
}

/* In a group each node knows the sessions behind it. */
Test(failover, a_node_of_a_group_cannot_get_another_one_banned) {
    testbed *w = new_testbed();
    chain_fixture r;
    fake_node *fake = open_behind_fake(&r, w, FAKE_BLAMES, true);
    cluster_add(w->cluster, 0, 2);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 10, 1), SN_OK, "%s", r.err.text);
    cr_expect_eq(sn_peer_stats_ban_left_us(r.chain->peer_stats, sn_node_id(cluster_node(w->cluster, 0)), sn_now_us()),
                 0, "the node that was blamed");
    cr_expect_eq(sn_chain_failovers(r.chain), 2, "the one that loses its session twice within a step is left");
    chain_fixture_close(&r);
    fake_node_free(&fake);
    testbed_free(&w);
}

/* What nodes state is no more than the time that has passed, and the time for which they put a client off counts. */
Test(failover, a_node_cannot_state_its_time_away) {
    testbed *w = new_testbed();
    chain_fixture r;
    fake_node *fake = open_behind_fake(&r, w, FAKE_BOASTS, false);
    int64_t began_us = sn_now_us();
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 1, 1), SN_STOP, "its numbers are wrong");
    uint64_t passed_us = (uint64_t)(sn_now_us() - began_us);
    const sn_hop_report *report = &r.chain->hops[0].report;
    cr_expect_leq(report->compute_us, passed_us);
    cr_expect_geq(report->queue_us, FAKE_LATER_MS * 1000);
    const sn_peer_stat *known = sn_peer_stats_find(r.chain->peer_stats, r.chain->hops[0].remote.node);
    cr_assert(known);
    cr_expect(known->block_ns >= 0 && known->block_ns <= (int64_t)passed_us * 1000);
    cr_expect_geq(known->queue_us, FAKE_LATER_MS * 1000);
    chain_fixture_close(&r);
    fake_node_free(&fake);
    testbed_free(&w);
}

static void expect_error_of(fake_node_fault fault, const char *part) {
    testbed *w = new_testbed();
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    fake_node *faulty = fake_node_new(w, "faulty:1", 2, 4, fault);
    int64_t began = sn_now_us();
    char what[16];
    snprintf(what, sizeof what, "fault %d", fault);
    sn_status status = open_with(&r, w, (sn_chain_options){0}, faulty);
    if (fault < FAKE_STEP_FAULTS) cr_assert_eq(status, SN_OK, "fault %d: %s", fault, r.err.text);
    if (fault < FAKE_STEP_FAULTS) status = chain_fixture_try_steps(&r, 0, 10, 10);
    expect_error_soon(status, &r, began, what);
    if (part) cr_expect(strstr(r.err.text, part), "fault %d: %s", fault, r.err.text);
    chain_fixture_close(&r);
    fake_node_free(&faulty);
    testbed_free(&w);
}

Test(failover, reports_a_malformed_reply_when_there_is_no_other_node) {
    static const char *const parts[FAKE_FAULTS] = {[FAKE_SILENT] = "no answer within",
                                                   [FAKE_OTHER_KIND] = "answered close_reply where step_reply was due",
                                                   [FAKE_WRONG_WIDTH] = "another shape",
                                                   [FAKE_WRONG_ROWS] = "another shape",
                                                   [FAKE_OTHER_DTYPE] = "another shape",
                                                   [FAKE_NANS] = "not finite",
                                                   [FAKE_HUGE] = "far too large",
                                                   [FAKE_WRONG_TIMELINE] = "another timeline",
                                                   [FAKE_NO_TIMELINE] = "without its timeline",
                                                   [FAKE_OTHER_ID] = "another node answered",
                                                   [FAKE_NO_TRACE] = "over 0 nodes, not 1",
                                                   [FAKE_LONG_TRACE] = "over 2 nodes, not 1"};
    for (int fault = 0; fault < FAKE_FAULTS; fault++) {
        bool error = fault >= FAKE_ERROR_OK && fault <= FAKE_ERROR_STOP;
        expect_error_of((fake_node_fault)fault, error ? "the fake node refuses" : parts[fault]);
    }
}

/* Nodes that are there and fail are counted. */
Test(failover, gives_up_after_the_configured_number_of_failures) {
    enum { FAKE_NODES = 6 };
    const int retries[] = {0, 2};
    for (int i = 0; i < 2; i++) {
        testbed *w = new_testbed();
        chain_fixture r;
        fake_node *fakes[FAKE_NODES];
        int asked = 0;
        cluster_add(w->cluster, 0, 2);
        for (int k = 0; k < FAKE_NODES; k++) {
            char address[32];
            snprintf(address, sizeof address, "faulty%d:1", k);
            fakes[k] = fake_node_new(w, address, 2, 4, FAKE_NANS);
        }
        cr_assert_eq(open_with(&r, w,
                               (sn_chain_options){.limits = {.timeout_ms = TIMEOUT_MS,
                                                             .max_retries = retries[i],
                                                             .prefill_depth = SN_PREFILL_DEPTH_MAX}},
                               fakes[0]),
                     SN_OK, "%s", r.err.text);
        for (int k = 1; k < FAKE_NODES; k++) fake_node_announce_to(fakes[k], r.link);
        cr_expect_neq(chain_fixture_try_steps(&r, 0, 10, 10), SN_OK);
        for (int k = 0; k < FAKE_NODES; k++) asked += fake_node_requests(fakes[k]) > 0;
        cr_expect_eq(asked, 1 + retries[i], "%d nodes were tried", asked);
        chain_fixture_close(&r);
        for (int k = 0; k < FAKE_NODES; k++) fake_node_free(&fakes[k]);
        testbed_free(&w);
    }
}

/* A node fails in the middle of a text; each one that takes its place fails in the replay. */
Test(failover, gives_up_after_the_configured_number_of_failed_replays) {
    enum { FAKE_NODES = 8 };
    const int retries[] = {1, 3};
    for (int i = 0; i < 2; i++) {
        testbed *w = testbed_of_halves(0);
        chain_fixture r;
        fake_node *fakes[FAKE_NODES];
        int asked = 0;
        cr_assert_eq(open_with(&r, w,
                               (sn_chain_options){.limits = {.timeout_ms = TIMEOUT_MS,
                                                             .max_retries = retries[i],
                                                             .prefill_depth = SN_PREFILL_DEPTH_MAX}},
                               NULL),
                     SN_OK, "%s", r.err.text);
        chain_fixture_steps(&r, 0, 20, 20);
        for (int k = 0; k < FAKE_NODES; k++) {
            char address[32];
            snprintf(address, sizeof address, "faulty%d:1", k);
            fakes[k] = fake_node_new(w, address, 2, 4, FAKE_NANS);
            fake_node_announce_to(fakes[k], r.link);
        }
        cluster_cut_off(w->cluster, 1);
        cr_expect_eq(chain_fixture_try_steps(&r, 20, 21, 1), SN_RETRY);
        for (int k = 0; k < FAKE_NODES; k++) asked += fake_node_requests(fakes[k]) > 0;
        cr_expect_eq(asked, retries[i], "%d nodes were tried", asked);
        chain_fixture_close(&r);
        for (int k = 0; k < FAKE_NODES; k++) fake_node_free(&fakes[k]);
        testbed_free(&w);
    }
}

/* -- other weights */

Test(failover, a_client_with_the_file_uses_only_nodes_with_its_weights) {
    testbed *w = new_testbed();
    chain_fixture r;
    char *other = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .seed = 2});
    cluster_add(w->cluster, 0, 2);
    cluster_add_of(w->cluster, other, 2, 4);
    int64_t began = sn_now_us();
    sn_status status = open_with(&r, w, (sn_chain_options){0}, NULL);
    expect_error_soon(status, &r, began, "other weights only");
    cr_expect(strstr(r.err.text, "no node serves blocks 2:4"), "%s", r.err.text);
    chain_fixture_close(&r);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 40, 10), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
    tiny_model_remove(&other);
}

/* -- rewinds */

Test(failover, rewinds_with_every_chain_mode_and_after_failures) {
    for (int mode = 0; mode < 6; mode++) {
        testbed *w = testbed_of_halves(0);
        chain_fixture r;
        bool push = mode % 2, dies = mode >= 4;
        cluster_add(w->cluster, 2, 3);
        cluster_add(w->cluster, 3, 4);
        sn_device *device = NULL;
        sn_device_options how = {.threads = 1};
        sn_chain_options options = {.routing.push = push};
        if (mode == 2 || mode == 3) { /* some blocks are local, in the middle of the route */
            REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
            options.local = (sn_chain_local){.device = device, .end = 1, .kv_memory = 1 << 20};
        }
        cr_assert_eq(open_with(&r, w, options, NULL), SN_OK, "%s", r.err.text);
        if (dies) cluster_cut_off_at_step(w->cluster, 1, 3);
        cr_expect_eq(chain_fixture_try_steps(&r, 0, 70, 16), SN_OK, "%s", r.err.text);
        const int to[][2] = {{48, 80}, {33, 60}, {59, 61}, {0, 64}, {32, 96}, {1, 9}};
        for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
            cr_expect_eq(chain_fixture_try_steps(&r, to[i][0], to[i][1], 11), SN_OK, "mode %d: %s", mode, r.err.text);
        }
        chain_fixture_close(&r);
        sn_device_close(&device);
        testbed_free(&w);
    }
}

Test(failover, a_failed_rewind_drops_the_tokens_it_replaced) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_assert_eq(chain_fixture_try_steps(&r, 0, 50, 50), SN_OK);
    cluster_cut_off(w->cluster, 1);
    size_t row = (size_t)w->n_embd;
    float other[5 * 64], out[5 * 64];
    memcpy(other, w->inputs, sizeof other);
    cr_expect_eq(sn_chain_step(r.chain, 20, 5, other, out, &r.err), SN_RETRY);
    cr_expect_eq(sn_chain_length(r.chain), 20);
    cr_expect_eq(sn_chain_step(r.chain, 50, 1, w->inputs + 50 * row, out, &r.err), SN_REFUSED);
    cluster_add(w->cluster, 2, 4); /* another node joins, and the chain replays the session to it */
    cr_expect_eq(chain_fixture_try_steps(&r, 20, 60, 8), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* -- the network */

/* What this test's filter does to the messages of a hub, and what it counted. Protected by the hub's lock. */
typedef struct message_filter {
    bool drop_open_reply; /* OPEN_REPLY of node 1 is lost */
    bool drop_pushes;     /* steps between nodes are lost */
    int drop_every_nth;   /* every n-th message to or from a node is lost; 0: none */
    int n, pushes;
    uint8_t session[SN_SESSION_ID_SIZE]; /* newest session opened at node 1 */
} message_filter;

static sn_hub_action filter_message(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    message_filter *m = ctx;
    bool between_nodes = *from && *to;
    if (msg->kind == SN_MSG_OPEN && !strcmp(to, "node1:1")) memcpy(m->session, msg->open.session, sizeof m->session);
    if (between_nodes && msg->kind == SN_MSG_STEP) m->pushes++;
    if (between_nodes && msg->kind == SN_MSG_STEP && m->drop_pushes) return SN_DROP;
    if (m->drop_open_reply && msg->kind == SN_MSG_OPEN_REPLY && !strcmp(from, "node1:1")) return SN_DROP;
    bool counts = msg->kind == SN_MSG_STEP || msg->kind == SN_MSG_STEP_REPLY;
    return counts && m->drop_every_nth && ++m->n % m->drop_every_nth == 0 ? SN_DROP : SN_DELIVER;
}

Test(failover, nodes_that_do_not_reach_each_other_go_through_the_client) {
    testbed *w = testbed_of_halves(0);
    message_filter m = {.drop_pushes = true};
    chain_fixture r;
    sn_hub_set_filter(cluster_hub(w->cluster), filter_message, &m);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.routing.push = true}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 60, 10), SN_OK, "%s", r.err.text);
    cr_expect_eq(m.pushes, 1, "%d pushes were tried", m.pushes);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    sn_hop_report hops[4];
    cr_expect_eq(sn_chain_hops(r.chain, hops, 4), 2);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Closes the client's session at a node without the client's knowledge, as if the node had been restarted. */
static void forget_session(testbed *w, int number, const sn_identity *identity, const message_filter *m) {
    node_client t = {0};
    const sn_node *node = cluster_node(w->cluster, number);
    sn_msg *msg = NULL;
    REQUIRE(sn_transport_memory_new(cluster_hub(w->cluster), identity, &t.transport, &err));
    REQUIRE(sn_transport_dial(t.transport, sn_node_address(node), sn_node_curve_key(node), &t.node, &err));
    REQUIRE(sn_msg_new(SN_MSG_CLOSE, 0, &msg, &err));
    memcpy(msg->close.session, m->session, sizeof m->session);
    sn_msg *answer = node_client_request(&t, &msg);
    if (answer->kind != SN_MSG_CLOSE_REPLY) abort();
    sn_msg_free(&answer);
    sn_transport_free(&t.transport);
}

/* Opens a chain over all nodes with an identity that the test knows, and notes its sessions. */
static void open_as(chain_fixture *r, testbed *w, bool push, sn_identity *identity, message_filter *m) {
    sn_hub_set_filter(cluster_hub(w->cluster), filter_message, m);
    sn_transport *transport = cluster_transport(w->cluster, identity);
    sn_seed seeds[4];
    int n = cluster_count(w->cluster);
    for (int i = 0; i < n; i++) {
        const sn_node *node = cluster_node(w->cluster, i);
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", sn_node_address(node));
        memcpy(seeds[i].curve_key, sn_node_curve_key(node), SN_KEY_SIZE);
    }
    REQUIRE(sn_link_open_transport(&transport, seeds, (size_t)n, &r->link, &err));
    REQUIRE(sn_model_open(w->path, &r->model, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = r->link;
    options.limits.timeout_ms = TIMEOUT_MS;
    options.routing.push = push;
    REQUIRE(sn_chain_open(r->model, &options, &r->chain, &err));
}

Test(failover, a_forgotten_session_is_replayed) {
    for (int push = 0; push < 2; push++) {
        testbed *w = testbed_of_halves(0);
        message_filter m = {0};
        chain_fixture r = {.w = w};
        sn_identity identity;
        open_as(&r, w, push, &identity, &m);
        for (int round = 0; round < 3; round++) {
            cr_expect_eq(chain_fixture_try_steps(&r, 30 * round, 30 * (round + 1), 10), SN_OK, "%s", r.err.text);
            forget_session(w, 1, &identity, &m);
        }
        cr_expect_eq(sn_chain_failovers(r.chain), 2);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

/* Each loss costs a replay of all tokens: a node that loses the session again and again is left, where another one
 * serves its blocks. */
Test(failover, a_node_that_forgets_sessions_again_and_again_is_left) {
    testbed *w = testbed_of_halves(1);
    message_filter m = {0};
    chain_fixture r = {.w = w};
    sn_identity identity;
    open_as(&r, w, false, &identity, &m);
    int forgot = cluster_node_of_block(r.chain, 2);
    for (int at = 0; at < 12; at++) {
        cr_expect_eq(chain_fixture_try_steps(&r, at, at + 1, 1), SN_OK, "%s", r.err.text);
        memcpy(m.session, r.chain->hops[r.chain->n_hops - 1].remote.session, sizeof m.session);
        if (cluster_node_of_block(r.chain, 2) == forgot) forget_session(w, forgot, &identity, &m);
    }
    cr_expect_eq(sn_chain_failovers(r.chain), SN_LOSSES_MAX + 1);
    cr_expect_neq(cluster_node_of_block(r.chain, 2), forgot);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(failover, a_session_goes_on_over_another_connection) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_assert_eq(chain_fixture_try_steps(&r, 0, 30, 10), SN_OK, "%s", r.err.text);
    for (size_t i = 0; i < r.chain->n_hops; i++) r.chain->hops[i].remote.peer = 1 << 20; /* no connection */
    cr_expect_eq(chain_fixture_try_steps(&r, 30, 60, 1), SN_OK, "%s", r.err.text);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "the sessions were replaced");
    cluster_restart(w->cluster, 1); /* it knows the session no longer */
    cr_expect_eq(chain_fixture_try_steps(&r, 60, 90, 1), SN_OK, "%s", r.err.text);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Sessions that are told where to go on are busy with a step for some seconds more. */
static sn_hub_action be_busy(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const int64_t *until_us = ctx;
    (void)from, (void)to;
    sn_msg *m = (sn_msg *)(uintptr_t)msg;
    if (m->kind != SN_MSG_RESUME_REPLY || sn_now_us() > *until_us) return SN_DELIVER;
    m->kind = SN_MSG_ERROR;
    m->error = (sn_msg_error){.status = SN_RETRY, .text = "the session is busy: wait a moment"};
    return SN_DELIVER;
}

Test(failover, a_session_that_is_busy_after_a_cancelled_call_is_waited_for) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_assert_eq(chain_fixture_try_steps(&r, 0, 30, 10), SN_OK, "%s", r.err.text);
    int64_t until_us = sn_now_us() + 3000000;
    sn_hub_set_filter(cluster_hub(w->cluster), be_busy, &until_us);
    r.chain->unsettled = true;
    cr_expect_eq(chain_fixture_try_steps(&r, 30, 60, 10), SN_OK, "%s", r.err.text);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "%d sessions were replaced", (int)sn_chain_failovers(r.chain));
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Nodes state limits that no node has. */
static sn_hub_action exaggerate(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)from, (void)to;
    sn_msg *m = (sn_msg *)(uintptr_t)msg;
    if (m->kind == SN_MSG_OPEN_REPLY) m->open_reply.step_tokens_max = m->open_reply.prefill_depth_max = UINT64_MAX;
    return SN_DELIVER;
}

Test(failover, what_nodes_state_is_believed_within_what_the_protocol_allows) {
    testbed *w = testbed_of_halves(0);
    chain_fixture r;
    sn_hub_set_filter(cluster_hub(w->cluster), exaggerate, NULL);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    for (size_t i = 0; i < r.chain->n_hops; i++) {
        const sn_hop_remote *remote = &r.chain->hops[i].remote;
        cr_expect(remote->step_tokens_max == SN_SPAN_ROWS_MAX && remote->prefill_depth_max == SN_PREFILL_DEPTH_MAX);
    }
    cr_expect_eq(chain_fixture_try_steps(&r, 0, 30, 10), SN_OK, "%s", r.err.text);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(failover, a_node_that_loses_connections_again_and_again_is_left) {
    testbed *w = testbed_of_halves(1);
    chain_fixture r;
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    int loser = cluster_node_of_block(r.chain, 2);
    for (int at = 0; at < 12; at++) {
        cr_expect_eq(chain_fixture_try_steps(&r, at, at + 1, 1), SN_OK, "%s", r.err.text);
        if (at < SN_LOSSES_MAX + 1) cr_expect_eq(cluster_node_of_block(r.chain, 2), loser);
        if (cluster_node_of_block(r.chain, 2) == loser) r.chain->hops[r.chain->n_hops - 1].remote.peer = 1 << 20;
    }
    cr_expect_neq(cluster_node_of_block(r.chain, 2), loser);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(failover, lost_messages_change_no_bit) {
    for (int push = 0; push < 2; push++) {
        testbed *w = new_testbed();
        message_filter m = {.drop_every_nth = 10};
        chain_fixture r;
        for (int i = 0; i < 4; i++) {
            cluster_add(w->cluster, 0, 2);
            cluster_add(w->cluster, 2, 4);
        }
        sn_hub_set_filter(cluster_hub(w->cluster), filter_message, &m);
        cr_assert_eq(
            open_with(&r, w,
                      (sn_chain_options){
                          .limits = {.timeout_ms = TIMEOUT_MS, .max_retries = 8, .prefill_depth = SN_PREFILL_DEPTH_MAX},
                          .routing.push = push},
                      NULL),
            SN_OK, "%s", r.err.text);
        int tries = 0;
        for (int at = 0; at < 90; at = sn_chain_length(r.chain)) { /* retries as the error asks for */
            cr_assert_lt(tries++, 20, "%s", r.err.text);
            sn_status status = chain_fixture_try_steps(&r, at, 90, 6);
            cr_expect(status == SN_OK || status == SN_RETRY, "%s", r.err.text);
        }
        cr_expect_geq(sn_chain_failovers(r.chain), 2);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

Test(failover, a_session_whose_open_reply_was_lost_is_closed) {
    testbed *w = testbed_of_halves(0);
    message_filter m = {.drop_open_reply = true};
    chain_fixture r;
    sn_hub_set_filter(cluster_hub(w->cluster), filter_message, &m);
    int64_t began = sn_now_us();
    expect_error_soon(open_with(&r, w, (sn_chain_options){0}, NULL), &r, began, "opened unheard");
    for (int node = 0; node < 2; node++) {
        node_client *t = node_client_new(w, node);
        int64_t deadline = sn_now_us() + 5000000;
        while (node_client_status(t).sessions && sn_now_us() < deadline) sn_sleep_us(2000);
        cr_expect_eq(node_client_status(t).sessions, 0, "node %d keeps the session", node);
        node_client_free(&t);
    }
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(failover, refuses_to_cut_more_blocks_than_a_route_has_hops) {
    chain_fixture r = {0};
    sn_device *device = NULL;
    sn_device_options how = {.threads = 1};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_blocks = SN_HOPS_MAX + 1, .n_ff = 32});
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
    REQUIRE(sn_model_open(path, &r.model, &err));
    sn_chain_options options = {.local = {.device = device, .end = SN_HOPS_MAX + 1, .kv_memory = 16 << 20},
                                .routing.every_block = true};
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_REFUSED);
    cr_expect(strstr(r.err.text, "65 blocks cannot be cut"), "%s", r.err.text);
    cr_expect_null(r.chain);
    options.routing.every_block = false;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_OK, "%s", r.err.text);
    chain_fixture_close(&r);
    sn_device_close(&device);
    tiny_model_remove(&path);
}
