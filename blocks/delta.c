#include "blocks/delta.h"

sn_delta_shape sn_delta_shape_of(const sn_hparams *hp, int n_blocks) {
    return (sn_delta_shape){.n_blocks = n_blocks,
                            .n_key_heads = hp->delta_key_heads,
                            .n_value_heads = hp->delta_value_heads,
                            .key_dim = hp->delta_key_dim,
                            .value_dim = hp->delta_value_dim,
                            .taps = hp->conv_taps,
                            .key_heads_alternate = hp->delta_heads_alternate,
                            .kind = hp->recurrence};
}

static sn_delta delta_of(const sn_block *b, const sn_hparams *hp, int place) {
    return (sn_delta){.shape = sn_delta_shape_of(hp, 0),
                      .block = place,
                      .taps = b->vector[SN_ROLE_DELTA_TAPS],
                      .rates = b->vector[SN_ROLE_DELTA_RATES],
                      .time_bias = b->vector[SN_ROLE_DELTA_TIME_BIAS],
                      .taps_bias = b->vector[SN_ROLE_DELTA_TAPS_BIAS],
                      .skip = b->vector[SN_ROLE_DELTA_SKIP],
                      .floor = hp->delta_floor};
}

static sn_linear linear_of(const sn_block *b, const sn_hparams *hp, sn_role role, float *y) {
    return (sn_linear){&b->matrix[role], NULL, y, sn_needs_precision(hp)};
}

/* h (n, n_embd) = norm(attn) * gate(out_gate), each head by itself, times Wout^T */
static sn_status norm_gate_out(const sn_block *b, const sn_forward_pass *p, sn_activation kind, sn_err *err) {
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const sn_gated gated = {kind, s->out_gate, s->attn, s->attn};
    const sn_linear out = linear_of(b, hp, SN_ROLE_DELTA_OUT, s->h);
    SN_TRY(p->device->ops->rms_norm(p->device, p->n_rows * hp->delta_value_heads, hp->delta_value_dim, s->attn,
                                    b->vector[SN_ROLE_DELTA_NORM], hp->norm_eps, s->attn, err));
    return p->device->ops->activate_linear(p->device, p->n_rows, &gated, &out, err);
}

/* Qwen3.5 and Qwen3-Next (2025). */
static sn_status gated_delta(const sn_block *b, const sn_delta *delta, const sn_forward_pass *p,
                             const sn_half_input *input, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const size_t width = sn_delta_width(hp), keys = sn_delta_keys(hp);

    /* mixed (n, width) = u Wqkv^T;  out_gate (n, value heads, value_dim), time, write (n, value heads) likewise */
    const sn_linear in[] = {
        linear_of(b, hp, SN_ROLE_DELTA_QKV, s->mixed), linear_of(b, hp, SN_ROLE_DELTA_GATE, s->out_gate),
        linear_of(b, hp, SN_ROLE_DELTA_TIME, s->time), linear_of(b, hp, SN_ROLE_DELTA_WRITE, s->write)};
    SN_TRY(sn_half_linear(d, p->n_rows, input, 4, in, err));

    /* mixed = silu(convolution(mixed));  attn (n, value heads, value_dim) = delta_rule(mixed) */
    const sn_delta_rows rows = {s->mixed, s->mixed + keys, s->mixed + 2 * keys, width, width, s->time, s->write};
    SN_TRY(d->ops->short_conv(d, delta, s->mixed, err));
    SN_TRY(d->ops->delta_rule(d, delta, &rows, s->attn, err));
    return norm_gate_out(b, p, SN_SILU, err);
}

/* out (n, rows of the role's matrix) = (low Wlow^T) W^T, where `low` is made of the half's input already; its role
 * comes with delta_rank only, and without it `out` is made. */
static sn_status raise_rank(const sn_block *b, const sn_forward_pass *p, sn_role role, const float *low, float *out,
                            sn_err *err) {
    const sn_linear raise = linear_of(b, p->hp, role, out);
    return p->hp->delta_rank ? p->device->ops->linear(p->device, p->n_rows, low, 1, &raise, err) : SN_OK;
}

/* mixed's part from channel `first` on: `count` channels of all rows, one behind the other. */
static sn_status conv_part(const sn_block *b, const sn_delta *delta, const sn_forward_pass *p, sn_role taps,
                           size_t first, size_t count, sn_err *err) {
    sn_delta part = *delta;
    part.taps = b->vector[taps];
    part.first_channel = first, part.count = count;
    return p->device->ops->short_conv(p->device, &part, p->scratch->mixed + (size_t)p->n_rows * first, err);
}

/* Kimi Delta Attention (Kimi Team 2025): q, k and v are matrices and convolutions of their own, what an element of the
 * key decays by and the output's gate may come from fewer numbers. */
