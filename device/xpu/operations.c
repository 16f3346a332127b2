/* The operations on rows and elements: argument checks and one kernel launch each. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"

#include <assert.h>

static size_t groups_of(size_t n, size_t size) { return (n + size - 1) / size; }

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

enum { STEPS = 64 }; /* as in linear.cl */

sn_status sn_xpu_launch_norm(sn_xpu *x, int n, const sn_norm *p, sn_xpu_rows8 rows, sn_err *err) {
    assert(n >= 0 && p->width > 0);
    if (n == 0) return sn_xpu_check_alive(x, err);
    const uint32_t groups = 1;
    sn_xpu_arg args[] = {SN_XPU_ARG(p->width), SN_XPU_ARG(p->x),        SN_XPU_ARG(p->weight),
                         SN_XPU_ARG(p->eps),   SN_XPU_ARG(p->y),        SN_XPU_ARG(p->add),
                         SN_XPU_ARG(rows.q),   SN_XPU_ARG(rows.scales), SN_XPU_ARG(groups)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status : sn_xpu_launch(x, x->kernels[SN_XPU_rms_norm], (size_t)n, 1, COUNT(args), args, err);
}

sn_status sn_xpu_rms_norm(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                          sn_err *err) {
    const sn_norm norm = {.width = width, .x = (float *)x, .weight = weight, .eps = eps, .y = y};
    return sn_xpu_launch_norm(sn_xpu_of(d), n, &norm, (sn_xpu_rows8){0}, err);
}

sn_status sn_xpu_group_norm(sn_device *d, int n, int groups, int width, const float *x, const float *weight, float eps,
                            float *y, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const void *none = NULL;
    assert(n >= 0 && groups > 0 && width > 0);
    if (n == 0) return sn_xpu_check_alive(xpu, err);
    sn_xpu_arg args[] = {SN_XPU_ARG(width), SN_XPU_ARG(x),    SN_XPU_ARG(weight), SN_XPU_ARG(eps),   SN_XPU_ARG(y),
                         SN_XPU_ARG(none),  SN_XPU_ARG(none), SN_XPU_ARG(none),   SN_XPU_ARG(groups)};
    sn_status status = sn_xpu_barrier(xpu, err);
    if (status) return status;
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_rms_norm], (size_t)n * (size_t)groups, 1, COUNT(args), args, err);
}

sn_status sn_xpu_layer_norm(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias,
                            float eps, float *y, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    assert(n >= 0 && width > 0);
    sn_xpu_arg args[] = {SN_XPU_ARG(width), SN_XPU_ARG(x),   SN_XPU_ARG(weight),
                         SN_XPU_ARG(bias),  SN_XPU_ARG(eps), SN_XPU_ARG(y)};
    sn_status status = sn_xpu_barrier(xpu, err);
    return status ? status : sn_xpu_launch(xpu, xpu->kernels[SN_XPU_layer_norm], (size_t)n, 1, COUNT(args), args, err);
}

sn_status sn_xpu_rope(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    assert(n >= 0 && n_heads > 0 && rope->dim >= 0 && rope->dim % 2 == 0 && rope->dim <= head_dim);
    const size_t pairs = (size_t)n * (size_t)n_heads * (size_t)(rope->dim / 2);
    if (pairs > INT32_MAX) return sn_fail(err, SN_REFUSED, "%d rows of %d heads are too many at once", n, n_heads);
    if (!pairs) return sn_xpu_check_alive(xpu, err);
    uint32_t count = (uint32_t)pairs, rotate_half = rope->rotate_half;
    sn_xpu_arg args[] = {SN_XPU_ARG(count),       SN_XPU_ARG(n_heads), SN_XPU_ARG(head_dim),     SN_XPU_ARG(rope->dim),
                         SN_XPU_ARG(rotate_half), SN_XPU_ARG(x),       SN_XPU_ARG(rope->cos_sin)};
    sn_status status = sn_xpu_barrier(xpu, err);
    return status ? status
                  : sn_xpu_launch(xpu, xpu->kernels[SN_XPU_rope], groups_of(pairs, 64), 1, COUNT(args), args, err);
}

