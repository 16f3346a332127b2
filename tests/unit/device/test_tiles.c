/* AMX's tiles: the instructions, emulated in plain C, compared with products computed by hand; the kernels that use
 * them, compared with the plain C kernels by memcmp; the kernels' machine code, emulated instruction by instruction;
 * and the detection of kernels whose bits differ. A processor with AMX runs the machine code itself and must give
 * the same results. */
#include "device/cpu/cpu_private.h" /* private: reads which kernels an open device uses */
#include "device/cpu/tiles_c.h"
#include "tests/support/amx_trap.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/tiles.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

/* -- the instructions */

/* Tiles 0 to 2: a product of 2 rows of x with 3 rows of w over 8 k; x; w. */
static const tile_config SMALL = {.palette = 1, .rows = {2, 2, 2, 16}, .row_bytes = {12, 8, 12, 64}};

Test(tiles, a_product_matches_one_computed_by_hand) {
    static const int8_t x[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {-1, 0, 0, 0, 0, 0, 0, -128}};
    /* [k / 4][row of w][k % 4] */
    static const int8_t w[2][3][4] = {{{1, 0, 0, 0}, {1, 1, 1, 1}, {-128, 127, 0, 2}},
                                      {{0, 0, 0, 1}, {1, 1, 1, 1}, {0, 0, -3, -128}}};
    const int32_t once[2][3] = {{1 + 8, 36, -128 + 254 + 8 - 21 - 1024}, {-1 - 128, -1 - 128, 128 + 16384}};
    int32_t got[2][3];
    tile_configure(&SMALL);
    tile_zero(0);
    tile_load(1, x, sizeof x[0]);
    tile_load(2, w, sizeof w[0]);
    tile_dot(0, 1, 2);
    tile_store(0, got, sizeof got[0]);
    cr_expect(!memcmp(got, once, sizeof got), "%d %d %d, %d %d %d", got[0][0], got[0][1], got[0][2], got[1][0],
              got[1][1], got[1][2]);
    tile_dot(0, 1, 2); /* accumulates */
    tile_store(0, got, sizeof got[0]);
    for (int i = 0; i < 6; i++) cr_expect_eq(got[i / 3][i % 3], 2 * once[i / 3][i % 3]);
    tile_release();
}

Test(tiles, move_strided_rows_and_nothing_between) {
    uint8_t from[2][20], to[2][30];
    for (int i = 0; i < 40; i++) from[i / 20][i % 20] = (uint8_t)i;
    memset(to, 0xee, sizeof to);
    tile_configure(&SMALL);
    tile_load(0, from, sizeof from[0]);
    tile_store(0, to, sizeof to[0]);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 30; i++) cr_expect_eq(to[r][i], i < 12 ? from[r][i] : 0xee);
    tile_configure(&SMALL); /* zeroes the tiles */
    tile_store(0, to, sizeof to[0]);
    for (int i = 0; i < 12; i++) cr_expect_eq(to[1][i], 0);
    tile_release();
}

Test(tiles, mismatched_shapes_fault_as_on_the_processor, .signal = SIGABRT) {
    tile_configure(&SMALL);
    tile_dot(0, 2, 1);
}

Test(tiles, cannot_be_used_before_they_have_a_shape, .signal = SIGABRT) { tile_zero(0); }

/* -- the kernels */

/* A device with an instruction set of the list; NULL where this machine lacks it. */
static sn_device *open_isa(const char *isa, int threads, const sn_device_limits *limits) {
    sn_device *device;
    if (test_cpu_open(isa, threads, &device, &err)) {
        if (!strcmp(isa, TEST_AMX_TRAPPED))
            fprintf(stderr, "skipped: tiles/%s with the machine code of AMX: %s\n", criterion_current_test->name,
                    err.text);
        return NULL;
    }
    OK(device->ops->prepare(device, limits, &err));
    return device;
}

enum { TOKENS_MAX = 40, ROWS_MAX = 49 };

typedef struct weight {
    sn_dtype dtype;
    size_t rows, cols;
    void *raw;
    float *bias, *x;
} weight;

static weight weight_new(sn_dtype dtype, size_t rows, size_t cols) {
    weight w = {dtype, rows, cols, NULL, test_random_floats(rows, 2), test_random_floats(TOKENS_MAX * cols, 3)};
    float *values = malloc(rows * cols * sizeof *values);
    w.raw = test_random_weight(dtype, rows, cols, 1, values);
    free(values);
    return w;
}

static void weight_free(weight *w) {
    test_weight_free(w->raw);
    free(w->bias);
    free(w->x);
}

/* Multiplies the first n rows of x, for each n of [first, end] in steps; y holds the last product, and earlier ones
 * are compared with `want`. */
