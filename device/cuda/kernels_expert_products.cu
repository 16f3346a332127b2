/* Experts of many pairs by tensor cores, straight from the layouts of their weights.
 *
 * moe_group lists tiles: up to SN_CUDA_TILE_PAIRS pairs of a row and one expert, of each expert that has at least
 * SN_CUDA_MANY_PAIRS pairs. A block multiplies a tile with SIDE rows of its expert's weights, in steps of STEP columns;
 * each of its warps has 16 of these rows and all pairs, 16 at a time, so that a tile that is not full leaves no warp
 * idle. Neighbouring blocks have tiles of the same expert and the same weights, which so come from memory once.
 *
 * A row of x is the sum of two bfloat16, high = x rounded and low = the rest rounded, because the smallest difference
 * may choose other experts in the next block; weights are rounded to bfloat16, as in `linear` with high precision. x is
 * read as float32 at the places that the tile names, and parted on its way to shared memory, so that there is no other
 * copy of it. Both factors of a step lie there twice: while the warps multiply one step, the next one is read.
 *
 * An element of y is the sum over steps of 16 columns in order, low before high, whatever else is in the tile. */
#include "device/cuda/products.cuh"

namespace {

constexpr int SIDE = SN_CUDA_TILE_PAIRS, THREADS = 2 * SIDE; /* a thread reads a share of the weights for a step */
constexpr int WARP_OUTPUTS = SIDE / (THREADS / 32), TILES = SIDE / 16, BUFFER = SIDE * STEP;
constexpr int ROWS = THREADS / CHUNKS; /* of x, of which the block reads a step at once */
constexpr int SHARED = 2 * 3 * BUFFER * static_cast<int>(sizeof(uint16_t)) + SIDE * static_cast<int>(sizeof(int32_t));
static_assert(WARP_OUTPUTS == 16, "a warp loads its weights of 16 columns at once");

struct shared_memory {
    uint16_t *high, *low, *w; /* (2, SIDE, STEP) each: of x, and weights */
    int32_t *pairs;           /* (SIDE) */

