/* What the kernels share: reading the layouts, sums over a warp and a block, and launches.
 *
 * The tests compile the same sources for the CPU, against an emulation of threads, warps and barriers: its headers of
 * the CUDA names come first on the include path, and its <cuda_fp16.h> defines SN_LAUNCH and SN_SHARED_MEMORY. */
#ifndef SN_DEVICE_CUDA_KERNELS_CUH
#define SN_DEVICE_CUDA_KERNELS_CUH

#include "device/cuda/books.cuh"
#include "device/cuda/kernels.h"

#include <cuda_fp16.h>

#ifndef SN_LAUNCH
#define SN_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
/* kernel: a pointer to a __global__ function (an instance of a template must be assigned to a variable first). */
#define SN_LAUNCH(kernel, grid, threads, shared, stream, ...)                                                          \
    (kernel<<<(grid), (threads), (shared), (stream)>>>(__VA_ARGS__), cudaGetLastError())
#endif

#define FULL_WARP 0xffffffffu

namespace {

__device__ inline float half_to_float(unsigned int bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ inline float bf16_to_float(unsigned int bits) { return __uint_as_float(bits << 16); }

/* Rounds to nearest even; NaN stays NaN. */
__device__ inline uint16_t float_to_bf16(float x) {
    unsigned int u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40);
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The sum over a warp, in every lane, by a fixed tree. */
__device__ inline float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

/* The sum over the threads of a block, in every thread. shared: one float per warp. */
template <int THREADS> __device__ inline float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads(); /* all threads have finished reading `shared` */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}

/* Quantises the 32 elements of group g, one a lane; all lanes of the warp call it together. */
__device__ inline void quantize_group(size_t g, float v, int8_t *q, sn_cuda_xscale *scales) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    float size = fabsf(v);
    /* fmaxf ignores NaN: here NaN counts as infinity, and a group with infinity becomes NaN */
    float largest = warp_max(size <= 3.402823466e38f ? size : INFINITY);
    bool finite = largest <= 3.402823466e38f;
    float scaled = finite && largest > 0 ? rintf(v / largest * 127.0f) : 0.0f;
    float scale = finite ? largest / 127.0f : NAN;
    q[g * 32 + lane] = static_cast<int8_t>(scaled);
    /* Each half by itself: up to a distance of 8, lanes 0..15 and 16..31 stay separate. */
    float sum = scaled;
    for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    float other = __shfl_xor_sync(FULL_WARP, sum, 16);
    if (lane == 0) scales[g] = sn_cuda_xscale{scale, {scale * sum, scale * other}, 0.0f};
}

/* Rotates a pair of the head at `at`; cos_sin: of its row. */
__device__ inline void rotate_pair(float *at, int pair, bool rotate_half, int half, const float *cos_sin) {
    int i = rotate_half ? pair : 2 * pair, j = rotate_half ? pair + half : 2 * pair + 1;
    float c = cos_sin[pair * 2], s = cos_sin[pair * 2 + 1], a = at[i], b = at[j];
    at[i] = a * c - b * s;
    at[j] = a * s + b * c;
}

/* The share of the normal distribution below x. */
__device__ inline float normal_share(float x) { return 0.5f * erfcf(-0.70710678f * x); }

/* v of the tanh form of GELU, x / (1 + exp(-v)). */
__device__ inline float gelu_inner(float x) { return 1.5957691216f * x * (1.0f + 0.044715f * x * x); }

