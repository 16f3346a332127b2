/* Mixtures of experts: argument checks and kernel launches, one kernel per matrix, and one that groups pairs of rows
 * and experts where there are more of these than experts. */
#include "device/cuda/cuda_private.h"

#include <limits.h>

static sn_cuda_experts experts_of(const sn_experts *experts) {
    return (sn_cuda_experts){sn_cuda_matrix_of(&experts->first), experts->stride};
}

static sn_status check_selection(const sn_moe_selection *c, size_t width, sn_err *err) {
    bool possible = c->n_experts >= 1 && c->n_experts <= SN_EXPERTS_MAX && c->k >= 1 && c->k <= SN_EXPERTS_USED_MAX;
    if (possible && (c->n <= 0 || (size_t)c->n * (size_t)c->k <= (size_t)INT_MAX / 32 / (width + 1))) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d rows of %zu through %d of %d experts are not possible on a cuda device", c->n,
                   width, c->k, c->n_experts);
}

sn_status sn_cuda_moe_gate_op(sn_device *d, int n, const sn_moe_router *router, const float *logits, int32_t *ids,
                              float *weights, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    const sn_moe_selection c = {.n = n, .n_experts = router->n_experts, .k = router->k};
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_selection(&c, 0, err);
    if (!status) status = sn_device_check_groups(router, err);
    if (!status && router->k > router->n_experts)
        status = sn_fail(err, SN_REFUSED, "%d of %d experts cannot be chosen", router->k, router->n_experts);
    if (!status && n > 0)
        status =
            sn_cuda_check_launch(cuda, sn_cuda_moe_gate(cuda->work, n, router, logits, ids, weights), "moe_gate", err);
    return sn_cuda_op_done(cuda, status);
}

static size_t chunks_of(size_t pairs, size_t experts) {
    return pairs / SN_CUDA_CHUNK_ROWS + (experts < pairs ? experts : pairs);
}

size_t sn_cuda_groups_bytes(const sn_device_limits *l) {
    size_t pairs = (size_t)l->rows * (size_t)l->experts_used;
    return pairs * sizeof(int32_t) + chunks_of(pairs, (size_t)l->experts) * sizeof(sn_cuda_chunk);
}

/* Groups the pairs if fewer bytes are read so: with more pairs than experts, some share one. groups->n_chunks 0: they
 * are not grouped. */
static sn_status group_pairs(sn_cuda *cuda, const sn_moe_selection *c, bool per_expert, sn_cuda_groups *groups,
                             sn_err *err) {
    size_t pairs = (size_t)c->n * (size_t)c->k, chunks = chunks_of(pairs, (size_t)c->n_experts);
    *groups = (sn_cuda_groups){.order = cuda->groups.at, .per_row = per_expert ? 1 : c->k};
    if (pairs <= (size_t)c->n_experts || pairs * sizeof(int32_t) + chunks * sizeof(sn_cuda_chunk) > cuda->groups.bytes)
        return SN_OK;
    groups->chunks = (sn_cuda_chunk *)(groups->order + pairs);
    groups->n_chunks = (int)chunks;
    return sn_cuda_check_launch(cuda, sn_cuda_moe_group(cuda->work, c, groups), "moe_group", err);
}

sn_status sn_cuda_moe_linear_op(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *x, int n_linears,
                                const sn_moe_linear *linears, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    sn_cuda_groups groups = {0};
    if (!status && n_linears > 0) status = check_selection(c, linears[0].experts->first.rows, err);
    if (!status && n_linears > 0 && c->n > 0) status = group_pairs(cuda, c, per_expert, &groups, err);
    for (int i = 0; i < n_linears && !status; i++) {
        const sn_weight *w = &linears[i].experts->first;
        if (w->cols != linears[0].experts->first.cols || linears[i].experts->n != c->n_experts)
            status = sn_fail(err, SN_REFUSED,
                             "matrices with different numbers of experts or of columns cannot share an input");
        if (!status) status = check_selection(c, w->rows, err);
        if (status || c->n <= 0 || !w->rows) continue;
        sn_cuda_experts experts = experts_of(linears[i].experts);
        cudaError_t error =
            groups.n_chunks ? sn_cuda_moe_grouped(cuda->work, &groups, x, &experts, linears[i].bias, linears[i].y)
                            : sn_cuda_moe_linear(cuda->work, c, per_expert, x, &experts, linears[i].bias, linears[i].y);
        status = sn_cuda_check_launch(cuda, error, "moe_linear", err);
    }
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_moe_combine_op(sn_device *d, const sn_moe_selection *c, int width, const float *x, float *y,
                                 sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check_selection(c, (size_t)width, err);
    if (!status && c->n > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_moe_combine(cuda->work, c, width, x, y), "moe_combine", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_moe_linear_grad_op(sn_device *d, const sn_moe_selection *c, bool per_expert, const float *dy,
                                     const sn_experts *experts, bool accumulate, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "moe_linear_grad", err);
    if (!status) status = check_selection(c, experts->first.cols, err);
    if (!status && c->n > 0 && experts->first.cols) {
        sn_cuda_experts own = experts_of(experts);
        status = sn_cuda_check_launch(
            cuda, sn_cuda_moe_linear_grad(cuda->work, c, per_expert, dy, &own, accumulate, dx), "moe_linear_grad", err);
    }
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_moe_combine_grad_op(sn_device *d, const sn_moe_selection *c, int width, const float *x,
                                      const float *dy, float *dx, float *dweights, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "moe_combine_grad", err);
    if (!status) status = check_selection(c, (size_t)width, err);
    if (!status && c->n > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_moe_combine_grad(cuda->work, c, width, x, dy, dx, dweights),
                                      "moe_combine_grad", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_moe_gate_grad_op(sn_device *d, const sn_moe_selection *c, const sn_moe_router *router,
                                   const float *logits, const float *dweights, float *dlogits, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "moe_gate_grad", err);
    if (!status) status = check_selection(c, 0, err);
    if (!status && c->n > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_moe_gate_grad(cuda->work, c, router, logits, dweights, dlogits),
                                      "moe_gate_grad", err);
    return sn_cuda_op_done(cuda, status);
}