    __device__ explicit shared_memory(unsigned char *at) {
        high = reinterpret_cast<uint16_t *>(at);
        low = high + 2 * BUFFER;
        w = low + 2 * BUFFER;
        pairs = reinterpret_cast<int32_t *>(w + 2 * BUFFER);
    }
};

/* A thread's part of a step of x: a chunk of each of SIDE / ROWS rows. */
struct part_of_x {
    float4 v[SIDE / ROWS][2];
};

struct source {
    const float *rows[SIDE / ROWS]; /* the thread's; NULL: the tile has none there */
    int cols;
    bool vectors; /* rows are aligned to 16 bytes */
};

__device__ inline source source_of(const float *x, int cols, int per_row, sn_cuda_chunk tile, const int32_t *pairs) {
    source s;
    s.cols = cols;
    s.vectors = cols % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
#pragma unroll
    for (int i = 0; i < SIDE / ROWS; i++) {
        int row = static_cast<int>(threadIdx.x) / CHUNKS + i * ROWS;
        s.rows[i] = row < tile.n ? x + static_cast<size_t>(pairs[row] / per_row) * cols : nullptr;
    }
    return s;
}

/* Four elements of a row from column `at` on; zeros beyond the last one. */
__device__ inline float4 read_four(const source &s, const float *row, int at) {
    if (!row || at >= s.cols) return make_float4(0, 0, 0, 0);
    if (s.vectors) return *reinterpret_cast<const float4 *>(row + at);
    return make_float4(row[at], at + 1 < s.cols ? row[at + 1] : 0.0f, at + 2 < s.cols ? row[at + 2] : 0.0f,
                       at + 3 < s.cols ? row[at + 3] : 0.0f);
}

__device__ inline part_of_x read_x(const source &s, int at) {
    part_of_x p;
    at += static_cast<int>(threadIdx.x) % CHUNKS * CHUNK;
#pragma unroll
    for (int i = 0; i < SIDE / ROWS; i++)
        for (int half = 0; half < 2; half++) p.v[i][half] = read_four(s, s.rows[i], at + 4 * half);
    return p;
}

/* Two numbers as the sums of two bfloat16. */
__device__ inline void part_two(float x, float y, unsigned int *high, unsigned int *low) {
    *high = pack_bf16(x, y);
    *low = pack_bf16(x - __uint_as_float(*high << 16), y - __uint_as_float(*high & 0xffff0000u));
}

__device__ inline void store_x(const part_of_x &p, const shared_memory &s, int buffer) {
#pragma unroll
    for (int i = 0; i < SIDE / ROWS; i++) {
        const float4 a = p.v[i][0], b = p.v[i][1];
        unsigned int high[4], low[4];
        part_two(a.x, a.y, &high[0], &low[0]);
        part_two(a.z, a.w, &high[1], &low[1]);
        part_two(b.x, b.y, &high[2], &low[2]);
        part_two(b.z, b.w, &high[3], &low[3]);
        int at = buffer * BUFFER +
                 chunk_at(static_cast<int>(threadIdx.x) / CHUNKS + i * ROWS, static_cast<int>(threadIdx.x) % CHUNKS);
        *reinterpret_cast<uint4 *>(s.high + at) = make_uint4(high[0], high[1], high[2], high[3]);
        *reinterpret_cast<uint4 *>(s.low + at) = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

/* d += the products of a step: of the tile's n pairs and the warp's rows of weights. */
__device__ inline void multiply_step(const shared_memory &s, int buffer, int n, float d[TILES][2][4]) {
    __syncwarp(); /* brings the lanes together, as loads and products need them */
    int lane = static_cast<int>(threadIdx.x) % 32, own = static_cast<int>(threadIdx.x) / 32 * WARP_OUTPUTS;
#pragma unroll 2
    for (int k = 0; k < STEP / 16; k++) {
        unsigned int b[4];
        load_matrices(b, s.w + buffer * BUFFER + chunk_at(own + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (16 * i >= n) break; /* by the whole block */
            int at = buffer * BUFFER + chunk_at(16 * i + lane % 16, 2 * k + lane / 16);
            unsigned int low[4], high[4];
            load_matrices(low, s.low + at);
            load_matrices(high, s.high + at);
            for (int j = 0; j < 2; j++) mma_bf16(d[i][j], low, b + 2 * j);
            for (int j = 0; j < 2; j++) mma_bf16(d[i][j], high, b + 2 * j);
        }
    }
}

/* Writes a warp's sums with the expert's bias to the rows of y of its pairs. */
__device__ inline void store_sums(const shared_memory &s, int n, int rows, int w_row, const float *bias, float *y,
                                  float d[TILES][2][4]) {
    int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int output = w_row + 8 * j + lane % 4 * 2;
        float bias0 = bias && output < rows ? bias[output] : 0.0f;
        float bias1 = bias && output + 1 < rows ? bias[output + 1] : 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int at = 8 * i + lane / 4;
            if (at >= n || output >= rows) continue;
            float *to = y + static_cast<size_t>(s.pairs[at]) * rows + output;
            to[0] = d[i / 2][j][i % 2 * 2] + bias0;
            if (output + 1 < rows) to[1] = d[i / 2][j][i % 2 * 2 + 1] + bias1;
        }
    }
}

/* blockIdx.x: the tile; blockIdx.y: the rows of the weights. */
template <int LAYOUT>
__global__ void __launch_bounds__(THREADS, is_float(LAYOUT) ? 3 : 4)
    moe_products(const __grid_constant__ sn_cuda_experts experts, const __grid_constant__ sn_cuda_groups g,
                 const float *x, const float *bias, float *y) {
    SN_SHARED_MEMORY(memory);
    const shared_memory s(memory);
    const sn_cuda_chunk tile = g.tiles[blockIdx.x];
    if (tile.n == 0) return; /* by the whole block */
    const sn_cuda_matrix w = expert_at(experts, tile.expert);
    const int thread = static_cast<int>(threadIdx.x), w_row = static_cast<int>(blockIdx.y) * SIDE;
    const int own_row = thread / 2, own_chunk = thread % 2 * SHARE / CHUNK; /* what this thread reads of the weights */
    float d[TILES][2][4] = {};
    if (thread < tile.n) s.pairs[thread] = g.order[tile.first + thread];
    __syncthreads();
    const source from = source_of(x, w.cols, g.per_row, tile, s.pairs);

    auto read_own = [&](int at, int buffer) {
        if constexpr (LAYOUT == SN_CUDA_BF16) {
            copy_rows<SIDE>(static_cast<const uint16_t *>(w.plane[0]) + static_cast<size_t>(w_row) * w.stride,
                            w.rows - w_row, w.stride, at, s.w + buffer * BUFFER);
            copies_end_group();
            return 0;
        } else {
            return read_share<LAYOUT>(w, w_row + own_row, at + own_chunk * CHUNK);
        }
    };
    auto store = [&](const auto &share, const part_of_x &part, int buffer) {
        if constexpr (LAYOUT != SN_CUDA_BF16) store_share<LAYOUT>(share, own_row, own_chunk, s.w + buffer * BUFFER);
        store_x(part, s, buffer);
    };

    store(read_own(0, 0), read_x(from, 0), 0);
    for (int at = 0; at < w.cols; at += STEP) {
        int buffer = at / STEP % 2;
        copies_wait<0>();
        __syncthreads(); /* this step is complete, and all warps have finished the step before, whose memory is next */
        bool more = at + STEP < w.cols;
        if (!more) {
            multiply_step(s, buffer, tile.n, d);
            break;
        }
        auto next = read_own(at + STEP, buffer ^ 1);
        part_of_x part = read_x(from, at + STEP);
        multiply_step(s, buffer, tile.n, d);
        store(next, part, buffer ^ 1);
    }
    store_sums(s, tile.n, w.rows, w_row + thread / 32 * WARP_OUTPUTS,
               bias ? bias + static_cast<size_t>(tile.expert) * w.rows : nullptr, y, d);
}

template <int LAYOUT>
cudaError_t launch(cudaStream_t stream, const sn_cuda_groups &g, const float *x, const sn_cuda_experts &experts,
                   const float *bias, float *y) {
    auto *kernel = moe_products<LAYOUT>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (error != cudaSuccess) return error;
    const dim3 grid(static_cast<unsigned int>(g.n_tiles),
                    static_cast<unsigned int>((experts.first.rows + SIDE - 1) / SIDE));
    return SN_LAUNCH(kernel, grid, THREADS, SHARED, stream, experts, g, x, bias, y);
}

} // namespace

extern "C" cudaError_t sn_cuda_moe_products(cudaStream_t stream, const sn_cuda_groups *groups, const float *x,
                                            const sn_cuda_experts *experts, const float *bias, float *y) {
#define CALL(layout) launch<layout>(stream, *groups, x, *experts, bias, y)
    switch (experts->first.layout) {
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
