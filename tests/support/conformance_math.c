/* Operations by row and by element, and matrices.
 *
 * How it works: each case computes an operation on awkward shapes, once on the device and once by naive arithmetic
 * in double precision, with a bound of the error for each element. The bound is that of the operation's own formula
 * in float32: (operations that one result goes through) * half a unit in the last place * the sum of the magnitudes
 * of the terms. It holds for any order of summation, and a wrong element lies far outside of it. */
#include "tests/support/conformance.h"

#include "device/quant.h"
#include "tests/support/cpu_devices.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* -- linear */

/* By how much rounding x to the backend's input type may change a product x[i] * w[i] with |w[i]| = 1. */
static double input_error(const conformance *c, sn_dtype dtype, const float *x, size_t cols, size_t i) {
    double error = c->linear_rounding * fabs((double)x[i]), most = 0;
    if (!c->eight_bit_rows || !sn_dtype_quantised(dtype)) return error;
    for (size_t k = i / 32 * 32; k < i / 32 * 32 + 32 && k < cols; k++) most = fmax(most, fabs((double)x[k]));
    return error + most / 254 * 1.001; /* half a step of 1/127, and the rounding of the scale */
}

static void check_linear(conformance *c, int n, const float *x, const conformance_weight *w, const float *bias,
                         const float *y) {
    size_t rows = w->weight.rows, cols = w->weight.cols;
    double *errors = conformance_heap(c, cols * sizeof *errors);
    for (int r = 0; r < n; r++, x += cols, y += rows) {
        for (size_t k = 0; k < cols; k++) errors[k] = input_error(c, w->weight.dtype, x, cols, k);
        for (size_t o = 0; o < rows; o++) {
            double want = bias ? (double)bias[o] : 0, size = fabs(want), error = 0;
            for (size_t k = 0; k < cols; k++) {
                want += (double)x[k] * w->values[o * cols + k];
                size += fabs((double)x[k]) * w->sizes[o * cols + k];
                error += errors[k] * w->sizes[o * cols + k];
            }
            /* `cols` products and sums, a scale and an offset of the weight, the bias */
            error += size * (double)(cols + 8) * CONFORMANCE_EPSILON;
            CONFORMANCE_CHECK(c, conformance_close((double)y[o], want, error),
                              "%s (%zu, %zu), %d rows: row %d, output %zu is %g, not %g +- %g",
                              sn_dtype_name(w->weight.dtype), rows, cols, n, r, o, (double)y[o], want, error);
        }
    }
}

static void try_linear(conformance *c, int n, sn_dtype dtype, size_t rows, size_t cols) {
    int mark = c->n_buffers;
    conformance_weight w = conformance_random_weight(c, dtype, rows, cols, rows * 1000 + cols);
    float *x = conformance_random(c, (size_t)n * cols, 7), *device_x = conformance_upload(c, x, (size_t)n * cols);
    sn_linear linear = {.weight = &w.weight, .y = conformance_bytes(c, (size_t)n * rows * sizeof(float))};
    CONFORMANCE_OK(c, c->device->ops->linear(c->device, n, device_x, 1, &linear, &c->err));
    check_linear(c, n, x, &w, NULL, conformance_download(c, linear.y, (size_t)n * rows));
    conformance_release(c, mark);
}

void conformance_linear_of_every_type(conformance *c) {
    static const int counts[] = {1, 2, 3, 8, 17, 32, 64};
    conformance_prepare(c, &(sn_device_limits){.rows = 512});
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t block = sn_dtype_block(dtype), odd = block == 1 ? 7 : block;
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            try_linear(c, counts[i], dtype, 33, block == 1 ? 100 : block == 32 ? 96 : 512);
            try_linear(c, counts[i], dtype, 1, odd);
        }
        try_linear(c, 1, dtype, 130, 1024);
        try_linear(c, 65, dtype, 67, block > 32 ? 256 : 160);
        try_linear(c, 127, dtype, 130, block > 1 ? block : 8);
    }
    try_linear(c, 512, SN_Q4_K, 3, 256);
}

