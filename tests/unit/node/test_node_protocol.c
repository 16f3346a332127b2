/* What a node decides about sessions, steps, drains and training, message by message. */
#include "model/safetensors.h"
#include "node/engine/training.h"
#include "node/protocol/adapter_table.h"
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

Test(node_protocol, closes_idle_sessions_and_no_others) {
    protocol_fixture b;
    node_session idle, busy;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &idle, T0);
    protocol_fixture_open(&b, &busy, T0);
    cr_expect(
        node_session_reply_ok(&idle, protocol_fixture_request(&b, node_session_step_message(&idle, 0, 40), T0), 0, 40));
    cr_expect(node_session_reply_ok(
        &busy, protocol_fixture_request(&b, node_session_step_message(&busy, 0, 5), T0 + 50 * SECOND), 0, 5));
    for (int64_t now = T0; now <= T0 + 60 * SECOND; now += 5 * SECOND) sn_protocol_tick(b.protocol, now, b.unix_ms);
    cr_expect_eq(protocol_fixture_count_sessions(&b, T0 + 60 * SECOND), 2);
    sn_protocol_tick(b.protocol, T0 + 80 * SECOND, b.unix_ms);
    protocol_fixture_run_jobs(&b, T0 + 80 * SECOND);
    cr_expect_eq(protocol_fixture_count_sessions(&b, T0 + 80 * SECOND), 1);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), b.w->page_bytes);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_step_message(&idle, 40, 1), T0 + 80 * SECOND),
                         SN_REBUILD, "does not know"));
    cr_expect(node_session_reply_ok(
        &busy, protocol_fixture_request(&b, node_session_step_message(&busy, 5, 1), T0 + 80 * SECOND), 5, 1));
    free(idle.timeline), free(busy.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, keeps_the_reply_of_a_step_for_a_minute) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    sn_msg *again[2] = {node_session_step_message(&p, 0, 3), node_session_step_message(&p, 0, 3)};
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 3), T0), 0, 3));
    for (int i = 0; i < 2; i++) {
        int64_t now_us = T0 + (40 + 20 * i) * SECOND;
        sn_protocol_tick(b.protocol, now_us, b.unix_ms);
        again[i]->step.step = 1;
        sn_msg *answer = protocol_fixture_request(&b, again[i], now_us);
        if (i)
            cr_expect(is_refusal(answer, SN_REBUILD, "step 1 does not follow step 1"));
        else
            cr_expect(answer && answer->kind == SN_MSG_STEP_REPLY);
        if (!i) sn_msg_free(&answer);
    }
    cr_expect(node_session_reply_ok(
        &p, protocol_fixture_request(&b, node_session_step_message(&p, 3, 1), T0 + 60 * SECOND), 3, 1));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, a_draining_node_serves_and_opens_no_session) {
    protocol_fixture b;
    node_session p, late;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 4), T0), 0, 4));
    sn_protocol_drain(b.protocol, b.unix_ms);
    sn_msg *notice = node_client_receive(&b.client, 0, 100);
    cr_assert(notice && notice->kind == SN_MSG_DRAINING && !memcmp(notice->draining.session, p.id, SN_SESSION_ID_SIZE));
    sn_msg_free(&notice);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 4, 3), T0), 4, 3));
    node_session_init(&late, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_open_message(&late), T0), SN_RETRY,
                         "this node is leaving"));
    cr_expect_eq(sn_protocol_session_count(b.protocol), 1);
    sn_msg *answer = protocol_fixture_request(&b, node_session_close_message(&p), T0);
    cr_expect_eq(sn_protocol_session_count(b.protocol), 0, "the drain did not end");
    sn_msg_free(&answer);
    free(p.timeline), free(late.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, refuses_everything_once_it_leaves) {
    protocol_fixture b;
    node_session p, late;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 4), T0), 0, 4));
    sn_msg *msg = node_session_step_message(&p, 4, 3); /* in the engine when the node leaves: it is still answered */
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    sn_protocol_leave(b.protocol, b.unix_ms);
    cr_expect(sn_protocol_busy(b.protocol));
    protocol_fixture_run_jobs(&b, T0);
    cr_expect_not(sn_protocol_busy(b.protocol));
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, request, 100), 4, 3));
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_step_message(&p, 7, 1), T0), SN_RETRY,
                         "this node is leaving"));
    node_session_init(&late, b.w, &b.client, 0, 4);
    cr_expect(is_refusal(protocol_fixture_request(&b, node_session_open_message(&late), T0), SN_RETRY,
                         "this node is leaving"));
    free(p.timeline), free(late.timeline);
    protocol_fixture_end(&b);
}

