/* How a node asks holders for experts and answers others that ask it: the protocol by hand, with a clock that the test
 * sets, holders that are bare transports, and jobs that wait until the test ends them. */
#include "base/clock.h"
#include "node/protocol/protocol.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum {
    SECOND = 1000000,
    T0 = 100 * SECOND,
    EMBD = 4,
    EXPERTS = 8,
    BLOCKS = 2,
    HOLDERS = 2,
    JOBS_MAX = 64,
    LATE_US = 6 * SECOND, /* longer than any answer of a test is waited for */
};

/* The node holds experts [0, 3) of both blocks; holders 0 and 1 [3, 8). */
static sn_hparams hp = {.name = "fixture",
                        .n_blocks = BLOCKS,
                        .n_embd = EMBD,
                        .n_heads = 1,
                        .n_kv_heads = 1,
                        .head_dim = 4,
                        .n_ctx = 64,
                        .n_experts = EXPERTS,
                        .n_experts_used = 2};
static const sn_hash hashes[BLOCKS] = {{{4}}, {{5}}}, model = {{7}};

typedef struct holder {
    sn_identity identity;
    sn_transport *transport;
    sn_peer node; /* dialled */
} holder;

static sn_hub *hub;
static sn_transport *transport;
static sn_identity own;
static sn_protocol *protocol;
static holder holders[HOLDERS];
static sn_expert_round *answered;
static sn_job *jobs[JOBS_MAX];
static int n_jobs;
static bool silent; /* holders that are announced answer no PING */
static int64_t now, unix_ms;

static bool submit(void *ctx, sn_job *job) {
    (void)ctx;
    if (n_jobs == JOBS_MAX) return false;
    jobs[n_jobs++] = job;
    return true;
}
static sn_engine_stats read_stats(void *ctx) {
    (void)ctx;
    return (sn_engine_stats){.decode_us = 1000};
}
static void answer_round(void *ctx, sn_expert_round *round) {
    (void)ctx;
    cr_assert_null(answered);
    answered = round;
}

static void pump(void) {
    sn_event event;
    for (;;) {
        REQUIRE(sn_transport_recv(transport, 0, &event, &err));
        if (!event.peer) break;
        sn_protocol_handle(protocol, &event, now, unix_ms);
    }
    (void)sn_protocol_tick(protocol, now, unix_ms);
}

static void pass(int64_t us) {
    now += us;
    unix_ms += us / 1000;
    pump();
}

static void send_msg(const holder *h, sn_msg *msg) {
    REQUIRE(sn_transport_send(h->transport, h->node, &msg, &err));
    pump();
}

static sn_msg *new_msg(sn_msg_kind kind, uint64_t correlation_id) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(kind, correlation_id, &msg, &err));
    return msg;
}

/* The next message of this kind that the node has sent to the holder, and its peer there; NULL: none. */
static sn_msg *receive(const holder *h, sn_msg_kind kind, sn_peer *peer) {
    sn_event event;
    for (;;) {
        REQUIRE(sn_transport_recv(h->transport, 0, &event, &err));
        if (!event.peer) return NULL;
        *peer = event.peer;
        if (event.msg && event.msg->kind == kind) return event.msg;
        sn_msg_free(&event.msg);
    }
}

static void announce(int i, sn_node_state state, int first, int end) {
    const holder *h = &holders[i];
    static uint64_t sequence = 1;
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    *a = (sn_announcement){.device = "cpu",
                           .protocol = SN_PROTOCOL_VERSION,
                           .sequence = (uint64_t)unix_ms + sequence++,
                           .expires_unix_ms = (uint64_t)unix_ms + SN_ANNOUNCE_LIFE_MS,
                           .state = state,
                           .end_block = BLOCKS,
                           .n_blocks = BLOCKS,
                           .experts = {(uint64_t)first, (uint64_t)end, EXPERTS},
                           .n_experts = 3};
    snprintf(a->address, sizeof a->address, "holder%d:1", i);
    memcpy(a->node, h->identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, h->identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, model.bytes, SN_KEY_SIZE);
    for (int b = 0; b < BLOCKS; b++) memcpy(a->block_hash[b], hashes[b].bytes, SN_HASH_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &h->identity, &sealed, &err));
    sn_msg *msg = new_msg(SN_MSG_PEERS, 1);
    const sn_blob blob = {sealed.data, sealed.len};
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    msg->peers.from_tag = UINT64_MAX;
    REQUIRE(sn_announcement_list(&blob, &msg->peers.announcements, &msg->peers.n_announcements, &err));
    sn_buf_fini(&sealed);
    free(a);
    send_msg(h, msg);
    pass(SECOND);
    sn_peer peer;
    sn_msg *ping = receive(h, SN_MSG_PING, &peer);
    if (!ping || silent) {
        sn_msg_free(&ping);
        return;
    }
    msg = new_msg(SN_MSG_PONG, ping->correlation_id);
    REQUIRE(sn_transport_send(h->transport, peer, &msg, &err));
    sn_msg_free(&ping);
    pump();
}

