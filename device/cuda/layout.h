/* How a weight lies in the memory of a CUDA device. Shared by the host, which packs it, and the kernels, which read it.
 * Private to device/cuda/.
 *
 * Parts ("planes") of all rows follow each other, each aligned to 16 bytes; within a plane, row follows row, and what
 * 32 lanes read at once is contiguous.
 *
 * - F32, F16, BF16: rows of `stride` elements, a multiple of 8, zero beyond the weight's columns
 * - F8: bytes; then a float32 for each 128 elements of a row, in E4M3 256 times that of the file
 * - FLOAT4, which is NF4 and FP4: codes of 4 bits, the first in the low bits of a byte; then a float32 for each 64
 *   elements of a row; and as supers the 16 numbers of the codes
 * - quantised types, in groups of 32 weights (device/quant.h has their parts). A lane reads a group with one load from
 *   each plane, and finds four weights in each word: weights 4 i + k and 16 + 4 i + k, word i of the first and of the
 *   second half, are byte k of a word:
 *     8 bits:      of word i; the halves are planes 0 and 1
 *     4 low bits:  plane 0, of word i, the first half in the low nibble
 *     2 low bits:  plane 0, of word h (the half), from bit 2 i on
 *     1 high bit:  plane 1, of the only word, bit 4 h + i
 *     2 high bits: plane 1, of word h, from bit 2 i on
 *     1 low bit:   plane 0, of the only word, bit 4 h + i
 *   codebook types: plane 0, the words of device/quant.h, but signs otherwise: that of weight 8 e + n is bit 4 n + e
 *   TQ1_0:       plane 0, the word of device/quant.h
 *   then scales: scale_bytes for each group; supers: super_bytes for each block of groups */
#ifndef SN_DEVICE_CUDA_LAYOUT_H
#define SN_DEVICE_CUDA_LAYOUT_H

#include "device/quant.h"

#include <stddef.h>

typedef enum sn_cuda_layout {
    SN_CUDA_F32,
    SN_CUDA_F16,
    SN_CUDA_BF16,
    SN_CUDA_F8,
    SN_CUDA_FLOAT4,
#define X(type, ...) SN_CUDA_##type,
    SN_ALL_QUANT_TYPES(X)
#undef X
        SN_CUDA_ANY, /* to the kernels: one of SN_MORE_QUANT_TYPES, which the matrix names */
} sn_cuda_layout;

enum { SN_CUDA_F8_BLOCK = 128, SN_CUDA_FLOAT4_BLOCK = 64 }; /* elements that share a scale */

/* A matrix of weights as the kernels read it. */
typedef struct sn_cuda_matrix {
    sn_cuda_layout layout;
    int rows, cols;
    int stride;   /* elements of a row: cols, rounded up to 8 in the float layouts */
    int f8_shift; /* how far the bits of an element of F8 lie below those of a half */
    const void *plane[2];
    const void *scales, *supers;
} sn_cuda_matrix;

/* Offsets of the planes in bytes, and the size of the whole. */
typedef struct sn_cuda_planes {
    size_t stride, plane1, scales, supers, bytes;
} sn_cuda_planes;

static inline size_t sn_cuda_pad(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
