/* Activation functions and their gradients. Part of kernels.inc.c, which says at its top how the bits are kept equal.
 */

/* 1 / (1 + exp(-x)); and `factor` times it. */
INLINE vf sigmoid_lanes(vf x) { return vf_div(vf_set(1), vf_add(vf_set(1), exp_lanes(vf_sub(vf_set(0), x)))); }
INLINE vf times_sigmoid(vf factor, vf x) { return vf_div(factor, vf_add(vf_set(1), exp_lanes(vf_sub(vf_set(0), x)))); }

/* 1 - 2 / (exp(2 x) + 1): within 2e-7 of tanh(x). */
INLINE vf tanh_lanes(vf x) { return vf_sub(vf_set(1), vf_div(vf_set(2), vf_add(exp_lanes(vf_add(x, x)), vf_set(1)))); }

/* exp(-x^2 / 2) */
INLINE vf bell_lanes(vf x) { return exp_lanes(vf_mul(vf_mul(vf_set(-0.5f), x), x)); }

/* The share of the normal distribution below x; bell = exp(-x^2 / 2). The share beyond |x| is bell * t * p(t) with t =
 * 1 / (1 + 0.4 |x|), where the polynomial p is within 2e-8 of the best one (fitted over |x| <= 14). Error: below 5 half
 * units in the last place, and the error of the exponential that half a unit of x^2 / 2 causes. */
INLINE vf normal_lanes(vf x, vf bell) {
    vf size = vf_bits(vi_and(vi_bits(x), vi_set(0x7fffffff)));
    vf t = vf_div(vf_set(1), vf_fma(vf_set(0x1.99999ap-2f), size, vf_set(1)));
    vf p = vf_set(0x1.06154ap-5f);
    p = vf_fma(p, t, vf_set(-0x1.67a58cp-3f));
    p = vf_fma(p, t, vf_set(0x1.849364p-2f));
    p = vf_fma(p, t, vf_set(-0x1.7b20f8p-2f));
    p = vf_fma(p, t, vf_set(0x1.dc829ap-4f));
    p = vf_fma(p, t, vf_set(-0x1.9c1b74p-6f));
    p = vf_fma(p, t, vf_set(0x1.73bdccp-4f));
    p = vf_fma(p, t, vf_set(0x1.10eb24p-3f));
    p = vf_fma(p, t, vf_set(0x1.46e364p-3f));
    p = vf_fma(p, t, vf_set(0x1.46d016p-3f));
    vf beyond = vf_mul(vf_mul(p, t), bell);
    return vf_if_less(x, vf_set(0), beyond, vf_sub(vf_set(1), beyond));
}

/* v of the tanh form of GELU, x / (1 + exp(-v)): v = 2 sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE vf gelu_inner(vf x) {
    vf cubic = vf_fma(vf_mul(x, x), vf_set(0.044715f), vf_set(1));
    return vf_mul(vf_mul(x, vf_set(1.5957691216f)), cubic);
}

/* min(x, 7) and min(max(x, -7), 7); NaN stays NaN. */
INLINE vf capped(vf x) { return vf_if_less(vf_set(7), x, vf_set(7), x); }
INLINE vf clamped(vf x) { return vf_if_less(x, vf_set(-7), vf_set(-7), capped(x)); }

/* max(x, 0); NaN stays NaN. */
INLINE vf above_zero(vf x) { return vf_if_less(x, vf_set(0), vf_set(0), x); }

/* The factor of the activation. */
INLINE vf factor_lanes(sn_activation kind, vf up) {
    return kind == SN_SWIGLU_CLAMPED ? vf_add(clamped(up), vf_set(1)) : up;
}

INLINE vf activation_lanes(sn_activation kind, vf x) {
    if (kind == SN_SILU) return times_sigmoid(x, x);
    if (kind == SN_SIGMOID) return sigmoid_lanes(x);
    if (kind == SN_TANH) return tanh_lanes(x);
    if (kind == SN_LINEAR) return x;
    if (kind == SN_RELU_SQUARED) return vf_mul(above_zero(x), x);
    if (kind == SN_SWIGLU_CLAMPED) return times_sigmoid(capped(x), vf_mul(capped(x), vf_set(1.702f)));
    if (kind == SN_GELU) return vf_mul(x, normal_lanes(x, bell_lanes(x)));
    return times_sigmoid(x, gelu_inner(x));
}

INLINE void activate_kind(sn_activation kind, size_t n, const float *gate, const float *up, float *y) {
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf a = activation_lanes(kind, left < SN_LANES ? vf_load_n(gate + i, left) : vf_load(gate + i));
        if (up) a = vf_mul(a, factor_lanes(kind, left < SN_LANES ? vf_load_n(up + i, left) : vf_load(up + i)));
        if (left < SN_LANES)
            vf_store_n(y + i, a, left);
        else
            vf_store(y + i, a);
    }
}

