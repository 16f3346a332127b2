/* What a warp does with tensor cores: products of small matrices, loads of their factors from shared memory, and copies
 * to shared memory that go on while the warp computes. PTX of sm_80 and newer. All lanes of a warp call the products
 * and the loads together (".aligned"): a function that calls them begins with __syncwarp, because branches before it
 * may have parted the lanes.
 *
 * Where elements lie (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), with r = lane / 4 and
 * c = lane % 4; a word has two elements of 16 bits, the first one in the low half:
 *   a (16, 16): word 0 has (r, 2 c) and (r, 2 c + 1); word 1 of row r + 8; words 2 and 3 the same of columns from 8 on
 *   b (16, 8):  word 0 has (2 c, r) and (2 c + 1, r); word 1 of rows from 8 on
 *   d (16, 8):  0 and 1 are (r, 2 c) and (r, 2 c + 1); 2 and 3 of row r + 8
 * Of tf32 ("mma.m16n8k8"), which is float32 with 13 zeros at the end, a word has one element:
 *   a (16, 8):  words 0 and 1 have (r, c) and (r + 8, c); words 2 and 3 the same of column c + 4
 *   b (8, 8):   words 0 and 1 have (c, r) and (c + 4, r)
 *
 * The tests bring their own functions of these names (<cuda_fp16.h> of tests/support/cuda_stand_in). */
#ifndef SN_DEVICE_CUDA_MMA_CUH
#define SN_DEVICE_CUDA_MMA_CUH

#include <cuda_fp16.h>

#ifndef SN_MMA_EMULATED
namespace {

#define SN_MMA(shape, type, d, a, b)                                                                                   \
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "  \
        "{%0, %1, %2, %3};"                                                                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

/* d += a . b, with sums in float32. */
__device__ inline void mma_bf16(float d[4], const unsigned int a[4], const unsigned int b[2]) {
    SN_MMA("m16n8k16", "bf16", d, a, b);
}
__device__ inline void mma_f16(float d[4], const unsigned int a[4], const unsigned int b[2]) {
    SN_MMA("m16n8k16", "f16", d, a, b);
}
__device__ inline void mma_tf32(float d[4], const unsigned int a[4], const unsigned int b[2]) {
    SN_MMA("m16n8k8", "tf32", d, a, b);
}
#undef SN_MMA

/* Two numbers as bfloat16 in a word, rounded to nearest even, `low` in the low half. */
__device__ inline unsigned int pack_bf16(float low, float high) {
    unsigned int word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* The same as f16. */
__device__ inline unsigned int pack_f16(float low, float high) {
    unsigned int word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* The four signed bytes of a word as f16, which has them exactly: a byte becomes the low bits of 1024 + 128 + x. */
__device__ inline void bytes_to_f16(unsigned int bytes, unsigned int out[2]) {
    bytes ^= 0x80808080u;
    unsigned int shifted[2] = {__byte_perm(bytes, 0x64646464u, 0x4140), __byte_perm(bytes, 0x64646464u, 0x4342)};
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out[0]) : "r"(shifted[0]), "r"(0x64806480u));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out[1]) : "r"(shifted[1]), "r"(0x64806480u));
}

__device__ inline unsigned int shared_address(const void *at) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(at));
}

/* Loads four matrices of (8, 8) elements of 16 bits from shared memory: `row`, of lane 8 i + r, is where row r of
 * matrix i lies, 16 bytes aligned to 16. Word i has the elements (lane / 4, 2 (lane % 4)) and the next one of matrix i.
 */
__device__ inline void load_matrices(unsigned int words[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Begins to copy 16 bytes to shared memory, both aligned to 16; unless `inside`, writes zeros and reads nothing. A
 * thread's copies since its last copies_end_group are a group. */
__device__ inline void copy_begin(void *shared, const void *global, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(inside ? 16 : 0)
                 : "memory");
}
__device__ inline void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits for this thread's groups but the last LEFT; other threads see them behind the next barrier. */
template <int LEFT> __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

} // namespace
#endif
#endif
