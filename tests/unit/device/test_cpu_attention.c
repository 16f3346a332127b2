/* Attention and KV pages: equal bits however the rows are grouped, and accuracy compared with naive double-precision
 * arithmetic. */
#include "base/log.h"
#include "base/math.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

enum { SEQUENCES = 3, PAGES = 12, BLOCKS = 2, BLOCK = 1 };

/* Three sessions whose KV caches end at odd positions, and the rows that come next. */
typedef struct attention_case {
    sn_kv_shape shape;
    int n_heads, window;
    const float *slopes; /* NULL: none */
    const float *sinks;  /* NULL: none */
    int n_past[SEQUENCES], rows[SEQUENCES];
    int n_rows;
    float *k[SEQUENCES], *v[SEQUENCES]; /* (n_past + rows, n_kv_heads, head_dim) */
    float *q;                           /* (n_rows, n_heads, head_dim) of all sequences */
} attention_case;

static attention_case attention_case_new(sn_kv_dtype dtype, int n_kv_heads, int group, int head_dim, int window) {
    attention_case s = {.shape = {.n_blocks = BLOCKS,
                                  .n_kv_heads = n_kv_heads,
                                  .head_dim = head_dim,
                                  .page_tokens = 32,
                                  .dtype = dtype},
                        .n_heads = n_kv_heads * group,
                        .window = window,
                        .n_past = {0, 45, 127},
                        .rows = {19, 1, 40},
                        .n_rows = 60};
    for (int i = 0; i < SEQUENCES; i++) {
        size_t n = (size_t)(s.n_past[i] + s.rows[i]) * (size_t)(n_kv_heads * head_dim);
        s.k[i] = test_random_floats(n, (uint64_t)i * 2 + 1);
        s.v[i] = test_random_floats(n, (uint64_t)i * 2 + 2);
    }
    s.q = test_random_floats((size_t)(s.n_rows * s.n_heads * head_dim), 99);
    return s;
}

static sn_attention attention_of(const attention_case *s) {
    return (sn_attention){BLOCK, s->n_heads, s->window, 0.3f, s->slopes, s->sinks, 0, NULL, 0};
}

static void attention_case_free(attention_case *s) {
    for (int i = 0; i < SEQUENCES; i++) free(s->k[i]), free(s->v[i]);
    free(s->q);
}

typedef struct pages {
    void *at[SEQUENCES][PAGES];
    size_t bytes;
} pages;

/* Every byte is 0xff: NaN wherever nothing is stored. */
static pages pages_new(sn_device *d, const attention_case *s) {
    pages p = {.bytes = d->ops->kv_page_bytes(d, &s->shape)};
    for (int i = 0; i < SEQUENCES * PAGES; i++) {
        OK(d->ops->alloc(d, p.bytes, &p.at[i / PAGES][i % PAGES], &err));
        memset(p.at[i / PAGES][i % PAGES], 0xff, p.bytes);
    }
    return p;
}

static void pages_free(sn_device *d, pages *p) {
    for (int i = 0; i < SEQUENCES * PAGES; i++) d->ops->free(d, p->at[i / PAGES][i % PAGES], p->bytes);
}

/* Stores positions [from, to) of sequence i. */
static void store_rows(sn_device *d, const attention_case *s, pages *p, int i, int from, int to) {
    size_t width = (size_t)(s->shape.n_kv_heads * s->shape.head_dim);
    sn_sequence seq = {p->at[i], from, 0, to - from, {0}};
    OK(test_kv_store(d, &s->shape, BLOCK, 1, &seq, s->k[i] + (size_t)from * width, s->v[i] + (size_t)from * width,
                     &err));
}

/* Rounds keys and values of a case to their type: storing them again changes nothing. */
static void round_case(sn_device *d, attention_case *s) {
    pages p = pages_new(d, s);
    for (int i = 0; i < SEQUENCES; i++) {
        int n = s->n_past[i] + s->rows[i];
        size_t floats = (size_t)n * (size_t)(s->shape.n_kv_heads * s->shape.head_dim);
        float *k = malloc(floats * sizeof *k), *v = malloc(floats * sizeof *v);
        store_rows(d, s, &p, i, 0, n);
        OK(d->ops->kv_read(d, &s->shape, BLOCK, p.at[i], 0, n, k, v, &err));
        memcpy(s->k[i], k, floats * sizeof *k);
        memcpy(s->v[i], v, floats * sizeof *v);
        free(k), free(v);
    }
    pages_free(d, &p);
}