sn_status sn_xpu_launch_activate(sn_xpu *x, size_t n, const sn_gated *p, sn_xpu_rows8 rows, sn_err *err) {
    if (n == 0) return sn_xpu_check_alive(x, err);
    uint64_t count = n;
    uint32_t kind = (uint32_t)p->kind;
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(kind),   SN_XPU_ARG(p->gate),    SN_XPU_ARG(p->up),
                         SN_XPU_ARG(p->y),  SN_XPU_ARG(rows.q), SN_XPU_ARG(rows.scales)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status : sn_xpu_launch(x, x->kernels[SN_XPU_activate], groups_of(n, 64), 1, COUNT(args), args, err);
}

sn_status sn_xpu_activate(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y,
                          sn_err *err) {
    return sn_xpu_launch_activate(sn_xpu_of(d), n, &(sn_gated){kind, gate, up, y}, (sn_xpu_rows8){0}, err);
}

sn_status sn_xpu_add(sn_device *d, size_t n, float *y, const float *x, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    if (n == 0) return sn_xpu_check_alive(xpu, err);
    uint64_t count = n;
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(y), SN_XPU_ARG(x)};
    sn_status status = sn_xpu_barrier(xpu, err);
    return status ? status : sn_xpu_launch(xpu, xpu->kernels[SN_XPU_add], groups_of(n, 64), 1, COUNT(args), args, err);
}

sn_status sn_xpu_scale(sn_device *d, int n, int width, const float *x, float factor, const float *factors, float *y,
                       sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    uint64_t count = n > 0 ? (uint64_t)n * (uint64_t)width : 0;
    sn_xpu_arg args[] = {SN_XPU_ARG(count),  SN_XPU_ARG(width),   SN_XPU_ARG(x),
                         SN_XPU_ARG(factor), SN_XPU_ARG(factors), SN_XPU_ARG(y)};
    sn_status status = sn_xpu_barrier(xpu, err);
    return status ? status
                  : sn_xpu_launch(xpu, xpu->kernels[SN_XPU_scale], groups_of((size_t)count, 64), 1, COUNT(args), args,
                                  err);
}

sn_status sn_xpu_clamp(sn_device *d, size_t n, float *values, float low, float high, sn_err *err) {
    sn_xpu *x = sn_xpu_of(d);
    uint64_t count = n;
    if (n == 0) return sn_xpu_check_alive(x, err);
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(values), SN_XPU_ARG(low), SN_XPU_ARG(high)};
    sn_status status = sn_xpu_barrier(x, err);
    return status ? status
                  : sn_xpu_launch(x, x->kernels[SN_XPU_clamp_all], groups_of(n, 64), 1, COUNT(args), args, err);
}

sn_status sn_xpu_dot_rows(sn_device *d, int n, int width, const float *a, const float *b, float *y, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    assert(n >= 0 && width >= 0);
    sn_xpu_arg args[] = {SN_XPU_ARG(width), SN_XPU_ARG(a), SN_XPU_ARG(b), SN_XPU_ARG(y)};
    sn_status status = sn_xpu_barrier(xpu, err);
    return status ? status : sn_xpu_launch(xpu, xpu->kernels[SN_XPU_dot_rows], (size_t)n, 1, COUNT(args), args, err);
}

sn_status sn_xpu_get_rows(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_layout layout;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= weight->rows)
            return sn_fail(err, SN_REFUSED, "row %d does not exist: the matrix has %zu rows", ids[i], weight->rows);
    if (n <= 0) return sn_xpu_check_alive(xpu, err);
    sn_status status = sn_xpu_layout_of(weight->dtype, weight->rows, weight->cols, &layout, err);
    if (!status) status = sn_xpu_load_linear(xpu, layout.form, err);
    if (!status) status = sn_xpu_buffer_reserve(xpu, &xpu->ids, (size_t)n * sizeof *ids, err);
    if (!status) status = sn_xpu_upload(d, xpu->ids.device, ids, (size_t)n * sizeof *ids, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status) return status;
    uint64_t highs = layout.highs, scales = layout.scales, supers = layout.supers;
    uint32_t cols = (uint32_t)weight->cols;
    sn_xpu_arg args[] = {
        SN_XPU_ARG(weight->device), SN_XPU_ARG(highs),           SN_XPU_ARG(scales), SN_XPU_ARG(supers),
        SN_XPU_ARG(cols),           SN_XPU_ARG(xpu->ids.device), SN_XPU_ARG(y)};
    return sn_xpu_launch(xpu, xpu->linear[layout.form].get_rows, groups_of(layout.steps, STEPS), (size_t)n, COUNT(args),
                         args, err);
}
