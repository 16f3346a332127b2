/* What kernels share that multiply rows with weights by tensor cores, straight from the layouts of the weights: steps
 * of columns, how a step of a factor lies in shared memory as bfloat16, and weights on their way there. A thread reads
 * its share of the next step while the warps multiply, and unpacks it behind the products. */
#ifndef SN_DEVICE_CUDA_PRODUCTS_CUH
#define SN_DEVICE_CUDA_PRODUCTS_CUH

#include "device/cuda/kernels.cuh"
#include "device/cuda/mma.cuh"

namespace {

constexpr int STEP = 64, CHUNK = 8, CHUNKS = STEP / CHUNK; /* columns; a chunk has 16 bytes */
constexpr int SHARE = 32;                                  /* weights of a row that a thread reads for a step */

/* Elements before a chunk of a row of a tile: chunks of eight neighbouring rows lie in different banks. */
__device__ inline int chunk_at(int row, int chunk) { return row * STEP + (chunk ^ row % CHUNKS) * CHUNK; }

/* -- weights: SHARE of them as they lie in memory, and as bfloat16 */

struct packed_floats {
    uint4 words[4];
    float scale;
    int f8_shift;
    const void *numbers;
};

/* Bits of an element. */
__host__ __device__ constexpr int float_bits(int layout) {
    return layout == SN_CUDA_FLOAT4 ? 4 : layout == SN_CUDA_F8 ? 8 : 16;
}

/* Weights [at, at + SHARE) of a row of F16, F8 or FLOAT4; zero beyond the row. */
template <int LAYOUT> __device__ inline packed_floats read_floats(const sn_cuda_matrix &w, int row, int at) {
    constexpr int IN_LOAD = 128 / float_bits(LAYOUT), LOADS = SHARE / IN_LOAD;
    constexpr int BLOCK = LAYOUT == SN_CUDA_F8 ? SN_CUDA_F8_BLOCK : SN_CUDA_FLOAT4_BLOCK;
    size_t first = static_cast<size_t>(row) * w.stride + at;
    const uint4 *from =
        reinterpret_cast<const uint4 *>(static_cast<const uint8_t *>(w.plane[0]) + first * float_bits(LAYOUT) / 8);
    packed_floats p = {};
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (at + i * IN_LOAD < w.stride) p.words[i] = from[i];
    if (LAYOUT != SN_CUDA_F16 && at < w.stride) p.scale = static_cast<const float *>(w.scales)[first / BLOCK];
    return p;
}

/* Weights 2 i and 2 i + 1 of a word, of which i is below the number that it has. */
template <int LAYOUT> __device__ inline unsigned int unpack_pair(const packed_floats &p, unsigned int word, int i) {
    word >>= 2 * i * float_bits(LAYOUT) % 32;
    if (LAYOUT == SN_CUDA_F16) return pack_bf16(half_to_float(word & 0xffff), half_to_float(word >> 16));
    if (LAYOUT == SN_CUDA_FLOAT4)
        return pack_bf16(float4_to_float(p.numbers, word, 0, p.scale), float4_to_float(p.numbers, word, 1, p.scale));
    return pack_bf16(f8_to_float(word & 0xff, p.f8_shift) * p.scale,
                     f8_to_float(word >> 8 & 0xff, p.f8_shift) * p.scale);
}

template <int LAYOUT> __device__ inline void unpack(const packed_floats &p, unsigned int out[SHARE / 2]) {
    constexpr int PAIRS = 16 / float_bits(LAYOUT); /* in a word */
#pragma unroll
    for (int i = 0; i < SHARE / 2; i++) {
        const uint4 &four = p.words[i / PAIRS / 4];
        int place = i / PAIRS % 4;
        unsigned int word = place == 0 ? four.x : place == 1 ? four.y : place == 2 ? four.z : four.w;
        out[i] = unpack_pair<LAYOUT>(p, word, i % PAIRS);
    }
}

/* Byte k as a number: it becomes the low bits of 2^23, where a conversion would take four times as long. */
template <bool SIGNED> __device__ inline float byte_to_float(unsigned int word, int k) {
    float shifted = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u | k));
    return shifted - (SIGNED ? 8388736.0f : 8388608.0f);
}

template <int LAYOUT> __device__ inline void unpack(const packed_group &p, unsigned int out[SHARE / 2]) {
    constexpr bool SIGNED = has_signs(FORM_OF<LAYOUT>);
    group g = unpack_group<LAYOUT>(p);
#pragma unroll
    for (int i = 0; i < SHARE / 2; i++) {
        float2 s = g.scale[i / 8];
        unsigned int word = SIGNED ? g.q[i / 2] ^ 0x80808080u : g.q[i / 2];
        float low = byte_to_float<SIGNED>(word, i % 2 * 2), high = byte_to_float<SIGNED>(word, i % 2 * 2 + 1);
        out[i] = pack_bf16(fmaf(s.x, low, s.y), fmaf(s.x, high, s.y));
    }
}

/* Of SN_CUDA_ANY. */
struct named_group {
    packed_group group;
    int layout;
};

template <int LAYOUT> __device__ inline void unpack(const named_group &p, unsigned int out[SHARE / 2]) {
#define CASE(layout) unpack<layout>(p.group, out)
    SN_CUDA_BY_NAME(p.layout)
#undef CASE
}

template <int LAYOUT> __device__ inline auto read_share(const sn_cuda_matrix &w, int row, int at) {
    if constexpr (is_float(LAYOUT)) {
        packed_floats p = {};
        if (row < w.rows) p = read_floats<LAYOUT>(w, row, at);
        p.f8_shift = w.f8_shift;
        p.numbers = w.supers;
        return p;
    } else {
        size_t g = static_cast<size_t>(row) * (w.cols / 32) + at / 32;
        packed_group p = {};
        if (row < w.rows && at < w.cols) p = read_group<LAYOUT>(w, g);
        if constexpr (LAYOUT == SN_CUDA_ANY)
            return named_group{p, w.layout};
        else
            return p;
    }
}

/* Stores a share as bfloat16 at its place: of row `row`, from chunk `chunk` on. */
template <int LAYOUT, class Share>
__device__ inline void store_share(const Share &share, int row, int chunk, uint16_t *shared) {
    unsigned int out[SHARE / 2];
    unpack<LAYOUT>(share, out);
#pragma unroll
    for (int c = 0; c < SHARE / CHUNK; c++)
        *reinterpret_cast<uint4 *>(shared + chunk_at(row, chunk + c)) =
            make_uint4(out[4 * c], out[4 * c + 1], out[4 * c + 2], out[4 * c + 3]);
}

/* -- rows that lie as bfloat16 already */

/* Begins to copy columns [at, at + STEP) of SIDE rows, of which n are there; `stride` columns are there. */
template <int SIDE>
__device__ inline void copy_rows(const uint16_t *from, int n, int stride, int at, uint16_t *shared) {
    constexpr int THREADS = 2 * SIDE, ROWS = THREADS / CHUNKS; /* rows that the block copies at once */
    int row = static_cast<int>(threadIdx.x) / CHUNKS, chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    int col = at + chunk * CHUNK;
    from += static_cast<size_t>(row) * stride + col;
    shared += chunk_at(row, chunk);
    n = col < stride ? n - row : 0;
#pragma unroll
    for (int i = 0; i < SIDE; i += ROWS, from += static_cast<size_t>(ROWS) * stride)
        copy_begin(shared + i * STEP, from, i < n);
}

} // namespace

#endif
