/* Operations that are held back within a batch, so that the next one takes them along in one launch:
 *
 *     add, rms_norm, linear       the norm adds first, and writes its rows in 8 bits besides, where linear reads these
 *     activate, linear            likewise
 *     attention, linear           likewise, by the tiles, by single rows, or where the parts of these are joined
 *     rope of q, of k, kv_store   one kernel
 *
 * At most one operation is held, with those that it takes along. sn_xpu_barrier launches it, so the order of all
 * launches is that of the calls. What is written is the same whether operations are taken along or not, intermediate
 * results included. */
#include "device/xpu/xpu_private.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

static size_t groups_of(size_t n) { return (n + 63) / 64; }

static sn_status launch_add(sn_xpu *x, const sn_xpu_held *h, sn_err *err) {
    uint64_t count = h->count;
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(h->added), SN_XPU_ARG(h->more)};
    return sn_xpu_launch(x, x->kernels[SN_XPU_add], groups_of(h->count), 1, COUNT(args), args, err);
}

static sn_status launch_norm(sn_xpu *x, const sn_xpu_held *h, sn_xpu_rows8 rows, sn_err *err) {
    sn_xpu_arg args[] = {SN_XPU_ARG(h->width), SN_XPU_ARG(h->x),   SN_XPU_ARG(h->weight),
                         SN_XPU_ARG(h->eps),   SN_XPU_ARG(h->y),   SN_XPU_ARG(h->more),
                         SN_XPU_ARG(h->added), SN_XPU_ARG(rows.q), SN_XPU_ARG(rows.scales)};
    return sn_xpu_launch(x, x->kernels[SN_XPU_rms_norm], (size_t)h->n, 1, COUNT(args), args, err);
}

static sn_status launch_activate(sn_xpu *x, const sn_xpu_held *h, sn_xpu_rows8 rows, sn_err *err) {
    uint64_t count = h->count;
    uint32_t kind = (uint32_t)h->activation;
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(kind),   SN_XPU_ARG(h->x),       SN_XPU_ARG(h->up),
                         SN_XPU_ARG(h->y),  SN_XPU_ARG(rows.q), SN_XPU_ARG(rows.scales)};
    return sn_xpu_launch(x, x->kernels[SN_XPU_activate], groups_of(h->count), 1, COUNT(args), args, err);
}

/* Rotations of q and of k do not depend on each other. */
static sn_status launch_ropes(sn_xpu *x, const sn_xpu_held *h, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < 2 && !status; i++) {
        uint32_t pairs = (uint32_t)h->n * (uint32_t)h->heads[i] * (uint32_t)(h->rope.dim / 2),
                 rotate_half = h->rope.rotate_half;
        sn_xpu_arg args[] = {SN_XPU_ARG(pairs),          SN_XPU_ARG(h->heads[i]), SN_XPU_ARG(h->head_dim),
                             SN_XPU_ARG(h->rope.dim),    SN_XPU_ARG(rotate_half), SN_XPU_ARG(h->rotated[i]),
                             SN_XPU_ARG(h->rope.cos_sin)};
        if (h->rotated[i])
            status = sn_xpu_launch(x, x->kernels[SN_XPU_rope], groups_of(pairs), 1, COUNT(args), args, err);
    }
    return status;
}

sn_status sn_xpu_launch_join(sn_xpu *x, const sn_xpu_held *h, sn_xpu_rows8 rows, sn_err *err) {
    const uint8_t *singles = (uint8_t *)x->batch_table.device + x->tiles_at + 16 * x->batch_tiles;
    sn_xpu_arg args[] = {
        SN_XPU_ARG(singles), SN_XPU_ARG(h->heads[0]), SN_XPU_ARG(h->head_dim),     SN_XPU_ARG(h->window),
        SN_XPU_ARG(h->y),    SN_XPU_ARG(h->parts.n),  SN_XPU_ARG(h->parts.tokens), SN_XPU_ARG(x->partial.device),
        SN_XPU_ARG(rows.q),  SN_XPU_ARG(rows.scales)};
    return sn_xpu_launch(x, x->kv[x->shape.dtype].attention_join, (size_t)h->heads[0], (size_t)x->batch_singles,
                         COUNT(args), args, err);
}

sn_status sn_xpu_release(sn_xpu *x, sn_xpu_rows8 rows, sn_err *err) {
    const sn_xpu_held h = x->held;
    x->held.kind = SN_XPU_HELD_NONE;
    if (h.kind == SN_XPU_HELD_NONE) return SN_OK;
    sn_status status = sn_xpu_barrier(x, err);
    if (status) return status;
    switch (h.kind) {
    case SN_XPU_HELD_ADD:
        return launch_add(x, &h, err);
    case SN_XPU_HELD_NORM:
        return launch_norm(x, &h, rows, err);
    case SN_XPU_HELD_ACTIVATE:
        return launch_activate(x, &h, rows, err);
    case SN_XPU_HELD_ROPE:
        return launch_ropes(x, &h, err);
    case SN_XPU_HELD_ATTENTION:
        return sn_xpu_launch_attention(x, &h, rows, err);
    case SN_XPU_HELD_JOIN:
        return sn_xpu_launch_join(x, &h, rows, err);
    case SN_XPU_HELD_NONE:
        break;
    }
    return SN_OK;
}

sn_status sn_xpu_hold(sn_xpu *x, const sn_xpu_held *held, sn_err *err) {
    sn_status status = sn_xpu_release(x, (sn_xpu_rows8){0}, err);
    if (!status) status = sn_xpu_check_alive(x, err);
    if (status) return status;
    x->held = *held;
    return x->in_batch ? SN_OK : sn_xpu_release(x, (sn_xpu_rows8){0}, err);
}

bool sn_xpu_held_makes(const sn_xpu *x, int n, int cols, const float *y) {
    const sn_xpu_held *h = &x->held;
    if (h->y != y) return false;
    if (h->kind == SN_XPU_HELD_NORM) return h->n == n && h->width == cols;
    if (h->kind == SN_XPU_HELD_ACTIVATE) return h->count == (size_t)n * (size_t)cols;
    return h->kind == SN_XPU_HELD_ATTENTION && h->n == n && h->head_dim % 32 == 0 &&
           (int64_t)h->head_dim * h->heads[0] == cols;
}

bool sn_xpu_held_ropes(const sn_xpu *x, const float *k) {
    const sn_xpu_held *h = &x->held;
    return h->kind == SN_XPU_HELD_ROPE && !x->shape.latent && h->n == x->batch_rows &&
           h->head_dim == x->shape.head_dim && h->rotated[0] != k && h->rotated[1] == k &&
           h->heads[1] == x->shape.n_kv_heads;
}
