/* A few rows of x times matrices of weights, at the speed of the memory of the weights. A warp computes two outputs for
 * every row of a chunk of x, at most SN_CUDA_CHUNK_ROWS; its lanes read up to 16 bytes each of a plane of both rows of
 * weights at once, contiguously. Neighbouring blocks compute the chunks with the same weights, which so come from
 * memory once, and else from the L2 cache. A row's sums have the same order whatever the number of rows. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int PER_WARP = 2; /* rows of weights per warp */

/* Assigns warps to matrices: warps below end[i] belong to matrix i or an earlier one. */
struct linear_set {
    int n;
    int end[SN_CUDA_LINEARS]; /* warps, cumulative */
    sn_cuda_linear linear[SN_CUDA_LINEARS];
};

/* Finds the matrix and the first row of this warp, of blocks that compute `chunks` chunks; false when it has none. */
__device__ bool find_matrix(const linear_set &b, int chunks, int *matrix, int *row) {
    int warp = static_cast<int>(blockIdx.x) / chunks * WARPS + static_cast<int>(threadIdx.x) / 32, m = 0;
    while (m < b.n && warp >= b.end[m]) m++;
    if (m == b.n) return false;
    *matrix = m;
    *row = (warp - (m ? b.end[m - 1] : 0)) * PER_WARP;
    return true;
}

/* Joins the sums of the lanes and writes them with the bias: n rows of y from row `first` on. */
template <int N>
__device__ void store_outputs(const sn_cuda_linear &l, int first, int n, int row, float sums[PER_WARP][N]) {
    int lane = static_cast<int>(threadIdx.x) % 32, rows = l.weight.rows;
    for (int r = 0; r < PER_WARP; r++)
        for (int i = 0; i < N; i++) {
            float sum = warp_sum(sums[r][i]);
            if (lane == 0 && row + r < rows && i < n)
                l.y[static_cast<size_t>(first + i) * rows + row + r] = l.bias ? sum + l.bias[row + r] : sum;
        }
}

__device__ int dot16(const unsigned int *w, uint4 x) {
    int sum = __dp4a(static_cast<int>(w[0]), static_cast<int>(x.x), 0);
    sum = __dp4a(static_cast<int>(w[1]), static_cast<int>(x.y), sum);
    sum = __dp4a(static_cast<int>(w[2]), static_cast<int>(x.z), sum);
    return __dp4a(static_cast<int>(w[3]), static_cast<int>(x.w), sum);
}

template <int LAYOUT> __device__ float group_dot(const group &w, uint4 x0, uint4 x1, const sn_cuda_xscale &s) {
    constexpr sn_quant_form F = FORM_OF<LAYOUT>;
    constexpr bool OFFSETS = zero_of(F) != 0 || has_offsets(F);
    int dot0 = dot16(w.q, x0), dot1 = dot16(w.q + 4, x1);
    if (!has_half_scales(F)) {
        float sum = w.scale[0].x * s.scale * static_cast<float>(dot0 + dot1);
        return OFFSETS ? sum + w.scale[0].y * (s.sum[0] + s.sum[1]) : sum;
    }
    return (w.scale[0].x * s.scale * static_cast<float>(dot0) + w.scale[0].y * s.sum[0]) +
           (w.scale[1].x * s.scale * static_cast<float>(dot1) + w.scale[1].y * s.sum[1]);
}

template <int LAYOUT, int N>
__global__ void __launch_bounds__(THREADS)
    linear_quantised(const __grid_constant__ linear_set b, int n, const int8_t *q, const sn_cuda_xscale *scales) {
    int matrix, row, chunks = (n + N - 1) / N, first = static_cast<int>(blockIdx.x) % chunks * N;
    if (!find_matrix(b, chunks, &matrix, &row)) return; /* by the whole warp */
    const sn_cuda_matrix &w = b.linear[matrix].weight;
    int groups = w.cols / 32, second = min(row + 1, w.rows - 1);
    q += static_cast<size_t>(first) * w.cols;
    scales += static_cast<size_t>(first) * groups;
    n -= first;
    float sums[PER_WARP][N] = {};
#pragma unroll 2
    for (int g = static_cast<int>(threadIdx.x) % 32; g < groups; g += 32) {
        group w0 = load_group<LAYOUT>(w, static_cast<size_t>(row) * groups + g);
        group w1 = load_group<LAYOUT>(w, static_cast<size_t>(second) * groups + g);
        for (int i = 0; i < N; i++) {
            size_t at = static_cast<size_t>(min(i, n - 1)) * groups + g; /* missing rows of x repeat the last one */
            const uint4 *x = reinterpret_cast<const uint4 *>(q) + 2 * at;
            uint4 x0 = x[0], x1 = x[1];
            sn_cuda_xscale s = scales[at];
            sums[0][i] += group_dot<LAYOUT>(w0, x0, x1, s);
            sums[1][i] += group_dot<LAYOUT>(w1, x0, x1, s);
        }
    }
    store_outputs<N>(b.linear[matrix], first, n, row, sums);
}