static void set_up(void) {
    char bound[SN_ADDRESS_MAX + 1];
    virtual_clock_begin_still();
    now = T0;
    silent = false;
    unix_ms = sn_unix_ms();
    REQUIRE(sn_hub_new(&hub, &err));
    REQUIRE(sn_identity_new(&own, &err));
    REQUIRE(sn_transport_memory_new(hub, &own, &transport, &err));
    REQUIRE(sn_transport_listen(transport, "node:1", bound, &err));
    const sn_protocol_setup setup = {.transport = transport,
                                     .identity = &own,
                                     .address = "node:1",
                                     .name = "fixture",
                                     .span = {.hp = &hp, .end = BLOCKS},
                                     .loading = true,
                                     .model = model,
                                     .sessions_max = 4,
                                     .session_timeout_us = 60 * SECOND,
                                     .kv_timeout_us = SECOND,
                                     .quota = {.steps_per_s = 10},
                                     .submit = submit,
                                     .read_stats = read_stats,
                                     .answer_round = answer_round};
    REQUIRE(sn_protocol_new(&setup, now, &protocol, &err));
    const sn_span_info span = {
        .end = BLOCKS, .hp = &hp, .block_hash = hashes, .exact = true, .devices = "cpu", .experts = {0, 3}};
    int first, end;
    cr_assert(sn_protocol_wants_blocks(protocol, &first, &end));
    sn_protocol_serve(protocol, &span, 1 << 20, now, unix_ms);
    for (int i = 0; i < HOLDERS; i++) {
        char address[32];
        snprintf(address, sizeof address, "holder%d:1", i);
        REQUIRE(sn_identity_new(&holders[i].identity, &err));
        REQUIRE(sn_transport_memory_new(hub, &holders[i].identity, &holders[i].transport, &err));
        REQUIRE(sn_transport_listen(holders[i].transport, address, bound, &err));
        REQUIRE(sn_transport_dial(holders[i].transport, "node:1", own.curve_key, &holders[i].node, &err));
    }
}

static void tear_down(void) {
    sn_expert_round_free(&answered);
    for (int i = 0; i < n_jobs; i++) sn_job_free(&jobs[i]);
    sn_protocol_free(&protocol);
    for (int i = 0; i < HOLDERS; i++) sn_transport_free(&holders[i].transport);
    sn_transport_free(&transport);
    sn_hub_free(&hub);
}

TestSuite(expert_protocol, .init = set_up, .fini = tear_down);

/* -- asking -- */

/* A round of two rows of block 1: row 0 with experts 3 and 7, row 1 with expert 5. */
static sn_expert_round *new_round(void) {
    static const sn_expert_pair pairs[] = {{0, 3}, {0, 7}, {1, 5}};
    sn_expert_round *round = calloc(1, sizeof *round);
    *round = (sn_expert_round){.number = 1, .block = 1, .n_embd = EMBD, .n_rows = 2, .n_pairs = 3};
    round->rows = calloc(2 * EMBD, sizeof *round->rows);
    round->pairs = calloc(3, sizeof *round->pairs);
    round->out = calloc(3 * EMBD, sizeof *round->out);
    round->until_us = now + SN_EXPERT_ROUND_US;
    memcpy(round->pairs, pairs, sizeof pairs);
    for (int i = 0; i < 2 * EMBD; i++) round->rows[i] = (float)i;
    return round;
}

static void ask(void) {
    sn_expert_round_free(&answered);
    sn_protocol_ask_experts(protocol, new_round(), now);
}

/* The number of the holder that was asked; -1: none. *request: what it was asked for. */
static int asked(sn_msg **request, sn_peer *peer) {
    for (int i = 0; i < HOLDERS; i++)
        if ((*request = receive(&holders[i], SN_MSG_EXPERTS, peer))) return i;
    return -1;
}

