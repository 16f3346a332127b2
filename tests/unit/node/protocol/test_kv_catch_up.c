/* A KV migration catches up with a client that decodes without a pause: every part of the copy is acknowledged only
 * after further steps, so the copy is never complete, and the owner is told nevertheless. */
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"
#include "node/protocol/protocol_private.h" /* private: the test sets how many tokens fit into a part */
#include "node/engine/kv_transfer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { PART_TOKENS = 8 };

/* The node that gets the copy: it receives parts, and acknowledges one when the test says so. */
typedef struct target {
    sn_identity identity;
    sn_transport *transport;
    uint8_t session[SN_SESSION_ID_SIZE];
    sn_event part; /* the part that is not acknowledged yet; msg NULL: none */
    int parts;
} target;

static protocol_fixture b;
static target to;
static sn_hparams wide; /* of a model whose keys and values are so long that PART_TOKENS of them fill a part */
static node_session p;

static sn_msg *kv_send_message(void) {
    sn_msg *msg = NULL;
    sn_buf sealed;
    sn_announcement *a = calloc(1, sizeof *a);
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    *a = (sn_announcement){.address = "target:1",
                           .protocol = SN_PROTOCOL_VERSION,
                           .sequence = 1,
                           .expires_unix_ms = (uint64_t)b.unix_ms + 50000,
                           .state = SN_NODE_ONLINE,
                           .end_block = 4,
                           .n_blocks = 4};
    memcpy(a->node, to.identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, to.identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, b.w->model.bytes, SN_HASH_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &to.identity, &sealed, &err));
    REQUIRE(sn_announcement_list(&(sn_blob){sealed.data, sealed.len}, &msg->kv_send.node, &msg->kv_send.n_node, &err));
    memcpy(msg->kv_send.session, p.id, SN_SESSION_ID_SIZE);
    memcpy(msg->kv_send.target, to.session, SN_SESSION_ID_SIZE);
    msg->kv_send.end_block = 4;
    sn_buf_fini(&sealed);
    free(a);
    return msg;
}

static void set_up(void) {
    char bound[SN_ADDRESS_MAX + 1];
    protocol_fixture_begin(&b);
    wide = *b.protocol->hp;
    while (sn_kv_transfer_part_tokens(&wide, 0, 4) > PART_TOKENS) wide.n_kv_heads *= 2;
    cr_assert_eq(sn_kv_transfer_part_tokens(&wide, 0, 4), PART_TOKENS);
    b.protocol->hp = &wide;
    to = (target){.session = {7}};
    to.transport = cluster_transport(b.w->cluster, &to.identity);
    REQUIRE(sn_transport_listen(to.transport, "target:1", bound, &err));
    protocol_fixture_open(&b, &p, T0);
}

static void tear_down(void) {
    sn_msg_free(&to.part.msg);
    free(p.timeline);
    sn_transport_free(&to.transport);
    protocol_fixture_end(&b);
}

TestSuite(kv_catch_up, .init = set_up, .fini = tear_down);

static void steps(int n) {
    for (int i = 0; i < n; i++)
        cr_assert(node_session_reply_ok(
            &p, protocol_fixture_request(&b, node_session_step_message(&p, p.length, 1), T0), p.length, 1));
}

static void receive_part(void) {
    while (!to.part.msg) {
        sn_event event;
        REQUIRE(sn_transport_recv(to.transport, 0, &event, &err));
        if (!event.peer) return;
        if (event.msg && event.msg->kind == SN_MSG_KV_PUT)
            to.part = event, to.parts++;
        else
            sn_msg_free(&event.msg);
    }
}

/* The target acknowledges the part that it has, and the node reads and sends the next one. */
static void acknowledge_part(void) {
    sn_msg *reply = NULL;
    if (!to.part.msg) return;
    const sn_msg_kv_put *put = &to.part.msg->kv_put;
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT_REPLY, 0, &reply, &err));
    reply->correlation_id = to.part.msg->correlation_id;
    memcpy(reply->kv_put_reply.session, to.session, SN_SESSION_ID_SIZE);
    reply->kv_put_reply.length = put->position + put->n_token_timelines;
    REQUIRE(sn_transport_send(to.transport, to.part.peer, &reply, &err));
    sn_msg_free(&to.part.msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
}

/* Asks for a copy while `per_part` steps come before each acknowledgement, and returns how many tokens the copy lacks
 * when the node says that it has caught up. *parts: how many parts it took; 0: it was not told until the tokens ran
 * out. */
