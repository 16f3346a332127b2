/* Receipts: what a node signs is what happened, nobody else can have signed it, and a client takes no other. */
#include "base/clock.h"
#include "client/chain_private.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_receipt example(void) {
    sn_receipt r = {.step = 3, .position = 7, .unix_ms = 1700000000123, .first_block = 2, .end_block = 5, .n = 4,
                    .n_embd = 64, .input_dtype = SN_F32, .output_dtype = SN_F16, .device = SN_RECEIPT_CLOSE,
                    .version = "0.1.0"};
    memset(r.session, 1, sizeof r.session);
    memset(&r.weights, 2, sizeof r.weights);
    memset(&r.output, 3, sizeof r.output);
    return r;
}

Test(receipt, comes_back_as_it_was_signed) {
    sn_identity identity;
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt r = example(), back;
    NEED(sn_identity_new(&identity, &err));
    NEED(sn_receipt_seal(&r, &identity, sealed, &err));
    NEED(sn_receipt_open(sealed, sizeof sealed, &back, &err));
    memcpy(r.node, identity.id, SN_KEY_SIZE);
    cr_expect_arr_eq(&r, &back, sizeof r);
}

Test(receipt, is_refused_when_any_byte_is_another_or_bytes_are_missing) {
    sn_identity identity;
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_receipt r = example(), back;
    sn_err why;
    NEED(sn_identity_new(&identity, &err));
    NEED(sn_receipt_seal(&r, &identity, sealed, &err));
    for (size_t i = 0; i < sizeof sealed; i++) {
        sealed[i] ^= 0x10;
        cr_expect_eq(sn_receipt_open(sealed, sizeof sealed, &back, &why), SN_REFUSED, "byte %zu", i);
        sealed[i] ^= 0x10;
    }
    cr_expect_eq(sn_receipt_open(sealed, sizeof sealed - 1, &back, &why), SN_REFUSED);
    r.end_block = r.first_block;
    NEED(sn_receipt_seal(&r, &identity, sealed, &err));
    cr_expect_eq(sn_receipt_open(sealed, sizeof sealed, &back, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "are none"), "%s", why.text);
}

/* A chain over nodes 0:2 and 2:4 that asks for receipts. */
static sn_chain *open_chain(world *w, sn_model **model, sn_link **link, bool push) {
    sn_chain *chain = NULL;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    *link = cluster_link(w->cluster);
    NEED(sn_model_open(w->path, model, &err));
    sn_chain_options options = {.link = *link, .receipts = true, .push = push};
    NEED(sn_chain_open(*model, &options, &chain, &err));
    return chain;
}