/* What expert e makes of a row in these tests: e times the row. A reply with `rows` rows of `width` numbers. */
static void reply(int holder_number, sn_peer peer, const sn_msg *request, size_t rows, size_t width) {
    sn_msg *msg = new_msg(SN_MSG_EXPERTS_REPLY, request->correlation_id);
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){rows, width}, &data, &err));
    memset(data, 0, rows * width * sizeof(float));
    for (size_t i = 0; i < request->experts.n_pairs && i < rows && width == EMBD; i++) {
        const sn_expert_pair *pair = &request->experts.pairs[i];
        const float *row = (const float *)request->tensor.data + pair->row * EMBD;
        for (int c = 0; c < EMBD; c++) ((float *)data)[i * EMBD + (size_t)c] = (float)pair->expert * row[c];
    }
    REQUIRE(sn_transport_send(holders[holder_number].transport, peer, &msg, &err));
    pump();
}

static void expect_right_answer(void) {
    cr_assert(answered);
    cr_assert_eq(answered->status, SN_OK, "%s", answered->err.text);
    for (size_t i = 0; i < answered->n_pairs; i++)
        for (int c = 0; c < EMBD; c++)
            cr_expect_eq(answered->out[i * EMBD + (size_t)c],
                         (float)answered->pairs[i].expert * answered->rows[answered->pairs[i].row * EMBD + (size_t)c]);
}

static void expect_failed(const char *part) {
    cr_assert(answered);
    cr_expect_eq(answered->status, SN_RETRY);
    cr_expect(strstr(answered->err.text, part), "%s", answered->err.text);
}

/* Asks, lets the first holder fail in some way, and expects that the other one is asked for the same and answers. */
static void expect_other_holder(void (*fail)(int holder_number, sn_peer peer, const sn_msg *request)) {
    sn_msg *request = NULL, *again = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    announce(1, SN_NODE_JOINING, 3, 8);
    ask();
    int first = asked(&request, &peer);
    cr_assert(first >= 0);
    fail(first, peer, request);
    cr_expect_null(answered);
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
    announce(0, SN_NODE_JOINING, 3, 6);
    announce(1, SN_NODE_JOINING, 6, 8);
    ask();
    for (int i = 0; i < 2; i++) {
        request[i] = receive(&holders[i], SN_MSG_EXPERTS, &peer[i]);
        cr_assert(request[i]);
        cr_expect_eq(request[i]->experts.block, 1);
        cr_expect_arr_eq(request[i]->experts.block_hash, hashes[1].bytes, SN_HASH_SIZE);
    }
    cr_expect_eq(request[0]->experts.n_pairs, 2);
    cr_expect_eq(request[0]->tensor.shape[0], 2);
    cr_expect_eq(request[1]->experts.n_pairs, 1);
    cr_expect_eq(request[1]->tensor.shape[0], 1, "only the row that needs the expert");
    reply(1, peer[1], request[1], 1, EMBD);
    cr_expect_null(answered, "one answer is missing");
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
    pass(LATE_US);
}
static void refuse(int h, sn_peer peer, const sn_msg *request, sn_status status) {
    sn_msg *msg = new_msg(SN_MSG_ERROR, request->correlation_id);
    msg->error.status = (uint64_t)status;
    REQUIRE(sn_transport_send(holders[h].transport, peer, &msg, &err));
    pump();
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
    sn_msg *msg = new_msg(SN_MSG_ERROR, request->correlation_id);
    msg->error.status = SN_RETRY;
    msg->error.wait_ms = wait_ms;
    REQUIRE(sn_transport_send(holders[h].transport, peer, &msg, &err));
    pump();
}

/* Both holders are asked n times, and have no room for 20 ms. */
static void have_no_room(int n) {
    for (int i = 0; i < n; i++) {
        sn_msg *request[2];
        sn_peer peer[2];
        for (int h = 0; h < 2; h++) cr_assert(request[h] = receive(&holders[h], SN_MSG_EXPERTS, &peer[h]), "%d", i);
        for (int h = 0; h < 2; h++) refuse_for(h, peer[h], request[h], 1);
        cr_assert_null(answered);
        for (int h = 0; h < 2; h++) sn_msg_free(&request[h]);
        expect_nobody_asked("they are left in peace for a while");
        pass(SECOND / 50);
    }
}

