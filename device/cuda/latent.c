/* Latent attention on CUDA: attention over the latent KV cache, and linear with a matrix for each head. */
#include "device/cuda/cuda_private.h"

sn_status sn_cuda_latent_attend(sn_cuda *cuda, sn_cuda_attention *a, sn_err *err) {
    int n_splits = sn_cuda_attention_n_splits(cuda->n_rows);
    size_t parts = (size_t)cuda->n_rows * (size_t)a->n_heads * (size_t)n_splits,
           dims = sn_cuda_pad((size_t)a->kv.latent, 4);
    sn_status status = SN_OK;
    if (n_splits > 1) status = sn_cuda_buffer_require(cuda, &cuda->partial, parts * (dims + 2) * sizeof(float), err);
    if (status) return status;
    a->partial = cuda->partial.at;
    a->partial_stats = n_splits > 1 ? a->partial + parts * dims : NULL;
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
