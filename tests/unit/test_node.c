/* A node is spoken to by hand. Whatever is refused is refused with its own sentence, and a witness, another client's
 * session at the same node, goes on after it with the right bits. */
#include "base/clock.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* One node with the whole model, a client with a session of 8 tokens, and the witness. */
typedef struct scene {
    world *w;
    talk *client, *other;
    past mine, witness;
} scene;

static scene begin_with(const cluster_options *options) {
    scene s = {.w = world_new(options)};
    cluster_add(s.w->cluster, 0, 0);
    s.client = talk_new(s.w, 0);
    s.other = talk_new(s.w, 0);
    past_init(&s.mine, s.w, s.client, 0, s.w->n_blocks);
    past_init(&s.witness, s.w, s.other, 0, s.w->n_blocks);
    past_open(&s.witness);
    return s;
}

static scene begin(void) {
    scene s = begin_with(&(cluster_options){.kv_memory = 64, .sessions_max = 8});
    past_open(&s.mine);
    cr_assert(past_goes_on(&s.mine, 0, 8));
    return s;
}

static bool witness_goes_on(scene *s) { return past_goes_on(&s->witness, s->witness.length, 1); }

static void end(scene *s) {
    cr_expect(witness_goes_on(s));
    past_close(&s->mine);
    past_close(&s->witness);
    talk_await_kv_bytes(s->other, 0);
    cr_expect_eq(talk_status(s->other).sessions, 0);
    talk_free(&s->client);
    talk_free(&s->other);
    world_free(&s->w);
}

static void expect_refused(scene *s, sn_msg *msg, sn_status status, const char *part) {
    cr_expect(is_refusal(talk_ask(s->client, &msg), status, part), "%s", part);
    cr_expect(witness_goes_on(s), "after: %s", part);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

Test(node, refuses_to_open_what_it_cannot_serve) {
    scene s = begin();
    past more;
    past_init(&more, s.w, s.client, 0, s.w->n_blocks);
    sn_msg *msg = past_open_message(&more);
    msg->open.protocol = 99;
    expect_refused(&s, msg, SN_REFUSED, "protocol 2, not 99");
    msg = past_open_message(&more);
    msg->open.model[3] ^= 1;
    expect_refused(&s, msg, SN_REFUSED, "another model");
    const uint64_t ranges[][2] = {{0, 5}, {2, 2}, {3, 1}, {4, 5}, {UINT64_MAX, 1}, {0, UINT64_MAX}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        msg = past_open_message(&more);
        msg->open.first_block = ranges[i][0];
        msg->open.end_block = ranges[i][1];
        expect_refused(&s, msg, SN_REFUSED, "this node serves 0:4");
    }
    const uint64_t lengths[] = {0, 513, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        msg = past_open_message(&more);
        msg->open.max_tokens = lengths[i];
        expect_refused(&s, msg, SN_REFUSED, "context of 512");
    }
    cr_expect_eq(talk_status(s.other).sessions, 2);
    free(more.timeline);
    end(&s);
}

Test(node, refuses_blocks_outside_of_its_own_range) {
    world *w = world_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 1, 3);
    talk *t = talk_new(w, 0);
    const int ranges[][2] = {{0, 2}, {2, 4}, {0, 4}, {3, 4}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        past p;
        past_init(&p, w, t, ranges[i][0], ranges[i][1]);
        sn_msg *msg = past_open_message(&p);
        cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, "this node serves 1:3"));
        free(p.timeline);
    }
    talk_free(&t);
    world_free(&w);
}

Test(node, refuses_a_session_id_in_use_but_answers_the_same_question_twice) {
    scene s = begin();
    expect_refused(&s, past_open_message(&s.mine), SN_REFUSED, "session id is in use"); /* it has tokens */
    past fresh;
    past_init(&fresh, s.w, s.client, 0, s.w->n_blocks);
    past_open(&fresh);
    past_open(&fresh);
    fresh.talk = s.other; /* nobody else gets it */
    sn_msg *msg = past_open_message(&fresh);
    cr_expect(is_refusal(talk_ask(s.other, &msg), SN_REFUSED, "session id is in use"));
    fresh.talk = s.client;
    cr_expect(past_goes_on(&fresh, 0, 3));
    past_close(&fresh);
    end(&s);
}

