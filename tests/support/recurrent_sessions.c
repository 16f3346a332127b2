#include "tests/support/recurrent_sessions.h"

#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = RECURRENT_TOKENS, WIDTH = RECURRENT_WIDTH, PAGE = SN_KV_PAGE_TOKENS };

void recurrent_forward(const recurrent_sessions *s, sn_kv_cache *kv, const float *rows, int n, float *out) {
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, WIDTH}};
    const sn_span_sequence part = {kv, &input, 0, n, out};
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    REQUIRE(sn_span_forward(s->span, 0, s->n_blocks, 1, &part, NULL, &err));
}

sn_kv_cache *recurrent_new_cache(const recurrent_sessions *s) {
    sn_kv_cache *kv = NULL;
    REQUIRE(sn_kv_cache_new(s->pool, &kv, &err));
    return kv;
}

/* Opens device, span and pool. */
static void open_on(recurrent_sessions *s, sn_device_id id, size_t kv_memory) {
    const sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open(id, &options, &s->device, &err));
    REQUIRE(sn_span_load(s->model, s->device, 0, s->n_blocks, NULL, NULL, &s->span, &err));
    REQUIRE(sn_span_kv_pool(s->span, kv_memory, &s->pool, &err));
}

static void close_device(recurrent_sessions *s) {
    sn_kv_pool_free(&s->pool);
    sn_span_free(&s->span);
    sn_device_close(&s->device);
}

recurrent_sessions recurrent_begin(recurrent_options options, size_t kv_memory) {
    recurrent_sessions s = {.options = options};
    uint32_t x = 3;
    REQUIRE(sn_model_open(options.model, &s.model, &err));
    s.n_blocks = sn_model_hparams(s.model)->n_blocks;
    s.inputs = malloc(TOKENS * WIDTH * sizeof(float));
    s.want = malloc(TOKENS * WIDTH * sizeof(float));
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        x = x * 1664525 + 1013904223;
        s.inputs[i] = (float)(int32_t)x * 0x1p-31f;
    }
    open_on(&s, options.tolerance > 0 ? (sn_device_id){SN_DEVICE_CPU, 0} : options.device, 16u << 20);
    sn_kv_cache *kv = recurrent_new_cache(&s);
    recurrent_forward(&s, kv, s.inputs, TOKENS, s.want);
    sn_kv_cache_free(&kv);
    close_device(&s);
    open_on(&s, options.device, kv_memory);
    return s;
}

void recurrent_end(recurrent_sessions *s) {
    close_device(s);
    sn_model_close(&s->model);
    free(s->inputs);
    free(s->want);
}

void recurrent_check_rows(const recurrent_sessions *s, const float *out, int first, int n) {
    const float *want = s->want + first * WIDTH;
    float largest = 0, furthest = 0;
    for (int i = 0; i < n * WIDTH; i++) {
        largest = fmaxf(largest, fabsf(want[i]));
        if (!(fabsf(out[i] - want[i]) <= furthest)) furthest = fabsf(out[i] - want[i]);
    }
    if (s->options.tolerance > 0)
        cr_assert(furthest <= s->options.tolerance * largest, "rows %d to %d differ by %g of %g", first, first + n,
                  (double)furthest, (double)largest);
    else
        cr_assert(!memcmp(out, want, (size_t)(n * WIDTH) * sizeof *out), "other bits in rows %d to %d", first,
                  first + n);
}

void recurrent_expect_rows(const recurrent_sessions *s, sn_kv_cache *kv, int until, int chunk) {
    float out[TOKENS * WIDTH];
    for (int at = sn_kv_cache_length(kv), n; at < until; at += n) {
        n = chunk < until - at ? chunk : until - at;
        recurrent_forward(s, kv, s->inputs + at * WIDTH, n, out);
        recurrent_check_rows(s, out, at, n);
    }
    cr_assert_eq(sn_kv_cache_length(kv), until);
}

void recurrent_expect_batches(const recurrent_sessions *s, int sessions, int steps, int rewound_to) {
    enum { APART = 23 }; /* no multiple of a page */
    float out[RECURRENT_SESSIONS_MAX][WIDTH];
    sn_kv_cache *kv[RECURRENT_SESSIONS_MAX];
    sn_tensor input = {.name = "rows", .data = s->inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, WIDTH}};
    for (int i = 0; i < sessions; i++) {
        kv[i] = recurrent_new_cache(s);
        if (i) recurrent_expect_rows(s, kv[i], APART * i, APART);
    }
    for (int step = 0; step < steps; step++) {
        sn_span_sequence parts[RECURRENT_SESSIONS_MAX];
        if (step == steps / 2) sn_kv_cache_rewind(kv[sessions - 1], rewound_to);
        for (int i = 0; i < sessions; i++) {
            parts[i] = (sn_span_sequence){kv[i], &input, sn_kv_cache_length(kv[i]), 1, out[i]};
            REQUIRE(sn_kv_cache_reserve(kv[i], 1, &err));
        }
        REQUIRE(sn_span_forward(s->span, 0, s->n_blocks, sessions, parts, NULL, &err));
        for (int i = 0; i < sessions; i++) recurrent_check_rows(s, out[i], parts[i].first_row, 1);
    }
    for (int i = 0; i < sessions; i++) sn_kv_cache_free(&kv[i]);
}

void recurrent_other_rows(const recurrent_sessions *s, sn_kv_cache *kv, int n) {
    float out[TOKENS * WIDTH];
    recurrent_forward(s, kv, s->inputs + (TOKENS - n) * WIDTH, n, out);
}

static void name_pages(sn_page_timeline pages[TOKENS / PAGE + 1]) {
    memset(pages, 0, (TOKENS / PAGE + 1) * sizeof *pages);
    for (size_t i = 0; i <= TOKENS / PAGE; i++) pages[i].after[PAGE - 1].bytes[0] = (uint8_t)(i + 1);
    for (size_t i = 1; i <= TOKENS / PAGE; i++) pages[i].before = *sn_page_end(&pages[i - 1]);
}

void recurrent_publish(const recurrent_sessions *s, sn_kv_cache *kv, int until) {
    static const sn_prefix_cache_scope scope;
    sn_page_timeline named[TOKENS / PAGE + 1];
    name_pages(named);
    recurrent_expect_rows(s, kv, until, until);
    sn_prefix_cache_insert(kv, &scope, named, until, s->want);
}

int recurrent_attach(sn_kv_cache *kv, int pages, float *out) {
    static const sn_prefix_cache_scope scope;
    sn_page_timeline named[TOKENS / PAGE + 1];
    name_pages(named);
    return sn_prefix_cache_attach(kv, &scope, named, pages, out);
}
