/* What strangers can do to a node's sessions and connections, message by message (docs/SECURITY.md). */
#include "base/clock.h"
#include "node/protocol/protocol_private.h" /* private: asks a node for an answer */
#include "tests/support/fake_node.h"
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- sessions whose client is gone --------------------------------------------------------------------------------- */

/* The handle under which the node knows the fixture's client: the sender of its next message. */
static sn_peer peer_of_client(protocol_fixture *b, node_client *client) {
    sn_msg *msg = NULL;
    sn_event event;
    REQUIRE(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    msg->status.protocol = SN_PROTOCOL_VERSION;
    node_client_send(client, &msg);
    REQUIRE(sn_transport_recv(b->transport, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_STATUS);
    sn_peer peer = event.peer;
    sn_protocol_handle(b->protocol, &event, T0, b->unix_ms);
    return peer;
}

static void end_connection(protocol_fixture *b, sn_peer peer, int64_t now_us) {
    sn_event event = {.peer = peer, .gone = true};
    sn_protocol_handle(b->protocol, &event, now_us, b->unix_ms);
}

static size_t sessions_at(protocol_fixture *b, int64_t now_us) {
    sn_protocol_tick(b->protocol, now_us, b->unix_ms);
    protocol_fixture_run_jobs(b, now_us);
    return sn_protocol_session_count(b->protocol);
}

Test(strangers, sessions_of_a_client_that_is_gone_are_closed_after_seconds) {
    protocol_fixture b;
    node_session p, other;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 40), T0), 0, 40));
    node_session_init(&other, b.w, &second, 0, 4);
    sn_msg *msg = node_session_open_message(&other);
    node_client_send(&second, &msg);
    protocol_fixture_read(&b, T0);
    end_connection(&b, peer_of_client(&b, &b.client), T0);
    cr_expect_eq(sessions_at(&b, T0 + SN_OWNER_GONE_US - 1), 2, "it did not wait for the client to come back");
    cr_expect_eq(sessions_at(&b, T0 + SN_OWNER_GONE_US), 1);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    sn_transport_free(&second.transport);
    free(p.timeline), free(other.timeline);
    protocol_fixture_end(&b);
}

Test(strangers, a_client_that_comes_back_on_another_connection_keeps_its_sessions) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    sn_peer before = peer_of_client(&b, &b.client);
    sn_transport_hang_up(b.client.transport, b.client.node);
    protocol_fixture_read(&b, T0);
    REQUIRE(sn_transport_dial(b.client.transport, "fixture:1", b.identity.curve_key, &b.client.node, &err));
    cr_assert_neq(peer_of_client(&b, &b.client), before);
    cr_expect_eq(sessions_at(&b, T0 + 2 * SN_OWNER_GONE_US), 1);
    sn_protocol_drain(b.protocol, b.unix_ms);
    sn_msg *notice =
        node_client_receive(&b.client, 0, 100); /* over the new connection; replies of before are dropped */
    while (notice && notice->kind != SN_MSG_DRAINING) {
        sn_msg_free(&notice);
        notice = node_client_receive(&b.client, 0, 100);
    }
    cr_expect(notice, "the node speaks to the connection that has ended");
    sn_msg_free(&notice);
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(strangers, a_drain_does_not_wait_for_clients_that_are_gone) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 4), T0), 0, 4));
    sn_peer peer = peer_of_client(&b, &b.client);
    sn_protocol_drain(b.protocol, b.unix_ms);
    cr_expect_eq(sessions_at(&b, T0 + 1), 1);
    end_connection(&b, peer, T0 + 1);
    cr_expect_eq(sessions_at(&b, T0 + 2), 0);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* -- a full node --------------------------------------------------------------------------------------------------- */

