/* Gradients, for training through frozen weights. Simple rather than fast: one thread or one warp computes the sum of a
 * result, in a fixed order. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 128, ROWS = 4; /* rows of dy that share one read of a weight */

unsigned int blocks_for(size_t n) { return static_cast<unsigned int>((n + THREADS - 1) / THREADS); }
__device__ inline size_t this_item() { return static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; }

/* dx = dy . w. One thread computes ROWS rows of 8 columns. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS) linear_input_grad(const __grid_constant__ sn_cuda_matrix w, size_t items,
                                                             int n, const float *dy, bool accumulate, float *dx) {
    size_t item = this_item();
    if (item >= items) return;
    int per_row = (w.cols + 7) / 8, first = static_cast<int>(item / per_row) * ROWS,
        at = static_cast<int>(item % per_row) * 8;
    float sums[ROWS][8] = {};
    for (int r = 0; r < w.rows; r++) {
        float v[8];
        load_weights<LAYOUT>(w, r, at, v);
        for (int i = 0; i < ROWS; i++) {
            float d = dy[static_cast<size_t>(min(first + i, n - 1)) * w.rows + r];
            for (int e = 0; e < 8; e++) sums[i][e] = fmaf(d, v[e], sums[i][e]);
        }
    }
    for (int i = 0; i < ROWS && first + i < n; i++)
        for (int e = 0; e < 8 && at + e < w.cols; e++) {
            float *to = dx + static_cast<size_t>(first + i) * w.cols + at + e;
            *to = accumulate ? *to + sums[i][e] : sums[i][e];
        }
}

template <int LAYOUT>
cudaError_t launch_linear_input_grad(cudaStream_t stream, const sn_cuda_matrix &w, int n, const float *dy,
                                     bool accumulate, float *dx) {
    size_t items = static_cast<size_t>((n + ROWS - 1) / ROWS) * ((w.cols + 7) / 8);
    auto *kernel = linear_input_grad<LAYOUT>;
    return SN_LAUNCH(kernel, blocks_for(items), THREADS, 0, stream, w, items, n, dy, accumulate, dx);
}

__global__ void __launch_bounds__(THREADS)
    linear_weight_grad(size_t items, int n, int rows, int cols, const float *dy, const float *x, float *dw) {
    size_t item = this_item();
    if (item >= items) return;
    int row = static_cast<int>(item / cols), col = static_cast<int>(item % cols);
    float sum = dw[item];
    for (int i = 0; i < n; i++)
        sum = fmaf(dy[static_cast<size_t>(i) * rows + row], x[static_cast<size_t>(i) * cols + col], sum);
    dw[item] = sum;
}

/* y = x s w, s = 1 / sqrt(mean(x^2) + eps): dx = s w dy - x s^3 / width * sum(w dy x). One block per row. */
__global__ void __launch_bounds__(THREADS) rms_norm_grad(int width, const float *x, const float *weight, float eps,
                                                         const float *dy, bool accumulate, float *dx) {
    __shared__ float shared[THREADS / 32];
    size_t row = static_cast<size_t>(blockIdx.x) * width;
    float squares = 0, products = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        squares += x[row + i] * x[row + i];
        products += weight[i] * dy[row + i] * x[row + i];
    }
    squares = block_sum<THREADS>(squares, shared);
    products = block_sum<THREADS>(products, shared);
    float s = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    float back = -(s * s * s) * (products / static_cast<float>(width));
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float g = weight[i] * dy[row + i] * s + x[row + i] * back;
        dx[row + i] = accumulate ? dx[row + i] + g : g;
    }
}

/* y = (x - mean) s w + b. With z = (x - mean) s and g = w dy: dx = s (g - mean(g) - z mean(g z)). One block per row. */
__global__ void __launch_bounds__(THREADS) layer_norm_grad(int width, const float *x, const float *weight, float eps,
                                                           const float *dy, bool accumulate, float *dx) {
    __shared__ float shared[THREADS / 32];
    size_t row = static_cast<size_t>(blockIdx.x) * width;
    float all = static_cast<float>(width), sum = 0, squares = 0, sum_g = 0, products = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += x[row + i];
    float mean = block_sum<THREADS>(sum, shared) / all;
    for (int i = threadIdx.x; i < width; i += THREADS) squares += (x[row + i] - mean) * (x[row + i] - mean);
    float s = 1.0f / sqrtf(block_sum<THREADS>(squares, shared) / all + eps);
    for (int i = threadIdx.x; i < width; i += THREADS) {
        sum_g += weight[i] * dy[row + i];
        products += weight[i] * dy[row + i] * ((x[row + i] - mean) * s);
    }
    float mean_g = block_sum<THREADS>(sum_g, shared) / all, back = block_sum<THREADS>(products, shared) / all;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float g = s * (weight[i] * dy[row + i] - mean_g - (x[row + i] - mean) * s * back);
        dx[row + i] = accumulate ? dx[row + i] + g : g;
    }
}

