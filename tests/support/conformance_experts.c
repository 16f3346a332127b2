/* Mixtures of experts: the gate that selects experts, the matrices of the selected experts, the weighted sum of
 * their results, and the gradients of all three.
 *
 * How it works: a `selection` holds the experts and weights that naive arithmetic selects, on the host and on the
 * device, so that each operation is tested apart from the gate. The gradients of the gate are compared with
 * differences of the formula. Tolerances are those of conformance_math.c and conformance_grad.c. */
#include "tests/support/conformance.h"

#include "device/quant.h"
#include "tests/support/cpu_devices.h"

#include <math.h>
#include <string.h>

/* -- a selection, by naive arithmetic */

typedef struct selection {
    int n, n_experts, k;
    int32_t *ids;
    double *weights;
    sn_moe_selection device;
} selection;

static double naive_score(const sn_moe_router *r, const double *logits, int e) {
    double sum = 0;
    if (r->scoring == SN_ROUTER_SIGMOID) return 1 / (1 + exp(-logits[e]));
    for (int other = 0; other < r->n_experts; other++) sum += exp(logits[other] - logits[e]);
    return 1 / sum;
}

/* By what expert e is chosen. */
static double naive_rank(const sn_moe_router *r, const double *logits, int e) {
    return r->correction ? naive_score(r, logits, e) + (double)r->correction[e] : logits[e];
}

/* By what group g is chosen: the rank of its best expert, or with the sigmoid that of its two best ones together. */
static double naive_group_rank(const sn_moe_router *r, const double *logits, int g) {
    double first = -INFINITY, second = -INFINITY;
    int size = r->n_experts / r->n_groups;
    for (int e = g * size; e < (g + 1) * size; e++) {
        double x =
            r->scoring == SN_ROUTER_SIGMOID && !r->correction ? 1 / (1 + exp(-logits[e])) : naive_rank(r, logits, e);
        second = fmax(second, fmin(first, x));
        first = fmax(first, x);
    }
    return r->scoring == SN_ROUTER_SIGMOID && size > 1 ? first + second : first;
}

/* Takes the experts of groups that are not chosen. */
static void naive_groups(const sn_moe_router *r, const double *logits, bool *taken) {
    int size = r->n_groups ? r->n_experts / r->n_groups : 0;
    for (int e = 0; e < r->n_experts; e++) taken[e] = r->n_groups;
    for (int j = 0; j < r->n_groups_used; j++) {
        int best = -1;
        for (int g = 0; g < r->n_groups; g++)
            if (taken[g * size] && (best < 0 || naive_group_rank(r, logits, g) > naive_group_rank(r, logits, best)))
                best = g;
        for (int e = best * size; e < (best + 1) * size; e++) taken[e] = false;
    }
}

/* router->correction: host. */
static void naive_gate(const sn_moe_router *r, const double *logits, int32_t *ids, double *weights) {
    bool taken[SN_EXPERTS_MAX], outside[SN_EXPERTS_MAX];
    double sum = 0;
    naive_groups(r, logits, taken);
    memcpy(outside, taken, sizeof outside);
    for (int j = 0; j < r->k; j++) {
        int best = -1;
        for (int e = 0; e < r->n_experts; e++)
            if (!taken[e] && (best < 0 || naive_rank(r, logits, e) > naive_rank(r, logits, best))) best = e;
        taken[best] = true;
        ids[j] = best;
        bool scored = r->scoring == SN_ROUTER_SIGMOID || r->correction;
        weights[j] = scored ? naive_score(r, logits, best) : exp(logits[best] - logits[ids[0]]);
        sum += weights[j];
    }
    for (int e = 0; e < r->n_experts; e++)
        if (r->scoring == SN_ROUTER_SOFTMAX_ALL && (!taken[e] || outside[e])) sum += exp(logits[e] - logits[ids[0]]);
    if (r->scoring == SN_ROUTER_SIGMOID) sum = r->normalised ? sum + (double)r->sum_offset : 1;
    if (r->scoring == SN_ROUTER_SOFTMAX && r->correction) sum = fmax(sum, 1e-12);
    for (int j = 0; j < r->k; j++) weights[j] *= (double)r->scale / sum;
}

static void *upload_bytes(conformance *c, const void *host, size_t bytes) {
    void *device = conformance_bytes(c, bytes);
    CONFORMANCE_OK(c, c->device->ops->upload(c->device, device, host, bytes, &c->err));
    return device;
}

static void *download_bytes(conformance *c, const void *device, size_t bytes) {
    void *host = conformance_heap(c, bytes);
    CONFORMANCE_OK(c, c->device->ops->download(c->device, host, device, bytes, &c->err));
    return host;
}

/* The experts selected for n rows with these logits, on the host and on the device. */
static selection make_selection(conformance *c, int n, const sn_moe_router *router, const float *logits) {
    int n_experts = router->n_experts, k = router->k;
    size_t pairs = (size_t)(n * k);
    selection o = {
        n,  n_experts, k, conformance_heap(c, pairs * sizeof(int32_t)), conformance_heap(c, pairs * sizeof(double)),
        {0}};
    double row[SN_EXPERTS_MAX];
    float *weights = conformance_heap(c, pairs * sizeof *weights);
    for (int i = 0; i < n; i++) {
        for (int e = 0; e < n_experts; e++) row[e] = (double)logits[i * n_experts + e];
        naive_gate(router, row, o.ids + i * k, o.weights + i * k);
    }
    for (size_t p = 0; p < pairs; p++) weights[p] = (float)o.weights[p];
    o.device = (sn_moe_selection){n, n_experts, k, upload_bytes(c, o.ids, pairs * sizeof *o.ids),
                                  upload_bytes(c, weights, pairs * sizeof *weights)};
    return o;
}

