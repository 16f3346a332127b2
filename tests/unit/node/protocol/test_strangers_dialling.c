/* Where strangers can make a node dial, and what such connections are worth (docs/SECURITY.md). */
#include "base/clock.h"
#include "node/protocol/protocol_private.h" /* private: asks a node for an answer */
#include "tests/support/fake_node.h"
#include "tests/support/invented_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many messages have arrived at an invented node: a node that was not dialled cannot have sent one. */
static int pushes_to(invented_node *node) {
    sn_event event;
    int n = 0;
    for (;; n += event.msg != NULL, sn_msg_free(&event.msg)) {
        REQUIRE(sn_transport_recv(node->transport, 0, &event, &err));
        if (!event.peer) return n;
    }
}

static sn_msg *open_with_next(node_session *p, const sn_buf *sealed) {
    sn_msg *msg = node_session_open_message(p);
    const sn_blob blob = {sealed->data, sealed->len};
    REQUIRE(sn_announcement_list(&blob, &msg->open.next, &msg->open.n_next, &err));
    return msg;
}

static sn_msg *step_with_route(node_session *p, int position, int n) {
    sn_msg *msg = node_session_step_message(p, position, n);
    REQUIRE(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = 1;
    sn_random(msg->step.route[0].session, SN_SESSION_ID_SIZE);
    return msg;
}

Test(strangers_dialling, a_next_node_whose_address_is_a_name_is_refused_at_once) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    b.transport->dials_names = false; /* as that of every node is, but not that of a test's hub */
    invented_node named = invented_node_new(&b, 1);
    sn_buf sealed = invented_node_announce(&b, &named, b.unix_ms + 10000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, open_with_next(&p, &sealed), T0), SN_REFUSED, "has a name"));
    sn_buf_fini(&sealed);
    free(p.timeline);
    sn_transport_free(&named.transport);
    protocol_fixture_end(&b);
}

Test(strangers_dialling, a_session_pushes_only_to_the_node_that_it_was_opened_with) {
    protocol_fixture b;
    node_session p, plain;
    protocol_fixture_begin(&b);
    invented_node node = invented_node_new(&b, 0);
    sn_buf live = invented_node_announce(&b, &node, b.unix_ms + 60000),
           late = invented_node_announce(&b, &node, b.unix_ms - 1), forged = live;
    node_session_init(&p, b.w, &b.client, 0, 4);
    sn_protocol_tick(b.protocol, T0, b.unix_ms);
    cr_expect(is_refusal(protocol_fixture_request(&b, open_with_next(&p, &late), T0), SN_RETRY, "has expired"));
    forged.data = malloc(live.len);
    memcpy(forged.data, live.data, live.len);
    forged.data[live.len - 1] ^= 1;
    cr_expect(is_refusal(protocol_fixture_request(&b, open_with_next(&p, &forged), T0), SN_RETRY, "has expired"),
              "a forged announcement counts");
    protocol_fixture_open(&b, &plain, T0);
    cr_expect(is_refusal(protocol_fixture_request(&b, step_with_route(&plain, 0, 3), T0), SN_REFUSED,
                         "opened without a next node"));
    cr_expect_eq(pushes_to(&node), 0);
    cr_expect(is_opened(protocol_fixture_request(&b, open_with_next(&p, &live), T0)));
    cr_expect_null(protocol_fixture_request(&b, step_with_route(&p, 0, 3), T0));
    cr_expect_eq(pushes_to(&node), 1);
    free(forged.data), sn_buf_fini(&live), sn_buf_fini(&late);
    free(p.timeline), free(plain.timeline);
    sn_transport_free(&node.transport);
    protocol_fixture_end(&b);
}

