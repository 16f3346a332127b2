/* CUDA C++ for the host's compiler, as far as the kernels use it: the threads of a block run one after the other,
 * each until it reaches a barrier or a shuffle, in an order that changes from block to block. Barriers that some
 * threads miss, shuffles with lanes that have ended, and the accesses that watch.c finds wrong (alignment, bounds,
 * races) abort the program with a message. */
#ifndef SN_TESTS_CUDA_STAND_IN_THREADS_H
#define SN_TESTS_CUDA_STAND_IN_THREADS_H

#include "tests/support/cuda_stand_in/stand_in_private.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_index {
    unsigned x, y, z;
} cuda_index;

/* Position of the running thread, and the dynamic shared memory of its block (rubbish at first). */
extern struct cuda_position {
    cuda_index thread, block;
    unsigned char *shared;
} cuda_position;

enum {
    CUDA_SHARED_MAX = 101376, /* bytes: what every device since sm_80 has if it is requested */
    CUDA_THREADS_MAX = 1024   /* of a block */
};

/* Runs `body` once for every thread of the grid. */
void cuda_threads_run(const unsigned grid[3], unsigned threads, size_t shared, void (*body)(void *ctx), void *ctx,
                      size_t ctx_bytes);
void cuda_threads_barrier(void);
void cuda_threads_warp_barrier(void);
/* All lanes of the warp meet; returns the value of lane (own ^ distance). */
uint32_t cuda_threads_exchange(uint32_t bits, int distance);
/* All lanes of the warp meet, each with up to CUDA_WORDS words: those of all lanes, until the lane meets the next ones
 * twice. */
enum { CUDA_WORDS = 6 };
typedef const uint32_t (*cuda_words)[CUDA_WORDS];
cuda_words cuda_threads_gather(const uint32_t *words, int n);
uint64_t cuda_threads_block(void);   /* the number of blocks that have begun */
uint16_t cuda_threads_half(float x); /* IEEE half precision, rounded to nearest even */
void cuda_threads_fail(const char *sentence) __attribute__((noreturn));

/* watch.c: accesses are checked between begin and end. A kernel's threads may touch these stacks and read this call. */
void cuda_watch_begin(const void *all_stacks, size_t stack_bytes, const void *call, size_t call_bytes);
void cuda_watch_end(void);
void cuda_watch_block(size_t shared_bytes);  /* a block begins */
void cuda_watch_barrier(unsigned n_threads); /* all of its threads have met */
void cuda_watch_warp(unsigned warp);         /* the lanes of this warp have met */
/* A vector of this size is copied from one address to the other: fails where one of them is not aligned to it. */
void cuda_watch_vectors(const void *to, const void *from, size_t bytes);

/* watch_blocks.c: the same occasions; and of the running thread a fence, and an atomic operation, which it carries out
 */
void cuda_blocks_launch(void);
void cuda_blocks_begin(void);
void cuda_blocks_barrier(unsigned n_threads);
void cuda_blocks_fence(void);
unsigned cuda_blocks_atomic_inc(unsigned *at, unsigned most);
/* NULL, or what is wrong with an access to an allocation of the device. */
const char *cuda_blocks_access(const void *at, size_t bytes, bool is_write);

#ifdef __cplusplus
}

#include <cmath>
#include <cstring>
#include <new>
#include <tuple>

#define __global__ static
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx              cuda_position.thread
#define blockIdx               cuda_position.block
#define SN_SHARED_MEMORY(name) unsigned char *name = cuda_position.shared

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
/* Vectors, which are loaded and stored as a whole: copying one checks where it lies. (The compiler takes them to pieces
 * before it inserts the calls that watch.c answers.) */
template <class Element> struct alignas(2 * sizeof(Element)) cuda_vector2 {
    Element x, y;
    cuda_vector2() = default;
    cuda_vector2(Element x_, Element y_) : x(x_), y(y_) {}
    cuda_vector2(const cuda_vector2 &o) { *this = o; }
    cuda_vector2 &operator=(const cuda_vector2 &o) {
        cuda_watch_vectors(this, &o, sizeof o);
        x = o.x, y = o.y;
        return *this;
    }
};
template <class Element> struct alignas(4 * sizeof(Element)) cuda_vector4 {
    Element x, y, z, w;
    cuda_vector4() = default;
    cuda_vector4(Element x_, Element y_, Element z_, Element w_) : x(x_), y(y_), z(z_), w(w_) {}
    cuda_vector4(const cuda_vector4 &o) { *this = o; }
    cuda_vector4 &operator=(const cuda_vector4 &o) {
        cuda_watch_vectors(this, &o, sizeof o);
        x = o.x, y = o.y, z = o.z, w = o.w;
        return *this;
    }
};
using float2 = cuda_vector2<float>;
using float4 = cuda_vector4<float>;
using uint2 = cuda_vector2<unsigned>;
using uint4 = cuda_vector4<unsigned>;
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

static inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* IEEE half precision, by its definition. */
struct __half {
    unsigned short bits;
};
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline float __half2float(__half h) {
    int exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
    float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                 : exponent     ? std::ldexp(static_cast<float>(fraction + 1024), exponent - 25)
                                : std::ldexp(static_cast<float>(fraction), -24);
    return h.bits >> 15 ? -size : size;
}

static inline __half __float2half_rn(float x) { return {cuda_threads_half(x)}; }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }

static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i & 255) * static_cast<int8_t>(b >> i & 255);
    return sum;
}

/* Bytes of the eight that y and x have, x the low ones, by the low three bits of each of four nibbles. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}

template <class T> static inline T __ldcs(const T *at) { return *at; }

static inline void __syncthreads() { cuda_threads_barrier(); }
static inline void __syncwarp() { cuda_threads_warp_barrier(); }
static inline void __threadfence() { cuda_blocks_fence(); }
static inline unsigned atomicInc(unsigned *at, unsigned most) { return cuda_blocks_atomic_inc(at, most); }
static inline float __shfl_xor_sync(unsigned mask, float x, int distance) {
    if (mask != 0xffffffffu) cuda_threads_fail("a shuffle of part of a warp is not supported");
    return __uint_as_float(cuda_threads_exchange(__float_as_uint(x), distance));
}

static inline int __shfl_xor_sync(unsigned mask, int x, int distance) {
    return static_cast<int>(
        __float_as_uint(__shfl_xor_sync(mask, __uint_as_float(static_cast<unsigned>(x)), distance)));
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
/* The lanes whose x is this one's. */
static inline unsigned __match_any_sync(unsigned mask, int x) {
    if (mask != 0xffffffffu) cuda_threads_fail("a comparison of part of a warp is not supported");
    const uint32_t own = static_cast<uint32_t>(x);
    cuda_words all = cuda_threads_gather(&own, 1);
    unsigned alike = 0;
    for (unsigned i = 0; i < 32; i++) alike |= (all[i][0] == own ? 1u : 0u) << i;
    return alike;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
inline size_t cuda_shared_allowed = 48 * 1024; /* of the next kernel launch */
template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel *, cudaFuncAttribute, int bytes) {
    if (bytes < 0 || bytes > CUDA_SHARED_MAX) return cudaErrorInvalidValue;
    cuda_shared_allowed = static_cast<size_t>(bytes);
    return cudaSuccess;
}

/* A launch with its present arguments. */
template <class... Parameters> struct cuda_call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
    unsigned grid[3], threads;
    size_t shared;

    static void one(void *ctx) {
        cuda_call *c = static_cast<cuda_call *>(ctx);
        std::apply(c->kernel, c->arguments);
    }
    static void run(void *ctx) {
        cuda_call *c = static_cast<cuda_call *>(ctx);
        cuda_threads_run(c->grid, c->threads, c->shared, one, ctx, sizeof *c);
    }
};

template <class... Parameters, class... Arguments>
cudaError_t cuda_launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared, cudaStream_t stream,
                        Arguments... arguments) {
    using call = cuda_call<Parameters...>;
    void *memory = malloc(sizeof(call));
    if (!memory) abort();
    new (memory) call{kernel, std::tuple<Parameters...>(arguments...), {grid.x, grid.y, grid.z}, threads, shared};
    size_t allowed = cuda_shared_allowed;
    cuda_shared_allowed = 48 * 1024;
    return cuda_stand_in_launch(stream, static_cast<call *>(memory)->grid, threads, shared, allowed,
                                cuda_operation{call::run, memory, free});
}

#define SN_LAUNCH(kernel, grid, threads, shared, stream, ...)                                                          \
    (cuda_launch((kernel), (grid), (threads), (shared), (stream), __VA_ARGS__), cudaGetLastError())
#endif
#endif