static sn_node_state announced_state(protocol_fixture *b) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    sn_msg *answer = protocol_fixture_request(b, msg, T0);
    cr_assert(answer && answer->kind == SN_MSG_PEERS_REPLY && answer->peers_reply.n_announcements == 1);
    sn_announcement *a = calloc(1, sizeof *a);
    const sn_blob *blob = answer->peers_reply.announcements;
    REQUIRE(sn_announcement_open(blob->data, blob->len, b->unix_ms, a, &err));
    sn_node_state state = a->state;
    free(a);
    sn_msg_free(&answer);
    return state;
}

Test(node_protocol, announces_that_it_drains_and_leaves_even_in_the_same_millisecond) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    sn_protocol_tick(b.protocol, T0, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_ONLINE);
    sn_protocol_drain(b.protocol, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_DRAINING);
    sn_protocol_leave(b.protocol, b.unix_ms);
    cr_expect_eq(announced_state(&b), SN_NODE_OFFLINE);
    protocol_fixture_end(&b);
}

Test(node_protocol, a_full_job_queue_leaves_a_usable_session) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 20), T0), 0, 20));
    sn_msg *msg = node_session_step_message(&p, 5, 10); /* a rewind to other tokens that are never computed */
    memset(msg->owner, 0, 64);
    b.queue_max = 0;
    cr_expect(is_refusal(protocol_fixture_request(&b, msg, T0), SN_RETRY, "queue is full"));
    b.queue_max = 8;
    msg = node_session_step_message(&p, 20, 1); /* the tokens after position 5 are no longer valid */
    cr_expect(is_refusal(protocol_fixture_request(&b, msg, T0), SN_REFUSED, "beyond the session's end at 5"));
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 5, 30), T0), 5, 30));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, a_busy_session_is_closed_when_its_step_is_done) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    sn_msg *msg = node_session_step_message(&p, 0, 20);
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    cr_assert_eq(b.n_waiting, 1);
    msg = node_session_close_message(&p);
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    msg = node_session_open_message(&p);
    cr_expect(is_refusal(protocol_fixture_request(&b, msg, T0), SN_REFUSED,
                         "in use")); /* not before the old session is closed */
    cr_expect_eq(protocol_fixture_count_sessions(&b, T0), 0);
    cr_expect_eq(sn_kv_pool_bytes_used(b.pool), 0);
    cr_expect_null(node_client_receive(&b.client, request, 50));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, frees_everything_when_it_ends_during_work) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 40), T0), 0, 40));
    sn_msg *msg = node_session_step_message(&p, 40, 20);
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* A node that was to be joined gets the announcement again when it is back; its loss causes no reply. */
Test(node_protocol, announces_again_to_a_joined_node_that_was_lost) {
    protocol_fixture b;
    sn_identity identity;
    char bound[SN_ADDRESS_MAX + 1];
    sn_event event;
    protocol_fixture_begin(&b);
    sn_transport *joined = cluster_transport(b.w->cluster, &identity);
    REQUIRE(sn_transport_listen(joined, "joined:1", bound, &err));
    sn_protocol_tick(b.protocol, T0, b.unix_ms);
    sn_protocol_join(b.protocol, "joined:1", identity.curve_key);
    REQUIRE(sn_transport_recv(joined, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS);
    sn_msg_free(&event.msg);
    sn_transport_free(&joined);
    REQUIRE(sn_transport_recv(b.transport, 0, &event, &err));
    cr_assert(event.lost);
    joined = cluster_transport_as(b.w->cluster, &identity);
    REQUIRE(sn_transport_listen(joined, "joined:1", bound, &err));
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    REQUIRE(sn_transport_recv(joined, 0, &event, &err));
    cr_assert_null(event.msg);
    sn_protocol_tick(b.protocol, T0 + 16 * SECOND, b.unix_ms + 16000);
    REQUIRE(sn_transport_recv(joined, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS);
    sn_msg_free(&event.msg);
    sn_transport_free(&joined);
    protocol_fixture_end(&b);
}

/* -- steps that arrive before the previous one is answered */

static uint64_t send_step(protocol_fixture *b, node_session *p, uint64_t step, int position, int n, bool knows) {
    sn_msg *msg = node_session_step_message(p, position, n);
    msg->step.step = step;
    if (!knows) memset(msg->step.timeline, 0, SN_HASH_SIZE);
    uint64_t request = node_client_send(&b->client, &msg);
    protocol_fixture_read(b, T0);
    return request;
}

Test(node_protocol, pipelined_steps_are_answered_in_order) {
    protocol_fixture b;
    node_session p;
    uint64_t requests[4];
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    for (int i = 0; i < 4; i++) requests[i] = send_step(&b, &p, (uint64_t)i + 1, 10 * i, 10, i % 2);
    requests[2] = send_step(&b, &p, 3, 20, 10, true); /* sent twice: answered once */
    cr_expect_eq(b.n_waiting, 1, "the engine got more than one step of a session");
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 4; i++) {
        sn_msg *answer = node_client_receive(&b.client, 0, 100);
        cr_assert(answer);
        cr_expect_eq(answer->correlation_id, requests[i]);
        cr_expect(node_session_reply_ok(&p, answer, 10 * i, 10));
    }
    cr_expect_null(node_client_receive(&b.client, 0, 20));
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* A client that sends a long step in parts and lost the connection begins with the first part again. */
Test(node_protocol, other_rows_under_the_number_of_a_step_in_progress_are_not_answered_with_its_rows) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 10), T0), 0, 10));
    uint64_t second = send_step(&b, &p, 2, 10, 10, true), third = send_step(&b, &p, 3, 20, 10, false);
    send_step(&b, &p, 2, 0, 10, true);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REBUILD, "in progress with other rows"));
    send_step(&b, &p, 3, 20, 9, false);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REBUILD, "in progress with other rows"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 2; i++) {
        sn_msg *answer = node_client_receive(&b.client, 0, 100);
        cr_assert(answer);
        cr_expect_eq(answer->correlation_id, i ? third : second);
        cr_expect(node_session_reply_ok(&p, answer, 10 + 10 * i, 10));
    }
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, steps_after_a_failed_one_fail_too) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    send_step(&b, &p, 1, 0, 10, true);
    send_step(&b, &p, 2, 11, 5, true); /* leaves a gap */
    send_step(&b, &p, 3, 16, 5, false);
    protocol_fixture_run_jobs(&b, T0);
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 0, 10));
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REFUSED, "beyond the session's end"));
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REBUILD, "step 3 does not follow step 1"));
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 10, 5), T0), 10, 5));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, pipelined_steps_are_bounded_in_number_and_tokens) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    for (uint64_t i = 1; i <= SN_PREFILL_DEPTH_MAX + 1; i++) send_step(&b, &p, i, (int)i - 1, 1, true);
    send_step(&b, &p, SN_PREFILL_DEPTH_MAX + 2, SN_PREFILL_DEPTH_MAX + 1, 1, true);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_RETRY, "32 steps are queued"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i <= SN_PREFILL_DEPTH_MAX; i++)
        cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), i, 1));
    const uint64_t first = SN_PREFILL_DEPTH_MAX + 2;
    for (uint64_t i = first; i < first + 7; i++)
        send_step(&b, &p, i, 9 + (int)(i - first), 80, true); /* the first step is computed, six wait: 480 tokens */
    send_step(&b, &p, first + 7, 16, 33, true);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_RETRY, "6 steps are queued"));
    free(p.timeline);
    protocol_fixture_end(&b); /* with waiting steps */
}

