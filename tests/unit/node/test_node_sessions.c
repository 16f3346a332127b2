/* A node's promises about a session: the same request gives the same reply, a rewind leaves no trace, a step waits
 * for KV pages and closed sessions free theirs, and pushes are accepted from one node only. */
#include "base/clock.h"
#include "base/wire.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options LARGE_CACHE = {.kv_memory = 64};
static const cluster_options SMALL_CACHE = {.kv_memory = 3}; /* pages of 32 tokens; a step waits one second at most */

static sn_msg *repeated_step_message(node_session *p, uint64_t step, int position, int n) {
    sn_msg *msg = node_session_step_message(p, position, n);
    msg->step.step = step;
    return msg;
}

static bool same_rows(const sn_msg *answer, const float *rows, int n, int n_embd) {
    return answer->kind == SN_MSG_STEP_REPLY && answer->tensor.dtype == SN_F32 &&
           answer->tensor.shape[0] == (uint64_t)n &&
           !memcmp(answer->tensor.data, rows, (size_t)n * (size_t)n_embd * sizeof *rows);
}

Test(node_sessions, a_repeated_step_returns_the_same_bytes_without_recomputing) {
    testbed *w = testbed_new(&LARGE_CACHE);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    cr_assert(node_session_step_ok(&p, 0, 20));
    cr_assert(node_session_step_ok(&p, 20, 3));
    sn_msg_status_reply before = node_client_status(t);
    for (int i = 0; i < 3; i++) {
        sn_msg *msg = repeated_step_message(&p, 2, 20, 3), *answer = node_client_request(t, &msg);
        cr_expect(same_rows(answer, w->hidden + (size_t)20 * (size_t)w->n_embd, 3, w->n_embd));
        sn_msg_free(&answer);
    }
    sn_msg_status_reply after = node_client_status(t);
    cr_expect_eq(before.steps, 2);
    cr_expect_eq(after.steps, 2);
    cr_expect_eq(after.forward_passes, before.forward_passes);
    cr_expect_eq(after.tokens, 23);
    sn_msg *msg = repeated_step_message(&p, 2, 20, 2); /* the number of another step */
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "does not follow step 2"));
    void *narrow; /* 12 bytes for a reply of whole rows */
    msg = repeated_step_message(&p, 2, 20, 3);
    sn_msg *small = NULL;
    REQUIRE(sn_msg_new(SN_MSG_STEP, msg->correlation_id, &small, &err));
    small->step = msg->step;
    REQUIRE(sn_msg_new_tensor(small, SN_F32, 2, (uint64_t[]){3, 1}, &narrow, &err));
    memset(narrow, 0, 3 * sizeof(float));
    sn_msg *answer = node_client_request(t, &small);
    cr_expect_eq(answer->kind, SN_MSG_ERROR, "rows of one number were answered with whole ones");
    sn_msg_free(&answer);
    sn_msg_free(&msg);
    cr_expect(node_session_step_ok(&p, 23, 5));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_sessions, a_rewind_gives_the_bits_of_a_fresh_session) {
    testbed *w = testbed_new(&LARGE_CACHE);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    cr_assert(node_session_step_ok(&p, 0, 70));
    const int to[][2] = {{33, 10}, {32, 1}, {31, 2}, {0, 40}, {40, 1}, {7, 0}};
    for (int i = 0; to[i][1]; i++) cr_expect(node_session_step_ok(&p, to[i][0], to[i][1]), "rewind to %d", to[i][0]);
    /* Other tokens in between leave no trace either. */
    sn_msg *msg = node_session_step_message(&p, 41, 20), *answer;
    memset(msg->owner, 0, 64);
    answer = node_client_request(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_STEP_REPLY);
    sn_msg_free(&answer);
    p.step++;
    msg = node_session_step_message(&p, 60, 1); /* the timeline that was there before is gone */
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "MISMATCH"));
    cr_expect(node_session_step_ok(&p, 41, 30));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

/* Converts rows to a wire dtype; *bytes is their size. */
static void *narrow_rows(sn_dtype dtype, const float *rows, size_t n, size_t *bytes) {
    REQUIRE(sn_dtype_row_bytes(dtype, n, bytes, &err));
    void *out = malloc(*bytes);
    sn_wire_encode(dtype, rows, n, out);
    return out;
}

