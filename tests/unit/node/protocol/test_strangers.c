/* What strangers can do to a node's sessions: those whose client is gone, and those of a node that is full
 * (docs/SECURITY.md). */
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
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

Test(strangers, who_hoards_unused_sessions_makes_room_for_another_client_at_once) {
    protocol_fixture b;
    node_session hoard[FIXTURE_SESSIONS_MAX + 1], p;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    for (int i = 0; i < FIXTURE_SESSIONS_MAX; i++) protocol_fixture_open(&b, &hoard[i], T0);
    node_session_init(&p, b.w, &second, 0, 4);
    cr_expect(is_opened(request_of(&b, &second, node_session_open_message(&p), T0 + 1)));
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
        cr_assert(is_opened(request_of(b, client, msg, T0)));
    }
}

/* The answer to an OPEN of the client at a node that is full: 1: opened, 0: refused. */
static int opens_another(protocol_fixture *b, node_client *client, int64_t now_us) {
    node_session p;
    node_session_init(&p, b->w, client, 0, 4);
    int ok = is_opened(request_of(b, client, node_session_open_message(&p), now_us));
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
