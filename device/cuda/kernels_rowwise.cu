/* Norms, rope, activations, addition, get_rows, and the conversions before and after cuBLAS. All of them are bound by
 * memory: a few operations for each number read. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 256;

/* The number of blocks for n items, one item per thread. */
unsigned int blocks_for(size_t n) { return static_cast<unsigned int>((n + THREADS - 1) / THREADS); }

__device__ inline size_t this_item() { return static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; }

/* One block per row. A thread reads and writes the same elements throughout, so that y may be x or what is added. */
__global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ sn_cuda_norm p) {
    __shared__ float sums[THREADS / 32];
    size_t row = static_cast<size_t>(blockIdx.x) * p.width;
    float sum = 0;
    for (int i = threadIdx.x; i < p.width; i += THREADS) {
        float v = p.x[row + i];
        if (p.add) p.x[row + i] = v += p.add[row + i];
        sum += v * v;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += sums[w];
    float root = sqrtf(sum / static_cast<float>(p.width) + p.eps);
    const float *weight = p.weight + static_cast<size_t>(blockIdx.x % p.groups) * p.width;
    for (int i = threadIdx.x; i < p.width; i += THREADS) {
        float v = p.x[row + i] / root * weight[i];
        p.y[row + i] = v;
        if (p.form.q) quantize_group((row + i) / 32, v, p.form.q, p.form.scales); /* by the whole warp */
    }
}

/* One block per row. */
__global__ void __launch_bounds__(THREADS)
    layer_norm(int width, const float *x, const float *weight, const float *bias, float eps, float *y) {
    __shared__ float shared[THREADS / 32];
    size_t row = static_cast<size_t>(blockIdx.x) * width;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += x[row + i];
    float mean = block_sum<THREADS>(sum, shared) / static_cast<float>(width);
    for (int i = threadIdx.x; i < width; i += THREADS) squares += (x[row + i] - mean) * (x[row + i] - mean);
    float root = sqrtf(block_sum<THREADS>(squares, shared) / static_cast<float>(width) + eps);
    for (int i = threadIdx.x; i < width; i += THREADS)
        y[row + i] = (x[row + i] - mean) / root * weight[i] + (bias ? bias[i] : 0.0f);
}

/* One thread per pair. */
__global__ void __launch_bounds__(THREADS)
    rope(size_t n_pairs, int n_heads, int head_dim, float *x, bool rotate_half, int dim, const float *cos_sin) {
    size_t item = this_item();
    if (item >= n_pairs) return;
    int half = dim / 2, pair = static_cast<int>(item % half);
    size_t head = item / half, row = head / n_heads;
    rotate_pair(x + head * head_dim, pair, rotate_half, half, cos_sin + row * half * 2);
}

__global__ void __launch_bounds__(THREADS)
    activate(size_t n, int kind, const float *gate, const float *up, float *y, sn_cuda_eight_bits form) {
    size_t i = this_item();
    if (i >= n) return;
    float v = activation(kind, gate[i]) * (up ? factor(kind, up[i]) : 1.0f);
    y[i] = v;
    if (form.q) quantize_group(i / 32, v, form.q, form.scales); /* by the whole warp */
}

__global__ void __launch_bounds__(THREADS) add(size_t n, float *y, const float *x) {
    size_t i = this_item();
    if (i < n) y[i] += x[i];
}

__global__ void __launch_bounds__(THREADS)
    scale(size_t n, int width, const float *x, float factor_all, const float *factors, float *y) {
    size_t i = this_item();
    if (i < n) y[i] = x[i] * (factors ? factor_all * factors[i / width] : factor_all);
}

__global__ void __launch_bounds__(THREADS) clamp_all(size_t n, float *x, float low, float high) {
    size_t i = this_item();
    if (i < n) x[i] = x[i] < low ? low : x[i] > high ? high : x[i]; /* NaN stays */
}

/* One block per row. */
__global__ void __launch_bounds__(THREADS) dot_rows(int width, const float *a, const float *b, float *y) {
    __shared__ float shared[THREADS / 32];
    size_t row = static_cast<size_t>(blockIdx.x) * width;
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += a[row + i] * b[row + i];
    sum = block_sum<THREADS>(sum, shared);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) add_bias(size_t n, int rows, const float *bias, float *y) {
    size_t i = this_item();
    if (i < n) y[i] += bias[i % rows];
}

__global__ void __launch_bounds__(THREADS) pad_rows(size_t n, int cols, const float *x, int stride, float *out) {
    size_t i = this_item();
    if (i >= n) return;
    int col = static_cast<int>(i % stride);
    out[i] = col < cols ? x[i / stride * cols + col] : 0.0f;
}

/* x rounded to bfloat16; with `residual`, what the rounding leaves of x, rounded to bfloat16. */
__device__ inline unsigned int bf16_part(float x, bool residual) {
    uint16_t first = float_to_bf16(x);
    return residual ? float_to_bf16(x - bf16_to_float(first)) : first;
}

/* In the next three kernels, one thread per eight elements. */
__global__ void __launch_bounds__(THREADS)
    to_bf16(size_t n, int cols, const float *x, int stride, bool residual, uint16_t *out) {
    size_t item = this_item();
    if (item >= n) return;
    size_t row = item / (stride / 8);
    int at = static_cast<int>(item % (stride / 8)) * 8;
    unsigned int words[4];
    for (int i = 0; i < 8; i += 2) {
        unsigned int low = at + i < cols ? bf16_part(x[row * cols + at + i], residual) : 0;
        unsigned int high = at + i + 1 < cols ? bf16_part(x[row * cols + at + i + 1], residual) : 0;
        words[i / 2] = low | high << 16;
    }
    reinterpret_cast<uint4 *>(out)[item] = make_uint4(words[0], words[1], words[2], words[3]);
}

template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    dequantize(const __grid_constant__ sn_cuda_matrix w, int first, size_t n, uint16_t *out) {
    size_t item = this_item();
    if (item >= n) return;
    int per_row = w.stride / 8;
    float v[8];
    load_weights<LAYOUT>(w, first + static_cast<int>(item / per_row), static_cast<int>(item % per_row) * 8, v);
    unsigned int words[4];
    for (int i = 0; i < 4; i++)
        words[i] = float_to_bf16(v[2 * i]) | static_cast<unsigned int>(float_to_bf16(v[2 * i + 1])) << 16;
    reinterpret_cast<uint4 *>(out)[item] = make_uint4(words[0], words[1], words[2], words[3]);
}

template <int LAYOUT>
__global__ void __launch_bounds__(THREADS)
    get_rows(const __grid_constant__ sn_cuda_matrix w, size_t n, const int32_t *ids, float *y) {
    size_t item = this_item();
    if (item >= n) return;
    int per_row = (w.stride + 7) / 8, at = static_cast<int>(item % per_row) * 8;
    size_t row = item / per_row;
    float v[8];
    load_weights<LAYOUT>(w, ids[row], at, v);
    for (int i = 0; i < 8 && at + i < w.cols; i++) y[row * w.cols + at + i] = v[i];
}

template <int LAYOUT>
cudaError_t launch_dequantize(cudaStream_t stream, const sn_cuda_matrix &w, int first, int n, uint16_t *out) {
    size_t items = static_cast<size_t>(n) * (w.stride / 8);
    auto *kernel = dequantize<LAYOUT>;
    return SN_LAUNCH(kernel, blocks_for(items), THREADS, 0, stream, w, first, items, out);
}

template <int LAYOUT>
cudaError_t launch_get_rows(cudaStream_t stream, const sn_cuda_matrix &w, int n, const int32_t *ids, float *y) {
    size_t items = static_cast<size_t>(n) * ((w.stride + 7) / 8);
    auto *kernel = get_rows<LAYOUT>;
    return SN_LAUNCH(kernel, blocks_for(items), THREADS, 0, stream, w, items, ids, y);
}

} // namespace

