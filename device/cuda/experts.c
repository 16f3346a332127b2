/* Mixtures of experts: argument checks and kernel launches.
 *
 * One launch groups the pairs of rows and experts where that pays; then two launches for each matrix multiply experts
 * of few pairs and those of many, which tensor cores take. Which way an expert goes depends on nothing but its own
 * pairs in the call, on the device, so that a replayed graph follows them and the bits are the same whichever other
 * experts are there: they may come to the device in several waves. Pairs that other nodes ask for keep to calls by
 * expert (sn_moe_run_pairs, sn_experts_task_next), as far as these come together: docs/DEVICES.md. */
#include "device/cuda/cuda_private.h"

_Static_assert(SN_MOE_PAIRS_MAX / SN_CUDA_CHUNK_ROWS + 3 * SN_EXPERTS_MAX <= 65535,
               "chunks lie along y of a launch, which has so many blocks at most");

static sn_cuda_experts experts_of(const sn_experts *experts) {
    return (sn_cuda_experts){sn_cuda_matrix_of(&experts->first), experts->stride};
}

static sn_status check_selection(const sn_moe_selection *c, size_t width, sn_err *err) {
    bool possible = c->n_experts >= 1 && c->n_experts <= SN_EXPERTS_MAX && c->k >= 1 && c->k <= SN_EXPERTS_USED_MAX;
    if (possible && (c->n <= 0 || sn_device_takes_pairs((size_t)c->n, (size_t)c->k, width))) return SN_OK;
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

/* Room for parts of up to `size` pairs of the experts that have at least `least` pairs. */
static size_t parts_of(size_t pairs, size_t experts, size_t least, size_t size) {
    return pairs / size + sn_min_size(experts, pairs / least);
}

/* What groups of so many pairs take behind their order. */
static size_t count_parts(size_t pairs, size_t experts, sn_cuda_groups *groups) {
    size_t few = parts_of(pairs, experts, 1, SN_CUDA_CHUNK_ROWS), /* of an expert of few pairs are two at most */
        many = parts_of(pairs, experts, SN_CUDA_MANY_PAIRS, SN_CUDA_CHUNK_ROWS),
           tiles = parts_of(pairs, experts, SN_CUDA_MANY_PAIRS, SN_CUDA_TILE_PAIRS);
    few = sn_min_size(few, 2 * experts);
    groups->n_few = (int)few;
    groups->n_many = (int)many;
    groups->n_tiles = (int)tiles;
    return few + many + tiles;
}

static size_t groups_bytes(size_t pairs, size_t experts, sn_cuda_groups *groups) {
    return pairs * sizeof(int32_t) + count_parts(pairs, experts, groups) * sizeof(sn_cuda_chunk);
}

size_t sn_cuda_groups_bytes(const sn_device_limits *l) {
    sn_cuda_groups ignored;
    return groups_bytes((size_t)l->rows * (size_t)l->experts_used, (size_t)l->experts, &ignored);
}

/* Groups the pairs if fewer bytes are read so: with more pairs than experts, some share one; and if an expert may have
 * many pairs, which are one of each row at most. groups->order NULL: they are not grouped. */
static sn_status group_pairs(sn_cuda *cuda, const sn_moe_selection *c, bool per_expert, sn_cuda_groups *groups,
                             sn_err *err) {
    size_t pairs = (size_t)c->n * (size_t)c->k;
    *groups = (sn_cuda_groups){.per_row = per_expert ? 1 : c->k};
    if (pairs <= (size_t)c->n_experts && c->n < SN_CUDA_MANY_PAIRS) return SN_OK;
    sn_status status =
        sn_cuda_buffer_require(cuda, &cuda->groups, groups_bytes(pairs, (size_t)c->n_experts, groups), err);
    if (status) return status;
    groups->order = cuda->groups.at;
    groups->chunks = (sn_cuda_chunk *)(groups->order + pairs);
    groups->tiles = groups->chunks + groups->n_few + groups->n_many;
    return sn_cuda_check_launch(cuda, sn_cuda_moe_group(cuda->work, c, groups), "moe_group", err);
}

/* y of all pairs of n rows, by the expert. Fewer rows than SN_CUDA_MANY_PAIRS give no expert so many pairs. */
static sn_status multiply_groups(sn_cuda *cuda, int n, const sn_cuda_groups *groups, const float *x,
                                 const sn_moe_linear *l, sn_err *err) {
    const sn_cuda_experts experts = experts_of(l->experts);
    bool apart = n >= SN_CUDA_MANY_PAIRS && experts.first.layout != SN_CUDA_F32 && cuda->products_side != 0;
    cudaError_t error = sn_cuda_moe_grouped(cuda->work, groups, apart, x, &experts, l->bias, l->y);
    sn_status status = sn_cuda_check_launch(cuda, error, "moe_linear", err);
    if (status || !apart) return status;
    error = sn_cuda_moe_products(cuda->work, groups, x, &experts, l->bias, l->y);
    return sn_cuda_check_launch(cuda, error, "products of experts", err);
}

static sn_status multiply_pairs(sn_cuda *cuda, const sn_moe_selection *c, bool per_expert, const float *x,
                                const sn_moe_linear *l, sn_err *err) {
    const sn_cuda_experts experts = experts_of(l->experts);
    return sn_cuda_check_launch(cuda, sn_cuda_moe_linear(cuda->work, c, per_expert, x, &experts, l->bias, l->y),
                                "moe_linear", err);
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
        status = groups.order ? multiply_groups(cuda, c->n, &groups, x, &linears[i], err)
                              : multiply_pairs(cuda, c, per_expert, x, &linears[i], err);
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
