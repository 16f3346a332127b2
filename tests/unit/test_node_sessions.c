/* What a node promises of a session: the same question gives the same answer, a rewind leaves no trace, room in the
 * cache is waited for and comes back, and pushes are taken from one node only. */
#include "base/clock.h"
#include "base/wire.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options ROOMY = {.kv_memory = 64};
static const cluster_options NARROW = {.kv_memory = 3}; /* pages of 32 tokens; a step waits a second at most */

static sn_msg *again(past *p, uint64_t step, int position, int n) {
    sn_msg *msg = past_step_message(p, position, n);
    msg->step.step = step;
    return msg;
}

static bool same_rows(const sn_msg *answer, const float *rows, int n, int n_embd) {
    return answer->kind == SN_MSG_RESULT && answer->tensor.dtype == SN_F32 && answer->tensor.shape[0] == (uint64_t)n &&
           !memcmp(answer->tensor.data, rows, (size_t)n * (size_t)n_embd * sizeof *rows);
}

Test(node_sessions, the_same_step_again_gives_the_same_bytes_without_computing_twice) {
    world *w = world_new(&ROOMY);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    cr_assert(past_goes_on(&p, 0, 20));
    cr_assert(past_goes_on(&p, 20, 3));
    sn_msg_status_is before = talk_status(t);
    for (int i = 0; i < 3; i++) {
        sn_msg *msg = again(&p, 2, 20, 3), *answer = talk_ask(t, &msg);
        cr_expect(same_rows(answer, w->hidden + (size_t)20 * (size_t)w->n_embd, 3, w->n_embd));
        sn_msg_free(&answer);
    }
    sn_msg_status_is after = talk_status(t);
    cr_expect_eq(before.steps, 2);
    cr_expect_eq(after.steps, 2);
    cr_expect_eq(after.passes, before.passes);
    cr_expect_eq(after.tokens, 23);
    sn_msg *msg = again(&p, 2, 20, 2); /* the number of another question */
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "does not follow step 2"));
    cr_expect(past_goes_on(&p, 23, 5));
    past_close(&p);
    talk_free(&t);
    world_free(&w);
}

Test(node_sessions, a_rewind_gives_the_bits_of_a_fresh_session) {
    world *w = world_new(&ROOMY);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    cr_assert(past_goes_on(&p, 0, 70));
    const int to[][2] = {{33, 10}, {32, 1}, {31, 2}, {0, 40}, {40, 1}, {7, 0}};
    for (int i = 0; to[i][1]; i++) cr_expect(past_goes_on(&p, to[i][0], to[i][1]), "rewind to %d", to[i][0]);
    /* Other tokens in between leave no trace either. */
    sn_msg *msg = past_step_message(&p, 41, 20), *answer;
    memset(msg->owner, 0, 64);
    answer = talk_ask(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_RESULT);
    sn_msg_free(&answer);
    p.step++;
    msg = past_step_message(&p, 60, 1); /* the timeline that was there before is gone */
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "MISMATCH"));
    cr_expect(past_goes_on(&p, 41, 30));
    past_close(&p);
    talk_free(&t);
    world_free(&w);
}

/* Rows as they travel, and how many bytes these have. */
static void *narrow(sn_dtype dtype, const float *rows, size_t n, size_t *bytes) {
    NEED(sn_dtype_row_bytes(dtype, n, bytes, &err));
    void *out = malloc(*bytes);
    sn_wire_encode(dtype, rows, n, out);
    return out;
}