/* y = a(g) u: du = dy a(g), dg = dy u a'(g). With s = 1 / (1 + exp(-v)), the slope of x s is s + x s (1 - s) v'. */
__global__ void __launch_bounds__(THREADS)
    activate_grad(size_t n, int kind, const float *gate, const float *up, const float *dy, float *dgate, float *dup) {
    size_t i = this_item();
    if (i >= n) return;
    float g = gate[i], d = dy[i], slope;
    if (kind == SN_GELU) {
        slope = normal_share(g) + g * 0.3989422804f * expf(-0.5f * g * g);
    } else if (kind == SN_SIGMOID) {
        slope = sigmoid(g) * (1.0f - sigmoid(g));
    } else if (kind == SN_TANH) {
        slope = 1.0f - tanhf(g) * tanhf(g);
    } else if (kind == SN_LINEAR || kind == SN_RELU_SQUARED) {
        slope = kind == SN_LINEAR ? 1.0f : g < 0.0f ? 0.0f : 2.0f * g;
    } else if (kind == SN_SWIGLU_CLAMPED) {
        float s = 1.0f / (1.0f + expf(-1.702f * capped(g)));
        slope = g > 7.0f ? 0.0f : s + g * s * ((1.0f - s) * 1.702f);
    } else {
        float s = 1.0f / (1.0f + expf(kind == SN_SILU ? -g : -gelu_inner(g)));
        float inner = kind == SN_SILU ? 1.0f : 1.5957691216f * (1.0f + 3 * 0.044715f * g * g);
        slope = s + g * s * ((1.0f - s) * inner);
    }
    float u = up ? up[i] : 0.0f;
    dgate[i] = d * (up ? factor(kind, u) : 1.0f) * slope;
    if (up) dup[i] = kind == SN_SWIGLU_CLAMPED && (u > 7.0f || u < -7.0f) ? 0.0f : d * activation(kind, g);
}

/* -- attention. First one warp per query row and head: the maximum and the sum of its softmax, and sum_j p_j (dout .
 * v_j); then dq. Then one warp per key: dk and dv over the query rows that attend to it. The rows of p are computed
 * again each time and never stored. */

struct attention_args {
    int first, n, n_heads, n_kv_heads, dim, window;
    float scale, softcap;
    const float *slopes, *sinks, *q, *k, *v, *dout;
};

__device__ inline float dot(const float *a, const float *b, int dim) {
    float sum = 0;
    for (int e = static_cast<int>(threadIdx.x) % 32; e < dim; e += 32) sum += a[e] * b[e];
    return warp_sum(sum);
}
__device__ inline int this_warp() {
    return static_cast<int>(blockIdx.x) * (THREADS / 32) + static_cast<int>(threadIdx.x) / 32;
}
__device__ inline int window_start(const attention_args &h, int row) { return window_start(row, h.window); }

/* The score of query row `row` and a head with key `key`. */
__device__ inline float score_of(const attention_args &h, const float *q, const float *k, int head, int row, int key) {
    float score = softcapped(dot(q, k, h.dim) * h.scale, h.softcap);
    return h.slopes ? fmaf(h.slopes[head], static_cast<float>(key - row), score) : score;
}

/* How much the score changes with the product of q and k: scale, and the slope of the softcap. */
__device__ inline float score_slope(const attention_args &h, const float *q, const float *k) {
    if (!(h.softcap > 0)) return h.scale;
    float bounded = tanhf(dot(q, k, h.dim) * h.scale / h.softcap);
    return h.scale * (1.0f - bounded * bounded);
}

__global__ void __launch_bounds__(THREADS)
    attention_grad_q(const __grid_constant__ attention_args h, float *dq, float *stats) {
    int item = this_warp(), row = h.first + item / h.n_heads, head = item % h.n_heads;
    if (row >= h.first + h.n) return; /* by the whole warp */
    size_t at = static_cast<size_t>(item) * h.dim, stride = static_cast<size_t>(h.n_kv_heads) * h.dim;
    size_t own = static_cast<size_t>(head / (h.n_heads / h.n_kv_heads)) * h.dim;
    const float *q = h.q + at, *dout = h.dout + at;
    float max_score = h.sinks ? h.sinks[head] : -INFINITY, sum = 0, mean = 0;
    for (int j = window_start(h, row); j <= row; j++)
        max_score = fmaxf(max_score, score_of(h, q, h.k + own + j * stride, head, row, j));
    if (h.sinks) sum = expf(h.sinks[head] - max_score);
    for (int j = window_start(h, row); j <= row; j++) {
        float p = expf(score_of(h, q, h.k + own + j * stride, head, row, j) - max_score);
        sum += p;
        mean += p * dot(dout, h.v + own + j * stride, h.dim);
    }
    mean /= sum;
    for (int e = static_cast<int>(threadIdx.x) % 32; e < h.dim; e += 32) dq[at + e] = 0;
    for (int j = window_start(h, row); j <= row; j++) {
        const float *key = h.k + own + j * stride;
        float p = expf(score_of(h, q, key, head, row, j) - max_score) / sum;
        float ds = p * (dot(dout, h.v + own + j * stride, h.dim) - mean) * score_slope(h, q, key);
        for (int e = static_cast<int>(threadIdx.x) % 32; e < h.dim; e += 32) dq[at + e] += ds * key[e];
    }
    if (threadIdx.x % 32 == 0) {
        stats[3 * static_cast<size_t>(item)] = max_score;
        stats[3 * static_cast<size_t>(item) + 1] = sum;
        stats[3 * static_cast<size_t>(item) + 2] = mean;
    }
}