Test(strangers_dialling, a_session_without_a_predecessor_takes_no_step_of_a_key_of_zeros) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    sn_event event = {.msg = node_session_step_message(&p, 0, 3), .peer = 1000000};
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_expect_eq(b.n_waiting, 0, "a step of a stranger is computed");
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* Such a connection has no rate: a node that was dialled because it was announced gets no answers over it. */
Test(strangers_dialling, a_node_that_was_dialled_asks_nothing_over_that_connection) {
    protocol_fixture b;
    node_session p;
    sn_event push = {0}, answer = {0};
    sn_msg *question = NULL;
    protocol_fixture_begin(&b);
    invented_node node = invented_node_new(&b, 0);
    sn_buf live = invented_node_announce(&b, &node, b.unix_ms + 60000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_expect(is_opened(protocol_fixture_request(&b, open_with_next(&p, &live), T0)));
    cr_expect_null(protocol_fixture_request(&b, step_with_route(&p, 0, 3), T0));
    REQUIRE(sn_transport_recv(node.transport, 0, &push, &err));
    cr_assert(push.msg && push.msg->kind == SN_MSG_STEP && !push.dialled);
    REQUIRE(sn_msg_new(SN_MSG_STATUS, 1, &question, &err));
    REQUIRE(sn_transport_send(node.transport, push.peer, &question, &err));
    protocol_fixture_read(&b, T0);
    REQUIRE(sn_transport_recv(node.transport, 0, &answer, &err));
    cr_expect_null(answer.msg, "it was answered");
    sn_msg_free(&push.msg);
    sn_msg_free(&answer.msg);
    sn_buf_fini(&live);
    free(p.timeline);
    sn_transport_free(&node.transport);
    protocol_fixture_end(&b);
}

/* -- how many connections */

Test(strangers_dialling, one_client_causes_few_connections_and_idle_ones_are_closed) {
    enum { TARGETS = 9 };
    protocol_fixture b;
    invented_node node[TARGETS];
    protocol_fixture_begin(&b);
    sn_msg *refused = NULL;
    int64_t now_us = T0;
    for (int i = 0; i < TARGETS; i++) {
        node_session p;
        node[i] = invented_node_new(&b, i);
        sn_buf sealed = invented_node_announce(&b, &node[i], b.unix_ms + 60000);
        node_session_init(&p, b.w, &b.client, 0, 4);
        cr_assert(is_opened(protocol_fixture_request(&b, open_with_next(&p, &sealed), now_us)));
        refused = protocol_fixture_request(&b, step_with_route(&p, 0, 1), now_us);
        if (i < TARGETS - 1) cr_expect_null(refused);
        cr_expect_eq(pushes_to(&node[i]), i < TARGETS - 1);
        sn_msg *closed = protocol_fixture_request(&b, node_session_close_message(&p), now_us);
        sn_msg_free(&closed); /* a session that was closed frees no connection */
        sn_buf_fini(&sealed);
        free(p.timeline);
    }
    cr_expect(is_refusal(refused, SN_RETRY, "connects to 8 other nodes for one client"));
    now_us += 61 * SECOND;
    sn_protocol_tick(b.protocol, now_us, b.unix_ms);
    node_session p;
    sn_buf sealed = invented_node_announce(&b, &node[8], b.unix_ms + 60000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_assert(is_opened(protocol_fixture_request(&b, open_with_next(&p, &sealed), now_us)));
    cr_expect_null(protocol_fixture_request(&b, step_with_route(&p, 0, 1), now_us));
    cr_expect_eq(pushes_to(&node[8]), 1, "idle connections still count");
    sn_buf_fini(&sealed);
    free(p.timeline);
    for (int i = 0; i < TARGETS; i++) sn_transport_free(&node[i].transport);
    protocol_fixture_end(&b);
}

static const uint8_t *own_key(const protocol_fixture *b) { return b->protocol->setup.identity->curve_key; }

/* Client `client` causes a connection to a node of its own. */
static void cause(protocol_fixture *b, const uint8_t *client, int number, int64_t now_us) {
    sn_outgoing_target to = {.curve_key = {1, (uint8_t)(number >> 8), (uint8_t)number}};
    sn_peer peer;
    snprintf(to.address, sizeof to.address, "invented%d:1", number);
    REQUIRE(sn_protocol_dial(b->protocol, client, &to, now_us, &peer, &err));
}

static int caused(const protocol_fixture *b, int from, int to) {
    int n = 0;
    for (size_t i = 0; i < b->protocol->outgoing.n; i++) {
        const uint8_t *key = b->protocol->outgoing.all[i].to.curve_key;
        const int number = key[1] << 8 | key[2];
        n += number >= from && number < to;
    }
    return n;
}

/* So many connections, eight of each client, one after the other. */
static void cause_as_strangers(protocol_fixture *b, int from, int to, int64_t now_us) {
    for (int i = from; i < to; i++) {
        const uint8_t client[SN_KEY_SIZE] = {2, (uint8_t)(i / 8 >> 8), (uint8_t)(i / 8)};
        cause(b, client, i, now_us + i);
    }
}

Test(strangers_dialling, connections_that_all_clients_cause_are_few_and_end_none_of_the_nodes_own) {
    enum { MOST = SN_OUTGOING_MAX, FIRST = 1000, OWN = 3000 };
    protocol_fixture b;
    protocol_fixture_begin(&b);
    cause(&b, (const uint8_t[SN_KEY_SIZE]){3}, OWN, T0); /* a client has caused it first */
    cause(&b, own_key(&b), OWN, T0);
    cause_as_strangers(&b, FIRST, FIRST + MOST + 8, T0);
    cr_expect_eq(b.protocol->outgoing.n, MOST);
    cr_expect_eq(caused(&b, OWN, OWN + 1), 1, "the oldest is the node's own");
    cr_expect_eq(caused(&b, FIRST + 9, FIRST + MOST + 8), MOST - 1, "it is not the oldest of clients that was hung up");
    protocol_fixture_end(&b);
}

/* Strangers invent nodes that this one meets, and clients that use its connections to them. */
Test(strangers_dialling, connections_of_the_node_leave_half_of_them_to_clients) {
    enum { MOST = SN_OUTGOING_MAX, HALF = MOST / 2 - 1, FIRST = 1000, OWN = 3000, NEEDED = OWN + MOST };
    protocol_fixture b;
    protocol_fixture_begin(&b);
    cause_as_strangers(&b, FIRST, FIRST + HALF, T0);
    for (int i = OWN; i < OWN + MOST; i++) cause(&b, own_key(&b), i, T0 + SECOND);
    cr_expect_eq(caused(&b, FIRST, FIRST + HALF), HALF);
    cause(&b, own_key(&b), NEEDED, T0 + 2 * SECOND);
    for (int i = NEEDED + 1; i < NEEDED + MOST; i++) cause(&b, own_key(&b), i, T0 + SECOND + i);
    const int first = NEEDED + HALF + 1; /* of those that are left, beside the needed one */
    cr_assert_eq(caused(&b, first, NEEDED + MOST), MOST - HALF - 1);
    cause_as_strangers(&b, first, NEEDED + MOST, T0 + 3 * SECOND);
    cause(&b, own_key(&b), OWN, T0 + 4 * SECOND);
    cr_expect_eq(caused(&b, NEEDED, NEEDED + 1), 1, "it was not used last by clients");
    cr_expect_eq(caused(&b, FIRST, FIRST + HALF), HALF);
    protocol_fixture_end(&b);
}

/* -- nodes that were asked for an answer */

static void send_pong(sn_transport *from, sn_peer to) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PONG, 1, &msg, &err));
    REQUIRE(sn_transport_send(from, to, &msg, &err));
}