Test(node_sessions, accepts_and_returns_narrow_dtypes) {
    testbed *w = testbed_new(&LARGE_CACHE);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    const sn_dtype dtypes[] = {SN_F16, SN_BF16, SN_Q8};
    enum { N = 9 };
    size_t n = (size_t)N * (size_t)w->n_embd;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        node_session p;
        node_session_init(&p, w, t, 0, 4);
        node_session_open(&p);
        size_t bytes;
        void *in = narrow_rows(dtypes[i], w->inputs, n, &bytes);
        float *wide = malloc(n * sizeof *wide);
        sn_wire_decode(dtypes[i], in, n, wide);
        float *hidden = testbed_compute(w, 0, 4, N, wide);
        sn_hash *timeline = testbed_timeline(w, 0, 4, N, wide);
        void *expected = narrow_rows(dtypes[i], hidden, n, &bytes);
        sn_msg *msg = node_session_step_message(&p, 0, N), *answer;
        void *data;
        REQUIRE(sn_msg_new_tensor(msg, dtypes[i], 2, (uint64_t[]){N, (uint64_t)w->n_embd}, &data, &err));
        memcpy(data, in, bytes);
        msg->step.reply_dtype = dtypes[i];
        answer = node_client_request(t, &msg);
        cr_assert_eq(answer->kind, SN_MSG_STEP_REPLY);
        cr_expect_eq(answer->tensor.dtype, dtypes[i]);
        cr_assert_eq(answer->tensor.bytes, bytes);
        cr_expect(!memcmp(answer->tensor.data, expected, bytes), "%s", sn_dtype_name(dtypes[i]));
        cr_expect(!memcmp(answer->step_reply.trace[0].timeline, timeline[N].bytes, SN_HASH_SIZE));
        sn_msg_free(&answer);
        node_session_close(&p);
        free(in), free(wide), free(hidden), free(timeline), free(expected);
    }
    node_client_free(&t);
    testbed_free(&w);
}

/* -- KV pages */

typedef struct full_cache {
    testbed *w;
    node_client *t, *u;
    node_session holds, waits; /* one session holds 64 tokens, 64 more do not fit into 96 */
} full_cache;

static full_cache full_cache_begin(void) {
    full_cache c = {.w = testbed_new(&SMALL_CACHE)};
    cluster_add(c.w->cluster, 0, 0);
    c.t = node_client_new(c.w, 0);
    c.u = node_client_new(c.w, 0);
    node_session_init(&c.holds, c.w, c.t, 0, 4);
    node_session_init(&c.waits, c.w, c.u, 0, 4);
    node_session_open(&c.holds);
    node_session_open(&c.waits);
    cr_assert(node_session_step_ok(&c.holds, 0, 64));
    return c;
}

static void full_cache_end(full_cache *c) {
    if (c->holds.testbed) node_session_close(&c->holds);
    node_session_close(&c->waits);
    node_client_await_kv_bytes(c->t, 0);
    node_client_free(&c->t);
    node_client_free(&c->u);
    testbed_free(&c->w);
}

Test(node_sessions, a_step_waits_for_kv_pages_and_is_then_refused) {
    full_cache c = full_cache_begin();
    int64_t began = sn_now_us();
    sn_msg *msg = node_session_step_message(&c.waits, 0, 64);
    uint64_t request = node_client_send(c.u, &msg);
    msg = node_session_step_message(&c.waits, 0, 64); /* not the next step, which might wait after it */
    msg->step.step = 3;
    memset(msg->step.timeline, 0, SN_HASH_SIZE);
    cr_expect(is_refusal(node_client_request(c.u, &msg), SN_RETRY, "busy with step 1"));
    cr_expect(node_session_step_ok(&c.holds, 64, 1)); /* a session with KV pages continues meanwhile */
    cr_expect(is_refusal(node_client_receive(c.u, request, TESTBED_WAIT_MS), SN_RETRY, "cache is full"));
    cr_expect(sn_now_us() - began >= 900000);
    cr_expect(node_session_step_ok(&c.holds, 65, 1));
    node_client_await_kv_bytes(c.t, 3 * c.w->page_bytes);
    cr_expect(node_session_step_ok(&c.holds, 0, 10)); /* a rewind frees pages */
    cr_expect(node_session_step_ok(&c.waits, 0, 64));
    full_cache_end(&c);
}