static int lag_when_told(int tokens, int per_part, int *parts) {
    cr_assert(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, tokens), T0), 0,
                                    tokens));
    sn_msg *msg = kv_send_message(), *reply = NULL;
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    int lag = 0;
    for (*parts = 0; p.length + per_part <= TESTBED_TOKENS; sn_msg_free(&reply)) {
        receive_part();
        steps(per_part);
        acknowledge_part();
        if (!(reply = node_client_receive(&b.client, request, 1))) continue;
        cr_assert_eq(reply->kind, SN_MSG_KV_SEND_REPLY);
        lag = p.length - (int)reply->kv_send_reply.length;
        cr_expect(!memcmp(reply->kv_send_reply.timeline, p.timeline[reply->kv_send_reply.length].bytes, SN_HASH_SIZE));
        *parts = to.parts;
        sn_msg_free(&reply);
        break;
    }
    return lag;
}

/* Lets the target acknowledge all that is left while the client pauses; returns how many parts it takes. */
static int parts_of_the_pause(void) {
    int before = to.parts;
    sn_msg *msg = kv_send_message(), *reply = NULL;
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    for (int i = 0; i < 20 && !reply; i++) {
        protocol_fixture_run_jobs(&b, T0);
        receive_part();
        acknowledge_part();
        reply = node_client_receive(&b.client, request, 1);
    }
    cr_assert(reply && reply->kind == SN_MSG_KV_SEND_REPLY);
    cr_expect_eq((int)reply->kv_send_reply.length, p.length);
    sn_msg_free(&reply);
    return to.parts - before;
}

Test(kv_catch_up, an_owner_that_decodes_without_a_pause_is_told) {
    int parts;
    cr_expect_eq(lag_when_told(20, 1, &parts), 1); /* the step during the last part */
    cr_expect_eq(parts, 3);
    cr_expect_eq(parts_of_the_pause(), 1);
}

/* Eight parts leave sixteen tokens; these are copied, too, before the owner is told to pause. */
Test(kv_catch_up, what_is_left_fits_into_one_part) {
    int parts, lag = lag_when_told(64, 2, &parts);
    cr_expect(lag > 0 && lag <= PART_TOKENS, "the copy lacked %d tokens after %d parts", lag, parts);
    cr_expect_eq(parts_of_the_pause(), 1);
}

/* Asks for a copy of eight tokens, of which the target has the first part then. Returns the request's number. */
static uint64_t request_first_part(void) {
    cr_assert(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 8), T0), 0, 8));
    sn_msg *msg = kv_send_message();
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    receive_part();
    cr_assert(to.part.msg);
    return request;
}

/* The target wants the part that it has so much later. */
static void put_part_off(uint64_t wait_ms) {
    sn_msg *refusal = NULL;
    REQUIRE(sn_msg_new(SN_MSG_ERROR, to.part.msg->correlation_id, &refusal, &err));
    refusal->error.status = SN_RETRY;
    refusal->error.wait_ms = wait_ms;
    memcpy(refusal->error.session, to.session, SN_SESSION_ID_SIZE);
    REQUIRE(sn_transport_send(to.transport, to.part.peer, &refusal, &err));
    sn_msg_free(&to.part.msg);
    protocol_fixture_read(&b, T0);
}

/* Lets the node send the part again, if it does so now. */
static void try_at(int64_t now_us) {
    sn_msg_free(&to.part.msg);
    sn_protocol_tick(b.protocol, now_us, b.unix_ms);
    protocol_fixture_run_jobs(&b, now_us);
    receive_part();
}

/* The node at which the copy arrives limits the steps of its owner. */
Test(kv_catch_up, a_part_is_sent_again_when_the_other_node_says_so) {
    request_first_part();
    put_part_off(4000);
    for (int s = 1; s <= 4; s++) {
        try_at(T0 + s * SECOND);
        cr_expect_eq(to.part.msg != NULL, s == 4, "%d seconds later", s);
    }
}

/* A node that wants a part in a hundred years is asked again soon. */
Test(kv_catch_up, a_part_is_put_off_for_ten_seconds_at_most) {
    request_first_part();
    put_part_off(INT32_MAX);
    try_at(T0 + 9 * SECOND);
    cr_expect_null(to.part.msg);
    try_at(T0 + 11 * SECOND);
    cr_expect_not_null(to.part.msg);
}

/* A node that never says whether it has got a part is given up, and the owner is told. */
Test(kv_catch_up, a_part_is_sent_six_times_at_most) {
    uint64_t request = request_first_part();
    for (int turn = 1; turn < 20; turn++) try_at(T0 + 3 * turn * SECOND);
    cr_expect_eq(to.parts, 6, "%d times", to.parts);
    cr_expect(is_refusal(node_client_receive(&b.client, request, 1), SN_RETRY, "does not accept the KV pages"));
}

