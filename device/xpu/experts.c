/* Mixtures of experts: argument checks and kernel launches. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))
enum { ITEMS = 64 };

static size_t groups_of(size_t n, size_t size) { return (n + size - 1) / size; }

static sn_status check_selection(const sn_moe_selection *c, sn_err *err) {
    bool possible = c->n_experts >= 1 && c->n_experts <= SN_EXPERTS_MAX && c->k >= 1 && c->k <= SN_EXPERTS_USED_MAX;
    if (possible && (c->n <= 0 || (size_t)c->n * (size_t)c->k <= INT32_MAX)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d rows through %d of %d experts are not possible on an xpu", c->n, c->k,
                   c->n_experts);
}

sn_status sn_xpu_moe_gate(sn_device *d, int n, const sn_moe_router *router, const float *logits, int32_t *ids,
                          float *weights, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_moe_selection c = {.n = n, .n_experts = router->n_experts, .k = router->k};
    uint32_t scoring = (uint32_t)router->scoring, normalised = router->normalised;
    const float offset = sn_router_offset(router);
    sn_xpu_arg args[] = {SN_XPU_ARG(router->n_experts),
                         SN_XPU_ARG(router->k),
                         SN_XPU_ARG(scoring),
                         SN_XPU_ARG(router->correction),
                         SN_XPU_ARG(normalised),
                         SN_XPU_ARG(router->scale),
                         SN_XPU_ARG(router->n_groups),
                         SN_XPU_ARG(router->n_groups_used),
                         SN_XPU_ARG(offset),
                         SN_XPU_ARG(router->factors),
                         SN_XPU_ARG(logits),
                         SN_XPU_ARG(ids),
                         SN_XPU_ARG(weights)};
    sn_status status = check_selection(&c, err);
    if (!status && router->k > router->n_experts)
        status = sn_fail(err, SN_REFUSED, "%d of %d experts cannot be chosen", router->k, router->n_experts);
    if (!status) status = sn_device_check_groups(router, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status || n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_moe_gate], (size_t)n, 1, COUNT(args), args, err);
}

/* Computes the layout of one expert, loads its kernels, and queues a barrier. */
static sn_status moe_begin(sn_xpu *xpu, const sn_experts *experts, sn_xpu_layout *layout, sn_err *err) {
    const sn_weight *w = &experts->first;
    sn_status status = sn_xpu_layout_of(w->dtype, w->rows, w->cols, layout, err);
    if (!status) status = sn_xpu_load_linear(xpu, layout->form, err);
    return status ? status : sn_xpu_barrier(xpu, err);
}

/* -- products: kernels as those of linear (linear.c), in 8 bits for any number of rows, for pairs of a row and an
 * expert. With more pairs than experts some share one: pairs are grouped, and a chunk of them reads its expert once. */

enum { CHUNK_PAIRS = 8 }; /* as in block.cl */

static size_t chunks_of(size_t pairs, size_t experts) { return pairs / CHUNK_PAIRS + sn_min_size(experts, pairs); }
/* The chunks lie before the order. */
static size_t groups_bytes(size_t pairs, size_t experts) { return chunks_of(pairs, experts) * 16 + pairs * 4; }

size_t sn_xpu_groups_bytes(const sn_device_limits *l) {
    return groups_bytes((size_t)l->rows * (size_t)l->experts_used, (size_t)l->experts);
}

/* How the pairs of a selection are computed. */
typedef struct moe_pairs {
    size_t n, groups; /* groups: of kernels in y */
    bool grouped;
    uint32_t per_row; /* pairs that share a row of x */
    const int32_t *ids, *order;
    const void *chunks;
} moe_pairs;