static void multiply_panels(sn_device *d, const weight *w, size_t first, size_t end, size_t step, const float *want,
                            float *y) {
    sn_weight *packed;
    OK(test_weight_make(d, w->dtype, w->rows, w->cols, w->raw, &packed, &err));
    for (size_t n = first; n <= end; n += step) {
        memset(y, 0xff, (n * w->rows + 1) * sizeof *y);
        OK(d->ops->linear(d, (int)n, w->x, 1,
                          &(sn_linear){.weight = packed, .bias = w->rows % 2 ? w->bias : NULL, .y = y}, &err));
        cr_expect(y[n * w->rows] != y[n * w->rows], "%s: wrote beyond the end", sn_device_describe(d));
        cr_expect(!want || !memcmp(want, y, n * w->rows * sizeof *y),
                  "%s: %s, %zu rows of x with %zu rows of %zu: bits differ", sn_device_describe(d),
                  sn_dtype_name(w->dtype), n, w->rows, w->cols);
    }
    test_weight_drop(d, &packed);
}

static const char *const TILED[] = {"amx", TEST_TILES, TEST_TILES_AVX512, TEST_AMX_TRAPPED};
enum { N_TILED = 4 };

/* The number of columns is no multiple of a stage of 512, nor of the steps in flight. */
static void expect_same(const int threads, sn_dtype dtype) {
    static const size_t rows[] = {1, 16, 17, 32, 49};
    static float want[TOKENS_MAX * ROWS_MAX + 1], got[TOKENS_MAX * ROWS_MAX + 1];
    const sn_device_limits limits = {.rows = TOKENS_MAX, .width = 1280};
    const size_t block = sn_dtype_block(dtype), cols[] = {32, 544, 1120};
    sn_device *reference = open_isa("c", 1, &limits);
    for (int isa = 0; isa < N_TILED; isa++) {
        const bool slow = !strcmp(TILED[isa], TEST_AMX_TRAPPED);
        sn_device *d = open_isa(TILED[isa], threads, &limits);
        for (size_t i = slow ? 4 : 0; d && i < sizeof rows / sizeof *rows; i++) {
            weight w = weight_new(dtype, rows[i], block > 32 ? 256 * (1 + i) : cols[i % 3]);
            multiply_panels(reference, &w, TOKENS_MAX, TOKENS_MAX, 1, NULL, want);
            multiply_panels(d, &w, i == 2 ? 1 : 15, TOKENS_MAX, i == 2 ? 1 : slow ? 22 : 12, want, got);
            weight_free(&w);
        }
        sn_device_close(&d);
    }
    sn_device_close(&reference);
}

Test(tiles, have_the_bits_of_plain_c_for_all_types_and_numbers_of_rows) {
    for (int t = 0; t < test_n_weight_types; t++) expect_same(1, test_weight_types[t]);
}

Test(tiles, give_the_same_bits_with_threads) {
    for (int t = 0; t < test_n_weight_types; t++) expect_same(3, test_weight_types[t]);
}

/* The panels of a call may begin and end anywhere. */
Test(tiles, give_the_same_bits_for_any_split_of_panels) {
    enum { N = 35, ROWS = 81, COLS = 512, PANELS = 6 };
    const sn_device_limits limits = {.rows = N, .width = COLS};
    for (int i = 0; i < N_TILED; i++) {
        sn_device *d = open_isa(TILED[i], 1, &limits);
        for (int t = 0; d && t < test_n_weight_types; t++) {
            static float whole[N * ROWS], cut[N * ROWS];
            weight w = weight_new(test_weight_types[t], ROWS, COLS);
            sn_weight *packed;
            sn_cpu *cpu = (sn_cpu *)d;
            OK(test_weight_make(d, w.dtype, ROWS, COLS, w.raw, &packed, &err));
            OK(d->ops->linear(d, N, w.x, 1, &(sn_linear){.weight = packed, .bias = w.bias, .y = whole},
                              &err)); /* leaves x quantised */
            sn_linear_job job = {sn_cpu_weight_view(packed), w.bias, cut, N, w.x, cpu->xq, sn_xq_stride(COLS), {0}};
            for (size_t first = 0, end = 1; first < PANELS; first = end, end = first + 3 < PANELS ? first + 3 : PANELS)
                cpu->kernels->linear(&job, first, end);
            cr_expect(!memcmp(whole, cut, sizeof whole), "%s: %s: bits differ", sn_device_describe(d),
                      sn_dtype_name(w.dtype));
            test_weight_drop(d, &packed);
            weight_free(&w);
        }
        sn_device_close(&d);
    }
}

