/* Recurrent blocks on an XPU: argument checks and kernel launches. */
#include "device/xpu/xpu_private.h"

#define COUNT(args) ((int)(sizeof(args) / sizeof *(args)))

sn_status sn_xpu_short_conv(sn_device *d, const sn_delta *delta, float *x, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_delta_shape *s = &delta->shape;
    sn_status status = sn_device_check_delta(s, xpu->n_sequences, xpu->sequences, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status || !xpu->batch_rows) return status;
    const uint8_t *states = (uint8_t *)xpu->batch_table.device + xpu->states_at;
    const uint64_t channels = sn_delta_channels(s), count = sn_delta_count(delta),
                   at = (uint64_t)delta->block * sn_delta_floats(s) + sn_delta_matrices(s) + delta->first_channel;
    const uint32_t plain = s->kind == SN_SHORT_CONV;
    sn_xpu_arg args[] = {SN_XPU_ARG(states),  SN_XPU_ARG(at),    SN_XPU_ARG(channels),    SN_XPU_ARG(count),
                         SN_XPU_ARG(s->taps), SN_XPU_ARG(plain), SN_XPU_ARG(delta->taps), SN_XPU_ARG(delta->taps_bias),
                         SN_XPU_ARG(x)};
    return sn_xpu_launch(xpu, xpu->kernels[SN_XPU_short_conv], (size_t)(count + 63) / 64, (size_t)xpu->n_sequences,
                         COUNT(args), args, err);
}

static sn_xpu_kernel kernel_of(sn_recurrence kind, bool wide) {
    if (kind == SN_KEYED_DELTA) return wide ? SN_XPU_keyed_delta16 : SN_XPU_keyed_delta4;
    if (kind == SN_STATE_SPACE) return wide ? SN_XPU_state_space16 : SN_XPU_state_space4;
    return wide ? SN_XPU_delta_rule16 : SN_XPU_delta_rule4;
}

sn_status sn_xpu_delta_rule(sn_device *d, const sn_delta *delta, const sn_delta_rows *rows, float *out, sn_err *err) {
    sn_xpu *xpu = sn_xpu_of(d);
    const sn_delta_shape *s = &delta->shape;
    sn_status status = sn_device_check_delta(s, xpu->n_sequences, xpu->sequences, err);
    if (!status) status = sn_xpu_barrier(xpu, err);
    if (status || !xpu->batch_rows) return status;
    const bool wide = s->key_dim > 128; /* as in delta.clh */
    const size_t columns = wide ? 4 : 16, tiles = ((size_t)s->value_dim + columns - 1) / columns;
    const uint8_t *states = (uint8_t *)xpu->batch_table.device + xpu->states_at;
    const uint64_t key_stride = rows->key_stride, value_stride = rows->value_stride,
                   at = (uint64_t)delta->block * sn_delta_floats(s);
    const uint32_t alternate = s->key_heads_alternate;
    sn_xpu_arg args[] = {SN_XPU_ARG(states),
                         SN_XPU_ARG(at),
                         SN_XPU_ARG(key_stride),
                         SN_XPU_ARG(value_stride),
                         SN_XPU_ARG(s->n_key_heads),
                         SN_XPU_ARG(s->n_value_heads),
                         SN_XPU_ARG(s->key_dim),
                         SN_XPU_ARG(s->value_dim),
                         SN_XPU_ARG(alternate),
                         SN_XPU_ARG(delta->rates),
                         SN_XPU_ARG(delta->time_bias),
                         SN_XPU_ARG(delta->skip),
                         SN_XPU_ARG(delta->floor),
                         SN_XPU_ARG(rows->q),
                         SN_XPU_ARG(rows->k),
                         SN_XPU_ARG(rows->v),
                         SN_XPU_ARG(rows->a),
                         SN_XPU_ARG(rows->b),
                         SN_XPU_ARG(out)};
    return sn_xpu_launch(xpu, xpu->kernels[kernel_of(s->kind, wide)], tiles * (size_t)s->n_value_heads,
                         (size_t)xpu->n_sequences, COUNT(args), args, err);
}
