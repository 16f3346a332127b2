/* Sessions at a node with a common prefix: what is computed, which clients may share pages, and that the bits are
 * those of a session that shares nothing. */
#include "node/engine/scheduler.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options SHARING = {.kv_memory = 64, .prefix_cache_memory = 1 << 20};

Test(node_prefix_cache, a_second_session_of_a_client_reuses_pages_with_the_same_bits) {
    testbed *w = testbed_new(&SHARING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session a, b, c;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, t, 0, 4), node_session_init(&c, w, t, 0, 4);
    node_session_open(&a), node_session_open(&b), node_session_open(&c);
    cr_expect(node_session_step_ok(&a, 0, 90));
    cr_expect(node_session_step_ok(&b, 0, 96));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 64);
    cr_expect_eq(node_client_status(t).shared_pages, 2);
    node_client_await_kv_bytes(t, 4 * w->page_bytes);
    const int cuts[] = {32, 40, 64, 70, 96}; /* in chunks that end within pages and at their ends */
    for (size_t i = 0, at = 0; i < sizeof cuts / sizeof *cuts; at = (size_t)cuts[i++])
        cr_expect(node_session_step_ok(&c, (int)at, cuts[i] - (int)at));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 64 + 32);
    node_session_close(&a);
    cr_expect(node_session_step_ok(&b, 40, 50)); /* rewinds into a shared page */
    cr_expect(node_session_step_ok(&c, 33, 60));
    node_session_close(&b);
    cr_expect(node_session_step_ok(&c, 93, 3));
    node_session_close(&c);
    node_client_await_kv_bytes(t, 0);
    node_client_free(&t);
    testbed_free(&w);
}

/* The number of tokens that a second client's session with the same prefix need not compute. */
static uint64_t tokens_shared_between_clients(bool prefix_cache_shared) {
    cluster_options options = SHARING;
    options.prefix_cache_shared = prefix_cache_shared;
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 0);
    node_session a, b;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, u, 0, 4);
    node_session_open(&a), node_session_open(&b);
    cr_expect(node_session_step_ok(&a, 0, 96));
    cr_expect(node_session_step_ok(&b, 0, 96));
    uint64_t tokens = node_client_status(t).prefix_cached_tokens;
    node_session_close(&a), node_session_close(&b);
    node_client_free(&t), node_client_free(&u);
    testbed_free(&w);
    return tokens;
}

Test(node_prefix_cache, clients_share_with_each_other_only_if_enabled) {
    cr_expect_eq(tokens_shared_between_clients(false), 0);
    cr_expect_eq(tokens_shared_between_clients(true), 96);
}

Test(node_prefix_cache, a_different_row_still_shares_the_pages_before_it) {
    testbed *w = testbed_new(&SHARING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session a, b;
    node_session_init(&a, w, t, 0, 4), node_session_init(&b, w, t, 0, 4);
    node_session_open(&a), node_session_open(&b);
    sn_msg *msg = node_session_step_message(&a, 0, 96), *answer;
    float *rows = msg->owner;
    rows[63 * w->n_embd] += 1; /* the last row of the second page */
    answer = node_client_request(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_STEP_REPLY);
    sn_msg_free(&answer);
    cr_expect(node_session_step_ok(&b, 0, 96));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 32);
    node_session_close(&a), node_session_close(&b);
    node_client_free(&t);
    testbed_free(&w);
}

/* -- the scheduler by hand: rows are counted where the device computes them */

enum { EMBD = 64, SESSIONS = 6, PROMPT = 1000 };

static size_t rows_computed;
static sn_status (*rms_norm)(sn_device *, int, int, const float *, const float *, float, float *, sn_err *);
static sn_status counting_rms_norm(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                   float *y, sn_err *err) {
    rows_computed += (size_t)n;
    return rms_norm(d, n, width, x, weight, eps, y, err);
}

typedef struct fixture {
    sn_device *device;
    sn_device_ops ops;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv_cache *kv[SESSIONS];
    sn_hash hash[PROMPT + 64];
    float *rows, *outputs[SESSIONS];
    int64_t now;
} fixture;

