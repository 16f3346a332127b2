/* Sessions at a node that begin alike: what is computed, who may share, and that the bits are those of a session of its own. */
#include "node/scheduler.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options SHARING = {.kv_memory = 64, .prefix_memory = 1 << 20};

Test(node_prefix, a_clients_second_session_gets_the_same_bits_without_computing) {
    world *w = world_new(&SHARING);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past a, b, c;
    past_init(&a, w, t, 0, 4), past_init(&b, w, t, 0, 4), past_init(&c, w, t, 0, 4);
    past_open(&a), past_open(&b), past_open(&c);
    cr_expect(past_goes_on(&a, 0, 90));
    cr_expect(past_goes_on(&b, 0, 96));
    cr_expect_eq(talk_status(t).shared_tokens, 64);
    cr_expect_eq(talk_status(t).shared_pages, 2);
    talk_await_kv_bytes(t, 4 * w->page_bytes);
    const int cuts[] = {32, 40, 64, 70, 96}; /* in pieces, within pages and at their ends */
    for (size_t i = 0, at = 0; i < sizeof cuts / sizeof *cuts; at = (size_t)cuts[i++])
        cr_expect(past_goes_on(&c, (int)at, cuts[i] - (int)at));
    cr_expect_eq(talk_status(t).shared_tokens, 64 + 32);
    past_close(&a);
    cr_expect(past_goes_on(&b, 40, 50)); /* back into a shared page */
    cr_expect(past_goes_on(&c, 33, 60));
    past_close(&b);
    cr_expect(past_goes_on(&c, 93, 3));
    past_close(&c);
    talk_await_kv_bytes(t, 0);
    talk_free(&t);
    world_free(&w);
}

/* How many tokens a second client's session of the same beginning is spared. */
static uint64_t shared_with_a_stranger(bool share_all) {
    cluster_options options = SHARING;
    options.share_all = share_all;
    world *w = world_new(&options);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *u = talk_new(w, 0);
    past a, b;
    past_init(&a, w, t, 0, 4), past_init(&b, w, u, 0, 4);
    past_open(&a), past_open(&b);
    cr_expect(past_goes_on(&a, 0, 96));
    cr_expect(past_goes_on(&b, 0, 96));
    uint64_t tokens = talk_status(t).shared_tokens;
    past_close(&a), past_close(&b);
    talk_free(&t), talk_free(&u);
    world_free(&w);
    return tokens;
}

Test(node_prefix, strangers_share_only_where_the_nodes_owner_wants_it) {
    cr_expect_eq(shared_with_a_stranger(false), 0);
    cr_expect_eq(shared_with_a_stranger(true), 96);
}

Test(node_prefix, another_row_at_the_end_of_a_page_shares_the_pages_before_it) {
    world *w = world_new(&SHARING);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past a, b;
    past_init(&a, w, t, 0, 4), past_init(&b, w, t, 0, 4);
    past_open(&a), past_open(&b);
    sn_msg *msg = past_step_message(&a, 0, 96), *answer;
    float *rows = msg->owner;
    rows[63 * w->n_embd] += 1; /* the last one of the second page */
    answer = talk_ask(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_RESULT);
    sn_msg_free(&answer);
    cr_expect(past_goes_on(&b, 0, 96));
    cr_expect_eq(talk_status(t).shared_tokens, 32);
    past_close(&a), past_close(&b);
    talk_free(&t);
    world_free(&w);
}

/* -- the scheduler by hand: what goes through the blocks is counted where the device computes ------------------------ */

enum { EMBD = 64, SESSIONS = 6, PROMPT = 1000 };

static size_t rows_computed;
static sn_status (*rms_norm)(sn_device *, int, int, const float *, const float *, float, float *, sn_err *);
static sn_status counting_rms_norm(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                                   sn_err *err) {
    rows_computed += (size_t)n;
    return rms_norm(d, n, width, x, weight, eps, y, err);
}

typedef struct bench {
    sn_device *device;
    sn_device_ops ops;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_kv *kv[SESSIONS];
    sn_hash hash[PROMPT + 64];
    float *rows, *outputs[SESSIONS];
    int64_t now;
} bench;