/* Reserves the memory of the groups. */
static sn_status pairs_of(sn_xpu *xpu, const sn_moe_selection *c, bool per_expert, moe_pairs *out, sn_err *err) {
    const size_t n = (size_t)c->n * (size_t)c->k, experts = (size_t)c->n_experts;
    *out = (moe_pairs){n, n, n > experts, per_expert ? 1 : (uint32_t)c->k, c->ids, NULL, NULL};
    if (!out->grouped) return SN_OK;
    sn_status status = sn_xpu_buffer_reserve(xpu, &xpu->groups, groups_bytes(n, experts), err);
    if (status) return status;
    out->groups = chunks_of(n, experts);
    out->chunks = xpu->groups.device;
    out->order = (const int32_t *)((const uint8_t *)xpu->groups.device + out->groups * 16);
    return SN_OK;
}

/* Behind a barrier. */
static sn_status group_pairs(sn_xpu *xpu, const sn_moe_selection *c, const moe_pairs *pairs, sn_err *err) {
    uint32_t n = (uint32_t)pairs->n, chunks = (uint32_t)pairs->groups;
    sn_xpu_arg args[] = {SN_XPU_ARG(n),          SN_XPU_ARG(c->n_experts), SN_XPU_ARG(chunks),
                         SN_XPU_ARG(pairs->ids), SN_XPU_ARG(pairs->order), SN_XPU_ARG(pairs->chunks)};
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_moe_group], 1, 1, COUNT(args), args, err);
}

/* Up to SN_XPU_MATRICES matrices of one form, and the bytes from one expert to the next of each. */
typedef struct moe_matrices {
    int n;
    sn_xpu_form form;
    sn_xpu_matrix of[SN_XPU_MATRICES];
    uint64_t strides[4];
    uint32_t cols;
} moe_matrices;

static sn_status matrices_of(int n_linears, const sn_moe_linear *linears, moe_matrices *out, sn_err *err) {
    *out = (moe_matrices){.cols = (uint32_t)linears[0].experts->first.cols};
    for (; out->n < n_linears && out->n < SN_XPU_MATRICES; out->n++) {
        const sn_moe_linear *l = &linears[out->n];
        const sn_weight *w = &l->experts->first;
        sn_xpu_layout layout;
        sn_status status = sn_xpu_layout_of(w->dtype, w->rows, w->cols, &layout, err);
        if (status) return status;
        if (out->n > 0 && layout.form != out->form) break;
        out->form = layout.form;
        out->of[out->n] =
            (sn_xpu_matrix){w->device, {layout.highs, layout.scales, layout.supers, w->rows}, l->bias, l->y};
        out->strides[out->n] = l->experts->stride;
    }
    return SN_OK;
}

static sn_status launch_pairs(sn_xpu *xpu, const moe_pairs *p, const moe_matrices *m, bool dot, const float *x,
                              sn_err *err) {
    const sn_xpu_linear_kernels *plain = &xpu->linear[m->form];
    const sn_xpu_dot_kernels *dots = &xpu->dots[m->form];
    const sn_xpu_rows8 rows8 = sn_xpu_rows8_of(xpu, p->n / p->per_row, m->cols);
    size_t groups = 0;
    for (int i = 0; i < m->n; i++) groups += groups_of((size_t)m->of[i].at[3], SN_XPU_OUTPUTS);
    sn_xpu_arg args[4 * SN_XPU_MATRICES + 8];
    int n = sn_xpu_matrix_args(m->of, args);
    args[n++] = SN_XPU_ARG(m->strides);
    args[n++] = SN_XPU_ARG(p->per_row);
    args[n++] = SN_XPU_ARG(p->ids);
    args[n++] = SN_XPU_ARG(p->order);
    args[n++] = SN_XPU_ARG(p->chunks);
    args[n++] = SN_XPU_ARG(m->cols);
    args[n++] = dot ? SN_XPU_ARG(rows8.q) : SN_XPU_ARG(x);
    if (dot) args[n++] = SN_XPU_ARG(rows8.scales);
    const ze_kernel_handle_t by_pair = dot ? dots->moe1 : plain->moe_linear1,
                             by_chunk = dot ? dots->moe8 : plain->moe_linear8;
    return sn_xpu_launch(xpu, p->grouped ? by_chunk : by_pair, groups, p->groups, n, args, err);
}