static sn_status keyed_delta(const sn_block *b, const sn_delta *delta, const sn_forward_pass *p,
                             const sn_half_input *input, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const size_t keys = sn_delta_keys(hp), values = sn_delta_values(hp), n = (size_t)p->n_rows;
    float *q = s->mixed, *k = q + n * keys, *v = k + n * keys, *low = s->low,
          *gate_low = low + n * (size_t)hp->delta_rank;
    bool ranked = hp->delta_rank;

    /* q, k (n, heads, key_dim), v (n, heads, value_dim), write (n, heads);  time (n, heads, key_dim), out_gate like v
     */
    const sn_linear in[] = {linear_of(b, hp, SN_ROLE_DELTA_Q, q),
                            linear_of(b, hp, SN_ROLE_DELTA_K, k),
                            linear_of(b, hp, SN_ROLE_DELTA_V, v),
                            linear_of(b, hp, SN_ROLE_DELTA_WRITE, s->write),
                            ranked ? linear_of(b, hp, SN_ROLE_DELTA_TIME_LOW, low)
                                   : linear_of(b, hp, SN_ROLE_DELTA_TIME, s->time),
                            ranked ? linear_of(b, hp, SN_ROLE_DELTA_GATE_LOW, gate_low)
                                   : linear_of(b, hp, SN_ROLE_DELTA_GATE, s->out_gate)};
    SN_TRY(sn_half_linear(d, p->n_rows, input, 6, in, err));
    SN_TRY(raise_rank(b, p, SN_ROLE_DELTA_TIME, low, s->time, err));
    SN_TRY(raise_rank(b, p, SN_ROLE_DELTA_GATE, gate_low, s->out_gate, err));

    /* q, k, v = silu(convolution) each;  attn (n, heads, value_dim) = delta_rule(q, k, v) */
    const sn_delta_rows rows = {q, k, v, keys, values, s->time, s->write};
    SN_TRY(conv_part(b, delta, p, SN_ROLE_DELTA_Q_TAPS, 0, keys, err));
    SN_TRY(conv_part(b, delta, p, SN_ROLE_DELTA_K_TAPS, keys, keys, err));
    SN_TRY(conv_part(b, delta, p, SN_ROLE_DELTA_V_TAPS, 2 * keys, values, err));
    SN_TRY(d->ops->delta_rule(d, delta, &rows, s->attn, err));
    return norm_gate_out(b, p, SN_SIGMOID, err);
}

/* Mamba-2 (Dao & Gu 2024): values come first in what is mixed, then keys, then queries (x, B and C there). */
static sn_status state_space(const sn_block *b, const sn_delta *delta, const sn_forward_pass *p,
                             const sn_half_input *input, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    const size_t width = sn_delta_width(hp), keys = sn_delta_keys(hp), values = sn_delta_values(hp);
    int n = p->n_rows, groups = hp->delta_key_heads;

    /* mixed (n, width), out_gate (n, value heads, value_dim), time (n, value heads) of u */
    const sn_linear in[] = {linear_of(b, hp, SN_ROLE_DELTA_QKV, s->mixed),
                            linear_of(b, hp, SN_ROLE_DELTA_GATE, s->out_gate),
                            linear_of(b, hp, SN_ROLE_DELTA_TIME, s->time)};
    SN_TRY(sn_half_linear(d, n, input, 3, in, err));

    /* mixed = silu(convolution(mixed));  attn (n, value heads, value_dim) = the state space's output */
    const sn_delta_rows rows = {s->mixed + values + keys, s->mixed + values, s->mixed, width, width, s->time, NULL};
    SN_TRY(d->ops->short_conv(d, delta, s->mixed, err));
    SN_TRY(d->ops->delta_rule(d, delta, &rows, s->attn, err));

    /* attn = norm(attn * silu(out_gate)), the heads of each key head by themselves;  h (n, n_embd) = attn Wout^T */
    const sn_linear out = linear_of(b, hp, SN_ROLE_DELTA_OUT, s->h);
    SN_TRY(d->ops->activate(d, (size_t)n * values, SN_SILU, s->out_gate, s->attn, s->attn, err));
    SN_TRY(d->ops->group_norm(d, n, groups, (int)(values / (size_t)groups), s->attn, b->vector[SN_ROLE_DELTA_NORM],
                              hp->norm_eps, s->attn, err));
    return d->ops->linear(d, n, s->attn, 1, &out, err);
}

/* LFM2 (Liquid AI 2025): a convolution between two gates. */
static sn_status gated_conv(const sn_block *b, const sn_delta *delta, const sn_forward_pass *p,
                            const sn_half_input *input, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;

    /* mixed, out_gate, write (n, n_embd) of u */
    const sn_linear in[] = {linear_of(b, hp, SN_ROLE_DELTA_QKV, s->mixed),
                            linear_of(b, hp, SN_ROLE_DELTA_GATE, s->out_gate),
                            linear_of(b, hp, SN_ROLE_DELTA_WRITE, s->write)};
    SN_TRY(sn_half_linear(d, p->n_rows, input, 3, in, err));

    /* mixed = convolution(write * mixed);  h (n, n_embd) = (out_gate * mixed) Wout^T */
    const sn_gated gated = {SN_LINEAR, s->out_gate, s->mixed, s->mixed};
    const sn_linear out = linear_of(b, hp, SN_ROLE_DELTA_OUT, s->h);
    SN_TRY(d->ops->activate(d, (size_t)p->n_rows * sn_delta_values(hp), SN_LINEAR, s->write, s->mixed, s->mixed, err));
    SN_TRY(d->ops->short_conv(d, delta, s->mixed, err));
    return d->ops->activate_linear(d, p->n_rows, &gated, &out, err);
}

sn_status sn_delta_forward(const sn_block *b, int place, const sn_forward_pass *p, const sn_half_input *input,
                           sn_err *err) {
    const sn_delta delta = delta_of(b, p->hp, place);
    switch (p->hp->recurrence) {
    case SN_KEYED_DELTA:
        return keyed_delta(b, &delta, p, input, err);
    case SN_STATE_SPACE:
        return state_space(b, &delta, p, input, err);
    case SN_SHORT_CONV:
        return gated_conv(b, &delta, p, input, err);
    default:
        return gated_delta(b, &delta, p, input, err);
    }
}
