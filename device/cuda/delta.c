/* Recurrent blocks on CUDA: argument checks and kernel launches. */
#include "device/cuda/cuda_private.h"

static sn_status begin(sn_cuda *cuda, const sn_delta *delta, sn_err *err) {
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status && (cuda->state == SN_CUDA_NO_BATCH || cuda->state == SN_CUDA_REPLAYING))
        status =
            sn_fail(err, SN_REFUSED, "%s: short_conv or delta_rule was called outside of a batch", cuda->description);
    return status ? status : sn_device_check_delta(&delta->shape, cuda->n_sequences, cuda->sequences, err);
}

static sn_cuda_delta delta_of(const sn_cuda *cuda, const sn_delta *delta) {
    const sn_delta_shape *s = &delta->shape;
    return (sn_cuda_delta){.key_heads = s->n_key_heads,
                           .value_heads = s->n_value_heads,
                           .key_dim = s->key_dim,
                           .value_dim = s->value_dim,
                           .taps = s->taps,
                           .key_heads_alternate = s->key_heads_alternate,
                           .channels = sn_delta_channels(s),
                           .matrix_floats = sn_delta_matrices(s),
                           .block_floats = (size_t)delta->block * sn_delta_floats(s),
                           .kind = s->kind,
                           .first_channel = delta->first_channel,
                           .count = sn_delta_count(delta),
                           .tap_weights = delta->taps,
                           .taps_bias = delta->taps_bias,
                           .skip = delta->skip,
                           .floor = delta->floor,
                           .rates = delta->rates,
                           .time_bias = delta->time_bias,
                           .states = sn_cuda_states_of(cuda)};
}

sn_status sn_cuda_short_conv_op(sn_device *d, const sn_delta *delta, float *x, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = begin(cuda, delta, err);
    if (!status && cuda->n_rows) {
        const sn_cuda_delta p = delta_of(cuda, delta);
        status =
            sn_cuda_check_launch(cuda, sn_cuda_short_conv(cuda->work, &p, cuda->n_sequences, x), "short_conv", err);
    }
    return sn_cuda_op_done(cuda, status);
}

sn_status sn_cuda_delta_rule_op(sn_device *d, const sn_delta *delta, const sn_delta_rows *rows, float *out,
                                sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_status status = begin(cuda, delta, err);
    if (!status && cuda->n_rows) {
        const sn_cuda_delta p = delta_of(cuda, delta);
        status = sn_cuda_check_launch(cuda, sn_cuda_delta_rule(cuda->work, &p, cuda->n_sequences, rows, out),
                                      "delta_rule", err);
    }
    return sn_cuda_op_done(cuda, status);
}