void conformance_linear_of_several_matrices_and_biases(conformance *c) {
    static const struct {
        sn_dtype dtype;
        size_t rows;
    } shapes[] = {{SN_Q4_1, 64}, {SN_F16, 5}, {SN_Q6_K, 19}, {SN_Q4_1, 1}};
    enum { LINEARS = 4, COLS = 256 };
    static const int counts[] = {1, 5, 17, 40};
    for (int i = 0; i < 4; i++) {
        int mark = c->n_buffers, n = counts[i];
        conformance_weight w[LINEARS];
        sn_linear linears[LINEARS];
        float *bias[LINEARS] = {0}, *x = conformance_random(c, (size_t)n * COLS, 3);
        for (int l = 0; l < LINEARS; l++) {
            w[l] = conformance_random_weight(c, shapes[l].dtype, shapes[l].rows, COLS, (uint64_t)l);
            if (l != 1) bias[l] = conformance_random(c, shapes[l].rows, 50 + (uint64_t)l);
            linears[l] = (sn_linear){.weight = &w[l].weight,
                                     .bias = bias[l] ? conformance_upload(c, bias[l], shapes[l].rows) : NULL,
                                     .y = conformance_bytes(c, (size_t)n * shapes[l].rows * sizeof(float))};
        }
        float *device_x = conformance_upload(c, x, (size_t)n * COLS);
        CONFORMANCE_OK(c, c->device->ops->linear(c->device, n, device_x, LINEARS, linears, &c->err));
        for (int l = 0; l < LINEARS; l++)
            check_linear(c, n, x, &w[l], bias[l], conformance_download(c, linears[l].y, (size_t)n * shapes[l].rows));
        conformance_release(c, mark);
    }
}

/* The result is not rounded to 16 bits: rounding would exceed half of 2^-15. */
void conformance_linear_that_is_to_be_exact(conformance *c) {
    enum { ROWS = 33, COLS = 100, N = 40 };
    int mark = c->n_buffers;
    double rounding = c->linear_rounding;
    conformance_weight w[] = {conformance_random_weight(c, SN_BF16, ROWS, COLS, 1),
                              conformance_random_weight(c, SN_F32, ROWS, COLS, 2),
                              conformance_random_weight(c, SN_BF16, 4, COLS, 3)};
    float *x = conformance_random(c, N * COLS, 8), *bias = conformance_random(c, ROWS, 9);
    float *device_x = conformance_upload(c, x, N * COLS), *device_bias = conformance_upload(c, bias, ROWS);
    sn_linear linears[3];
    for (int i = 0; i < 3; i++)
        linears[i] = (sn_linear){.weight = &w[i].weight,
                                 .bias = i ? NULL : device_bias,
                                 .high_precision = true,
                                 .y = conformance_bytes(c, N * w[i].weight.rows * sizeof(float))};
    for (int again = 0; again < 2; again++) /* the output's previous contents do not count */
        CONFORMANCE_OK(c, c->device->ops->linear(c->device, N, device_x, 3, linears, &c->err));
    c->linear_rounding = fmin(rounding, 0x1p-16 * 1.01);
    for (int i = 0; i < 3; i++)
        check_linear(c, N, x, &w[i], i ? NULL : bias, conformance_download(c, linears[i].y, N * w[i].weight.rows));
    c->linear_rounding = rounding;
    conformance_release(c, mark);
}

/* x keeps 16 bits also where the matrix is converted to bfloat16, which rounds each weight by half of 2^-8. */
void conformance_linear_of_every_type_that_is_to_be_exact(conformance *c) {
    enum { ROWS = 35, N = 40 };
    double rounding = c->linear_rounding;
    c->linear_rounding = fmin(rounding, 0x1p-9 * 1.01 + 0x1p-16);
    for (int t = 0; t < test_n_weight_types; t++) {
        int mark = c->n_buffers;
        size_t block = sn_dtype_block(test_weight_types[t]), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        conformance_weight w = conformance_random_weight(c, test_weight_types[t], ROWS, cols, 4);
        float *x = conformance_random(c, N * cols, 8), *device_x = conformance_upload(c, x, N * cols);
        sn_linear linear = {
            .weight = &w.weight, .high_precision = true, .y = conformance_bytes(c, N * ROWS * sizeof(float))};
        CONFORMANCE_OK(c, c->device->ops->linear(c->device, N, device_x, 1, &linear, &c->err));
        check_linear(c, N, x, &w, NULL, conformance_download(c, linear.y, N * ROWS));
        conformance_release(c, mark);
    }
    c->linear_rounding = rounding;
}

