/* Receipts: a node signs what happened, no other node can have signed it, and a client accepts no other receipt. */
#include "base/clock.h"
#include "client/chain/chain.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_receipt example_receipt(void) {
    sn_receipt r = {.step = 3,
                    .position = 7,
                    .unix_ms = 1700000000123,
                    .first_block = 2,
                    .end_block = 5,
                    .n = 4,
                    .n_embd = 64,
                    .input_dtype = SN_F32,
                    .output_dtype = SN_F16,
                    .device = SN_RECEIPT_APPROXIMATE,
                    .version = "0.1.0"};
    memset(r.session, 1, sizeof r.session);
    memset(&r.weights, 2, sizeof r.weights);
    memset(&r.output, 3, sizeof r.output);
    return r;
}

Test(receipt, opens_as_signed) {
    sn_identity identity;
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt r = example_receipt(), back;
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_receipt_seal(&r, &identity, sealed, &err));
    REQUIRE(sn_receipt_open(sealed, sizeof sealed, &back, &err));
    memcpy(r.node, identity.id, SN_KEY_SIZE);
    cr_expect_arr_eq(&r, &back, sizeof r);
}

Test(receipt, refuses_changed_or_missing_bytes) {
    sn_identity identity;
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt r = example_receipt(), back;
    sn_err why;
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_receipt_seal(&r, &identity, sealed, &err));
    for (size_t i = 0; i < sizeof sealed; i++) {
        sealed[i] ^= 0x10;
        cr_expect_eq(sn_receipt_open(sealed, sizeof sealed, &back, &why), SN_REFUSED, "byte %zu", i);
        sealed[i] ^= 0x10;
    }
    cr_expect_eq(sn_receipt_open(sealed, sizeof sealed - 1, &back, &why), SN_REFUSED);
    r.end_block = r.first_block;
    REQUIRE(sn_receipt_seal(&r, &identity, sealed, &err));
    cr_expect_eq(sn_receipt_open(sealed, sizeof sealed, &back, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "out of range"), "%s", why.text);
}