Test(strangers, unused_sessions_make_room_for_a_newcomer_and_used_ones_do_not) {
    protocol_fixture b;
    node_session p[FIXTURE_SESSIONS_MAX + 2];
    int n = FIXTURE_SESSIONS_MAX;
    protocol_fixture_begin(&b);
    for (int i = 0; i < n; i++) protocol_fixture_open(&b, &p[i], T0 + i);
    cr_expect(
        node_session_reply_ok(&p[0], protocol_fixture_request(&b, node_session_step_message(&p[0], 0, 4), T0), 0, 4));
    node_session_init(&p[n], b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_open_message(&p[n]), T0 + SECOND), SN_RETRY,
                         "8 sessions already"));
    protocol_fixture_open(&b, &p[n + 1], T0 + SN_UNUSED_SESSION_US + 1);
    cr_expect_eq(sn_protocol_session_count(b.protocol), (size_t)n);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_step_message(&p[1], 0, 4), T0), SN_REBUILD,
                         "does not know"),
              "the oldest unused session was kept");
    cr_expect(
        node_session_reply_ok(&p[0], protocol_fixture_request(&b, node_session_step_message(&p[0], 4, 4), T0), 4, 4));
    for (int i = 2; i < n; i++)
        cr_expect(node_session_reply_ok(&p[i], protocol_fixture_request(&b, node_session_step_message(&p[i], 0, 1), T0),
                                        0, 1));
    cr_expect(node_session_reply_ok(
        &p[n + 1], protocol_fixture_request(&b, node_session_step_message(&p[n + 1], 0, 1), T0), 0, 1));
    free(p[n].timeline);
    node_session_init(&p[n], b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_open_message(&p[n]), T0 + 9 * SECOND), SN_RETRY,
                         "8 sessions already"),
              "a session in use was closed");
    for (int i = 0; i < n + 2; i++) free(p[i].timeline);
    protocol_fixture_end(&b);
}

static sn_msg *request_of(protocol_fixture *b, node_client *client, sn_msg *msg, int64_t now_us) {
    node_client_send(client, &msg);
    protocol_fixture_read(b, now_us);
    protocol_fixture_run_jobs(b, now_us);
    return node_client_receive(client, 0, 100);
}

static bool opened(sn_msg *answer) {
    bool ok = answer && answer->kind == SN_MSG_OPEN_REPLY;
    sn_msg_free(&answer);
    return ok;
}

Test(strangers, who_hoards_unused_sessions_makes_room_for_another_client_at_once) {
    protocol_fixture b;
    node_session hoard[FIXTURE_SESSIONS_MAX + 1], p;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    for (int i = 0; i < FIXTURE_SESSIONS_MAX; i++) protocol_fixture_open(&b, &hoard[i], T0);
    node_session_init(&p, b.w, &second, 0, 4);
    cr_expect(opened(request_of(&b, &second, node_session_open_message(&p), T0 + 1)));
    node_session_init(&hoard[FIXTURE_SESSIONS_MAX], b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_open_message(&hoard[FIXTURE_SESSIONS_MAX]), T0 + 2),
                         SN_RETRY, "8 sessions already"),
              "the hoarder takes the place of one who has a single session");
    cr_expect(node_session_reply_ok(&p, request_of(&b, &second, node_session_step_message(&p, 0, 4), T0 + 3), 0, 4));
    for (int i = 0; i <= FIXTURE_SESSIONS_MAX; i++) free(hoard[i].timeline);
    free(p.timeline);
    sn_transport_free(&second.transport);
    protocol_fixture_end(&b);
}

/* Opens n sessions, each with a source of KV pages if `source`. */
static void open_as(protocol_fixture *b, node_client *client, node_session *p, int n, bool source) {
    for (int i = 0; i < n; i++) {
        node_session_init(&p[i], b->w, client, 0, 4);
        sn_msg *msg = node_session_open_message(&p[i]);
        if (source) msg->open.kv_source[0] = 1;
        cr_assert(opened(request_of(b, client, msg, T0)));
    }
}