Test(node, serves_as_many_sessions_as_it_was_told) {
    scene s = begin();
    past more[6], late;
    for (int i = 0; i < 6; i++) {
        past_init(&more[i], s.w, s.client, 0, s.w->n_blocks);
        past_open(&more[i]);
    }
    past_init(&late, s.w, s.client, 0, s.w->n_blocks);
    expect_refused(&s, past_open_message(&late), SN_RETRY, "8 sessions already");
    past_close(&more[2]);
    int64_t deadline = sn_now_us() + 5000000;
    while (talk_status(s.client).sessions == 8 && sn_now_us() < deadline) {}
    past_open(&late);
    cr_expect(past_goes_on(&late, 0, 2));
    past_close(&late);
    for (int i = 0; i < 6; i++)
        if (i != 2) past_close(&more[i]);
    end(&s);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

Test(node, refuses_steps_of_sessions_that_are_not_there_or_not_the_askers) {
    scene s = begin();
    sn_msg *msg = past_step_message(&s.mine, 8, 1);
    msg->step.session[0] ^= 1;
    expect_refused(&s, msg, SN_REBUILD, "does not know the session");
    past stolen = s.witness;
    msg = past_step_message(&stolen, stolen.length, 1);
    expect_refused(&s, msg, SN_REFUSED, "belongs to another client");
    sn_msg *close = past_close_message(&s.witness);
    expect_refused(&s, close, SN_REFUSED, "only its owner may close it");
    cr_expect(past_goes_on(&s.mine, 8, 1));
    end(&s);
}

Test(node, refuses_steps_that_do_not_fit_the_timeline) {
    scene s = begin();
    const uint64_t steps[] = {0, 3, UINT64_MAX};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        sn_msg *msg = past_step_message(&s.mine, 8, 1);
        msg->step.step = steps[i];
        expect_refused(&s, msg, SN_REBUILD, "does not follow step 1");
    }
    const uint64_t positions[] = {9, 96, (uint64_t)1 << 32, UINT64_MAX};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        sn_msg *msg = past_step_message(&s.mine, 8, 1);
        msg->step.position = positions[i];
        expect_refused(&s, msg, SN_REFUSED, "beyond the session's end at 8");
    }
    sn_msg *msg = past_step_message(&s.mine, 8, 1);
    msg->step.timeline[31] ^= 0x80;
    expect_refused(&s, msg, SN_REBUILD, "MISMATCH");
    msg = past_step_message(&s.mine, 8, 1); /* a rewind to another past */
    msg->step.position = 4;
    expect_refused(&s, msg, SN_REBUILD, "MISMATCH");
    cr_expect(past_goes_on(&s.mine, 8, 1));
    end(&s);
}