Test(node_sessions, takes_and_gives_fewer_bits) {
    world *w = world_new(&ROOMY);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    const sn_dtype dtypes[] = {SN_F16, SN_BF16, SN_Q8};
    enum { N = 9 };
    size_t n = (size_t)N * (size_t)w->n_embd;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        past p;
        past_init(&p, w, t, 0, 4);
        past_open(&p);
        size_t bytes;
        void *in = narrow(dtypes[i], w->inputs, n, &bytes);
        float *wide = malloc(n * sizeof *wide);
        sn_wire_decode(dtypes[i], in, n, wide);
        float *hidden = world_compute(w, 0, 4, N, wide);
        sn_hash *timeline = world_timeline(w, 0, 4, N, wide);
        void *expected = narrow(dtypes[i], hidden, n, &bytes);
        sn_msg *msg = past_step_message(&p, 0, N), *answer;
        void *data;
        NEED(sn_msg_new_tensor(msg, dtypes[i], 2, (uint64_t[]){N, (uint64_t)w->n_embd}, &data, &err));
        memcpy(data, in, bytes);
        msg->step.reply_dtype = dtypes[i];
        answer = talk_ask(t, &msg);
        cr_assert_eq(answer->kind, SN_MSG_RESULT);
        cr_expect_eq(answer->tensor.dtype, dtypes[i]);
        cr_assert_eq(answer->tensor.bytes, bytes);
        cr_expect(!memcmp(answer->tensor.data, expected, bytes), "%s", sn_dtype_name(dtypes[i]));
        cr_expect(!memcmp(answer->result.trace[0].timeline, timeline[N].bytes, SN_HASH_SIZE));
        sn_msg_free(&answer);
        past_close(&p);
        free(in), free(wide), free(hidden), free(timeline), free(expected);
    }
    talk_free(&t);
    world_free(&w);
}

/* -- room in the cache --------------------------------------------------------------------------------------------- */

typedef struct crowd {
    world *w;
    talk *t, *u;
    past holds, waits; /* 64 tokens are held, 64 more do not fit into 96 */
} crowd;

static crowd crowd_begin(void) {
    crowd c = {.w = world_new(&NARROW)};
    cluster_add(c.w->cluster, 0, 0);
    c.t = talk_new(c.w, 0);
    c.u = talk_new(c.w, 0);
    past_init(&c.holds, c.w, c.t, 0, 4);
    past_init(&c.waits, c.w, c.u, 0, 4);
    past_open(&c.holds);
    past_open(&c.waits);
    cr_assert(past_goes_on(&c.holds, 0, 64));
    return c;
}

static void crowd_end(crowd *c) {
    if (c->holds.world) past_close(&c->holds);
    past_close(&c->waits);
    talk_await_kv_bytes(c->t, 0);
    talk_free(&c->t);
    talk_free(&c->u);
    world_free(&c->w);
}

Test(node_sessions, a_step_waits_for_room_and_is_then_refused) {
    crowd c = crowd_begin();
    int64_t began = sn_now_us();
    sn_msg *msg = past_step_message(&c.waits, 0, 64);
    uint64_t request = talk_send(c.u, &msg);
    msg = past_step_message(&c.waits, 0, 64); /* not the next one, which might wait behind it */
    msg->step.step = 3;
    cr_expect(is_refusal(talk_ask(c.u, &msg), SN_RETRY, "busy with step 1"));
    cr_expect(past_goes_on(&c.holds, 64, 1)); /* who has a past goes on meanwhile */
    cr_expect(is_refusal(talk_hear(c.u, request, WORLD_WAIT_MS), SN_RETRY, "the cache is full"));
    cr_expect(sn_now_us() - began >= 900000);
    cr_expect(past_goes_on(&c.holds, 65, 1));
    talk_await_kv_bytes(c.t, 3 * c.w->page_bytes);
    cr_expect(past_goes_on(&c.holds, 0, 10)); /* a rewind gives room */
    cr_expect(past_goes_on(&c.waits, 0, 64));
    crowd_end(&c);
}

Test(node_sessions, a_waiting_step_gets_the_room_that_another_session_leaves) {
    crowd c = crowd_begin();
    sn_msg *msg = past_step_message(&c.waits, 0, 64);
    uint64_t request = talk_send(c.u, &msg);
    cr_expect_null(talk_hear(c.u, request, 100));
    past_close(&c.holds);
    cr_expect(past_took(&c.waits, talk_hear(c.u, request, 900), 0, 64));
    crowd_end(&c);
}