Test(node_protocol, waiting_steps_that_a_rewind_leaves_nothing_of_are_given_up) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    for (int i = 0; i < 5; i++) send_step(&b, &p, (uint64_t)i + 1, 10 * i, 10, i == 0);
    send_step(&b, &p, 6, 10, 5, true); /* the steps 2 to 5 wait */
    protocol_fixture_run_jobs(&b, T0);
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 0, 10));
    p.step = 5;
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 10, 5),
              "the next answer is that one's");
    cr_expect_null(node_client_receive(&b.client, 0, 100));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, a_step_in_computation_that_a_rewind_leaves_nothing_of_is_not_answered) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    send_step(&b, &p, 1, 0, 10, true);
    protocol_fixture_run_jobs(&b, T0);
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 0, 10));
    send_step(&b, &p, 2, 10, 10, true);
    send_step(&b, &p, 3, 5, 5, true);
    protocol_fixture_run_jobs(&b, T0);
    p.step = 2;
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 5, 5), "the next answer is that one's");
    cr_expect_null(node_client_receive(&b.client, 0, 100));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, a_step_that_names_the_timeline_may_leave_numbers_out) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    send_step(&b, &p, 1, 0, 10, true);
    protocol_fixture_run_jobs(&b, T0);
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 0, 10));
    send_step(&b, &p, 7, 4, 5, true);
    send_step(&b, &p, 8, 9, 5, false);
    protocol_fixture_run_jobs(&b, T0);
    p.step = 6;
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 4, 5));
    cr_expect(node_session_reply_ok(&p, node_client_receive(&b.client, 0, 100), 9, 5));
    send_step(&b, &p, 10, 14, 5, false); /* what was lost could have been a step of its timeline */
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REBUILD, "step 10 does not follow step 8"));
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* Opens a session at a node whose span takes so many rows in a batch. */
static void open_with_rows(protocol_fixture *b, node_session *p, int rows) {
    sn_span_info span = sn_span_describe(b->span);
    span.rows_max = rows;
    sn_protocol_serve(b->protocol, &span, sn_kv_room_of(b->pool), T0, b->unix_ms);
    protocol_fixture_open(b, p, T0);
    sn_msg *answer = protocol_fixture_request(b, node_session_open_message(p), T0);
    cr_assert(answer && answer->kind == SN_MSG_OPEN_REPLY);
    cr_expect_eq(answer->open_reply.step_tokens_max, (uint64_t)rows);
    sn_msg_free(&answer);
}

