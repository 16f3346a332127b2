/* Equal bits, operation by operation, and accuracy compared with naive double-precision arithmetic, which does not
 * depend on panels, tiles and lanes. */
#include "base/math.h"
#include "device/quant.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)

static void expect_same_bits(const float *a, const float *b, size_t n, const sn_device *d, const char *what) {
    size_t at = test_differ(a, b, n);
    cr_assert_eq(at, n, "%s, %s: element %zu is %a, not %a", sn_device_describe(d), what, at, (double)b[at],
                 (double)a[at]);
}

/* -- linear */

typedef struct matrix {
    sn_dtype dtype;
    size_t rows, cols;
    void *raw;
    float *values, *bias;
} matrix;

static matrix matrix_new(sn_dtype dtype, size_t rows, size_t cols, bool bias, uint64_t seed) {
    matrix m = {dtype, rows, cols, NULL, malloc(rows * cols * sizeof(float)), NULL};
    m.raw = test_random_weight(dtype, rows, cols, seed, m.values);
    if (bias) m.bias = test_random_floats(rows, seed + 1);
    return m;
}

static void matrix_free(matrix *m) {
    test_weight_free(m->raw);
    free(m->values);
    free(m->bias);
}

static size_t cols_for(sn_dtype dtype) {
    return sn_dtype_block(dtype) == 1 ? 88 : sn_dtype_block(dtype) == 32 ? 160 : 768;
}

/* n rows of x in calls of `chunk` rows, with both matrices in one call. */
static void multiply_in_chunks(sn_device *d, const matrix m[2], const float *x, size_t n, size_t chunk, float *y[2]) {
    sn_weight *w[2];
    for (int i = 0; i < 2; i++) OK(test_weight_make(d, m[i].dtype, m[i].rows, m[i].cols, m[i].raw, &w[i], &err));
    for (size_t at = 0; at < n; at += chunk) {
        size_t rows = n - at < chunk ? n - at : chunk;
        sn_linear linears[2];
        for (int i = 0; i < 2; i++)
            linears[i] = (sn_linear){.weight = w[i], .bias = m[i].bias, .y = y[i] + at * m[i].rows};
        OK(d->ops->linear(d, (int)rows, x + at * m[0].cols, 2, linears, &err));
    }
    for (int i = 0; i < 2; i++) test_weight_drop(d, &w[i]);
}

static void check_linear_bits(const test_devices *devices, sn_dtype dtype, size_t n) {
    matrix m[2] = {matrix_new(dtype, 85, cols_for(dtype), true, 3), matrix_new(dtype, 5, cols_for(dtype), false, 5)};
    float *x = test_random_floats(n * m[0].cols, 7), *want[2], *got[2];
    for (int i = 0; i < 2; i++) {
        want[i] = malloc(n * m[i].rows * sizeof(float));
        got[i] = malloc(n * m[i].rows * sizeof(float));
    }
    multiply_in_chunks(devices->at[0], m, x, n, 1, want);
    for (int d = 0; d < devices->n; d++)
        for (int variant = 0; variant < 6; variant++) { /* tiles of 1 to 8 rows */
            const size_t chunk[] = {n, 7, 1, 5, 4, 6};
            multiply_in_chunks(devices->at[d], m, x, n, chunk[variant], got);
            for (int i = 0; i < 2; i++) {
                expect_same_bits(want[i], got[i], n * m[i].rows, devices->at[d], sn_dtype_name(dtype));
                memset(got[i], 0xff, n * m[i].rows * sizeof(float));
            }
        }
    for (int i = 0; i < 2; i++) {
        matrix_free(&m[i]);
        free(want[i]);
        free(got[i]);
    }
    free(x);
}

Test(cpu_device, a_linear_row_has_the_same_bits_in_any_batch) {
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = 131, .width = 768});
    for (int t = 0; t < test_n_weight_types; t++) check_linear_bits(&devices, test_weight_types[t], 23);
    check_linear_bits(&devices, SN_Q4_1, 128); /* enough rows that quantising them is shared between threads as well */
    static const sn_dtype staged[] = {SN_Q6_K, SN_Q2_K, SN_Q5_K, SN_Q3_K, SN_MXFP4}; /* stages pay for many rows only */
    for (size_t t = 0; t < sizeof staged / sizeof *staged; t++) check_linear_bits(&devices, staged[t], t ? 57 : 131);
    test_devices_close(&devices);
}