static void activate(sn_activation kind, size_t n, const float *gate, const float *up, float *y) {
    if (kind == SN_SILU) activate_kind(SN_SILU, n, gate, up, y);
    if (kind == SN_GELU) activate_kind(SN_GELU, n, gate, up, y);
    if (kind == SN_GELU_TANH) activate_kind(SN_GELU_TANH, n, gate, up, y);
    if (kind == SN_SWIGLU_CLAMPED) activate_kind(SN_SWIGLU_CLAMPED, n, gate, up, y);
    if (kind == SN_SIGMOID) activate_kind(SN_SIGMOID, n, gate, up, y);
    if (kind == SN_TANH) activate_kind(SN_TANH, n, gate, up, y);
    if (kind == SN_LINEAR) activate_kind(SN_LINEAR, n, gate, up, y);
    if (kind == SN_RELU_SQUARED) activate_kind(SN_RELU_SQUARED, n, gate, up, y);
}

/* The activation at x (to *y) and its slope. With s = 1 / (1 + exp(-v)), the slope of x s is s + x s (1 - s) v'. */
INLINE vf activation_slope(sn_activation kind, vf x, vf *y) {
    const vf one = vf_set(1);
    if (kind == SN_SWIGLU_CLAMPED) {
        vf m = capped(x), s = sigmoid_lanes(vf_mul(m, vf_set(1.702f)));
        *y = vf_mul(m, s);
        return vf_if_less(vf_set(7), x, vf_set(0), vf_fma(*y, vf_mul(vf_sub(one, s), vf_set(1.702f)), s));
    }
    if (kind == SN_SIGMOID) {
        *y = sigmoid_lanes(x);
        return vf_mul(*y, vf_sub(one, *y));
    }
    if (kind == SN_TANH) {
        *y = tanh_lanes(x);
        return vf_sub(one, vf_mul(*y, *y));
    }
    if (kind == SN_LINEAR) {
        *y = x;
        return one;
    }
    if (kind == SN_RELU_SQUARED) {
        *y = vf_mul(above_zero(x), x);
        return vf_add(above_zero(x), above_zero(x));
    }
    if (kind == SN_GELU) {
        vf bell = bell_lanes(x), share = normal_lanes(x, bell);
        *y = vf_mul(x, share);
        return vf_fma(vf_mul(x, bell), vf_set(0.3989422804f), share); /* 1 / sqrt(2 pi) */
    }
    vf s = sigmoid_lanes(kind == SN_SILU ? x : gelu_inner(x));
    *y = vf_mul(x, s);
    vf rest = vf_sub(one, s);
    if (kind == SN_GELU_TANH) {
        vf square = vf_fma(vf_mul(x, x), vf_set(3 * 0.044715f), one);
        rest = vf_mul(rest, vf_mul(square, vf_set(1.5957691216f)));
    }
    return vf_fma(*y, rest, s);
}

/* y = a(g) u:  du = dy a(g),  dg = dy u a'(g). SN_SWIGLU_CLAMPED: with the factor instead of u, and du = 0 where u is
 * clamped. */
INLINE void activate_grad_kind(sn_activation kind, size_t n, const float *gate, const float *up, const float *dy,
                               float *dgate, float *dup) {
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf d = vf_load_n(dy + i, left), a, slope = activation_slope(kind, vf_load_n(gate + i, left), &a), scaled = d;
        if (up) {
            vf u = vf_load_n(up + i, left), du = vf_mul(d, a);
            if (kind == SN_SWIGLU_CLAMPED)
                du = vf_if_less(vf_set(7), u, vf_set(0), vf_if_less(u, vf_set(-7), vf_set(0), du));
            scaled = vf_mul(d, factor_lanes(kind, u));
            vf_store_n(dup + i, du, left);
        }
        vf_store_n(dgate + i, vf_mul(scaled, slope), left);
    }
}

static void activate_grad(sn_activation kind, size_t n, const float *gate, const float *up, const float *dy,
                          float *dgate, float *dup) {
    if (kind == SN_SILU) activate_grad_kind(SN_SILU, n, gate, up, dy, dgate, dup);
    if (kind == SN_GELU) activate_grad_kind(SN_GELU, n, gate, up, dy, dgate, dup);
    if (kind == SN_GELU_TANH) activate_grad_kind(SN_GELU_TANH, n, gate, up, dy, dgate, dup);
    if (kind == SN_SWIGLU_CLAMPED) activate_grad_kind(SN_SWIGLU_CLAMPED, n, gate, up, dy, dgate, dup);
    if (kind == SN_SIGMOID) activate_grad_kind(SN_SIGMOID, n, gate, up, dy, dgate, dup);
    if (kind == SN_TANH) activate_grad_kind(SN_TANH, n, gate, up, dy, dgate, dup);
    if (kind == SN_LINEAR) activate_grad_kind(SN_LINEAR, n, gate, up, dy, dgate, dup);
    if (kind == SN_RELU_SQUARED) activate_grad_kind(SN_RELU_SQUARED, n, gate, up, dy, dgate, dup);
}
