/* Gradients.
 *
 * How it works: the expected gradient is computed from differences of the forward formula in float64, (f(x + h) -
 * f(x - h)) / 2h with f = sum(dy * y), so that a wrong derivation in the backend is not repeated in the test.
 * Gradients of matrices are plain products and are compared with the product.
 *
 * Tolerances: the error of the differences, plus half a unit in the last place of float32 for each operation that a
 * result goes through. */
#include "tests/support/conformance.h"

#include "tests/support/cpu_devices.h"

#include <math.h>
#include <string.h>

static const double step = 1e-4, operations = 64;

typedef double (*formula)(const void *ctx, const double *x); /* sum(dy * y(x)) */

/* Checks got[i], the gradient with respect to x[i] of f, for all i < n; `before`: the values to which the gradient
 * was added, or NULL. */
static void check_grad(conformance *c, const char *name, formula f, const void *ctx, double *x, size_t n,
                       const float *got, const float *before, double size) {
    for (size_t i = 0; i < n; i++) {
        double at = x[i], want = before ? (double)before[i] : 0;
        x[i] = at + step;
        double high = f(ctx, x);
        x[i] = at - step;
        want += (high - f(ctx, x)) / (2 * step);
        x[i] = at;
        double error = size * (step * step * 4 + 1e-11 + operations * CONFORMANCE_EPSILON);
        CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, error),
                          "%s: gradient %zu of %zu is %g, not %g +- %g", name, i, n, (double)got[i], want, error);
    }
}

static double *as_doubles(conformance *c, const float *x, size_t n) {
    double *y = conformance_heap(c, n * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

/* -- matrices */

static void try_linear_grad(conformance *c, int n, sn_dtype dtype, size_t rows, size_t cols, bool grow) {
    int mark = c->n_buffers;
    conformance_weight w = conformance_random_weight(c, dtype, rows, cols, rows * 1000 + cols);
    float *dy = conformance_random(c, (size_t)n * rows, 5), *before = conformance_random(c, (size_t)n * cols, 6);
    float *device_dy = conformance_upload(c, dy, (size_t)n * rows),
          *dx = conformance_upload(c, before, (size_t)n * cols);
    CONFORMANCE_OK(c, c->device->ops->linear_input_grad(c->device, n, device_dy, &w.weight, grow, dx, &c->err));
    float *got = conformance_download(c, dx, (size_t)n * cols);
    for (size_t r = 0; r < (size_t)n; r++)
        for (size_t k = 0; k < cols; k++) {
            double want = grow ? (double)before[r * cols + k] : 0, size = fabs(want);
            for (size_t o = 0; o < rows; o++) {
                want += (double)dy[r * rows + o] * w.values[o * cols + k];
                size += fabs((double)dy[r * rows + o]) * w.sizes[o * cols + k];
            }
            double error = size * ((double)(rows + 8) * CONFORMANCE_EPSILON + c->linear_rounding * 2);
            CONFORMANCE_CHECK(c, conformance_close((double)got[r * cols + k], want, error),
                              "%s (%zu, %zu), %d rows: dx[%zu, %zu] is %g, not %g +- %g", sn_dtype_name(dtype), rows,
                              cols, n, r, k, (double)got[r * cols + k], want, error);
        }
    conformance_release(c, mark);
}

void conformance_linear_input_grad_of_every_type(conformance *c) {
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t block = sn_dtype_block(dtype), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        try_linear_grad(c, 1, dtype, 33, cols, false);
        try_linear_grad(c, 7, dtype, 130, cols, t % 2);
        try_linear_grad(c, 33, dtype, 5, block == 1 ? 7 : block, true);
    }
}

void conformance_linear_weight_grad_accumulates(conformance *c) {
    static const int shapes[][3] = {{1, 1, 1}, {5, 8, 70}, {33, 70, 8}, {17, 19, 23}, {64, 3, 130}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int mark = c->n_buffers;
        size_t n = (size_t)shapes[s][0], rows = (size_t)shapes[s][1], cols = (size_t)shapes[s][2];
        float *dy = conformance_random(c, n * rows, 1), *x = conformance_random(c, n * cols, 2);
        float *before = conformance_random(c, rows * cols, 3), *dw = conformance_upload(c, before, rows * cols);
        CONFORMANCE_OK(c, c->device->ops->linear_weight_grad(c->device, (int)n, (int)rows, (int)cols,
                                                             conformance_upload(c, dy, n * rows),
                                                             conformance_upload(c, x, n * cols), dw, &c->err));
        float *got = conformance_download(c, dw, rows * cols);
        for (size_t i = 0; i < rows * cols; i++) {
            double want = (double)before[i], size = fabs(want);
            for (size_t k = 0; k < n; k++) {
                double product = (double)dy[k * rows + i / cols] * (double)x[k * cols + i % cols];
                want += product;
                size += fabs(product);
            }
            double error = size * ((double)(n + 2) * CONFORMANCE_EPSILON + c->linear_rounding * 2);
            CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, error),
                              "dw[%zu] of (%zu, %zu) is %g, not %g +- %g", i, rows, cols, (double)got[i], want, error);
        }
        conformance_release(c, mark);
    }
}