/* Each matrix meets the elements of a row in its own order, as if they had been brought into it before. */
Test(cpu_device, columns_in_an_order_of_their_own_meet_their_elements) {
    enum { N = 7, COLS = 512, ROWS = 37 };
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = COLS});
    matrix m = matrix_new(SN_I4_64, ROWS, COLS, true, 3);
    float *x = test_random_floats(N * COLS, 7), *ordered = malloc(N * COLS * sizeof *x), y[4][N * ROWS],
          want[2][N * ROWS];
    int32_t order[COLS], same[COLS];
    for (int k = 0; k < COLS; k++) order[k] = same[k] = k * 75 % COLS;
    for (int i = 0; i < N * COLS; i++) ordered[i] = x[i / COLS * COLS + order[i % COLS]];
    for (int i = 0; i < devices.n; i++) {
        sn_device *d = devices.at[i];
        sn_weight *plain, first, second;
        OK(test_weight_make(d, m.dtype, ROWS, COLS, m.raw, &plain, &err));
        first = second = *plain;
        first.order = order, second.order = same;
        const sn_linear all[] = {{.weight = plain, .y = y[0]},
                                 {.weight = &first, .y = y[1]},
                                 {.weight = &second, .y = y[2]},
                                 {.weight = plain, .y = y[3]}};
        OK(d->ops->linear(d, N, x, 4, all, &err));
        OK(d->ops->linear(d, N, x, 1, &(sn_linear){.weight = plain, .y = want[0]}, &err));
        OK(d->ops->linear(d, N, ordered, 1, &(sn_linear){.weight = plain, .y = want[1]}, &err));
        for (int k = 0; k < 4; k++) expect_same_bits(want[k == 1 || k == 2], y[k], N * ROWS, d, "order");
        cr_assert_eq(d->ops->linear_input_grad(d, N, y[0], &first, false, ordered, &err), SN_REFUSED);
        test_weight_drop(d, &plain);
    }
    matrix_free(&m);
    free(ordered);
    free(x);
    test_devices_close(&devices);
}

/* The activation in the precision of the quantised layouts, computed naively. */
static void quantize_naively(const float *x, size_t n, double *out) {
    for (size_t b = 0; b < n; b += 32) {
        float amax = 0;
        for (size_t i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[b + i]));
        for (size_t i = 0; i < 32; i++)
            out[b + i] = amax > 0 ? nearbyint((double)x[b + i] * 127 / (double)amax) * (double)amax / 127 : 0;
    }
}

static void check_linear_values(sn_device *d, sn_dtype dtype) {
    enum { N = 9 };
    matrix m[2] = {matrix_new(dtype, 37, cols_for(dtype), true, 11), matrix_new(dtype, 1, cols_for(dtype), false, 13)};
    float *x = test_random_floats(N * m[0].cols, 19), y0[N * 37], y1[N];
    double xq[768];
    multiply_in_chunks(d, m, x, N, N, (float *[]){y0, y1});
    for (size_t r = 0; r < N; r++) {
        const float *row = x + r * m[0].cols;
        if (sn_dtype_quantised(dtype))
            quantize_naively(row, m[0].cols, xq);
        else
            for (size_t k = 0; k < m[0].cols; k++) xq[k] = (double)row[k];
        for (size_t j = 0; j < 37; j++) {
            double want = (double)m[0].bias[j], size = fabs(want), exact = want;
            for (size_t k = 0; k < m[0].cols; k++) {
                double w = (double)m[0].values[j * m[0].cols + k];
                want += w * xq[k];
                exact += w * (double)row[k];
                size += fabs(w * xq[k]);
            }
            double y = (double)y0[r * 37 + j];
            /* Rounding of a few hundred operations; and half a step of 1/127 for quantised activations. */
            cr_assert_float_eq(y, want, 4e-6 * size + 1e-7, "%s (%zu, %zu): %g, not %g", sn_dtype_name(dtype), r, j, y,
                               want);
            cr_assert_float_eq(y, exact, 0.01 * size, "%s (%zu, %zu): %g, in exact arithmetic %g", sn_dtype_name(dtype),
                               r, j, y, exact);
        }
    }
    matrix_free(&m[0]);
    matrix_free(&m[1]);
    free(x);
}

Test(cpu_device, linear_is_what_naive_arithmetic_gives) {
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = 16, .width = 768});
    for (int t = 0; t < test_n_weight_types; t++) check_linear_values(devices.at[devices.n - 1], test_weight_types[t]);
    test_devices_close(&devices);
}