static void fixture_begin(fixture *b, size_t prefix_cache_memory) {
    *b = (fixture){.now = 1000000};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_ctx = 2048});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    b->ops = *b->device->ops;
    rms_norm = b->ops.rms_norm;
    b->ops.rms_norm = counting_rms_norm;
    b->device->ops = &b->ops;
    rows_computed = 0;
    REQUIRE(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_model_remove(&path);
    REQUIRE(sn_span_kv_pool(b->span, 64 << 20, &b->pool, &err));
    REQUIRE(sn_prefix_cache_enable(b->pool, EMBD, prefix_cache_memory, &err));
    REQUIRE(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->rows = calloc((PROMPT + 64) * EMBD, sizeof(float));
    for (int i = 0; i < (PROMPT + 64) * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
    for (int i = 1; i < PROMPT + 64; i++) b->hash[i] = sn_hash_of(&b->hash[i - 1], SN_HASH_SIZE);
    for (int i = 0; i < SESSIONS; i++) b->outputs[i] = calloc(PROMPT * EMBD, sizeof(float));
}

static void fixture_end(fixture *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SESSIONS; i++) {
        sn_kv_cache_free(&b->kv[i]);
        free(b->outputs[i]);
    }
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
}

static void add_step(fixture *b, int s, int position, int n) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){
        .kind = SN_JOB_STEP,
        .session = &b->kv[s],
        .kv = &b->kv[s],
        .end = 4,
        .position = position,
        .n_tokens = n,
        .step.cacheable = true,
        .arrived_us = b->now,
        .deadline_us = b->now + 10000000,
        .step.input = {
            .name = "rows", .data = b->rows + position * EMBD, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    REQUIRE(sn_shared_buffer_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    const int first = position / SN_KV_PAGE_TOKENS;
    job->step.n_pages = (position + n) / SN_KV_PAGE_TOKENS - first;
    if (job->step.n_pages) job->step.pages = calloc((size_t)job->step.n_pages, sizeof *job->step.pages);
    for (int i = 0; i < job->step.n_pages; i++)
        memcpy(&job->step.pages[i], &b->hash[(first + i) * SN_KV_PAGE_TOKENS], sizeof *job->step.pages);
    sn_scheduler_add(b->scheduler, job);
}

/* Runs until no job is left. The rows of each session are written to their positions in its outputs. */
static void run_until_idle(fixture *b) {
    while (!sn_scheduler_idle(b->scheduler))
        for (sn_job *job = sn_scheduler_run(b->scheduler, ++b->now), *next; job; job = next) {
            next = job->next;
            cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
            memcpy(b->outputs[(sn_kv_cache **)job->session - b->kv] + job->position * EMBD,
                   sn_shared_buffer_data(job->output), (size_t)job->n_tokens * EMBD * sizeof(float));
            sn_job_free(&job);
        }
}

static size_t norms_of(int rows) { return (size_t)rows * 4 * 2; } /* blocks; a block has two norms */

Test(node_prefix_cache, a_prompt_of_1000_tokens_is_computed_once_for_consecutive_sessions) {
    fixture b, alone;
    fixture_begin(&alone, 0);
    fixture_begin(&b, 1 << 20);
    for (int s = 0; s < SESSIONS; s++) {
        add_step(s ? &b : &alone, s, 0, 512);
        run_until_idle(s ? &b : &alone);
        add_step(s ? &b : &alone, s, 512, PROMPT - 512);
        run_until_idle(s ? &b : &alone);
        if (s == 0) rows_computed = 0;
    }
    /* Only whole pages are shared: each session computes the last 8 tokens itself. */
    cr_expect_eq(rows_computed, norms_of(PROMPT + (SESSIONS - 2) * (PROMPT % SN_KV_PAGE_TOKENS)));
    for (int s = 1; s < SESSIONS; s++)
        cr_expect(!memcmp(b.outputs[s], alone.outputs[0], PROMPT * EMBD * sizeof(float)), "session %d", s);
    fixture_end(&b);
    fixture_end(&alone);
}

Test(node_prefix_cache, concurrent_sessions_compute_a_prefix_once) {
    fixture b, alone;
    fixture_begin(&alone, 0);
    add_step(&alone, 0, 0, 500);
    run_until_idle(&alone);
    cr_expect_eq(rows_computed, norms_of(500));
    fixture_begin(&b, 1 << 20);
    for (int s = 0; s < SESSIONS; s++) add_step(&b, s, 0, 500);
    run_until_idle(&b);
    cr_expect_eq(rows_computed, norms_of(500 + (SESSIONS - 1) * (500 % SN_KV_PAGE_TOKENS)));
    for (int s = 0; s < SESSIONS; s++)
        cr_expect(!memcmp(b.outputs[s], alone.outputs[0], 500 * EMBD * sizeof(float)), "session %d", s);
    fixture_end(&b);
    fixture_end(&alone);
}

Test(node_prefix_cache, a_step_that_begins_within_a_page_shares_the_following_pages) {
    fixture b, alone;
    fixture_begin(&alone, 0);
    add_step(&alone, 0, 0, 400);
    run_until_idle(&alone);
    fixture_begin(&b, 1 << 20);
    add_step(&b, 0, 0, 400);
    run_until_idle(&b);
    rows_computed = 0;
    add_step(&b, 1, 0, 10);
    run_until_idle(&b);
    add_step(&b, 1, 10, 390);
    run_until_idle(&b);
    cr_expect_eq(rows_computed, norms_of(32 + 400 % SN_KV_PAGE_TOKENS));
    cr_expect(!memcmp(b.outputs[1], alone.outputs[0], 400 * EMBD * sizeof(float)));
    fixture_end(&b);
    fixture_end(&alone);
}