/* -- norm, activation */

typedef struct row_ctx {
    size_t width;
    const double *weight, *dy, *other;
    double eps;
} row_ctx;

static double norm_formula(const void *ctx, const double *x) {
    const row_ctx *r = ctx;
    double squares = 0, sum = 0;
    for (size_t i = 0; i < r->width; i++) squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / (double)r->width + r->eps);
    for (size_t i = 0; i < r->width; i++) sum += r->dy[i] * x[i] * scale * r->weight[i];
    return sum;
}

static double layer_norm_formula(const void *ctx, const double *x) {
    const row_ctx *r = ctx;
    double mean = 0, squares = 0, sum = 0;
    for (size_t i = 0; i < r->width; i++) mean += x[i] / (double)r->width;
    for (size_t i = 0; i < r->width; i++) squares += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(squares / (double)r->width + r->eps);
    for (size_t i = 0; i < r->width; i++) sum += r->dy[i] * (x[i] - mean) * scale * r->weight[i];
    return sum;
}

typedef sn_status (*norm_grad)(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool grow, float *dx, sn_err *err);

/* In rows narrower than `flat` the elements are equal but for noise, so that eps, which is large there, dominates.
 * allowed: 0: bounded by the row's smallest element. */
static void norm_grad_by_differences(conformance *c, const char *name, norm_grad op, formula norm, size_t flat,
                                     double allowed) {
    static const size_t widths[] = {1, 3, 24, 64, 100};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int grow = 0; grow < 2; grow++) {
            int mark = c->n_buffers;
            size_t width = widths[w], n = 3;
            float *x = conformance_random(c, n * width, 1), *weight = conformance_random(c, width, 2);
            float *dy = conformance_random(c, n * width, 3), *before = conformance_random(c, n * width, 4);
            float *dx = conformance_upload(c, before, n * width), eps = width < flat ? 0.1f : 1e-5f;
            CONFORMANCE_OK(c, op(c->device, (int)n, (int)width, conformance_upload(c, x, n * width),
                                 conformance_upload(c, weight, width), eps, conformance_upload(c, dy, n * width), grow,
                                 dx, &c->err));
            float *got = conformance_download(c, dx, n * width);
            double *weights = as_doubles(c, weight, width);
            for (size_t r = 0; r < n; r++) {
                double bound = fmax(allowed, 4);
                for (size_t i = 0; i < width && allowed == 0; i++)
                    bound = fmax(bound, 4 / fmax(fabs((double)x[r * width + i]), 0.05));
                row_ctx ctx = {width, weights, as_doubles(c, dy + r * width, width), NULL, (double)eps};
                check_grad(c, name, norm, &ctx, as_doubles(c, x + r * width, width), width, got + r * width,
                           grow ? before + r * width : NULL, bound);
            }
            conformance_release(c, mark);
        }
}

void conformance_rms_norm_grad_by_differences(conformance *c) {
    norm_grad_by_differences(c, "rms_norm", c->device->ops->rms_norm_grad, norm_formula, 2, 0);
}

void conformance_layer_norm_grad_by_differences(conformance *c) {
    norm_grad_by_differences(c, "layer_norm", c->device->ops->layer_norm_grad, layer_norm_formula, 4, 4);
}

typedef struct activation_ctx {
    sn_activation kind;
    size_t n;
    bool gated;
    const double *dy;
} activation_ctx;