/* The answer to an OPEN of the client at a node that is full: 1: opened, 0: refused. */
static int opens_another(protocol_fixture *b, node_client *client, int64_t now_us) {
    node_session p;
    node_session_init(&p, b->w, client, 0, 4);
    int ok = opened(request_of(b, client, node_session_open_message(&p), now_us));
    free(p.timeline);
    return ok;
}

Test(strangers, two_that_hoard_do_not_throw_each_other_out) {
    protocol_fixture b;
    node_session p[FIXTURE_SESSIONS_MAX];
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    open_as(&b, &b.client, p, 5, false);
    open_as(&b, &second, p + 5, 3, false);
    cr_expect(opens_another(&b, &second, T0 + 1), "both may have four");
    for (int i = 0; i < 3; i++) {
        cr_expect_not(opens_another(&b, &second, T0 + 2));
        cr_expect_not(opens_another(&b, &b.client, T0 + 2));
    }
    for (int i = 0; i < FIXTURE_SESSIONS_MAX; i++) free(p[i].timeline);
    sn_transport_free(&second.transport);
    protocol_fixture_end(&b);
}

/* A node that drains hands over all sessions of a client at once. */
Test(strangers, sessions_that_wait_for_kv_pages_or_were_resumed_are_not_hoarded) {
    protocol_fixture b;
    node_session p[FIXTURE_SESSIONS_MAX];
    enum { N = FIXTURE_SESSIONS_MAX, RESUMED = 2 };
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    open_as(&b, &b.client, p, N, true);
    cr_expect_not(opens_another(&b, &second, T0 + SN_UNUSED_SESSION_US - 1));
    for (int i = 0; i < RESUMED; i++) {
        sn_msg *resume = NULL;
        REQUIRE(sn_msg_new(SN_MSG_RESUME, 0, &resume, &err));
        memcpy(resume->resume.session, p[i].id, SN_SESSION_ID_SIZE);
        resume = protocol_fixture_request(&b, resume, T0 + 1);
        cr_assert(resume && resume->kind == SN_MSG_RESUME_REPLY);
        sn_msg_free(&resume);
    }
    int places = 0;
    while (places < N && opens_another(&b, &second, T0 + SN_UNUSED_SESSION_US)) places++;
    cr_expect_eq(places, N - RESUMED, "%d made room, though %d were resumed", places, RESUMED);
    for (int i = 0; i < N; i++) free(p[i].timeline);
    sn_transport_free(&second.transport);
    protocol_fixture_end(&b);
}

/* -- where a node can be made to dial ------------------------------------------------------------------------------ */

/* An invented node, whose announcements a stranger signs: it has an identity, and listens at an address
 * within the test's hub. */
typedef struct invented {
    sn_identity identity;
    sn_transport *transport;
    char address[SN_ADDRESS_MAX + 1];
} invented;

static invented invent(protocol_fixture *b, int number) {
    invented node = {0};
    char bound[SN_ADDRESS_MAX + 1];
    snprintf(node.address, sizeof node.address, "invented%d:1", number);
    node.transport = cluster_transport(b->w->cluster, &node.identity);
    REQUIRE(sn_transport_listen(node.transport, node.address, bound, &err));
    return node;
}

static sn_buf announce(const protocol_fixture *b, const invented *node, int64_t expires_unix_ms) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    if (!a) abort();
    memcpy(a->node, node->identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, node->identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, b->w->model.bytes, SN_HASH_SIZE);
    snprintf(a->address, sizeof a->address, "%s", node->address);
    a->protocol = SN_PROTOCOL_VERSION;
    a->sequence = 1;
    a->expires_unix_ms = (uint64_t)expires_unix_ms;
    a->state = SN_NODE_ONLINE;
    a->end_block = a->n_blocks = 4;
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &node->identity, &sealed, &err));
    free(a);
    return sealed;
}