Test(expert_protocol, pairs_wait_for_room_when_no_holder_has_any) {
    announce(0, SN_NODE_JOINING, 3, 6);
    announce(1, SN_NODE_JOINING, 6, 8);
    ask();
    have_no_room(70); /* 140 asks: a round has 128 at once */
    for (int h = 0; h < 2; h++) {
        sn_peer peer;
        sn_msg *request = receive(&holders[h], SN_MSG_EXPERTS, &peer);
        cr_assert(request);
        reply(h, peer, request, request->experts.n_pairs, EMBD);
        sn_msg_free(&request);
    }
    expect_right_answer();
}

Test(expert_protocol, pairs_do_not_wait_for_room_longer_than_a_client_does) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    ask();
    for (int i = 0; i < 9; i++) { /* half a second each */
        cr_assert_eq(asked(&request, &peer), 0);
        fail_for_want_of_room(0, peer, request);
        sn_msg_free(&request);
        cr_assert_null(answered);
        pass(SECOND / 2);
    }
    cr_assert_eq(asked(&request, &peer), 0);
    fail_for_want_of_room(0, peer, request);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
}

Test(expert_protocol, time_in_which_a_holder_is_late_is_no_wait_for_room) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    announce(1, SN_NODE_JOINING, 3, 8);
    ask();
    for (int i = 0; i < 2; i++) { /* neither has room for 20 ms */
        int h = asked(&request, &peer);
        cr_assert_geq(h, 0);
        refuse_for(h, peer, request, 1);
        sn_msg_free(&request);
    }
    pass(SECOND / 50);
    int late = asked(&request, &peer);
    cr_assert_geq(late, 0);
    sn_msg_free(&request);
    pass(LATE_US);
    cr_assert_eq(asked(&request, &peer), 1 - late);
    refuse_for(1 - late, peer, request, 1);
    sn_msg_free(&request);
    cr_assert_null(answered);
    pass(SECOND / 50);
    cr_assert_eq(asked(&request, &peer), 1 - late);
    reply(1 - late, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

Test(expert_protocol, a_round_does_not_wait_for_room_that_comes_after_its_end) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    sn_expert_round *round = new_round();
    round->until_us = now + SECOND / 4;
    sn_protocol_ask_experts(protocol, round, now);
    cr_assert_eq(asked(&request, &peer), 0);
    fail_for_want_of_room(0, peer, request);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
}

Test(expert_protocol, a_holder_that_comes_while_pairs_wait_for_room_is_asked) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    ask();
    cr_assert_eq(asked(&request, &peer), 0);
    refuse_for(0, peer, request, 4000);
    sn_msg_free(&request);
    announce(1, SN_NODE_JOINING, 3, 8);
    for (int i = 0; i < 2; i++) pass(SECOND);
    cr_assert_eq(asked(&request, &peer), 1);
    reply(1, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

Test(expert_protocol, an_answer_that_comes_too_late_or_from_another_node_is_ignored) {
    sn_msg *request = NULL, *again = NULL;
    sn_peer late, peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    announce(1, SN_NODE_JOINING, 3, 8);
    ask();
    int first = asked(&request, &late);
    pass(LATE_US);
    int second = asked(&again, &peer);
    cr_assert_eq(second, 1 - first);
    reply(first, late, request, 3, EMBD);
    cr_expect_null(answered);
    reply(first, late, again, 3, EMBD); /* the first holder names what is asked of the second */
    cr_expect_null(answered);
    again->correlation_id = request->correlation_id; /* and the second what was asked of the first */
    reply(second, peer, again, 3, EMBD);
    cr_expect_null(answered);
    pass(LATE_US);
    expect_failed("no node answers for expert 3 of block 1");
    sn_msg_free(&request);
    sn_msg_free(&again);
}

Test(expert_protocol, a_round_ends_when_its_time_is_over) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    announce(1, SN_NODE_JOINING, 3, 8);
    sn_expert_round *round = new_round();
    round->until_us = now + SECOND;
    sn_protocol_ask_experts(protocol, round, now);
    pass(SECOND);
    expect_failed("no answer came in time");
    while (asked(&request, &peer) >= 0) sn_msg_free(&request);
}