/* All rows of all sequences in one call. */
static void attend_at_once(sn_device *d, const attention_case *s, float *out) {
    pages p = pages_new(d, s);
    sn_sequence seqs[SEQUENCES];
    for (int i = 0, first = 0; i < SEQUENCES; first += s->rows[i++]) {
        store_rows(d, s, &p, i, 0, s->n_past[i] + s->rows[i]);
        seqs[i] = (sn_sequence){p.at[i], s->n_past[i], first, s->rows[i], {0}};
    }
    const sn_attention attention = attention_of(s);
    OK(test_attention(d, &s->shape, SEQUENCES, seqs, &attention, s->q, out, &err));
    pages_free(d, &p);
}

/* `chunk` rows of one sequence at a time, each stored just before the call: positions after it are still NaN. */
static void attend_in_chunks(sn_device *d, const attention_case *s, int chunk, float *out) {
    pages p = pages_new(d, s);
    size_t width = (size_t)(s->n_heads * s->shape.head_dim);
    for (int i = 0, first = 0; i < SEQUENCES; first += s->rows[i++]) {
        store_rows(d, s, &p, i, 0, s->n_past[i] / 2);
        store_rows(d, s, &p, i, s->n_past[i] / 2, s->n_past[i]);
        for (int at = 0; at < s->rows[i]; at += chunk) {
            int n = s->rows[i] - at < chunk ? s->rows[i] - at : chunk, position = s->n_past[i] + at;
            store_rows(d, s, &p, i, position, position + n);
            sn_sequence seq = {p.at[i], position, 0, n, {0}};
            const sn_attention attention = attention_of(s);
            OK(test_attention(d, &s->shape, 1, &seq, &attention, s->q + (size_t)(first + at) * width,
                              out + (size_t)(first + at) * width, &err));
        }
    }
    pages_free(d, &p);
}

/* One head of one row by the formula. */
static void attend_naively(const attention_case *s, int i, int position, int head, const float *q, double *out) {
    int dim = s->shape.head_dim, kv_head = head / (s->n_heads / s->shape.n_kv_heads);
    int from = s->window > 0 && position + 1 > s->window ? position + 1 - s->window : 0;
    if (s->window < 0) from = position - position % -s->window;
    double scores[512], sum = 0, max = -1e300;
    for (int t = from; t <= position; t++) {
        scores[t] = 0;
        for (int e = 0; e < dim; e++)
            scores[t] += (double)q[e] * (double)s->k[i][(t * s->shape.n_kv_heads + kv_head) * dim + e] * 0.3;
        if (s->slopes) scores[t] += (double)s->slopes[head] * (t - position);
        max = fmax(max, scores[t]);
    }
    if (s->sinks) max = fmax(max, (double)s->sinks[head]), sum = sn_exp((double)s->sinks[head] - max);
    for (int t = from; t <= position; t++) sum += scores[t] = sn_exp(scores[t] - max);
    for (int e = 0; e < dim; e++) {
        out[e] = 0;
        for (int t = from; t <= position; t++)
            out[e] += scores[t] / sum * (double)s->v[i][(t * s->shape.n_kv_heads + kv_head) * dim + e];
    }
}

static void check_values(const attention_case *s, const float *out) {
    int dim = s->shape.head_dim;
    double want[512];
    for (int i = 0, row = 0; i < SEQUENCES; i++)
        for (int t = 0; t < s->rows[i]; t++, row++)
            for (int h = 0; h < s->n_heads; h++) {
                size_t at = (size_t)(row * s->n_heads + h) * (size_t)dim;
                attend_naively(s, i, s->n_past[i] + t, h, s->q + at, want);
                for (int e = 0; e < dim; e++)
                    cr_assert_float_eq((double)out[at + (size_t)e], want[e], 2e-6,
                                       "sequence %d token %d head %d: %g, not %g", i, t, h, (double)out[at + (size_t)e],
                                       want[e]);
            }
}