Test(receipt, of_every_hop_says_what_went_in_and_came_out) {
    for (int push = 0; push < 2; push++) {
        world *w = world_new(&(cluster_options){.kv_memory = 64});
        sn_model *model = NULL;
        sn_link *link = NULL;
        sn_chain *chain = open_chain(w, &model, &link, push);
        float out[WORLD_TOKENS * 64];
        float *between = world_compute(w, 0, 2, 12, w->inputs);
        size_t row = (size_t)w->n_embd;
        NEED(sn_chain_step(chain, 0, 8, w->inputs, out, &err));
        NEED(sn_chain_step(chain, 8, 4, w->inputs + 8 * row, out + 8 * row, &err));
        const float *in[] = {w->inputs + 8 * row, between + 8 * row, w->hidden + 8 * row};
        for (int i = 0; i < 2; i++) {
            sn_receipt r;
            sn_hash input = sn_hash_of(in[i], 4 * row * sizeof(float));
            sn_hash output = sn_hash_of(in[i + 1], 4 * row * sizeof(float));
            NEED(sn_receipt_open(chain->hops[i].receipt, SN_RECEIPT_SIZE, &r, &err));
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
        world_free(&w);
    }
}

/* -- what a client does not take: a result is made wrong in one place, as the wire brings it */

typedef struct spoilt {
    sn_hop_at hop;
    sn_msg *result;
    sn_hash sent;
    sn_identity identity;
    sn_receipt receipt;
} spoilt;

static void spoilt_begin(spoilt *s) {
    static const float rows[2] = {1, 2}, answer[2] = {3, 4};
    *s = (spoilt){.sent = sn_hash_of(rows, sizeof rows)};
    NEED(sn_identity_new(&s->identity, &err));
    s->hop = (sn_hop_at){.first = 1, .end = 3, .step = 4, .signs = true};
    memcpy(s->hop.node, s->identity.id, SN_KEY_SIZE);
    s->hop.timeline = calloc(8, sizeof *s->hop.timeline);
    sn_random(s->hop.timeline, 8 * sizeof *s->hop.timeline);
    sn_random(&s->hop.model, sizeof s->hop.model);
    sn_random(&s->hop.weights, sizeof s->hop.weights);
    sn_random(s->hop.session, sizeof s->hop.session);
    NEED(sn_msg_new(SN_MSG_RESULT, 1, &s->result, &err));
    s->result->tensor = (sn_wire_tensor){SN_F32, 2, {1, 2}, answer, sizeof answer};
    NEED(sn_list_new(1, 8, sizeof(sn_trace), &s->result->result.trace, &err));
    NEED(sn_list_new(1, 8, sizeof(sn_blob), &s->result->result.receipts, &err));
    NEED(sn_calloc(&s->result->result.receipts[0].data, SN_RECEIPT_SIZE, 1, &err));
    s->result->result.n_trace = s->result->result.n_receipts = 1;
    s->result->result.receipts[0].len = SN_RECEIPT_SIZE;
    sn_random(s->result->result.trace[0].timeline, SN_HASH_SIZE);
    s->receipt = (sn_receipt){.step = 5, .position = 2, .n = 1, .n_embd = 2, .first_block = 1, .end_block = 3};
    memcpy(s->receipt.session, s->hop.session, sizeof s->hop.session);
    memcpy(s->receipt.model, &s->hop.model, SN_HASH_SIZE);
    s->receipt.weights = s->hop.weights;
    s->receipt.timeline_before = s->hop.timeline[2];
    memcpy(&s->receipt.timeline_after, s->result->result.trace[0].timeline, SN_HASH_SIZE);
    s->receipt.input = sn_hash_of(rows, sizeof rows);
    s->receipt.output = sn_hash_of(answer, sizeof answer);
}

static sn_status take(spoilt *s, sn_err *why) {
    size_t failed = 9;
    NEED(sn_receipt_seal(&s->receipt, &s->identity, s->result->result.receipts[0].data, &err));
    sn_status status = sn_hops_take_receipts(&s->hop, 1, &s->sent, s->result, 2, 1, &failed, why);
    if (status) cr_expect_eq(failed, 0);
    return status;
}

static void spoilt_end(spoilt *s) {
    free(s->hop.timeline);
    sn_msg_free(&s->result);
}

#define NOT_TAKEN(change, part)                                                                                        \
    do {                                                                                                               \
        spoilt s;                                                                                                      \
        sn_err why = {0};                                                                                              \
        spoilt_begin(&s);                                                                                              \
        cr_assert_eq(take(&s, &why), SN_OK, "%s", why.text);                                                           \
        change;                                                                                                        \
        cr_expect_eq(take(&s, &why), SN_RETRY, #change);                                                               \
        cr_expect(strstr(why.text, part), "%s: %s", #change, why.text);                                                \
        spoilt_end(&s);                                                                                                \
    } while (0)

Test(receipt, that_speaks_of_anything_but_this_step_is_not_taken) {
    NOT_TAKEN(s.receipt.session[3] ^= 1, "another step");
    NOT_TAKEN(s.receipt.step = 4, "another step");
    NOT_TAKEN(s.receipt.model[0] ^= 1, "other blocks");
    NOT_TAKEN(s.receipt.weights.bytes[0] ^= 1, "other blocks");
    NOT_TAKEN(s.receipt.first_block = 0, "other blocks");
    NOT_TAKEN(s.receipt.end_block = 4, "other blocks");
    NOT_TAKEN(s.receipt.position = 1, "other tokens");
    NOT_TAKEN(s.receipt.n = 2, "other tokens");
    NOT_TAKEN(s.receipt.timeline_before.bytes[9] ^= 1, "another timeline");
    NOT_TAKEN(s.receipt.timeline_after.bytes[9] ^= 1, "another timeline");
    NOT_TAKEN(s.receipt.input.bytes[1] ^= 1, "another input");
    NOT_TAKEN(s.receipt.input_dtype = SN_F16, "another type");
    NOT_TAKEN(s.hop.takes = SN_Q8, "another type");
    NOT_TAKEN(s.receipt.output.bytes[1] ^= 1, "another output");
    NOT_TAKEN(s.receipt.output_dtype = SN_F16, "another type");
    NOT_TAKEN(s.hop.node[0] ^= 1, "another node signed it");
    NOT_TAKEN(s.result->result.receipts[0].len = 0, "worth nothing");
}

Test(receipt, a_node_that_was_asked_and_signs_nothing_is_not_used) {
    spoilt s;
    sn_err why;
    spoilt_begin(&s);
    s.result->result.n_receipts = 0;
    cr_expect_eq(take(&s, &why), SN_RETRY);
    cr_expect(strstr(why.text, "0 receipts came from 1 nodes"), "%s", why.text);
    s.result->result.n_receipts = 1;
    spoilt_end(&s);
}

/* -- at the node */

Test(receipt, a_repeated_step_is_signed_again_if_it_was_signed_before) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    sn_receipt first, second;
    for (int i = 0; i < 2; i++) {
        sn_msg *msg = past_step_message(&p, 0, 5);
        msg->step.receipt = 1;
        sn_msg *answer = talk_ask(t, &msg);
        cr_assert(answer->kind == SN_MSG_RESULT && answer->result.n_receipts == 1);
        NEED(sn_receipt_open(answer->result.receipts[0].data, answer->result.receipts[0].len, i ? &second : &first, &err));
        sn_msg_free(&answer);
    }
    second.unix_ms = first.unix_ms;
    cr_expect_arr_eq(&first, &second, sizeof first);
    p.step = 1;
    cr_assert(past_goes_on(&p, 5, 3)); /* without a receipt */
    p.step = 1;
    sn_msg *msg = past_step_message(&p, 5, 3);
    msg->step.receipt = 1;
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, "when a step is first sent"));
    p.step = 2;
    past_close(&p);
    talk_free(&t);
    world_free(&w);
}

Test(receipt, receipts_that_come_along_must_be_some_and_not_too_many) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    const char *parts[] = {"has 384 bytes, one that came with the step has 3", "1 receipts came with the trace of 0"};
    for (int i = 0; i < 2; i++) {
        sn_msg *msg = past_step_message(&p, 0, 5);
        NEED(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.receipts, &msg->step.receipts, &err));
        msg->step.n_receipts = 1;
        msg->step.receipts[0].len = i ? SN_RECEIPT_SIZE : 3;
        NEED(sn_calloc(&msg->step.receipts[0].data, SN_RECEIPT_SIZE, 1, &err));
        cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, parts[i]));
    }
    cr_expect(past_goes_on(&p, 0, 5));
    past_close(&p);
    talk_free(&t);
    world_free(&w);
}