/* Elements in 16 bytes of a row. */
__host__ __device__ constexpr int step_of(int layout) {
    return layout == SN_CUDA_F32 ? 4 : layout == SN_CUDA_F8 ? 16 : layout == SN_CUDA_FLOAT4 ? 32 : 8;
}
/* Whether elements have a scale. */
__host__ __device__ constexpr bool is_scaled(int layout) { return layout == SN_CUDA_F8 || layout == SN_CUDA_FLOAT4; }

/* 16 bytes of a row of weights as float32, without their scale. */
template <int LAYOUT> __device__ void to_floats(const sn_cuda_matrix &m, uint4 w, float out[step_of(LAYOUT)]) {
    const unsigned int words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (LAYOUT == SN_CUDA_F32) {
            out[i] = __uint_as_float(words[i]);
        } else if (LAYOUT == SN_CUDA_F8) {
            for (int k = 0; k < 4; k++) out[4 * i + k] = f8_to_float(words[i] >> 8 * k & 0xff, m.f8_shift);
        } else if (LAYOUT == SN_CUDA_FLOAT4) {
            for (int k = 0; k < 8; k++) out[8 * i + k] = float4_to_float(m.supers, words[i], k, 1.0f);
        } else {
            out[2 * i] = LAYOUT == SN_CUDA_F16 ? half_to_float(words[i] & 0xffff) : bf16_to_float(words[i] & 0xffff);
            out[2 * i + 1] = LAYOUT == SN_CUDA_F16 ? half_to_float(words[i] >> 16) : bf16_to_float(words[i] >> 16);
        }
}

/* What step s of a row is multiplied with. */
template <int LAYOUT> __device__ float step_scale(const sn_cuda_matrix &w, int row, int s) {
    constexpr int BLOCK = LAYOUT == SN_CUDA_F8 ? SN_CUDA_F8_BLOCK : SN_CUDA_FLOAT4_BLOCK;
    if (!is_scaled(LAYOUT)) return 1.0f;
    return static_cast<const float *>(
        w.scales)[static_cast<size_t>(row) * (w.cols / BLOCK) + s * step_of(LAYOUT) / BLOCK];
}

template <int LAYOUT, int N>
__global__ void __launch_bounds__(THREADS)
    linear_float(const __grid_constant__ linear_set b, int n, const float *x, int x_stride) {
    constexpr int STEP = step_of(LAYOUT);
    int matrix, row, chunks = (n + N - 1) / N, first = static_cast<int>(blockIdx.x) % chunks * N;
    if (!find_matrix(b, chunks, &matrix, &row)) return;
    const sn_cuda_matrix &w = b.linear[matrix].weight;
    int steps = w.stride / STEP, second = min(row + 1, w.rows - 1);
    const uint4 *data = static_cast<const uint4 *>(w.plane[0]);
    x += static_cast<size_t>(first) * x_stride;
    n -= first;
    float sums[PER_WARP][N] = {};
#pragma unroll 4
    for (int s = static_cast<int>(threadIdx.x) % 32; s < steps; s += 32) {
        uint4 bits0 = __ldcs(data + static_cast<size_t>(row) * steps + s);
        uint4 bits1 = __ldcs(data + static_cast<size_t>(second) * steps + s);
        float w0[STEP], w1[STEP];
        to_floats<LAYOUT>(w, bits0, w0);
        to_floats<LAYOUT>(w, bits1, w1);
        float scale0 = step_scale<LAYOUT>(w, row, s), scale1 = step_scale<LAYOUT>(w, second, s);
        for (int i = 0; i < N; i++) {
            const float4 *at =
                reinterpret_cast<const float4 *>(x + static_cast<size_t>(min(i, n - 1)) * x_stride + s * STEP);
            float part0 = is_scaled(LAYOUT) ? 0.0f : sums[0][i], part1 = is_scaled(LAYOUT) ? 0.0f : sums[1][i];
            for (int k = 0; k < STEP; k += 4) {
                float4 v = at[k / 4];
                part0 += w0[k] * v.x + w0[k + 1] * v.y + w0[k + 2] * v.z + w0[k + 3] * v.w;
                part1 += w1[k] * v.x + w1[k + 1] * v.y + w1[k + 2] * v.z + w1[k + 3] * v.w;
            }
            sums[0][i] = is_scaled(LAYOUT) ? sums[0][i] + part0 * scale0 : part0;
            sums[1][i] = is_scaled(LAYOUT) ? sums[1][i] + part1 * scale1 : part1;
        }
    }
    store_outputs<N>(b.linear[matrix], first, n, row, sums);
}

