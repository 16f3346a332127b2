/* Gradients: arguments to kernels. */
#include "base/mem.h"
#include "device/cuda/inside.h"

sn_status sn_cuda_linear_grad_op(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx,
                                 sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "linear_grad", err);
    if (!status && n > 0 && weight->cols) {
        sn_cuda_matrix w = sn_cuda_matrix_of(weight);
        status = sn_cuda_queued(cuda, sn_cuda_linear_grad(cuda->work, &w, n, dy, grow, dx), "linear_grad", err);
    }
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_outer_grad_op(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                                sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "outer_grad", err);
    if (!status && n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_outer_grad(cuda->work, n, rows, cols, dy, x, dw), "outer_grad", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_rms_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                   const float *dy, bool grow, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "rms_norm_grad", err);
    if (!status && n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_rms_norm_grad(cuda->work, n, width, x, weight, eps, dy, grow, dx),
                                "rms_norm_grad", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_layer_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                     const float *dy, bool grow, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "layer_norm_grad", err);
    if (!status && n > 0)
        status = sn_cuda_queued(cuda, sn_cuda_layer_norm_grad(cuda->work, n, width, x, weight, eps, dy, grow, dx),
                                "layer_norm_grad", err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_activate_grad_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                                   const float *dy, float *dgate, float *dup, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "activate_grad", err);
    if (!status && n)
        status = sn_cuda_queued(cuda, sn_cuda_activate_grad(cuda->work, n, kind, gate, up, dy, dgate, dup), "activate_grad",
                                err);
    return sn_cuda_done(cuda, status);
}

sn_status sn_cuda_attention_grad_op(sn_device *d, const sn_attention_grad *grad, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_unrecorded(cuda, "attention_grad", err);
    size_t stats = 3 * sizeof(float) * (size_t)(grad->n > 0 ? grad->n : 0) * (size_t)grad->n_heads;
    if (!status && stats) status = sn_cuda_make_room(cuda, &cuda->grad, stats, err);
    if (!status && stats)
        status = sn_cuda_queued(cuda, sn_cuda_attention_grad(cuda->work, grad, cuda->grad.at), "attention_grad", err);
    return sn_cuda_done(cuda, status);
}