__global__ void __launch_bounds__(THREADS)
    attention_grad_kv(const __grid_constant__ attention_args h, const float *stats, float *dk, float *dv) {
    int item = this_warp(), key = item / h.n_kv_heads, kv_head = item % h.n_kv_heads, group = h.n_heads / h.n_kv_heads;
    if (key >= h.first + h.n) return;
    size_t at = static_cast<size_t>(item) * h.dim;
    for (int e = static_cast<int>(threadIdx.x) % 32; key >= h.first && e < h.dim; e += 32) dk[at + e] = dv[at + e] = 0;
    for (int row = key > h.first ? key : h.first; row < h.first + h.n && window_start(h, row) <= key; row++)
        for (int g = 0; g < group; g++) {
            size_t query = static_cast<size_t>(row - h.first) * h.n_heads + kv_head * group + g;
            const float *q = h.q + query * h.dim, *dout = h.dout + query * h.dim, *s = stats + 3 * query;
            float p = expf(score_of(h, q, h.k + at, kv_head * group + g, row, key) - s[0]) / s[1];
            float ds = p * (dot(dout, h.v + at, h.dim) - s[2]) * score_slope(h, q, h.k + at);
            for (int e = static_cast<int>(threadIdx.x) % 32; e < h.dim; e += 32) {
                dk[at + e] += ds * q[e];
                dv[at + e] += p * dout[e];
            }
        }
}

} // namespace

extern "C" cudaError_t sn_cuda_linear_input_grad(cudaStream_t stream, const sn_cuda_matrix *w, int n, const float *dy,
                                                 bool accumulate, float *dx) {
#define CALL(layout) launch_linear_input_grad<layout>(stream, *w, n, dy, accumulate, dx)
    BY_LAYOUT(w->layout, SN_CUDA_QUANT_CASES_OF_ANY);
#undef CALL
}

extern "C" cudaError_t sn_cuda_linear_weight_grad(cudaStream_t stream, int n, int rows, int cols, const float *dy,
                                                  const float *x, float *dw) {
    size_t items = static_cast<size_t>(rows) * cols;
    return SN_LAUNCH(linear_weight_grad, blocks_for(items), THREADS, 0, stream, items, n, rows, cols, dy, x, dw);
}

extern "C" cudaError_t sn_cuda_rms_norm_grad(cudaStream_t stream, int n, int width, const float *x, const float *weight,
                                             float eps, const float *dy, bool accumulate, float *dx) {
    return SN_LAUNCH(rms_norm_grad, n, THREADS, 0, stream, width, x, weight, eps, dy, accumulate, dx);
}

extern "C" cudaError_t sn_cuda_layer_norm_grad(cudaStream_t stream, int n, int width, const float *x,
                                               const float *weight, float eps, const float *dy, bool accumulate,
                                               float *dx) {
    return SN_LAUNCH(layer_norm_grad, n, THREADS, 0, stream, width, x, weight, eps, dy, accumulate, dx);
}

extern "C" cudaError_t sn_cuda_activate_grad(cudaStream_t stream, size_t n, sn_activation kind, const float *gate,
                                             const float *up, const float *dy, float *dgate, float *dup) {
    return SN_LAUNCH(activate_grad, blocks_for(n), THREADS, 0, stream, n, static_cast<int>(kind), gate, up, dy, dgate,
                     dup);
}

extern "C" cudaError_t sn_cuda_attention_grad(cudaStream_t stream, const sn_attention_grad *g, float *stats) {
    const attention_args h = {g->first,   g->n,      g->n_heads, g->n_kv_heads, g->head_dim, g->window, g->scale,
                              g->softcap, g->slopes, g->sinks,   g->q,          g->k,        g->v,      g->dout};
    unsigned int queries = blocks_for(static_cast<size_t>(g->n) * g->n_heads * 32);
    unsigned int keys = blocks_for((static_cast<size_t>(g->first) + g->n) * g->n_kv_heads * 32);
    cudaError_t error = SN_LAUNCH(attention_grad_q, queries, THREADS, 0, stream, h, g->dq, stats);
    if (error != cudaSuccess) return error;
    return SN_LAUNCH(attention_grad_kv, keys, THREADS, 0, stream, h, stats, g->dk, g->dv);
}
