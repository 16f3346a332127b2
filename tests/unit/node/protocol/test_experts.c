/* Mixtures of experts on the CPU: every row and expert has the bits of `linear`, and the bits are the same on every
 * instruction set, with any number of threads and in any batch. */
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

enum { N = 37, EXPERTS = 6, K = 3, ROWS = 21 };
static const sn_moe_router plain_router = {.n_experts = EXPERTS, .k = K, .scale = 1};
static const sn_device_limits LIMITS = {.rows = N, .width = 256, .experts = EXPERTS, .experts_used = K};

static void expect_same_bits(const float *want, const float *got, size_t n, const sn_device *d, const char *what) {
    size_t at = test_differ(want, got, n);
    cr_assert_eq(at, n, "%s, %s: element %zu is %a, not %a", sn_device_describe(d), what, at, (double)got[at],
                 (double)want[at]);
}

typedef struct fixture {
    sn_dtype dtype;
    size_t cols;
    void *raw[EXPERTS];
    float *x, *each, *logits, *bias; /* (N, cols), (N, K, cols), (N, EXPERTS), (EXPERTS, ROWS) */
} fixture;

static fixture fixture_new(sn_dtype dtype) {
    size_t block = sn_dtype_block(dtype);
    fixture f = {.dtype = dtype, .cols = block > 32 ? 256 : block == 32 ? 96 : 50};
    float *values = malloc(ROWS * f.cols * sizeof *values);
    for (int e = 0; e < EXPERTS; e++) f.raw[e] = test_random_weight(dtype, ROWS, f.cols, (uint64_t)e + 1, values);
    free(values);
    f.x = test_random_floats(N * f.cols, 2);
    f.each = test_random_floats(N * K * f.cols, 3);
    f.logits = test_random_floats(N * EXPERTS, 4);
    f.bias = test_random_floats(EXPERTS * ROWS, 5);
    return f;
}

static void fixture_free(fixture *f) {
    for (int e = 0; e < EXPERTS; e++) test_weight_free(f->raw[e]);
    free(f->x);
    free(f->each);
    free(f->logits);
    free(f->bias);
}

static sn_experts load_experts(sn_device *d, const fixture *f) {
    sn_experts experts = {.first = {.dtype = f->dtype, .rows = ROWS, .cols = f->cols}, .n = EXPERTS};
    void *all;
    OK(d->ops->weight_size(d, f->dtype, ROWS, f->cols, &experts.first.bytes, &err));
    experts.stride = (experts.first.bytes + 63) / 64 * 64;
    OK(d->ops->alloc(d, EXPERTS * experts.stride, &all, &err));
    for (size_t e = 0; e < EXPERTS; e++)
        OK(d->ops->weight_pack(d, f->dtype, ROWS, f->cols, f->raw[e], (char *)all + e * experts.stride, &err));
    experts.first.device = all;
    return experts;
}

static void unload_experts(sn_device *d, sn_experts *experts) {
    d->ops->free(d, (void *)(uintptr_t)experts->first.device, EXPERTS * experts->stride);
}

/* Rows in calls of `chunk`: the results of each pair, forward and backward. */
static void run_experts(sn_device *d, const fixture *f, bool each, int chunk, float *y, float *dx) {
    sn_experts experts = load_experts(d, f);
    int32_t ids[N * K];
    float weights[N * K];
    size_t results = each ? K : 1;
    OK(d->ops->moe_gate(d, N, &plain_router, f->logits, ids, weights, &err));
    for (int at = 0; at < N; at += chunk) {
        size_t row = (size_t)at;
        const sn_moe_selection c = {N - at < chunk ? N - at : chunk, EXPERTS, K, ids + at * K, weights + at * K};
        const sn_moe_linear r = {&experts, f->bias, y + row * K * ROWS};
        OK(d->ops->moe_linear(d, &c, each, each ? f->each + row * K * f->cols : f->x + row * f->cols, 1, &r, &err));
        OK(d->ops->moe_linear_grad(d, &c, each, y + row * K * ROWS, &experts, false, dx + row * results * f->cols,
                                   &err));
    }
    unload_experts(d, &experts);
}

