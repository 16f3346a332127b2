/* Latent attention on an XPU: attention over the latent KV cache, and linear with a matrix for each head. */
#include "device/xpu/xpu_private.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

enum {
    KEYS = 16,
    LOCAL_MAX = 49184,
    OUTPUTS = 4,
    ROWS = 4
}; /* as in latent.clh and linear.cl; bytes of query and keys */

sn_status sn_xpu_latent_attention(sn_xpu *x, const sn_attention *params, const float *q, float *out, sn_err *err) {
    const sn_kv_shape *shape = &x->shape;
    const bool single = x->batch_tiles == 0; /* all rows are by themselves, and may have several parts */
    const uint8_t *rows = x->batch_table.device, *singles = single ? rows + x->tiles_at : NULL,
                  *pages = rows + x->pages_at;
    const int group = params->n_heads / shape->n_kv_heads, teams = (group + SN_XPU_ROW_HEADS - 1) / SN_XPU_ROW_HEADS;
    const size_t groups = (size_t)shape->n_kv_heads * (size_t)teams, n = (size_t)x->batch_rows;
    const size_t dim = (size_t)shape->head_dim, query_bytes = SN_XPU_ROW_HEADS * dim * sizeof(float);
    int32_t window = params->window;
    if (!n) return SN_OK;
    sn_xpu_parts parts = {1, INT32_MAX / 64 * 64};
    if (params->chosen && (window || params->slopes))
        return sn_fail(err, SN_REFUSED, "positions are chosen without a window or slopes only");
    if (single && !params->chosen) parts = sn_xpu_divide_context(x, window, groups * n);
    uint32_t n_keys = query_bytes + KEYS * (dim + 1) * sizeof(float) <= LOCAL_MAX ? KEYS : KEYS / 2;
    const size_t key_bytes = n_keys * (dim + 1) * sizeof(float);
    sn_xpu_arg args[] = {SN_XPU_ARG(rows),
                         SN_XPU_ARG(singles),
                         SN_XPU_ARG(pages),
                         SN_XPU_ARG(params->block),
                         SN_XPU_ARG(params->n_heads),
                         SN_XPU_ARG(shape->n_kv_heads),
                         SN_XPU_ARG(shape->head_dim),
                         SN_XPU_ARG(shape->latent),
                         SN_XPU_ARG(shape->page_tokens),
                         SN_XPU_ARG(window),
                         SN_XPU_ARG(params->scale),
                         SN_XPU_ARG(params->softcap),
                         SN_XPU_ARG(params->slopes),
                         SN_XPU_ARG(params->sinks),
                         SN_XPU_ARG(q),
                         SN_XPU_ARG(out),
                         SN_XPU_ARG(parts.n),
                         SN_XPU_ARG(parts.tokens),
                         SN_XPU_ARG(x->partial.device),
                         SN_XPU_ARG(n_keys),
                         SN_XPU_ARG(params->chosen),
                         SN_XPU_ARG(params->n_chosen),
                         SN_XPU_LOCAL(query_bytes),
                         SN_XPU_LOCAL(key_bytes)};
    sn_status status = SN_OK;
    if (parts.n > 1)
        status = sn_xpu_buffer_reserve(x, &x->partial,
                                       sn_xpu_slot_bytes(n * (size_t)params->n_heads * parts.n, shape->latent), err);
    if (!status) status = sn_xpu_barrier(x, err);
    if (!status)
        status = sn_xpu_launch(x, x->kv[shape->dtype].latent_attention, groups, n * parts.n, COUNT(args), args, err);
    if (status || parts.n == 1) return status;
    return sn_xpu_join_parts(x, params, shape->latent, parts, out, (sn_xpu_rows8){0}, err);
}

sn_status sn_xpu_head_linear(sn_device *d, int n, const float *x, int x_width, const sn_experts *heads, float *y,
                             sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_weight *w = &heads->first;
    sn_xpu_layout layout;
    if (w->rows > SN_LATENT_DIM_MAX || w->cols > SN_LATENT_DIM_MAX || x_width > 2 * SN_LATENT_DIM_MAX ||
        (size_t)x_width < w->cols)
        return sn_fail(err, SN_REFUSED, "heads of %d elements with matrices of %zu by %zu are not possible", x_width,
                       w->rows, w->cols);
    if (n <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = sn_xpu_layout_of(w->dtype, w->rows, w->cols, &layout, err);
    if (!status) status = sn_xpu_load_linear(xpu, layout.form, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status) return status;
    uint64_t stride = heads->stride, highs = layout.highs, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, rest = (uint32_t)x_width - cols, count = (uint32_t)n;
    sn_xpu_arg args[] = {SN_XPU_ARG(w->device), SN_XPU_ARG(highs), SN_XPU_ARG(scales), SN_XPU_ARG(supers),
                         SN_XPU_ARG(stride),    SN_XPU_ARG(rows),  SN_XPU_ARG(cols),   SN_XPU_ARG(heads->n),
                         SN_XPU_ARG(rest),      SN_XPU_ARG(count), SN_XPU_ARG(x),      SN_XPU_ARG(y)};
    return sn_xpu_launch(xpu, xpu->linear[layout.form].head_linear, (w->rows + OUTPUTS - 1) / OUTPUTS,
                         ((size_t)n + ROWS - 1) / ROWS * (size_t)heads->n, COUNT(args), args, err);
}