/* Zero, subnormal, huge, infinite and NaN elements: visible in their own row, invisible in the others. */
Test(cpu_device, linear_keeps_nan_and_infinity_in_their_row) {
    enum { N = 8 };
    static const sn_dtype types[] = {SN_F32, SN_BF16, SN_Q4_1, SN_Q8_0, SN_Q4_K, SN_Q5_1, SN_Q6_K};
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = 768});
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        matrix m[2] = {matrix_new(types[t], 85, cols_for(types[t]), false, 3),
                       matrix_new(types[t], 5, cols_for(types[t]), true, 5)};
        size_t cols = m[0].cols;
        float *x = test_random_floats(N * cols, 23), first[N * 85], want[N * 85], y[N * 85], other[N * 5];
        multiply_in_chunks(devices.at[0], m, x, N, N, (float *[]){first, other});
        memset(x + 1 * cols, 0, cols * sizeof *x);
        x[2 * cols + 40] = NAN;
        x[3 * cols + 41] = INFINITY;
        x[4 * cols + 42] = 1e-42f;
        for (size_t k = 0; k < cols; k++) x[5 * cols + k] *= 1e-41f;
        x[6 * cols + 43] = 3e38f;
        multiply_in_chunks(devices.at[0], m, x, N, 1, (float *[]){want, other});
        cr_assert_eq(test_differ(want, first, 85), 85);
        cr_assert_eq(test_differ(want + 7 * 85, first + 7 * 85, 85), 85);
        for (int j = 0; j < 85; j++) {
            cr_assert_eq(want[85 + j], 0);
            cr_assert(isnan(want[2 * 85 + j]));
            cr_assert(!isfinite(want[3 * 85 + j]));
            cr_assert(isfinite(want[4 * 85 + j]) && isfinite(want[5 * 85 + j]));
        }
        for (int d = 0; d < devices.n; d++) {
            multiply_in_chunks(devices.at[d], m, x, N, N, (float *[]){y, other});
            expect_same_bits(want, y, N * 85, devices.at[d], sn_dtype_name(types[t]));
        }
        matrix_free(&m[0]);
        matrix_free(&m[1]);
        free(x);
    }
    test_devices_close(&devices);
}

/* -- the other operations of a block */

Test(cpu_device, rms_norm_has_the_same_bits_and_is_accurate) {
    enum { N = 70, WIDTH = 501 };
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = WIDTH});
    float *x = test_random_floats(N * WIDTH, 1), *w = test_random_floats(WIDTH, 2);
    float *want = malloc(N * WIDTH * sizeof *want), *y = malloc(N * WIDTH * sizeof *y);
    for (int i = 0; i < N; i++) /* one row at a time */
        OK(devices.at[0]->ops->rms_norm(devices.at[0], 1, WIDTH, x + i * WIDTH, w, 1e-5f, want + i * WIDTH, &err));
    for (int i = 0; i < N; i++) {
        double mean = 0;
        for (int k = 0; k < WIDTH; k++) mean += (double)x[i * WIDTH + k] * (double)x[i * WIDTH + k] / WIDTH;
        for (int k = 0; k < WIDTH; k++) {
            double exact = (double)x[i * WIDTH + k] / sqrt(mean + 1e-5) * (double)w[k];
            cr_assert_float_eq((double)want[i * WIDTH + k], exact, 1e-6 * fabs(exact) + 1e-12);
        }
    }
    for (int d = 0; d < devices.n; d++) {
        OK(devices.at[d]->ops->rms_norm(devices.at[d], N, WIDTH, x, w, 1e-5f, y, &err));
        expect_same_bits(want, y, N * WIDTH, devices.at[d], "rms_norm");
        memcpy(y, x, N * WIDTH * sizeof *y); /* in place */
        OK(devices.at[d]->ops->rms_norm(devices.at[d], N, WIDTH, y, w, 1e-5f, y, &err));
        expect_same_bits(want, y, N * WIDTH, devices.at[d], "rms_norm in place");
    }
    free(x), free(w), free(want), free(y);
    test_devices_close(&devices);
}

