#include "blocks/delta.h"

sn_delta_shape sn_delta_shape_of(const sn_hparams *hp, int n_blocks) {
    return (sn_delta_shape){.n_blocks = n_blocks,
                            .n_key_heads = hp->delta_key_heads,
                            .n_value_heads = hp->delta_value_heads,
                            .key_dim = hp->delta_key_dim,
                            .value_dim = hp->delta_value_dim,
                            .taps = hp->conv_taps,
                            .key_heads_alternate = hp->delta_heads_alternate};
}

sn_status sn_delta_forward(const sn_block *b, int place, const sn_forward_pass *p, const sn_half_input *input,
                           sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const sn_delta delta = {.shape = sn_delta_shape_of(hp, 0),
                            .block = place,
                            .taps = b->vector[SN_ROLE_DELTA_TAPS],
                            .rates = b->vector[SN_ROLE_DELTA_RATES],
                            .time_bias = b->vector[SN_ROLE_DELTA_TIME_BIAS]};
    int n = p->n_rows, heads = n * hp->delta_value_heads, dim = hp->delta_value_dim;
    bool precise = sn_needs_precision(hp);

    /* mixed (n, width) = u Wqkv^T;  out_gate (n, value heads, value_dim), time, write (n, value heads) likewise */
    const sn_linear in[] = {{&b->matrix[SN_ROLE_DELTA_QKV], NULL, s->mixed, precise},
                            {&b->matrix[SN_ROLE_DELTA_GATE], NULL, s->out_gate, precise},
                            {&b->matrix[SN_ROLE_DELTA_TIME], NULL, s->time, precise},
                            {&b->matrix[SN_ROLE_DELTA_WRITE], NULL, s->write, precise}};
    SN_TRY(sn_half_linear(d, n, input, 4, in, err));

    /* mixed = silu(convolution(mixed));  attn (n, value heads, value_dim) = delta_rule(mixed) */
    SN_TRY(ops->short_conv(d, &delta, s->mixed, err));
    SN_TRY(ops->delta_rule(d, &delta, s->mixed, s->time, s->write, s->attn, err));

    /* attn = norm(attn) * silu(out_gate), each head by itself;  h (n, n_embd) = attn Wout^T */
    const sn_gated gated = {SN_SILU, s->out_gate, s->attn, s->attn};
    const sn_linear out = {&b->matrix[SN_ROLE_DELTA_OUT], NULL, s->h, precise};
    SN_TRY(ops->rms_norm(d, heads, dim, s->attn, b->vector[SN_ROLE_DELTA_NORM], hp->norm_eps, s->attn, err));
    return ops->activate_linear(d, n, &gated, &out, err);
}
