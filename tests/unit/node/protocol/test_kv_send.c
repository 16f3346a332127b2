/* KV_SEND of a session whose KV cache is empty, or is written anew meanwhile: what the node reads then, and who may
 * free the session. */
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { RECURRENT_PAGES = 400 };

static protocol_fixture b;
static sn_identity identity; /* of the node that gets the copies; nothing listens there */
static node_session p[FIXTURE_SESSIONS_MAX + 1];

static void begin(const char *model, size_t kv_pages) {
    protocol_fixture_begin_with(&b, model, kv_pages);
    REQUIRE(sn_identity_new(&identity, &err));
}

static void end(void) {
    for (int i = 0; i <= FIXTURE_SESSIONS_MAX; i++) free(p[i].timeline);
    protocol_fixture_end(&b);
}

/* `acked`: so many tokens are said to be there already. */
static void ask_for_copy_to(const node_session *from, int acked, uint8_t target) {
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
    memcpy(a->node, identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, b.w->model.bytes, SN_HASH_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &identity, &sealed, &err));
    REQUIRE(sn_announcement_list(&(sn_blob){sealed.data, sealed.len}, &msg->kv_send.node, &msg->kv_send.n_node, &err));
    memcpy(msg->kv_send.session, from->id, SN_SESSION_ID_SIZE);
    msg->kv_send.target[0] = target;
    msg->kv_send.end_block = 4;
    msg->kv_send.position = (uint64_t)acked;
    sn_buf_fini(&sealed);
    free(a);
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
}

static void ask_for_copy(const node_session *from, int acked) { ask_for_copy_to(from, acked, 7); }

/* The device thread would otherwise work on memory that was freed, and what it made there would stay. */
Test(kv_send, a_session_that_is_read_makes_no_room_and_leaves_no_kv_cache) {
    begin(SN_FIXTURES "/golden/qwen3_5", RECURRENT_PAGES);
    for (int i = 0; i < FIXTURE_SESSIONS_MAX; i++) protocol_fixture_open(&b, &p[i], T0 + i);
    ask_for_copy(&p[0], 0);
    protocol_fixture_open(&b, &p[FIXTURE_SESSIONS_MAX], T0 + SN_UNUSED_SESSION_US + 1);
    for (int i = 0; i <= FIXTURE_SESSIONS_MAX; i++) {
        sn_msg *closed = protocol_fixture_request(&b, node_session_close_message(&p[i]), T0);
        sn_msg_free(&closed);
    }
    cr_expect_eq(sn_protocol_session_count(b.protocol), 0);
    cr_expect_null(sn_kv_cache_next(b.pool, NULL), "a KV cache has lost its session");
    end();
}

Test(kv_send, of_a_session_without_tokens_is_answered_without_a_read) {
    begin(SN_FIXTURES "/golden/qwen3_5", RECURRENT_PAGES);
    protocol_fixture_open(&b, &p[0], T0);
    ask_for_copy(&p[0], 0);
    cr_expect_eq(b.n_waiting, 0);
    sn_msg *reply = node_client_receive(&b.client, 0, 100);
    cr_assert(reply && reply->kind == SN_MSG_KV_SEND_REPLY);
    cr_expect_eq(reply->kv_send_reply.length, 0);
    sn_msg_free(&reply);
    end();
}

static void put(int position, int n) {
    sn_msg *reply = protocol_fixture_request(&b, node_session_kv_put_message(&p[0], position, n), T0);
    cr_assert(reply && reply->kind == SN_MSG_KV_PUT_REPLY);
    cr_expect_eq(reply->kv_put_reply.length, position + n);
    sn_msg_free(&reply);
}

Test(kv_send, of_a_session_that_is_written_anew_begins_anew) {
    begin(NULL, 8);
    protocol_fixture_open(&b, &p[0], T0);
    put(0, 40);
    ask_for_copy(&p[0], 40);
    put(0, 8);
    ask_for_copy(&p[0], 0);
    cr_assert_eq(b.n_waiting, 1, "tokens that were replaced count as copied");
    cr_expect_eq(b.waiting[0]->position, 0);
    cr_expect_eq(b.waiting[0]->n_tokens, 8);
    protocol_fixture_run_jobs(&b, T0);
    end();
}

/* A read that waits for its turn while a step rewinds what it was to read. */
Test(kv_send, of_a_session_that_is_rewound_before_the_read_goes_on) {
    sn_err err;
    begin(NULL, 8);
    protocol_fixture_open(&b, &p[0], T0);
    cr_assert(
        node_session_reply_ok(&p[0], protocol_fixture_request(&b, node_session_step_message(&p[0], 0, 40), T0), 0, 40));
    ask_for_copy(&p[0], 0);
    cr_assert_eq(b.n_waiting, 1);
    sn_job *read = b.waiting[--b.n_waiting];
    cr_assert(
        node_session_reply_ok(&p[0], protocol_fixture_request(&b, node_session_step_message(&p[0], 30, 1), T0), 30, 1));
    read->status = sn_fail(&err, SN_REBUILD, "the pages are not here");
    sn_protocol_job_done(b.protocol, read, T0);
    cr_assert_eq(b.n_waiting, 1, "the copy has ended");
    cr_expect_eq(b.waiting[0]->n_tokens, 31);
    protocol_fixture_run_jobs(&b, T0);
    end();
}

Test(kv_send, a_session_is_copied_to_eight_others_at_most) {
    begin(NULL, 8);
    protocol_fixture_open(&b, &p[0], T0);
    put(0, 8);
    for (uint8_t target = 1; target <= 9; target++) {
        ask_for_copy_to(&p[0], 8, target);
        sn_msg *reply = node_client_receive(&b.client, 0, 100);
        cr_assert(reply);
        if (target == 9)
            cr_expect(is_refusal(reply, SN_RETRY, "is copied to 8 other sessions already"));
        else
            cr_expect_eq(reply->kind, SN_MSG_KV_SEND_REPLY);
        if (target < 9) sn_msg_free(&reply);
    }
    end();
}