/* The clamped gate of SN_SWIGLU_CLAMPED, and the factor of every kind; NaN stays NaN. */
__device__ inline float capped(float x) { return x > 7.0f ? 7.0f : x; }
__device__ inline float factor(int kind, float up) {
    return kind == SN_SWIGLU_CLAMPED ? 1.0f + (up < -7.0f ? -7.0f : capped(up)) : up;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline float activation(int kind, float x) {
    if (kind == SN_SIGMOID) return sigmoid(x);
    if (kind == SN_TANH) return tanhf(x);
    if (kind == SN_LINEAR) return x;
    if (kind == SN_RELU_SQUARED) return x < 0.0f ? 0.0f : x * x;
    if (kind == SN_GELU) return x * normal_share(x);
    if (kind == SN_SWIGLU_CLAMPED) return capped(x) / (1.0f + expf(-1.702f * capped(x)));
    return x / (1.0f + expf(kind == SN_SILU ? -x : -gelu_inner(x)));
}

/* -- quantised weights: layout.h has the planes */

constexpr sn_quant_form FORMS[] = {
#define X(type, ...) SN_QUANT_FORM(__VA_ARGS__),
    SN_ALL_QUANT_TYPES(X)
#undef X
};

/* In a function of SN_CUDA_ANY: does CASE(layout), a macro of the place where it stands, for the layout that the matrix
 * names. */
#define SN_CUDA_BY_NAME(layout)                                                                                        \
    switch (layout) {                                                                                                  \
        SN_MORE_QUANT_TYPES(SN_CUDA_NAMED_CASE)                                                                        \
    default:                                                                                                           \
        break;                                                                                                         \
    }
#define SN_CUDA_NAMED_CASE(type, ...)                                                                                  \
    case SN_CUDA_##type:                                                                                               \
        CASE(SN_CUDA_##type);                                                                                          \
        break;

__host__ __device__ constexpr bool is_float(int layout) { return layout <= SN_CUDA_FLOAT4; }
template <int LAYOUT> constexpr sn_quant_form FORM_OF = FORMS[LAYOUT - SN_CUDA_Q4_0];

/* Whether the halves of a group have scales of their own. */
__host__ __device__ constexpr bool has_half_scales(const sn_quant_form &f) {
    return f.scale == SN_SCALE_S || f.scale == SN_SCALE_N || f.scale == SN_SCALE_V || f.scale == SN_SCALE_U ||
           f.scale == SN_SCALE_O;
}
/* Whether weights have an offset beside the zero of their codes. */
__host__ __device__ constexpr bool has_offsets(const sn_quant_form &f) {
    return f.scale == SN_SCALE_DM || f.scale == SN_SCALE_K || f.scale == SN_SCALE_N || f.scale == SN_SCALE_W;
}

/* Whether its weights are entries of a codebook, or digits of base three. */
__host__ __device__ constexpr bool has_entries(const sn_quant_form &f) { return f.index_bits != 0; }
__host__ __device__ constexpr bool has_trits(const sn_quant_form &f) { return f.entry == SN_TRITS; }
/* The integer that stands for zero; those of codebooks have a sign. */
__host__ __device__ constexpr int zero_of(const sn_quant_form &f) { return has_entries(f) ? 0 : f.zero; }
__host__ __device__ constexpr bool has_signs(const sn_quant_form &f) {
    return f.low_bits == 8 || f.table == 1 || f.table == 2 || has_entries(f);
}

__device__ inline int byte_of(unsigned int word, int i) { return static_cast<int8_t>(word >> 8 * i & 0xff); }

/* Values that codes of 4 bits stand for: the tables of device/quant.h, and the levels of codebooks with the sign in
 * the top bit. Where the levels are three, it is the third bit, which in IQ1 lowers them instead. */
enum { TABLE_IQ4, TABLE_E2M1, LEVELS_IQ2, LEVELS_IQ1, LEVELS_IQ3_XXS, LEVELS_IQ3_S };
struct table {
    unsigned int words[4];
};
constexpr table TABLES[] = {
    {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}},
    {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}},
    {{0x002b1908u, 0x00d5e7f8u, 0, 0}},
    {{0x000901f9u, 0x0007fff7u, 0, 0}},
    {{0x1c140c04u, 0x3e342c24u, 0xe4ecf4fcu, 0xc2ccd4dcu}},
    {{0x07050301u, 0x0f0d0b09u, 0xf9fbfdffu, 0xf1f3f5f7u}},
};
__host__ __device__ constexpr int table_of(const sn_quant_form &f) {
    return !has_entries(f)      ? f.table - 1
           : f.index_bits == 11 ? LEVELS_IQ1
           : f.entry == 8       ? LEVELS_IQ2
           : f.sign_bits == 7   ? LEVELS_IQ3_XXS
                                : LEVELS_IQ3_S;
}

/* The values of eight codes of 4 bits, in order. __byte_perm selects by three bits: once from each half of the table,
 * and then between the two by the fourth bit. */
