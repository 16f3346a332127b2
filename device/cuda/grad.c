/* The backward pass: argument checks and kernel launches. */
#include "base/mem.h"
#include "device/cuda/cuda_private.h"

sn_status sn_cuda_linear_input_grad_op(sn_device *d, int n, const float *dy, const sn_weight *weight, bool accumulate,
                                       float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "linear_input_grad", err);
    if (!status && n > 0 && weight->cols) {
        sn_cuda_matrix w = sn_cuda_matrix_of(weight);
        status = sn_cuda_check_launch(cuda, sn_cuda_linear_input_grad(cuda->work, &w, n, dy, accumulate, dx),
                                      "linear_input_grad", err);
    }
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_linear_weight_grad_op(sn_device *d, int n, int rows, int cols, const float *dy, const float *x,
                                        float *dw, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "linear_weight_grad", err);
    if (!status && n > 0)
        status = sn_cuda_check_launch(cuda, sn_cuda_linear_weight_grad(cuda->work, n, rows, cols, dy, x, dw),
                                      "linear_weight_grad", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_rms_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                   const float *dy, bool accumulate, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "rms_norm_grad", err);
    if (!status && n > 0)
        status =
            sn_cuda_check_launch(cuda, sn_cuda_rms_norm_grad(cuda->work, n, width, x, weight, eps, dy, accumulate, dx),
                                 "rms_norm_grad", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_layer_norm_grad_op(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                     const float *dy, bool accumulate, float *dx, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "layer_norm_grad", err);
    if (!status && n > 0)
        status = sn_cuda_check_launch(cuda,
                                      sn_cuda_layer_norm_grad(cuda->work, n, width, x, weight, eps, dy, accumulate, dx),
                                      "layer_norm_grad", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_activate_grad_op(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                                   const float *dy, float *dgate, float *dup, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "activate_grad", err);
    if (!status && n)
        status = sn_cuda_check_launch(cuda, sn_cuda_activate_grad(cuda->work, n, kind, gate, up, dy, dgate, dup),
                                      "activate_grad", err);
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_attention_grad_op(sn_device *d, const sn_attention_grad *grad, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter_uncaptured(cuda, "attention_grad", err);
    size_t stats = 3 * sizeof(float) * (size_t)(grad->n > 0 ? grad->n : 0) * (size_t)grad->n_heads;
    if (!status && stats) status = sn_cuda_buffer_require(cuda, &cuda->grad, stats, err);
    if (!status && stats)
        status =
            sn_cuda_check_launch(cuda, sn_cuda_attention_grad(cuda->work, grad, cuda->grad.at), "attention_grad", err);
    return sn_cuda_op_done(cuda, status);
}
