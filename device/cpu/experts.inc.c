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

/* Gives the experts outside of the best groups the rank of minus infinity: ranks may be negative themselves. */
static void keep_groups(const sn_moe_router *r, float *ranks) {
    float best[SN_EXPERTS_MAX];
    int32_t used[SN_EXPERTS_MAX];
    bool keep[SN_EXPERTS_MAX] = {false};
    int size = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        int32_t two[2] = {0, 0};
        bool sum = r->scoring == SN_ROUTER_SIGMOID && size > 1;
        topk_select(size, sum ? 2 : 1, ranks + g * size, two);
        best[g] = ranks[g * size + two[0]] + (sum ? ranks[g * size + two[1]] : 0);
    }
    topk_select(r->n_groups, r->n_groups_used, best, used);
    for (int j = 0; j < r->n_groups_used; j++) keep[used[j]] = true;
    for (int e = 0; e < r->n_experts; e++)
        if (!keep[e / size]) ranks[e] = -__builtin_inff();
}

/* out (n) = 1 / (1 + exp(-x)) */
static void sigmoid_scores(size_t n, const float *x, float *out) {
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t lanes = n - i < SN_LANES ? n - i : SN_LANES;
        vf_store_n(out + i, sigmoid_lanes(vf_load_n(x + i, lanes)), lanes);
    }
}

/* out (n) = the softmax of x */
static void softmax_scores(size_t n, const float *x, float *out) {
    int32_t largest;
    topk_select((int)n, 1, x, &largest);
    softmax_divide(n, out, softmax_exp(n, x, x[largest], out));
}

static void moe_gate_by_scores(const sn_moe_router *r, const float *logits, int32_t *ids, float *weights) {
    float scores[SN_EXPERTS_MAX], ranks[SN_EXPERTS_MAX];
    bool sigmoid = r->scoring == SN_ROUTER_SIGMOID;
    float sum = sigmoid ? sn_router_offset(r) : 0; /* as the reference adds it */
    (sigmoid ? sigmoid_scores : softmax_scores)((size_t)r->n_experts, logits, scores);
    /* groups compare sums of scores, which logits would order differently */
    for (int e = 0; e < r->n_experts; e++)
        ranks[e] = r->correction ? scores[e] + r->correction[e] : r->n_groups ? scores[e] : logits[e];
    if (r->n_groups) keep_groups(r, ranks);
    topk_select(r->n_experts, r->k, ranks, ids);
    for (int j = 0; j < r->k; j++) sum += weights[j] = scores[ids[j]];
    if (!sigmoid && sum < 1e-12f) sum = 1e-12f; /* as the reference bounds it */
    if (r->normalised || !sigmoid) softmax_divide((size_t)r->k, weights, sum);
}

static void moe_gate(const sn_moe_router *r, const float *logits, int32_t *ids, float *weights) {
    if (r->scoring == SN_ROUTER_SIGMOID || r->correction) {
        moe_gate_by_scores(r, logits, ids, weights);
    } else {
        float all[SN_EXPERTS_MAX];
        if (r->n_groups) {
            for (int e = 0; e < r->n_experts; e++) all[e] = logits[e];
            keep_groups(r, all);
        }
        topk_select(r->n_experts, r->k, r->n_groups ? all : logits, ids);
        float max_logit = logits[ids[0]];
        for (int j = 0; j < r->k; j++) weights[j] = logits[ids[j]];
        float sum = softmax_exp((size_t)r->k, weights, max_logit, weights);
        if (r->scoring == SN_ROUTER_SOFTMAX_ALL) sum = softmax_exp((size_t)r->n_experts, logits, max_logit, all);
        softmax_divide((size_t)r->k, weights, sum);
    }
    scale_row((size_t)r->k, weights, r->scale, weights);
}

static void moe_combine(int k, size_t width, const float *weights, const float *x, float *y) {
    for (size_t i = 0; i < width; i += SN_LANES) {
        size_t lanes = width - i < SN_LANES ? width - i : SN_LANES;
        vf acc = vf_set(0);
        for (int j = 0; j < k; j++)
            acc = vf_fma(vf_set(weights ? weights[j] : 1), vf_load_n(x + (size_t)j * width + i, lanes), acc);
        vf_store_n(y + i, acc, lanes);
    }
}

static void moe_combine_grad(int k, size_t width, const float *weights, const float *x, const float *dy, float *dx,
                             float *dweights) {
    for (int j = 0; j < k; j++, x += width, dx += width) {
        vf sum = vf_set(0), weight = vf_set(weights ? weights[j] : 1);
        for (size_t i = 0; i < width; i += SN_LANES) {
            size_t lanes = width - i < SN_LANES ? width - i : SN_LANES;
            vf d = vf_load_n(dy + i, lanes);
            sum = vf_fma(d, vf_load_n(x + i, lanes), sum);
            vf_store_n(dx + i, vf_mul(weight, d), lanes);
        }
        dweights[j] = tree_sum(sum);
    }
}

/* With w = scale * softmax(l): dl = w * (dw - sum(w dw) / scale), over the experts that the softmax covers. With w =
 * scale * s / sum(s) and s the sigmoid of l: the same times 1 - s; without the division dl = w * dw * (1 - s). */
static void moe_gate_grad(const sn_moe_router *r, const float *logits, const int32_t *ids, const float *weights,
                          const float *dweights, float *dlogits) {
    float total = 0, slopes[SN_EXPERTS_USED_MAX];
    size_t n = (size_t)r->n_experts;
    bool sigmoid = r->scoring == SN_ROUTER_SIGMOID;
    for (int j = 0; j < r->k; j++) total += (weights ? weights[j] : 1) * dweights[j];
    for (int j = 0; j < r->k; j++) slopes[j] = logits[ids[j]];
    sigmoid_scores((size_t)r->k, slopes, slopes);
    float mean = sigmoid && !r->normalised ? 0 : total / r->scale;
    if (r->scoring == SN_ROUTER_SOFTMAX_ALL) {
        softmax_divide(n, dlogits, softmax_exp(n, logits, logits[ids[0]], dlogits));
        for (size_t e = 0; e < n; e++) dlogits[e] = -dlogits[e] * total;
    } else {
        for (size_t e = 0; e < n; e++) dlogits[e] = 0;
    }
    for (int j = 0; j < r->k; j++)
        dlogits[ids[j]] = (weights ? weights[j] : 1) * (dweights[j] - mean) * (sigmoid ? 1 - slopes[j] : 1);
}
