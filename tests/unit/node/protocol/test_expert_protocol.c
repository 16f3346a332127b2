/* How a node asks holders for experts, and when it counts on them. */
#include "node/protocol/protocol_private.h" /* private: whether the group is complete */
#include "tests/support/expert_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_US = 6 * SECOND }; /* longer than any answer of a test is waited for */

static expert_fixture f;

static void set_up(void) { experts_begin(&f); }
static void tear_down(void) { experts_end(&f); }

TestSuite(expert_protocol, .init = set_up, .fini = tear_down);

/* A round of two rows of block 1: row 0 with experts 3 and 7, row 1 with expert 5. */
static sn_expert_round *new_round(void) {
    static const sn_expert_pair pairs[] = {{0, 3}, {0, 7}, {1, 5}};
    sn_expert_round *round = calloc(1, sizeof *round);
    *round = (sn_expert_round){.number = 1, .block = 1, .n_embd = EMBD, .n_rows = 2, .n_pairs = 3};
    round->rows = calloc(2 * EMBD, sizeof *round->rows);
    round->pairs = calloc(3, sizeof *round->pairs);
    round->out = calloc(3 * EMBD, sizeof *round->out);
    round->until_us = f.now + SN_EXPERT_ROUND_US;
    memcpy(round->pairs, pairs, sizeof pairs);
    for (int i = 0; i < 2 * EMBD; i++) round->rows[i] = (float)i;
    return round;
}

static void ask(void) {
    sn_expert_round_free(&f.answered);
    sn_protocol_ask_experts(f.protocol, new_round(), f.now);
}

/* The number of the holder that was asked; -1: none. *request: what it was asked for. */
static int asked(sn_msg **request, sn_peer *peer) {
    for (int i = 0; i < HOLDERS; i++)
        if ((*request = experts_receive(&f.holders[i], SN_MSG_EXPERTS, peer))) return i;
    return -1;
}

/* What expert e makes of a row in these tests: e times the row. A reply with `rows` rows of `width` numbers. */
static void reply(int holder_number, sn_peer peer, const sn_msg *request, size_t rows, size_t width) {
    sn_msg *msg = experts_message(SN_MSG_EXPERTS_REPLY, request->correlation_id);
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){rows, width}, &data, &err));
    memset(data, 0, rows * width * sizeof(float));
    for (size_t i = 0; i < request->experts.n_pairs && i < rows && width == EMBD; i++) {
        const sn_expert_pair *pair = &request->experts.pairs[i];
        const float *row = (const float *)request->tensor.data + pair->row * EMBD;
        for (int c = 0; c < EMBD; c++) ((float *)data)[i * EMBD + (size_t)c] = (float)pair->expert * row[c];
    }
    REQUIRE(sn_transport_send(f.holders[holder_number].transport, peer, &msg, &err));
    experts_read(&f);
}

static void expect_right_answer(void) {
    cr_assert(f.answered);
    cr_assert_eq(f.answered->status, SN_OK, "%s", f.answered->err.text);
    for (size_t i = 0; i < f.answered->n_pairs; i++)
        for (int c = 0; c < EMBD; c++)
            cr_expect_eq(f.answered->out[i * EMBD + (size_t)c],
                         (float)f.answered->pairs[i].expert *
                             f.answered->rows[f.answered->pairs[i].row * EMBD + (size_t)c]);
}

static void expect_failed(const char *part) {
    cr_assert(f.answered);
    cr_expect_eq(f.answered->status, SN_RETRY);
    cr_expect(strstr(f.answered->err.text, part), "%s", f.answered->err.text);
}

