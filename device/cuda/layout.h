/* How a weight lies in the memory of a CUDA device. Shared by the host, which packs it, and the kernels, which read it.
 * Private to device/cuda/.
 *
 * Rows follow each other. Within a row, the data that 32 lanes read at once are contiguous, 16 bytes per lane. Parts
 * ("planes") of all rows follow each other, each aligned to 16 bytes:
 *
 * - F32, F16, BF16: rows of `stride` elements, a multiple of 8, zero beyond the weight's columns
 * - Q4_*: plane 0 has 16 bytes per 32 weights; byte i holds weight i in its low nibble, weight i + 16 in its high one
 * - Q8_*: plane 0 has the first 16 of each 32 weights as signed bytes, plane 1 the other 16
 *
 * The scales d and offsets m follow, w = d * q + m:
 *
 * - *_HALF: two halves per 32 weights, d and m
 * - Q4_SUPER: two bytes per 32 weights, a and b; then two halves per 256 weights, D and M: d = D * a, m = -(M * b)
 * - Q8_FINE: four floats per 32 weights, d of each half, m of each half */
#ifndef SN_DEVICE_CUDA_LAYOUT_H
#define SN_DEVICE_CUDA_LAYOUT_H

#include <stddef.h>

typedef enum sn_cuda_layout {
    SN_CUDA_F32,
    SN_CUDA_F16,
    SN_CUDA_BF16,
    SN_CUDA_Q4_HALF,  /* Q4_0, Q4_1 */
    SN_CUDA_Q4_SUPER, /* Q4_K */
    SN_CUDA_Q8_HALF,  /* Q8_0, Q5_0, Q5_1, IQ4_NL */
    SN_CUDA_Q8_FINE,  /* Q5_K, Q2_K, Q3_K, Q6_K, IQ4_XS, MXFP4 */
} sn_cuda_layout;

/* A matrix of weights as the kernels read it. */
typedef struct sn_cuda_matrix {
    sn_cuda_layout layout;
    int rows, cols;
    int stride; /* elements of a row: cols, rounded up to 8 in the float layouts */
    const void *plane[2];
    const void *scales, *supers;
} sn_cuda_matrix;

/* Offsets of the planes in bytes, and the size of the whole. The caller has checked that nothing overflows. */
typedef struct sn_cuda_planes {
    size_t stride, plane1, scales, supers, bytes;
} sn_cuda_planes;

static inline size_t sn_cuda_pad(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static inline sn_cuda_planes sn_cuda_planes_of(sn_cuda_layout layout, size_t rows, size_t cols) {
    size_t groups = rows * (cols / 32), stride = sn_cuda_pad(cols, 8);
    size_t wide = groups * 16; /* bytes of one plane of the quantised layouts */
    switch (layout) {
    case SN_CUDA_F32:
        return (sn_cuda_planes){stride, 0, 0, 0, rows * stride * 4};
    case SN_CUDA_F16:
    case SN_CUDA_BF16:
        return (sn_cuda_planes){stride, 0, 0, 0, rows * stride * 2};
    case SN_CUDA_Q4_HALF:
        return (sn_cuda_planes){cols, 0, wide, 0, wide + groups * 4};
    case SN_CUDA_Q4_SUPER: {
        size_t supers = wide + sn_cuda_pad(groups * 2, 16);
        return (sn_cuda_planes){cols, 0, wide, supers, supers + groups / 8 * 4};
    }
    case SN_CUDA_Q8_HALF:
        return (sn_cuda_planes){cols, wide, 2 * wide, 0, 2 * wide + groups * 4};
    case SN_CUDA_Q8_FINE:
        return (sn_cuda_planes){cols, wide, 2 * wide, 0, 2 * wide + groups * 16};
    }
    return (sn_cuda_planes){0, 0, 0, 0, 0};
}

#endif
