/* Asking many nodes for their status and for the adapters that they publish, beside nodes that do not answer. */
#include "base/clock.h"
#include "client/api/status.h"
#include "client/net/adapter_lookup.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SILENT = 5, STRANGERS = 300, TIMEOUT_MS = 10000 };

typedef struct fixture {
    testbed *w;
    fake_node *silent[SILENT]; /* answer for their status only */
    sn_link *link;
} fixture;

static void fixture_begin(fixture *r) {
    const cluster_options options = {.tune_memory = 64 << 20, .adapters = SN_FIXTURES "/peft/lora"};
    char address[16];
    r->w = testbed_new(&options);
    cluster_add(r->w->cluster, 2, 0); /* behind the others in a directory, which is in order of the first block */
    r->link = cluster_link(r->w->cluster);
    REQUIRE(sn_link_discover(r->link, NULL, TIMEOUT_MS, &err));
    for (int i = 0; i < SILENT; i++) {
        snprintf(address, sizeof address, "silent:%d", i + 1);
        r->silent[i] = fake_node_new(r->w, address, 0, r->w->n_blocks, FAKE_OTHER_KIND);
        fake_node_announce_to(r->silent[i], r->link);
    }
}

static void fixture_end(fixture *r) {
    sn_link_close(&r->link);
    for (int i = 0; i < SILENT; i++) fake_node_free(&r->silent[i]);
    testbed_free(&r->w);
}

Test(node_query, finds_a_name_beside_nodes_that_never_say_theirs) {
    fixture r;
    sn_hash hash;
    sn_err why;
    fixture_begin(&r);
    int64_t began_us = sn_now_us();
    cr_expect_eq(sn_adapter_lookup(r.link, &r.w->model, "end", TIMEOUT_MS, &hash, &why), SN_OK, "%s", why.text);
    cr_expect_lt(sn_now_us() - began_us, 4000000, "one node is asked after the other");
    cr_expect_eq(sn_adapter_lookup(r.link, &r.w->model, "stripes", TIMEOUT_MS, &hash, &why), SN_RETRY);
    cr_expect(strstr(why.text, "no node publishes an adapter stripes"), "%s", why.text);
    fixture_end(&r);
}

/* -- a transport that measures round trips while it connects, to machines whose nodes say nothing */

typedef struct far_transport {
    sn_transport base;
    sn_transport *inner;
    int64_t round_trip_us;
} far_transport;
static sn_transport *inner_of(sn_transport *t) { return ((far_transport *)t)->inner; }
static sn_status far_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                          sn_err *err) {
    return sn_transport_dial(inner_of(t), address, key, out, err);
}
static sn_status far_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    if ((*msg)->kind != SN_MSG_STATUS) return sn_transport_send(inner_of(t), peer, msg, err);
    sn_msg_free(msg);
    return SN_OK;
}
static sn_status far_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    return sn_transport_recv(inner_of(t), deadline_us, out, err);
}
static void far_hang_up(sn_transport *t, sn_peer peer) { sn_transport_hang_up(inner_of(t), peer); }
static void far_wake(sn_transport *t) { sn_transport_wake(inner_of(t)); }
static void far_free(sn_transport *t) { sn_transport_free(&((far_transport *)t)->inner); }
static int64_t far_round_trip_us(sn_transport *t, sn_peer peer) {
    return peer ? ((far_transport *)t)->round_trip_us : 0;
}
static const sn_transport_ops far_ops = {.dial = far_dial,
                                         .send = far_send,
                                         .recv = far_recv,
                                         .hang_up = far_hang_up,
                                         .wake = far_wake,
                                         .free = far_free,
                                         .round_trip_us = far_round_trip_us};