Test(node_protocol, a_step_is_as_long_as_the_span_takes_rows) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    open_with_rows(&b, &p, 40);
    send_step(&b, &p, 1, 0, 41, true);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_REFUSED, "at most 40 at once"));
    send_step(&b, &p, 1, 0, 40, true);
    send_step(&b, &p, 2, 40, 30, true);
    send_step(&b, &p, 3, 70, 11, true); /* 41 would wait */
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_RETRY, "1 steps are queued"));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, an_unknown_timeline_is_accepted_only_at_the_sessions_end) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 10), T0), 0, 10));
    sn_msg *msg = node_session_step_message(&p, 4, 2);
    memset(msg->step.timeline, 0, SN_HASH_SIZE);
    cr_expect(is_refusal(protocol_fixture_request(&b, msg, T0), SN_REBUILD, "MISMATCH"));
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, sessions_beyond_the_context_and_chains_of_too_many_nodes_are_refused) {
    const uint64_t lengths[] = {0, 1 << 20};
    protocol_fixture b;
    node_session p, q;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    node_session_init(&q, b.w, &b.client, 0, 4);
    for (int i = 0; i < 2; i++) {
        sn_msg *msg = node_session_open_message(&q);
        msg->open.max_tokens = lengths[i];
        cr_expect(is_refusal(protocol_fixture_request(&b, msg, T0), SN_REFUSED, "longer than the model's context"));
    }
    for (size_t n = SN_HOPS_MAX - 1; n <= SN_HOPS_MAX; n++) {
        sn_msg *msg = node_session_step_message(&p, 0, 1);
        REQUIRE(sn_list_new(n, SN_HOPS_MAX, sizeof *msg->step.trace, &msg->step.trace, &err));
        msg->step.n_trace = n;
        sn_msg *answer = protocol_fixture_request(&b, msg, T0);
        cr_expect_eq(is_refusal(answer, SN_REFUSED, "a chain of more than"), n == SN_HOPS_MAX);
    }
    free(q.timeline);
    free(p.timeline);
    protocol_fixture_end(&b);
}

