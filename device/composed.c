/* The operations of what belongs together in a block, composed of those that each consists of. */
#include "device/backends.h"

sn_status sn_composed_norm_linear(sn_device *d, int n, const sn_norm *p, int n_linears, const sn_linear *linears,
                                  sn_err *err) {
    const sn_device_ops *ops = d->ops;
    sn_status status = p->add ? ops->add(d, (size_t)n * (size_t)p->width, p->x, p->add, err) : SN_OK;
    if (!status)
        status = p->layer ? ops->layer_norm(d, n, p->width, p->x, p->weight, p->bias, p->eps, p->y, err)
                          : ops->rms_norm(d, n, p->width, p->x, p->weight, p->eps, p->y, err);
    return status ? status : ops->linear(d, n, p->y, n_linears, linears, err);
}

sn_status sn_composed_rope_store(sn_device *d, int block, const sn_rotated *p, const float *v, sn_err *err) {
    sn_status status = d->ops->rope(d, p->n, p->n_heads, p->head_dim, p->q, &p->rope, err);
    if (!status) status = d->ops->rope(d, p->n, p->n_kv_heads, p->head_dim, p->k, &p->rope, err);
    return status ? status : d->ops->kv_store(d, block, p->k, v, err);
}

sn_status sn_composed_attention_linear(sn_device *d, int n, const sn_attention *params, const float *q, float *out,
                                       const sn_linear *linear, sn_err *err) {
    sn_status status = d->ops->attention(d, params, q, out, err);
    return status ? status : d->ops->linear(d, n, out, 1, linear, err);
}

sn_status sn_composed_activate_linear(sn_device *d, int n, const sn_gated *p, const sn_linear *linear, sn_err *err) {
    const size_t elements = (size_t)n * linear->weight->cols;
    sn_status status = d->ops->activate(d, elements, p->kind, p->gate, p->up, p->y, err);
    return status ? status : d->ops->linear(d, n, p->y, 1, linear, err);
}

sn_status sn_composed_activate_moe_linear(sn_device *d, const sn_moe_selection *selection, const sn_gated *p,
                                          const sn_moe_linear *linear, sn_err *err) {
    const size_t pairs = (size_t)selection->n * (size_t)selection->k;
    sn_status status = d->ops->activate(d, pairs * linear->experts->first.cols, p->kind, p->gate, p->up, p->y, err);
    return status ? status : d->ops->moe_linear(d, selection, true, p->y, 1, linear, err);
}