/* What has been made of the input and the selection for earlier matrices of a call. */
typedef struct moe_made {
    bool rows8, groups, barrier;
} moe_made;

static sn_status make_input(sn_xpu *xpu, const sn_moe_selection *c, const moe_pairs *p, const float *x, size_t cols,
                            bool dot, moe_made *made, sn_err *err) {
    const bool rows8 = dot && !made->rows8, groups = p->grouped && !made->groups;
    sn_status status = SN_OK;
    if (rows8)
        status = sn_xpu_rows8_make(xpu, (int)(p->n / p->per_row), cols, x, err);
    else if (groups)
        status = sn_xpu_barrier(xpu, err);
    if (!status && groups) status = group_pairs(xpu, c, p, err);
    if (!status && (rows8 || groups || !made->barrier)) status = sn_xpu_barrier(xpu, err);
    *made = (moe_made){made->rows8 || rows8, true, true};
    return status;
}

static sn_status check_linears(sn_xpu *xpu, const sn_moe_selection *c, int n_linears, const sn_moe_linear *linears,
                               sn_err *err) {
    sn_status status = check_selection(c, err);
    if (!status) status = sn_xpu_check_alive(xpu, err);
    for (int i = 0; i < n_linears && !status; i++)
        if (linears[i].experts->first.cols != linears[0].experts->first.cols || linears[i].experts->n != c->n_experts)
            return sn_fail(err, SN_REFUSED,
                           "matrices with different numbers of experts or of columns cannot share an input");
    return status;
}

static bool dots_for(const sn_xpu *xpu, const sn_experts *experts) {
    return xpu->dp4a && sn_dtype_quantised(experts->first.dtype);
}

/* rows8: the input is there in 8 bits. */
static sn_status moe_run(sn_xpu *xpu, const sn_moe_selection *c, bool per_expert, const float *x, bool rows8,
                         int n_linears, const sn_moe_linear *linears, sn_err *err) {
    moe_pairs pairs;
    moe_made made = {.rows8 = rows8};
    sn_status status = pairs_of(xpu, c, per_expert, &pairs, err);
    for (int i = 0, count = 0; i < n_linears && !status; i += count) {
        moe_matrices m;
        status = matrices_of(n_linears - i, linears + i, &m, err);
        if (status) break;
        count = m.n;
        status = sn_xpu_load_dot(xpu, m.form, err);
        const bool dot = dots_for(xpu, linears[i].experts);
        if (!status && !dot) status = sn_xpu_load_linear(xpu, m.form, err);
        if (!status) status = make_input(xpu, c, &pairs, x, m.cols, dot, &made, err);
        if (!status) status = launch_pairs(xpu, &pairs, &m, dot, x, err);
    }
    return status;
}

sn_status sn_xpu_moe_linear(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *x, int n_linears,
                            const sn_moe_linear *linears, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = check_linears(xpu, c, n_linears, linears, err);
    return status || c->n <= 0 ? status : moe_run(xpu, c, per_expert, x, false, n_linears, linears, err);
}

sn_status sn_xpu_activate_moe_linear(sn_device *d, const sn_moe_selection *c, const sn_gated *p,
                                     const sn_moe_linear *linear, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_weight *w = &linear->experts->first;
    const size_t pairs = (size_t)c->n * (size_t)c->k;
    sn_xpu_layout layout;
    sn_xpu_rows8 rows = {0};
    sn_status status = check_linears(xpu, c, 1, linear, err);
    if (status || c->n <= 0) return status;
    status = sn_xpu_layout_of(w->dtype, w->rows, w->cols, &layout, err);
    if (!status) status = sn_xpu_load_dot(xpu, layout.form, err);
    if (!status && dots_for(xpu, linear->experts)) status = sn_xpu_rows8_reserve(xpu, pairs, w->cols, &rows, err);
    if (!status) status = sn_xpu_launch_activate(xpu, pairs * w->cols, p, rows, err);
    return status ? status : moe_run(xpu, c, true, p->y, rows.q, 1, linear, err);
}

