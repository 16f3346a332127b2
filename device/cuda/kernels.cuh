/* What the kernels share: reading the layouts, sums over a warp and a block, and launches.
 *
 * The tests compile the same sources for the CPU, against an emulation of threads, warps and barriers: its headers of
 * the CUDA names come first on the include path, and its <cuda_fp16.h> defines SN_LAUNCH and SN_SHARED_MEMORY. */
#ifndef SN_DEVICE_CUDA_KERNELS_CUH
#define SN_DEVICE_CUDA_KERNELS_CUH

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
    if (kind == SN_GELU) return x * normal_share(x);
    if (kind == SN_SWIGLU_CLAMPED) return capped(x) / (1.0f + expf(-1.702f * capped(x)));
    return x / (1.0f + expf(kind == SN_SILU ? -x : -gelu_inner(x)));
}

/* Scale and offset of half h (0: weights 0..15, 1: weights 16..31) of group `g`, counted over the whole matrix. */
template <int LAYOUT> __device__ inline float2 scale_of(const sn_cuda_matrix &w, size_t g, int h) {
    if (LAYOUT == SN_CUDA_Q8_FINE) {
        const float *s = static_cast<const float *>(w.scales) + 4 * g;
        return make_float2(s[h], s[2 + h]);
    }
    if (LAYOUT == SN_CUDA_Q4_SUPER) {
        unsigned int codes = static_cast<const uint16_t *>(w.scales)[g];
        unsigned int super = static_cast<const uint32_t *>(w.supers)[g / 8];
        return make_float2(half_to_float(super & 0xffff) * static_cast<float>(codes & 0xff),
                           -(half_to_float(super >> 16) * static_cast<float>(codes >> 8)));
    }
    unsigned int both = static_cast<const uint32_t *>(w.scales)[g];
    return make_float2(half_to_float(both & 0xffff), half_to_float(both >> 16));
}

__host__ __device__ constexpr bool is_q4(int layout) { return layout == SN_CUDA_Q4_HALF || layout == SN_CUDA_Q4_SUPER; }

__device__ inline int byte_of(unsigned int word, int i) { return static_cast<int8_t>(word >> 8 * i & 0xff); }

/* Eight consecutive weights of a row, from element `at` (a multiple of 8) on. */
template <int LAYOUT> __device__ inline void load_weights(const sn_cuda_matrix &w, int row, int at, float out[8]) {
    if (LAYOUT == SN_CUDA_F32) {
        const float *p = static_cast<const float *>(w.plane[0]) + static_cast<size_t>(row) * w.stride + at;
        for (int i = 0; i < 8; i++) out[i] = p[i];
        return;
    }
    if (LAYOUT == SN_CUDA_F16 || LAYOUT == SN_CUDA_BF16) {
        const uint16_t *p = static_cast<const uint16_t *>(w.plane[0]) + static_cast<size_t>(row) * w.stride + at;
        for (int i = 0; i < 8; i++) out[i] = LAYOUT == SN_CUDA_F16 ? half_to_float(p[i]) : bf16_to_float(p[i]);
        return;
    }
    size_t g = static_cast<size_t>(row) * (w.cols / 32) + at / 32;
    int h = at / 16 % 2, first = at % 16;
    float2 s = scale_of<LAYOUT>(w, g, h);
    const unsigned char *p = static_cast<const unsigned char *>(w.plane[is_q4(LAYOUT) ? 0 : h]) + g * 16 + first;
    for (int i = 0; i < 8; i++) {
        int q = is_q4(LAYOUT) ? p[i] >> 4 * h & 15 : static_cast<int8_t>(p[i]);
        out[i] = s.x * static_cast<float>(q) + s.y;
    }
}

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

/* Returns call(LAYOUT) for the layout of a matrix. */
#define BY_LAYOUT(layout, call)                                                                                        \
    switch (layout) {                                                                                                  \
    case SN_CUDA_F32:                                                                                                  \
        return call(SN_CUDA_F32);                                                                                      \
    case SN_CUDA_F16:                                                                                                  \
        return call(SN_CUDA_F16);                                                                                      \
    case SN_CUDA_BF16:                                                                                                 \
        return call(SN_CUDA_BF16);                                                                                     \
    case SN_CUDA_Q4_HALF:                                                                                              \
        return call(SN_CUDA_Q4_HALF);                                                                                  \
    case SN_CUDA_Q4_SUPER:                                                                                             \
        return call(SN_CUDA_Q4_SUPER);                                                                                 \
    case SN_CUDA_Q8_HALF:                                                                                              \
        return call(SN_CUDA_Q8_HALF);                                                                                  \
    case SN_CUDA_Q8_FINE:                                                                                              \
        return call(SN_CUDA_Q8_FINE);                                                                                  \
    }                                                                                                                  \
    return cudaErrorInvalidValue

#endif