linear_set make_linear_set(int n_linears, const sn_cuda_linear *linears) {
    linear_set b = {};
    b.n = n_linears;
    for (int i = 0, warps = 0; i < n_linears; i++) {
        warps += (linears[i].weight.rows + PER_WARP - 1) / PER_WARP;
        b.end[i] = warps;
        b.linear[i] = linears[i];
    }
    return b;
}

/* For n rows in chunks of chunk_rows. */
int blocks_of(const linear_set &b, int n, int chunk_rows) {
    return (b.end[b.n - 1] + WARPS - 1) / WARPS * ((n + chunk_rows - 1) / chunk_rows);
}

template <int LAYOUT, int N>
cudaError_t launch_quantised(cudaStream_t stream, int n, const int8_t *q, const sn_cuda_xscale *scales,
                             const linear_set &b) {
    auto *kernel = linear_quantised<LAYOUT, N>;
    return SN_LAUNCH(kernel, blocks_of(b, n, N), THREADS, 0, stream, b, n, q, scales);
}

template <int LAYOUT>
cudaError_t pick_quantised(cudaStream_t stream, int n, const int8_t *q, const sn_cuda_xscale *scales,
                           const linear_set &b) {
    if (n == 1) return launch_quantised<LAYOUT, 1>(stream, n, q, scales, b);
    if (n == 2) return launch_quantised<LAYOUT, 2>(stream, n, q, scales, b);
    if (n <= 4) return launch_quantised<LAYOUT, 4>(stream, n, q, scales, b);
    return launch_quantised<LAYOUT, SN_CUDA_CHUNK_ROWS>(stream, n, q, scales, b);
}

template <int LAYOUT, int N>
cudaError_t launch_float(cudaStream_t stream, int n, const float *x, int x_stride, const linear_set &b) {
    auto *kernel = linear_float<LAYOUT, N>;
    return SN_LAUNCH(kernel, blocks_of(b, n, N), THREADS, 0, stream, b, n, x, x_stride);
}

template <int LAYOUT>
cudaError_t pick_float(cudaStream_t stream, int n, const float *x, int x_stride, const linear_set &b) {
    if (n == 1) return launch_float<LAYOUT, 1>(stream, n, x, x_stride, b);
    if (n == 2) return launch_float<LAYOUT, 2>(stream, n, x, x_stride, b);
    if (n <= 4) return launch_float<LAYOUT, 4>(stream, n, x, x_stride, b);
    return launch_float<LAYOUT, SN_CUDA_CHUNK_ROWS>(stream, n, x, x_stride, b);
}

/* One warp per 32 elements, one element per lane. */
__global__ void __launch_bounds__(THREADS)
    quantize(size_t n_groups, const float *x, int8_t *q, sn_cuda_xscale *scales) {
    size_t g = static_cast<size_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (g >= n_groups) return;
    quantize_group(g, x[g * 32 + threadIdx.x % 32], q, scales);
}

} // namespace

extern "C" cudaError_t sn_cuda_quantize(cudaStream_t stream, int n, int cols, const float *x, int8_t *q,
                                        sn_cuda_xscale *scales) {
    size_t groups = static_cast<size_t>(n) * (cols / 32);
    unsigned int blocks = static_cast<unsigned int>((groups + WARPS - 1) / WARPS);
    return SN_LAUNCH(quantize, blocks, THREADS, 0, stream, groups, x, q, scales);
}

extern "C" cudaError_t sn_cuda_linear_quantised(cudaStream_t stream, int n, const int8_t *q,
                                                const sn_cuda_xscale *scales, int n_linears,
                                                const sn_cuda_linear *linears) {
    linear_set b = make_linear_set(n_linears, linears);
#define CALL(layout) pick_quantised<layout>(stream, n, q, scales, b)
    switch (linears[0].weight.layout) {
        SN_CUDA_QUANT_CASES
    default:
        return cudaErrorInvalidValue;
    }
#undef CALL
}

extern "C" cudaError_t sn_cuda_linear_float(cudaStream_t stream, int n, const float *x, int x_stride, int n_linears,
                                            const sn_cuda_linear *linears) {
    linear_set b = make_linear_set(n_linears, linears);
#define CALL(layout) pick_float<layout>(stream, n, x, x_stride, b)
    switch (linears[0].weight.layout) {
        SN_CUDA_FLOAT_CASES
    default:
        return cudaErrorInvalidValue;
    }
#undef CALL
}
