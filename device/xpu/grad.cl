/* Gradients of the operations that do not involve weight matrices, for training through frozen weights. OpenCL C 1.2
 * without extensions and subgroups. Simple rather than fast: one item sums one result, or one group a row, in a fixed
 * order. */

#include "device/xpu/formulas.clh"

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void linear_weight_grad(ulong items, uint n, uint rows,
                                                                                 uint cols, __global const float *dy,
                                                                                 __global const float *x,
                                                                                 __global float *dw) {
    size_t item = get_global_id(0);
    if (item >= items) return;
    uint row = item / cols, col = item % cols;
    float sum = dw[item];
    for (uint i = 0; i < n; i++) sum = fma(dy[(size_t)i * rows + row], x[(size_t)i * cols + col], sum);
    dw[item] = sum;
}

/* y = x s w, s = 1 / sqrt(mean(x^2) + eps): dx = s w dy - x s^3 / width * sum(w dy x). One group of 64 per row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void rms_norm_grad(uint width, __global const float *x,
                                                                            __global const float *weight, float eps,
                                                                            __global const float *dy, uint accumulate,
                                                                            __global float *dx) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float squares = 0.0f, products = 0.0f;
    for (uint i = lane; i < width; i += 64) {
        squares += x[row + i] * x[row + i];
        products += weight[i] * dy[row + i] * x[row + i];
    }
    squares = group_sum(squares, partial);
    products = group_sum(products, partial);
    float s = 1.0f / sqrt(squares / (float)width + eps), back = -(s * s * s) * (products / (float)width);
    for (uint i = lane; i < width; i += 64) {
        float g = weight[i] * dy[row + i] * s + x[row + i] * back;
        dx[row + i] = accumulate ? dx[row + i] + g : g;
    }
}

/* y = (x - mean) s w + b. With z = (x - mean) s and g = w dy: dx = s (g - mean(g) - z mean(g z)). One group of 64 per
 * row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void layer_norm_grad(uint width, __global const float *x,
                                                                              __global const float *weight, float eps,
                                                                              __global const float *dy, uint accumulate,
                                                                              __global float *dx) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t row = (size_t)get_group_id(0) * width;
    float all = (float)width, sum = 0.0f, squares = 0.0f, sum_g = 0.0f, products = 0.0f;
    for (uint i = lane; i < width; i += 64) sum += x[row + i];
    float mean = group_sum(sum, partial) / all;
    for (uint i = lane; i < width; i += 64) squares += (x[row + i] - mean) * (x[row + i] - mean);
    float s = 1.0f / sqrt(group_sum(squares, partial) / all + eps);
    for (uint i = lane; i < width; i += 64) {
        sum_g += weight[i] * dy[row + i];
        products += weight[i] * dy[row + i] * ((x[row + i] - mean) * s);
    }
    float mean_g = group_sum(sum_g, partial) / all, back = group_sum(products, partial) / all;
    for (uint i = lane; i < width; i += 64) {
        float g = s * (weight[i] * dy[row + i] - mean_g - (x[row + i] - mean) * s * back);
        dx[row + i] = accumulate ? dx[row + i] + g : g;
    }
}

/* y = a(g) u: du = dy a(g), dg = dy u a'(g) */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
activate_grad(ulong n, uint kind, __global const float *gate, __global const float *up, __global const float *dy,
              __global float *dgate, __global float *dup) {
    size_t i = get_global_id(0);
    if (i >= n) return;
    float g = gate[i], d = dy[i];
    float u = up ? up[i] : 0.0f;
    dgate[i] = d * (up ? factor(kind, u) : 1.0f) * activation_slope(kind, g);
    if (up) dup[i] = kind == SWIGLU_CLAMPED && (u > 7.0f || u < -7.0f) ? 0.0f : d * activation(kind, g);
}

/* -- attention. First one item per query row and head: the maximum and the sum of its softmax, and sum_j p_j (dout .
 * v_j); then dq. Then one item per key: dk and dv over the query rows that attend to it. The rows of p are computed
 * again each time and never stored. */

static float dot_rows(__global const float *a, __global const float *b, uint dim) {
    float sum = 0.0f;
    for (uint e = 0; e < dim; e++) sum += a[e] * b[e];
    return sum;
}