Test(expert_protocol, a_newer_round_ends_the_one_before) {
    sn_msg *request = NULL;
    sn_peer peer;
    announce(0, SN_NODE_JOINING, 3, 8);
    sn_protocol_ask_experts(protocol, new_round(), now);
    ask();
    cr_assert(answered, "the first round was given back");
    cr_expect_eq(answered->status, SN_RETRY);
    sn_expert_round_free(&answered);
    cr_assert_eq(asked(&request, &peer), 0);
    reply(0, peer, request, 3, EMBD); /* to the first */
    cr_expect_null(answered);
    sn_msg_free(&request);
    cr_assert_eq(asked(&request, &peer), 0);
    reply(0, peer, request, 3, EMBD);
    expect_right_answer();
    sn_msg_free(&request);
}

static sn_node_state own_state(void) { return sn_directory_find(sn_protocol_directory(protocol), own.id)->state; }

Test(expert_protocol, the_node_is_online_while_its_group_has_all_experts) {
    sn_msg *request = NULL;
    sn_peer peer;
    pass(SECOND);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    const sn_announcement *a = sn_directory_find(sn_protocol_directory(protocol), own.id);
    cr_expect_eq(a->n_experts, 3);
    cr_expect_eq(a->experts[1], 3);
    cr_expect_arr_eq(a->block_hash[0], hashes[0].bytes, SN_HASH_SIZE, "others ask it meanwhile");
    announce(0, SN_NODE_JOINING, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
    ask();
    cr_assert_eq(asked(&request, &peer), 0);
    pass(LATE_US);
    expect_failed("no node answers");
    cr_expect_eq(own_state(), SN_NODE_JOINING, "at once, and not with the next round of announcements");
    announce(0, SN_NODE_ONLINE, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_JOINING, "the holder is trusted again after a while");
    pass(10 * SECOND);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
    announce(0, SN_NODE_OFFLINE, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    sn_msg_free(&request);
}

Test(expert_protocol, other_nodes_are_asked_for_holders_while_experts_are_missing) {
    sn_peer peer;
    sn_msg *msg = NULL;
    sn_protocol_join(protocol, "holder0:1", holders[0].identity.curve_key);
    pass(20 * SECOND);
    cr_assert(msg = receive(&holders[0], SN_MSG_PEERS, &peer), "the node joins");
    sn_msg *answer = new_msg(SN_MSG_PEERS_REPLY, msg->correlation_id);
    REQUIRE(sn_transport_send(holders[0].transport, peer, &answer, &err));
    sn_msg_free(&msg);
    pump();
    bool asked_for_blocks = false;
    pass(20 * SECOND);
    while ((msg = receive(&holders[0], SN_MSG_PEERS, &peer))) {
        asked_for_blocks |= msg->peers.end_block == BLOCKS && !memcmp(msg->peers.model, model.bytes, SN_KEY_SIZE);
        sn_msg_free(&msg);
    }
    cr_expect(asked_for_blocks);
}

Test(expert_protocol, a_holder_is_counted_on_when_it_has_answered) {
    silent = true;
    announce(0, SN_NODE_JOINING, 3, 8);
    pass(5 * SECOND);
    cr_expect_eq(own_state(), SN_NODE_JOINING);
    silent = false;
    announce(0, SN_NODE_JOINING, 3, 8);
    cr_expect_eq(own_state(), SN_NODE_ONLINE);
}

Test(expert_protocol, the_end_of_a_holders_connection_is_noticed_before_the_next_step) {
    announce(0, SN_NODE_JOINING, 3, 8);
    cr_assert_eq(own_state(), SN_NODE_ONLINE);
    sn_transport_free(&holders[0].transport);
    pump();
    cr_expect_eq(own_state(), SN_NODE_JOINING);
}

/* -- answering -- */

/* A valid request of one row for experts 1 and 2 of block 0. */
static sn_msg *new_request(void) {
    static const sn_expert_pair pairs[] = {{0, 1}, {0, 2}};
    static uint64_t last;
    sn_msg *msg = new_msg(SN_MSG_EXPERTS, ++last);
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, EMBD}, &data, &err));
    memset(data, 0, EMBD * sizeof(float));
    REQUIRE(sn_list_new(2, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    memcpy(msg->experts.pairs, pairs, sizeof pairs);
    msg->experts.n_pairs = 2;
    msg->experts.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->experts.block_hash, hashes[0].bytes, SN_HASH_SIZE);
    return msg;
}

