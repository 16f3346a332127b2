/* Mixtures of experts, a row at a time; part of kernels.inc.c, whose top says what is promised. */

/* exp(x[i] - most) of n numbers to out; their sum, as 16 partial sums by position. */
static float exp_all(size_t n, const float *x, float most, float *out) {
    vf sum = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t lanes = n - i < SN_LANES ? n - i : SN_LANES;
        vf p = exp_lanes(vf_sub(vf_load_n(x + i, lanes), vf_set(most)));
        float t[SN_LANES] = {0};
        vf_store_n(t, p, lanes); /* nothing where there is no number */
        sum = vf_add(sum, vf_load(t));
        vf_store_n(out + i, p, lanes);
    }
    return tree_sum(sum);
}

static void divide_all(size_t n, float *x, float by) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] / by;
}

/* The largest first, of equal ones the lower. NaN is larger than nothing, so that every id is an expert's. */
static void choose(int n_experts, int k, const float *logits, int32_t *ids) {
    uint64_t taken[SN_EXPERTS_MAX / 64] = {0};
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int e = 0; e < n_experts; e++)
            if (!(taken[e / 64] >> e % 64 & 1) && (best < 0 || logits[e] > logits[best])) best = e;
        taken[best / 64] |= (uint64_t)1 << best % 64;
        ids[j] = best;
    }
}

static void route(int n_experts, int k, bool over_all, const float *logits, int32_t *ids, float *weights) {
    float all[SN_EXPERTS_MAX];
    choose(n_experts, k, logits, ids);
    float most = logits[ids[0]];
    for (int j = 0; j < k; j++) weights[j] = logits[ids[j]];
    float sum = exp_all((size_t)k, weights, most, weights);
    if (over_all) sum = exp_all((size_t)n_experts, logits, most, all);
    divide_all((size_t)k, weights, sum);
}

static void combine(int k, size_t width, const float *weights, const float *x, float *y) {
    for (size_t i = 0; i < width; i += SN_LANES) {
        size_t lanes = width - i < SN_LANES ? width - i : SN_LANES;
        vf acc = vf_set(0);
        for (int j = 0; j < k; j++)
            acc = vf_fma(vf_set(weights[j]), vf_load_n(x + (size_t)j * width + i, lanes), acc);
        vf_store_n(y + i, acc, lanes);
    }
}

static void combine_grad(int k, size_t width, const float *weights, const float *x, const float *dy, float *dx,
                         float *dweights) {
    for (int j = 0; j < k; j++, x += width, dx += width) {
        vf sum = vf_set(0), weight = vf_set(weights[j]);
        for (size_t i = 0; i < width; i += SN_LANES) {
            size_t lanes = width - i < SN_LANES ? width - i : SN_LANES;
            vf d = vf_load_n(dy + i, lanes);
            sum = vf_fma(d, vf_load_n(x + i, lanes), sum);
            vf_store_n(dx + i, vf_mul(weight, d), lanes);
        }
        dweights[j] = tree_sum(sum);
    }
}

/* w = softmax: dl = w * (dw - sum(w dw)), of those whose softmax it is. */
static void route_grad(int n_experts, int k, bool over_all, const float *logits, const int32_t *ids, const float *weights,
                       const float *dweights, float *dlogits) {
    float mean = 0;
    for (int j = 0; j < k; j++) mean += weights[j] * dweights[j];
    if (over_all) {
        divide_all((size_t)n_experts, dlogits, exp_all((size_t)n_experts, logits, logits[ids[0]], dlogits));
        for (int e = 0; e < n_experts; e++) dlogits[e] = -dlogits[e] * mean;
    } else {
        for (int e = 0; e < n_experts; e++) dlogits[e] = 0;
    }
    for (int j = 0; j < k; j++) dlogits[ids[j]] = weights[j] * (dweights[j] - mean);
}