static void check_case_as(const test_devices *devices, sn_kv_dtype dtype, int n_kv_heads, int group, int head_dim,
                          int window, const float *slopes, const float *sinks) {
    attention_case s = attention_case_new(dtype, n_kv_heads, group, head_dim, window);
    s.slopes = slopes;
    s.sinks = sinks;
    round_case(devices->at[0], &s);
    size_t n = (size_t)(s.n_rows * s.n_heads * head_dim);
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    attend_in_chunks(devices->at[0], &s, 1, want);
    check_values(&s, want);
    for (int d = 0; d < devices->n; d++)
        for (int variant = 0; variant < 4; variant++) {
            const int chunk[] = {0, 1, 7, 40};
            memset(got, 0xff, n * sizeof *got);
            if (chunk[variant])
                attend_in_chunks(devices->at[d], &s, chunk[variant], got);
            else
                attend_at_once(devices->at[d], &s, got);
            size_t at = test_differ(want, got, n);
            cr_assert_eq(at, n, "%s, %s, %d heads over %d of %d, window %d, chunks of %d: element %zu is %a, not %a",
                         sn_device_describe(devices->at[d]), sn_kv_dtype_name(dtype), s.n_heads, n_kv_heads, head_dim,
                         window, chunk[variant], at, (double)got[at], (double)want[at]);
        }
    free(want);
    free(got);
    attention_case_free(&s);
}

static void check_case(const test_devices *devices, int n_kv_heads, int group, int head_dim, int window) {
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++)
        check_case_as(devices, (sn_kv_dtype)t, n_kv_heads, group, head_dim, window, NULL, NULL);
}

static const sn_device_limits limits = {.rows = 64, .width = 1024, .context = 200};

Test(cpu_attention, has_the_same_bits_in_any_batch_and_is_accurate) {
    test_devices devices = test_devices_open(&limits);
    check_case(&devices, 3, 3, 24, 0);
    check_case(&devices, 1, 1, 7, 0);
    check_case(&devices, 2, 5, 64, 0);
    check_case(&devices, 1, 2, 80, 0);  /* blocks of 32, and half of one */
    check_case(&devices, 1, 23, 16, 0); /* more heads than a work item takes */
    test_devices_close(&devices);
}

/* With the given slope and sink of each head, with and without a window. */
static void check_cases_as(const float *slopes, const float *sinks) {
    test_devices devices = test_devices_open(&limits);
    for (int window = 0; window <= 20; window += 20) {
        check_case_as(&devices, SN_KV_F32, 3, 3, 24, window, slopes, sinks);
        check_case_as(&devices, SN_KV_F32, 1, 23, 16, window, slopes, sinks);
        check_case_as(&devices, SN_KV_Q8, 7, 1, 24, window, slopes, sinks);
    }
    test_devices_close(&devices);
}

Test(cpu_attention, adds_the_alibi_slope_of_each_head) {
    float slopes[23];
    for (int h = 0; h < 23; h++) slopes[h] = 0.4f - (float)h * 0.04f;
    check_cases_as(slopes, NULL);
}

Test(cpu_attention, includes_the_sink_of_each_head) {
    float sinks[23];
    for (int h = 0; h < 23; h++) sinks[h] = (float)(h % 5) * 3 - 6;
    check_cases_as(NULL, sinks);
}

Test(cpu_attention, attends_only_within_its_window) {
    test_devices devices = test_devices_open(&limits);
    const int windows[] = {1, 2, 5, 16, 33, 100, -1, -2, -5, -16, -33, -100};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) check_case(&devices, 2, 3, 24, windows[i]);
    test_devices_close(&devices);
}