template <int TABLE> __device__ inline uint2 look_up(unsigned int codes) {
    constexpr unsigned int T0 = TABLES[TABLE].words[0], T1 = TABLES[TABLE].words[1], T2 = TABLES[TABLE].words[2],
                           T3 = TABLES[TABLE].words[3];
    if (!T2) return make_uint2(__byte_perm(T0, T1, codes & 0xffffu), __byte_perm(T0, T1, codes >> 16));
    unsigned int choice = 0x32103210u | (codes & 0x88888888u) >> 1;
    unsigned int first =
        __byte_perm(__byte_perm(T0, T1, codes & 0x7777u), __byte_perm(T2, T3, codes & 0x7777u), choice & 0xffffu);
    codes >>= 16;
    unsigned int second =
        __byte_perm(__byte_perm(T0, T1, codes & 0x7777u), __byte_perm(T2, T3, codes & 0x7777u), choice >> 16);
    return make_uint2(first, second);
}

/* The four integers of word i of half h, one in each byte; low and high: the words of the planes that hold them. They
 * are codes, but of a table its values. */
template <int LAYOUT> __device__ inline unsigned int integers(unsigned int low, unsigned int high, int h, int i) {
    constexpr sn_quant_form F = FORM_OF<LAYOUT>;
    if constexpr (F.table == 1 || F.table == 2) {
        uint2 both = look_up<table_of(F)>(low); /* low and high nibbles in turns */
        return __byte_perm(both.x, both.y, h ? 0x7531 : 0x6420);
    }
    if (F.low_bits == 8) return low;
    if (F.low_bits == 1) return (low >> (4 * h + i) & 0x01010101u) << 1; /* Q1_0 */
    unsigned int q = F.low_bits == 4 ? low >> 4 * h & 0x0f0f0f0fu : low >> 2 * i & 0x03030303u;
    if (F.high_bits == 1) q |= (high >> (4 * h + i) & 0x01010101u) << F.low_bits;
    if (F.high_bits == 2) q |= (high >> 2 * i & 0x03030303u) << F.low_bits;
    return q;
}

/* The bytes of the scale of group g, counted over the whole matrix; and of its superblock. */
template <int LAYOUT> __device__ inline unsigned int scale_code(const sn_cuda_matrix &w, size_t g) {
    constexpr int BYTES = FORM_OF<LAYOUT>.scale_bytes;
    if (BYTES == 0) return 0;
    if (BYTES == 4) return static_cast<const uint32_t *>(w.scales)[g];
    if (BYTES == 3) {
        const uint8_t *at = static_cast<const uint8_t *>(w.scales) + 3 * g;
        return at[0] | at[1] << 8 | at[2] << 16;
    }
    return BYTES == 2 ? static_cast<const uint16_t *>(w.scales)[g] : static_cast<const uint8_t *>(w.scales)[g];
}

template <int LAYOUT> __device__ inline unsigned int super_code(const sn_cuda_matrix &w, size_t g) {
    constexpr int BYTES = FORM_OF<LAYOUT>.super_bytes, GROUPS = FORM_OF<LAYOUT>.groups;
    if (BYTES == 0) return 0;
    return BYTES == 4 ? static_cast<const uint32_t *>(w.supers)[g / GROUPS]
                      : static_cast<const uint16_t *>(w.supers)[g / GROUPS * (BYTES / 2)];
}

