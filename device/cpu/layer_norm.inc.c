/* Layer norm and its gradient. Part of kernels.inc.c, which says at its top how the bits are kept equal. */

/* Elements [i, i + 16) of x minus the mean; zero beyond the end of the row. */
INLINE vf centred(const float *x, size_t i, size_t n, vf mean) {
    size_t left = n - i;
    if (left >= SN_LANES) return vf_sub(vf_load(x + i), mean);
    float rest[SN_LANES];
    vf_store(rest, vf_sub(vf_load_n(x + i, left), mean));
    return vf_load_n(rest, left);
}

INLINE float row_mean(size_t n, const float *x) {
    vf sum = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) sum = vf_add(sum, vf_load_n(x + i, n - i < SN_LANES ? n - i : SN_LANES));
    return tree_sum(sum) / (float)n;
}

/* 1 / sqrt(mean((x - mean)^2) + eps) */
INLINE float row_scale(size_t n, const float *x, vf mean, float eps) {
    vf squares = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        vf c = centred(x, i, n, mean);
        squares = vf_fma(c, c, squares);
    }
    return 1 / __builtin_sqrtf(tree_sum(squares) / (float)n + eps);
}

static void layer_norm(int width, const float *x, const float *weight, const float *bias, float eps, float *y) {
    size_t n = (size_t)width;
    vf mean = vf_set(row_mean(n, x)), scale = vf_set(row_scale(n, x, mean, eps));
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf normed = vf_mul(centred(x, i, n, mean), scale), w = vf_load_n(weight + i, left);
        vf_store_n(y + i, bias ? vf_fma(normed, w, vf_load_n(bias + i, left)) : vf_mul(normed, w), left);
    }
}

/* y = (x - mean) s w + b. With z = (x - mean) s and g = w dy:  dx = s (g - mean(g) - z mean(g z)) */
static void layer_norm_grad(int width, const float *x, const float *weight, float eps, const float *dy, bool accumulate,
                            float *dx) {
    size_t n = (size_t)width;
    vf mean = vf_set(row_mean(n, x)), scale = vf_set(row_scale(n, x, mean, eps)), sum = vf_set(0), products = vf_set(0);
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf g = vf_mul(vf_load_n(weight + i, left), vf_load_n(dy + i, left));
        sum = vf_add(sum, g);
        products = vf_fma(g, vf_mul(centred(x, i, n, mean), scale), products);
    }
    vf mean_g = vf_set(tree_sum(sum) / (float)n), back = vf_set(-(tree_sum(products) / (float)n));
    for (size_t i = 0; i < n; i += SN_LANES) {
        size_t left = n - i < SN_LANES ? n - i : SN_LANES;
        vf g = vf_sub(vf_mul(vf_load_n(weight + i, left), vf_load_n(dy + i, left)), mean_g);
        g = vf_mul(vf_fma(vf_mul(centred(x, i, n, mean), scale), back, g), scale);
        vf_store_n(dx + i, accumulate ? vf_add(vf_load_n(dx + i, left), g) : g, left);
    }
}