/* Pages that lie entirely before the window may be gone. */
Test(cpu_attention, never_touches_pages_before_the_window) {
    test_devices devices = test_devices_open(&limits);
    attention_case s = attention_case_new(SN_KV_F32, 2, 3, 24, 20);
    for (int d = 0; d < devices.n; d++) {
        sn_device *device = devices.at[d];
        pages p = pages_new(device, &s);
        float want[6 * 24], got[6 * 24];
        const sn_attention attention = attention_of(&s);
        store_rows(device, &s, &p, 2, 0, 128);
        sn_sequence seq = {p.at[2], 127, 0, 1, {0}};
        OK(test_attention(device, &s.shape, 1, &seq, &attention, s.q, want, &err));
        void *gone[PAGES] = {NULL, NULL, NULL, p.at[2][3]};
        seq.pages = gone;
        OK(test_attention(device, &s.shape, 1, &seq, &attention, s.q, got, &err));
        cr_assert_eq(test_differ(want, got, 6 * 24), 6 * 24);
        pages_free(device, &p);
    }
    attention_case_free(&s);
    test_devices_close(&devices);
}

/* A NaN in the key or value of one position reaches the rows that attend to it, and no other. */
Test(cpu_attention, nan_reaches_only_rows_that_attend_to_it) {
    test_devices devices = test_devices_open(&limits);
    for (int d = 0; d < devices.n; d++)
        for (int in_key = 0; in_key < 2; in_key++) {
            attention_case s = attention_case_new(SN_KV_F32, 1, 3, 24, 0);
            size_t n = (size_t)(s.n_rows * s.n_heads * 24), row = (size_t)s.n_heads * 24;
            float *clean = malloc(n * sizeof *clean), *dirty = malloc(n * sizeof *dirty);
            attend_at_once(devices.at[d], &s, clean);
            (in_key ? s.k : s.v)[0][10 * 24 + 3] = in_key ? NAN : INFINITY;
            attend_at_once(devices.at[d], &s, dirty);
            cr_assert_eq(test_differ(clean, dirty, 10 * row), 10 * row);
            for (size_t r = 10; r < 19; r++) cr_assert(!isfinite(dirty[r * row + 3]));
            cr_assert_eq(test_differ(clean + 19 * row, dirty + 19 * row, n - 19 * row), n - 19 * row);
            free(clean), free(dirty);
            attention_case_free(&s);
        }
    test_devices_close(&devices);
}

Test(cpu_attention, stored_rows_load_back_and_other_blocks_are_unchanged) {
    test_devices devices = test_devices_open(&limits);
    for (int d = 0; d < devices.n * SN_KV_DTYPE_COUNT; d++) {
        sn_device *device = devices.at[d / SN_KV_DTYPE_COUNT];
        attention_case s = attention_case_new((sn_kv_dtype)(d % SN_KV_DTYPE_COUNT), 3, 1, 24, 0);
        round_case(devices.at[0], &s);
        pages p = pages_new(device, &s);
        size_t width = 3 * 24, n = 60 * width;
        float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
        store_rows(device, &s, &p, 2, 0, 167);
        OK(device->ops->kv_read(device, &s.shape, BLOCK, p.at[2], 50, 60, k, v, &err));
        cr_assert_eq(test_differ(k, s.k[2] + 50 * width, n), n);
        cr_assert_eq(test_differ(v, s.v[2] + 50 * width, n), n);
        OK(device->ops->kv_read(device, &s.shape, 0, p.at[2], 0, 60, k, v, &err));
        for (size_t i = 0; i < n; i++) cr_assert(isnan(k[i]) && isnan(v[i]));
        OK(device->ops->kv_read(device, &s.shape, 0, p.at[2], 0, 0, NULL, NULL, &err));
        free(k), free(v);
        pages_free(device, &p);
        attention_case_free(&s);
    }
    test_devices_close(&devices);
}

/* One position of one head of 40 elements, stored and read back. */
static void round_trip_kv(sn_device *d, sn_kv_dtype dtype, const float *x, float *k, float *v) {
    sn_kv_shape shape = {1, 1, 40, 32, dtype, 0, 0, {0}, {0}, 0, 0, false};
    void *page;
    size_t bytes = d->ops->kv_page_bytes(d, &shape);
    OK(d->ops->alloc(d, bytes, &page, &err));
    OK(d->ops->kv_write(d, &shape, 0, &page, 5, 1, x, x, &err));
    OK(d->ops->kv_read(d, &shape, 0, &page, 5, 1, k, v, &err));
    d->ops->free(d, page, bytes);
}

