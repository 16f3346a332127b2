/* Mixtures of experts: argument checks and kernel launches. */
#include "device/xpu/xpu_private.h"

#include "device/backends.h"

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
    sn_xpu_arg args[] = {SN_XPU_ARG(router->n_experts),
                         SN_XPU_ARG(router->k),
                         SN_XPU_ARG(scoring),
                         SN_XPU_ARG(router->correction),
                         SN_XPU_ARG(normalised),
                         SN_XPU_ARG(router->scale),
                         SN_XPU_ARG(router->n_groups),
                         SN_XPU_ARG(router->n_groups_used),
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

static sn_status moe_linear_one(sn_xpu *xpu, const sn_moe_selection *c, bool per_expert, const float *x,
                                const sn_moe_linear *r, sn_err *err) {
    sn_xpu_layout layout;
    const sn_weight *w = &r->experts->first;
    sn_status status = moe_begin(xpu, r->experts, &layout, err);
    uint64_t stride = r->experts->stride, highs = layout.highs, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, by_pair = per_expert;
    sn_xpu_arg args[] = {SN_XPU_ARG(w->device), SN_XPU_ARG(highs),  SN_XPU_ARG(scales), SN_XPU_ARG(supers),
                         SN_XPU_ARG(stride),    SN_XPU_ARG(rows),   SN_XPU_ARG(cols),   SN_XPU_ARG(c->k),
                         SN_XPU_ARG(by_pair),   SN_XPU_ARG(c->ids), SN_XPU_ARG(x),      SN_XPU_ARG(r->bias),
                         SN_XPU_ARG(r->y)};
    if (status) return status;
    return sn_xpu_launch(xpu, xpu->linear[layout.form].moe_linear, rows, (size_t)c->n * (size_t)c->k, COUNT(args), args,
                         err);
}

sn_status sn_xpu_moe_linear(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *x, int n_linears,
                            const sn_moe_linear *linears, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = check_selection(c, err);
    if (!status) status = sn_xpu_check_alive(xpu, err);
    for (int i = 0; i < n_linears && c->n > 0 && !status; i++) {
        if (linears[i].experts->first.cols != linears[0].experts->first.cols || linears[i].experts->n != c->n_experts)
            return sn_fail(err, SN_REFUSED,
                           "matrices with different numbers of experts or of columns cannot share an input");
        status = moe_linear_one(xpu, c, per_expert, x, &linears[i], err);
    }
    return status;
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