sn_status sn_xpu_moe_combine(sn_device *d, const sn_moe_selection *c, int width, const float *x, float *y,
                             sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    uint64_t items = c->n > 0 ? (uint64_t)c->n * (uint64_t)width : 0;
    sn_xpu_arg args[] = {SN_XPU_ARG(items),      SN_XPU_ARG(c->k), SN_XPU_ARG(width),
                         SN_XPU_ARG(c->weights), SN_XPU_ARG(x),    SN_XPU_ARG(y)};
    sn_status status = sn_xpu_barrier(xpu, err);
    if (status || !items) return status;
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_moe_combine], groups_of((size_t)items, ITEMS), 1, COUNT(args), args,
                         err);
}

sn_status sn_xpu_moe_linear_grad(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *dy,
                                 const sn_experts *experts, bool accumulate, float *dx, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_layout layout;
    const sn_weight *w = &experts->first;
    sn_status status = check_selection(c, err);
    if (!status) status = moe_begin(xpu, experts, &layout, err);
    if (status || c->n <= 0) return status;
    uint64_t stride = experts->stride, highs = layout.highs, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, accumulates = accumulate,
             k = per_expert ? 1 : (uint32_t)c->k;
    size_t results = (size_t)c->n * (per_expert ? (size_t)c->k : 1);
    sn_xpu_arg args[] = {SN_XPU_ARG(w->device), SN_XPU_ARG(highs), SN_XPU_ARG(scales),      SN_XPU_ARG(supers),
                         SN_XPU_ARG(stride),    SN_XPU_ARG(rows),  SN_XPU_ARG(cols),        SN_XPU_ARG(k),
                         SN_XPU_ARG(c->ids),    SN_XPU_ARG(dy),    SN_XPU_ARG(accumulates), SN_XPU_ARG(dx)};
    return sn_xpu_launch(xpu, xpu->linear[layout.form].moe_linear_grad, groups_of(layout.steps, ITEMS), results,
                         COUNT(args), args, err);
}

static sn_status moe_grad_begin(sn_xpu *xpu, sn_err *err) {
    sn_status status = sn_xpu_load_grad(xpu, err);
    return status ? status : sn_xpu_barrier(xpu, err);
}

sn_status sn_xpu_moe_combine_grad(sn_device *d, const sn_moe_selection *c, int width, const float *x, const float *dy,
                                  float *dx, float *dweights, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = moe_grad_begin(xpu, err);
    sn_xpu_arg args[] = {SN_XPU_ARG(c->k), SN_XPU_ARG(width), SN_XPU_ARG(c->weights), SN_XPU_ARG(x),
                         SN_XPU_ARG(dy),   SN_XPU_ARG(dx),    SN_XPU_ARG(dweights)};
    if (status || c->n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_moe_combine_grad], (size_t)c->n * (size_t)c->k, 1, COUNT(args),
                         args, err);
}

sn_status sn_xpu_moe_gate_grad(sn_device *d, const sn_moe_selection *c, const sn_moe_router *router,
                               const float *logits, const float *dweights, float *dlogits, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = moe_grad_begin(xpu, err);
    uint32_t scoring = (uint32_t)router->scoring, normalised = router->normalised;
    sn_xpu_arg args[] = {SN_XPU_ARG(c->n_experts),  SN_XPU_ARG(c->k),   SN_XPU_ARG(scoring), SN_XPU_ARG(normalised),
                         SN_XPU_ARG(router->scale), SN_XPU_ARG(logits), SN_XPU_ARG(c->ids),  SN_XPU_ARG(c->weights),
                         SN_XPU_ARG(dweights),      SN_XPU_ARG(dlogits)};
    if (status || c->n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_moe_gate_grad], (size_t)c->n, 1, COUNT(args), args, err);
}