Test(node_protocol, closing_a_session_frees_its_waiting_steps) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    for (uint64_t i = 1; i < 4; i++) send_step(&b, &p, i, 10 * ((int)i - 1), 10, true);
    sn_msg *msg = node_session_close_message(&p);
    node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    cr_expect_eq(sn_protocol_session_count(b.protocol), 0);
    free(p.timeline);
    protocol_fixture_end(&b);
}

static sn_msg *batch_message(const protocol_fixture *b, size_t sequences, uint64_t tokens) {
    sn_msg *msg = NULL;
    void *rows;
    REQUIRE(sn_msg_new(SN_MSG_FORWARD, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){sequences * tokens, (uint64_t)b->w->n_embd}, &rows, &err));
    memset(rows, 0, msg->tensor.bytes);
    msg->forward.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->forward.model, b->w->model.bytes, SN_HASH_SIZE);
    msg->forward.end_block = 4;
    REQUIRE(sn_list_new(sequences, SN_SAMPLES_MAX, sizeof *msg->forward.samples, &msg->forward.samples, &err));
    msg->forward.n_samples = sequences;
    for (size_t i = 0; i < sequences; i++) msg->forward.samples[i].tokens = tokens;
    return msg;
}

/* Many clients that send large batches, while none is computed: those that wait have no more bytes than training has.
 */
Test(node_protocol, training_batches_of_many_clients_wait_within_the_memory_of_training) {
    enum { CLIENTS = 12, EACH = 2 };
    protocol_fixture b;
    node_client clients[CLIENTS];
    size_t bytes = 0, sent = 0;
    protocol_fixture_begin(&b);
    b.queue_max = 16;
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = protocol_fixture_client(&b);
        for (int k = 0; k < EACH; k++) {
            sn_msg *msg = batch_message(&b, 2, 200); /* 100 KiB */
            sent += msg->tensor.bytes;
            node_client_send(&clients[i], &msg);
        }
        protocol_fixture_read(&b, T0);
    }
    for (int i = 0; i < b.n_waiting; i++) bytes += b.waiting[i]->training->request_msg->tensor.bytes;
    cr_expect_gt(sent, 2 * TUNE_BYTES);
    cr_expect_leq(bytes, TUNE_BYTES);
    cr_expect_gt(bytes, TUNE_BYTES / 2);
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < CLIENTS; i++) sn_transport_free(&clients[i].transport);
    protocol_fixture_end(&b);
}