/* The same by the softmax of the chosen experts. */
static selection select_plainly(conformance *c, int n, int n_experts, int k, const float *logits) {
    return make_selection(c, n, &(sn_moe_router){.n_experts = n_experts, .k = k, .scale = 1}, logits);
}

/* Makes logits of several magnitudes; some rows hold many equal logits. */
static float *make_logits(conformance *c, int n, int n_experts) {
    float *logits = conformance_random(c, (size_t)(n * n_experts), (uint64_t)(n + n_experts));
    for (int i = 0; i < n * n_experts; i++)
        logits[i] = i / n_experts % 3 == 2 ? roundf(logits[i] * 2) : logits[i] * (i / n_experts % 3 ? 30.0f : 2.0f);
    return logits;
}

/* The router with its correction, if it has one, on the device. */
static sn_moe_router router_on_device(conformance *c, const sn_moe_router *router) {
    sn_moe_router own = *router;
    if (own.correction) own.correction = conformance_upload(c, router->correction, (size_t)router->n_experts);
    return own;
}

/* Calls `try` with every kind of router for n rows. */
static void with_routers(conformance *c, int n, int n_experts, int k,
                         void (*try)(conformance *c, int n, const sn_moe_router *router)) {
    int mark = c->n_buffers;
    float *correction = conformance_random(c, (size_t)n_experts, 12); /* of both signs */
    const sn_moe_router routers[] = {{n_experts, k, SN_ROUTER_SOFTMAX, NULL, false, 1, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SOFTMAX_ALL, NULL, false, 1, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SOFTMAX_ALL, NULL, false, 4, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SOFTMAX, correction, false, 2, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SIGMOID, NULL, false, 1, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SIGMOID, correction, false, 1.5f, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SIGMOID, correction, true, 2.5f, 0, 0, NULL, 0},
                                     {n_experts, k, SN_ROUTER_SIGMOID, correction, true, 1, 0, 0, NULL, 0.5f}};
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++) try(c, n, &routers[i]);
    conformance_release(c, mark);
}

/* How far the rank of a row's expert lies from that of another one, both by naive arithmetic: ranks that differ by
 * rounding alone may stand in either order. */
static bool ranks_are_close(const sn_moe_router *r, const float *logits, int a, int b) {
    double row[SN_EXPERTS_MAX];
    for (int e = 0; e < r->n_experts; e++) row[e] = (double)logits[e];
    if (!r->correction) return row[a] == row[b];
    return fabs(naive_rank(r, row, a) - naive_rank(r, row, b)) < 4 * CONFORMANCE_EPSILON;
}

static void try_moe_gate(conformance *c, int n, const sn_moe_router *r) {
    int mark = c->n_buffers, k = r->k;
    size_t pairs = (size_t)(n * k);
    float *logits = make_logits(c, n, r->n_experts);
    for (int i = 0; r->n_groups && i < n * r->n_experts; i++) logits[i] *= 0.1f; /* no score rounds to 1 */
    selection want = make_selection(c, n, r, logits);
    const sn_moe_router own = router_on_device(c, r);
    int32_t *ids = conformance_bytes(c, pairs * sizeof *ids);
    float *weights = conformance_bytes(c, pairs * sizeof *weights);
    CONFORMANCE_OK(c, c->device->ops->moe_gate(c->device, n, &own,
                                               conformance_upload(c, logits, (size_t)(n * r->n_experts)), ids, weights,
                                               &c->err));
    const int32_t *got = download_bytes(c, ids, pairs * sizeof *got);
    const float *shares = conformance_download(c, weights, pairs);
    for (size_t p = 0; p < pairs; p++) {
        double error = fmax(want.weights[p], (double)r->scale * 1e-6) * (r->n_experts + 16) * CONFORMANCE_EPSILON * 4;
        CONFORMANCE_CHECK(c,
                          got[p] == want.ids[p] ||
                              (got[p] >= 0 && got[p] < r->n_experts &&
                               ranks_are_close(r, logits + p / (size_t)k * (size_t)r->n_experts, got[p], want.ids[p]) &&
                               r->correction),
                          "%d of %d experts: row %zu takes %d at place %zu, not %d", k, r->n_experts, p / (size_t)k,
                          (int)got[p], p % (size_t)k, (int)want.ids[p]);
        if (got[p] != want.ids[p]) continue;
        CONFORMANCE_CHECK(c, conformance_close((double)shares[p], want.weights[p], error),
                          "%d of %d experts: weight %zu of row %zu is %g, not %g +- %g", k, r->n_experts, p % (size_t)k,
                          p / (size_t)k, (double)shares[p], want.weights[p], error);
    }
    conformance_release(c, mark);
}