/* Asks, lets the first holder fail in some way, and expects that the other one is asked for the same and answers. */
static void expect_other_holder(void (*fail)(int holder_number, sn_peer peer, const sn_msg *request)) {
    sn_msg *request = NULL, *again = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    ask();
    int first = asked(&request, &peer);
    cr_assert(first >= 0);
    fail(first, peer, request);
    cr_expect_null(f.answered);
    int second = asked(&again, &peer);
    cr_assert_eq(second, 1 - first, "the other holder is to be asked");
    cr_expect_eq(again->experts.n_pairs, request->experts.n_pairs);
    reply(second, peer, again, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
    sn_msg_free(&again);
    ask(); /* the one that failed is not asked for a while */
    cr_expect_eq(asked(&request, &peer), second);
    sn_msg_free(&request);
}

Test(expert_protocol, pairs_and_rows_go_to_the_holders_that_have_the_experts) {
    sn_msg *request[2];
    sn_peer peer[2];
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 6);
    experts_announce(&f, 1, SN_NODE_JOINING, 6, 8);
    ask();
    for (int i = 0; i < 2; i++) {
        request[i] = experts_receive(&f.holders[i], SN_MSG_EXPERTS, &peer[i]);
        cr_assert(request[i]);
        cr_expect_eq(request[i]->experts.block, 1);
        cr_expect_arr_eq(request[i]->experts.block_hash, f.hashes[1].bytes, SN_HASH_SIZE);
    }
    cr_expect_eq(request[0]->experts.n_pairs, 2);
    cr_expect_eq(request[0]->tensor.shape[0], 2);
    cr_expect_eq(request[1]->experts.n_pairs, 1);
    cr_expect_eq(request[1]->tensor.shape[0], 1, "only the row that needs the expert");
    reply(1, peer[1], request[1], 1, EMBD);
    cr_expect_null(f.answered, "one answer is missing");
    reply(0, peer[0], request[0], 2, EMBD);
    expect_right_answer();
    sn_msg_free(&request[0]);
    sn_msg_free(&request[1]);
}

static void fail_by_rows(int h, sn_peer peer, const sn_msg *request) { reply(h, peer, request, 2, EMBD); }
static void fail_by_width(int h, sn_peer peer, const sn_msg *request) { reply(h, peer, request, 3, EMBD + 1); }
static void fail_by_silence(int h, sn_peer peer, const sn_msg *request) {
    (void)h;
    (void)peer;
    (void)request;
    experts_pass(&f, LATE_US);
}
static void refuse(int h, sn_peer peer, const sn_msg *request, sn_status status) {
    sn_msg *msg = experts_message(SN_MSG_ERROR, request->correlation_id);
    msg->error.status = (uint64_t)status;
    REQUIRE(sn_transport_send(f.holders[h].transport, peer, &msg, &err));
    experts_read(&f);
}
static void fail_by_refusal(int h, sn_peer peer, const sn_msg *request) { refuse(h, peer, request, SN_REFUSED); }
static void fail_for_want_of_room(int h, sn_peer peer, const sn_msg *request) { refuse(h, peer, request, SN_RETRY); }

Test(expert_protocol, a_holder_that_answers_with_too_few_rows_is_replaced) { expect_other_holder(fail_by_rows); }
Test(expert_protocol, a_holder_that_answers_with_another_width_is_replaced) { expect_other_holder(fail_by_width); }
Test(expert_protocol, a_holder_that_is_late_is_replaced) { expect_other_holder(fail_by_silence); }
Test(expert_protocol, a_holder_that_refuses_is_replaced) { expect_other_holder(fail_by_refusal); }
Test(expert_protocol, a_holder_without_room_is_replaced) { expect_other_holder(fail_for_want_of_room); }

static void expect_nobody_asked(const char *why) {
    sn_msg *request = NULL;
    sn_peer peer;
    cr_expect_eq(asked(&request, &peer), -1, "%s", why);
    sn_msg_free(&request);
}

/* So many ms until there is room; 0: the holder does not say. */
static void refuse_for(int h, sn_peer peer, const sn_msg *request, uint64_t wait_ms) {
    sn_msg *msg = experts_message(SN_MSG_ERROR, request->correlation_id);
    msg->error.status = SN_RETRY;
    msg->error.wait_ms = wait_ms;
    REQUIRE(sn_transport_send(f.holders[h].transport, peer, &msg, &err));
    experts_read(&f);
}

/* Both holders are asked n times, and have no room for 20 ms. */
static void have_no_room(int n) {
    for (int i = 0; i < n; i++) {
        sn_msg *request[2];
        sn_peer peer[2];
        for (int h = 0; h < 2; h++)
            cr_assert(request[h] = experts_receive(&f.holders[h], SN_MSG_EXPERTS, &peer[h]), "%d", i);
        for (int h = 0; h < 2; h++) refuse_for(h, peer[h], request[h], 1);
        cr_assert_null(f.answered);
        for (int h = 0; h < 2; h++) sn_msg_free(&request[h]);
        expect_nobody_asked("they are left in peace for a while");
        experts_pass(&f, SECOND / 50);
    }
}