/* A new client measures the nodes that it may use while it connects to them, without a message to each. */
Test(node_query, a_connection_measures_a_node_that_is_far) {
    /* 1: measured so. 2: near, it has to answer. 3: over a connection of before. 4: any machine can be said to be one.
     */
    for (int k = 0; k < 5; k++) {
        const int64_t round_trip_us = k == 2 ? 300 : 100000;
        const bool by_connection = k > 0;
        sn_peer peer;
        testbed *w = testbed_new(&(cluster_options){0});
        sn_identity identity;
        sn_seed seed = {{0}, {0}};
        far_transport far = {
            .base.ops = &far_ops, .inner = cluster_transport(w->cluster, &identity), .round_trip_us = round_trip_us};
        sn_transport *t = &far.base;
        sn_link *link;
        sn_node_reply reply;
        sn_buf sealed;
        far.base.dials_names = far.inner->dials_names;
        cluster_add(w->cluster, 0, w->n_blocks);
        snprintf(seed.address, sizeof seed.address, "%s", sn_node_address(cluster_node(w->cluster, 0)));
        memcpy(seed.curve_key, sn_node_curve_key(cluster_node(w->cluster, 0)), SN_KEY_SIZE);
        REQUIRE(sn_link_open_transport(&t, &seed, 1, &link, &err));
        REQUIRE(sn_link_discover(link, NULL, TIMEOUT_MS, &err));
        sn_directory *directory = sn_link_directory(link);
        REQUIRE(sn_identity_new(&identity, &err));
        make_announcement_of(w, &identity, "nowhere:1", 0, w->n_blocks, 0, &sealed);
        REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, sn_unix_ms(), &err));
        const sn_announcement *node =
            sn_directory_find(directory, k == 4 ? identity.id : sn_node_id(cluster_node(w->cluster, 0)));
        REQUIRE(sn_link_dial(link, node->address, node->curve_key, &peer, &err));
        if (k != 3) sn_link_hang_up(link, peer);
        const sn_link_query query = {
            .nodes = &node, .n = 1, .status = true, .by_connection = by_connection, .timeout_ms = k == 1 ? 20000 : 200};
        REQUIRE(sn_link_query_nodes(link, &query, &reply, &err));
        cr_expect_eq(reply.answered, k == 1);
        if (k == 1) cr_expect_eq(reply.rtt_us, round_trip_us);
        sn_buf_fini(&sealed);
        sn_link_close(&link);
        testbed_free(&w);
    }
}

Test(node_query, ends_when_the_time_is_over) {
    fixture r;
    sn_hash hash;
    sn_err why;
    fixture_begin(&r);
    int64_t began_us = sn_now_us();
    cr_expect_eq(sn_adapter_lookup(r.link, &r.w->model, "end", 1000, &hash, &why), SN_OK, "%s", why.text);
    cr_expect_leq(sn_now_us() - began_us, 1200000);
    fixture_end(&r);
}

Test(node_query, strangers_do_not_crowd_out_a_proven_node) {
    fixture r;
    sn_hash hash;
    sn_err why;
    fixture_begin(&r);
    sn_link *link = cluster_link(r.w->cluster);
    for (int i = 0; i < STRANGERS; i++) {
        sn_identity identity;
        sn_buf sealed;
        REQUIRE(sn_identity_new(&identity, &err));
        make_announcement_of(r.w, &identity, "nowhere:1", 0, r.w->n_blocks, 0, &sealed);
        REQUIRE(sn_directory_add(sn_link_directory(link), sealed.data, sealed.len, sn_unix_ms(), &err));
        sn_buf_fini(&sealed);
    }
    cr_expect_eq(sn_adapter_lookup(link, &r.w->model, "end", TIMEOUT_MS, &hash, &why), SN_OK, "%s", why.text);
    cr_expect_gt(sn_directory_count(sn_link_directory(link)), STRANGERS);
    sn_link_close(&link);
    fixture_end(&r);
}

Test(node_query, the_status_of_a_swarm_takes_two_seconds_whoever_is_silent) {
    fixture r;
    sn_status_row *rows = NULL;
    size_t n = 0, answered = 0, adapters = 0;
    fixture_begin(&r);
    int64_t began_us = sn_now_us();
    REQUIRE(sn_status_query(r.link, &rows, &n, &err));
    cr_expect_leq(sn_now_us() - began_us, 2200000, "one node is asked after the other");
    for (size_t i = 0; i < n; i++) {
        answered += rows[i].reply.answered;
        adapters += rows[i].reply.adapters ? rows[i].reply.adapters->adapters_reply.n_adapters : 0;
    }
    cr_expect_eq(n, SILENT + 1);
    cr_expect_eq(answered, SILENT + 1, "a node counts as answering when its adapters are not known");
    cr_expect_eq(adapters, 2, "begin and end");
    sn_status_free(&rows, n);
    fixture_end(&r);
}

static sn_hub_action answer_something_else(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)to;
    if (msg->kind == SN_MSG_STATUS_REPLY && !strcmp(from, "silent:1")) ((sn_msg *)(uintptr_t)msg)->kind = SN_MSG_PONG;
    return SN_DELIVER;
}

Test(node_query, a_message_of_another_kind_is_no_answer) {
    fixture r;
    sn_status_row *rows = NULL;
    size_t n = 0, other = 0;
    fixture_begin(&r);
    sn_hub_set_filter(cluster_hub(r.w->cluster), answer_something_else, NULL);
    REQUIRE(sn_status_query(r.link, &rows, &n, &err));
    for (size_t i = 0; i < n; i++)
        other += !rows[i].reply.answered && strstr(rows[i].reply.error, "its reply is of another kind");
    cr_expect_eq(other, 1);
    sn_hub_set_filter(cluster_hub(r.w->cluster), NULL, NULL);
    sn_status_free(&rows, n);
    fixture_end(&r);
}