void conformance_linear_of_nothing(conformance *c) {
    conformance_weight w = conformance_random_weight(c, SN_Q8_0, 3, 32, 1);
    float mark = 5, *y = conformance_upload(c, &mark, 1);
    sn_linear linear = {.weight = &w.weight, .y = y};
    CONFORMANCE_OK(c, c->device->ops->linear(c->device, 0, y, 1, &linear, &c->err));
    CONFORMANCE_OK(c, c->device->ops->linear(c->device, 1, y, 0, &linear, &c->err));
    CONFORMANCE_OK(c, c->device->ops->rms_norm(c->device, 0, 8, y, y, 1e-5f, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->layer_norm(c->device, 0, 8, y, y, y, 1e-5f, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->rope(c->device, 0, 1, 8, y, &(sn_rope){true, 8, y}, &c->err));
    CONFORMANCE_OK(c, c->device->ops->activate(c->device, 0, SN_SILU, y, y, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->add(c->device, 0, y, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->get_rows(c->device, &w.weight, 0, NULL, y, &c->err));
    CONFORMANCE_CHECK(c, *conformance_download(c, y, 1) == 5, "a call of no rows wrote something");
}

/* The rows next to the bad one are the same as without it, and the bad row is not finite. For few rows and for many. */
void conformance_linear_keeps_nan_and_infinity_in_their_row(conformance *c) {
    enum { ROWS = 20, COLS = 256 };
    static const sn_dtype types[] = {SN_F32, SN_BF16, SN_Q4_1, SN_Q6_K};
    static const int counts[] = {3, 40};
    for (int i = 0; i < 16; i++) {
        int mark = c->n_buffers, n = counts[i / 4 % 2];
        size_t bad_at = COLS + 77; /* in row 1 */
        conformance_weight w = conformance_random_weight(c, types[i % 4], ROWS, COLS, 9);
        float *x = conformance_random(c, (size_t)n * COLS, 4), *device_x;
        x[bad_at] = i < 8 ? NAN : INFINITY;
        device_x = conformance_upload(c, x, (size_t)n * COLS);
        sn_linear linear = {.weight = &w.weight, .y = conformance_bytes(c, (size_t)n * ROWS * sizeof(float))};
        CONFORMANCE_OK(c, c->device->ops->linear(c->device, n, device_x, 1, &linear, &c->err));
        float *y = conformance_download(c, linear.y, (size_t)n * ROWS);
        check_linear(c, 1, x, &w, NULL, y);
        check_linear(c, n - 2, x + 2 * COLS, &w, NULL, y + 2 * ROWS);
        for (int o = 0; o < ROWS; o++)
            CONFORMANCE_CHECK(c, !isfinite(y[ROWS + o]), "%s, %d rows: a row with %g gives %g at %d",
                              sn_dtype_name(types[i % 4]), n, (double)x[bad_at], (double)y[ROWS + o], o);
        conformance_release(c, mark);
    }
}

void conformance_linear_gives_the_same_bits_again(conformance *c) {
    enum { ROWS = 100, COLS = 512 };
    static const int counts[] = {1, 4, 64};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < test_n_weight_types; t += 3) {
            int mark = c->n_buffers, n = counts[i];
            conformance_weight w = conformance_random_weight(c, test_weight_types[t], ROWS, COLS, 5);
            float *x = conformance_random(c, (size_t)n * COLS, 6), *first = NULL;
            float *device_x = conformance_upload(c, x, (size_t)n * COLS);
            sn_linear linear = {.weight = &w.weight, .y = conformance_bytes(c, (size_t)n * ROWS * sizeof(float))};
            for (int again = 0; again < 3; again++) {
                CONFORMANCE_OK(c, c->device->ops->linear(c->device, n, device_x, 1, &linear, &c->err));
                float *y = conformance_download(c, linear.y, (size_t)n * ROWS);
                if (!first) first = y;
                CONFORMANCE_CHECK(c, !memcmp(first, y, (size_t)n * ROWS * sizeof *y),
                                  "%s, %d rows: other bits in run %d", sn_dtype_name(test_weight_types[t]), n, again);
            }
            conformance_release(c, mark);
        }
}

/* -- norm */

static void check_norm(conformance *c, int n, int width, const float *x, const float *weight, double eps,
                       const float *y) {
    for (int r = 0; r < n; r++, x += width, y += width) {
        double squares = 0;
        for (int i = 0; i < width; i++) squares += (double)x[i] * (double)x[i];
        double scale = 1 / sqrt(squares / width + eps);
        for (int i = 0; i < width; i++) {
            double want = (double)x[i] * scale * (double)weight[i];
            /* the sum's error halves under the root; division, root and two products; roots of GPUs are off by 3
             * units */
            double error = fabs(want) * (width / 2.0 + 16) * CONFORMANCE_EPSILON;
            CONFORMANCE_CHECK(c, conformance_close((double)y[i], want, error),
                              "width %d, %d rows: row %d, element %d is %g, not %g +- %g", width, n, r, i, (double)y[i],
                              want, error);
        }
    }
}

static void try_norm(conformance *c, int n, int width, bool in_place, float eps) {
    int mark = c->n_buffers;
    size_t total = (size_t)n * (size_t)width;
    float *x = conformance_random(c, total, 1), *weight = conformance_random(c, (size_t)width, 2);
    if (n > 2) memset(x + 2 * width, 0, (size_t)width * sizeof *x); /* only eps keeps this row finite */
    if (n > 1) x[width] = 3e4f;
    float *device_x = conformance_upload(c, x, total), *device_weight = conformance_upload(c, weight, (size_t)width);
    float *y = in_place ? device_x : conformance_bytes(c, total * sizeof *y);
    CONFORMANCE_OK(c, c->device->ops->rms_norm(c->device, n, width, device_x, device_weight, eps, y, &c->err));
    check_norm(c, n, width, x, weight, (double)eps, conformance_download(c, y, total));
    conformance_release(c, mark);
}

void conformance_rms_norm_of_awkward_widths(conformance *c) {
    static const int widths[] = {1, 3, 24, 64, 100, 576, 1023};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        try_norm(c, 1, widths[i], false, 1e-5f);
        try_norm(c, 3, widths[i], true, 1e-6f);
        try_norm(c, 64, widths[i], i % 2, 1e-5f);
    }
}

void conformance_rms_norm_keeps_nan_in_its_row(conformance *c) {
    enum { WIDTH = 100 };
    float *x = conformance_random(c, 3 * WIDTH, 1), *weight = conformance_random(c, WIDTH, 2);
    x[WIDTH + 99] = NAN;
    float *device_x = conformance_upload(c, x, 3 * WIDTH), *device_weight = conformance_upload(c, weight, WIDTH);
    CONFORMANCE_OK(c, c->device->ops->rms_norm(c->device, 3, WIDTH, device_x, device_weight, 1e-5f, device_x, &c->err));
    check_norm(c, 3, WIDTH, x, weight, 1e-5, conformance_download(c, device_x, 3 * WIDTH));
}

static void check_layer_norm(conformance *c, int n, int width, const float *x, const float *weight, const float *bias,
                             double eps, const float *y) {
    for (int r = 0; r < n; r++, x += width, y += width) {
        double mean = 0, squares = 0, size = 0;
        for (int i = 0; i < width; i++) mean += (double)x[i] / width, size = fmax(size, fabs((double)x[i]));
        for (int i = 0; i < width; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        double scale = 1 / sqrt(squares / width + eps);
        for (int i = 0; i < width; i++) {
            double part = ((double)x[i] - mean) * scale * (double)weight[i], want = part + (bias ? (double)bias[i] : 0);
            /* As for rms_norm. In addition the mean is off by (width + 2) units of the largest element, which
             * changes every difference by that much, and the scale by the corresponding share. */
            double off = size * (width + 4) * CONFORMANCE_EPSILON * scale;
            double error = (fabs(part) + fabs(want)) * (width / 2.0 + 16) * CONFORMANCE_EPSILON +
                           off * fabs((double)weight[i]) + fabs(part) * off;
            CONFORMANCE_CHECK(c, conformance_close((double)y[i], want, error),
                              "width %d, %d rows: row %d, element %d is %g, not %g +- %g", width, n, r, i, (double)y[i],
                              want, error);
        }
    }
}

static void try_layer_norm(conformance *c, int n, int width, bool in_place, bool biased, float eps) {
    int mark = c->n_buffers;
    size_t total = (size_t)n * (size_t)width;
    float *x = conformance_random(c, total, 1), *weight = conformance_random(c, (size_t)width, 2);
    float *bias = biased ? conformance_random(c, (size_t)width, 3) : NULL;
    if (n > 2) memset(x + 2 * width, 0, (size_t)width * sizeof *x); /* only eps keeps this row finite */
    for (int i = 0; n > 1 && i < width; i++) x[width + i] += 3;     /* a mean far from 0 */
    float *device_x = conformance_upload(c, x, total), *device_weight = conformance_upload(c, weight, (size_t)width);
    float *device_bias = bias ? conformance_upload(c, bias, (size_t)width) : NULL;
    float *y = in_place ? device_x : conformance_bytes(c, total * sizeof *y);
    CONFORMANCE_OK(
        c, c->device->ops->layer_norm(c->device, n, width, device_x, device_weight, device_bias, eps, y, &c->err));
    check_layer_norm(c, n, width, x, weight, bias, (double)eps, conformance_download(c, y, total));
    conformance_release(c, mark);
}

void conformance_layer_norm_of_awkward_widths(conformance *c) {
    static const int widths[] = {1, 3, 24, 64, 100, 576, 1023};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        try_layer_norm(c, 1, widths[i], false, true, 1e-5f);
        try_layer_norm(c, 3, widths[i], true, false, 1e-6f);
        try_layer_norm(c, 64, widths[i], i % 2, i % 3, 1e-5f);
    }
}

void conformance_layer_norm_keeps_nan_in_its_row(conformance *c) {
    enum { WIDTH = 100 };
    float *x = conformance_random(c, 3 * WIDTH, 1), *weight = conformance_random(c, WIDTH, 2);
    x[WIDTH + 99] = NAN;
    float *device_x = conformance_upload(c, x, 3 * WIDTH), *device_weight = conformance_upload(c, weight, WIDTH);
    CONFORMANCE_OK(
        c, c->device->ops->layer_norm(c->device, 3, WIDTH, device_x, device_weight, NULL, 1e-5f, device_x, &c->err));
    check_layer_norm(c, 3, WIDTH, x, weight, NULL, 1e-5, conformance_download(c, device_x, 3 * WIDTH));
}

/* -- rope */

static void try_rope(conformance *c, int n, int n_heads, int head_dim, int dim, bool halves) {
    int mark = c->n_buffers;
    size_t total = (size_t)(n * n_heads * head_dim);
    float *x = conformance_random(c, total, 1), *angles = conformance_random(c, (size_t)(n * dim), 2);
    float *device_x = conformance_upload(c, x, total),
          *device_angles = conformance_upload(c, angles, (size_t)(n * dim));
    sn_rope rope = {halves, dim, device_angles};
    CONFORMANCE_OK(c, c->device->ops->rope(c->device, n, n_heads, head_dim, device_x, &rope, &c->err));
    float *y = conformance_download(c, device_x, total);
    for (size_t i = 0; i < total; i++) {
        int e = (int)(i % (size_t)head_dim), pairs = dim / 2, pair = halves ? e % (pairs ? pairs : 1) : e / 2;
        bool second = halves ? e >= pairs : e % 2;
        double want = (double)x[i], error = 0;
        if (e < dim) {
            const float *turn = angles + i / (size_t)(n_heads * head_dim) * (size_t)dim + 2 * pair;
            size_t other = second ? i - (size_t)(halves ? pairs : 1) : i + (size_t)(halves ? pairs : 1);
            double a = (double)x[i] * (double)turn[0], b = (double)x[other] * (double)turn[1];
            want = second ? a + b : a - b;
            error = 3 * CONFORMANCE_EPSILON * (fabs(a) + fabs(b)); /* two products and a sum */
        }
        CONFORMANCE_CHECK(c, conformance_close((double)y[i], want, error),
                          "%d rows, %d heads of %d, %d turned, halves %d: element %zu is %g, not %g", n, n_heads,
                          head_dim, dim, halves, i, (double)y[i], want);
    }
    conformance_release(c, mark);
}

void conformance_rope_of_both_styles(conformance *c) {
    static const int shapes[][3] = {{1, 24, 24}, {9, 64, 64}, {3, 128, 128}, {7, 80, 32}, {5, 24, 2}, {2, 64, 0}};
    static const int counts[] = {1, 3, 17, 64};
    for (int s = 0; s < 6; s++)
        for (int i = 0; i < 4; i++)
            for (int halves = 0; halves < 2; halves++)
                try_rope(c, counts[i], shapes[s][0], shapes[s][1], shapes[s][2], halves);
}

/* -- elements */

static double activation_formula(sn_activation kind, double x) {
    if (kind == SN_SILU) return x / (1 + exp(-x));
    if (kind == SN_SIGMOID) return 1 / (1 + exp(-x));
    if (kind == SN_TANH) return tanh(x);
    if (kind == SN_LINEAR) return x;
    if (kind == SN_RELU_SQUARED) return x < 0 ? 0 : x * x > FLT_MAX ? INFINITY : x * x;
    if (kind == SN_GELU) return x * 0.5 * erfc(-x * sqrt(0.5));
    if (kind == SN_SWIGLU_CLAMPED) return (x > 7 ? 7 : x) / (1 + exp(-1.702 * (x > 7 ? 7 : x)));
    return x * 0.5 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* The relative error of an activation, in half units: exp and erfc are off by some units on GPUs; a sum, a division
 * and products; and the effect that the rounding of the exponent's argument has on the exponential. */
static double activation_units(sn_activation kind, double x) {
    if (kind == SN_SWIGLU_CLAMPED) return 40 + (x < 0 ? -4 * x : 0);
    return 40 + (kind == SN_GELU ? 2 * x * x : kind == SN_GELU_TANH ? 12 * fabs(x) * (1 + 0.05 * x * x) : 0);
}

static void try_activation(conformance *c, sn_activation kind, const float *gate, const float *up, int n, int capacity,
                           int aliased) {
    int mark = c->n_buffers;
    size_t all = (size_t)capacity;
    float *g = conformance_upload(c, gate, all), *u = up ? conformance_upload(c, up, all) : NULL;
    float *y = aliased == 0 || (aliased == 2 && !u) ? conformance_bytes(c, all * sizeof *y) : aliased == 1 ? g : u;
    float *before = conformance_download(c, y, all);
    CONFORMANCE_OK(c, c->device->ops->activate(c->device, (size_t)n, kind, g, u, y, &c->err));
    float *got = conformance_download(c, y, all);
    for (int i = 0; i < n; i++) {
        double x = (double)gate[i], factor = u ? (double)up[i] : 1;
        if (kind == SN_SWIGLU_CLAMPED && u) factor = 1 + (factor > 7 ? 7 : factor < -7 ? -7 : factor);
        bool saturated = x <= -1e30 && kind != SN_TANH && kind != SN_LINEAR; /* x / (1 + exp(-x)): exp may saturate */
        double want = saturated ? 0 : activation_formula(kind, x) * factor;
        double error = saturated ? 1e-6 : fabs(want) * activation_units(kind, x) * CONFORMANCE_EPSILON + 1e-35;
        if (kind == SN_TANH) error += fabs(factor) * 1e-6;
        if (kind == SN_GELU_TANH && x < 0) error += fabs(x * factor) * 1e-16; /* 1 + tanh in the test's own doubles */
        CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, error),
                          "activation %d of %g, times %g: %g, not %g +- %g", (int)kind, x, factor, (double)got[i], want,
                          error);
    }
    CONFORMANCE_CHECK(c, !memcmp(got + n, before + n, (all - (size_t)n) * sizeof *got), "wrote beyond %d", n);
    conformance_release(c, mark);
}

void conformance_activations_over_the_whole_range(conformance *c) {
    enum { N = 3001 };
    float *gate = conformance_random(c, N, 1), *up = conformance_random(c, N, 2);
    for (int i = 0; i < N; i++) gate[i] *= i % 4 == 0 ? 1.0f : i % 4 == 1 ? 6.0f : i % 4 == 2 ? 20.0f : 100.0f;
    gate[0] = 0, gate[1] = -0.0f, gate[2] = NAN, gate[3] = INFINITY, up[3] = 2, gate[4] = 1e30f, gate[5] = -1e30f;
    gate[6] = 1, up[6] = NAN;
    for (int i = 10; i < N; i += 5) up[i] *= 30; /* beyond the clamp */
    for (int kind = 0; kind < SN_ACTIVATION_COUNT; kind++)
        for (int gated = 0; gated < 2; gated++)
            for (int aliased = 0; aliased < 3; aliased++)
                for (int n = 0; n <= N; n += n < 40 ? 1 + 6 * aliased : 987)
                    try_activation(c, (sn_activation)kind, gate, gated ? up : NULL, n, N, aliased);
}

void conformance_add_is_exact(conformance *c) {
    enum { N = 2050 };
    float *x = conformance_random(c, N, 1), *y = conformance_random(c, N, 2);
    x[0] = NAN, x[1] = INFINITY, x[2] = INFINITY, y[2] = -INFINITY;
    for (int n = 0; n <= N; n += n < 70 ? 1 : 660) {
        int mark = c->n_buffers;
        float *device_x = conformance_upload(c, x, N), *device_y = conformance_upload(c, y, N);
        CONFORMANCE_OK(c, c->device->ops->add(c->device, (size_t)n, device_y, device_x, &c->err));
        float *got = conformance_download(c, device_y, N);
        for (int i = 0; i < N; i++) {
            float want = i < n ? y[i] + x[i] : y[i];
            CONFORMANCE_CHECK(c, got[i] == want || (isnan(got[i]) && isnan(want)), "%d elements: %d is %g, not %g", n,
                              i, (double)got[i], (double)want);
        }
        conformance_release(c, mark);
    }
}

void conformance_scale_by_a_number_and_by_rows(conformance *c) {
    enum { N = 9, WIDTH = 133 };
    float *x = conformance_random(c, N * WIDTH, 1), *factors = conformance_random(c, N, 2);
    x[0] = NAN, x[WIDTH] = INFINITY;
    for (int by_rows = 0; by_rows < 2; by_rows++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int n = 0; n <= N; n += n < 2 ? 1 : 7) {
                int mark = c->n_buffers;
                float *device_x = conformance_upload(c, x, N * WIDTH),
                      *device_factors = by_rows ? conformance_upload(c, factors, N) : NULL,
                      *y = in_place ? device_x : conformance_upload(c, x, N * WIDTH);
                CONFORMANCE_OK(c,
                               c->device->ops->scale(c->device, n, WIDTH, device_x, -0.3f, device_factors, y, &c->err));
                float *got = conformance_download(c, y, N * WIDTH);
                for (int i = 0; i < N * WIDTH; i++) {
                    double want = (double)x[i];
                    if (i < n * WIDTH) want *= (double)-0.3f * (by_rows ? (double)factors[i / WIDTH] : 1);
                    CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, fabs(want) * 4 * CONFORMANCE_EPSILON),
                                      "%d rows: element %d is %g, not %g", n, i, (double)got[i], want);
                }
                conformance_release(c, mark);
            }
}

