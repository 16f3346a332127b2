/* An indexer on CUDA: the scores of some rows at a time, then what each of them chooses. Attention to what was chosen
 * is that of latent.c. */
#include "device/cuda/cuda_private.h"

enum { SLAB_ROWS = 64 };

static size_t scores_stride(const sn_device_limits *l) { return sn_cuda_pad((size_t)l->context, 32); }

static size_t slab_rows(const sn_device_limits *l) { return sn_min_size(SLAB_ROWS, (size_t)l->rows); }

size_t sn_cuda_index_scores_bytes(const sn_device_limits *l) {
    return l->chosen > 0 ? slab_rows(l) * scores_stride(l) * sizeof(float) : 0;
}

static sn_status check(const sn_cuda *cuda, const sn_indexer *x, sn_err *err) {
    const sn_kv_shape *s = &cuda->shape;
    if (cuda->state == SN_CUDA_NO_BATCH || cuda->state == SN_CUDA_REPLAYING)
        return sn_fail(err, SN_REFUSED, "%s: choose_keys was called outside of a batch", cuda->description);
    if (x->block < s->n_blocks || x->block >= s->n_blocks + s->index_blocks || x->dim != s->index_dim ||
        x->n_chosen < 1 || x->n_chosen > cuda->limits.chosen)
        return sn_fail(err, SN_REFUSED,
                       "%d positions cannot be chosen by index keys of %d in block %d: prepared for %d", x->n_chosen,
                       x->dim, x->block, cuda->limits.chosen);
    return SN_OK;
}

sn_status sn_cuda_choose_keys(sn_device *d, const sn_indexer *x, int32_t *chosen, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = check(cuda, x, err);
    if (!status)
        status = sn_cuda_buffer_require(cuda, &cuda->index_scores, sn_cuda_index_scores_bytes(&cuda->limits), err);
    for (int first = 0, most = (int)slab_rows(&cuda->limits); first < cuda->n_rows && !status; first += most) {
        const sn_cuda_indexer p = {.keys = sn_cuda_kv_of(cuda, &cuda->shape, x->block),
                                   .n_heads = x->n_heads,
                                   .n_chosen = x->n_chosen,
                                   .first_row = first,
                                   .n_rows = cuda->n_rows - first < most ? cuda->n_rows - first : most,
                                   .q = x->q,
                                   .weights = x->weights,
                                   .scores = cuda->index_scores.at,
                                   .stride = scores_stride(&cuda->limits),
                                   .chosen = chosen};
        status = sn_cuda_check_launch(cuda, sn_cuda_index_scores(cuda->work, &p), "choose_keys", err);
        if (!status) status = sn_cuda_check_launch(cuda, sn_cuda_choose(cuda->work, &p), "choose_keys", err);
    }
    return sn_cuda_op_done(cuda, status);
}
