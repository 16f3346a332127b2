/* A past that moves: from node to node and by the client's hand, part by part, beside steps and over rewinds; what comes out of
 * it are the bits of a session that never moved. And who may do it. */
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include "base/clock.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options ROOMY = {.kv_memory = 64};

/* A session at node 0 that is to go on at node 1, and the one that waits for it there. */
typedef struct pair {
    world *w;
    talk *t, *u; /* the same client, to either node */
    past from, to;
} pair;

static talk *talk_as(world *w, const talk *other, int node) {
    talk *t = calloc(1, sizeof *t);
    const sn_node *at = cluster_node(w->cluster, node);
    t->identity = other->identity;
    t->transport = cluster_transport_as(w->cluster, &t->identity);
    NEED(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

static sn_msg *open_waiting(past *p, const sn_node *source) {
    sn_msg *msg = past_open_message(p);
    if (source) memcpy(msg->open.source, sn_node_curve_key(source), SN_KEY_SIZE);
    return talk_ask(p->talk, &msg);
}

static pair pair_new(bool named) {
    pair p = {.w = world_new(&ROOMY)};
    cluster_add(p.w->cluster, 0, 0);
    cluster_add(p.w->cluster, 0, 0);
    p.t = talk_new(p.w, 0);
    p.u = talk_as(p.w, p.t, 1);
    past_init(&p.from, p.w, p.t, 0, 4);
    past_init(&p.to, p.w, p.u, 0, 4);
    past_open(&p.from);
    sn_msg *answer = open_waiting(&p.to, named ? cluster_node(p.w->cluster, 0) : NULL);
    cr_assert_eq(answer->kind, SN_MSG_OPENED);
    sn_msg_free(&answer);
    return p;
}

static void pair_free(pair *p) {
    if (p->from.world) past_close(&p->from);
    if (p->to.world) past_close(&p->to);
    talk_await_kv_bytes(p->t, 0);
    talk_await_kv_bytes(p->u, 0);
    talk_free(&p->t);
    talk_free(&p->u);
    world_free(&p->w);
}

static sn_msg *send_message(const past *from, const past *to, int node) {
    sn_msg *msg = NULL;
    const sn_node *at = cluster_node(from->world->cluster, node);
    NEED(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    memcpy(msg->kv_send.session, from->id, SN_SESSION_ID_SIZE);
    memcpy(msg->kv_send.target, to->id, SN_SESSION_ID_SIZE);
    msg->kv_send.end_block = 4;
    snprintf(msg->kv_send.address, sizeof msg->kv_send.address, "%s", sn_node_address(at));
    memcpy(msg->kv_send.curve_key, sn_node_curve_key(at), SN_KEY_SIZE);
    return msg;
}

static void expect_sent(pair *p) {
    sn_msg *msg = send_message(&p->from, &p->to, 1), *answer = talk_ask(p->t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_KV_SENT, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    cr_expect_eq(answer->kv_sent.length, p->from.length);
    cr_expect(!memcmp(answer->kv_sent.timeline, p->from.timeline[p->from.length].bytes, SN_HASH_SIZE));
    sn_msg_free(&answer);
}

static sn_msg *resume_message(const past *p, int position, uint64_t step) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_RESUME, 0, &msg, &err));
    memcpy(msg->resume.session, p->id, SN_SESSION_ID_SIZE);
    msg->resume.position = (uint64_t)position;
    msg->resume.step = step;
    return msg;
}

/* Goes on with `to` where `from` stood: its length, as many as `length`. */
static void expect_resumed(past *to, int position, uint64_t step, int length) {
    sn_msg *msg = resume_message(to, position, step), *answer = talk_ask(to->talk, &msg);
    cr_assert_eq(answer->kind, SN_MSG_RESUMED, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    cr_assert_eq(answer->resumed.length, length);
    cr_expect(!memcmp(answer->resumed.timeline, to->timeline[length].bytes, SN_HASH_SIZE));
    sn_msg_free(&answer);
    to->step = step;
    to->length = length;
}

Test(past, moves_to_another_node_that_goes_on_with_the_same_bits) {
    pair p = pair_new(true);
    cr_assert(past_goes_on(&p.from, 0, 70));
    expect_sent(&p);
    expect_resumed(&p.to, 70, p.from.step, 70);
    cr_expect(past_goes_on(&p.to, 70, 5));
    cr_expect(past_goes_on(&p.to, 40, 50)); /* a rewind behind where it came in */
    cr_expect_eq(talk_status(p.u).tokens, 55, "nothing was computed twice");
    pair_free(&p);
}

/* Asked once, the first node goes on copying what each step adds, and what a rewind changes. */
Test(past, is_kept_up_to_date_at_the_other_node_over_steps_and_rewinds) {
    pair p = pair_new(true);
    expect_sent(&p); /* of nothing yet */
    const int steps[][2] = {{0, 33}, {33, 1}, {34, 40}, {20, 3}, {23, 1}, {10, 60}, {70, 1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        cr_assert(past_goes_on(&p.from, steps[i][0], steps[i][1]));
        if (i == 2) expect_sent(&p); /* so that a rewind finds all of it there, and another one a part on its way */
    }
    expect_sent(&p);
    expect_resumed(&p.to, 71, p.from.step, 71);
    cr_expect(past_goes_on(&p.to, 71, 20));
    cr_expect_eq(talk_status(p.u).tokens, 20);
    pair_free(&p);
}

/* A rewind after which other tokens come: what was copied of the old ones is written over. */
Test(past, forgets_at_the_other_node_too_what_a_rewind_forgot) {
    pair p = pair_new(true);
    cr_assert(past_goes_on(&p.from, 0, 60));
    expect_sent(&p);
    sn_msg *msg = past_step_message(&p.from, 20, 3), *answer, *resumed;
    memset(msg->owner, 0, 64);
    answer = talk_ask(p.t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_RESULT);
    msg = send_message(&p.from, &p.to, 1);
    sn_msg *sent = talk_ask(p.t, &msg);
    cr_assert_eq(sent->kind, SN_MSG_KV_SENT);
    msg = resume_message(&p.to, 23, 0);
    resumed = talk_ask(p.u, &msg);
    cr_assert_eq(resumed->kind, SN_MSG_RESUMED);
    cr_expect_eq(resumed->resumed.length, 23);
    cr_expect(!memcmp(resumed->resumed.timeline, answer->result.trace[0].timeline, SN_HASH_SIZE), "the old tokens are there still");
    sn_msg_free(&answer), sn_msg_free(&sent), sn_msg_free(&resumed);
    pair_free(&p);
}

Test(past, that_lags_behind_says_how_far_it_is) {
    pair p = pair_new(true);
    cr_assert(past_goes_on(&p.from, 0, 30));
    expect_sent(&p);
    expect_resumed(&p.to, 50, 9, 30); /* the owner believed that there was more */
    p.to.length = 30;
    cr_expect(past_goes_on(&p.to, 30, 20));
    sn_msg *msg = send_message(&p.from, &p.to, 1); /* and from now on nobody writes it any more */
    cr_assert(past_goes_on(&p.from, 30, 1));
    talk_send(p.t, &msg);
    cr_expect(past_goes_on(&p.to, 50, 10));
    pair_free(&p);
}

Test(past, comes_from_the_owner_and_the_node_it_named_and_from_nobody_else) {
    pair p = pair_new(false);
    cr_assert(past_goes_on(&p.from, 0, 20));
    sn_msg *msg = send_message(&p.from, &p.to, 1);
    cr_expect(is_refusal(talk_ask(p.t, &msg), SN_RETRY, "only the session's owner, and the node that it named"));
    expect_resumed(&p.to, 0, 0, 0);
    cr_expect(past_goes_on(&p.to, 0, 20));
    talk *stranger = talk_new(p.w, 0);
    msg = send_message(&p.from, &p.to, 1); /* nor may anybody else have it sent */
    cr_expect(is_refusal(talk_ask(stranger, &msg), SN_REFUSED, "belongs to another client"));
    msg = resume_message(&p.from, 0, 0);
    cr_expect(is_refusal(talk_ask(stranger, &msg), SN_REFUSED, "belongs to another client"));
    talk_free(&stranger);
    pair_free(&p);
}

/* -- by the client's hand ------------------------------------------------------------------------------------------ */

static sn_msg *get_message(const past *p, int position, int tokens) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, p->id, SN_SESSION_ID_SIZE);
    msg->kv_get.position = (uint64_t)position;
    msg->kv_get.tokens = (uint64_t)tokens;
    return msg;
}

/* A KV_PUT from a KV_PART, which it leaves as it is. */
static sn_msg *put_message(const past *to, const sn_msg *part) {
    sn_msg *msg = NULL;
    void *data;
    NEED(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    sn_msg_kv_put *put = &msg->kv_put;
    memcpy(put, &part->kv_part, sizeof *put);
    NEED(sn_list_new(put->n_marks, SN_PAST_TOKENS_MAX, sizeof *put->marks, &put->marks, &err));
    memcpy(put->marks, part->kv_part.marks, put->n_marks * sizeof *put->marks);
    memcpy(put->session, to->id, SN_SESSION_ID_SIZE);
    NEED(sn_msg_new_tensor(msg, SN_F32, 4, part->tensor.shape, &data, &err));
    memcpy(data, part->tensor.data, part->tensor.bytes);
    return msg;
}

static sn_msg *get(past *p, int position, int tokens) {
    sn_msg *msg = get_message(p, position, tokens), *part = talk_ask(p->talk, &msg);
    cr_assert_eq(part->kind, SN_MSG_KV_PART, "%s", part->kind == SN_MSG_ERROR ? part->error.text : "?");
    return part;
}

static uint64_t put(past *to, sn_msg *msg) {
    sn_msg *answer = talk_ask(to->talk, &msg);
    cr_assert_eq(answer->kind, SN_MSG_KV_TAKEN, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    uint64_t length = answer->kv_taken.length;
    sn_msg_free(&answer);
    return length;
}

Test(past, is_read_and_written_by_its_owner) {
    pair p = pair_new(false);
    cr_assert(past_goes_on(&p.from, 0, 60));
    const int parts[][2] = {{0, 10}, {10, 33}, {43, 17}};
    for (int i = 2; i >= 0; i--) { /* one that is not next is not taken, and the answer says what is there */
        sn_msg *part = get(&p.from, parts[i][0], parts[i][1]);
        cr_expect_eq(put(&p.to, put_message(&p.to, part)), i ? 0 : 10);
        sn_msg_free(&part);
    }
    for (int i = 1; i < 3; i++) {
        sn_msg *part = get(&p.from, parts[i][0], parts[i][1]);
        for (int twice = 0; twice < 2; twice++)
            cr_expect_eq(put(&p.to, put_message(&p.to, part)), parts[i][0] + parts[i][1]);
        sn_msg_free(&part);
    }
    expect_resumed(&p.to, 60, 0, 60);
    cr_expect(past_goes_on(&p.to, 60, 3));
    sn_msg *part = get(&p.from, 0, 5), *msg = put_message(&p.to, part);
    cr_expect(is_refusal(talk_ask(p.u, &msg), SN_REFUSED, "has gone on"));
    sn_msg_free(&part);
    pair_free(&p);
}

Test(past, a_part_that_builds_on_another_timeline_is_not_taken) {
    pair p = pair_new(false);
    cr_assert(past_goes_on(&p.from, 0, 60));
    sn_msg *first = get(&p.from, 0, 10), *next = get(&p.from, 10, 30), *msg = put_message(&p.to, first);
    cr_expect_eq(put(&p.to, msg), 10);
    msg = put_message(&p.to, next);
    msg->kv_put.before[5] ^= 1; /* sent before a rewind, come late */
    cr_expect_eq(put(&p.to, msg), 0);
    cr_expect_eq(put(&p.to, put_message(&p.to, next)), 40, "what was there is there no more");
    expect_resumed(&p.to, 60, 0, 40);
    p.to.length = 40;
    cr_expect(past_goes_on(&p.to, 40, 3));
    sn_msg_free(&first);
    sn_msg_free(&next);
    pair_free(&p);
}

/* Who puts a false past into his own session with the marks of a true one gets false answers, and nobody else does, not even
 * where all clients share their beginnings. */
Test(past, that_is_false_stays_with_him_who_put_it_there) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .prefix_memory = 1 << 20, .share_all = true});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *u = talk_new(w, 0);
    past source, liar, honest;
    past_init(&source, w, t, 0, 4), past_init(&liar, w, t, 0, 4), past_init(&honest, w, u, 0, 4);
    past_open(&source), past_open(&liar), past_open(&honest);
    cr_assert(past_goes_on(&source, 0, 40));
    sn_msg *part = get(&source, 0, 40), *msg = put_message(&liar, part);
    float *data = msg->owner;
    for (size_t i = 0; i < msg->tensor.bytes / sizeof *data; i += 3) data[i] = 1 - data[i];
    sn_hash hash = sn_hash_of(data, msg->tensor.bytes);
    memcpy(msg->kv_put.hash, hash.bytes, sizeof hash);
    cr_expect_eq(put(&liar, msg), 40);
    expect_resumed(&liar, 40, 0, 40);
    msg = past_step_message(&liar, 40, 56);
    sn_msg *answer = talk_ask(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_RESULT);
    cr_expect(memcmp(answer->tensor.data, w->hidden + (size_t)40 * (size_t)w->n_embd, 56 * (size_t)w->n_embd * sizeof(float)),
              "the false past is read");
    cr_expect(past_goes_on(&honest, 0, 96));
    sn_msg_free(&answer);
    sn_msg_free(&part);
    past_close(&source), past_close(&liar), past_close(&honest);
    talk_free(&t), talk_free(&u);
    world_free(&w);
}