/* Puts n nodes into the link's directory that can be dialled and do not answer: no thread receives what comes to them.
 */
static void know_deaf_nodes(const testbed *w, sn_link *link, sn_transport **deaf, int n) {
    for (int i = 0; i < n; i++) {
        sn_identity identity;
        sn_buf sealed;
        char address[16], bound[SN_ADDRESS_MAX + 1];
        deaf[i] = cluster_transport(w->cluster, &identity);
        snprintf(address, sizeof address, "deaf:%d", i + 1);
        REQUIRE(sn_transport_listen(deaf[i], address, bound, &err));
        make_announcement_of(w, &identity, address, 0, w->n_blocks, 0, &sealed);
        REQUIRE(sn_directory_add(sn_link_directory(link), sealed.data, sealed.len, sn_unix_ms(), &err));
        sn_buf_fini(&sealed);
    }
}

Test(node_query, a_status_asks_proven_nodes_first_and_keeps_no_connections) {
    enum { DEAF = SN_LINK_ASKED_AT_ONCE + 20 };
    static sn_transport *deaf[DEAF];
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    sn_status_row *rows = NULL;
    size_t n = 0, answered = 0, unasked = 0;
    cluster_add(w->cluster, 2, 0);
    sn_link *link = cluster_link(w->cluster);
    REQUIRE(sn_link_discover(link, NULL, TIMEOUT_MS, &err));
    size_t connections = sn_link_connections(link);
    know_deaf_nodes(w, link, deaf, DEAF);
    REQUIRE(sn_status_query(link, &rows, &n, &err));
    cr_expect_eq(n, DEAF + 1);
    for (size_t i = 0; i < n; i++) {
        answered += rows[i].reply.answered && rows[i].announcement.first_block == 2;
        unasked += strstr(rows[i].reply.error, "it was not asked") != NULL;
    }
    cr_expect_eq(answered, 1);
    cr_expect_eq(unasked, DEAF - SN_LINK_ASKED_AT_ONCE);
    cr_expect_eq(sn_link_connections(link), connections);
    sn_status_free(&rows, n);
    sn_link_close(&link);
    for (int i = 0; i < DEAF; i++) sn_transport_free(&deaf[i]);
    testbed_free(&w);
}

/* As a session does that measures round trips again and again, to others each time. */
Test(node_query, one_query_after_the_other_keeps_few_connections) {
    enum { DEAF = 3 * SN_LINK_ASKED_AT_ONCE, AT_ONCE = 32 };
    static sn_transport *deaf[DEAF];
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    const sn_announcement *nodes[AT_ONCE];
    sn_node_reply replies[AT_ONCE];
    cluster_add(w->cluster, 0, 0);
    sn_link *link = cluster_link(w->cluster);
    REQUIRE(sn_link_discover(link, NULL, TIMEOUT_MS, &err));
    know_deaf_nodes(w, link, deaf, DEAF);
    for (size_t at = 0; at < DEAF; at += AT_ONCE) {
        for (size_t i = 0; i < AT_ONCE; i++) nodes[i] = sn_directory_at(sn_link_directory(link), at + i);
        const sn_link_query query = {nodes, AT_ONCE, .status = true, .timeout_ms = 500};
        REQUIRE(sn_link_query_nodes(link, &query, replies, &err));
        if (!at) cr_expect_gt(sn_link_connections(link), AT_ONCE - 2, "few are kept: they may be used next");
        cr_expect_leq(sn_link_connections(link), SN_LINK_ASKED_AT_ONCE);
    }
    sn_link_close(&link);
    for (int i = 0; i < DEAF; i++) sn_transport_free(&deaf[i]);
    testbed_free(&w);
}

Test(node_query, a_status_shows_the_coverage_of_few_models_those_that_answer_first) {
    enum { ROWS = 40, SHOWN = 16 };
    sn_status_row *rows = calloc(ROWS, sizeof *rows);
    cr_assert(rows);
    for (int i = 0; i < ROWS; i++) {
        sn_announcement *a = &rows[i].announcement;
        a->model[0] = (uint8_t)(i < ROWS - 2 ? i : 200); /* two nodes of one model are the last ones */
        a->state = SN_NODE_ONLINE;
        a->end_block = a->n_blocks = 4;
        rows[i].reply.answered = i == ROWS - 1;
    }
    json_t *status = sn_status_json(rows, ROWS), *coverage = json_object_get(status, "coverage");
    cr_expect_eq(json_array_size(json_object_get(status, "nodes")), ROWS);
    cr_expect_eq(json_array_size(coverage), SHOWN);
    const char *first = json_string_value(json_object_get(json_array_get(coverage, 0), "model"));
    cr_expect(first && !strncmp(first, "c8", 2), "%s", first);
    json_decref(status);
    free(rows);
}