Test(expert_protocol, pairs_wait_for_room_when_no_holder_has_any) {
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 6);
    experts_announce(&f, 1, SN_NODE_JOINING, 6, 8);
    ask();
    have_no_room(70); /* 140 asks: a round has 128 at once */
    for (int h = 0; h < 2; h++) {
        sn_peer peer;
        sn_msg *request = experts_receive(&f.holders[h], SN_MSG_EXPERTS, &peer);
        cr_assert(request);
        reply(h, peer, request, request->experts.n_pairs, EMBD);
        sn_msg_free(&request);
    }
    expect_right_answer();
}

Test(expert_protocol, pairs_do_not_wait_for_room_longer_than_a_client_does) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    ask();
    for (int i = 0; i < 9; i++) { /* half a second each */
        cr_assert_eq(asked(&request, &peer), 0);
        fail_for_want_of_room(0, peer, request);
        sn_msg_free(&request);
        cr_assert_null(f.answered);
        experts_pass(&f, SECOND / 2);
    }
    cr_assert_eq(asked(&request, &peer), 0);
    fail_for_want_of_room(0, peer, request);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
}

Test(expert_protocol, time_in_which_a_holder_is_late_is_no_wait_for_room) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    ask();
    for (int i = 0; i < 2; i++) { /* neither has room for 20 ms */
        int h = asked(&request, &peer);
        cr_assert_geq(h, 0);
        refuse_for(h, peer, request, 1);
        sn_msg_free(&request);
    }
    experts_pass(&f, SECOND / 50);
    int late = asked(&request, &peer);
    cr_assert_geq(late, 0);
    sn_msg_free(&request);
    experts_pass(&f, LATE_US);
    cr_assert_eq(asked(&request, &peer), 1 - late);
    refuse_for(1 - late, peer, request, 1);
    sn_msg_free(&request);
    cr_assert_null(f.answered);
    experts_pass(&f, SECOND / 50);
    cr_assert_eq(asked(&request, &peer), 1 - late);
    reply(1 - late, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

Test(expert_protocol, a_round_does_not_wait_for_room_that_comes_after_its_end) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    sn_expert_round *round = new_round();
    round->until_us = f.now + SECOND / 4;
    sn_protocol_ask_experts(f.protocol, round, f.now);
    cr_assert_eq(asked(&request, &peer), 0);
    fail_for_want_of_room(0, peer, request);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
}

Test(expert_protocol, a_holder_that_comes_while_pairs_wait_for_room_is_asked) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    ask();
    cr_assert_eq(asked(&request, &peer), 0);
    refuse_for(0, peer, request, 4000);
    sn_msg_free(&request);
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    for (int i = 0; i < 2; i++) experts_pass(&f, SECOND);
    cr_assert_eq(asked(&request, &peer), 1);
    reply(1, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

/* One that has not answered yet gets the pairs as a trial; the round does not wait for it as for one that is needed,
 * and the group stays complete. */
Test(expert_protocol, a_newcomer_that_is_silent_does_not_hold_up_a_round) {
    enum { ROUNDS = 3, TRIAL_US = 500000 };
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    for (int i = 0; i < ROUNDS; i++) {
        ask();
        cr_assert_eq(asked(&request, &peer), 0);
        reply(0, peer, request, 3, EMBD);
        expect_right_answer();
        sn_msg_free(&request);
    }
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    ask();
    cr_assert_eq(asked(&request, &peer), 1);
    sn_msg_free(&request);
    experts_pass(&f, TRIAL_US);
    for (int i = 0; i < ROUNDS; i++) {
        cr_assert_eq(asked(&request, &peer), 0, "the pairs go to the one that answers");
        reply(0, peer, request, 3, EMBD);
        expect_right_answer();
        sn_msg_free(&request);
        ask();
    }
    cr_expect_null(sn_protocol_experts_lacking(f.protocol));
    const sn_expert_holder *newcomer = sn_expert_group_find(&f.protocol->experts.group, f.holders[1].identity.id);
    cr_assert(newcomer);
    cr_expect_eq(newcomer->failed_sequence, 0, "a trial was too short for it, which is no failure");
}

Test(expert_protocol, an_answer_that_comes_too_late_or_from_another_node_is_ignored) {
    sn_msg *request = NULL, *again = NULL;
    sn_peer late, peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    ask();
    int first = asked(&request, &late);
    experts_pass(&f, LATE_US);
    int second = asked(&again, &peer);
    cr_assert_eq(second, 1 - first);
    reply(first, late, request, 3, EMBD);
    cr_expect_null(f.answered);
    reply(first, late, again, 3, EMBD); /* the first holder names what is asked of the second */
    cr_expect_null(f.answered);
    again->correlation_id = request->correlation_id; /* and the second what was asked of the first */
    reply(second, peer, again, 3, EMBD);
    cr_expect_null(f.answered);
    experts_pass(&f, LATE_US);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
    sn_msg_free(&again);
}

Test(expert_protocol, a_round_ends_when_its_time_is_over) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    experts_announce(&f, 1, SN_NODE_JOINING, 3, 8);
    sn_expert_round *round = new_round();
    round->until_us = f.now + SECOND;
    sn_protocol_ask_experts(f.protocol, round, f.now);
    experts_pass(&f, SECOND);
    expect_failed("no answer came in time");
    while (asked(&request, &peer) >= 0) sn_msg_free(&request);
}