extern "C" cudaError_t sn_cuda_rms_norm(cudaStream_t stream, int n, const sn_cuda_norm *p) {
    return SN_LAUNCH(rms_norm, n, THREADS, 0, stream, *p);
}

extern "C" cudaError_t sn_cuda_layer_norm(cudaStream_t stream, int n, int width, const float *x, const float *weight,
                                          const float *bias, float eps, float *y) {
    return SN_LAUNCH(layer_norm, n, THREADS, 0, stream, width, x, weight, bias, eps, y);
}

extern "C" cudaError_t sn_cuda_rope(cudaStream_t stream, int n, int n_heads, int head_dim, float *x, bool rotate_half,
                                    int dim, const float *cos_sin) {
    size_t pairs = static_cast<size_t>(n) * n_heads * (dim / 2);
    return SN_LAUNCH(rope, blocks_for(pairs), THREADS, 0, stream, pairs, n_heads, head_dim, x, rotate_half, dim,
                     cos_sin);
}

extern "C" cudaError_t sn_cuda_activate(cudaStream_t stream, size_t n, sn_activation kind, const float *gate,
                                        const float *up, float *y, sn_cuda_eight_bits form) {
    return SN_LAUNCH(activate, blocks_for(n), THREADS, 0, stream, n, static_cast<int>(kind), gate, up, y, form);
}