void conformance_moe_gate_takes_the_largest(conformance *c) {
    static const int shapes[][3] = {{1, 1, 1},    {1, 4, 2},    {7, 6, 2},   {3, 33, 8},
                                    {40, 128, 8}, {2, 100, 64}, {2, 1024, 3}};
    const sn_moe_router impossible = {.n_experts = 4, .k = 5, .scale = 1};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        with_routers(c, shapes[i][0], shapes[i][1], shapes[i][2], try_moe_gate);
    CONFORMANCE_CHECK(c, c->device->ops->moe_gate(c->device, 1, &impossible, NULL, NULL, NULL, &c->err) == SN_REFUSED,
                      "five of four experts were chosen");
}

/* DeepSeek-V2's and V3's groups, groups of one, and more groups than lanes. */
void conformance_moe_gate_takes_the_best_groups(conformance *c) {
    static const int shapes[][5] = {
        {5, 8, 2, 4, 2}, {7, 256, 8, 8, 4}, {3, 160, 6, 8, 3}, {3, 6, 2, 6, 3}, {2, 1024, 9, 128, 5}};
    const sn_moe_router impossible = {.n_experts = 8, .k = 3, .scale = 1, .n_groups = 4, .n_groups_used = 1};
    sn_device *d = c->device;
    conformance_prepare(c, &(sn_device_limits){.rows = 8, .experts = 1024, .experts_used = 9});
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        int mark = c->n_buffers;
        float *correction = conformance_random(c, (size_t)s[1], 12);
        for (int kind = 0; kind < 4; kind++) {
            sn_moe_router r = {
                s[1], s[2], kind < 2 ? SN_ROUTER_SIGMOID : SN_ROUTER_SOFTMAX_ALL, NULL, kind < 2, 2.5f, s[3], s[4],
                NULL, 0};
            if (kind == 0) r.correction = correction;
            if (kind == 3) r.scoring = SN_ROUTER_SOFTMAX;
            try_moe_gate(c, s[0], &r);
        }
        conformance_release(c, mark);
    }
    CONFORMANCE_CHECK(c, d->ops->moe_gate(d, 1, &impossible, NULL, NULL, NULL, &c->err) == SN_REFUSED,
                      "three experts were chosen of a group of two");
}

/* Only weights change, and each by the factor of its expert. */
void conformance_moe_gate_multiplies_by_factors(conformance *c) {
    enum { N = 5, EXPERTS = 70, K = 8 };
    const float *logits = conformance_upload(c, make_logits(c, N, EXPERTS), (size_t)N * EXPERTS),
                *factors = conformance_random(c, EXPERTS, 3);
    for (int scoring = SN_ROUTER_SOFTMAX; scoring <= SN_ROUTER_SIGMOID; scoring++) {
        int mark = c->n_buffers;
        sn_moe_router r = {EXPERTS, K, (sn_router_scoring)scoring, NULL, true, 1.5f, 0, 0, NULL, 0};
        int32_t *ids[] = {conformance_bytes(c, N * K * sizeof **ids), conformance_bytes(c, N * K * sizeof **ids)};
        float *weights[] = {conformance_bytes(c, N * K * sizeof **weights),
                            conformance_bytes(c, N * K * sizeof **weights)};
        CONFORMANCE_OK(c, c->device->ops->moe_gate(c->device, N, &r, logits, ids[0], weights[0], &c->err));
        r.factors = conformance_upload(c, factors, EXPERTS);
        CONFORMANCE_OK(c, c->device->ops->moe_gate(c->device, N, &r, logits, ids[1], weights[1], &c->err));
        const int32_t *chosen[] = {download_bytes(c, ids[0], N * K * sizeof **ids),
                                   download_bytes(c, ids[1], N * K * sizeof **ids)};
        const float *plain = conformance_download(c, weights[0], N * K),
                    *got = conformance_download(c, weights[1], N * K);
        for (int i = 0; i < N * K; i++) {
            double want = (double)plain[i] * (double)factors[chosen[0][i]];
            CONFORMANCE_CHECK(c, chosen[0][i] == chosen[1][i], "pair %d is of another expert", i);
            CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, fabs(want) * 4 * CONFORMANCE_EPSILON),
                              "weight %d is %g, not %g", i, (double)got[i], want);
        }
        conformance_release(c, mark);
    }
}

/* An expert with a negative correction is chosen by its score, as one with a positive score is not. */
void conformance_moe_gate_weighs_without_the_correction(conformance *c) {
    static const float logits[4] = {3, -4, 1, -5}, corrections[4] = {-2, 0.5f, -1.5f, -0.1f};
    const sn_moe_router r = {4, 2, SN_ROUTER_SIGMOID, conformance_upload(c, corrections, 4), false, 2, 0, 0, NULL, 0};
    int32_t *ids = conformance_bytes(c, 2 * sizeof *ids);
    float *weights = conformance_bytes(c, 2 * sizeof *weights);
    CONFORMANCE_OK(c,
                   c->device->ops->moe_gate(c->device, 1, &r, conformance_upload(c, logits, 4), ids, weights, &c->err));
    const int32_t *got = download_bytes(c, ids, 2 * sizeof *got);
    const float *shares = conformance_download(c, weights, 2);
    CONFORMANCE_CHECK(c, got[0] == 1 && got[1] == 3, "experts %d and %d were chosen, not 1 and 3", (int)got[0],
                      (int)got[1]);
    for (int j = 0; j < 2; j++)
        CONFORMANCE_CHECK(c, conformance_close((double)shares[j], 2 / (1 + exp(-(double)logits[got[j]])), 1e-7),
                          "weight %d is %g", j, (double)shares[j]);
}

