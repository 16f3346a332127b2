/* Operations that are held back within a batch, so that the next one takes them along in one launch:
 *
 *     add, rms_norm, linear       the norm adds first, and writes its rows quantised besides
 *     activate, linear            likewise
 *     attention, linear           attention of few rows writes them quantised besides
 *     rope of q, of k, kv_store   one kernel
 *
 * At most one operation is held, with those that it takes along. An operation that takes none along launches what is
 * held before itself (sn_cuda_enter), so the order of all launches is that of the calls. What is written is the same
 * whether operations are taken along or not, intermediate results included. */
#include "device/cuda/cuda_private.h"

static cudaError_t launch_ropes(const sn_cuda *cuda, const sn_cuda_held *h) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && !error; i++)
        if (h->rotated[i])
            error = sn_cuda_rope(cuda->work, h->n, h->heads[i], h->head_dim, h->rotated[i], h->rope.rotate_half,
                                 h->rope.dim, h->rope.cos_sin);
    return error;
}

sn_status sn_cuda_release(sn_cuda *cuda, sn_cuda_eight_bits form, sn_err *err) {
    const sn_cuda_held h = cuda->held;
    cuda->held.kind = SN_CUDA_HELD_NONE;
    switch (h.kind) {
    case SN_CUDA_HELD_ADD:
        return sn_cuda_check_launch(cuda, sn_cuda_add(cuda->work, h.count, h.norm.sum, h.norm.add), "add", err);
    case SN_CUDA_HELD_NORM:
        return sn_cuda_check_launch(cuda,
                                    sn_cuda_rms_norm(cuda->work, h.n,
                                                     &(sn_cuda_norm){h.norm.width, h.norm.x, h.norm.add, h.norm.sum,
                                                                     h.norm.weight, h.norm.eps, h.norm.y, form}),
                                    "rms_norm", err);
    case SN_CUDA_HELD_ACTIVATE:
        return sn_cuda_check_launch(cuda, sn_cuda_activate(cuda->work, h.count, h.activation, h.gate, h.up, h.y, form),
                                    "activate", err);
    case SN_CUDA_HELD_ROPE:
        return sn_cuda_check_launch(cuda, launch_ropes(cuda, &h), "rope", err);
    case SN_CUDA_HELD_ATTENTION:
        return sn_cuda_check_launch(cuda, sn_cuda_attention_split(cuda->work, &h.attention, h.n, h.n_splits, form),
                                    "attention", err);
    case SN_CUDA_HELD_NONE:
        break;
    }
    return SN_OK;
}

sn_status sn_cuda_hold(sn_cuda *cuda, const sn_cuda_held *held, sn_err *err) {
    cuda->held = *held;
    return cuda->state == SN_CUDA_NO_BATCH ? sn_cuda_release(cuda, (sn_cuda_eight_bits){0}, err) : SN_OK;
}

bool sn_cuda_held_makes(const sn_cuda *cuda, int n, int cols, const float *x) {
    const sn_cuda_held *h = &cuda->held;
    int dim = h->attention.kv.head_dim;
    if (h->kind == SN_CUDA_HELD_NORM) return h->norm.y == x && h->n == n && h->norm.width == cols;
    if (h->kind == SN_CUDA_HELD_ACTIVATE) return h->y == x && h->count == (size_t)n * (size_t)cols;
    return h->kind == SN_CUDA_HELD_ATTENTION && h->attention.out == x && h->n == n && dim % 32 == 0 &&
           (int64_t)dim * h->attention.n_heads == cols;
}

bool sn_cuda_held_ropes(const sn_cuda *cuda, const sn_kv_shape *shape, int n, const float *k) {
    const sn_cuda_held *h = &cuda->held;
    return h->kind == SN_CUDA_HELD_ROPE && !shape->latent && h->n == n && h->head_dim == shape->head_dim &&
           h->rotated[0] != k && h->rotated[1] == k && h->heads[1] == shape->n_kv_heads;
}