Test(node_protocol, training_batches_of_all_clients_are_bounded) {
    enum { EACH = 8, CLIENTS = SN_TRAINING_BATCHES_MAX / EACH };
    protocol_fixture b;
    node_client clients[CLIENTS + 1];
    uint64_t request = 0;
    protocol_fixture_begin(&b);
    b.queue_max = 2 * SN_TRAINING_BATCHES_MAX;
    for (int i = 0; i <= CLIENTS; i++) {
        clients[i] = protocol_fixture_client(&b);
        for (int k = 0; k < (i < CLIENTS ? EACH : 1); k++) {
            sn_msg *msg = batch_message(&b, 1, 1);
            request = node_client_send(&clients[i], &msg);
        }
        protocol_fixture_read(&b, T0);
    }
    cr_expect_eq(b.n_waiting, SN_TRAINING_BATCHES_MAX);
    cr_expect(is_refusal(node_client_receive(&clients[CLIENTS], request, 100), SN_RETRY, "32 batches to train"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i <= CLIENTS; i++) sn_transport_free(&clients[i].transport);
    protocol_fixture_end(&b);
}

Test(node_protocol, training_of_a_client_that_hung_up_is_cancelled) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    sn_event event;
    sn_msg *msg = batch_message(&b, 1, 5);
    node_client_send(&second, &msg);
    protocol_fixture_read(&b, T0);
    msg = batch_message(&b, 1, 5);
    uint64_t request = node_client_send(&b.client, &msg);
    REQUIRE(sn_transport_recv(b.transport, 0, &event, &err));
    sn_peer peer = event.peer;
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_assert_eq(b.n_waiting, 2);
    event = (sn_event){.peer = peer, .gone = true};
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_expect(!atomic_load(&b.waiting[0]->cancelled), "another client's");
    cr_expect(atomic_load(&b.waiting[1]->cancelled));
    protocol_fixture_run_jobs(&b, T0);
    cr_expect(is_refusal(node_client_receive(&b.client, request, 100), SN_RETRY, "has ended"));
    sn_transport_free(&second.transport);
    protocol_fixture_end(&b);
}

/* A message with an adapter of one prompt, for any model; its hash. */
static sn_msg *adapter_put_message(const protocol_fixture *b, sn_hash *hash) {
    static const float row[4096];
    sn_msg *msg = NULL;
    void *data;
    sn_buf image;
    sn_buf_init(&image, 1 << 20);
    const sn_safetensors_entry entry = {"prompt.1", SN_F32, 2, {1, (size_t)b->w->n_embd}, row};
    REQUIRE(sn_safetensors_serialize(&entry, 1, &image, &err));
    REQUIRE(sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image.len / 4}, &data, &err));
    memcpy(data, image.data, image.len);
    *hash = sn_hash_of(image.data, image.len);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, b->w->model.bytes, SN_HASH_SIZE);
    memcpy(msg->adapter_put.hash, hash->bytes, SN_HASH_SIZE);
    sn_buf_fini(&image);
    return msg;
}

Test(node_protocol, training_that_is_cancelled_unloads_no_adapter) {
    protocol_fixture b;
    sn_event event;
    sn_hash hash;
    protocol_fixture_begin(&b);
    sn_msg *answer = protocol_fixture_request(&b, adapter_put_message(&b, &hash), T0), *msg = batch_message(&b, 1, 5);
    cr_assert(answer && answer->kind == SN_MSG_ADAPTER_PUT_REPLY);
    sn_msg_free(&answer);
    node_client_send(&b.client, &msg);
    REQUIRE(sn_transport_recv(b.transport, 0, &event, &err));
    sn_peer peer = event.peer;
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_assert_eq(b.n_waiting, 1);
    event = (sn_event){.peer = peer, .gone = true};
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    protocol_fixture_run_jobs(&b, T0);
    msg = batch_message(&b, 1, 5);
    memcpy(msg->forward.adapter, hash.bytes, SN_HASH_SIZE);
    answer = protocol_fixture_request(&b, msg, T0);
    cr_expect(answer && answer->kind == SN_MSG_FORWARD_REPLY);
    sn_msg_free(&answer);
    protocol_fixture_end(&b);
}

