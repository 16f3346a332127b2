/* Latent attention on CUDA: attention over the latent KV cache, and linear with a matrix for each head. */
#include "device/cuda/cuda_private.h"

sn_status sn_cuda_latent_attend(sn_cuda *cuda, sn_cuda_attention *a, sn_err *err) {
    int group = a->n_heads / a->kv.n_kv_heads,
        blocks = a->kv.n_kv_heads * ((group + SN_CUDA_LATENT_HEADS - 1) / SN_CUDA_LATENT_HEADS);
    int n_splits = sn_cuda_attention_n_splits(cuda, cuda->n_rows, blocks);
    sn_status status = sn_cuda_attention_scratch(cuda, a, cuda->n_rows, n_splits, a->kv.latent, err);
    if (status) return status;
    return sn_cuda_check_launch(cuda, sn_cuda_latent_attention(cuda->work, a, cuda->n_rows, n_splits), "attention",
                                err);
}

sn_status sn_cuda_head_linear_op(sn_device *d, int n, const float *x, int x_width, const sn_experts *heads, float *y,
                                 sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    size_t rows = heads->first.rows, cols = heads->first.cols;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && (rows > SN_LATENT_DIM_MAX || cols > SN_LATENT_DIM_MAX || x_width > 2 * SN_LATENT_DIM_MAX ||
                    (size_t)x_width < cols))
        status = sn_fail(err, SN_REFUSED, "heads of %d elements with matrices of %zu by %zu are not possible", x_width,
                         rows, cols);
    if (!status && n > 0) {
        const sn_cuda_experts own = {sn_cuda_matrix_of(&heads->first), heads->stride};
        status = sn_cuda_check_launch(cuda, sn_cuda_head_linear(cuda->work, &own, heads->n, n, x_width, x, y),
                                      "head_linear", err);
    }
    return sn_cuda_op_done(cuda, status);
}