static void bench_begin(bench *b, size_t prefix_memory) {
    *b = (bench){.now = 1000000};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32, .n_ctx = 2048});
    NEED(sn_model_open(path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    b->ops = *b->device->ops;
    rms_norm = b->ops.rms_norm;
    b->ops.rms_norm = counting_rms_norm;
    b->device->ops = &b->ops;
    rows_computed = 0;
    NEED(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    tiny_remove(&path);
    NEED(sn_span_kv_pool(b->span, 64 << 20, &b->pool, &err));
    NEED(sn_prefix_share(b->pool, EMBD, prefix_memory, &err));
    NEED(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->rows = calloc((PROMPT + 64) * EMBD, sizeof(float));
    for (int i = 0; i < (PROMPT + 64) * EMBD; i++) b->rows[i] = (float)(i % 97) / 97.0f - 0.5f;
    for (int i = 1; i < PROMPT + 64; i++) b->hash[i] = sn_hash_of(&b->hash[i - 1], SN_HASH_SIZE);
    for (int i = 0; i < SESSIONS; i++) b->outputs[i] = calloc(PROMPT * EMBD, sizeof(float));
}

static void bench_end(bench *b) {
    sn_scheduler_free(&b->scheduler);
    for (int i = 0; i < SESSIONS; i++) {
        sn_kv_free(&b->kv[i]);
        free(b->outputs[i]);
    }
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    free(b->rows);
}

static void add(bench *b, int s, int position, int n) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &b->kv[s],
                    .kv = &b->kv[s],
                    .end = 4,
                    .position = position,
                    .n_tokens = n,
                    .shares = true,
                    .arrived_us = b->now,
                    .deadline_us = b->now + 10000000,
                    .input = {.name = "rows", .data = b->rows + position * EMBD, .dtype = SN_F32, .rank = 2, .shape = {n, EMBD}}};
    NEED(sn_shared_new((size_t)n * EMBD * sizeof(float), &job->output, &err));
    for (int i = 0, page = position / SN_KV_PAGE_TOKENS + 1; (page + i) * SN_KV_PAGE_TOKENS <= position + n; i++)
        job->ends[i] = b->hash[(page + i) * SN_KV_PAGE_TOKENS];
    sn_scheduler_add(b->scheduler, job);
}

/* Until nothing is left. The rows of each session go to where they belong in its outputs. */
static void run(bench *b) {
    while (!sn_scheduler_idle(b->scheduler))
        for (sn_job *job = sn_scheduler_run(b->scheduler, ++b->now), *next; job; job = next) {
            next = job->next;
            cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
            memcpy(b->outputs[(sn_kv **)job->session - b->kv] + job->position * EMBD, sn_shared_data(job->output),
                   (size_t)job->n_tokens * EMBD * sizeof(float));
            sn_job_free(&job);
        }
}

static size_t norms_of(int rows) { return (size_t)rows * 4 * 2; } /* blocks; a block has two norms */

Test(node_prefix, a_prompt_of_1000_tokens_is_computed_once_for_all_sessions_one_after_another) {
    bench b, alone;
    bench_begin(&alone, 0);
    bench_begin(&b, 1 << 20);
    for (int s = 0; s < SESSIONS; s++) {
        add(s ? &b : &alone, s, 0, 512);
        run(s ? &b : &alone);
        add(s ? &b : &alone, s, 512, PROMPT - 512);
        run(s ? &b : &alone);
        if (s == 0) rows_computed = 0;
    }
    /* Whole pages are shared: each session has the last 8 tokens to itself. */
    cr_expect_eq(rows_computed, norms_of(PROMPT + (SESSIONS - 2) * (PROMPT % SN_KV_PAGE_TOKENS)));
    for (int s = 1; s < SESSIONS; s++)
        cr_expect(!memcmp(b.outputs[s], alone.outputs[0], PROMPT * EMBD * sizeof(float)), "session %d", s);
    bench_end(&b);
    bench_end(&alone);
}

Test(node_prefix, sessions_that_come_at_once_do_not_compute_the_same_twice) {
    bench b, alone;
    bench_begin(&alone, 0);
    add(&alone, 0, 0, 500);
    run(&alone);
    cr_expect_eq(rows_computed, norms_of(500));
    bench_begin(&b, 1 << 20);
    for (int s = 0; s < SESSIONS; s++) add(&b, s, 0, 500);
    run(&b);
    cr_expect_eq(rows_computed, norms_of(500 + (SESSIONS - 1) * (500 % SN_KV_PAGE_TOKENS)));
    for (int s = 0; s < SESSIONS; s++)
        cr_expect(!memcmp(b.outputs[s], alone.outputs[0], 500 * EMBD * sizeof(float)), "session %d", s);
    bench_end(&b);
    bench_end(&alone);
}

Test(node_prefix, a_step_that_begins_within_a_page_shares_from_the_next_one_on) {
    bench b, alone;
    bench_begin(&alone, 0);
    add(&alone, 0, 0, 400);
    run(&alone);
    bench_begin(&b, 1 << 20);
    add(&b, 0, 0, 400);
    run(&b);
    rows_computed = 0;
    add(&b, 1, 0, 10);
    run(&b);
    add(&b, 1, 10, 390);
    run(&b);
    cr_expect_eq(rows_computed, norms_of(32 + 400 % SN_KV_PAGE_TOKENS));
    cr_expect(!memcmp(b.outputs[1], alone.outputs[0], 400 * EMBD * sizeof(float)));
    bench_end(&b);
    bench_end(&alone);
}