/* Compares each pair with `linear` of that row and expert alone. */
static void expect_bits_of_linear(sn_device *d, const fixture *f, bool each, const float *y) {
    sn_experts experts = load_experts(d, f);
    int32_t ids[N * K];
    float weights[N * K], one[ROWS];
    OK(d->ops->moe_gate(d, N, &plain_router, f->logits, ids, weights, &err));
    for (size_t p = 0; p < N * K; p++) {
        sn_weight w = experts.first;
        w.device = (const char *)w.device + (size_t)ids[p] * experts.stride;
        const sn_linear linear = {.weight = &w, .bias = f->bias + (size_t)ids[p] * ROWS, .y = one};
        OK(d->ops->linear(d, 1, each ? f->each + p * f->cols : f->x + p / K * f->cols, 1, &linear, &err));
        expect_same_bits(one, y + p * ROWS, ROWS, d, sn_dtype_name(f->dtype));
    }
    unload_experts(d, &experts);
}

Test(experts, give_the_bits_of_linear_in_any_batch) {
    test_devices devices = test_devices_open(&LIMITS);
    static const int chunks[] = {N, 1, 8};
    for (int t = 0; t < test_n_weight_types; t++) {
        fixture f = fixture_new(test_weight_types[t]);
        size_t n = N * K * ROWS;
        for (int each = 0; each < 2; each++) {
            size_t n_dx = N * (each ? K : 1) * f.cols;
            float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
            float *want_dx = malloc(n_dx * sizeof *want_dx), *got_dx = malloc(n_dx * sizeof *got_dx);
            run_experts(devices.at[0], &f, each, N, want, want_dx);
            expect_bits_of_linear(devices.at[0], &f, each, want);
            for (int d = 0; d < devices.n; d++) {
                run_experts(devices.at[d], &f, each, chunks[d % 3], got, got_dx);
                expect_same_bits(want, got, n, devices.at[d], sn_dtype_name(f.dtype));
                expect_same_bits(want_dx, got_dx, n_dx, devices.at[d], "gradient");
            }
            free(want);
            free(got);
            free(want_dx);
            free(got_dx);
        }
        fixture_free(&f);
    }
    test_devices_close(&devices);
}

Test(experts, are_selected_and_combined_with_the_same_bits_everywhere) {
    enum { MANY = 104, USED = 19, WIDTH = 70 }; /* across vector boundaries */
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = WIDTH});
    float *logits = test_random_floats(N * MANY, 1), *x = test_random_floats(N * USED * WIDTH, 2);
    float *dy = test_random_floats(N * WIDTH, 3);
    const sn_moe_router routers[] = {{MANY, USED, SN_ROUTER_SOFTMAX, NULL, false, 1, 0, 0, NULL, 0},
                                     {MANY, USED, SN_ROUTER_SOFTMAX_ALL, NULL, false, 1, 8, 4, NULL, 0},
                                     {MANY, USED, SN_ROUTER_SIGMOID, NULL, false, 1, 8, 4, NULL, 0},
                                     {MANY, USED, SN_ROUTER_SIGMOID, logits, true, 2.5f, 0, 0, NULL, 0}};
    for (size_t r = 0; r < sizeof routers / sizeof *routers; r++) {
        float *want[5] = {0};
        int32_t want_ids[N * USED];
        for (int d = 0; d < devices.n; d++) {
            sn_device *device = devices.at[d];
            const size_t sizes[5] = {N * USED, N * WIDTH, N * USED * WIDTH, N * USED, N * MANY};
            int32_t ids[N * USED];
            float *got[5];
            for (int i = 0; i < 5; i++) got[i] = malloc(sizes[i] * sizeof(float));
            const sn_moe_selection c = {N, MANY, USED, ids, got[0]};
            OK(device->ops->moe_gate(device, N, &routers[r], logits, ids, got[0], &err));
            OK(device->ops->moe_combine(device, &c, WIDTH, x, got[1], &err));
            OK(device->ops->moe_combine_grad(device, &c, WIDTH, x, dy, got[2], got[3], &err));
            OK(device->ops->moe_gate_grad(device, &c, &routers[r], logits, got[3], got[4], &err));
            if (!d) memcpy(want_ids, ids, sizeof ids);
            cr_assert(!memcmp(want_ids, ids, sizeof ids), "%s selects other experts", sn_device_describe(device));
            for (int i = 0; i < 5; i++) {
                if (!d) want[i] = got[i];
                expect_same_bits(want[i], got[i], sizes[i], device, "gate and combine");
                if (d) free(got[i]);
            }
        }
        for (int i = 0; i < 5; i++) free(want[i]);
    }
    free(logits);
    free(x);
    free(dy);
    test_devices_close(&devices);
}