Test(kv_catch_up, a_session_is_copied_to_eight_others_at_most) {
    enum { MOST = 8 };
    steps(3);
    for (int i = 0; i <= MOST; i++) {
        to.session[1] = (uint8_t)i;
        sn_msg *msg = kv_send_message();
        uint64_t request = node_client_send(&b.client, &msg);
        protocol_fixture_read(&b, T0);
        sn_msg *reply = node_client_receive(&b.client, request, 1);
        if (i < MOST)
            cr_expect_null(reply, "copy %d", i);
        else
            cr_expect(is_refusal(reply, SN_RETRY, "copied to 8 other sessions already"));
    }
    protocol_fixture_run_jobs(&b, T0);
}

/* Of all sessions together. */
Test(kv_catch_up, as_many_reads_are_in_the_engine_as_there_are_sessions) {
    steps(3);
    b.protocol->setup.sessions_max = 1;
    for (int i = 0; i < 2; i++) {
        sn_msg *get = NULL;
        REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &get, &err));
        memcpy(get->kv_get.session, p.id, SN_SESSION_ID_SIZE);
        get->kv_get.tokens = 1;
        uint64_t request = node_client_send(&b.client, &get);
        protocol_fixture_read(&b, T0);
        sn_msg *reply = node_client_receive(&b.client, request, 1);
        if (i)
            cr_expect(is_refusal(reply, SN_RETRY, "too busy to read KV pages"));
        else
            cr_expect_null(reply);
    }
    protocol_fixture_run_jobs(&b, T0);
}

/* The copy does not gain on this client: it is told after the first round, and pauses for a longer time. */
Test(kv_catch_up, an_owner_that_is_faster_than_its_copy_is_told_as_well) {
    int parts;
    cr_expect_eq(lag_when_told(16, 9, &parts), 18);
    cr_expect_eq(parts, 2);
    cr_expect_geq(parts_of_the_pause(), 2);
}

static void limit_steps(int64_t per_s) {
    sn_quota_free(&b.protocol->quota);
    REQUIRE(sn_quota_new(&(sn_quota_limits){.steps_per_s = per_s}, &b.protocol->quota, &err));
}

/* The node from which the copy comes limits the steps of the owner. */
Test(kv_catch_up, what_is_read_counts_as_steps_of_the_owner_and_what_a_step_added_does_not) {
    cr_assert(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 24), T0), 0, 24));
    limit_steps(2);
    sn_msg *msg = kv_send_message(), *get = NULL;
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 3; i++) {
        receive_part();
        acknowledge_part();
    }
    cr_expect_eq(to.parts, 2);
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &get, &err));
    memcpy(get->kv_get.session, p.id, SN_SESSION_ID_SIZE);
    get->kv_get.tokens = 8;
    cr_expect(is_refusal(protocol_fixture_request(&b, get, T0), SN_RETRY, "2 steps per second"));
    sn_protocol_tick(b.protocol, T0 + SECOND, b.unix_ms);
    protocol_fixture_run_jobs(&b, T0 + SECOND);
    receive_part();
    cr_expect_eq(to.parts, 3, "a second later");
    acknowledge_part();
    limit_steps(1);
    steps(1);
    receive_part();
    cr_expect_eq(to.parts, 4, "what the step added");
}

/* A node that says that it lost the copy makes the owner pay for another one. */
Test(kv_catch_up, what_a_target_wants_again_counts_as_a_step) {
    cr_assert(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 4), T0), 0, 4));
    limit_steps(1);
    sn_msg *msg = kv_send_message(), *reply = NULL;
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    receive_part();
    cr_assert(to.part.msg);
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT_REPLY, to.part.msg->correlation_id, &reply, &err));
    memcpy(reply->kv_put_reply.session, to.session, SN_SESSION_ID_SIZE);
    REQUIRE(sn_transport_send(to.transport, to.part.peer, &reply, &err));
    sn_msg_free(&to.part.msg);
    for (int s = 0; s < 2; s++) {
        protocol_fixture_read(&b, T0);
        if (s) sn_protocol_tick(b.protocol, T0 + 2 * s * SECOND, b.unix_ms);
        protocol_fixture_run_jobs(&b, T0 + 2 * s * SECOND);
        receive_part();
        cr_expect_eq(to.part.msg != NULL, s == 1, "%d seconds later", 2 * s);
    }
}