static double activation_formula(const void *ctx, const double *x) { /* x: gate, then up */
    const activation_ctx *a = ctx;
    double sum = 0, inner = sqrt(2 / acos(-1));
    for (size_t i = 0; i < a->n; i++) {
        double g = x[i], y = g / (1 + exp(-g)), u = a->gated ? x[a->n + i] : 1;
        if (a->kind == SN_TANH) y = tanh(g);
        if (a->kind == SN_LINEAR) y = g;
        if (a->kind == SN_RELU_SQUARED) y = g < 0 ? 0 : g * g;
        if (a->kind == SN_SIGMOID) y = 1 / (1 + exp(-g));
        if (a->kind == SN_GELU) y = g / 2 * (1 + erf(g * sqrt(0.5)));
        if (a->kind == SN_GELU_TANH) y = g / 2 * (1 + tanh(inner * (g + 0.044715 * g * g * g)));
        if (a->kind == SN_SWIGLU_CLAMPED) y = fmin(g, 7) / (1 + exp(-1.702 * fmin(g, 7)));
        if (a->kind == SN_SWIGLU_CLAMPED && a->gated) u = fmin(fmax(u, -7), 7) + 1;
        sum += a->dy[i] * y * u;
    }
    return sum;
}

void conformance_activation_grad_by_differences(conformance *c) {
    enum { N = 83 };
    float *x = conformance_random(c, 2 * N, 1), *dy = conformance_random(c, N, 2), got[2 * N];
    for (int i = 0; i < N; i++) x[i] *= 12; /* gates from the flat to the steep part */
    for (int kind = 0; kind < SN_ACTIVATION_COUNT; kind++)
        for (int gated = 0; gated < 2; gated++) {
            for (int i = N; i < 2 * N && kind == SN_SWIGLU_CLAMPED && gated; i += 3)
                x[i] *= 14; /* some values exceed the clamp */
            float *gate = conformance_upload(c, x, N), *up = gated ? conformance_upload(c, x + N, N) : NULL;
            float *d = conformance_upload(c, dy, N), *dgate = gated ? conformance_bytes(c, sizeof got / 2) : d;
            CONFORMANCE_OK(c, c->device->ops->activate_grad(c->device, N, (sn_activation)kind, gate, up, d, dgate,
                                                            /* one result is written over dy */
                                                            gated ? d : NULL, &c->err));
            memcpy(got, conformance_download(c, dgate, N), N * sizeof(float));
            memcpy(got + N, conformance_download(c, d, N), N * sizeof(float));
            activation_ctx ctx = {(sn_activation)kind, N, gated, as_doubles(c, dy, N)};
            check_grad(c, "activation", activation_formula, &ctx, as_doubles(c, x, 2 * N), gated ? 2 * N : N, got, NULL,
                       12);
        }
}

/* -- attention */

typedef struct attention_ctx {
    const sn_attention_grad *g;
    const double *dout, *slopes, *sinks; /* sinks: NULL: none */
} attention_ctx;

static double attention_formula(const void *ctx, const double *x) { /* x: q, k, v one after the other */
    const attention_ctx *a = ctx;
    const sn_attention_grad *g = a->g;
    size_t dim = (size_t)g->head_dim, heads = (size_t)g->n_heads, kv_heads = (size_t)g->n_kv_heads, n = (size_t)g->n;
    const double *q = x, *k = q + n * heads * dim, *v = k + n * kv_heads * dim;
    double total = 0, s[64];
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++) {
            size_t own = h / (heads / kv_heads),
                   first = g->window > 0 && i + 1 > (size_t)g->window ? i + 1 - (size_t)g->window : 0;
            if (g->window < 0) first = i - i % (size_t)-g->window;
            double most = -INFINITY, sum = 0;
            for (size_t j = first; j <= i; j++) {
                s[j] = 0;
                for (size_t d = 0; d < dim; d++)
                    s[j] += q[(i * heads + h) * dim + d] * k[(j * kv_heads + own) * dim + d];
                s[j] *= (double)g->scale;
                if (g->softcap > 0) s[j] = (double)g->softcap * tanh(s[j] / (double)g->softcap);
                s[j] += a->slopes[h] * ((double)j - (double)i);
                most = fmax(most, s[j]);
            }
            if (a->sinks) most = fmax(most, a->sinks[h]), sum = exp(a->sinks[h] - most);
            for (size_t j = first; j <= i; j++) sum += s[j] = exp(s[j] - most);
            for (size_t j = first; j <= i; j++)
                for (size_t d = 0; d < dim; d++)
                    total += a->dout[(i * heads + h) * dim + d] * s[j] / sum * v[(j * kv_heads + own) * dim + d];
        }
    return total;
}