/* How much a score changes with the product of q and k: scale, and the slope of the softcap. */
static float score_slope(float product, float scale, float softcap) {
    float bounded = softcap > 0.0f ? tanh(product * scale / softcap) : 0.0f;
    return scale * (1.0f - bounded * bounded);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_grad_q(uint first, uint n, uint n_heads, uint n_kv_heads, uint dim, int window, float scale, float softcap,
                 __global const float *slopes, __global const float *sinks, __global const float *q,
                 __global const float *k, __global const float *v, __global const float *dout, __global float *dq,
                 __global float *stats) {
    uint item = get_global_id(0), row = first + item / n_heads, head = item % n_heads;
    if (row >= first + n) return;
    size_t at = (size_t)item * dim, stride = (size_t)n_kv_heads * dim,
           own = (size_t)(head / (n_heads / n_kv_heads)) * dim;
    float max_score = sinks ? sinks[head] : -INFINITY, sum = 0.0f, mean = 0.0f;
    for (uint j = window_first(row, window); j <= row; j++)
        max_score =
            fmax(max_score, alibi_score(softcapped(dot_rows(q + at, k + own + j * stride, dim) * scale, softcap),
                                        slopes, head, j, row));
    if (sinks) sum = exp(sinks[head] - max_score);
    for (uint j = window_first(row, window); j <= row; j++) {
        float p = exp(alibi_score(softcapped(dot_rows(q + at, k + own + j * stride, dim) * scale, softcap), slopes,
                                  head, j, row) -
                      max_score);
        sum += p;
        mean += p * dot_rows(dout + at, v + own + j * stride, dim);
    }
    mean /= sum;
    for (uint e = 0; e < dim; e++) dq[at + e] = 0.0f;
    for (uint j = window_first(row, window); j <= row; j++) {
        __global const float *key = k + own + j * stride;
        float product = dot_rows(q + at, key, dim);
        float p = exp(alibi_score(softcapped(product * scale, softcap), slopes, head, j, row) - max_score) / sum;
        float ds = p * (dot_rows(dout + at, v + own + j * stride, dim) - mean) * score_slope(product, scale, softcap);
        for (uint e = 0; e < dim; e++) dq[at + e] += ds * key[e];
    }
    stats[3 * (size_t)item] = max_score;
    stats[3 * (size_t)item + 1] = sum;
    stats[3 * (size_t)item + 2] = mean;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_grad_kv(uint first, uint n, uint n_heads, uint n_kv_heads, uint dim, int window, float scale, float softcap,
                  __global const float *slopes, __global const float *q, __global const float *k,
                  __global const float *v, __global const float *dout, __global const float *stats, __global float *dk,
                  __global float *dv) {
    uint item = get_global_id(0), key = item / n_kv_heads, kv_head = item % n_kv_heads, group = n_heads / n_kv_heads;
    if (key >= first + n) return;
    size_t at = (size_t)item * dim;
    for (uint e = 0; key >= first && e < dim; e++) dk[at + e] = dv[at + e] = 0.0f;
    for (uint row = max(key, first); row < first + n && window_first(row, window) <= key; row++)
        for (uint g = 0; g < group; g++) {
            size_t query = (size_t)(row - first) * n_heads + kv_head * group + g;
            __global const float *own = q + query * dim, *d = dout + query * dim, *s = stats + 3 * query;
            float product = dot_rows(own, k + at, dim), score = softcapped(product * scale, softcap);
            float p = exp(alibi_score(score, slopes, kv_head * group + g, key, row) - s[0]) / s[1];
            float ds = p * (dot_rows(d, v + at, dim) - s[2]) * score_slope(product, scale, softcap);
            for (uint e = 0; e < dim; e++) {
                dk[at + e] += ds * own[e];
                dv[at + e] += p * d[e];
            }
        }
}

/* -- mixtures of experts */

/* One group of 64 per pair; an item reads only those elements of x that it writes in dx. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
moe_combine_grad(uint k, uint width, __global const float *weights, __global const float *x, __global const float *dy,
                 __global float *dx, __global float *dweights) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t pair = get_group_id(0), row = pair / k;
    float weight = weights ? weights[pair] : 1.0f, sum = 0.0f;
    for (uint i = lane; i < width; i += 64) {
        float d = dy[row * width + i];
        sum += d * x[pair * width + i];
        dx[pair * width + i] = weight * d;
    }
    sum = group_sum(sum, partial);
    if (lane == 0) dweights[pair] = sum;
}

/* One group of 64 per row. With w = scale * softmax(l): dl = w * (dw - sum(w dw) / scale), over the experts that the
 * softmax covers. With w = scale * s / sum(s) and s the sigmoid of l: the same times 1 - s; without the division dl = w
 * * dw * (1 - s). */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
moe_gate_grad(uint n_experts, uint k, uint scoring, uint normalised, float scale_all, __global const float *logits,
              __global const int *ids, __global const float *weights, __global const float *dweights,
              __global float *dlogits) {
    __local float partial[64];
    uint lane = get_local_id(0);
    size_t at = (size_t)get_group_id(0) * n_experts, own = (size_t)get_group_id(0) * k;
    float max_score = logits[at + ids[own]], sum = 0.0f, total = 0.0f;
    for (uint j = 0; j < k; j++) total += (weights ? weights[own + j] : 1.0f) * dweights[own + j];
    float mean = scoring == BY_SIGMOID && !normalised ? 0.0f : total / scale_all;
    for (uint e = lane; e < n_experts; e += 64) sum += exp(logits[at + e] - max_score);
    sum = group_sum(sum, partial); /* all items have read `max_score` */
    for (uint e = lane; e < n_experts; e += 64) {
        float slope = scoring == BY_SIGMOID ? 1.0f - sigmoid(logits[at + e]) : 1.0f;
        float g = scoring == BY_SOFTMAX_ALL ? -(exp(logits[at + e] - max_score) / sum) * total : 0.0f;
        for (uint j = 0; j < k; j++)
            if (ids[own + j] == (int)e) g = (weights ? weights[own + j] : 1.0f) * (dweights[own + j] - mean) * slope;
        dlogits[at + e] = g;
    }
}