Test(node_sessions, a_waiting_step_gets_the_kv_pages_of_a_closed_session) {
    full_cache c = full_cache_begin();
    sn_msg *msg = node_session_step_message(&c.waits, 0, 64);
    uint64_t request = node_client_send(c.u, &msg);
    cr_expect_null(node_client_receive(c.u, request, 100));
    node_session_close(&c.holds);
    cr_expect(node_session_reply_ok(&c.waits, node_client_receive(c.u, request, 900), 0, 64));
    full_cache_end(&c);
}

Test(node_sessions, the_reply_goes_to_the_newest_repeat_of_a_request) {
    full_cache c = full_cache_begin();
    sn_msg *msg = node_session_step_message(&c.waits, 0, 64);
    node_client_send(c.u, &msg);
    msg = node_session_step_message(&c.waits, 0, 64);
    uint64_t newer = node_client_send(c.u, &msg);
    cr_expect_null(node_client_receive(c.u, newer, 100));
    node_session_close(&c.holds);
    cr_expect(node_session_reply_ok(&c.waits, node_client_receive(c.u, newer, 900), 0, 64));
    cr_expect_eq(node_client_status(c.u).steps, 2);
    full_cache_end(&c);
}

Test(node_sessions, closing_a_session_ends_its_wait) {
    full_cache c = full_cache_begin();
    node_session doomed;
    node_session_init(&doomed, c.w, c.u, 0, 4);
    node_session_open(&doomed);
    sn_msg *msg = node_session_step_message(&doomed, 0, 64);
    node_client_send(c.u, &msg);
    node_session_close(&doomed);
    int64_t deadline = sn_now_us() + 800000; /* before the second is over for which it would have waited */
    while (node_client_status(c.u).sessions > 2 && sn_now_us() < deadline) sn_sleep_us(2000);
    cr_expect_eq(node_client_status(c.u).sessions, 2);
    cr_expect_eq(node_client_status(c.u).queued_steps, 0);
    cr_expect(node_session_step_ok(&c.holds, 64, 1));
    full_cache_end(&c);
}

Test(node_sessions, a_step_larger_than_the_whole_cache_is_refused_at_once) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 2});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    int64_t began = sn_now_us();
    sn_msg *msg = node_session_step_message(&p, 0, 65);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "holds 64 in all"));
    cr_expect(sn_now_us() - began < 800000);
    cr_expect_eq(node_client_status(t).kv_bytes, 0);
    cr_expect(node_session_step_ok(&p, 0, 64));
    node_session_close(&p);
    node_client_await_kv_bytes(t, 0);
    node_client_free(&t);
    testbed_free(&w);
}

/* -- pushes */

typedef struct push_pair {
    testbed *w;
    node_client *front, *back; /* one client, connected to each node */
    node_session first, second;
    float *between; /* the output of the first node */
    sn_hash *timeline;
} push_pair;

static push_pair push_pair_begin(bool named) {
    push_pair p = {.w = testbed_new(&LARGE_CACHE)};
    cluster_add(p.w->cluster, 0, 2);
    cluster_add(p.w->cluster, 2, 4);
    p.front = node_client_new(p.w, 0);
    p.back = node_client_new(p.w, 1);
    node_session_init(&p.first, p.w, p.front, 0, 2);
    node_session_init(&p.second, p.w, p.back, 2, 4);
    sn_msg *msg = node_session_open_message(&p.first), *answer;
    node_client_announcement(p.w, 1, &msg->open.next, &msg->open.n_next);
    answer = node_client_request(p.front, &msg);
    cr_assert_eq(answer->kind, SN_MSG_OPEN_REPLY);
    sn_msg_free(&answer);
    msg = node_session_open_message(&p.second);
    if (named) memcpy(msg->open.predecessor, sn_node_curve_key(cluster_node(p.w->cluster, 0)), SN_KEY_SIZE);
    answer = node_client_request(p.back, &msg);
    cr_assert_eq(answer->kind, SN_MSG_OPEN_REPLY);
    sn_msg_free(&answer);
    p.between = testbed_compute(p.w, 0, 2, TESTBED_TOKENS, p.w->inputs);
    p.timeline = testbed_timeline(p.w, 2, 4, TESTBED_TOKENS, p.between);
    return p;
}