extern "C" cudaError_t sn_cuda_add(cudaStream_t stream, size_t n, float *y, const float *x) {
    return SN_LAUNCH(add, blocks_for(n), THREADS, 0, stream, n, y, x);
}

extern "C" cudaError_t sn_cuda_scale(cudaStream_t stream, int n, int width, const float *x, float factor,
                                     const float *factors, float *y) {
    size_t items = static_cast<size_t>(n) * width;
    return SN_LAUNCH(scale, blocks_for(items), THREADS, 0, stream, items, width, x, factor, factors, y);
}

extern "C" cudaError_t sn_cuda_clamp(cudaStream_t stream, size_t n, float *x, float low, float high) {
    return SN_LAUNCH(clamp_all, blocks_for(n), THREADS, 0, stream, n, x, low, high);
}

extern "C" cudaError_t sn_cuda_dot_rows(cudaStream_t stream, int n, int width, const float *a, const float *b,
                                        float *y) {
    return SN_LAUNCH(dot_rows, n, THREADS, 0, stream, width, a, b, y);
}

extern "C" cudaError_t sn_cuda_add_bias(cudaStream_t stream, int n, int rows, const float *bias, float *y) {
    size_t items = static_cast<size_t>(n) * rows;
    return SN_LAUNCH(add_bias, blocks_for(items), THREADS, 0, stream, items, rows, bias, y);
}

extern "C" cudaError_t sn_cuda_pad_rows(cudaStream_t stream, int n, int cols, const float *x, int stride, float *out) {
    size_t items = static_cast<size_t>(n) * stride;
    return SN_LAUNCH(pad_rows, blocks_for(items), THREADS, 0, stream, items, cols, x, stride, out);
}

extern "C" cudaError_t sn_cuda_to_bf16(cudaStream_t stream, int n, int cols, const float *x, int stride, bool residual,
                                       uint16_t *out) {
    size_t items = static_cast<size_t>(n) * (stride / 8);
    return SN_LAUNCH(to_bf16, blocks_for(items), THREADS, 0, stream, items, cols, x, stride, residual, out);
}

extern "C" cudaError_t sn_cuda_dequantize(cudaStream_t stream, const sn_cuda_matrix *w, int first, int n,
                                          uint16_t *out) {
#define CALL(layout) launch_dequantize<layout>(stream, *w, first, n, out)
    switch (w->layout) {
        SN_CUDA_LAYOUT_CASE(F16)
        SN_CUDA_LAYOUT_CASE(F8)
        SN_CUDA_LAYOUT_CASE(FLOAT4)
        SN_CUDA_QUANT_CASES_OF_ANY
    default:
        return cudaErrorInvalidValue;
    }
#undef CALL
}

extern "C" cudaError_t sn_cuda_get_rows(cudaStream_t stream, const sn_cuda_matrix *w, int n, const int32_t *ids,
                                        float *y) {
#define CALL(layout) launch_get_rows<layout>(stream, *w, n, ids, y)
    BY_LAYOUT(w->layout, SN_CUDA_QUANT_CASES_OF_ANY);
#undef CALL
}
