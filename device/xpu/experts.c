/* Mixtures of experts: arguments to kernels. */
#include "device/xpu/xpu.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))
enum { ITEMS = 64 };

static size_t groups_of(size_t n, size_t size) { return (n + size - 1) / size; }

static sn_status check_choice(const sn_choice *c, sn_err *err) {
    bool possible = c->n_experts >= 1 && c->n_experts <= SN_EXPERTS_MAX && c->k >= 1 && c->k <= c->n_experts &&
                    c->k <= SN_EXPERTS_USED_MAX;
    if (possible && (c->n <= 0 || (size_t)c->n * (size_t)c->k <= INT32_MAX)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d rows through %d of %d experts are not possible on an xpu", c->n, c->k, c->n_experts);
}

sn_status sn_xpu_route(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                       float *weights, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_choice c = {.n = n, .n_experts = n_experts, .k = k};
    uint32_t all = over_all;
    sn_xpu_arg args[] = {SN_XPU_ARG(n_experts), SN_XPU_ARG(k),   SN_XPU_ARG(all),
                         SN_XPU_ARG(logits),    SN_XPU_ARG(ids), SN_XPU_ARG(weights)};
    sn_status status = check_choice(&c, err);
    if (!status) status = sn_xpu_order(xpu, err);
    if (status || n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_route], (size_t)n, 1, COUNT(args), args, err);
}

/* The layout of one expert; its kernels are there, and what follows comes after what was queued. */
static sn_status begin(sn_xpu *xpu, const sn_experts *experts, sn_xpu_layout *layout, sn_err *err) {
    const sn_weight *w = &experts->first;
    sn_status status = sn_xpu_layout_of(w->dtype, w->rows, w->cols, layout, err);
    if (!status) status = sn_xpu_load_linear(xpu, layout->form, err);
    return status ? status : sn_xpu_order(xpu, err);
}

static sn_status one_routed(sn_xpu *xpu, const sn_choice *c, bool each, const float *x, const sn_routed *r, sn_err *err) {
    sn_xpu_layout layout;
    const sn_weight *w = &r->experts->first;
    sn_status status = begin(xpu, r->experts, &layout, err);
    uint64_t stride = r->experts->stride, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, by_pair = each;
    sn_xpu_arg args[] = {SN_XPU_ARG(w->device), SN_XPU_ARG(stride),  SN_XPU_ARG(scales), SN_XPU_ARG(supers),
                         SN_XPU_ARG(rows),      SN_XPU_ARG(cols),    SN_XPU_ARG(c->k),   SN_XPU_ARG(by_pair),
                         SN_XPU_ARG(c->ids),    SN_XPU_ARG(x),       SN_XPU_ARG(r->bias), SN_XPU_ARG(r->y)};
    if (status) return status;
    return sn_xpu_launch(xpu, xpu->linear[layout.form].routed, rows, (size_t)c->n * (size_t)c->k, COUNT(args), args, err);
}

sn_status sn_xpu_linear_routed(sn_device *d, const sn_choice *c, bool each, const float *x, int n_routed,
                               const sn_routed *routed, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = check_choice(c, err);
    if (!status) status = sn_xpu_alive(xpu, err);
    for (int i = 0; i < n_routed && c->n > 0 && !status; i++) {
        if (routed[i].experts->first.cols != routed[0].experts->first.cols || routed[i].experts->n != c->n_experts)
            return sn_fail(err, SN_REFUSED, "experts of different numbers, or over rows of different widths, share no input");
        status = one_routed(xpu, c, each, x, &routed[i], err);
    }
    return status;
}

sn_status sn_xpu_combine(sn_device *d, const sn_choice *c, int width, const float *x, float *y, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    uint64_t items = c->n > 0 ? (uint64_t)c->n * (uint64_t)width : 0;
    sn_xpu_arg args[] = {SN_XPU_ARG(items),      SN_XPU_ARG(c->k), SN_XPU_ARG(width),
                         SN_XPU_ARG(c->weights), SN_XPU_ARG(x),    SN_XPU_ARG(y)};
    sn_status status = sn_xpu_order(xpu, err);
    if (status || !items) return status;
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_combine], groups_of((size_t)items, ITEMS), 1, COUNT(args), args, err);
}

sn_status sn_xpu_linear_routed_grad(sn_device *d, const sn_choice *c, bool each, const float *dy, const sn_experts *experts,
                                    bool grow, float *dx, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_layout layout;
    const sn_weight *w = &experts->first;
    sn_status status = check_choice(c, err);
    if (!status) status = begin(xpu, experts, &layout, err);
    if (status || c->n <= 0) return status;
    uint64_t stride = experts->stride, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, grows = grow, k = each ? 1 : (uint32_t)c->k;
    size_t results = (size_t)c->n * (each ? (size_t)c->k : 1);
    sn_xpu_arg args[] = {SN_XPU_ARG(w->device), SN_XPU_ARG(stride), SN_XPU_ARG(scales), SN_XPU_ARG(supers),
                         SN_XPU_ARG(rows),      SN_XPU_ARG(cols),   SN_XPU_ARG(k),      SN_XPU_ARG(c->ids),
                         SN_XPU_ARG(dy),        SN_XPU_ARG(grows),  SN_XPU_ARG(dx)};
    return sn_xpu_launch(xpu, xpu->linear[layout.form].routed_grad, groups_of(layout.steps, ITEMS), results, COUNT(args), args,
                         err);
}

static sn_status begin_grad(sn_xpu *xpu, sn_err *err) {
    sn_status status = sn_xpu_load_grad(xpu, err);
    return status ? status : sn_xpu_order(xpu, err);
}

sn_status sn_xpu_combine_grad(sn_device *d, const sn_choice *c, int width, const float *x, const float *dy, float *dx,
                              float *dweights, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = begin_grad(xpu, err);
    sn_xpu_arg args[] = {SN_XPU_ARG(c->k), SN_XPU_ARG(width), SN_XPU_ARG(c->weights), SN_XPU_ARG(x),
                         SN_XPU_ARG(dy),   SN_XPU_ARG(dx),    SN_XPU_ARG(dweights)};
    if (status || c->n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_combine_grad], (size_t)c->n * (size_t)c->k, 1, COUNT(args), args, err);
}

sn_status sn_xpu_route_grad(sn_device *d, const sn_choice *c, bool over_all, const float *logits, const float *dweights,
                            float *dlogits, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = begin_grad(xpu, err);
    uint32_t all = over_all;
    sn_xpu_arg args[] = {SN_XPU_ARG(c->n_experts), SN_XPU_ARG(c->k),       SN_XPU_ARG(all),      SN_XPU_ARG(logits),
                         SN_XPU_ARG(c->ids),       SN_XPU_ARG(c->weights), SN_XPU_ARG(dweights), SN_XPU_ARG(dlogits)};
    if (status || c->n <= 0) return status;
    return sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_route_grad], (size_t)c->n, 1, COUNT(args), args, err);
}