static void check_rope(const test_devices *devices, bool halves) {
    enum { N = 60, HEADS = 25, DIM = 24, ROTATED = 20 };
    size_t n = N * HEADS * DIM;
    float *x = test_random_floats(n, 4), *cs = test_random_floats(N * ROTATED, 5), *y = malloc(n * sizeof *y);
    float *want = malloc(n * sizeof *want);
    memcpy(want, x, n * sizeof *want);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < ROTATED / 2; i++) {
                float *head = want + (t * HEADS + h) * DIM, *p = head + (halves ? i : 2 * i);
                float *q = head + (halves ? i + ROTATED / 2 : 2 * i + 1);
                double c = (double)cs[(t * ROTATED / 2 + i) * 2], s = (double)cs[(t * ROTATED / 2 + i) * 2 + 1];
                double a = (double)*p, b = (double)*q;
                *p = (float)(a * c - b * s);
                *q = (float)(a * s + b * c);
            }
    float *first = NULL;
    for (int d = 0; d < devices->n; d++) {
        sn_device *device = devices->at[d];
        for (int chunk = 1; chunk <= N; chunk += N - 1) {
            memcpy(y, x, n * sizeof *y);
            for (int t = 0; t < N; t += chunk) {
                sn_rope rope = {halves, ROTATED, cs + t * ROTATED};
                OK(device->ops->rope(device, chunk, HEADS, DIM, y + t * HEADS * DIM, &rope, &err));
            }
            for (size_t i = 0; i < n; i++) cr_assert_float_eq(y[i], want[i], 3e-7f);
            if (!first) first = memcpy(malloc(n * sizeof *y), y, n * sizeof *y);
            expect_same_bits(first, y, n, device, "rope");
        }
    }
    free(x), free(cs), free(y), free(want), free(first);
}

Test(cpu_device, rope_rotates_pairs_and_leaves_the_rest) {
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    check_rope(&devices, false);
    check_rope(&devices, true);
    test_devices_close(&devices);
}

Test(cpu_device, silu_has_the_same_bits_and_is_accurate) {
    enum { N = 40007 };
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    float *gate = test_random_floats(N, 6), *up = test_random_floats(N, 7), *want = malloc(N * sizeof *want);
    float *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) gate[i] *= 100;
    const float odd[] = {0,         -0.0f,   INFINITY, -INFINITY, NAN,    87.33f, -87.33f,   88.7228f,
                         -88.7228f, 88.723f, -88.723f, 3e38f,     -3e38f, 1e-45f, -87.33001f};
    memcpy(gate, odd, sizeof odd);
    sn_device *d0 = devices.at[0];
    for (int i = 0; i < N; i++) OK(d0->ops->activate(d0, 1, SN_SILU, gate + i, up + i, want + i, &err));
    for (int i = 15; i < N; i++) {
        double g = (double)gate[i], exact = g / (1 + sn_exp(-g)) * (double)up[i];
        cr_assert_float_eq((double)want[i], exact, 4e-7 * fabs(exact) + 1e-35, "silu(%g): %g, not %g", g,
                           (double)want[i], exact);
    }
    cr_assert_eq(want[2], INFINITY * up[2]);
    cr_assert(isnan(want[4]));
    for (int d = 0; d < devices.n; d++) {
        sn_device *device = devices.at[d];
        OK(device->ops->activate(device, N, SN_SILU, gate, up, y, &err));
        expect_same_bits(want, y, N, device, "silu");
        memcpy(y, gate, N * sizeof *y);
        OK(device->ops->activate(device, N, SN_SILU, y, up, y, &err));
        expect_same_bits(want, y, N, device, "silu in place");
        for (int i = 0; i < N; i++) y[i] = 1;
        OK(device->ops->add(device, N, y, up, &err));
        for (int i = 0; i < N; i++) cr_assert_eq(y[i], 1 + up[i]);
    }
    free(gate), free(up), free(want), free(y);
    test_devices_close(&devices);
}

static double gelu(sn_activation kind, double x) {
    if (kind == SN_GELU) return x * 0.5 * erfc(-x * sqrt(0.5));
    double inner = 2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
    return x / (1 + exp(-inner));
}

/* Compared with libm in double, in half units of the last place: 8, plus the effect of the exponential's argument
 * being rounded (once; for tanh six times, two of which are those of the constants), which grows with the argument. */