Test(past, that_is_damaged_or_of_another_shape_is_not_taken) {
    pair p = pair_new(false);
    cr_assert(past_goes_on(&p.from, 0, 60));
    sn_msg *part = get(&p.from, 0, 20), *msg = put_message(&p.to, part);
    ((uint8_t *)msg->owner)[1234] ^= 1;
    cr_expect(is_refusal(talk_ask(p.u, &msg), SN_RETRY, "damaged"));
    msg = put_message(&p.to, part);
    msg->tensor.shape[0] = 2;
    msg->tensor.bytes /= 2;
    cr_expect(is_refusal(talk_ask(p.u, &msg), SN_REFUSED, "a past of this session is float32"));
    msg = put_message(&p.to, part);
    msg->kv_put.n_marks = 19;
    cr_expect(is_refusal(talk_ask(p.u, &msg), SN_REFUSED, "as many marks"));
    msg = put_message(&p.to, part);
    msg->kv_put.position = UINT64_MAX - 3;
    cr_expect(is_refusal(talk_ask(p.u, &msg), SN_REFUSED, "pass the session's limit"));
    msg = get_message(&p.from, 60, 1);
    cr_expect(is_refusal(talk_ask(p.t, &msg), SN_REFUSED, "are not in a past of 60 tokens"));
    msg = put_message(&p.to, part);
    memset(msg->kv_put.marks[19].timeline, 7, SN_KEY_SIZE); /* a false mark: the next step does not build on it */
    cr_expect_eq(put(&p.to, msg), 20);
    p.to.length = 20;
    sn_msg *step = past_step_message(&p.to, 20, 1);
    cr_expect(is_refusal(talk_ask(p.u, &step), SN_REBUILD, "MISMATCH"));
    sn_msg_free(&part);
    pair_free(&p);
}