/* How many messages have arrived at an invented node: a node that was not dialled cannot have sent one. */
static int pushes_to(invented *node) {
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

Test(strangers, a_next_node_whose_address_is_a_name_is_refused_at_once) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    b.transport->dials_names = false; /* as that of every node is, but not that of a test's hub */
    invented named = invent(&b, 1);
    sn_buf sealed = announce(&b, &named, b.unix_ms + 10000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, open_with_next(&p, &sealed), T0), SN_REFUSED, "has a name"));
    sn_buf_fini(&sealed);
    free(p.timeline);
    sn_transport_free(&named.transport);
    protocol_fixture_end(&b);
}

Test(strangers, a_session_pushes_only_to_the_node_that_it_was_opened_with) {
    protocol_fixture b;
    node_session p, plain;
    protocol_fixture_begin(&b);
    invented node = invent(&b, 0);
    sn_buf live = announce(&b, &node, b.unix_ms + 60000), late = announce(&b, &node, b.unix_ms - 1), forged = live;
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
    cr_expect(opened(protocol_fixture_request(&b, open_with_next(&p, &live), T0)));
    cr_expect_null(protocol_fixture_request(&b, step_with_route(&p, 0, 3), T0));
    cr_expect_eq(pushes_to(&node), 1);
    free(forged.data), sn_buf_fini(&live), sn_buf_fini(&late);
    free(p.timeline), free(plain.timeline);
    sn_transport_free(&node.transport);
    protocol_fixture_end(&b);
}

