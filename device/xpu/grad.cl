/* Gradients of the operations that are no matrices of weights, to train through frozen ones. OpenCL C 1.2 without extensions and
 * subgroups. Plain rather than fast: one item adds up one result, or a group a row, in a fixed order. */

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void outer_grad(ulong items, uint n, uint rows, uint cols,
                                                                         __global const float *dy, __global const float *x,
                                                                         __global float *dw) {
    size_t item = get_global_id(0);
    if (item >= items) return;
    uint row = item / cols, col = item % cols;
    float sum = dw[item];
    for (uint i = 0; i < n; i++) sum = fma(dy[(size_t)i * rows + row], x[(size_t)i * cols + col], sum);
    dw[item] = sum;
}

static float group_sum(float x, __local float *partial) {
    uint lane = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* what was read of `partial` before */
    partial[lane] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_count = 32; half_count > 0; half_count /= 2) {
        if (lane < half_count) partial[lane] += partial[lane + half_count];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return partial[0];
}

/* y = x s w, s = 1 / sqrt(mean(x^2) + eps): dx = s w dy - x s^3 / width * sum(w dy x). A group of 64 to a row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
rms_norm_grad(uint width, __global const float *x, __global const float *weight, float eps, __global const float *dy, uint grow,
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
        dx[row + i] = grow ? dx[row + i] + g : g;
    }
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void silu_mul_grad(ulong n, __global const float *gate,
                                                                            __global const float *up, __global const float *dy,
                                                                            __global float *dgate, __global float *dup) {
    size_t i = get_global_id(0);
    if (i >= n) return;
    float g = gate[i], s = 1.0f / (1.0f + exp(-g)), d = dy[i], u = up[i];
    dup[i] = d * g * s;
    dgate[i] = d * u * (s + g * s * (1.0f - s));
}

/* -- attention. An item for each query row and head: its softmax's maximum and sum, and sum_j p_j (dout . v_j); then dq. Then
 * an item for each key: dk and dv over the query rows that see it. Rows of p are made again each time, never kept. */

static float dot_rows(__global const float *a, __global const float *b, uint dim) {
    float sum = 0.0f;
    for (uint e = 0; e < dim; e++) sum += a[e] * b[e];
    return sum;
}

static uint first_key(uint row, uint window) { return window > 0 && row + 1 > window ? row + 1 - window : 0; }

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_grad_q(uint n, uint n_heads, uint n_kv_heads, uint dim, uint window, float scale, __global const float *q,
                 __global const float *k, __global const float *v, __global const float *dout, __global float *dq,
                 __global float *stats) {
    uint item = get_global_id(0), row = item / n_heads, head = item % n_heads;
    if (row >= n) return;
    size_t at = (size_t)item * dim, stride = (size_t)n_kv_heads * dim, own = (size_t)(head / (n_heads / n_kv_heads)) * dim;
    float most = -INFINITY, sum = 0.0f, mean = 0.0f;
    for (uint j = first_key(row, window); j <= row; j++) most = fmax(most, dot_rows(q + at, k + own + j * stride, dim) * scale);
    for (uint j = first_key(row, window); j <= row; j++) {
        float p = exp(dot_rows(q + at, k + own + j * stride, dim) * scale - most);
        sum += p;
        mean += p * dot_rows(dout + at, v + own + j * stride, dim);
    }
    mean /= sum;
    for (uint e = 0; e < dim; e++) dq[at + e] = 0.0f;
    for (uint j = first_key(row, window); j <= row; j++) {
        __global const float *key = k + own + j * stride;
        float p = exp(dot_rows(q + at, key, dim) * scale - most) / sum;
        float ds = p * (dot_rows(dout + at, v + own + j * stride, dim) - mean) * scale;
        for (uint e = 0; e < dim; e++) dq[at + e] += ds * key[e];
    }
    stats[3 * (size_t)item] = most;
    stats[3 * (size_t)item + 1] = sum;
    stats[3 * (size_t)item + 2] = mean;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_grad_kv(uint n, uint n_heads, uint n_kv_heads, uint dim, uint window, float scale, __global const float *q,
                  __global const float *k, __global const float *v, __global const float *dout, __global const float *stats,
                  __global float *dk, __global float *dv) {
    uint item = get_global_id(0), key = item / n_kv_heads, kv_head = item % n_kv_heads, group = n_heads / n_kv_heads;
    if (key >= n) return;
    size_t at = (size_t)item * dim;
    for (uint e = 0; e < dim; e++) dk[at + e] = dv[at + e] = 0.0f;
    for (uint row = key; row < n && first_key(row, window) <= key; row++)
        for (uint g = 0; g < group; g++) {
            size_t query = (size_t)row * n_heads + kv_head * group + g;
            __global const float *own = q + query * dim, *d = dout + query * dim, *s = stats + 3 * query;
            float p = exp(dot_rows(own, k + at, dim) * scale - s[0]) / s[1];
            float ds = p * (dot_rows(d, v + at, dim) - s[2]) * scale;
            for (uint e = 0; e < dim; e++) {
                dk[at + e] += ds * own[e];
                dv[at + e] += p * d[e];
            }
        }
}