static sn_msg *shaped(past *p, int rank, const uint64_t *shape) {
    sn_msg *msg = past_step_message(p, p->length, 1);
    void *data;
    NEED(sn_msg_new_tensor(msg, SN_F32, rank, shape, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    return msg;
}

Test(node, refuses_tensors_that_do_not_fit_the_model) {
    scene s = begin();
    uint64_t width = (uint64_t)s.w->n_embd;
    expect_refused(&s, shaped(&s.mine, 1, (uint64_t[]){width}), SN_REFUSED, "must have shape (tokens, 64)");
    expect_refused(&s, shaped(&s.mine, 3, (uint64_t[]){1, 1, width}), SN_REFUSED, "must have shape (tokens, 64)");
    expect_refused(&s, shaped(&s.mine, 2, (uint64_t[]){1, width - 1}), SN_REFUSED, "must have shape (tokens, 64)");
    expect_refused(&s, shaped(&s.mine, 2, (uint64_t[]){1, 2 * width}), SN_REFUSED, "must have shape (tokens, 64)");
    expect_refused(&s, shaped(&s.mine, 2, (uint64_t[]){513, width}), SN_REFUSED, "at most 512 at once");
    expect_refused(&s, shaped(&s.mine, 2, (uint64_t[]){89, width}), SN_REFUSED, "limit of 96 tokens");
    const uint64_t dtypes[] = {SN_I32, SN_Q8_0, SN_DTYPE_COUNT, UINT64_MAX};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        sn_msg *msg = past_step_message(&s.mine, 8, 1);
        msg->step.reply_dtype = dtypes[i];
        expect_refused(&s, msg, SN_REFUSED, "F32, F16, BF16 or Q8");
        msg = past_step_message(&s.mine, 0, 8); /* the last step again, which is answered from what is kept */
        msg->step.step = 1;
        msg->step.reply_dtype = dtypes[i];
        expect_refused(&s, msg, SN_REFUSED, "F32, F16, BF16 or Q8");
    }
    cr_expect(past_goes_on(&s.mine, 8, 1));
    end(&s);
}

Test(node, refuses_routes_that_are_too_long_or_lead_nowhere) {
    scene s = begin();
    sn_msg *msg = past_step_message(&s.mine, 8, 1);
    NEED(sn_list_new(SN_HOPS_MAX, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = SN_HOPS_MAX;
    expect_refused(&s, msg, SN_REFUSED, "more than 64 nodes");
    msg = past_step_message(&s.mine, 8, 1);
    NEED(sn_list_new(SN_HOPS_MAX, SN_HOPS_MAX, sizeof *msg->step.trace, &msg->step.trace, &err));
    msg->step.n_trace = SN_HOPS_MAX;
    expect_refused(&s, msg, SN_REFUSED, "more than 64 nodes");
    msg = past_step_message(&s.mine, 8, 1);
    NEED(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = 1;
    snprintf(msg->step.route[0].address, sizeof msg->step.route[0].address, "nonsense");
    expect_refused(&s, msg, SN_REFUSED, "'nonsense' is no address");
    s.mine.step++; /* it was computed; only the way on was wrong */
    cr_expect(past_goes_on(&s.mine, 9, 1));
    end(&s);
}

Test(node, tells_who_sends_it_an_answer_that_it_takes_none) {
    scene s = begin();
    sn_msg *msg = NULL;
    for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) { /* PEERS_ARE and PONG are what nodes ask each other for */
        bool answer =
            kind == SN_MSG_OPENED || kind == SN_MSG_CLOSED || kind == SN_MSG_STATUS_IS || kind == SN_MSG_RESULT;
        if (!answer) continue;
        void *data;
        NEED(sn_msg_new((sn_msg_kind)kind, 0, &msg, &err));
        if (kind == SN_MSG_RESULT) {
            NEED(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){1}, &data, &err));
            memset(data, 0, 4);
        }
        expect_refused(&s, msg, SN_REFUSED, "it is an answer");
    }
    NEED(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = 1;
    expect_refused(&s, msg, SN_REFUSED, "protocol 2");
    end(&s);
}

Test(node, computes_numbers_that_are_none_without_harm_to_others) {
    scene s = begin();
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sn_msg *msg = past_step_message(&s.mine, 8, 4);
        float *data = msg->owner;
        for (int k = 0; k < 4 * s.w->n_embd; k += 3) data[k] = bad[i];
        msg->step.position = 8;
        sn_msg *answer = talk_ask(s.client, &msg);
        cr_expect_eq(answer->kind, SN_MSG_RESULT);
        sn_msg_free(&answer);
        s.mine.step++;
        cr_expect(witness_goes_on(&s));
    }
    cr_expect(past_goes_on(&s.mine, 8, 4)); /* a rewind forgets them */
    end(&s);
}