void conformance_clamp_keeps_what_lies_between(conformance *c) {
    static const float x[] = {-INFINITY, -3, -0.5f, 0, 0.25f, 0.5f, 2, INFINITY, NAN};
    enum { N = sizeof x / sizeof *x };
    static const float bounds[][2] = {{-0.5f, 0.5f}, {-INFINITY, 0.25f}, {-2, INFINITY}};
    for (int b = 0; b < 3; b++) {
        int mark = c->n_buffers;
        float *y = conformance_upload(c, x, N), low = bounds[b][0], high = bounds[b][1];
        CONFORMANCE_OK(c, c->device->ops->clamp(c->device, N - 1, y, low, high, &c->err));
        float *got = conformance_download(c, y, N);
        for (int i = 0; i < N - 1; i++)
            CONFORMANCE_CHECK(c, got[i] == fminf(fmaxf(x[i], low), high), "%g within %g and %g is %g", (double)x[i],
                              (double)low, (double)high, (double)got[i]);
        CONFORMANCE_CHECK(c, isnan(got[N - 1]), "it wrote beyond the end");
        CONFORMANCE_OK(c, c->device->ops->clamp(c->device, N, y, low, high, &c->err));
        CONFORMANCE_CHECK(c, isnan(conformance_download(c, y, N)[N - 1]), "NaN became a number");
        conformance_release(c, mark);
    }
}

