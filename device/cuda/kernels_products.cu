/* Many rows of x times matrices of weights by tensor cores, straight from the layouts of the weights.
 *
 * A block computes a square tile of y: SIDE rows of x by SIDE rows of weights, in steps of STEP columns. Its warps
 * share the tile, each with SIDE / 2 rows of x and 32 rows of weights. Both factors of a step lie in shared memory as
 * bfloat16, twice: while the warps multiply one step, x of the next one is copied and its weights are read, and these
 * are unpacked behind the products. Neighbouring blocks (x of the grid: tiles of x; y: of weights; z: matrices) have
 * the same rows of weights, which so come from memory once.
 *
 * An element of y is the sum over steps of 16 columns in order, whatever the tile. */
#include "device/cuda/products.cuh"

namespace {

/* -- a block */

/* d += the products of a step: of the warp's rows x and w of the tiles. */
template <int TILES> __device__ inline void multiply_step(const uint16_t *x, const uint16_t *w, float d[TILES][4][4]) {
    __syncwarp(); /* brings the lanes together, as loads and products need them */
    int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 2 /* all four would not fit into the registers */
    for (int k = 0; k < STEP / 16; k++) {
        unsigned int b[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices(b[j], w + chunk_at(16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            unsigned int a[4];
            load_matrices(a, x + chunk_at(16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) mma_bf16(d[i][j], a, b[j / 2] + j % 2 * 2);
        }
    }
}

/* Writes a warp's sums with the bias: x_row and w_row are its first ones. */
template <int TILES>
__device__ inline void store_sums(const sn_cuda_linear &l, int n, int x_row, int w_row, float d[TILES][4][4]) {
    int lane = static_cast<int>(threadIdx.x) % 32, rows = l.weight.rows;
    bool pairs = rows % 2 == 0 && reinterpret_cast<uintptr_t>(l.y) % sizeof(float2) == 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int output = w_row + 8 * j + lane % 4 * 2;
        float bias0 = l.bias && output < rows ? l.bias[output] : 0.0f;
        float bias1 = l.bias && output + 1 < rows ? l.bias[output + 1] : 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int row = x_row + 8 * i + lane / 4;
            if (row >= n || output >= rows) continue;
            float *y = l.y + static_cast<size_t>(row) * rows + output;
            float y0 = d[i / 2][j][i % 2 * 2] + bias0, y1 = d[i / 2][j][i % 2 * 2 + 1] + bias1;
            if (pairs) {
                *reinterpret_cast<float2 *>(y) = make_float2(y0, y1);
                continue;
            }
            y[0] = y0;
            if (output + 1 < rows) y[1] = y1;
        }
    }
}

struct matrices {
    sn_cuda_linear at[SN_CUDA_LINEARS];
};

template <int LAYOUT, int SIDE>
__global__ void __launch_bounds__(2 * SIDE, 256 / SIDE)
    linear_products(const __grid_constant__ matrices all, int n, const uint16_t *x, int x_stride) {
    constexpr int WARP_ROWS = SIDE / 2, TILES = WARP_ROWS / 16, BUFFER = SIDE * STEP;
    SN_SHARED_MEMORY(shared);
    uint16_t *xs = reinterpret_cast<uint16_t *>(shared), *ws = xs + 2 * BUFFER;
    const sn_cuda_linear &linear = all.at[blockIdx.z];
    const sn_cuda_matrix &w = linear.weight;
    int x_row = static_cast<int>(blockIdx.x) * SIDE, w_row = static_cast<int>(blockIdx.y) * SIDE;
    if (w_row >= w.rows) return; /* the whole block: another matrix has more rows */
    int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    int warp_x = warp % 2 * WARP_ROWS, warp_w = warp / 2 * 32;
    int own_row = thread / 2, own_chunk = thread % 2 * SHARE / CHUNK; /* what this thread reads of the weights */
    float d[TILES][4][4] = {};

    auto begin_step = [&](int at, int buffer) {
        copy_rows<SIDE>(x + static_cast<size_t>(x_row) * x_stride, n - x_row, x_stride, at, xs + buffer * BUFFER);
        if constexpr (LAYOUT == SN_CUDA_BF16)
            copy_rows<SIDE>(static_cast<const uint16_t *>(w.plane[0]) + static_cast<size_t>(w_row) * w.stride,
                            w.rows - w_row, w.stride, at, ws + buffer * BUFFER);
        copies_end_group();
    };
    auto read_own = [&](int at) {
        if constexpr (LAYOUT == SN_CUDA_BF16)
            return 0;
        else
            return read_share<LAYOUT>(w, w_row + own_row, at + own_chunk * CHUNK);
    };
    auto store_own = [&](const auto &share, int buffer) {
        if constexpr (LAYOUT != SN_CUDA_BF16) store_share<LAYOUT>(share, own_row, own_chunk, ws + buffer * BUFFER);
    };

    begin_step(0, 0);
    store_own(read_own(0), 0);
    for (int at = 0; at < x_stride; at += STEP) {
        int buffer = at / STEP % 2;
        copies_wait<0>();
        __syncthreads(); /* this step is complete, and all warps have finished the step before, whose memory is next */
        bool more = at + STEP < x_stride;
        if (more) begin_step(at + STEP, buffer ^ 1);
        auto next = read_own(at + STEP);
        if (x_row + warp_x < n)
            multiply_step<TILES>(xs + buffer * BUFFER + warp_x * STEP, ws + buffer * BUFFER + warp_w * STEP, d);
        if (more) store_own(next, buffer ^ 1);
    }
    store_sums<TILES>(linear, n, x_row + warp_x, w_row + warp_w, d);
}

template <int LAYOUT, int SIDE>
cudaError_t launch(cudaStream_t stream, int n, const uint16_t *x, int n_linears, const sn_cuda_linear *linears) {
    constexpr int SHARED = 2 * 2 * SIDE * STEP * static_cast<int>(sizeof(uint16_t));
    matrices all = {};
    int rows = 0;
    for (int i = 0; i < n_linears; i++) {
        all.at[i] = linears[i];
        if (rows < linears[i].weight.rows) rows = linears[i].weight.rows;
    }
    if (!rows) return cudaSuccess;
    auto *kernel = linear_products<LAYOUT, SIDE>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error != cudaSuccess) return error;
    const dim3 grid((n + SIDE - 1) / SIDE, (rows + SIDE - 1) / SIDE, n_linears);
    return SN_LAUNCH(kernel, grid, 2 * SIDE, SHARED, stream, all, n, x, (linears[0].weight.cols + 7) / 8 * 8);
}

} // namespace

extern "C" cudaError_t sn_cuda_linear_products(cudaStream_t stream, int n, const uint16_t *x, int side, int n_linears,
                                               const sn_cuda_linear *linears) {
#define CALL(layout)                                                                                                   \
    side == 64 ? launch<layout, 64>(stream, n, x, n_linears, linears)                                                  \
               : launch<layout, 128>(stream, n, x, n_linears, linears)
    switch (linears[0].weight.layout) {
        SN_CUDA_LAYOUT_CASE(F16)
        SN_CUDA_LAYOUT_CASE(BF16)
        SN_CUDA_LAYOUT_CASE(F8)
        SN_CUDA_LAYOUT_CASE(FLOAT4)
        SN_CUDA_QUANT_CASES_OF_ANY
    default:
        return cudaErrorInvalidValue;
    }
#undef CALL
}