static void try_nan_in_gate(conformance *c, bool sigmoid) {
    enum { N = 3, EXPERTS = 70, K = 8 };
    float *logits = make_logits(c, N, EXPERTS);
    for (int e = 0; e < EXPERTS; e++) logits[EXPERTS + e] = NAN;
    int32_t *ids = conformance_bytes(c, N * K * sizeof *ids);
    float *weights = conformance_bytes(c, N * K * sizeof *weights);
    float *device_logits = conformance_upload(c, logits, (size_t)N * EXPERTS);
    const sn_moe_router by_softmax = {EXPERTS, K, SN_ROUTER_SOFTMAX, NULL, false, 1, 0, 0, NULL, 0},
                        by_sigmoid = {EXPERTS, K, SN_ROUTER_SIGMOID, device_logits, true, 1, 0, 0, NULL, 0};
    CONFORMANCE_OK(c, c->device->ops->moe_gate(c->device, N, sigmoid ? &by_sigmoid : &by_softmax, device_logits, ids,
                                               weights, &c->err));
    const int32_t *got = download_bytes(c, ids, N * K * sizeof *got);
    const float *shares = conformance_download(c, weights, (size_t)N * K);
    for (int p = 0; p < N * K; p++) {
        CONFORMANCE_CHECK(c, got[p] >= 0 && got[p] < EXPERTS, "pair %d is of expert %d", p, (int)got[p]);
        for (int q = p / K * K; q < p; q++)
            CONFORMANCE_CHECK(c, got[q] != got[p], "row %d takes expert %d twice", p / K, (int)got[p]);
        CONFORMANCE_CHECK(c, isnan(shares[p]) == (p / K == 1), "weight %d is %g", p, (double)shares[p]);
    }
}

void conformance_moe_gate_keeps_nan_in_its_row(conformance *c) {
    try_nan_in_gate(c, false);
    try_nan_in_gate(c, true);
}

/* -- the experts' matrices */

typedef struct stack {
    sn_experts experts;
    conformance_weight *each;
} stack;

static stack random_experts(conformance *c, sn_dtype dtype, int n, size_t rows, size_t cols) {
    stack s = {.experts.n = n, .each = conformance_heap(c, (size_t)n * sizeof *s.each)};
    char *all = NULL;
    for (int e = 0; e < n; e++) {
        s.each[e] = conformance_random_weight(c, dtype, rows, cols, (uint64_t)(e * 31) + rows);
        const sn_weight *w = &s.each[e].weight;
        if (!e) s.experts.first = *w;
        if (!e) s.experts.stride = (w->bytes + 127) / 64 * 64; /* with a gap between two experts */
        if (!e) all = conformance_bytes(c, (size_t)n * s.experts.stride);
        const void *image = download_bytes(c, w->device, w->bytes);
        CONFORMANCE_OK(c,
                       c->device->ops->upload(c->device, all + (size_t)e * s.experts.stride, image, w->bytes, &c->err));
    }
    s.experts.first.device = all;
    return s;
}

static void check_moe_linear(conformance *c, const selection *o, bool each, const float *x, const stack *s,
                             const float *bias, const float *y) {
    size_t rows = s->experts.first.rows, cols = s->experts.first.cols;
    bool eight_bits = c->eight_bit_rows && sn_dtype_quantised(s->experts.first.dtype);
    for (int p = 0; p < o->n * o->k; p++) {
        if (o->ids[p] < 0) continue;
        const conformance_weight *w = &s->each[o->ids[p]];
        const float *row = x + (size_t)(each ? p : p / o->k) * cols;
        for (size_t r = 0; r < rows; r++) {
            double want = bias ? (double)bias[(size_t)o->ids[p] * rows + r] : 0, size = fabs(want), error = 0;
            for (size_t i = 0; i < cols; i++) {
                double most = 0;
                for (size_t g = i / 32 * 32; eight_bits && g < i / 32 * 32 + 32 && g < cols; g++)
                    most = fmax(most, fabs((double)row[g]));
                want += (double)row[i] * w->values[r * cols + i];
                size += fabs((double)row[i]) * w->sizes[r * cols + i];
                error += (c->linear_rounding * fabs((double)row[i]) + most / 254 * 1.001) * w->sizes[r * cols + i];
            }
            error += size * (double)(cols + 8) * CONFORMANCE_EPSILON;
            float got = y[(size_t)p * rows + r];
            CONFORMANCE_CHECK(c, conformance_close((double)got, want, error),
                              "%s (%zu, %zu): pair %d of %d x %d, output %zu is %g, not %g +- %g",
                              sn_dtype_name(s->experts.first.dtype), rows, cols, p, o->n, o->k, r, (double)got, want,
                              error);
        }
    }
}

/* A selection in which counts[e] of n rows choose expert e, in no order, and some pairs have none. */
static selection select_counts(conformance *c, int n, int n_experts, const int *counts, int k) {
    size_t pairs = (size_t)(n * k);
    selection o = {n, n_experts, k, conformance_heap(c, pairs * sizeof(int32_t)), NULL, {0}};
    for (size_t i = 0; i < pairs; i++) o.ids[i] = -1;
    for (int e = 0, at = 0; e < n_experts; e++)
        for (int i = 0; i < counts[e]; i++, at++) {
            int row = at % n * 50 % n; /* n and 50 have no common divisor: other rows up to n pairs later */
            o.ids[row * k + (at / n + row) % k] = e;
        }
    o.device = (sn_moe_selection){n, n_experts, k, upload_bytes(c, o.ids, pairs * sizeof *o.ids), NULL};
    return o;
}

