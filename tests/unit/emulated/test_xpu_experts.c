/* Products with experts on an XPU: pairs of a row and an expert that are computed together have the bits of each by
 * itself; and what a call costs, counted by the test driver in launches of kernels. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"

#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <level_zero/ze_api.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 11, EXPERTS = 3, K = 2, PAIRS = ROWS * K, OUTPUTS = 7, COLS = 256, N_LINEARS = 4 };
static const sn_device_id xpu = {SN_DEVICE_XPU, 0};
static const float unwritten = 12345;

static void *new_bytes(sn_device *d, const void *values, size_t bytes) {
    void *at;
    REQUIRE(d->ops->alloc(d, bytes, &at, &err));
    REQUIRE(d->ops->upload(d, at, values, bytes, &err));
    return at;
}

/* Experts with a gap behind each. */
static sn_experts new_experts(sn_device *d, sn_dtype dtype, size_t rows, uint64_t seed) {
    static float values[OUTPUTS * COLS];
    sn_weight one = {dtype, rows, COLS, 0, NULL, NULL};
    REQUIRE(d->ops->weight_size(d, dtype, rows, COLS, &one.bytes, &err));
    sn_experts experts = {one, (one.bytes + 127) / 64 * 64, EXPERTS};
    uint8_t *all = calloc(EXPERTS, experts.stride);
    for (size_t e = 0; e < EXPERTS; e++) {
        void *file = test_random_weight(dtype, rows, COLS, seed + e, values);
        REQUIRE(d->ops->weight_pack(d, dtype, rows, COLS, file, all + e * experts.stride, &err));
        test_weight_free(file);
    }
    experts.first.device = new_bytes(d, all, EXPERTS * experts.stride);
    free(all);
    return experts;
}

/* Two matrices of the type, and two of others: together more than a launch takes, and of more than one form. */
typedef struct layer {
    sn_experts experts[N_LINEARS];
    float *bias, *x, *y[N_LINEARS];
    int32_t *ids;
} layer;

static layer layer_new(sn_device *d, sn_dtype dtype) {
    static const size_t rows[N_LINEARS] = {OUTPUTS, 4, 1, 5};
    layer l;
    float *values = test_random_floats(PAIRS * COLS, 5);
    int32_t ids[PAIRS];
    /* most pairs are of expert 0, so that it has several chunks; some have none */
    for (int i = 0; i < PAIRS; i++) ids[i] = i % 5 == 3 ? -1 : i % 7 == 2 ? 2 : i % 7 == 4 ? 1 : 0;
    for (int i = 0; i < N_LINEARS; i++) {
        l.experts[i] = new_experts(d, i < 2 ? dtype : i == 2 ? SN_Q8_0 : SN_F32, rows[i], 10 * (uint64_t)i);
        l.y[i] = new_bytes(d, values, PAIRS * rows[i] * sizeof(float));
    }
    l.bias = new_bytes(d, values, EXPERTS * OUTPUTS * sizeof(float));
    l.x = new_bytes(d, values, PAIRS * COLS * sizeof(float));
    l.ids = new_bytes(d, ids, sizeof ids);
    free(values);
    return l;
}

static void layer_free(sn_device *d, layer *l) {
    for (int i = 0; i < N_LINEARS; i++) {
        d->ops->free(d, (void *)l->experts[i].first.device, EXPERTS * l->experts[i].stride);
        d->ops->free(d, l->y[i], PAIRS * l->experts[i].first.rows * sizeof(float));
    }
    d->ops->free(d, l->bias, EXPERTS * OUTPUTS * sizeof(float));
    d->ops->free(d, l->x, PAIRS * COLS * sizeof(float));
    d->ops->free(d, l->ids, PAIRS * sizeof(int32_t));
}

/* The products of the first matrices for rows [first, first + n). */
static void run(sn_device *d, const layer *l, int first, int n, bool per_expert, int n_linears) {
    const size_t pair = (size_t)first * K;
    const sn_moe_selection c = {n, EXPERTS, K, l->ids + pair, NULL};
    sn_moe_linear linears[N_LINEARS];
    for (int i = 0; i < n_linears; i++)
        linears[i] = (sn_moe_linear){&l->experts[i], i ? NULL : l->bias, l->y[i] + pair * l->experts[i].first.rows};
    REQUIRE(d->ops->moe_linear(d, &c, per_expert, l->x + (per_expert ? pair : (size_t)first) * COLS, n_linears, linears,
                               &err));
}

static void fill(sn_device *d, const layer *l) {
    float values[PAIRS * OUTPUTS];
    for (int i = 0; i < PAIRS * OUTPUTS; i++) values[i] = unwritten;
    for (int i = 0; i < N_LINEARS; i++)
        REQUIRE(d->ops->upload(d, l->y[i], values, PAIRS * l->experts[i].first.rows * sizeof *values, &err));
}

