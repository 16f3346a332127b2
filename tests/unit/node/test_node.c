/* A node, tested by messages written by hand. Every refusal has its own sentence, and a witness, another client's
 * session at the same node, continues with the right bits afterwards. */
#include "base/clock.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* One node with the whole model, a client with a session of 8 tokens, and the witness. */
typedef struct fixture {
    testbed *w;
    node_client *client, *other;
    node_session mine, witness;
} fixture;

static fixture fixture_begin_with(const cluster_options *options) {
    fixture s = {.w = testbed_new(options)};
    cluster_add(s.w->cluster, 0, 0);
    s.client = node_client_new(s.w, 0);
    s.other = node_client_new(s.w, 0);
    node_session_init(&s.mine, s.w, s.client, 0, s.w->n_blocks);
    node_session_init(&s.witness, s.w, s.other, 0, s.w->n_blocks);
    node_session_open(&s.witness);
    return s;
}

static fixture fixture_begin(void) {
    fixture s = fixture_begin_with(&(cluster_options){.kv_memory = 64, .sessions_max = 8});
    node_session_open(&s.mine);
    cr_assert(node_session_step_ok(&s.mine, 0, 8));
    return s;
}

static bool witness_step_ok(fixture *s) { return node_session_step_ok(&s->witness, s->witness.length, 1); }

static void fixture_end(fixture *s) {
    cr_expect(witness_step_ok(s));
    node_session_close(&s->mine);
    node_session_close(&s->witness);
    node_client_await_kv_bytes(s->other, 0);
    cr_expect_eq(node_client_status(s->other).sessions, 0);
    node_client_free(&s->client);
    node_client_free(&s->other);
    testbed_free(&s->w);
}

static void expect_refused(fixture *s, sn_msg *msg, sn_status status, const char *part) {
    cr_expect(is_refusal(node_client_request(s->client, &msg), status, part), "%s", part);
    cr_expect(witness_step_ok(s), "after: %s", part);
}

/* -- OPEN */

Test(node, refuses_to_open_what_it_cannot_serve) {
    fixture s = fixture_begin();
    node_session more;
    node_session_init(&more, s.w, s.client, 0, s.w->n_blocks);
    sn_msg *msg = node_session_open_message(&more);
    msg->open.protocol = 99;
    expect_refused(&s, msg, SN_REFUSED, "protocol 6, not 99");
    msg = node_session_open_message(&more);
    msg->open.model[3] ^= 1;
    expect_refused(&s, msg, SN_REFUSED, "another model");
    const uint64_t ranges[][2] = {{0, 5}, {2, 2}, {3, 1}, {4, 5}, {65536, 1}, {0, 65536}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        msg = node_session_open_message(&more);
        msg->open.first_block = ranges[i][0];
        msg->open.end_block = ranges[i][1];
        expect_refused(&s, msg, SN_REFUSED, "this node serves 0:4");
    }
    const uint64_t lengths[] = {0, 513, 1 << 30};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        msg = node_session_open_message(&more);
        msg->open.max_tokens = lengths[i];
        expect_refused(&s, msg, SN_REFUSED, "context of 512");
    }
    cr_expect_eq(node_client_status(s.other).sessions, 2);
    free(more.timeline);
    fixture_end(&s);
}

Test(node, refuses_blocks_outside_of_its_own_range) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 1, 3);
    node_client *t = node_client_new(w, 0);
    const int ranges[][2] = {{0, 2}, {2, 4}, {0, 4}, {3, 4}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        node_session p;
        node_session_init(&p, w, t, ranges[i][0], ranges[i][1]);
        sn_msg *msg = node_session_open_message(&p);
        cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "this node serves 1:3"));
        free(p.timeline);
    }
    node_client_free(&t);
    testbed_free(&w);
}

Test(node, refuses_a_session_id_in_use_but_answers_a_repeated_open) {
    fixture s = fixture_begin();
    /* the session has tokens */
    expect_refused(&s, node_session_open_message(&s.mine), SN_REFUSED, "session id is in use");
    node_session fresh;
    node_session_init(&fresh, s.w, s.client, 0, s.w->n_blocks);
    node_session_open(&fresh);
    node_session_open(&fresh);
    fresh.client = s.other; /* another client does not get it */
    sn_msg *msg = node_session_open_message(&fresh);
    cr_expect(is_refusal(node_client_request(s.other, &msg), SN_REFUSED, "session id is in use"));
    fresh.client = s.client;
    cr_expect(node_session_step_ok(&fresh, 0, 3));
    node_session_close(&fresh);
    fixture_end(&s);
}

Test(node, limits_the_number_of_sessions) {
    fixture s = fixture_begin();
    node_session more[6], late;
    for (int i = 0; i < 6; i++) {
        node_session_init(&more[i], s.w, s.client, 0, s.w->n_blocks);
        node_session_open(&more[i]);
    }
    node_session_init(&late, s.w, s.client, 0, s.w->n_blocks);
    expect_refused(&s, node_session_open_message(&late), SN_RETRY, "8 sessions already");
    node_session_close(&more[2]);
    int64_t deadline = sn_now_us() + 5000000;
    while (node_client_status(s.client).sessions == 8 && sn_now_us() < deadline) {}
    node_session_open(&late);
    cr_expect(node_session_step_ok(&late, 0, 2));
    node_session_close(&late);
    for (int i = 0; i < 6; i++)
        if (i != 2) node_session_close(&more[i]);
    fixture_end(&s);
}

/* -- STEP */