void conformance_dot_rows_of_awkward_widths(conformance *c) {
    static const int widths[] = {1, 15, 64, 100, 1025};
    enum { N = 5 };
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        int mark = c->n_buffers, width = widths[w];
        size_t all = (size_t)(N * width);
        float *a = conformance_random(c, all, 1), *b = conformance_random(c, all, 2), *y = conformance_upload(c, a, N);
        CONFORMANCE_OK(c, c->device->ops->dot_rows(c->device, N - 1, width, conformance_upload(c, a, all),
                                                   conformance_upload(c, b, all), y, &c->err));
        float *got = conformance_download(c, y, N);
        for (int i = 0; i < N - 1; i++) {
            double want = 0, size = 0;
            for (int e = 0; e < width; e++) {
                want += (double)a[i * width + e] * (double)b[i * width + e];
                size += fabs((double)a[i * width + e] * (double)b[i * width + e]);
            }
            CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, size * (width + 4) * CONFORMANCE_EPSILON),
                              "width %d: row %d is %g, not %g", width, i, (double)got[i], want);
        }
        CONFORMANCE_CHECK(c, got[N - 1] == a[N - 1], "wrote beyond the rows");
        conformance_release(c, mark);
    }
}

/* -- get_rows */

void conformance_get_rows_of_every_type(conformance *c) {
    static const int32_t ids[] = {6, 0, 3, 3, 1};
    enum { ROWS = 7, IDS = 5 };
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t cols = sn_dtype_block(dtype) == 1 ? 33 : 3 * sn_dtype_block(dtype);
        int mark = c->n_buffers;
        conformance_weight w = conformance_random_weight(c, dtype, ROWS, cols, 11);
        for (int n = 1; n <= IDS; n += IDS - 1) {
            float *y = conformance_bytes(c, IDS * cols * sizeof *y);
            CONFORMANCE_OK(c, c->device->ops->get_rows(c->device, &w.weight, n, ids, y, &c->err));
            float *got = conformance_download(c, y, IDS * cols);
            for (size_t i = 0; i < (size_t)n * cols; i++) {
                size_t at = (size_t)ids[i / cols] * cols + i % cols;
                /* a product and a sum; no error for plain types */
                double error = 4 * CONFORMANCE_EPSILON * w.sizes[at];
                if (cols == 33) error = 0;
                CONFORMANCE_CHECK(c, conformance_close((double)got[i], w.values[at], error),
                                  "%s: element %zu is %g, not %g", sn_dtype_name(dtype), i, (double)got[i],
                                  w.values[at]);
            }
        }
        conformance_release(c, mark);
    }
}

void conformance_get_rows_refuses_rows_out_of_range(conformance *c) {
    conformance_weight w = conformance_random_weight(c, SN_F16, 4, 8, 1);
    static const int32_t ids[][3] = {{0, 4, 1}, {0, 1, -1}, {INT32_MAX, 0, 0}, {INT32_MIN, 0, 0}};
    float *y = conformance_bytes(c, 3 * 8 * sizeof *y);
    for (int i = 0; i < 4; i++)
        CONFORMANCE_CHECK(c, c->device->ops->get_rows(c->device, &w.weight, 3, ids[i], y, &c->err) == SN_REFUSED,
                          "ids %d %d %d of 4 rows were taken", ids[i][0], ids[i][1], ids[i][2]);
}