Test(node_sessions, the_answer_goes_to_the_newest_of_the_same_questions) {
    crowd c = crowd_begin();
    sn_msg *msg = past_step_message(&c.waits, 0, 64);
    talk_send(c.u, &msg);
    msg = past_step_message(&c.waits, 0, 64);
    uint64_t newer = talk_send(c.u, &msg);
    cr_expect_null(talk_hear(c.u, newer, 100));
    past_close(&c.holds);
    cr_expect(past_took(&c.waits, talk_hear(c.u, newer, 900), 0, 64));
    cr_expect_eq(talk_status(c.u).steps, 2);
    crowd_end(&c);
}

Test(node_sessions, closing_a_session_ends_its_wait) {
    crowd c = crowd_begin();
    past doomed;
    past_init(&doomed, c.w, c.u, 0, 4);
    past_open(&doomed);
    sn_msg *msg = past_step_message(&doomed, 0, 64);
    talk_send(c.u, &msg);
    past_close(&doomed);
    int64_t deadline = sn_now_us() + 800000; /* before the second is over that it would have waited */
    while (talk_status(c.u).sessions > 2 && sn_now_us() < deadline) sn_sleep_us(2000);
    cr_expect_eq(talk_status(c.u).sessions, 2);
    cr_expect_eq(talk_status(c.u).queue, 0);
    cr_expect(past_goes_on(&c.holds, 64, 1));
    crowd_end(&c);
}

Test(node_sessions, a_step_larger_than_the_whole_cache_is_refused_at_once) {
    world *w = world_new(&(cluster_options){.kv_memory = 2});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    int64_t began = sn_now_us();
    sn_msg *msg = past_step_message(&p, 0, 65);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, "this cache holds 64 in all"));
    cr_expect(sn_now_us() - began < 800000);
    cr_expect_eq(talk_status(t).kv_bytes, 0);
    cr_expect(past_goes_on(&p, 0, 64));
    past_close(&p);
    talk_await_kv_bytes(t, 0);
    talk_free(&t);
    world_free(&w);
}

/* -- pushes -------------------------------------------------------------------------------------------------------- */

typedef struct pipe {
    world *w;
    talk *front, *back; /* the same client, to either node */
    past first, second;
    float *between; /* what the first node makes */
    sn_hash *timeline;
} pipe;

static pipe pipe_begin(bool named) {
    pipe p = {.w = world_new(&ROOMY)};
    cluster_add(p.w->cluster, 0, 2);
    cluster_add(p.w->cluster, 2, 4);
    p.front = talk_new(p.w, 0);
    p.back = talk_new(p.w, 1);
    past_init(&p.first, p.w, p.front, 0, 2);
    past_init(&p.second, p.w, p.back, 2, 4);
    past_open(&p.first);
    sn_msg *msg = past_open_message(&p.second);
    if (named) memcpy(msg->open.predecessor, sn_node_curve_key(cluster_node(p.w->cluster, 0)), SN_KEY_SIZE);
    sn_msg *answer = talk_ask(p.back, &msg);
    cr_assert_eq(answer->kind, SN_MSG_OPENED);
    sn_msg_free(&answer);
    p.between = world_compute(p.w, 0, 2, WORLD_TOKENS, p.w->inputs);
    p.timeline = world_timeline(p.w, 2, 4, WORLD_TOKENS, p.between);
    return p;
}

static void pipe_end(pipe *p) {
    past_close(&p->first);
    past_close(&p->second);
    talk_await_kv_bytes(p->front, 0);
    talk_await_kv_bytes(p->back, 0);
    talk_free(&p->front);
    talk_free(&p->back);
    free(p->between);
    free(p->timeline);
    world_free(&p->w);
}