Test(expert_protocol, a_newer_round_ends_the_one_before) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    sn_protocol_ask_experts(f.protocol, new_round(), f.now);
    ask();
    cr_assert(f.answered, "the first round was given back");
    cr_expect_eq(f.answered->status, SN_RETRY);
    sn_expert_round_free(&f.answered);
    cr_assert_eq(asked(&request, &peer), 0);
    reply(0, peer, request, 3, EMBD); /* to the first */
    cr_expect_null(f.answered);
    sn_msg_free(&request);
    cr_assert_eq(asked(&request, &peer), 0);
    reply(0, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

static sn_node_state own_state(void) { return sn_directory_find(sn_protocol_directory(f.protocol), f.own.id)->state; }

Test(expert_protocol, the_node_is_online_while_its_group_has_all_experts) {
    sn_msg *request = NULL;
    sn_peer peer;
    experts_pass(&f, SECOND);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    const sn_announcement *a = sn_directory_find(sn_protocol_directory(f.protocol), f.own.id);
    cr_expect_eq(a->n_experts, 3);
    cr_expect_eq(a->experts[1], 3);
    cr_expect_arr_eq(a->block_hash[0], f.hashes[0].bytes, SN_HASH_SIZE, "others ask it meanwhile");
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
    ask();
    cr_assert_eq(asked(&request, &peer), 0);
    experts_pass(&f, LATE_US);
    expect_failed("no node answers");
    cr_expect_eq(own_state(), SN_NODE_JOINING, "at once, and not with the next round of announcements");
    experts_announce(&f, 0, SN_NODE_ONLINE, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_JOINING, "the holder is trusted again after a while");
    experts_pass(&f, 10 * SECOND);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
    experts_announce(&f, 0, SN_NODE_OFFLINE, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    sn_msg_free(&request);
}

Test(expert_protocol, other_nodes_are_asked_for_holders_while_experts_are_missing) {
    sn_peer peer;
    sn_msg *msg = NULL;
    sn_protocol_join(f.protocol, "holder0:1", f.holders[0].identity.curve_key);
    experts_pass(&f, 20 * SECOND);
    cr_assert(msg = experts_receive(&f.holders[0], SN_MSG_PEERS, &peer), "the node joins");
    sn_msg *answer = experts_message(SN_MSG_PEERS_REPLY, msg->correlation_id);
    REQUIRE(sn_transport_send(f.holders[0].transport, peer, &answer, &err));
    sn_msg_free(&msg);
    experts_read(&f);
    bool asked_for_blocks = false;
    experts_pass(&f, 20 * SECOND);
    while ((msg = experts_receive(&f.holders[0], SN_MSG_PEERS, &peer))) {
        asked_for_blocks |= msg->peers.end_block == BLOCKS && !memcmp(msg->peers.model, f.model.bytes, SN_KEY_SIZE);
        sn_msg_free(&msg);
    }
    cr_expect(asked_for_blocks);
}

Test(expert_protocol, a_holder_is_counted_on_when_it_has_answered) {
    f.silent = true;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    experts_pass(&f, 5 * SECOND);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    f.silent = false;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
}

Test(expert_protocol, the_end_of_a_holders_connection_is_noticed_before_the_next_step) {
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    cr_assert_eq(own_state(), SN_NODE_ONLINE);
    sn_transport_free(&f.holders[0].transport);
    experts_read(&f);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
}