static void try_attention_grad(conformance *c, int n, int heads, int kv_heads, int dim, int window, bool alibi,
                               bool sinks) {
    int mark = c->n_buffers, cut = n / 3;
    size_t nq = (size_t)(n * heads * dim), nk = (size_t)(n * kv_heads * dim);
    float *x = conformance_random(c, nq + 2 * nk, 1), *dout = conformance_random(c, nq, 2);
    float *got = conformance_heap(c, (nq + 2 * nk) * sizeof *got),
          *slopes = conformance_heap(c, (size_t)heads * sizeof *slopes);
    float *own_sinks = conformance_heap(c, (size_t)heads * sizeof *own_sinks);
    for (int h = 0; alibi && h < heads; h++) slopes[h] = 0.5f - 0.3f * (float)h;
    for (int h = 0; h < heads; h++) own_sinks[h] = 2.0f - 1.5f * (float)h;
    sn_attention_grad g = {.n = n,
                           .n_heads = heads,
                           .n_kv_heads = kv_heads,
                           .head_dim = dim,
                           .window = window,
                           .scale = 0.7f,
                           .softcap = window < 0 ? 0.8f : 0, /* below most scores */
                           .slopes = alibi ? conformance_upload(c, slopes, (size_t)heads) : NULL,
                           .sinks = sinks ? conformance_upload(c, own_sinks, (size_t)heads) : NULL,
                           .q = conformance_upload(c, x, nq),
                           .dout = conformance_upload(c, dout, nq),
                           .k = conformance_upload(c, x + nq, nk),
                           .v = conformance_upload(c, x + nq + nk, nk),
                           .dq = conformance_upload(c, dout, nq),
                           .dk = conformance_upload(c, x, nk),
                           .dv = conformance_upload(c, x, nk)};
    /* as two calls, the rows before `cut` first: dk and dv add up */
    sn_attention_grad part = g;
    part.n = cut;
    if (cut) CONFORMANCE_OK(c, c->device->ops->attention_grad(c->device, &part, &c->err));
    part.first = cut;
    part.n = n - cut;
    part.q += (size_t)(cut * heads * dim), part.dout += (size_t)(cut * heads * dim);
    part.dq += (size_t)(cut * heads * dim);
    CONFORMANCE_OK(c, c->device->ops->attention_grad(c->device, &part, &c->err));
    memcpy(got, conformance_download(c, g.dq, nq), nq * sizeof *got);
    memcpy(got + nq, conformance_download(c, g.dk, nk), nk * sizeof *got);
    memcpy(got + nq + nk, conformance_download(c, g.dv, nk), nk * sizeof *got);
    attention_ctx ctx = {&g, as_doubles(c, dout, nq), as_doubles(c, slopes, (size_t)heads),
                         sinks ? as_doubles(c, own_sinks, (size_t)heads) : NULL};
    double size = (double)(n * heads) / 4 * (1 + 1e5 * c->attention_rounding);
    check_grad(c, "attention", attention_formula, &ctx, as_doubles(c, x, nq + 2 * nk), nq + 2 * nk, got, NULL, size);
    conformance_release(c, mark);
}

void conformance_attention_grad_by_differences(conformance *c) {
    try_attention_grad(c, 1, 1, 1, 8, 0, false, false);
    try_attention_grad(c, 9, 4, 2, 6, 0, false, false);
    try_attention_grad(c, 19, 3, 1, 5, 0, false, false);
    try_attention_grad(c, 21, 2, 2, 17, 4, false, false);
    try_attention_grad(c, 18, 2, 1, 4, 1, false, false);
    try_attention_grad(c, 19, 3, 1, 5, 0, true, false);
    try_attention_grad(c, 21, 4, 2, 17, 6, true, false);
    try_attention_grad(c, 1, 1, 1, 8, 0, false, true);
    try_attention_grad(c, 19, 4, 2, 5, 0, false, true);
    try_attention_grad(c, 21, 2, 2, 17, 4, false, true);
    try_attention_grad(c, 19, 3, 1, 5, 6, true, true);
    try_attention_grad(c, 21, 4, 2, 17, -8, false, false);
    try_attention_grad(c, 19, 3, 1, 5, -100, true, true);
}
