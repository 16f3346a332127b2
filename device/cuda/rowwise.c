/* The operations on rows and elements: argument checks and one kernel launch each, of some of them held back (held.c).
 */
#include "device/cuda/cuda_private.h"

sn_status sn_cuda_rms_norm_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                              sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_cuda_held own = {SN_CUDA_HELD_NORM, .n = n, .norm = {width, x, NULL, NULL, weight, eps, y, {0}}};
    sn_status status = sn_cuda_enter_holding(cuda, err);
    const sn_cuda_held *before = &cuda->held;
    bool adds = n > 0 && width > 0 && before->kind == SN_CUDA_HELD_ADD && before->norm.sum == x &&
                before->count == (size_t)n * (size_t)width;
    if (adds) {
        own.norm.add = before->norm.add;
        own.norm.sum = before->norm.sum;
    } else if (!status) {
        status = sn_cuda_release(cuda, (sn_cuda_eight_bits){0}, err);
    }
    if (!status && n > 0 && width > 0) status = sn_cuda_hold(cuda, &own, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_layer_norm_op(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias,
                                float eps, float *y, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n > 0 && width > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_layer_norm(cuda->work, n, width, x, weight, bias, eps, y),
                                      "layer_norm", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_rope_op(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_cuda_held own = {SN_CUDA_HELD_ROPE,    .n = n,        .rope = *rope, .heads = {n_heads},
                        .head_dim = head_dim, .rotated = {x}};
    sn_status status = sn_cuda_enter_holding(cuda, err);
    if (!status && (rope->dim % 2 || rope->dim < 0 || rope->dim > head_dim))
        status =
            sn_fail(err, SN_REFUSED, "%d dimensions of a head of %d cannot be rotated in pairs", rope->dim, head_dim);
    if (status || n <= 0 || n_heads <= 0 || rope->dim == 0) return sn_cuda_op_done(cuda, status);
    sn_cuda_held *first = &cuda->held;
    if (first->kind == SN_CUDA_HELD_ROPE && !first->rotated[1] && first->n == n && first->head_dim == head_dim &&
        first->rope.rotate_half == rope->rotate_half && first->rope.dim == rope->dim &&
        first->rope.cos_sin == rope->cos_sin) {
        first->rotated[1] = x;
        first->heads[1] = n_heads;
        return SN_OK;
    }
    status = sn_cuda_release(cuda, (sn_cuda_eight_bits){0}, err);
    if (!status) status = sn_cuda_hold(cuda, &own, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_activate_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                              sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    const sn_cuda_held own = {SN_CUDA_HELD_ACTIVATE, .count = n, .activation = kind, .gate = gate, .up = up, .y = y};
    if (!status && n) status = sn_cuda_hold(cuda, &own, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_add_op(sn_device *d, size_t n, float *y, const float *x, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    const sn_cuda_held own = {SN_CUDA_HELD_ADD, .count = n, .norm = {.sum = y, .add = x}};
    if (!status && n) status = sn_cuda_hold(cuda, &own, err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_scale_op(sn_device *d, int n, int width, const float *x, float factor, const float *factors, float *y,
                           sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n > 0 && width > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_scale(cuda->work, n, width, x, factor, factors, y), "scale", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_dot_rows_op(sn_device *d, int n, int width, const float *a, const float *b, float *y, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_dot_rows(cuda->work, n, width, a, b, y), "dot_rows", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_get_rows_op(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "get_rows", err);
    for (int i = 0; i < n && !status; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= weight->rows)
            status = sn_fail(err, SN_REFUSED, "row %d does not exist: the matrix has %zu rows", ids[i], weight->rows);
    if (!status && n > 0) status = sn_cuda_buffer_require(cuda, &cuda->ids, (size_t)n * sizeof *ids, err);
    if (!status && n > 0) status = sn_cuda_upload_staged(cuda, cuda->ids.at, ids, (size_t)n * sizeof *ids, err);
    if (!status && n > 0 && weight->cols) {
        sn_cuda_matrix w = sn_cuda_matrix_of(weight);
        status = sn_cuda_check_launch(cuda, sn_cuda_get_rows(cuda->work, &w, n, cuda->ids.at, y), "get_rows", err);
    }
    return sn_cuda_op_done(cuda, status);
}