/* A step to the first node that names the second as where its output goes. */
static sn_msg *pushed(pipe *p, int position, int n) {
    sn_msg *msg = past_step_message(&p->first, position, n);
    const sn_node *next = cluster_node(p->w->cluster, 1);
    NEED(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = 1;
    sn_hop *hop = msg->step.route;
    snprintf(hop->address, sizeof hop->address, "%s", sn_node_address(next));
    memcpy(hop->curve_key, sn_node_curve_key(next), SN_KEY_SIZE);
    memcpy(hop->session, p->second.id, sizeof hop->session);
    memcpy(hop->timeline, p->timeline[position].bytes, SN_HASH_SIZE);
    return msg;
}

Test(node_sessions, a_push_comes_out_at_the_end_of_the_route_and_can_be_repeated) {
    pipe p = pipe_begin(true);
    for (int round = 0; round < 3; round++) { /* 0: new, 1: the same again, 2: the next one */
        int position = round == 2 ? 12 : 0, n = round == 2 ? 1 : 12;
        sn_msg *msg = pushed(&p, position, n), *answer;
        msg->step.step = round == 2 ? 2 : 1;
        talk_send(p.front, &msg);
        answer = talk_hear(p.back, 0, WORLD_WAIT_MS); /* from the last node, over our connection to it */
        cr_assert(answer);
        cr_expect(same_rows(answer, p.w->hidden + (size_t)position * (size_t)p.w->n_embd, n, p.w->n_embd));
        cr_assert(answer->kind == SN_MSG_RESULT && answer->result.n_trace == 2);
        cr_expect(!memcmp(answer->result.trace[0].timeline, p.first.timeline[position + n].bytes, SN_HASH_SIZE));
        cr_expect(!memcmp(answer->result.trace[1].timeline, p.timeline[position + n].bytes, SN_HASH_SIZE));
        cr_expect(!memcmp(answer->result.trace[1].node, sn_node_id(cluster_node(p.w->cluster, 1)), SN_KEY_SIZE));
        sn_msg_free(&answer);
    }
    cr_expect_eq(talk_status(p.front).tokens, 13);
    cr_expect_eq(talk_status(p.back).tokens, 13);
    pipe_end(&p);
}

Test(node_sessions, a_push_from_a_node_that_was_not_named_is_refused_and_the_client_told) {
    pipe p = pipe_begin(false);
    sn_msg *msg = pushed(&p, 0, 5);
    talk_send(p.front, &msg);
    sn_msg *answer = talk_hear(p.front, 0, WORLD_WAIT_MS); /* the first node passes the refusal on */
    cr_assert(answer && answer->kind == SN_MSG_ERROR);
    cr_expect(!memcmp(answer->error.session, p.second.id, SN_SESSION_ID_SIZE)); /* names the session to blame */
    cr_expect(is_refusal(answer, SN_REFUSED, "belongs to another client"));
    cr_expect_eq(talk_status(p.back).tokens, 0);
    pipe_end(&p);
}

Test(node_sessions, only_the_node_that_was_pushed_to_may_refuse_the_push) {
    pipe p = pipe_begin(true);
    sn_msg *msg = pushed(&p, 0, 5);
    talk_send(p.front, &msg);
    sn_msg *answer = talk_hear(p.back, 0, WORLD_WAIT_MS);
    cr_assert(answer && answer->kind == SN_MSG_RESULT);
    sn_msg_free(&answer);
    talk *stranger = talk_new(p.w, 0);
    NEED(sn_msg_new(SN_MSG_ERROR, 0, &msg, &err));
    msg->error.status = SN_REFUSED;
    msg->error.step = 1;
    memcpy(msg->error.session, p.second.id, SN_SESSION_ID_SIZE);
    talk_send(stranger, &msg);
    talk_status(stranger); /* it has been read */
    cr_expect_null(talk_hear(p.front, 0, 100));
    talk_free(&stranger);
    pipe_end(&p);
}