/* Scale and offset of half h of a group, for its codes; the offset without the zero of the codes. */
template <int LAYOUT> __device__ inline float2 scale_of(unsigned int code, unsigned int super, int h) {
    constexpr sn_quant_scale SCALE = FORM_OF<LAYOUT>.scale;
    if (SCALE == SN_SCALE_D) return make_float2(half_to_float(code), 0.0f);
    if (SCALE == SN_SCALE_DM) return make_float2(half_to_float(code & 0xffff), half_to_float(code >> 16));
    if (SCALE == SN_SCALE_E) return make_float2(__uint_as_float(code < 2 ? 0x200000u << code : (code - 1) << 23), 0.0f);
    if (SCALE == SN_SCALE_BF) return make_float2(bf16_to_float(code), 0.0f);
    if (SCALE == SN_SCALE_F) return make_float2(__uint_as_float(super), 0.0f);
    if (SCALE == SN_SCALE_W) {
        constexpr int BASE = FORM_OF<LAYOUT>.low_bits == 8 ? 128 : 0;
        float scale = __uint_as_float(super & 0xffffff00u);
        return make_float2(scale, scale * static_cast<float>(BASE - static_cast<int>(super & 0xff)));
    }
    unsigned int own = code >> 8 * h & 0xff;
    if (SCALE == SN_SCALE_V)
        return make_float2(half_to_float((own & 0x80) << 8 | (own & 0x7f) << 7) * (256.0f * __uint_as_float(super)),
                           0.0f);
    if (SCALE == SN_SCALE_U) return make_float2(half_to_float((own & 0x7f) << 7) * 128.0f, 0.0f);
    constexpr float SHARE = 1.0f / static_cast<float>(1 << FORM_OF<LAYOUT>.halvings);
    float d = half_to_float(super & 0xffff) * SHARE, m = half_to_float(super >> 16);
    if (SCALE == SN_SCALE_H) return make_float2(d, 0.0f);
    if (SCALE == SN_SCALE_O) return make_float2(d * static_cast<float>((code >> 4 * h & 15) * 2 + 1), 0.0f);
    if (SCALE == SN_SCALE_P) return make_float2(d * static_cast<float>(code * 2 + 1), 0.0f);
    if (SCALE == SN_SCALE_Q)
        return make_float2(d * static_cast<float>((code >> 2 & 2) + (code >> 5 & 4) + (code >> 8 & 8) + 1), 0.0f);
    if (SCALE == SN_SCALE_N) return make_float2(d * static_cast<float>(own & 15), m * static_cast<float>(own >> 4));
    if (SCALE == SN_SCALE_K) return make_float2(d * static_cast<float>(code & 0xff), m * static_cast<float>(code >> 8));
    return make_float2(d * static_cast<float>(byte_of(SCALE == SN_SCALE_S ? own : code, 0)), 0.0f);
}

/* 32 weights in registers: their integers, four in a word, and the scales of each half with all offsets, so that a
 * weight is x * integer + y. */
struct group {
    unsigned int q[8];
    float2 scale[2];
};

/* A group as it lies in memory. */
struct packed_group {
    unsigned int low[8], high[2], code, super;
};

/* The word at p, which is aligned to two bytes. */
__device__ inline unsigned int word_at(const uint16_t *p) { return p[0] | static_cast<unsigned int>(p[1]) << 16; }

/* Reads group g with one load from each plane. */
template <int LAYOUT> __device__ inline packed_group read_group(const sn_cuda_matrix &w, size_t g) {
    packed_group p = {};
    if constexpr (LAYOUT == SN_CUDA_ANY) {
#define CASE(layout) p = read_group<layout>(w, g)
        SN_CUDA_BY_NAME(w.layout)
#undef CASE
        return p;
    } else {
        constexpr sn_quant_form F = FORM_OF<LAYOUT>;
        if (F.low_bits % 2) {
#pragma unroll
            for (int i = 0; i < F.low_bits; i++)
                p.low[i] = __ldcs(static_cast<const unsigned int *>(w.plane[0]) + F.low_bits * g + i);
        } else if (F.low_bits == 2) {
            uint2 v = __ldcs(static_cast<const uint2 *>(w.plane[0]) + g);
            p.low[0] = v.x, p.low[1] = v.y;
        } else {
            uint4 v = __ldcs(static_cast<const uint4 *>(w.plane[0]) + g);
            p.low[0] = v.x, p.low[1] = v.y, p.low[2] = v.z, p.low[3] = v.w;
        }
        if (F.low_bits == 8) {
            uint4 v = __ldcs(static_cast<const uint4 *>(w.plane[1]) + g);
            p.low[4] = v.x, p.low[5] = v.y, p.low[6] = v.z, p.low[7] = v.w;
        }
        if (F.high_bits == 1) p.high[0] = __ldcs(static_cast<const unsigned int *>(w.plane[1]) + g);
        if (F.high_bits == 2) {
            uint2 v = __ldcs(static_cast<const uint2 *>(w.plane[1]) + g);
            p.high[0] = v.x, p.high[1] = v.y;
        }
        p.code = scale_code<LAYOUT>(w, g);
        p.super = super_code<LAYOUT>(w, g);
        if (F.scale == SN_SCALE_P) p.code = p.low[F.low_bits - 1] >> 28;
        if (has_trits(F)) { /* the words that hold the last digits, 3 g to 3 g + 2 of the superblock's */
            int digit = static_cast<int>(g % F.groups) * 3;
            const uint16_t *shared = static_cast<const uint16_t *>(w.supers) + g / F.groups * (F.super_bytes / 2) + 1;
            p.low[1] = word_at(shared + digit / 5 * 2);
            p.low[2] = word_at(shared + (digit + 2) / 5 * 2);
            p.code = digit % 5;
        }
        return p;
    }
}