/* A chain over nodes 0:2 and 2:4 that asks for receipts. */
static sn_chain *open_chain(testbed *w, sn_model **model, sn_link **link, bool push) {
    sn_chain *chain = NULL;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    *link = cluster_link(w->cluster);
    REQUIRE(sn_model_open(w->path, model, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = *link;
    options.routing.push = push;
    options.verification.receipts = true;
    REQUIRE(sn_chain_open(*model, &options, &chain, &err));
    return chain;
}

Test(receipt, of_every_hop_has_input_and_output_hashes) {
    for (int push = 0; push < 2; push++) {
        testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
        sn_model *model = NULL;
        sn_link *link = NULL;
        sn_chain *chain = open_chain(w, &model, &link, push);
        float out[TESTBED_TOKENS * 64];
        float *between = testbed_compute(w, 0, 2, 12, w->inputs);
        size_t row = (size_t)w->n_embd;
        REQUIRE(sn_chain_step(chain, 0, 8, w->inputs, out, &err));
        REQUIRE(sn_chain_step(chain, 8, 4, w->inputs + 8 * row, out + 8 * row, &err));
        const float *in[] = {w->inputs + 8 * row, between + 8 * row, w->hidden + 8 * row};
        for (int i = 0; i < 2; i++) {
            sn_receipt r;
            sn_hash input = sn_hash_of(in[i], 4 * row * sizeof(float));
            sn_hash output = sn_hash_of(in[i + 1], 4 * row * sizeof(float));
            size_t n_hops;
            const sn_hop *hops = sn_chain_route_hops(chain, &n_hops);
            REQUIRE(sn_receipt_open(hops[i].remote.receipt, SN_RECEIPT_SIZE, &r, &err));
            cr_expect_arr_eq(r.node, sn_node_id(cluster_node(w->cluster, i)), SN_KEY_SIZE);
            cr_expect_arr_eq(&r.input, &input, SN_HASH_SIZE);
            cr_expect_arr_eq(&r.output, &output, SN_HASH_SIZE);
            cr_expect(r.step == 2 && r.position == 8 && r.n == 4 && r.device == SN_RECEIPT_EXACT);
            cr_expect_lt(llabs((int64_t)r.unix_ms - sn_unix_ms()), 60000);
            cr_expect_str_eq(r.version, SN_VERSION);
        }
        free(between);
        sn_chain_close(&chain);
        sn_link_close(&link);
        sn_model_close(&model);
        testbed_free(&w);
    }
}

/* -- receipts that a client refuses: one byte or field of a received reply is changed */

typedef struct fixture {
    sn_hop hop;
    sn_msg *result;
    sn_hash sent;
    sn_identity identity;
    sn_receipt receipt;
} fixture;

static void fixture_begin(fixture *s) {
    static const float rows[2] = {1, 2}, answer[2] = {3, 4};
    *s = (fixture){.sent = sn_hash_of(rows, sizeof rows)};
    REQUIRE(sn_identity_new(&s->identity, &err));
    s->hop = (sn_hop){.first = 1, .end = 3, .remote = {.step = 4, .wants_receipt = true}};
    memcpy(s->hop.remote.node, s->identity.id, SN_KEY_SIZE);
    s->hop.remote.timeline = calloc(8, sizeof *s->hop.remote.timeline);
    sn_random(s->hop.remote.timeline, 8 * sizeof *s->hop.remote.timeline);
    sn_random(&s->hop.remote.model, sizeof s->hop.remote.model);
    sn_random(&s->hop.remote.weights, sizeof s->hop.remote.weights);
    sn_random(s->hop.remote.session, sizeof s->hop.remote.session);
    REQUIRE(sn_msg_new(SN_MSG_STEP_REPLY, 1, &s->result, &err));
    s->result->tensor = (sn_wire_tensor){SN_F32, 2, {1, 2}, answer, sizeof answer};
    REQUIRE(sn_list_new(1, 8, sizeof(sn_trace), &s->result->step_reply.trace, &err));
    REQUIRE(sn_list_new(1, 8, sizeof(sn_blob), &s->result->step_reply.receipts, &err));
    REQUIRE(sn_calloc(&s->result->step_reply.receipts[0].data, SN_RECEIPT_SIZE, 1, &err));
    s->result->step_reply.n_trace = s->result->step_reply.n_receipts = 1;
    s->result->step_reply.receipts[0].len = SN_RECEIPT_SIZE;
    sn_random(s->result->step_reply.trace[0].timeline, SN_HASH_SIZE);
    s->receipt = (sn_receipt){.step = 5, .position = 2, .n = 1, .n_embd = 2, .first_block = 1, .end_block = 3};
    memcpy(s->receipt.session, s->hop.remote.session, sizeof s->hop.remote.session);
    memcpy(s->receipt.model, &s->hop.remote.model, SN_HASH_SIZE);
    s->receipt.weights = s->hop.remote.weights;
    s->receipt.timeline_before = s->hop.remote.timeline[2];
    memcpy(&s->receipt.timeline_after, s->result->step_reply.trace[0].timeline, SN_HASH_SIZE);
    s->receipt.input = sn_hash_of(rows, sizeof rows);
    s->receipt.output = sn_hash_of(answer, sizeof answer);
}

static sn_status take_receipt(fixture *s, sn_err *why) {
    size_t failed = 9;
    REQUIRE(sn_receipt_seal(&s->receipt, &s->identity, s->result->step_reply.receipts[0].data, &err));
    const sn_step step = {.position = 2, .n = 1, .n_embd = 2};
    sn_status status = sn_hops_check_receipts(&s->hop, 1, &s->sent, s->result, &step, &failed, why);
    if (status) cr_expect_eq(failed, 0);
    return status;
}

static void fixture_end(fixture *s) {
    free(s->hop.remote.timeline);
    sn_msg_free(&s->result);
}

#define EXPECT_REFUSED(change, part)                                                                                   \
    do {                                                                                                               \
        fixture s;                                                                                                     \
        sn_err why = {0};                                                                                              \
        fixture_begin(&s);                                                                                             \
        cr_assert_eq(take_receipt(&s, &why), SN_OK, "%s", why.text);                                                   \
        change;                                                                                                        \
        cr_expect_eq(take_receipt(&s, &why), SN_RETRY, #change);                                                       \
        cr_expect(strstr(why.text, part), "%s: %s", #change, why.text);                                                \
        fixture_end(&s);                                                                                               \
    } while (0)

Test(receipt, of_another_step_is_refused) {
    EXPECT_REFUSED(s.receipt.session[3] ^= 1, "another step");
    EXPECT_REFUSED(s.receipt.step = 4, "another step");
    EXPECT_REFUSED(s.receipt.model[0] ^= 1, "other blocks");
    EXPECT_REFUSED(s.receipt.weights.bytes[0] ^= 1, "other blocks");
    EXPECT_REFUSED(s.receipt.first_block = 0, "other blocks");
    EXPECT_REFUSED(s.receipt.end_block = 4, "other blocks");
    EXPECT_REFUSED(s.receipt.position = 1, "other tokens");
    EXPECT_REFUSED(s.receipt.n = 2, "other tokens");
    EXPECT_REFUSED(s.receipt.n_embd = 1, "rows of another width");
    EXPECT_REFUSED(s.receipt.timeline_before.bytes[9] ^= 1, "another timeline");
    EXPECT_REFUSED(s.receipt.timeline_after.bytes[9] ^= 1, "another timeline");
    EXPECT_REFUSED(s.receipt.input.bytes[1] ^= 1, "another input");
    EXPECT_REFUSED(s.receipt.input_dtype = SN_F16, "another type");
    EXPECT_REFUSED(s.hop.input_dtype = SN_Q8, "another type");
    EXPECT_REFUSED(s.receipt.output.bytes[1] ^= 1, "another output");
    EXPECT_REFUSED(s.receipt.output_dtype = SN_F16, "another type");
    EXPECT_REFUSED(s.hop.remote.node[0] ^= 1, "another node signed it");
    EXPECT_REFUSED(s.result->step_reply.receipts[0].len = 0, "is not valid");
}

Test(receipt, a_node_that_returns_no_receipt_is_not_used) {
    fixture s;
    sn_err why;
    fixture_begin(&s);
    s.result->step_reply.n_receipts = 0;
    cr_expect_eq(take_receipt(&s, &why), SN_RETRY);
    cr_expect(strstr(why.text, "0 receipts came from 1 nodes"), "%s", why.text);
    s.result->step_reply.n_receipts = 1;
    fixture_end(&s);
}

/* Two nodes that push: what the first one signs as sent is what the second one signs as received. */
Test(receipt, of_neighbours_name_the_same_bytes) {
    for (int change = 0; change < 3; change++) {
        fixture s;
        sn_identity second;
        sn_err why = {0};
        size_t failed = 9;
        fixture_begin(&s);
        REQUIRE(sn_identity_new(&second, &err));
        sn_hop hops[] = {s.hop, s.hop};
        hops[1].first = 3;
        hops[1].end = 4;
        memcpy(hops[1].remote.node, second.id, SN_KEY_SIZE);
        sn_receipt receipts[] = {s.receipt, s.receipt};
        receipts[1].first_block = 3;
        receipts[1].end_block = 4;
        receipts[1].input = receipts[0].output = sn_hash_of("between", 7);
        if (change == 1) receipts[0].output.bytes[0] ^= 1;
        if (change == 2) hops[0].output_dtype = SN_F16, receipts[0].output_dtype = SN_F16;
        uint8_t sealed[2][SN_RECEIPT_SIZE];
        sn_trace traces[] = {s.result->step_reply.trace[0], s.result->step_reply.trace[0]};
        sn_blob blobs[] = {{sealed[0], SN_RECEIPT_SIZE}, {sealed[1], SN_RECEIPT_SIZE}};
        sn_msg result = *s.result;
        result.step_reply.trace = traces;
        result.step_reply.receipts = blobs;
        result.step_reply.n_trace = result.step_reply.n_receipts = 2;
        REQUIRE(sn_receipt_seal(&receipts[0], &s.identity, sealed[0], &err));
        REQUIRE(sn_receipt_seal(&receipts[1], &second, sealed[1], &err));
        const sn_step step = {.position = 2, .n = 1, .n_embd = 2};
        sn_status status = sn_hops_check_receipts(hops, 2, &s.sent, &result, &step, &failed, &why);
        cr_expect_eq(status, change ? SN_RETRY : SN_OK, "change %d: %s", change, why.text);
        if (change)
            cr_expect(failed == 2 && strstr(why.text, "signed other bytes"), "%s", why.text); /* either of them */
        fixture_end(&s);
    }
}

/* -- at the node */

Test(receipt, a_repeated_step_is_signed_again) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    sn_receipt first, second;
    for (int i = 0; i < 2; i++) {
        sn_msg *msg = node_session_step_message(&p, 0, 5);
        msg->step.wants_receipt = 1;
        sn_msg *answer = node_client_request(t, &msg);
        cr_assert(answer->kind == SN_MSG_STEP_REPLY && answer->step_reply.n_receipts == 1);
        REQUIRE(sn_receipt_open(answer->step_reply.receipts[0].data, answer->step_reply.receipts[0].len,
                                i ? &second : &first, &err));
        sn_msg_free(&answer);
    }
    second.unix_ms = first.unix_ms;
    cr_expect_arr_eq(&first, &second, sizeof first);
    p.step = 1;
    cr_assert(node_session_step_ok(&p, 5, 3)); /* without a receipt */
    p.step = 1;
    sn_msg *msg = node_session_step_message(&p, 5, 3);
    msg->step.wants_receipt = 1;
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "when a step is first sent"));
    p.step = 2;
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

Test(receipt, forwarded_receipts_must_match_the_trace_of_a_repeated_step_too) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    for (int i = 0; i < 2; i++) {
        sn_msg *msg = node_session_step_message(&p, 0, 5);
        REQUIRE(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.receipts, &msg->step.receipts, &err));
        msg->step.n_receipts = 1;
        msg->step.receipts[0].len = SN_RECEIPT_SIZE;
        REQUIRE(sn_calloc(&msg->step.receipts[0].data, SN_RECEIPT_SIZE, 1, &err));
        cr_expect(
            is_refusal(node_client_request(t, &msg), SN_REFUSED, "1 receipts or timelines came with the trace of 0"));
        p.step = 0;
        cr_expect(node_session_step_ok(&p, 0, 5));
        p.step = 0;
    }
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}