static void try_moe_linear(conformance *c, sn_dtype dtype, int n, int n_experts, int k, size_t rows, size_t cols,
                           bool each) {
    int mark = c->n_buffers;
    stack s[2] = {random_experts(c, dtype, n_experts, rows, cols), random_experts(c, SN_F32, n_experts, 3, cols)};
    selection o = select_plainly(c, n, n_experts, k, make_logits(c, n, n_experts));
    size_t n_x = (size_t)(each ? n * k : n) * cols, pairs = (size_t)(n * k);
    float *x = conformance_random(c, n_x, 7), *bias = conformance_random(c, (size_t)n_experts * rows, 8);
    const sn_moe_linear routed[] = {{&s[0].experts, conformance_upload(c, bias, (size_t)n_experts * rows),
                                     conformance_bytes(c, pairs * rows * sizeof(float))},
                                    {&s[1].experts, NULL, conformance_bytes(c, pairs * 3 * sizeof(float))}};
    CONFORMANCE_OK(
        c, c->device->ops->moe_linear(c->device, &o.device, each, conformance_upload(c, x, n_x), 2, routed, &c->err));
    check_moe_linear(c, &o, each, x, &s[0], bias, conformance_download(c, routed[0].y, pairs * rows));
    check_moe_linear(c, &o, each, x, &s[1], NULL, conformance_download(c, routed[1].y, pairs * 3));
    conformance_release(c, mark);
}

void conformance_moe_linear_of_every_type(conformance *c) {
    enum { WIDE = 1280 };
    conformance_prepare(c, &(sn_device_limits){.rows = 80, .width = WIDE, .experts = 128, .experts_used = 8});
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t block = sn_dtype_block(dtype), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        try_moe_linear(c, dtype, 1, 5, 2, 33, cols, t % 2);
        try_moe_linear(c, dtype, 9, 4, 3, 16, block == 1 ? 7 : block, !(t % 2));
        if (dtype == SN_F16 || dtype == SN_Q4_K) try_moe_linear(c, dtype, 20, 3, 2, 40, WIDE, t % 2);
        if (t % 4 == 0) try_moe_linear(c, dtype, 70, 3, 2, 5, cols, t % 8); /* more pairs than rows were prepared */
    }
}

/* Experts of no, one, a few and many pairs; pairs without an expert keep what stood there. Rows of x are
 * not rounded to 16 bits, which shows where the weights have no more. */
static void try_counts(conformance *c, sn_dtype dtype, int most, size_t rows, size_t cols, bool each) {
    enum { EXPERTS = 7, K = 2 };
    const int counts[EXPERTS] = {1, most, 0, 17, 7, 15, 16};
    int mark = c->n_buffers;
    double rounding = c->linear_rounding;
    stack s = random_experts(c, dtype, EXPERTS, rows, cols);
    selection o = select_counts(c, most + 3, EXPERTS, counts, K);
    size_t pairs = (size_t)(o.n * K), n_x = (each ? pairs : (size_t)o.n) * cols;
    float *x = conformance_random(c, n_x, 7), *bias = conformance_random(c, EXPERTS * rows, 8);
    float *before = conformance_random(c, pairs * rows, 9), *y = conformance_upload(c, before, pairs * rows);
    const sn_moe_linear routed = {&s.experts, each ? conformance_upload(c, bias, EXPERTS * rows) : NULL, y};
    CONFORMANCE_OK(
        c, c->device->ops->moe_linear(c->device, &o.device, each, conformance_upload(c, x, n_x), 1, &routed, &c->err));
    float *got = conformance_download(c, y, pairs * rows);
    if (dtype == SN_BF16) c->linear_rounding = fmin(rounding, 0x1p-16 * 1.01);
    check_moe_linear(c, &o, each, x, &s, each ? bias : NULL, got);
    c->linear_rounding = rounding;
    for (size_t i = 0; i < pairs * rows; i++)
        CONFORMANCE_CHECK(c, o.ids[i / rows] >= 0 || got[i] == before[i], "pair %zu has no expert, and was written",
                          i / rows);
    conformance_release(c, mark);
}

void conformance_moe_linear_of_many_rows_for_an_expert(conformance *c) {
    conformance_prepare(c, &(sn_device_limits){.rows = 133, .width = 512, .experts = 8, .experts_used = 2});
    for (int t = 0; t < test_n_weight_types; t++) {
        size_t block = sn_dtype_block(test_weight_types[t]), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        bool all = t % 4 == 0; /* several tiles in both directions; their loops are the same for all types */
        try_counts(c, test_weight_types[t], all ? 130 : 60, all ? 67 : 35, cols, t % 2);
        if (block == 1) try_counts(c, test_weight_types[t], 130, 5, 7, !(t % 2));
    }
}