static void expect_refused_by(const holder *from, sn_msg *msg, sn_status status, const char *part) {
    int before = n_jobs;
    sn_peer peer;
    send_msg(from, msg);
    cr_expect_eq(n_jobs, before, "a job was made: %s", part);
    sn_msg *error = receive(from, SN_MSG_ERROR, &peer);
    cr_assert(error, "no error: %s", part);
    cr_expect_eq(error->error.status, (uint64_t)status);
    cr_expect(strstr(error->error.text, part), "%s", error->error.text);
    sn_msg_free(&error);
}

static void expect_refused(sn_msg *msg, sn_status status, const char *part) {
    expect_refused_by(&holders[0], msg, status, part);
}

Test(expert_protocol, a_request_becomes_a_job_and_its_output_the_reply) {
    sn_peer peer;
    send_msg(&holders[0], new_request());
    cr_assert_eq(n_jobs, 1);
    sn_job *job = jobs[0];
    cr_expect_eq(job->kind, SN_JOB_EXPERTS);
    cr_expect_eq(job->first, 0);
    cr_expect_eq(job->n_tokens, 1);
    cr_expect_eq(job->experts->ids[0], 1);
    cr_expect_eq(job->experts->ids[1], 2);
    REQUIRE(sn_shared_buffer_new(2 * EMBD * sizeof(float), &job->output, &err));
    for (int i = 0; i < 2 * EMBD; i++) ((float *)sn_shared_buffer_data(job->output))[i] = (float)i;
    n_jobs = 0;
    sn_protocol_job_done(protocol, job, now);
    sn_msg *answer = receive(&holders[0], SN_MSG_EXPERTS_REPLY, &peer);
    cr_assert(answer);
    cr_expect_eq(answer->tensor.shape[0], 2);
    cr_expect_eq(answer->tensor.shape[1], EMBD);
    cr_expect_eq(((const float *)answer->tensor.data)[7], 7);
    sn_msg_free(&answer);
    cr_expect(!sn_protocol_busy(protocol));
}

#define REFUSES(change, status, part)                                                                                  \
    do {                                                                                                               \
        sn_msg *msg = new_request();                                                                                   \
        change;                                                                                                        \
        expect_refused(msg, status, part);                                                                             \
    } while (0)

Test(expert_protocol, requests_for_what_is_not_here_are_refused) {
    REFUSES(msg->experts.protocol++, SN_REFUSED, "speaks protocol 3");
    REFUSES(msg->experts.block = BLOCKS, SN_REBUILD, "no mixture of experts that is served here");
    REFUSES(msg->experts.block = UINT64_MAX, SN_REBUILD, "no mixture of experts that is served here");
    REFUSES(msg->experts.block = 1, SN_REBUILD, "other weights");
    REFUSES(msg->experts.pairs[1].expert = 3, SN_REFUSED, "expert 3 is not here: this node holds experts 0:3");
    REFUSES(msg->experts.pairs[1].expert = UINT64_MAX, SN_REFUSED, "is not here");
}

static void set_shape(sn_msg *msg, uint64_t rows, uint64_t width) {
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){rows, width}, &data, &err));
    memset(data, 0, msg->tensor.bytes);
}