Test(node_protocol, adapters_that_one_network_sends_at_once_leave_places_for_others) {
    enum { HALF = SN_ADAPTER_ENTRIES_MAX / 2 };
    protocol_fixture b;
    sn_event event;
    sn_hash hash;
    protocol_fixture_begin(&b);
    b.queue_max = SN_ADAPTER_ENTRIES_MAX;
    for (int i = 0; i < HALF + 2; i++) {
        sn_msg *msg = adapter_put_message(&b, &hash);
        msg->adapter_put.hash[0] = (uint8_t)i;
        uint64_t request = node_client_send(&b.client, &msg);
        REQUIRE(sn_transport_recv(b.transport, 0, &event, &err));
        if (i > HALF) event.network[0] ^= 1;
        sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
        cr_assert_eq(b.n_waiting, i < HALF ? i + 1 : i, "adapter %d", i);
        if (i == HALF)
            cr_expect(is_refusal(node_client_receive(&b.client, request, 100), SN_RETRY, "adapters of your network"));
    }
    protocol_fixture_run_jobs(&b, T0);
    protocol_fixture_end(&b);
}

Test(node_protocol, training_does_not_keep_a_node_from_other_blocks) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    sn_msg *msg = batch_message(&b, 1, 5);
    uint64_t request = node_client_send(&b.client, &msg);
    protocol_fixture_read(&b, T0);
    cr_assert_eq(b.n_waiting, 1);
    sn_protocol_reload(b.protocol, T0, b.unix_ms);
    cr_expect(!atomic_load(&b.waiting[0]->cancelled), "there is time yet");
    sn_protocol_tick(b.protocol, T0 + 1, b.unix_ms);
    cr_expect(atomic_load(&b.waiting[0]->cancelled));
    protocol_fixture_run_jobs(&b, T0 + 1);
    cr_expect(is_refusal(node_client_receive(&b.client, request, 100), SN_RETRY, "this node leaves"));
    cr_expect(sn_protocol_wants_rebalance(b.protocol));
    protocol_fixture_end(&b);
}

Test(node_protocol, training_batches_are_bounded_per_client_and_in_bytes) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    b.queue_max = 16;
    uint64_t asked[8];
    for (int i = 0; i < 8; i++) {
        sn_msg *msg = batch_message(&b, 1, 5);
        asked[i] = node_client_send(&b.client, &msg);
    }
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 8);
    sn_msg *ninth = batch_message(&b, 1, 5);
    uint64_t request = node_client_send(&b.client, &ninth);
    protocol_fixture_read(&b, T0);
    cr_expect(is_refusal(node_client_receive(&b.client, request, 100), SN_RETRY, "8 of them yours"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 8; i++) {
        sn_msg *answer = node_client_receive(&b.client, asked[i], 100);
        cr_assert(answer && answer->kind == SN_MSG_FORWARD_REPLY, "%s", answer ? answer->error.text : "no answer");
        sn_msg_free(&answer);
    }
    sn_msg *answer = protocol_fixture_request(&b, batch_message(&b, 1, 5), T0);
    cr_expect(answer && answer->kind == SN_MSG_FORWARD_REPLY, "no capacity was freed");
    sn_msg_free(&answer);
    cr_assert_eq(b.w->n_embd, 64); /* 256 bytes per row: there is memory for 4096 rows */
    cr_expect(is_refusal(protocol_fixture_request(&b, batch_message(&b, 10, 410), T0), SN_REFUSED, "--tune-memory"));
    sn_msg *half = batch_message(&b, 5, 400), *other = batch_message(&b, 5, 400); /* nearly half of it each */
    node_client_send(&b.client, &half);
    request = node_client_send(&b.client, &other);
    protocol_fixture_read(&b, T0);
    cr_expect(is_refusal(node_client_receive(&b.client, request, 100), SN_RETRY, "1 batches"));
    node_client second = protocol_fixture_client(&b); /* finds the memory that the first one may not take */
    sn_msg *small = batch_message(&b, 5, 400);
    node_client_send(&second, &small);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 2, "the batch of another client was refused");
    protocol_fixture_run_jobs(&b, T0);
    sn_transport_free(&second.transport);
    protocol_fixture_end(&b);
}