/* What moe_linear gives where some ids are left out, and where they are the only ones. */
Test(experts, pairs_without_an_expert_are_left_out) {
    test_devices devices = test_devices_open(&LIMITS);
    fixture f = fixture_new(SN_F32);
    for (int i = 0; i < devices.n; i++) {
        sn_device *d = devices.at[i];
        sn_experts experts = load_experts(d, &f);
        int32_t ids[2 * K] = {0, 1, 2, 3, 4, 5}, some[2 * K] = {0, -1, 2, -1, 4, -1},
                        none[2 * K] = {-1, -1, -1, -1, -1, -1};
        float all[2 * K * ROWS], y[2 * K * ROWS];
        const sn_moe_linear whole = {&experts, NULL, all}, r = {&experts, NULL, y};
        sn_moe_selection c = {2, EXPERTS, K, ids, NULL};
        cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &whole, &err), SN_OK);
        for (int k = 0; k < 2 * K * ROWS; k++) y[k] = 7;
        c.ids = none;
        cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &r, &err), SN_OK);
        c.ids = some;
        cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &r, &err), SN_OK);
        for (int k = 0; k < 2 * K * ROWS; k++) cr_assert(y[k] == (some[k / ROWS] < 0 ? 7 : all[k]));
        cr_assert_eq(d->ops->moe_linear_grad(d, &c, true, all, &experts, false, f.each, &err), SN_REFUSED);
        unload_experts(d, &experts);
    }
    fixture_free(&f);
    test_devices_close(&devices);
}

Test(experts, out_of_range_are_refused) {
    test_devices devices = test_devices_open(&LIMITS);
    sn_device *d = devices.at[0];
    fixture f = fixture_new(SN_F32);
    sn_experts experts = load_experts(d, &f);
    int32_t ids[2 * K] = {0, 1, 2, 3, 4, EXPERTS};
    float weights[2 * K] = {0}, y[2 * K * ROWS];
    const sn_moe_linear r = {&experts, NULL, y};
    sn_moe_selection c = {2, EXPERTS, K, ids, weights};
    cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &r, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "expert 6"), "%s", err.text);
    ids[5] = 5;
    c.n = N + 1;
    cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &r, &err), SN_REFUSED, "more rows than were prepared");
    c.n = 2;
    c.n_experts = EXPERTS - 1;
    cr_assert_eq(d->ops->moe_linear(d, &c, false, f.x, 1, &r, &err), SN_REFUSED, "another number of experts");
    cr_assert_eq(d->ops->prepare(d, &(sn_device_limits){.experts = 4, .experts_used = EXPERTS + 1}, &err), SN_REFUSED);
    cr_assert_eq(d->ops->prepare(d, &(sn_device_limits){.experts = SN_EXPERTS_MAX + 1, .experts_used = 1}, &err),
                 SN_REFUSED);
    unload_experts(d, &experts);
    fixture_free(&f);
    test_devices_close(&devices);
}
