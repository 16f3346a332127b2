/* The operations on rows and elements: argument checks and one kernel launch each. */
#include "device/cuda/cuda_private.h"

sn_status sn_cuda_group_norm_op(sn_device *d, int n, int groups, int width, const float *x, const float *weight,
                                float eps, float *y, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    const sn_cuda_norm norm = {width, groups, (float *)x, NULL, weight, eps, y, {0}};
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n > 0 && width > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_rms_norm(cuda->work, n * groups, &norm), "rms_norm", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_rms_norm_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                              sn_err *err) {
    return sn_cuda_group_norm_op(d, n, 1, width, x, weight, eps, y, err);
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

sn_status sn_cuda_check_rope(const sn_rope *rope, int head_dim, sn_err *err) {
    if (rope->dim % 2 == 0 && rope->dim >= 0 && rope->dim <= head_dim) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d dimensions of a head of %d cannot be rotated in pairs", rope->dim, head_dim);
}

sn_status sn_cuda_rope_op(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = sn_cuda_check_rope(rope, head_dim, err);
    if (!status && n > 0 && n_heads > 0 && rope->dim)
        status = sn_cuda_check_launch(
            cuda, sn_cuda_rope(cuda->work, n, n_heads, head_dim, x, rope->rotate_half, rope->dim, rope->cos_sin),
            "rope", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_activate_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                              sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n)
        status = sn_cuda_check_launch(cuda, sn_cuda_activate(cuda->work, n, kind, gate, up, y, (sn_cuda_eight_bits){0}),
                                      "activate", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_add_op(sn_device *d, size_t n, float *y, const float *x, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n) status = sn_cuda_check_launch(cuda, sn_cuda_add(cuda->work, n, y, x), "add", err);
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

sn_status sn_cuda_clamp_op(sn_device *d, size_t n, float *x, float low, float high, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && n) status = sn_cuda_check_launch(cuda, sn_cuda_clamp(cuda->work, n, x, low, high), "clamp", err);
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