Test(expert_protocol, requests_whose_sizes_do_not_fit_are_refused) {
    REFUSES(set_shape(msg, 1, EMBD + 1), SN_REFUSED, "F32 (rows, 4)");
    REFUSES(set_shape(msg, SN_SPAN_ROWS_MAX + 1, EMBD), SN_REFUSED, "F32 (rows, 4)");
    REFUSES(msg->experts.n_pairs = 0, SN_REFUSED, "pairs");
    REFUSES(msg->experts.pairs[1].row = 1, SN_REFUSED, "pairs name the rows");
    REFUSES(msg->experts.pairs[1].row = UINT64_MAX, SN_REFUSED, "pairs name the rows");
    REFUSES((set_shape(msg, 2, EMBD), msg->experts.pairs[0].row = 1), SN_REFUSED, "in their order");
    sn_msg *msg = new_request();
    free(msg->experts.pairs);
    REQUIRE(sn_list_new(3, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    msg->experts.n_pairs = 3; /* a row of three pairs, where a token has two experts */
    expect_refused(msg, SN_REFUSED, "each 2 times at most");
}

Test(expert_protocol, requests_of_one_key_that_wait_are_bounded) {
    for (int i = 0; i < 4; i++) send_msg(&holders[0], new_request());
    cr_expect_eq(n_jobs, 4);
    expect_refused(new_request(), SN_RETRY, "4 of them yours");
    send_msg(&holders[1], new_request());
    cr_expect_eq(n_jobs, 5, "another node finds room");
}

static holder stranger_new(void) {
    holder h;
    REQUIRE(sn_identity_new(&h.identity, &err));
    REQUIRE(sn_transport_memory_new(hub, &h.identity, &h.transport, &err));
    REQUIRE(sn_transport_dial(h.transport, "node:1", own.curve_key, &h.node, &err));
    return h;
}

Test(expert_protocol, requests_of_strangers_leave_half_of_the_places_to_nodes_of_groups) {
    enum { KEYS = 4, PLACES = 16 };
    holder strangers[KEYS + 1];
    for (int i = 0; i <= KEYS; i++) strangers[i] = stranger_new();
    announce(0, SN_NODE_JOINING, 3, 8); /* and it answers */
    for (int i = 0; i < PLACES; i++) send_msg(&strangers[i % KEYS], new_request());
    cr_expect_eq(n_jobs, PLACES);
    expect_refused_by(&strangers[KEYS], new_request(), SN_RETRY, "16 requests, 0 of them yours");
    expect_refused_by(&holders[1], new_request(), SN_RETRY, "16 requests");
    send_msg(&holders[0], new_request());
    cr_expect_eq(n_jobs, PLACES + 1, "a holder that has answered finds room");
    for (int i = 0; i <= KEYS; i++) sn_transport_free(&strangers[i].transport);
}

/* A request of 512 rows for two experts each, of 96 MiB with what it gives. */
static sn_msg *new_large_request(void) {
    enum { PAIRS = 2 * SN_SPAN_ROWS_MAX };
    sn_msg *msg = new_request();
    void *data;
    free(msg->experts.pairs);
    REQUIRE(sn_list_new(PAIRS, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    for (uint64_t i = 0; i < PAIRS; i++) msg->experts.pairs[i] = (sn_expert_pair){i / 2, 1 + i % 2};
    msg->experts.n_pairs = PAIRS;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){SN_SPAN_ROWS_MAX, (uint64_t)hp.n_embd}, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    return msg;
}

Test(expert_protocol, the_memory_of_requests_is_bounded) {
    holder stranger = stranger_new();
    announce(0, SN_NODE_JOINING, 3, 8);
    hp.n_embd = 16384;
    send_msg(&stranger, new_large_request());
    cr_assert_eq(n_jobs, 1);
    expect_refused_by(&stranger, new_large_request(), SN_RETRY, "1 requests, 1 of them yours");
    send_msg(&holders[0], new_large_request());
    cr_expect_eq(n_jobs, 2, "a holder that has answered finds room");
    expect_refused(new_large_request(), SN_RETRY, "2 requests");
    sn_transport_free(&stranger.transport);
}

Test(expert_protocol, requests_count_in_the_quota_of_steps_by_their_block) {
    int taken = 0;
    sn_peer peer;
    sn_msg *error = NULL;
    for (; taken < 100 && !error; taken++) { /* 10 steps are allowed, and a request is half of one: one of two blocks */
        send_msg(&holders[0], new_request());
        error = receive(&holders[0], SN_MSG_ERROR, &peer);
        for (; n_jobs; n_jobs--) {
            jobs[n_jobs - 1]->status = SN_RETRY;
            sn_protocol_job_done(protocol, jobs[n_jobs - 1], now);
            sn_msg *answer = receive(&holders[0], SN_MSG_ERROR, &peer);
            sn_msg_free(&answer);
        }
    }
    cr_assert(error);
    cr_expect(strstr(error->error.text, "10 steps per second"), "%s", error->error.text);
    cr_expect(taken - 1 >= 18 && taken - 1 <= 20, "%d were taken", taken - 1);
    sn_msg_free(&error);
}

Test(expert_protocol, jobs_of_a_connection_that_has_ended_are_cancelled) {
    send_msg(&holders[0], new_request());
    send_msg(&holders[1], new_request());
    sn_transport_free(&holders[0].transport);
    pump();
    cr_expect(atomic_load(&jobs[0]->cancelled));
    cr_expect(!atomic_load(&jobs[1]->cancelled));
}