Test(cpu_device, gelu_has_the_same_bits_and_is_accurate) {
    enum { N = 40007 };
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    float *x = malloc(N * sizeof *x), *want = malloc(N * sizeof *want), *y = malloc(N * sizeof *y),
          *dy = malloc(N * sizeof *dy);
    float *slopes = malloc(N * sizeof *slopes);
    for (int i = 0; i < N; i++) x[i] = ((float)i - 20003) * 7e-4f, dy[i] = 1;
    for (sn_activation kind = SN_GELU; kind <= SN_GELU_TANH; kind++) {
        sn_device *d0 = devices.at[0];
        for (int i = 0; i < N; i++) OK(d0->ops->activate(d0, 1, kind, x + i, NULL, want + i, &err));
        for (int i = 0; i < N; i++) {
            double g = (double)x[i], exact = gelu(kind, g),
                   exponent = kind == SN_GELU ? g * g / 2 : -1.6 * g * (1 + 0.045 * g * g);
            double units = 8 + (g < 0 ? (kind == SN_GELU ? 2 : 6) * exponent : 0);
            cr_assert_float_eq((double)want[i], exact, units * 0x1p-24 * fabs(exact) + 1e-36, "gelu(%g): %g, not %g", g,
                               (double)want[i], exact);
        }
        for (int d = 0; d < devices.n; d++) {
            sn_device *device = devices.at[d];
            OK(device->ops->activate(device, N, kind, x, NULL, y, &err));
            expect_same_bits(want, y, N, device, "gelu");
            OK(device->ops->activate_grad(device, N, kind, x, NULL, dy, y, NULL, &err));
            if (!d) memcpy(slopes, y, N * sizeof *y);
            expect_same_bits(slopes, y, N, device, "gelu's slope");
        }
    }
    free(x), free(want), free(y), free(dy), free(slopes);
    test_devices_close(&devices);
}

/* All numbers of a block are the largest, of either sign: 32 * 12 * 127 does not fit in 16 bits. */
Test(cpu_device, mxfp4_takes_the_bytes_of_its_file_and_does_not_overflow) {
    enum { ROWS = 19, COLS = 96, BLOCK = 17, N = 9 };
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = COLS});
    uint8_t raw[ROWS * COLS / 32 * BLOCK];
    float x[N * COLS], y[N * ROWS];
    for (size_t i = 0; i < sizeof raw; i++) raw[i] = i % BLOCK == 0 ? 127 : i / BLOCK / 3 % 2 ? 0xff : 0x77;
    for (size_t i = 0; i < N * COLS; i++) x[i] = i / COLS % 2 ? -1 : 1;
    for (int d = 0; d < devices.n; d++) {
        sn_weight *w;
        OK(test_weight_make(devices.at[d], SN_MXFP4, ROWS, COLS, raw, &w, &err));
        cr_assert_eq(w->bytes, 32 * COLS / 32 * BLOCK, "32 rows have %zu bytes", w->bytes);
        OK(devices.at[d]->ops->linear(devices.at[d], N, x, 1, &(sn_linear){.weight = w, .y = y}, &err));
        for (int i = 0; i < N * ROWS; i++) {
            float want = (i / ROWS + i % ROWS) % 2 ? -6.0f * COLS : 6.0f * COLS;
            cr_assert_float_eq(y[i], want, 1e-3f, "%s: row %d, output %d is %g", sn_device_describe(devices.at[d]),
                               i / ROWS, i % ROWS, (double)y[i]);
        }
        test_weight_drop(devices.at[d], &w);
    }
    test_devices_close(&devices);
}

/* The conformance suite checks the values. */
Test(cpu_device, clamped_swiglu_and_its_gradients_have_the_same_bits) {
    enum { N = 4007 };
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    float *gate = test_random_floats(N, 1), *up = test_random_floats(N, 2), *dy = test_random_floats(N, 3);
    float *want = malloc(3 * N * sizeof *want), *got = malloc(3 * N * sizeof *got);
    for (int i = 0; i < N; i++) gate[i] *= 12, up[i] *= 10;
    gate[5] = up[6] = NAN;
    for (int d = 0; d < devices.n; d++) {
        sn_device *device = devices.at[d];
        OK(device->ops->activate(device, N, SN_SWIGLU_CLAMPED, gate, up, got, &err));
        OK(device->ops->activate_grad(device, N, SN_SWIGLU_CLAMPED, gate, up, dy, got + N, got + 2 * N, &err));
        if (!d) memcpy(want, got, 3 * N * sizeof *got);
        for (int i = 0; i < 3; i++)
            expect_same_bits(want + i * N, got + i * N, N, device,
                             i ? "a gradient of clamped swiglu" : "clamped swiglu");
        for (int i = 0; i < N; i++) {
            cr_assert(!(gate[i] > 7) || got[N + i] == 0, "a clamped gate has a gradient");
            cr_assert(!(fabsf(up[i]) > 7) || got[2 * N + i] == 0, "a clamped up has a gradient");
        }
    }
    free(gate), free(up), free(dy), free(want), free(got);
    test_devices_close(&devices);
}