/* Such a connection has no rate: a node that was dialled because it was announced gets no answers over it. */
Test(strangers, a_node_that_was_dialled_asks_nothing_over_that_connection) {
    protocol_fixture b;
    node_session p;
    sn_event push = {0}, answer = {0};
    sn_msg *question = NULL;
    protocol_fixture_begin(&b);
    invented node = invent(&b, 0);
    sn_buf live = announce(&b, &node, b.unix_ms + 60000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_expect(opened(protocol_fixture_request(&b, open_with_next(&p, &live), T0)));
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

Test(strangers, one_client_causes_few_connections_and_idle_ones_are_closed) {
    enum { TARGETS = 9 };
    protocol_fixture b;
    invented node[TARGETS];
    protocol_fixture_begin(&b);
    sn_msg *refused = NULL;
    int64_t now_us = T0;
    for (int i = 0; i < TARGETS; i++) {
        node_session p;
        node[i] = invent(&b, i);
        sn_buf sealed = announce(&b, &node[i], b.unix_ms + 60000);
        node_session_init(&p, b.w, &b.client, 0, 4);
        cr_assert(opened(protocol_fixture_request(&b, open_with_next(&p, &sealed), now_us)));
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
    sn_buf sealed = announce(&b, &node[8], b.unix_ms + 60000);
    node_session_init(&p, b.w, &b.client, 0, 4);
    cr_assert(opened(protocol_fixture_request(&b, open_with_next(&p, &sealed), now_us)));
    cr_expect_null(protocol_fixture_request(&b, step_with_route(&p, 0, 1), now_us));
    cr_expect_eq(pushes_to(&node[8]), 1, "idle connections still count");
    sn_buf_fini(&sealed);
    free(p.timeline);
    for (int i = 0; i < TARGETS; i++) sn_transport_free(&node[i].transport);
    protocol_fixture_end(&b);
}

Test(strangers, a_session_without_a_predecessor_takes_no_step_of_a_key_of_zeros) {
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

/* -- the price of what is refused ---------------------------------------------------------------------------------- */

static sn_peer charged[16];
static int n_charged;

static void note_charge(sn_transport *t, sn_peer peer) {
    (void)t;
    cr_assert_lt(n_charged, 16);
    charged[n_charged++] = peer;
}

static void count_charges(protocol_fixture *b) {
    static sn_transport_ops counting;
    counting = *b->transport->ops;
    counting.charge = note_charge;
    b->transport->ops = &counting;
}

/* The session is the client's; another one, which may push its steps, sends one that does not fit. */
Test(strangers, a_push_that_is_refused_is_charged_to_its_sender_and_not_to_the_client) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    sn_msg *msg = node_session_open_message(&p);
    const uint8_t pusher[SN_KEY_SIZE] = {7};
    memcpy(msg->open.predecessor, pusher, SN_KEY_SIZE);
    msg = protocol_fixture_request(&b, msg, T0);
    cr_assert(msg && msg->kind == SN_MSG_OPEN_REPLY);
    sn_msg_free(&msg);
    count_charges(&b);
    sn_event event = {.msg = node_session_step_message(&p, 5, 3), .peer = 1000000};
    memcpy(event.key, pusher, SN_KEY_SIZE);
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_expect_eq(n_charged, 1);
    cr_expect_eq(charged[0], 1000000);
    msg = node_client_receive(&b.client, 0, 100);
    cr_expect(msg && msg->kind == SN_MSG_ERROR, "the client is told");
    sn_msg_free(&msg);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* Sends the message, whose answer must be of this kind; how often it was charged. */
static int price_of(protocol_fixture *b, sn_msg *msg, sn_msg_kind answered) {
    int before = n_charged;
    msg = protocol_fixture_request(b, msg, T0);
    cr_expect(msg && msg->kind == answered, "the answer is %s", msg ? sn_msg_kind_name(msg->kind) : "missing");
    sn_msg_free(&msg);
    return n_charged - before;
}

static sn_msg *about_session(const node_session *p, sn_msg_kind kind) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(kind, 0, &msg, &err));
    if (kind == SN_MSG_RESUME) memcpy(msg->resume.session, p->id, SN_SESSION_ID_SIZE);
    if (kind == SN_MSG_KV_GET) memcpy(msg->kv_get.session, p->id, SN_SESSION_ID_SIZE);
    return msg;
}

/* What a program may repeat as fast as it is answered has a price; what becomes work has none. */
Test(strangers, messages_that_are_answered_without_work_are_charged) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(price_of(&b, node_session_open_message(&p), SN_MSG_OPEN_REPLY), 1, "opened for the %d. time",
                     i + 1);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 0, "a step");
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 1, "the same step again");
    sn_msg *resume = about_session(&p, SN_MSG_RESUME);
    resume->resume.step = 2;
    cr_expect_eq(price_of(&b, resume, SN_MSG_RESUME_REPLY), 1, "a resume");
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* A client repeats a resume of a busy session every few milliseconds: below the rate, where each counts once. */
Test(strangers, what_is_refused_is_charged_once) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    sn_msg *open = node_session_open_message(&p);
    open->open.model[0] ^= 1;
    cr_expect_eq(price_of(&b, open, SN_MSG_ERROR), 1, "an open");
    cr_expect_eq(price_of(&b, about_session(&p, SN_MSG_RESUME), SN_MSG_ERROR), 1, "a resume");
    cr_expect_eq(price_of(&b, about_session(&p, SN_MSG_KV_GET), SN_MSG_ERROR), 1, "a read");
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* One client can make a node push what the next one refuses, or has computed: what it pushes for others goes on. Nor
 * is a node free to push at any rate. */
Test(strangers, what_a_proven_node_pushes_in_vain_is_charged_to_it_a_sixteenth) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    invented node = invent(&b, 1);
    sn_buf sealed = announce(&b, &node, b.unix_ms + 60000);
    sn_directory *directory = (sn_directory *)sn_protocol_directory(b.protocol); /* the test's own node */
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, b.unix_ms, &err));
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4); /* never opened here */
    for (int proven = 0; proven < 2; proven++) {
        int before = n_charged;
        if (proven) sn_directory_prove(directory, node.identity.id, b.unix_ms + 60000);
        b.unix_ms += 5000; /* it takes so long until that counts */
        for (int i = 0; i < (proven ? 32 : 2); i++) {
            sn_event event = {.msg = node_session_step_message(&p, 0, 1), .peer = 1000000};
            memcpy(event.key, node.identity.curve_key, SN_KEY_SIZE);
            sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
        }
        cr_expect_eq(n_charged - before, 2, "proven %d: charged %d times", proven, n_charged - before);
    }
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 1), SN_MSG_ERROR), 1, "a step of a client");
    sn_buf_fini(&sealed);
    free(p.timeline);
    sn_transport_free(&node.transport);
    protocol_fixture_end(&b);
}

