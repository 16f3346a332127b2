/* How a weight lies in the memory of a CUDA device. Shared by the host, which packs, and the kernels, which read.
 *
 * Rows one after the other; in a row, what 32 lanes read at once lies in one piece, 16 bytes a lane. Parts ("planes")
 * of all rows follow each other, each beginning at a multiple of 16 bytes.
 *
 *   F32, F16, BF16: rows of `stride` elements, a multiple of 8, zeros behind the weight's own
 *   Q4_*: plane 0: for each 32 weights 16 bytes; byte i holds weight i in its low nibble, i + 16 in its high one
 *   Q8_*: plane 0: for each 32 weights the first 16 as signed bytes; plane 1: the other 16
 * and then scales d and offsets m, w = d * q + m:
 *   *_HALF:   for each 32 weights two halves, d and m
 *   Q4_SUPER: for each 32 weights two bytes, a and b; then for each 256 two halves D and M: d = D * a, m = -(M * b)
 *   Q8_FINE:  for each 32 weights four floats, d of either 16, m of either 16 */
#ifndef SN_DEVICE_CUDA_LAYOUT_H
#define SN_DEVICE_CUDA_LAYOUT_H

#include <stddef.h>

typedef enum sn_cuda_layout {
    SN_CUDA_F32,
    SN_CUDA_F16,
    SN_CUDA_BF16,
    SN_CUDA_Q4_HALF,  /* Q4_0 Q4_1 */
    SN_CUDA_Q4_SUPER, /* Q4_K */
    SN_CUDA_Q8_HALF,  /* Q8_0 Q5_0 Q5_1 IQ4_NL */
    SN_CUDA_Q8_FINE,  /* Q5_K Q2_K Q3_K Q6_K IQ4_XS MXFP4 */
} sn_cuda_layout;

/* A matrix of weights as the kernels see it. */
typedef struct sn_cuda_matrix {
    sn_cuda_layout layout;
    int rows, cols;
    int stride; /* elements of a row: cols, for floats rounded up to 8 */
    const void *plane[2];
    const void *scales, *supers;
} sn_cuda_matrix;

/* Where the planes begin, and the whole. Callers have checked that nothing overflows. */
typedef struct sn_cuda_planes {
    size_t stride, plane1, scales, supers, bytes;
} sn_cuda_planes;

static inline size_t sn_cuda_pad(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static inline sn_cuda_planes sn_cuda_planes_of(sn_cuda_layout layout, size_t rows, size_t cols) {
    size_t groups = rows * (cols / 32), stride = sn_cuda_pad(cols, 8);
    size_t wide = groups * 16; /* bytes of one plane of the quantised layouts */
    switch (layout) {
    case SN_CUDA_F32: return (sn_cuda_planes){stride, 0, 0, 0, rows * stride * 4};
    case SN_CUDA_F16:
    case SN_CUDA_BF16: return (sn_cuda_planes){stride, 0, 0, 0, rows * stride * 2};
    case SN_CUDA_Q4_HALF: return (sn_cuda_planes){cols, 0, wide, 0, wide + groups * 4};
    case SN_CUDA_Q4_SUPER: {
        size_t supers = wide + sn_cuda_pad(groups * 2, 16);
        return (sn_cuda_planes){cols, 0, wide, supers, supers + groups / 8 * 4};
    }
    case SN_CUDA_Q8_HALF: return (sn_cuda_planes){cols, wide, 2 * wide, 0, 2 * wide + groups * 4};
    case SN_CUDA_Q8_FINE: return (sn_cuda_planes){cols, wide, 2 * wide, 0, 2 * wide + groups * 16};
    }
    return (sn_cuda_planes){0, 0, 0, 0, 0};
}

#endif