Test(cpu_device, layer_norm_has_the_same_bits) {
    enum { N = 70, WIDTH = 501 };
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = N, .width = WIDTH});
    float *x = test_random_floats(N * WIDTH, 1), *w = test_random_floats(WIDTH, 2), *b = test_random_floats(WIDTH, 3);
    float *want = malloc(N * WIDTH * sizeof *want), *y = malloc(N * WIDTH * sizeof *y),
          *grad = malloc(N * WIDTH * sizeof *grad);
    for (int i = 0; i < N; i++) { /* one row at a time */
        OK(devices.at[0]->ops->layer_norm(devices.at[0], 1, WIDTH, x + i * WIDTH, w, b, 1e-5f, want + i * WIDTH, &err));
        OK(devices.at[0]->ops->layer_norm_grad(devices.at[0], 1, WIDTH, x + i * WIDTH, w, 1e-5f, want + i * WIDTH,
                                               false, grad + i * WIDTH, &err));
    }
    for (int d = 0; d < devices.n; d++) {
        memcpy(y, x, N * WIDTH * sizeof *y); /* in place */
        OK(devices.at[d]->ops->layer_norm(devices.at[d], N, WIDTH, y, w, b, 1e-5f, y, &err));
        expect_same_bits(want, y, N * WIDTH, devices.at[d], "layer_norm");
        OK(devices.at[d]->ops->layer_norm_grad(devices.at[d], N, WIDTH, x, w, 1e-5f, y, false, y, &err));
        expect_same_bits(grad, y, N * WIDTH, devices.at[d], "layer_norm's gradient");
    }
    free(x), free(w), free(b), free(want), free(y), free(grad);
    test_devices_close(&devices);
}

Test(cpu_device, get_rows_returns_the_rows_of_the_file) {
    enum { ROWS = 37, N = 100 };
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    for (int t = 0; t < test_n_weight_types; t++)
        for (int d = 0; d < devices.n; d++) {
            sn_device *device = devices.at[d];
            matrix m = matrix_new(test_weight_types[t], ROWS, cols_for(test_weight_types[t]), false, 8);
            sn_weight *w;
            int32_t ids[N];
            float *y = malloc(N * m.cols * sizeof *y);
            OK(test_weight_make(device, m.dtype, ROWS, m.cols, m.raw, &w, &err));
            for (int i = 0; i < N; i++) ids[i] = i * 5 % ROWS;
            OK(device->ops->get_rows(device, w, N, ids, y, &err));
            for (int i = 0; i < N; i++) /* ==: the sign of zero may differ where an offset is added */
                for (size_t k = 0; k < m.cols; k++)
                    cr_assert_eq(y[(size_t)i * m.cols + k], m.values[(size_t)ids[i] * m.cols + k]);
            ids[1] = ROWS;
            cr_assert_eq(device->ops->get_rows(device, w, N, ids, y, &err), SN_REFUSED);
            cr_assert(strstr(err.text, "37"));
            ids[1] = -1;
            cr_assert_eq(device->ops->get_rows(device, w, N, ids, y, &err), SN_REFUSED);
            test_weight_drop(device, &w);
            cr_assert_null(w);
            matrix_free(&m);
            free(y);
        }
    test_devices_close(&devices);
}

/* -- across machines */

static void hash_rows(uint64_t *hash, const float *x, size_t n) { /* FNV-1a over the bytes */
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        cr_assert(isfinite(x[i]));
        memcpy(&u, x + i, sizeof u);
        for (int b = 0; b < 4; b++) *hash = (*hash ^ (u >> 8 * b & 255)) * 1099511628211u;
    }
}