/* A node is proven where it is announced: not by who has its key and comes from elsewhere. */
Test(strangers_dialling, an_answer_counts_over_the_connection_that_asked) {
    protocol_fixture b;
    sn_buf sealed;
    sn_event event;
    char bound[SN_ADDRESS_MAX + 1];
    protocol_fixture_begin(&b);
    const uint8_t *id = b.client.identity.id; /* the node is the fixture's client, which has connected to this one */
    sn_transport *there = cluster_transport_as(b.w->cluster, &b.client.identity);
    REQUIRE(sn_transport_listen(there, "there:1", bound, &err));
    make_announcement_of(b.w, &b.client.identity, "there:1", 0, 4, 0, &sealed);
    sn_directory *directory = (sn_directory *)(uintptr_t)sn_protocol_directory(b.protocol);
    b.unix_ms = sn_unix_ms();
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, b.unix_ms, &err));
    sn_protocol_tick(b.protocol, T0, b.unix_ms);
    sn_protocol_meet(b.protocol, sn_directory_find(directory, id), T0);
    send_pong(b.client.transport, b.client.node);
    protocol_fixture_read(&b, T0);
    cr_expect_not(sn_directory_is_proven(directory, id, b.unix_ms), "it answered from elsewhere");
    bool asked = false;
    for (event.peer = 1; event.peer && !asked; sn_msg_free(&event.msg)) {
        REQUIRE(sn_transport_recv(there, 0, &event, &err));
        asked = event.msg && event.msg->kind == SN_MSG_PING;
    }
    cr_assert(asked);
    send_pong(there, event.peer);
    protocol_fixture_read(&b, T0);
    cr_expect(sn_directory_is_proven(directory, id, b.unix_ms));
    sn_buf_fini(&sealed);
    sn_transport_free(&there);
    protocol_fixture_end(&b);
}