static void compare(sn_dtype dtype, bool per_expert) {
    static float at_once[N_LINEARS][PAIRS * OUTPUTS], alone[PAIRS * OUTPUTS];
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    layer l = layer_new(d, dtype);
    fill(d, &l);
    run(d, &l, 0, ROWS, per_expert, N_LINEARS);
    for (int i = 0; i < N_LINEARS; i++)
        REQUIRE(d->ops->download(d, at_once[i], l.y[i], PAIRS * l.experts[i].first.rows * sizeof(float), &err));
    fill(d, &l);
    for (int row = 0; row < ROWS; row++) run(d, &l, row, 1, per_expert, N_LINEARS);
    for (int i = 0; i < N_LINEARS; i++) {
        const size_t rows = l.experts[i].first.rows;
        REQUIRE(d->ops->download(d, alone, l.y[i], PAIRS * rows * sizeof(float), &err));
        cr_expect_eq(memcmp(at_once[i], alone, PAIRS * rows * sizeof(float)), 0, "%s, matrix %d", sn_dtype_name(dtype),
                     i);
        for (size_t p = 0; p < PAIRS * rows; p++) /* an id below 0 is left out, and no other one */
            cr_assert_eq(alone[p] == unwritten, p / rows % 5 == 3, "%s, matrix %d, pair %zu", sn_dtype_name(dtype), i,
                         p / rows);
    }
    layer_free(d, &l);
    sn_device_close(&d);
}

Test(xpu_experts, rows_that_share_an_expert_have_the_bits_of_each_alone) {
    for (int t = 0; t < test_n_weight_types; t++) compare(test_weight_types[t], t % 2);
}

Test(xpu_experts, rows_that_share_an_expert_have_the_bits_of_each_alone_without_products_of_bytes) {
    setenv("ZE_TEST_NO_DP4A", "1", 1);
    compare(SN_Q4_K, false);
    compare(SN_MXFP4, true);
}

/* Launches of the products of gate and up for so many rows. */
static int launches(sn_dtype dtype, int n) {
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    layer l = layer_new(d, dtype);
    REQUIRE(d->ops->finish(d, &err));
    unsigned long before = ze_test_launches();
    run(d, &l, 0, n, false, 2);
    REQUIRE(d->ops->finish(d, &err));
    int count = (int)(ze_test_launches() - before);
    layer_free(d, &l);
    sn_device_close(&d);
    return count;
}

/* 8 bits; products. With more pairs than experts these are grouped, besides. */
Test(xpu_experts, gate_and_up_take_2_launches) {
    cr_expect_eq(launches(SN_Q4_K, 1), 2);
    cr_expect_eq(launches(SN_Q4_K, 2), 3);
    cr_expect_eq(launches(SN_F16, 1), 1);
    cr_expect_eq(launches(SN_F16, 2), 2);
}

Test(xpu_experts, gate_and_up_take_1_launch_without_products_of_bytes) {
    setenv("ZE_TEST_NO_DP4A", "1", 1);
    cr_expect_eq(launches(SN_Q4_K, 1), 1);
}

Test(xpu_experts, gate_and_up_take_1_launch_where_the_driver_refuses_products_of_bytes) {
    char result[16];
    snprintf(result, sizeof result, "0x%x", (unsigned)ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
    setenv("ZE_TEST_REFUSE_DOTS", result, 1);
    cr_expect_eq(launches(SN_Q4_K, 1), 1);
}

/* The activation between up and down writes its rows in 8 bits. */
Test(xpu_experts, activation_and_down_take_2_launches) {
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    layer l = layer_new(d, SN_Q4_K);
    const sn_moe_selection selection = {1, EXPERTS, K, l.ids, NULL};
    const sn_moe_linear down = {&l.experts[0], NULL, l.y[0]};
    REQUIRE(d->ops->finish(d, &err));
    unsigned long before = ze_test_launches();
    REQUIRE(d->ops->activate_moe_linear(d, &selection, &(sn_gated){SN_SILU, l.x, NULL, l.x}, &down, &err));
    cr_expect_eq((int)(ze_test_launches() - before), 2);
    layer_free(d, &l);
    sn_device_close(&d);
}

/* Rows of pairs are as wide as experts are inside, which may be a part of the widest row. */
Test(xpu_experts, rows_in_8_bits_are_prepared_for_pairs) {
    enum { LONG = 512, WIDE = 8192, USED = 8 };
    const sn_device_limits own = {
        .rows = ROWS, .width = COLS, .experts = EXPERTS, .experts_used = K, .expert_width = COLS};
    const sn_device_limits some[] = {
        {.rows = LONG, .width = WIDE, .experts = USED, .experts_used = USED, .expert_width = WIDE / 8},
        {.rows = LONG, .width = WIDE, .experts = USED, .experts_used = USED, .expert_width = WIDE}};
    sn_device *d;
    REQUIRE(sn_device_open(xpu, NULL, &d, &err));
    layer l = layer_new(d, SN_Q4_K);
    REQUIRE(d->ops->prepare(d, &own, &err));
    const size_t prepared = d->memory_used;
    run(d, &l, 0, ROWS, false, N_LINEARS);
    run(d, &l, 0, ROWS, true, N_LINEARS);
    cr_expect_eq(d->memory_used, prepared, "%zu bytes more than were prepared", d->memory_used - prepared);
    const size_t saved = d->ops->prepare_bytes(d, &some[1]) - d->ops->prepare_bytes(d, &some[0]);
    cr_expect_geq(saved, (size_t)(USED - 1) * LONG * WIDE, "%zu bytes", saved);
    layer_free(d, &l);
    sn_device_close(&d);
}
#else
#include <criterion/criterion.h>
#include <stdio.h>

Test(xpu_experts, backend) {
    printf("skipped: the XPU backend needs libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
}
#endif
