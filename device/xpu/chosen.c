/* An indexer on an XPU: index keys in the pages, the scores of some rows at a time, and what each of them chooses. */
#include "device/xpu/xpu_private.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

enum { ITEMS = 64, SLAB_ROWS = 64 };

static size_t groups_of(int elements) { return ((size_t)elements + ITEMS - 1) / ITEMS; }

sn_status sn_xpu_index_store(sn_xpu *x, int block, const float *keys, sn_err *err) {
    const uint8_t *rows = x->batch_table.device, *pages = rows + x->pages_at;
    const uint64_t at = sn_xpu_index_at(&x->shape, block);
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(at),
                         SN_XPU_ARG(x->shape.index_dim),
                         SN_XPU_ARG(x->shape.page_tokens),
                         SN_XPU_ARG(keys)};
    sn_status status = sn_xpu_barrier(x, err);
    return status || !x->batch_rows ? status
                                    : sn_xpu_launch(x, x->kernels[SN_XPU_index_store], groups_of(x->shape.index_dim),
                                                    (size_t)x->batch_rows, COUNT(args), args, err);
}

sn_status sn_xpu_index_copy(sn_xpu *x, const sn_xpu_index_copy_of *c, sn_err *err) {
    uint32_t store = c->store;
    sn_xpu_arg args[] = {SN_XPU_ARG(c->pages),
                         SN_XPU_ARG(c->at),
                         SN_XPU_ARG(c->shape->head_dim),
                         SN_XPU_ARG(c->shape->page_tokens),
                         SN_XPU_ARG(c->position),
                         SN_XPU_ARG(store),
                         SN_XPU_ARG(c->keys)};
    return sn_xpu_launch(x, x->kernels[SN_XPU_index_copy], groups_of(c->shape->head_dim), (size_t)c->n, COUNT(args),
                         args, err);
}

static size_t stride_of(const sn_device_limits *l) { return sn_round_up((size_t)l->context, ITEMS); }

size_t sn_xpu_index_scores_bytes(const sn_device_limits *l) {
    return l->chosen > 0 ? sn_min_size(SLAB_ROWS, (size_t)l->rows) * stride_of(l) * sizeof(float) : 0;
}

/* The positions that the rows [first, first + n) of the batch may see, at most. */
static int longest(const sn_xpu *x, int first, int n) {
    int most = 0;
    for (int i = 0; i < x->n_sequences; i++) {
        const sn_sequence *s = &x->sequences[i];
        int end = s->first_row + s->n_rows < first + n ? s->first_row + s->n_rows : first + n;
        if (end > first && s->first_row < end && s->position + end - s->first_row > most)
            most = s->position + end - s->first_row;
    }
    return most;
}

sn_status sn_xpu_choose_keys(sn_device *d, const sn_indexer *p, int32_t *chosen, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    const sn_kv_shape *s = &x->shape;
    const uint8_t *rows = x->batch_table.device, *pages = rows + x->pages_at;
    const uint64_t at = sn_xpu_index_at(s, p->block), stride = stride_of(&x->limits);
    if (p->block < s->n_blocks || p->block >= s->n_blocks + s->index_blocks || p->dim != s->index_dim ||
        p->n_chosen < 1 || p->n_chosen > x->limits.chosen)
        return sn_fail(err, SN_REFUSED,
                       "%d positions cannot be chosen by index keys of %d in block %d: prepared for %d", p->n_chosen,
                       p->dim, p->block, x->limits.chosen);
    sn_status status = sn_xpu_buffer_reserve(x, &x->index_scores, sn_xpu_index_scores_bytes(&x->limits), err);
    for (int first = 0, n; first < x->batch_rows && !status; first += n) {
        n = x->batch_rows - first < SLAB_ROWS ? x->batch_rows - first : SLAB_ROWS;
        const int positions = longest(x, first, n);
        if (positions <= p->n_chosen) continue;
        sn_xpu_arg scores[] = {SN_XPU_ARG(rows),
                               SN_XPU_ARG(pages),
                               SN_XPU_ARG(at),
                               SN_XPU_ARG(p->dim),
                               SN_XPU_ARG(s->page_tokens),
                               SN_XPU_ARG(p->n_heads),
                               SN_XPU_ARG(p->n_chosen),
                               SN_XPU_ARG(first),
                               SN_XPU_ARG(p->q),
                               SN_XPU_ARG(p->weights),
                               SN_XPU_ARG(x->index_scores.device),
                               SN_XPU_ARG(stride)};
        sn_xpu_arg choice[] = {SN_XPU_ARG(rows),   SN_XPU_ARG(p->n_chosen),
                               SN_XPU_ARG(first),  SN_XPU_ARG(x->index_scores.device),
                               SN_XPU_ARG(stride), SN_XPU_ARG(chosen)};
        status = sn_xpu_barrier(x, err);
        if (!status)
            status = sn_xpu_launch(x, x->kernels[SN_XPU_index_scores], groups_of(positions), (size_t)n, COUNT(scores),
                                   scores, err);
        if (!status) status = sn_xpu_barrier(x, err);
        if (!status)
            status = sn_xpu_launch(x, x->kernels[SN_XPU_choose_keys], (size_t)n, 1, COUNT(choice), choice, err);
    }
    return status;
}