/* NaN and infinity stay in their row. */
Test(tiles, keep_nan_and_infinity_in_their_row) {
    enum { N = 20, ROWS = 33 };
    static const sn_dtype types[] = {SN_Q4_0, SN_Q4_1, SN_Q8_0, SN_Q3_K, SN_Q6_K};
    const sn_device_limits limits = {.rows = N, .width = 512};
    sn_device *reference = open_isa("c", 1, &limits);
    for (int i = 0; i < N_TILED; i++) {
        sn_device *d = open_isa(TILED[i], 1, &limits);
        for (size_t t = 0; d && t < sizeof types / sizeof *types; t++) {
            static float want[N * ROWS + 1], got[N * ROWS + 1];
            weight w = weight_new(types[t], ROWS, 512);
            w.x[2 * 512 + 40] = __builtin_nanf("");
            w.x[17 * 512 + 300] = __builtin_inff();
            multiply_panels(reference, &w, N, N, 1, NULL, want);
            multiply_panels(d, &w, N, N, 1, NULL, got);
            cr_expect_eq(test_differ(want, got, N * ROWS), N * ROWS);
            for (int r = 0; r < N; r++)
                for (int j = 0; j < ROWS; j++)
                    cr_expect_eq(__builtin_isfinite(got[r * ROWS + j]) != 0, r != 2 && r != 17, "row %d", r);
            weight_free(&w);
        }
        sn_device_close(&d);
    }
    sn_device_close(&reference);
}

static size_t count_products(sn_device *d, sn_dtype dtype, size_t n) {
    float y[TOKENS_MAX * ROWS_MAX + 1];
    weight w = weight_new(dtype, 41, 512);
    size_t before = test_tile_products();
    multiply_panels(d, &w, n, n, 1, NULL, y);
    weight_free(&w);
    return test_tile_products() - before;
}

/* One product takes 16 rows by 16 rows by 32 k (16 k where scales cover 16): exactly this many are executed. */
Test(tiles, are_used_for_quantised_weights_and_16_rows_or_more) {
    sn_device *d = open_isa(TEST_TILES, 1, &(sn_device_limits){.rows = TOKENS_MAX, .width = 512});
    cr_expect_eq(count_products(d, SN_Q4_1, 16), 1 * 3 * 16);
    cr_expect_eq(count_products(d, SN_Q4_1, 40), 3 * 3 * 16);
    cr_expect_eq(count_products(d, SN_Q4_K, 32), 2 * 3 * 16);
    cr_expect_eq(count_products(d, SN_Q6_K, 33), 3 * 3 * 32);
    cr_expect_eq(count_products(d, SN_Q8_0, 15), 0);
    cr_expect_eq(count_products(d, SN_F16, 40), 0);
    sn_device_close(&d);
}

Test(tiles, are_used_by_the_amx_machine_code) {
    const sn_device_limits limits = {.rows = TOKENS_MAX, .width = 512};
    float y[TOKENS_MAX * ROWS_MAX + 1];
    sn_device *d = open_isa(TEST_AMX_TRAPPED, 1, &limits);
    weight w = weight_new(SN_Q5_K, 41, 512);
    if (d) multiply_panels(d, &w, 33, 33, 1, NULL, y);
    if (d) cr_expect_eq(test_amx_trapped_products(), 3 * 3 * 16);
    weight_free(&w);
    sn_device_close(&d);
}

/* -- the self check */

/* Kernels that are wrong in one element, by one unit in the last place, for one type only. */
static sn_dtype wrong_type;
static void wrong_linear(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
    sn_cpu_kernels_c.linear(job, first_panel, end_panel);
    uint32_t *last = (uint32_t *)(job->y + (size_t)job->n * job->weight.rows - 1);
    if (job->weight.dtype == wrong_type) *last ^= 1;
}

Test(tiles, are_not_used_where_their_bits_differ) {
    sn_cpu_kernels fast = sn_cpu_kernels_c;
    fast.name = "wrong";
    fast.linear = wrong_linear;
    wrong_type = SN_Q8_0;
    cr_expect(!sn_cpu_kernels_self_check(&fast, &sn_cpu_kernels_c));
    wrong_type = SN_Q2_K;
    cr_expect(!sn_cpu_kernels_self_check(&fast, &sn_cpu_kernels_c));
    wrong_type = SN_DTYPE_COUNT;
    cr_expect(sn_cpu_kernels_self_check(&fast, &sn_cpu_kernels_c));
    fast.linear = test_linear_tiles;
    size_t before = test_tile_products();
    cr_expect(sn_cpu_kernels_self_check(&fast, &sn_cpu_kernels_c));
    cr_expect_gt(test_tile_products(), before, "the comparison did not use the tiles");
    sn_device *d = open_isa(TEST_AMX_TRAPPED, 1, &(sn_device_limits){0});
    if (d) cr_expect(sn_cpu_kernels_self_check(((sn_cpu *)d)->kernels, &sn_cpu_kernels_c));
    sn_device_close(&d);
}

Test(tiles, amx_is_preferred_where_present_and_refused_where_absent) {
    const sn_cpu_kernels *best, *amx;
    OK(sn_cpu_kernels_find(NULL, &best, &err));
    if (sn_cpu_kernels_find("amx", &amx, &err)) {
        cr_expect(strstr(err.text, "no CPU kernels \"amx\" on this machine: it has "), "%s", err.text);
        cr_expect(strcmp(best->name, "amx"));
    } else {
        cr_expect_eq(best, amx);
    }
}
