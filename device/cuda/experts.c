/* Mixtures of experts: checks, and a kernel for each matrix. */
#include "device/cuda/inside.h"

#include <limits.h>

static sn_cuda_experts experts_of(const sn_experts *experts) {
    return (sn_cuda_experts){sn_cuda_matrix_of(&experts->first), experts->stride};
}

static sn_status check_choice(const sn_choice *c, size_t width, sn_err *err) {
    bool possible = c->n_experts >= 1 && c->n_experts <= SN_EXPERTS_MAX && c->k >= 1 && c->k <= c->n_experts &&
                    c->k <= SN_EXPERTS_USED_MAX;
    if (possible && (c->n <= 0 || (size_t)c->n * (size_t)c->k <= (size_t)INT_MAX / 32 / (width + 1))) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d rows of %zu through %d of %d experts are not possible on a cuda device", c->n, width,
                   c->k, c->n_experts);
}

sn_status sn_cuda_route_op(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                           float *weights, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    const sn_choice c = {.n = n, .n_experts = n_experts, .k = k};
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_choice(&c, 0, err);
    if (!status && n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_route(cuda->work, n, n_experts, k, over_all, logits, ids, weights), "route", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_linear_routed_op(sn_device *d, const sn_choice *c, bool each, const float *x, int n_routed,
                                   const sn_routed *routed, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    for (int i = 0; i < n_routed && !status; i++) {
        const sn_weight *w = &routed[i].experts->first;
        if (w->cols != routed[0].experts->first.cols || routed[i].experts->n != c->n_experts)
            status = sn_fail(err, SN_REFUSED, "experts of different numbers, or over rows of different widths, share no input");
        if (!status) status = check_choice(c, w->rows, err);
        if (status || c->n <= 0 || !w->rows) continue;
        sn_cuda_experts experts = experts_of(routed[i].experts);
        status = sn_cuda_queued(cuda, sn_cuda_linear_routed(cuda->work, c, each, x, &experts, routed[i].bias, routed[i].y),
                                "linear_routed", err);
    }
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_combine_op(sn_device *d, const sn_choice *c, int width, const float *x, float *y, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_choice(c, (size_t)width, err);
    if (!status && c->n > 0) status = sn_cuda_queued(cuda, sn_cuda_combine(cuda->work, c, width, x, y), "combine", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_linear_routed_grad_op(sn_device *d, const sn_choice *c, bool each, const float *dy,
                                        const sn_experts *experts, bool grow, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "linear_routed_grad", err);
    if (!status) status = check_choice(c, experts->first.cols, err);
    if (!status && c->n > 0 && experts->first.cols) {
        sn_cuda_experts own = experts_of(experts);
        status = sn_cuda_queued(cuda, sn_cuda_linear_routed_grad(cuda->work, c, each, dy, &own, grow, dx),
                                "linear_routed_grad", err);
    }
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_combine_grad_op(sn_device *d, const sn_choice *c, int width, const float *x, const float *dy, float *dx,
                                  float *dweights, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "combine_grad", err);
    if (!status) status = check_choice(c, (size_t)width, err);
    if (!status && c->n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_combine_grad(cuda->work, c, width, x, dy, dx, dweights), "combine_grad", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_route_grad_op(sn_device *d, const sn_choice *c, bool over_all, const float *logits, const float *dweights,
                                float *dlogits, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "route_grad", err);
    if (!status) status = check_choice(c, 0, err);
    if (!status && c->n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_route_grad(cuda->work, c, over_all, logits, dweights, dlogits), "route_grad",
                                err);
    return sn_cuda_done(cuda, status);
}