/* Four weights of TQ1_0, each plus 1: word i of a group. */
__device__ inline unsigned int trits(const packed_group &p, int i) {
    int digit = i < 5 ? i : static_cast<int>(p.code) + i - 5;
    unsigned int word = i < 5 ? p.low[0] : digit < 5 ? p.low[1] : p.low[2];
    if (digit >= 5) digit -= 5;
    /* 3^digit times a byte, of which the low byte's product with 3 has the digit above it; every second byte at once */
    unsigned int power = __byte_perm(0x1b090301u, 81, digit) & 0xff;
    unsigned int even = ((word & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
    unsigned int odd = ((word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
    return __byte_perm(even, odd, 0x7351);
}

/* The codes of weights 8 e to 8 e + 7 of a group of a codebook type, for its table of levels. */
template <int LAYOUT> __device__ inline unsigned int entry_codes(const packed_group &p, int e) {
    constexpr sn_quant_form F = FORM_OF<LAYOUT>;
    constexpr int PER_8 = 8 / F.entry, MORE = F.index_bits - 8;        /* entries, high bits of an index */
    constexpr int SHARE = F.index_bits == 11 ? 4 : PER_8 == 2 ? 1 : 2; /* bits of an entry in `high` */
    unsigned int signs = p.low[F.low_bits - 1];                        /* none in IQ1 */
    unsigned int high =
        F.sign_bits == 7 ? signs >> (28 + e) : p.code >> ((F.scale == SN_SCALE_Q ? 0 : 8) + SHARE * PER_8 * e);
    unsigned int low = (PER_8 == 1 || e < 2 ? p.low[0] : p.low[1]) >> 8 * PER_8 * (PER_8 == 1 ? e : e % 2);
    unsigned int codes = 0;
#pragma unroll
    for (int i = 0; i < PER_8; i++) {
        unsigned int index = (low >> 8 * i & 0xff) | (high >> SHARE * i & ((1u << MORE) - 1)) << 8;
        codes |= BOOKS[F.book + (PER_8 == 2 ? static_cast<int>(SN_BOOKS_OF_8) : 0) + index] << 16 * i;
    }
    if (F.index_bits == 11) return codes | (F.scale == SN_SCALE_Q ? p.code >> 15 : high >> 3 & 1) * 0x44444444u;
    if (F.sign_bits == 7) { /* an even number of the eight is negative: that of the last one follows */
        unsigned int all = signs ^ signs >> 16;
        all ^= all >> 8;
        signs ^= (all ^ all >> 4) << 28;
    }
    constexpr int TO = PER_8 == 2 ? 3 : 2; /* the bit of a code that is its sign */
    return codes | ((e > TO ? signs >> (e - TO) : signs << (TO - e)) & 0x11111111u << TO);
}

/* Weights 8 e to 8 e + 7 of a group, four in a word, of types whose weights have no codes of their own. */
template <int LAYOUT> __device__ inline uint2 eight_integers(const packed_group &p, int e) {
    constexpr sn_quant_form F = FORM_OF<LAYOUT>;
    if constexpr (has_trits(F))
        return make_uint2(trits(p, 2 * e), trits(p, 2 * e + 1));
    else
        return look_up<table_of(F)>(entry_codes<LAYOUT>(p, e));
}

template <int LAYOUT> __device__ inline group unpack_group(const packed_group &p) {
    constexpr sn_quant_form F = FORM_OF<LAYOUT>;
    group out;
#pragma unroll
    for (int e = 0; e < 4; e++)
        if constexpr (has_entries(F) || has_trits(F)) {
            uint2 both = eight_integers<LAYOUT>(p, e);
            out.q[2 * e] = both.x, out.q[2 * e + 1] = both.y;
        }
#pragma unroll
    for (int h = 0; h < 2 && !has_entries(F) && !has_trits(F); h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out.q[4 * h + i] = integers<LAYOUT>(p.low[F.low_bits == 8   ? 4 * h + i
                                                      : F.low_bits == 4 ? i
                                                      : F.low_bits == 2 ? h
                                                                        : 0],
                                                p.high[F.high_bits == 2 ? h : 0], h, i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        out.scale[h] = scale_of<LAYOUT>(p.code, p.super, h);
        out.scale[h].y -= static_cast<float>(zero_of(F)) * out.scale[h].x;
    }
    return out;
}

template <int LAYOUT> __device__ inline group load_group(const sn_cuda_matrix &w, size_t g) {
    group out = {};
    if constexpr (LAYOUT == SN_CUDA_ANY) {
#define CASE(layout) out = load_group<layout>(w, g)
        SN_CUDA_BY_NAME(w.layout)
#undef CASE
    } else {
        out = unpack_group<LAYOUT>(read_group<LAYOUT>(w, g));
    }
    return out;
}

/* -- weights of every layout as float32 */

/* An element of F8 divided by its scale, as that lies in memory; it is neither infinite nor NaN. */
__device__ inline float f8_to_float(unsigned int bits, int shift) {
    return half_to_float((bits & 0x80) << 8 | (bits & 0x7f) << shift);
}

/* The number of code i of a word of FLOAT4, times the scale. */
__device__ inline float float4_to_float(const void *numbers, unsigned int word, int i, float scale) {
    return static_cast<const float *>(numbers)[word >> 4 * i & 15] * scale;
}

/* Eight consecutive weights of a row, from element `at` (a multiple of 8) on. */
template <int LAYOUT> __device__ inline void load_floats(const sn_cuda_matrix &w, int row, int at, float out[8]) {
    size_t first = static_cast<size_t>(row) * w.stride + at;
    if (LAYOUT == SN_CUDA_F32) {
        const float4 *p = reinterpret_cast<const float4 *>(static_cast<const float *>(w.plane[0]) + first);
        float4 a = p[0], b = p[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        return;
    }
    if (LAYOUT == SN_CUDA_F8) {
        uint2 v = *reinterpret_cast<const uint2 *>(static_cast<const uint8_t *>(w.plane[0]) + first);
        float scale = static_cast<const float *>(w.scales)[first / SN_CUDA_F8_BLOCK];
        for (int i = 0; i < 8; i++) out[i] = f8_to_float((i < 4 ? v.x : v.y) >> 8 * (i % 4) & 0xff, w.f8_shift) * scale;
        return;
    }
    if (LAYOUT == SN_CUDA_FLOAT4) {
        unsigned int word = static_cast<const unsigned int *>(w.plane[0])[first / 8];
        float scale = static_cast<const float *>(w.scales)[first / SN_CUDA_FLOAT4_BLOCK];
        for (int i = 0; i < 8; i++) out[i] = float4_to_float(w.supers, word, i, scale);
        return;
    }
    uint4 v = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(w.plane[0]) + first);
    const unsigned int words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 8; i++) {
        unsigned int bits = words[i / 2] >> 16 * (i % 2) & 0xffff;
        out[i] = LAYOUT == SN_CUDA_F16 ? half_to_float(bits) : bf16_to_float(bits);
    }
}

template <int LAYOUT> __device__ inline void load_weights(const sn_cuda_matrix &w, int row, int at, float out[8]) {
    if constexpr (is_float(LAYOUT)) {
        load_floats<LAYOUT>(w, row, at, out);
    } else if constexpr (LAYOUT == SN_CUDA_ANY) {
        for (int i = 0; i < 8; i++) out[i] = 0; /* compilers do not know that a case is taken */
#define CASE(layout) load_weights<layout>(w, row, at, out)
        SN_CUDA_BY_NAME(w.layout)
#undef CASE
    } else {
        constexpr sn_quant_form F = FORM_OF<LAYOUT>;
        size_t g = static_cast<size_t>(row) * (w.cols / 32) + at / 32;
        int h = at / 16 % 2, i = at % 16 / 4; /* words i and i + 1 of half h */
        float2 s;
        uint2 q = {};
        if constexpr (has_entries(F) || has_trits(F)) {
            packed_group p = read_group<LAYOUT>(w, g);
            q = eight_integers<LAYOUT>(p, 2 * h + i / 2);
            s = scale_of<LAYOUT>(p.code, p.super, h);
        } else {
            uint2 low = {};
            if (F.low_bits <= 2)
                low.x = low.y =
                    static_cast<const unsigned int *>(w.plane[0])[F.low_bits * g + (F.low_bits == 2 ? h : 0)];
            else
                low = static_cast<const uint2 *>(w.plane[F.low_bits == 8 ? h : 0])[2 * g + i / 2];
            unsigned int high = 0;
            if (F.high_bits)
                high = static_cast<const unsigned int *>(w.plane[1])[F.high_bits * g + (F.high_bits == 2 ? h : 0)];
            q = make_uint2(integers<LAYOUT>(low.x, high, h, i), integers<LAYOUT>(low.y, high, h, i + 1));
            s = scale_of<LAYOUT>(scale_code<LAYOUT>(w, g), super_code<LAYOUT>(w, g), h);
        }
        for (int e = 0; e < 8; e++)
            out[e] = s.x * static_cast<float>(byte_of(e < 4 ? q.x : q.y, e % 4) - zero_of(F)) + s.y;
    }
}

/* -- keys and values of every type of KV cache: kernels.h has the layout of a page */

/* The elements of a key or value, and with SN_KV_Q8 its scales. */
struct kv_row {
    unsigned char *elements;
    uint16_t *scales;
};

/* Row `row` of `rows` rows of `padded_dim` elements at `page`, which their scales follow. */
template <int DTYPE>
__device__ inline kv_row kv_row_at(unsigned char *page, int rows, int row, int dim, int padded_dim) {
    constexpr int BYTES = DTYPE == SN_KV_F32 ? 4 : DTYPE == SN_KV_F16 ? 2 : 1;
    kv_row r;
    r.elements = page + static_cast<size_t>(row) * padded_dim * BYTES;
    r.scales = reinterpret_cast<uint16_t *>(page + static_cast<size_t>(rows) * padded_dim * BYTES) +
               static_cast<size_t>(row) * ((dim + 31) / 32);
    return r;
}

/* Elements i to i + 3; i is a multiple of 4. */
template <int DTYPE> __device__ inline float4 kv_load4(const kv_row &r, int i) {
    if (DTYPE == SN_KV_F32) return *reinterpret_cast<const float4 *>(r.elements + 4 * i);
    if (DTYPE == SN_KV_F16) {
        uint2 v = *reinterpret_cast<const uint2 *>(r.elements + 2 * i);
        return make_float4(half_to_float(v.x & 0xffff), half_to_float(v.x >> 16), half_to_float(v.y & 0xffff),
                           half_to_float(v.y >> 16));
    }
    unsigned int v = *reinterpret_cast<const unsigned int *>(r.elements + i);
    float d = bf16_to_float(r.scales[i / 32]);
    return make_float4(static_cast<float>(byte_of(v, 0)) * d, static_cast<float>(byte_of(v, 1)) * d,
                       static_cast<float>(byte_of(v, 2)) * d, static_cast<float>(byte_of(v, 3)) * d);
}

template <int DTYPE> __device__ inline float kv_load(const kv_row &r, int i) {
    if (DTYPE == SN_KV_F32) return reinterpret_cast<const float *>(r.elements)[i];
    if (DTYPE == SN_KV_F16) return half_to_float(reinterpret_cast<const uint16_t *>(r.elements)[i]);
    return static_cast<float>(static_cast<int8_t>(r.elements[i])) * bf16_to_float(r.scales[i / 32]);
}

/* Stores element i, below padded_dim; beyond dim x is 0. All lanes of a warp call it together, with 32 consecutive i
 * from a multiple of 32 on. Rounds as the CPU does (device/cpu/attention.c), to the same bits. */
template <int DTYPE> __device__ inline void kv_store1(const kv_row &r, int i, int dim, int padded_dim, float x) {
    if (DTYPE == SN_KV_F32 && i < padded_dim) reinterpret_cast<float *>(r.elements)[i] = x;
    if (DTYPE == SN_KV_F16 && i < padded_dim)
        reinterpret_cast<uint16_t *>(r.elements)[i] = __half_as_ushort(__float2half_rn(x > 65504.0f    ? 65504.0f
                                                                                       : x < -65504.0f ? -65504.0f
                                                                                                       : x));
    if (DTYPE != SN_KV_Q8) return;
    float largest = warp_max(fabsf(x)); /* NaN does not count, and becomes 0 */
    unsigned int scale = largest < 1e-30f ? 0 : float_to_bf16(fminf(largest, 3.402823466e38f) / 127.0f);
    float y = scale ? x / bf16_to_float(scale) : 0.0f;
    int q = y >= 127 ? 127 : y <= -127 ? -127 : y == y ? static_cast<int>(rintf(y)) : 0;
    if (i < padded_dim) r.elements[i] = static_cast<unsigned char>(q);
    if (i % 32 == 0 && i < dim) r.scales[i / 32] = static_cast<uint16_t>(scale);
}

/* Returns CALL(dtype), a macro of the place where this stands, for the type of a KV cache. */
#define BY_KV_DTYPE(dtype)                                                                                             \
    switch (dtype) {                                                                                                   \
    case SN_KV_F32:                                                                                                    \
        return CALL(SN_KV_F32);                                                                                        \
    case SN_KV_F16:                                                                                                    \
        return CALL(SN_KV_F16);                                                                                        \
    case SN_KV_Q8:                                                                                                     \
        return CALL(SN_KV_Q8);                                                                                         \
    default:                                                                                                           \
        break;                                                                                                         \
    }                                                                                                                  \
    return cudaErrorInvalidValue

/* The matrix of expert, or head, e. */
__device__ inline sn_cuda_matrix expert_at(const sn_cuda_experts &experts, int e) {
    sn_cuda_matrix w = experts.first;
    size_t at = static_cast<size_t>(e) * experts.stride;
    for (int i = 0; i < 2; i++) w.plane[i] = static_cast<const char *>(w.plane[i]) + at;
    w.scales = static_cast<const char *>(w.scales) + at;
    w.supers = static_cast<const char *>(w.supers) + at;
    return w;
}

/* As sn_window_first. */
__device__ inline int window_start(int position, int window) {
    if (window < 0) return position / -window * -window;
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

/* A score that softcap bounds; 0: nothing does. */
__device__ inline float softcapped(float score, float softcap) {
    return softcap > 0 ? softcap * tanhf(score / softcap) : score;
}

/* ALiBi: lowers the score of a key for a query at position own. */
__device__ inline float alibi_score(float score, const float *slope, int key, int own) {
    return slope ? fmaf(*slope, static_cast<float>(key - own), score) : score;
}

__device__ inline float dot4(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

} // namespace

/* In a switch over the layout: cases that return CALL(layout), a macro of the place where this stands. */
#define SN_CUDA_LAYOUT_CASE(type, ...)                                                                                 \
    case SN_CUDA_##type:                                                                                               \
        return CALL(SN_CUDA_##type);
#define SN_CUDA_FLOAT_CASES                                                                                            \
    SN_CUDA_LAYOUT_CASE(F32)                                                                                           \
    SN_CUDA_LAYOUT_CASE(F16) SN_CUDA_LAYOUT_CASE(BF16) SN_CUDA_LAYOUT_CASE(F8) SN_CUDA_LAYOUT_CASE(FLOAT4)
#define SN_CUDA_QUANT_CASES SN_ALL_QUANT_TYPES(SN_CUDA_LAYOUT_CASE)
/* The same with one instance of a kernel for all of SN_MORE_QUANT_TYPES: it chooses for each group of weights. So are
 * compiled all kernels but those of decode steps, whose loads would wait for each other. */
#define SN_CUDA_ANY_CASE(type, ...) case SN_CUDA_##type:
#define SN_CUDA_QUANT_CASES_OF_ANY                                                                                     \
    SN_QUANT_TYPES(SN_CUDA_LAYOUT_CASE) SN_MORE_QUANT_TYPES(SN_CUDA_ANY_CASE) return CALL(SN_CUDA_ANY);

/* Returns CALL(layout) for the layout of a matrix. */
#define BY_LAYOUT(layout, quant_cases)                                                                                 \
    switch (layout) {                                                                                                  \
        SN_CUDA_FLOAT_CASES                                                                                            \
        quant_cases default : break;                                                                                   \
    }                                                                                                                  \
    return cudaErrorInvalidValue

#endif