static uint64_t hash_of_a_block(sn_device *d, sn_dtype dtype, uint64_t hash) {
    enum { N = 20, ROWS = 85, COLS = 512, HEADS = 9, KV = 3, DIM = 24 };
    matrix m = matrix_new(dtype, ROWS, COLS, true, 1);
    float *x = test_random_floats(N * COLS, 2), y[N * ROWS], out[N * HEADS * DIM];
    sn_kv_shape shape = {1, KV, DIM, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    sn_sequence all = {(void *[4]){0}, 0, 0, 100, {0}}, last = {all.pages, 80, 0, N, {0}};
    sn_weight *w;
    void *pages;
    OK(test_weight_make(d, dtype, ROWS, COLS, m.raw, &w, &err));
    OK(d->ops->linear(d, N, x, 1, &(sn_linear){.weight = w, .bias = m.bias, .y = y}, &err));
    hash_rows(&hash, y, N * ROWS);
    OK(d->ops->rms_norm(d, N, ROWS, y, x, 1e-5f, y, &err));
    OK(d->ops->activate(d, N * ROWS, SN_SILU, y, x, y, &err));
    OK(d->ops->rope(d, N, 1, ROWS, y, &(sn_rope){false, 40, x}, &err));
    hash_rows(&hash, y, N * ROWS);
    size_t bytes = d->ops->kv_page_bytes(d, &shape);
    OK(d->ops->alloc(d, 4 * bytes, &pages, &err));
    for (size_t i = 0; i < 4; i++) ((void **)all.pages)[i] = (char *)pages + i * bytes;
    OK(test_kv_store(d, &shape, 0, 1, &all, x, x + 100, &err));
    OK(test_attention(d, &shape, 1, &last, &(sn_attention){.n_heads = HEADS, .window = 33, .scale = 0.2f}, x + 200, out,
                      &err));
    hash_rows(&hash, out, N * HEADS * DIM);
    d->ops->free(d, pages, 4 * bytes);
    test_weight_drop(d, &w);
    matrix_free(&m);
    free(x);
    return hash;
}

/* The number is part of the promise: every processor and every compiler must produce it. It may change only with the
 * mathematics; sessions of older nodes then no longer agree with those of newer ones. */
Test(cpu_device, has_the_same_bits_on_every_machine) {
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = 20, .width = 512, .context = 100});
    for (int d = 0; d < devices.n; d++) {
        const uint64_t begin = 14695981039346656037u;
        uint64_t first = begin, folders = begin, cpus, nf4 = begin, more, twice = begin;
        int t = 0;
        for (; test_weight_types[t] != SN_I4_B32; t++)
            first = hash_of_a_block(devices.at[d], test_weight_types[t], first);
        for (; test_weight_types[t] != SN_IQ1_S; t++)
            folders = hash_of_a_block(devices.at[d], test_weight_types[t], folders);
        for (cpus = first; test_weight_types[t] != SN_NF4; t++)
            cpus = hash_of_a_block(devices.at[d], test_weight_types[t], cpus);
        more = nf4 = hash_of_a_block(devices.at[d], test_weight_types[t++], nf4);
        for (; test_weight_types[t] != SN_NF4_256; t++)
            more = hash_of_a_block(devices.at[d], test_weight_types[t], more);
        while (t < test_n_weight_types) twice = hash_of_a_block(devices.at[d], test_weight_types[t++], twice);
        cr_assert(first == 0x33be3e9e276a591fu && folders == 0xd48a98c3a6f2bcaeu && cpus == 0xc42547f58b8102a7u &&
                      nf4 == 0x73cdad9b7a11822eu && more == 0xbfb325321e95b4c7u && twice == 0x428f2be04f2576ffu,
                  "%s: 0x%016llxu, 0x%016llxu, 0x%016llxu, 0x%016llxu, 0x%016llxu, 0x%016llxu",
                  sn_device_describe(devices.at[d]), (unsigned long long)first, (unsigned long long)folders,
                  (unsigned long long)cpus, (unsigned long long)nf4, (unsigned long long)more,
                  (unsigned long long)twice);
    }
    test_devices_close(&devices);
}

/* -- limits, memory, names */

Test(cpu_device, empty_calls_do_nothing) {
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    sn_device *d = devices.at[devices.n - 1];
    sn_weight *w;
    OK(test_weight_make(d, SN_F32, 0, 0, NULL, &w, &err));
    OK(d->ops->linear(d, 0, NULL, 1, &(sn_linear){.weight = w}, &err));
    OK(d->ops->rms_norm(d, 0, 8, NULL, NULL, 0, NULL, &err));
    OK(d->ops->rope(d, 0, 1, 8, NULL, &(sn_rope){false, 8, NULL}, &err));
    OK(d->ops->activate(d, 0, SN_SILU, NULL, NULL, NULL, &err));
    OK(d->ops->add(d, 0, NULL, NULL, &err));
    OK(d->ops->get_rows(d, w, 0, NULL, NULL, &err));
    OK(d->ops->upload(d, NULL, NULL, 0, &err));
    OK(d->ops->download(d, NULL, NULL, 0, &err));
    OK(d->ops->finish(d, &err));
    test_weight_drop(d, &w);
    test_weight_drop(d, &w);
    test_devices_close(&devices);
}