/* A node may be a client, too, and then pays as one. */
Test(strangers, what_a_proven_node_repeats_in_a_session_of_its_own_is_charged) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    invented self = {.identity = b.client.identity, .address = "self:1"};
    sn_buf sealed = announce(&b, &self, b.unix_ms + 60000);
    sn_directory *directory = (sn_directory *)sn_protocol_directory(b.protocol);
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, b.unix_ms, &err));
    sn_directory_prove(directory, self.identity.id, b.unix_ms + 60000);
    protocol_fixture_open(&b, &p, T0);
    count_charges(&b);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 0);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 1);
    sn_buf_fini(&sealed);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* Asks for two parts of the session's KV pages. */
static void read_twice(const node_session *p, node_client *client) {
    for (int i = 0; i < 2; i++) {
        sn_msg *get = about_session(p, SN_MSG_KV_GET);
        get->kv_get.tokens = 8;
        node_client_send(client, &get);
    }
}

Test(strangers, reads_of_one_client_leave_places_for_those_of_others) {
    protocol_fixture b;
    enum { OWN = 3 };
    node_session own[OWN], other;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    for (int i = 0; i < OWN; i++) {
        protocol_fixture_open(&b, &own[i], T0);
        cr_expect(node_session_reply_ok(
            &own[i], protocol_fixture_request(&b, node_session_step_message(&own[i], 0, 40), T0), 0, 40));
    }
    node_session_init(&other, b.w, &second, 0, 4);
    sn_msg *msg = node_session_open_message(&other);
    node_client_send(&second, &msg);
    msg = node_session_step_message(&other, 0, 40);
    node_client_send(&second, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < OWN; i++) read_twice(&own[i], &b.client);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, FIXTURE_SESSIONS_MAX / 2, "a half of the places");
    read_twice(&other, &second);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, FIXTURE_SESSIONS_MAX / 2 + 2);
    protocol_fixture_run_jobs(&b, T0);
    read_twice(&own[0], &b.client);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 2, "its places are free again");
    protocol_fixture_run_jobs(&b, T0);
    sn_transport_free(&second.transport);
    for (int i = 0; i < OWN; i++) free(own[i].timeline);
    free(other.timeline);
    protocol_fixture_end(&b);
}

Test(strangers, the_reads_of_a_session_are_few_at_a_time) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 40), T0), 0, 40));
    for (int i = 0; i < 3; i++) {
        sn_msg *get = about_session(&p, SN_MSG_KV_GET);
        get->kv_get.tokens = 8;
        node_client_send(&b.client, &get);
    }
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 2);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_RETRY, "2 reads of this session are in progress"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 2; i++) {
        sn_msg *reply = node_client_receive(&b.client, 0, 100);
        cr_expect(reply && reply->kind == SN_MSG_KV_GET_REPLY);
        sn_msg_free(&reply);
    }
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* -- nodes that were asked for an answer -----------------------------------------------------------------------------
 */

static void send_pong(sn_transport *from, sn_peer to) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PONG, 1, &msg, &err));
    REQUIRE(sn_transport_send(from, to, &msg, &err));
}

/* A node is proven where it is announced: not by who has its key and comes from elsewhere. */
Test(strangers, an_answer_counts_over_the_connection_that_asked) {
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

Test(strangers, connections_that_all_clients_cause_are_few_and_end_none_of_the_nodes_own) {
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
Test(strangers, connections_of_the_node_leave_half_of_them_to_clients) {
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