void conformance_moe_linear_of_nothing(conformance *c) {
    stack s = random_experts(c, SN_Q8_0, 2, 3, 32);
    float mark = 5, *y = conformance_upload(c, &mark, 1);
    int32_t *ids = conformance_bytes(c, sizeof *ids);
    const sn_moe_selection none = {0, 2, 1, ids, y};
    const sn_moe_router router = {.n_experts = 2, .k = 1, .scale = 1};
    CONFORMANCE_OK(c, c->device->ops->moe_gate(c->device, 0, &router, y, ids, y, &c->err));
    CONFORMANCE_OK(
        c, c->device->ops->moe_linear(c->device, &none, false, y, 1, &(sn_moe_linear){&s.experts, NULL, y}, &c->err));
    CONFORMANCE_OK(
        c, c->device->ops->moe_linear(c->device, &(sn_moe_selection){1, 2, 1, ids, y}, false, y, 0, NULL, &c->err));
    CONFORMANCE_OK(c, c->device->ops->moe_combine(c->device, &none, 3, y, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->moe_linear_grad(c->device, &none, false, y, &s.experts, false, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->moe_combine_grad(c->device, &none, 3, y, y, y, y, &c->err));
    CONFORMANCE_OK(c, c->device->ops->moe_gate_grad(c->device, &none, &router, y, y, y, &c->err));
    CONFORMANCE_CHECK(c, *conformance_download(c, y, 1) == 5, "a call of no rows wrote something");
}

void conformance_moe_combine_adds_up_in_order(conformance *c) {
    static const int shapes[][3] = {{1, 1, 1}, {3, 2, 7}, {5, 8, 64}, {33, 3, 100}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int mark = c->n_buffers, n = shapes[i][0], k = shapes[i][1], width = shapes[i][2];
        selection o = select_plainly(c, n, 9, k, make_logits(c, n, 9));
        float *x = conformance_random(c, (size_t)(n * k * width), 3),
              *y = conformance_bytes(c, (size_t)(n * width) * sizeof *y);
        CONFORMANCE_OK(c, c->device->ops->moe_combine(c->device, &o.device, width,
                                                      conformance_upload(c, x, (size_t)(n * k * width)), y, &c->err));
        float *got = conformance_download(c, y, (size_t)(n * width));
        for (int e = 0; e < n * width; e++) {
            double want = 0, size = 0;
            for (int j = 0; j < k; j++) {
                double part = o.weights[e / width * k + j] * (double)x[(e / width * k + j) * width + e % width];
                want += part;
                size += fabs(part);
            }
            CONFORMANCE_CHECK(c, conformance_close((double)got[e], want, size * (k + 4) * CONFORMANCE_EPSILON),
                              "%d of width %d: element %d is %g, not %g", k, width, e, (double)got[e], want);
        }
        conformance_release(c, mark);
    }
}

/* -- a matrix for each head */

/* y = x . matrix^T of the head, and the elements of x behind the matrix's columns, which are copied. */
static void try_head_linear(conformance *c, sn_dtype dtype, int n, int heads, size_t rows, size_t cols, size_t rest) {
    int mark = c->n_buffers;
    stack s = random_experts(c, dtype, heads, rows, cols);
    size_t pairs = (size_t)(n * heads), x_width = cols + rest, y_width = rows + rest;
    float *x = conformance_random(c, pairs * x_width, 7), *own = conformance_heap(c, pairs * cols * sizeof *own),
          *first = conformance_heap(c, pairs * rows * sizeof *first);
    float *y = conformance_bytes(c, pairs * y_width * sizeof *y);
    int32_t *ids = conformance_heap(c, pairs * sizeof *ids);
    CONFORMANCE_OK(c, c->device->ops->head_linear(c->device, n, conformance_upload(c, x, pairs * x_width), (int)x_width,
                                                  &s.experts, y, &c->err));
    float *got = conformance_download(c, y, pairs * y_width);
    for (size_t p = 0; p < pairs; p++) {
        ids[p] = (int32_t)(p % (size_t)heads);
        memcpy(own + p * cols, x + p * x_width, cols * sizeof *own);
        memcpy(first + p * rows, got + p * y_width, rows * sizeof *first);
        CONFORMANCE_CHECK(c, !memcmp(got + p * y_width + rows, x + p * x_width + cols, rest * sizeof *x),
                          "the last %zu elements of head %zu are not copied", rest, p);
    }
    const selection all = {.n = (int)pairs, .k = 1, .n_experts = heads, .ids = ids};
    check_moe_linear(c, &all, true, own, &s, NULL, first);
    conformance_release(c, mark);
}

void conformance_head_linear_of_every_type(conformance *c) {
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t block = sn_dtype_block(dtype), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        try_head_linear(c, dtype, 1, 3, 33, cols, 5);
        try_head_linear(c, dtype, 19, 2, 16, block == 1 ? 7 : block, 0);
        if (block == 1) try_head_linear(c, dtype, 8, 2, 200, 12, 64);
    }
    stack s = random_experts(c, SN_F32, 1, 4, 8);
    CONFORMANCE_CHECK(c, c->device->ops->head_linear(c->device, 1, NULL, 7, &s.experts, NULL, &c->err) == SN_REFUSED,
                      "a head of seven elements has a matrix of eight columns");
    CONFORMANCE_OK(c, c->device->ops->head_linear(c->device, 0, NULL, 8, &s.experts, NULL, &c->err));
}

/* -- gradients */

static const double step = 1e-4;

static void expect_grad(conformance *c, const char *name, size_t i, double got, double want, double size) {
    double error = size * (step * step * 4 + 1e-11 + 64 * CONFORMANCE_EPSILON);
    CONFORMANCE_CHECK(c, conformance_close(got, want, error), "%s: gradient %zu is %g, not %g +- %g", name, i, got,
                      want, error);
}

/* sum(dw * weights) of the selected experts. */
static double moe_gate_formula(const sn_moe_router *r, const double *logits, const int32_t *ids, const float *dw) {
    bool sigmoid = r->scoring == SN_ROUTER_SIGMOID;
    double sum = 0, total = 0, shares[SN_EXPERTS_USED_MAX];
    for (int j = 0; j < r->k; j++) {
        shares[j] = sigmoid ? 1 / (1 + exp(-logits[ids[j]])) : exp(logits[ids[j]] - logits[ids[0]]);
        if (r->scoring != SN_ROUTER_SOFTMAX_ALL) sum += shares[j];
    }
    for (int e = 0; e < r->n_experts && r->scoring == SN_ROUTER_SOFTMAX_ALL; e++)
        sum += exp(logits[e] - logits[ids[0]]);
    if (sigmoid) sum = r->normalised ? sum + (double)r->sum_offset : 1;
    for (int j = 0; j < r->k; j++) total += (double)dw[j] * shares[j] * (double)r->scale / sum;
    return total;
}

static void try_moe_gate_grad(conformance *c, int n, const sn_moe_router *r) {
    int mark = c->n_buffers, n_experts = r->n_experts, k = r->k;
    float *logits = conformance_random(c, (size_t)(n * n_experts), 1), *dw = conformance_random(c, (size_t)(n * k), 2);
    selection o = make_selection(c, n, r, logits);
    const sn_moe_router own = router_on_device(c, r);
    float *in_place = conformance_upload(c, logits, (size_t)(n * n_experts));
    CONFORMANCE_OK(c, c->device->ops->moe_gate_grad(c->device, &o.device, &own, in_place,
                                                    conformance_upload(c, dw, (size_t)(n * k)), in_place, &c->err));
    float *got = conformance_download(c, in_place, (size_t)(n * n_experts));
    for (int i = 0; i < n; i++) {
        double x[SN_EXPERTS_MAX];
        for (int e = 0; e < n_experts; e++) x[e] = (double)logits[i * n_experts + e];
        for (int e = 0; e < n_experts; e++) {
            double at = x[e];
            x[e] = at + step;
            double high = moe_gate_formula(r, x, o.ids + i * k, dw + i * k);
            x[e] = at - step;
            double low = moe_gate_formula(r, x, o.ids + i * k, dw + i * k);
            x[e] = at;
            expect_grad(c, "route", (size_t)(i * n_experts + e), (double)got[i * n_experts + e],
                        (high - low) / (2 * step), 4 * (double)r->scale);
        }
    }
    conformance_release(c, mark);
}

void conformance_moe_gate_grad_by_differences(conformance *c) {
    with_routers(c, 1, 1, 1, try_moe_gate_grad);
    with_routers(c, 5, 6, 2, try_moe_gate_grad);
    with_routers(c, 3, 70, 8, try_moe_gate_grad);
}

static void try_moe_linear_grad(conformance *c, sn_dtype dtype, int n, int n_experts, int k, size_t rows, size_t cols,
                                bool each, bool grow) {
    int mark = c->n_buffers;
    stack s = random_experts(c, dtype, n_experts, rows, cols);
    selection o = select_plainly(c, n, n_experts, k, make_logits(c, n, n_experts));
    size_t pairs = (size_t)(n * k), results = each ? pairs : (size_t)n, per = pairs / results;
    float *dy = conformance_random(c, pairs * rows, 5), *before = conformance_random(c, results * cols, 6);
    float *dx = conformance_upload(c, before, results * cols);
    CONFORMANCE_OK(c,
                   c->device->ops->moe_linear_grad(c->device, &o.device, each, conformance_upload(c, dy, pairs * rows),
                                                   &s.experts, grow, dx, &c->err));
    float *got = conformance_download(c, dx, results * cols);
    for (size_t i = 0; i < results * cols; i++) {
        double want = grow ? (double)before[i] : 0, size = fabs(want);
        for (size_t p = i / cols * per; p < (i / cols + 1) * per; p++)
            for (size_t r = 0; r < rows; r++) {
                const conformance_weight *w = &s.each[o.ids[p]];
                want += (double)dy[p * rows + r] * w->values[r * cols + i % cols];
                size += fabs((double)dy[p * rows + r]) * w->sizes[r * cols + i % cols];
            }
        double error = size * ((double)(rows * per + 8) * CONFORMANCE_EPSILON + c->linear_rounding * 2);
        CONFORMANCE_CHECK(c, conformance_close((double)got[i], want, error),
                          "%s (%zu, %zu), %d x %d: dx[%zu] is %g, not %g +- %g", sn_dtype_name(dtype), rows, cols, n, k,
                          i, (double)got[i], want, error);
    }
    conformance_release(c, mark);
}

void conformance_moe_linear_grad_of_every_type(conformance *c) {
    for (int t = 0; t < test_n_weight_types; t++) {
        sn_dtype dtype = test_weight_types[t];
        size_t block = sn_dtype_block(dtype), cols = block == 1 ? 100 : block == 32 ? 96 : 256;
        try_moe_linear_grad(c, dtype, 1, 3, 2, 33, cols, t % 2, false);
        try_moe_linear_grad(c, dtype, 9, 4, 3, 5, block == 1 ? 7 : block, !(t % 2), true);
    }
}

/* y is linear in x and in the weights: their gradients are products. */
void conformance_moe_combine_grad_by_differences(conformance *c) {
    static const int shapes[][3] = {{1, 1, 1}, {3, 2, 7}, {5, 8, 64}, {3, 3, 100}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int mark = c->n_buffers, n = shapes[i][0], k = shapes[i][1], width = shapes[i][2], pairs = n * k;
        selection o = select_plainly(c, n, 9, k, make_logits(c, n, 9));
        float *x = conformance_random(c, (size_t)(pairs * width), 3),
              *dy = conformance_random(c, (size_t)(n * width), 4);
        float *in_place = conformance_upload(c, x, (size_t)(pairs * width));
        float *dweights = conformance_bytes(c, (size_t)pairs * sizeof(float));
        CONFORMANCE_OK(c, c->device->ops->moe_combine_grad(c->device, &o.device, width, in_place,
                                                           conformance_upload(c, dy, (size_t)(n * width)), in_place,
                                                           dweights, &c->err));
        float *dx = conformance_download(c, in_place, (size_t)(pairs * width));
        float *dw = conformance_download(c, dweights, (size_t)pairs);
        for (int p = 0; p < pairs; p++) {
            double want = 0;
            for (int e = 0; e < width; e++) {
                double d = (double)dy[p / k * width + e];
                want += d * (double)x[p * width + e];
                expect_grad(c, "combine", (size_t)(p * width + e), (double)dx[p * width + e], o.weights[p] * d, 1);
            }
            expect_grad(c, "combine's weights", (size_t)p, (double)dw[p], want, width);
        }
        conformance_release(c, mark);
    }
}

/* -- batches */

/* The same batch for other rows, which select other experts: a recorded batch follows them. */
static void try_recorded_experts(conformance *c, size_t n) {
    enum { EXPERTS = 5, K = 2, ROWS = 9, COLS = 32 };
    const sn_kv_shape shape = {1, 1, 16, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};
    stack s = random_experts(c, SN_Q8_0, EXPERTS, ROWS, COLS);
    float *x = conformance_random(c, n * COLS, 7), *device_x = conformance_upload(c, x, n * COLS);
    float *logits = conformance_bytes(c, n * EXPERTS * sizeof *logits),
          *weights = conformance_bytes(c, n * K * sizeof *weights);
    float *each = conformance_bytes(c, n * K * ROWS * sizeof *each), *y = conformance_bytes(c, n * ROWS * sizeof *y);
    int32_t *ids = conformance_bytes(c, n * K * sizeof *ids);
    void *page = conformance_bytes(c, c->device->ops->kv_page_bytes(c->device, &shape));
    const sn_sequence sequence = {.pages = &page, .n_rows = (int)n};
    const sn_batch pass = {&shape, (int)n, 1, &sequence, 77 + (uint64_t)n};
    const sn_moe_selection now = {(int)n, EXPERTS, K, ids, weights};
    const sn_moe_linear routed = {&s.experts, NULL, each};
    const sn_moe_router router = {.n_experts = EXPERTS, .k = K, .scale = 1};
    const sn_device_ops *ops = c->device->ops;
    for (int turn = 0; turn < 4; turn++) {
        float *own = conformance_random(c, n * EXPERTS, 100 + (uint64_t)turn);
        for (size_t i = 0; i < n; i++) own[i * EXPERTS + (size_t)turn] += 1; /* most rows choose it */
        selection want = select_plainly(c, (int)n, EXPERTS, K, own);
        bool recorded = false;
        CONFORMANCE_OK(c, ops->upload(c->device, logits, own, n * EXPERTS * sizeof *own, &c->err));
        CONFORMANCE_OK(c, ops->batch_begin(c->device, &pass, &recorded, &c->err));
        if (!recorded) {
            CONFORMANCE_OK(c, ops->moe_gate(c->device, (int)n, &router, logits, ids, weights, &c->err));
            CONFORMANCE_OK(c, ops->moe_linear(c->device, &now, false, device_x, 1, &routed, &c->err));
            CONFORMANCE_OK(c, ops->moe_combine(c->device, &now, ROWS, each, y, &c->err));
        }
        CONFORMANCE_OK(c, ops->batch_end(c->device, &c->err));
        check_moe_linear(c, &want, false, x, &s, NULL, conformance_download(c, each, n * K * ROWS));
        float *all = conformance_download(c, y, n * ROWS), *parts = conformance_download(c, each, n * K * ROWS);
        for (int i = 0; i < (int)n * ROWS; i++) {
            double sum = 0;
            for (int j = 0; j < K; j++)
                sum += want.weights[i / ROWS * K + j] * (double)parts[(i / ROWS * K + j) * ROWS + i % ROWS];
            CONFORMANCE_CHECK(c, conformance_close((double)all[i], sum, 1e-4), "turn %d: element %d is %g, not %g",
                              turn, i, (double)all[i], sum);
        }
    }
}

void conformance_a_recorded_batch_follows_its_experts(conformance *c) {
    try_recorded_experts(c, 2);
    try_recorded_experts(c, 30);
}
