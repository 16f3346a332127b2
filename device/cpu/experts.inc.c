/* Mixtures of experts, one row per call. Part of kernels.inc.c, which says at its top how the bits are kept equal. */

/* out (n) = exp(x[i] - max_logit); returns the sum, from 16 partial sums by position. */
static float softmax_exp(size_t n, const float *x, float max_logit, float *out) {
    vf sum = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t lanes = n - i < SN_LANES ? n - i : SN_LANES;
        vf p = exp_lanes(vf_sub(vf_load_n(x + i, lanes), vf_set(max_logit)));
        float t[SN_LANES] = {0};
        vf_store_n(t, p, lanes); /* zero beyond the end of the row */
        sum = vf_add(sum, vf_load(t));
        vf_store_n(out + i, p, lanes);
    }
    return tree_sum(sum);
}

static void softmax_divide(size_t n, float *x, float by) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] / by;
}

/* The k largest logits, the largest first; of equal ones the lower id first. A NaN compares false, so that every id is
 * valid even in a row of NaN. */
static void topk_select(int n_experts, int k, const float *logits, int32_t *ids) {
    uint64_t taken[SN_EXPERTS_MAX / 64] = {0};
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int e = 0; e < n_experts; e++)
            if (!(taken[e / 64] >> e % 64 & 1) && (best < 0 || logits[e] > logits[best])) best = e;
        taken[best / 64] |= (uint64_t)1 << best % 64;
        ids[j] = best;
    }
}

static void moe_gate(int n_experts, int k, bool softmax_over_all, const float *logits, int32_t *ids, float *weights) {
    float all[SN_EXPERTS_MAX];
    topk_select(n_experts, k, logits, ids);
    float max_logit = logits[ids[0]];
    for (int j = 0; j < k; j++) weights[j] = logits[ids[j]];
    float sum = softmax_exp((size_t)k, weights, max_logit, weights);
    if (softmax_over_all) sum = softmax_exp((size_t)n_experts, logits, max_logit, all);
    softmax_divide((size_t)k, weights, sum);
}

static void moe_combine(int k, size_t width, const float *weights, const float *x, float *y) {
    for (size_t i = 0; i < width; i += SN_LANES) {
        size_t lanes = width - i < SN_LANES ? width - i : SN_LANES;
        vf acc = vf_set(0);
        for (int j = 0; j < k; j++) acc = vf_fma(vf_set(weights[j]), vf_load_n(x + (size_t)j * width + i, lanes), acc);
        vf_store_n(y + i, acc, lanes);
    }
}

static void moe_combine_grad(int k, size_t width, const float *weights, const float *x, const float *dy, float *dx,
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

/* With w = softmax(l): dl = w * (dw - sum(w dw)), over the experts that the softmax covers. 8 parameters: the signature
 * in sn_cpu_kernels. */
static void moe_gate_grad(int n_experts, int k, bool softmax_over_all, const float *logits, const int32_t *ids,
                          const float *weights, const float *dweights, float *dlogits) {
    float mean = 0;
    for (int j = 0; j < k; j++) mean += weights[j] * dweights[j];
    if (softmax_over_all) {
        softmax_divide((size_t)n_experts, dlogits, softmax_exp((size_t)n_experts, logits, logits[ids[0]], dlogits));
        for (int e = 0; e < n_experts; e++) dlogits[e] = -dlogits[e] * mean;
    } else {
        for (int e = 0; e < n_experts; e++) dlogits[e] = 0;
    }
    for (int j = 0; j < k; j++) dlogits[ids[j]] = weights[j] * (dweights[j] - mean);
}