Test(node, refuses_steps_of_unknown_or_foreign_sessions) {
    fixture s = fixture_begin();
    sn_msg *msg = node_session_step_message(&s.mine, 8, 1);
    msg->step.session[0] ^= 1;
    expect_refused(&s, msg, SN_REBUILD, "does not know the session");
    node_session stolen = s.witness;
    msg = node_session_step_message(&stolen, stolen.length, 1);
    expect_refused(&s, msg, SN_REFUSED, "belongs to another client");
    sn_msg *close = node_session_close_message(&s.witness);
    expect_refused(&s, close, SN_REFUSED, "only its owner may close it");
    cr_expect(node_session_step_ok(&s.mine, 8, 1));
    fixture_end(&s);
}

Test(node, refuses_steps_that_do_not_fit_the_timeline) {
    fixture s = fixture_begin();
    const uint64_t steps[] = {0, 3, (uint64_t)(INT64_MAX >> 8)};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        sn_msg *msg = node_session_step_message(&s.mine, 8, 1);
        msg->step.step = steps[i];
        memset(msg->step.timeline, 0, SN_HASH_SIZE); /* numbers are left out only by who knows the timeline */
        expect_refused(&s, msg, SN_REBUILD, "does not follow step 1");
    }
    const uint64_t positions[] = {9, 96, 1 << 30};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        sn_msg *msg = node_session_step_message(&s.mine, 8, 1);
        msg->step.position = positions[i];
        expect_refused(&s, msg, SN_REFUSED, "beyond the session's end at 8");
    }
    sn_msg *msg = node_session_step_message(&s.mine, 8, 1);
    msg->step.timeline[31] ^= 0x80;
    expect_refused(&s, msg, SN_REBUILD, "MISMATCH");
    msg = node_session_step_message(&s.mine, 8, 1); /* a rewind to another timeline */
    msg->step.position = 4;
    expect_refused(&s, msg, SN_REBUILD, "MISMATCH");
    cr_expect(node_session_step_ok(&s.mine, 8, 1));
    fixture_end(&s);
}

static sn_msg *step_message_of_shape(node_session *p, int rank, const uint64_t *shape) {
    sn_msg *msg = node_session_step_message(p, p->length, 1);
    void *data;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, rank, shape, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    return msg;
}

Test(node, refuses_tensors_that_do_not_fit_the_model) {
    fixture s = fixture_begin();
    uint64_t width = (uint64_t)s.w->n_embd;
    expect_refused(&s, step_message_of_shape(&s.mine, 1, (uint64_t[]){width}), SN_REFUSED,
                   "must have shape (tokens, 64)");
    expect_refused(&s, step_message_of_shape(&s.mine, 3, (uint64_t[]){1, 1, width}), SN_REFUSED,
                   "must have shape (tokens, 64)");
    expect_refused(&s, step_message_of_shape(&s.mine, 2, (uint64_t[]){1, width - 1}), SN_REFUSED,
                   "must have shape (tokens, 64)");
    expect_refused(&s, step_message_of_shape(&s.mine, 2, (uint64_t[]){1, 2 * width}), SN_REFUSED,
                   "must have shape (tokens, 64)");
    expect_refused(&s, step_message_of_shape(&s.mine, 2, (uint64_t[]){513, width}), SN_REFUSED, "at most 512 at once");
    expect_refused(&s, step_message_of_shape(&s.mine, 2, (uint64_t[]){89, width}), SN_REFUSED, "limit of 96 tokens");
    cr_expect(node_session_step_ok(&s.mine, 8, 1));
    fixture_end(&s);
}

Test(node, refuses_routes_that_are_too_long_or_were_not_opened) {
    fixture s = fixture_begin();
    sn_msg *msg = node_session_step_message(&s.mine, 8, 1);
    REQUIRE(sn_list_new(SN_HOPS_MAX, SN_HOPS_MAX, sizeof *msg->step.trace, &msg->step.trace, &err));
    msg->step.n_trace = SN_HOPS_MAX;
    expect_refused(&s, msg, SN_REFUSED, "more than 64 nodes");
    msg = node_session_step_message(&s.mine, 8, 1);
    REQUIRE(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = 1;
    expect_refused(&s, msg, SN_REFUSED, "opened without a next node");
    cr_expect(node_session_step_ok(&s.mine, 8, 1));
    fixture_end(&s);
}

Test(node, refuses_reply_messages) {
    fixture s = fixture_begin();
    sn_msg *msg = NULL;
    for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) { /* nodes send each other PEERS_REPLY and PONG */
        bool answer = kind == SN_MSG_OPEN_REPLY || kind == SN_MSG_CLOSE_REPLY || kind == SN_MSG_STATUS_REPLY ||
                      kind == SN_MSG_STEP_REPLY;
        if (!answer) continue;
        void *data;
        REQUIRE(sn_msg_new((sn_msg_kind)kind, 0, &msg, &err));
        if (kind == SN_MSG_STEP_REPLY) {
            REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){1}, &data, &err));
            memset(data, 0, 4);
        }
        expect_refused(&s, msg, SN_REFUSED, "it is a reply");
    }
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = 1;
    expect_refused(&s, msg, SN_REFUSED, "protocol 6");
    fixture_end(&s);
}

Test(node, nan_inputs_do_not_affect_other_sessions) {
    fixture s = fixture_begin();
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sn_msg *msg = node_session_step_message(&s.mine, 8, 4);
        float *data = msg->owner;
        for (int k = 0; k < 4 * s.w->n_embd; k += 3) data[k] = bad[i];
        msg->step.position = 8;
        sn_msg *answer = node_client_request(s.client, &msg);
        cr_expect_eq(answer->kind, SN_MSG_STEP_REPLY);
        sn_msg_free(&answer);
        s.mine.step++;
        cr_expect(witness_step_ok(&s));
    }
    cr_expect(node_session_step_ok(&s.mine, 8, 4)); /* a rewind removes the NaNs */
    fixture_end(&s);
}
