/* The functions of device/cuda/mma.cuh on the processor. Each lane of a warp gives words and takes those of others
 * as the PTX ISA says; loads and copies are made by the kernel's own code, so that watch.c sees them. */
#ifndef SN_TESTS_CUDA_STAND_IN_MMA_H
#define SN_TESTS_CUDA_STAND_IN_MMA_H

#include "tests/support/cuda_stand_in/threads.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mma.c: d += a . b of fragments of m16n8k16 of bfloat16. */
void cuda_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void cuda_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]); /* the same of f16 */
/* d += a . b of fragments of m16n8k8 of tf32. */
void cuda_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]);

uint16_t cuda_bf16(float x); /* rounded to nearest even */

/* A thread's copies to shared memory that have not been made: each is made when it begins or, in other blocks, when
 * the thread waits for it. A kernel has a mistake when it gets another result in one of the two. */
typedef struct cuda_copy {
    void *shared;
    const void *global; /* NULL: zeros */
} cuda_copy;
bool cuda_copy_begin(cuda_copy copy); /* true: it is made now */
void cuda_copies_end_group(void);
bool cuda_copy_due(int groups_left, cuda_copy *copy); /* takes the next one that is to be made now */

#ifdef __cplusplus
}

#define SN_MMA_EMULATED

static inline void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) { cuda_mma_bf16(d, a, b); }
static inline void mma_f16(float d[4], const unsigned a[4], const unsigned b[2]) { cuda_mma_f16(d, a, b); }
static inline void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2]) { cuda_mma_tf32(d, a, b); }

static inline unsigned pack_bf16(float low, float high) {
    return cuda_bf16(low) | static_cast<unsigned>(cuda_bf16(high)) << 16;
}

static inline unsigned pack_f16(float low, float high) {
    return cuda_threads_half(low) | static_cast<unsigned>(cuda_threads_half(high)) << 16;
}

static inline void bytes_to_f16(unsigned bytes, unsigned out[2]) {
    for (int i = 0; i < 2; i++, bytes >>= 16)
        out[i] = pack_f16(static_cast<int8_t>(bytes & 255), static_cast<int8_t>(bytes >> 8 & 255));
}

/* Each lane reads its row as a whole; all words then go around. */
static inline void load_matrices(unsigned words[4], const void *row) {
    uint4 own = *static_cast<const uint4 *>(row);
    const uint32_t mine[4] = {own.x, own.y, own.z, own.w};
    cuda_words all = cuda_threads_gather(mine, 4);
    unsigned lane = threadIdx.x % 32;
    for (unsigned i = 0; i < 4; i++) words[i] = all[8 * i + lane / 4][lane % 4];
}

static inline void cuda_copy_make(cuda_copy c) {
    *static_cast<uint4 *>(c.shared) = c.global ? *static_cast<const uint4 *>(c.global) : uint4{0, 0, 0, 0};
}
static inline void copy_begin(void *shared, const void *global, bool inside) {
    cuda_copy copy = {shared, inside ? global : nullptr};
    if (cuda_copy_begin(copy)) cuda_copy_make(copy);
}
static inline void copies_end_group() { cuda_copies_end_group(); }
template <int LEFT> static inline void copies_wait() {
    for (cuda_copy copy; cuda_copy_due(LEFT, &copy);) cuda_copy_make(copy);
}
#endif
#endif