static void push_pair_end(push_pair *p) {
    node_session_close(&p->first);
    node_session_close(&p->second);
    node_client_await_kv_bytes(p->front, 0);
    node_client_await_kv_bytes(p->back, 0);
    node_client_free(&p->front);
    node_client_free(&p->back);
    free(p->between);
    free(p->timeline);
    testbed_free(&p->w);
}

/* A step to the first node that names the second node as the next one of its route. */
static sn_msg *push_step_message(push_pair *p, int position, int n) {
    sn_msg *msg = node_session_step_message(&p->first, position, n);
    REQUIRE(sn_list_new(1, SN_HOPS_MAX, sizeof *msg->step.route, &msg->step.route, &err));
    msg->step.n_route = 1;
    sn_route_entry *hop = msg->step.route;
    memcpy(hop->session, p->second.id, sizeof hop->session);
    memcpy(hop->timeline, p->timeline[position].bytes, SN_HASH_SIZE);
    return msg;
}

Test(node_sessions, a_pushed_step_is_answered_by_the_last_node_and_can_be_repeated) {
    push_pair p = push_pair_begin(true);
    for (int round = 0; round < 3; round++) { /* 0: new, 1: the same again, 2: the next one */
        int position = round == 2 ? 12 : 0, n = round == 2 ? 1 : 12;
        sn_msg *msg = push_step_message(&p, position, n), *answer;
        msg->step.step = round == 2 ? 2 : 1;
        node_client_send(p.front, &msg);
        /* from the last node, over the client's own connection to it */
        answer = node_client_receive(p.back, 0, TESTBED_WAIT_MS);
        cr_assert(answer);
        cr_expect(same_rows(answer, p.w->hidden + (size_t)position * (size_t)p.w->n_embd, n, p.w->n_embd));
        cr_assert(answer->kind == SN_MSG_STEP_REPLY && answer->step_reply.n_trace == 2);
        cr_expect(!memcmp(answer->step_reply.trace[0].timeline, p.first.timeline[position + n].bytes, SN_HASH_SIZE));
        cr_expect(!memcmp(answer->step_reply.trace[1].timeline, p.timeline[position + n].bytes, SN_HASH_SIZE));
        cr_expect(!memcmp(answer->step_reply.trace[1].node, sn_node_id(cluster_node(p.w->cluster, 1)), SN_KEY_SIZE));
        sn_msg_free(&answer);
    }
    cr_expect_eq(node_client_status(p.front).tokens, 13);
    cr_expect_eq(node_client_status(p.back).tokens, 13);
    push_pair_end(&p);
}

Test(node_sessions, a_push_from_an_unnamed_node_is_refused_and_reported) {
    push_pair p = push_pair_begin(false);
    sn_msg *msg = push_step_message(&p, 0, 5);
    node_client_send(p.front, &msg);
    sn_msg *answer = node_client_receive(p.front, 0, TESTBED_WAIT_MS); /* the first node passes the error on */
    cr_assert(answer && answer->kind == SN_MSG_ERROR);
    cr_expect(!memcmp(answer->error.session, p.second.id, SN_SESSION_ID_SIZE)); /* names the session that failed */
    cr_expect(is_refusal(answer, SN_REFUSED, "belongs to another client"));
    cr_expect_eq(node_client_status(p.back).tokens, 0);
    push_pair_end(&p);
}

Test(node_sessions, only_the_node_that_was_pushed_to_may_refuse_the_push) {
    push_pair p = push_pair_begin(true);
    sn_msg *msg = push_step_message(&p, 0, 5);
    node_client_send(p.front, &msg);
    sn_msg *answer = node_client_receive(p.back, 0, TESTBED_WAIT_MS);
    cr_assert(answer && answer->kind == SN_MSG_STEP_REPLY);
    sn_msg_free(&answer);
    node_client *stranger = node_client_new(p.w, 0);
    REQUIRE(sn_msg_new(SN_MSG_ERROR, 0, &msg, &err));
    msg->error.status = SN_REFUSED;
    msg->error.step = 1;
    memcpy(msg->error.session, p.second.id, SN_SESSION_ID_SIZE);
    node_client_send(stranger, &msg);
    node_client_status(stranger); /* the message has been read */
    cr_expect_null(node_client_receive(p.front, 0, 100));
    node_client_free(&stranger);
    push_pair_end(&p);
}
