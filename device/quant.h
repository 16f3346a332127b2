/* Decoding of the quantised blocks of GGUF files. Every type becomes the same thing here, integers in groups of 32 with
 * a scale and an offset for each half, so that the code above need not distinguish the types. Pure functions for any
 * thread. The backends' packing (pack.c) and the reading of single rows use them. */
#ifndef SN_DEVICE_QUANT_H
#define SN_DEVICE_QUANT_H

#include "base/dtype.h"

enum { SN_QUANT_GROUP = 32, SN_QUANT_GROUPS_MAX = 8 /* groups in the largest block */ };

/* 32 consecutive weights: w[i] = d[i / 16] * q[i] + m[i / 16]. */
typedef struct sn_quant_group {
    int8_t q[SN_QUANT_GROUP];
    float d[2], m[2];
} sn_quant_group;

/* Whether the type is stored as integers and scales (Q4_0 .. MXFP4). */
bool sn_dtype_quantised(sn_dtype dtype);

/* Decodes one block of a quantised type into sn_dtype_block(dtype) / 32 groups. For Q4_0, Q4_1 and Q4_K q is in 0..15.
 */
void sn_quant_decode(sn_dtype dtype, const void *block, sn_quant_group *out);

/* The scales of a block of Q4_K, Q5_K or Q6_K as in the file: the half h of group g has d = f16(d) * scale[2g + h] and
 * m = f16(m) * offset[g], both exact in float32. Q6_K has 16 scales and no offsets; the others have 8 scales, each
 * stored twice here. */
typedef struct sn_quant_superblock {
    uint16_t d, m;
    int8_t scale[2 * SN_QUANT_GROUPS_MAX], offset[SN_QUANT_GROUPS_MAX];
} sn_quant_superblock;

void sn_quant_superblock_scales(sn_dtype dtype, const void *block, sn_quant_superblock *out);

/* Converts a row of `cols` elements of any weight type (F32, F16, BF16, F8_E4M3 or quantised) to float32. The row may
 * lie unaligned; cols is a multiple of the type's block. */
void sn_dequantize_row(sn_dtype dtype, const void *row, size_t cols, float *out);

#endif