Test(cpu_device, refuses_unprepared_sizes_and_unsupported_weights) {
    test_devices devices = test_devices_open(&(sn_device_limits){.rows = 2, .width = 32});
    sn_device *d = devices.at[0];
    float x[2 * 64] = {0}, y[4];
    sn_weight *w, *wide;
    OK(test_weight_make(d, SN_F32, 1, 16, x, &w, &err));
    OK(test_weight_make(d, SN_F32, 1, 64, x, &wide, &err));
    cr_assert_eq(d->ops->linear(d, 3, x, 1, &(sn_linear){.weight = w, .y = y}, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "prepared"));
    cr_assert_eq(d->ops->linear(d, 1, x, 1, &(sn_linear){.weight = wide, .y = y}, &err), SN_REFUSED);
    cr_assert_eq(d->ops->linear(d, 1, x, 2, (sn_linear[]){{.weight = w, .y = y}, {.weight = wide, .y = y}}, &err),
                 SN_REFUSED);
    cr_assert(strstr(err.text, "share"));
    test_weight_drop(d, &w);
    cr_assert_eq(test_weight_make(d, SN_I32, 1, 16, x, &w, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "I32"));
    cr_assert_null(w);
    cr_assert_eq(test_weight_make(d, SN_Q4_K, 1, 32, x, &w, &err), SN_REFUSED);
    cr_assert_eq(test_weight_make(d, SN_Q8_0, SIZE_MAX / 2, 1024, x, &w, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "large"));
    cr_assert_eq(d->ops->prepare(d, &(sn_device_limits){.rows = -1}, &err), SN_REFUSED);
    OK(d->ops->prepare(d, &(sn_device_limits){.rows = 1, .width = 64}, &err)); /* limits only grow */
    OK(d->ops->linear(d, 2, x, 1, &(sn_linear){.weight = wide, .y = y}, &err));
    test_weight_drop(d, &wide);
    test_devices_close(&devices);
}

/* Memory that a plan counts with is all that there is: a backward pass of the longest sequence finds its place in it.
 */
Test(cpu_device, gradients_of_the_longest_sequence_take_what_was_prepared) {
    enum { N = 80, DIM = 64 };
    static float q[N * DIM], k[N * DIM], v[N * DIM], dout[N * DIM], dq[N * DIM], dk[N * DIM], dv[N * DIM];
    const sn_device_limits limits = {.heads = 1, .head_dim = DIM, .grad_tokens = N};
    const sn_device_options options = {.threads = 2};
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &d, &err));
    d->memory_max = d->ops->prepare_bytes(d, &limits);
    OK(d->ops->prepare(d, &limits, &err));
    OK(d->ops->attention_grad(d,
                              &(sn_attention_grad){.n = N,
                                                   .n_heads = 1,
                                                   .n_kv_heads = 1,
                                                   .head_dim = DIM,
                                                   .scale = 1,
                                                   .q = q,
                                                   .dout = dout,
                                                   .k = k,
                                                   .v = v,
                                                   .dq = dq,
                                                   .dk = dk,
                                                   .dv = dv},
                              &err));
    sn_device_close(&d);
}

Test(cpu_device, loads_and_frees_many_weights) {
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    sn_device *d = devices.at[devices.n - 1];
    enum { N = 40, SIDE = 1024 };
    float *values = calloc(SIDE * SIDE, sizeof *values);
    sn_weight *w[N];
    for (int i = 0; i < N; i++) {
        values[0] = (float)i;
        OK(test_weight_make(d, SN_F32, SIDE, SIDE, values, &w[i], &err));
        if (i % 3 == 2) test_weight_drop(d, &w[i - 1]);
    }
    for (int i = 0; i < N; i++) {
        float row[SIDE];
        if (w[i]) {
            OK(d->ops->get_rows(d, w[i], 1, &(int32_t){0}, row, &err));
            cr_assert_eq(row[0], (float)i);
        }
        test_weight_drop(d, &w[i]);
    }
    free(values);
    test_devices_close(&devices);
}

Test(cpu_device, memory_is_zeroed_and_aligned) {
    test_devices devices = test_devices_open(&(sn_device_limits){0});
    sn_device *d = devices.at[0];
    for (size_t bytes = 0; bytes < 8 << 20; bytes = bytes * 9 + 100) {
        void *p;
        OK(d->ops->alloc(d, bytes, &p, &err));
        cr_assert_eq((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < bytes; i++) cr_assert_eq(((uint8_t *)p)[i], 0);
        memset(p, 1, bytes);
        d->ops->free(d, p, bytes);
    }
    void *p;
    cr_assert_eq(d->ops->alloc(d, SIZE_MAX, &p, &err), SN_STOP);
    cr_assert_null(p);
    d->ops->free(d, NULL, 10);
    test_devices_close(&devices);
}