Test(cpu_attention, rounding_to_the_kv_dtype_is_idempotent) {
    test_devices devices = test_devices_open(&limits);
    const float sizes[] = {1e-36f, 1e-20f, 0.001f, 1, 300, 60000, 1e6f, 1e30f, 3e38f};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
            float *x = test_random_floats(40, i + 1), k[40], v[40], again[40], once[40], top[2] = {0};
            for (int e = 0; e < 40; e++) {
                x[e] *= sizes[i];
                top[e / 32] = fmaxf(top[e / 32], fabsf(x[e]));
            }
            round_trip_kv(devices.at[0], (sn_kv_dtype)t, x, k, v);
            cr_assert_eq(test_differ(k, v, 40), 40);
            for (int e = 0; e < 40; e++) {
                double bound = t == SN_KV_F32   ? 0
                               : t == SN_KV_F16 ? fabs((double)x[e]) / 2048 + 3e-8 + fmax(0, fabs((double)x[e]) - 65504)
                                                : (double)top[e / 32] / 127 * 0.505 + 1e-30;
                cr_assert(fabs((double)x[e] - (double)k[e]) <= bound, "%s: %g became %g",
                          sn_kv_dtype_name((sn_kv_dtype)t), (double)x[e], (double)k[e]);
            }
            for (int d = 0; d < devices.n; d++) {
                round_trip_kv(devices.at[d], (sn_kv_dtype)t, k, again, once);
                cr_assert_eq(test_differ(k, again, 40), 40);
            }
            free(x);
        }
    test_devices_close(&devices);
}

Test(cpu_attention, stores_nan_in_eight_bits) {
    test_devices devices = test_devices_open(&limits);
    float x[40] = {1, NAN, -2, INFINITY, -INFINITY}, k[40], v[40];
    round_trip_kv(devices.at[0], SN_KV_Q8, x, k, v);
    for (int e = 0; e < 40; e++) cr_assert(isfinite(k[e]) && isfinite(v[e]));
    cr_expect(k[3] > 1e38f && k[4] < -1e38f && k[1] == 0);
    round_trip_kv(devices.at[0], SN_KV_F16, x, k, v);
    cr_expect(isnan(k[1]) && k[3] == 65504 && k[4] == -65504 && k[2] == -2);
    test_devices_close(&devices);
}

Test(cpu_attention, says_that_numbers_are_beyond_f16) {
    test_devices devices = test_devices_open(&limits);
    float x[40] = {65504, -65504, 1}, k[40], v[40];
    sn_buf lines;
    sn_buf_init(&lines, SN_LOG_KEPT_BYTES);
    sn_log_setup(SN_LOG_WARN, false);
    sn_log_keep(true);
    round_trip_kv(devices.at[0], SN_KV_F16, x, k, v);
    sn_log_take(&lines);
    cr_expect(!lines.len, "what f16 holds is no fault");
    x[1] = -65520; /* the least that would become infinite */
    round_trip_kv(devices.at[0], SN_KV_F16, x, k, v);
    sn_log_take(&lines);
    cr_expect(memmem(lines.data, lines.len, "--kv-dtype f32", 14));
    sn_buf_fini(&lines);
    cr_expect(k[0] == 65504 && k[1] == -65504 && v[1] == -65504);
    round_trip_kv(devices.at[0], SN_KV_F32, x, k, v);
    cr_expect(k[1] == -65520);
    test_devices_close(&devices);
}

Test(cpu_attention, refuses_more_than_was_prepared) {
    test_devices devices = test_devices_open(&limits);
    sn_device *d = devices.at[0];
    sn_kv_shape shape = {1, 1, 16, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false},
                wide = {1, 1, 513, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    const sn_attention one = {.n_heads = 1, .scale = 1};
    sn_sequence seq = {NULL, 200, 0, 1, {0}};
    cr_assert_eq(test_attention(d, &shape, 1, &seq, &one, NULL, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "context of 200"));
    seq.position = 0;
    cr_assert_eq(test_attention(d, &wide, 1, &seq, &one, NULL, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "513"));
    OK(test_attention(d, &shape, 0, NULL, &one, NULL, NULL, &err));
    seq.n_rows = 0;
    OK(test_attention(d, &shape, 1, &seq, &one, NULL, NULL, &err));
    test_devices_close(&devices);
}
