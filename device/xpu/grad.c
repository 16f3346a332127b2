/* The backward pass: argument checks and kernel launches. */
#include "device/xpu/xpu_private.h"

#include "base/mem.h"

#include <assert.h>

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))
enum { ITEMS = 64, SHARED_ROWS = 4 }; /* as in grad.cl and linear.cl */

static size_t groups_of(size_t n, size_t size) { return (n + size - 1) / size; }

sn_status sn_xpu_linear_input_grad(sn_device *d, int n, const float *dy, const sn_weight *weight, bool accumulate,
                                   float *dx, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_xpu_layout layout;
    if (n <= 0 || !weight->rows || !weight->cols) return sn_xpu_check_alive(xpu, err);
    sn_status status = sn_xpu_layout_of(weight->dtype, weight->rows, weight->cols, &layout, err);
    if (!status) status = sn_xpu_load_linear(xpu, layout.form, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status) return status;
    uint64_t highs = layout.highs, scales = layout.scales, supers = layout.supers;
    uint32_t rows = (uint32_t)weight->rows, cols = (uint32_t)weight->cols, accumulates = accumulate,
             count = (uint32_t)n;
    sn_xpu_arg args[] = {
        SN_XPU_ARG(weight->device), SN_XPU_ARG(highs), SN_XPU_ARG(scales),      SN_XPU_ARG(supers), SN_XPU_ARG(rows),
        SN_XPU_ARG(cols),           SN_XPU_ARG(dy),    SN_XPU_ARG(accumulates), SN_XPU_ARG(dx),     SN_XPU_ARG(count)};
    return sn_xpu_launch(xpu, xpu->linear[layout.form].input_grad, groups_of(layout.steps, ITEMS),
                         groups_of((size_t)n, SHARED_ROWS), COUNT(args), args, err);
}

/* Loads the kernels of grad.cl and queues a barrier. */
static sn_status grad_begin(sn_xpu *xpu, sn_err *err) {
    sn_status status = sn_xpu_load_grad(xpu, err);
    return status ? status : sn_xpu_barrier(xpu, err);
}

sn_status sn_xpu_linear_weight_grad(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                                    sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = grad_begin(xpu, err);
    if (status || n <= 0) return status;
    uint64_t items = (uint64_t)rows * (uint64_t)cols;
    sn_xpu_arg args[] = {SN_XPU_ARG(items), SN_XPU_ARG(n), SN_XPU_ARG(rows), SN_XPU_ARG(cols),
                         SN_XPU_ARG(dy),    SN_XPU_ARG(x), SN_XPU_ARG(dw)};
    return sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_linear_weight_grad], groups_of((size_t)items, ITEMS), 1,
                         COUNT(args), args, err);
}

/* The arguments that rms_norm_grad and layer_norm_grad have in common. */
typedef struct norm_grad {
    int n, width;
    const float *x, *weight;
    float eps;
    const float *dy;
    bool accumulate;
    float *dx;
} norm_grad;

static sn_status norm_grad_run(sn_device *d, sn_xpu_grad kernel, norm_grad g, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    assert(g.n >= 0 && g.width > 0);
    sn_status status = grad_begin(xpu, err);
    uint32_t accumulates = g.accumulate;
    sn_xpu_arg args[] = {SN_XPU_ARG(g.width), SN_XPU_ARG(g.x),         SN_XPU_ARG(g.weight), SN_XPU_ARG(g.eps),
                         SN_XPU_ARG(g.dy),    SN_XPU_ARG(accumulates), SN_XPU_ARG(g.dx)};
    return status ? status : sn_xpu_launch(xpu, xpu->grads[kernel], (size_t)g.n, 1, COUNT(args), args, err);
}

sn_status sn_xpu_rms_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool accumulate, float *dx, sn_err *err) {
    return norm_grad_run(d, SN_XPU_GRAD_rms_norm_grad, (norm_grad){n, width, x, weight, eps, dy, accumulate, dx}, err);
}

sn_status sn_xpu_layer_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool accumulate, float *dx, sn_err *err) {
    return norm_grad_run(d, SN_XPU_GRAD_layer_norm_grad, (norm_grad){n, width, x, weight, eps, dy, accumulate, dx},
                         err);
}

sn_status sn_xpu_activate_grad(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                               const float *dy, float *dgate, float *dup, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = grad_begin(xpu, err);
    uint64_t count = n;
    uint32_t which = (uint32_t)kind;
    sn_xpu_arg args[] = {SN_XPU_ARG(count), SN_XPU_ARG(which), SN_XPU_ARG(gate), SN_XPU_ARG(up),
                         SN_XPU_ARG(dy),    SN_XPU_ARG(dgate), SN_XPU_ARG(dup)};
    return status ? status
                  : sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_activate_grad], groups_of(n, ITEMS), 1, COUNT(args), args,
                                  err);
}

sn_status sn_xpu_attention_grad(sn_device *d, const sn_attention_grad *g, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    sn_status status = grad_begin(xpu, err);
    if (status || g->n <= 0) return status;
    size_t queries = (size_t)g->n * (size_t)g->n_heads,
           keys = ((size_t)g->first + (size_t)g->n) * (size_t)g->n_kv_heads;
    status = sn_xpu_buffer_reserve(xpu, &xpu->grad_stats, 3 * queries * sizeof(float), err);
    sn_xpu_arg q[] = {
        SN_XPU_ARG(g->first),    SN_XPU_ARG(g->n),      SN_XPU_ARG(g->n_heads), SN_XPU_ARG(g->n_kv_heads),
        SN_XPU_ARG(g->head_dim), SN_XPU_ARG(g->window), SN_XPU_ARG(g->scale),   SN_XPU_ARG(g->softcap),
        SN_XPU_ARG(g->slopes),   SN_XPU_ARG(g->sinks),  SN_XPU_ARG(g->q),       SN_XPU_ARG(g->k),
        SN_XPU_ARG(g->v),        SN_XPU_ARG(g->dout),   SN_XPU_ARG(g->dq),      SN_XPU_ARG(xpu->grad_stats.device)};
    sn_xpu_arg kv[] = {SN_XPU_ARG(g->first),    SN_XPU_ARG(g->n),
                       SN_XPU_ARG(g->n_heads),  SN_XPU_ARG(g->n_kv_heads),
                       SN_XPU_ARG(g->head_dim), SN_XPU_ARG(g->window),
                       SN_XPU_ARG(g->scale),    SN_XPU_ARG(g->softcap),
                       SN_XPU_ARG(g->slopes),   SN_XPU_ARG(g->q),
                       SN_XPU_ARG(g->k),        SN_XPU_ARG(g->v),
                       SN_XPU_ARG(g->dout),     SN_XPU_ARG(xpu->grad_stats.device),
                       SN_XPU_ARG(g->dk),       SN_XPU_ARG(g->dv)};
    if (!status)
        status = sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_attention_grad_q], groups_of(queries, ITEMS), 1, COUNT(q), q,
                               err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (!status)
        status = sn_xpu_launch(xpu, xpu->grads[SN_XPU_GRAD_attention_grad_kv], groups_of(keys, ITEMS), 1, COUNT(kv), kv,
                               err);
    return status;
}
