/* Decoding of the quantised blocks of model files. Every type becomes the same thing here, integers in groups of 32
 * with a scale and an offset for each half, so that the code above need not distinguish the types. Pure functions for
 * any thread. The backends' packing (pack.c) and the reading of single rows use them. */
#ifndef SN_DEVICE_QUANT_H
#define SN_DEVICE_QUANT_H

#include "base/dtype.h"
#include "base/float4.h"
#include "device/codebooks.h"

enum { SN_QUANT_GROUP = 32, SN_QUANT_GROUPS_MAX = 8 /* groups in the largest block */ };

/* 32 consecutive weights: w[i] = d[i / 16] * q[i] + m[i / 16]. */
typedef struct sn_quant_group {
    int8_t q[SN_QUANT_GROUP];
    float d[2], m[2];
} sn_quant_group;

/* Whether the type is stored as integers and scales (all types of GGUF but the floats). */
bool sn_dtype_quantised(sn_dtype dtype);

/* Decodes one block of a quantised type into sn_dtype_block(dtype) / 32 groups. For Q4_0, Q4_1 and Q4_K q is in 0..15.
 */
void sn_quant_decode(sn_dtype dtype, const void *block, sn_quant_group *out);

/* -- the same blocks as the backends store them: parts that lie in planes of their own, so that neighbouring lanes read
 * aligned words, and that take hardly more bytes than the file has.
 *
 * A weight has a code of low_bits + high_bits; it is scale * (code - zero) + offset, or scale * table[code].
 *
 * In the codebook types weights have no codes of their own. Four or eight consecutive ones have an entry: its index
 * into the type's codebook, and the signs of its weights. A group is then low_bits words of four bytes, first the low
 * bytes of the indices, then the signs, a byte for eight weights; and scale_bytes bytes, the scales and after them the
 * high bits of the indices (below). */

/* The scales: bytes of each group of 32 weights, and of each superblock. */
typedef enum sn_quant_scale {
    SN_SCALE_D,  /* a half */
    SN_SCALE_DM, /* two halves, scale and offset */
    SN_SCALE_K,  /* a scale and an offset; superblock: two halves that they are multiplied by */
    SN_SCALE_S,  /* a signed scale of each half of the group; superblock: a half */
    SN_SCALE_N,  /* of each half a scale in the low nibble, an offset in the high one; superblock: two halves */
    SN_SCALE_B,  /* a signed scale; superblock: a half */
    SN_SCALE_E,  /* an exponent: 2^(e - 127) / 2, also where that is subnormal */
    SN_SCALE_BF, /* a bfloat16 */
    SN_SCALE_W, /* none; superblock: a word of which the upper 24 bits are those of a float32, the scale, and the lowest
                 * byte is the code that stands for 0. Of codes of fewer than 8 bits the scale is a half or a bfloat16
                 */
    SN_SCALE_F, /* none; superblock: a float32 */
    SN_SCALE_V, /* E4M3 of each half of the group; superblock: a float32 */
    SN_SCALE_U, /* of each half an E4M3 without sign, twice the scale */
    SN_SCALE_H, /* none; superblock: a half, as in the following ones, which have factors 2 s + 1 */
    SN_SCALE_O, /* s of each half in a nibble */
    SN_SCALE_P, /* s in the top bits of the bytes with signs */
    SN_SCALE_Q, /* s in the bits 3, 7 and 11 of the indices' high bits */
} sn_quant_scale;

/* type, low bits, high bits, scales, bytes of them, bytes of a superblock, zero, table (1: of IQ4, 2: of MXFP4, 3: -1
 * and 1), groups of a superblock; and of codebook types weights of an entry (5: there is none, a byte holds five digits
 * of base three), its first entry, bits of an index, bits of the signs of eight weights (7: an even number of the eight
 * is negative), and how often the superblock's scale is halved. A superblock is a block of the host. cmake/xpu.cmake
 * reads the rows: device/xpu/ compiles its kernels once for each.
 *
 * From I4_B32 to NVFP4_256, and I2_128 to I8_128F: quantised weights of folders (model/packed.h). A block of the host
 * is the superblock's bytes, the scales of its groups and its codes, all low bits and then all high ones, from the low
 * bits of bytes on: sn_quant_is_plain. Codes of 8 bits are unsigned there. */
#define SN_QUANT_TYPES(X)                                                                                              \
    X(Q4_0, 4, 0, D, 2, 0, 8, 0, 1, 0, 0, 0, 0, 0)                                                                     \
    X(Q4_1, 4, 0, DM, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0)                                                                    \
    X(Q5_0, 4, 1, D, 2, 0, 16, 0, 1, 0, 0, 0, 0, 0)                                                                    \
    X(Q5_1, 4, 1, DM, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0)                                                                    \
    X(Q8_0, 8, 0, D, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0)                                                                     \
    X(Q2_K, 2, 0, N, 2, 4, 0, 0, 8, 0, 0, 0, 0, 0)                                                                     \
    X(Q3_K, 2, 1, S, 2, 2, 4, 0, 8, 0, 0, 0, 0, 0)                                                                     \
    X(Q4_K, 4, 0, K, 2, 4, 0, 0, 8, 0, 0, 0, 0, 0)                                                                     \
    X(Q5_K, 4, 1, K, 2, 4, 0, 0, 8, 0, 0, 0, 0, 0)                                                                     \
    X(Q6_K, 4, 2, S, 2, 2, 32, 0, 8, 0, 0, 0, 0, 0)                                                                    \
    X(IQ4_NL, 4, 0, D, 2, 0, 0, 1, 1, 0, 0, 0, 0, 0)                                                                   \
    X(IQ4_XS, 4, 0, B, 1, 2, 0, 1, 8, 0, 0, 0, 0, 0)                                                                   \
    X(MXFP4, 4, 0, E, 1, 0, 0, 2, 1, 0, 0, 0, 0, 0)                                                                    \
    X(I4_B32, 4, 0, BF, 2, 0, 8, 0, 1, 0, 0, 0, 0, 0)                                                                  \
    X(I4_32, 4, 0, W, 0, 4, 0, 0, 1, 0, 0, 0, 0, 0)                                                                    \
    X(I4_64, 4, 0, W, 0, 4, 0, 0, 2, 0, 0, 0, 0, 0)                                                                    \
    X(I4_128, 4, 0, W, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0)                                                                   \
    X(I8_128, 8, 0, W, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0)                                                                   \
    X(NVFP4_256, 4, 0, V, 2, 4, 0, 2, 8, 0, 0, 0, 0, 0)

/* More types, which CUDA compiles fewer kernels for.
 *
 * High bits of indices: with 7 bits of signs the eighth bit of their byte. Else of each entry 8 / entries of a byte, or
 * four bits of two bytes, of which the fourth lowers all weights of the entry by an eighth instead of raising them
 * (IQ1_M), or that of the last entry those of the group (IQ1_S). TQ1_0: five weights of each four words that
 * sn_quant_split describes. */
#define SN_MORE_QUANT_TYPES(X)                                                                                         \
    X(IQ1_S, 1, 0, Q, 2, 2, 16, 0, 8, 8, SN_BOOK_IQ1, 11, 0, 3)                                                        \
    X(IQ1_M, 1, 0, O, 3, 2, 16, 0, 8, 8, SN_BOOK_IQ1, 11, 0, 3)                                                        \
    X(IQ2_XXS, 2, 0, P, 0, 2, 128, 0, 8, 8, SN_BOOK_IQ2_XXS, 8, 7, 3)                                                  \
    X(IQ2_XS, 2, 0, O, 1, 2, 128, 0, 8, 8, SN_BOOK_IQ2_XS, 9, 7, 3)                                                    \
    X(IQ2_S, 2, 0, O, 2, 2, 128, 0, 8, 8, SN_BOOK_IQ2_S, 10, 8, 3)                                                     \
    X(IQ3_XXS, 3, 0, P, 0, 2, 128, 0, 8, 4, SN_BOOK_IQ3_XXS, 8, 7, 2)                                                  \
    X(IQ3_S, 3, 0, B, 2, 2, 16, 0, 8, 4, SN_BOOK_IQ3_S, 9, 8, 0)                                                       \
    X(TQ1_0, 1, 0, H, 0, 22, 1, 0, 8, 5, 0, 0, 0, 0)                                                                   \
    X(TQ2_0, 2, 0, H, 0, 2, 1, 0, 8, 0, 0, 0, 0, 0)                                                                    \
    X(NVFP4, 4, 0, U, 2, 0, 0, 2, 1, 0, 0, 0, 0, 0)                                                                    \
    X(Q1_0, 1, 0, H, 0, 2, 1, 3, 4, 0, 0, 0, 0, 0)                                                                     \
    X(Q2_0, 2, 0, H, 0, 2, 1, 0, 2, 0, 0, 0, 0, 0)                                                                     \
    X(I2_128, 2, 0, W, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0)                                                                   \
    X(I3_128, 2, 1, W, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0)                                                                   \
    X(I8_128F, 8, 0, F, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0)

#define SN_ALL_QUANT_TYPES(X) SN_QUANT_TYPES(X) SN_MORE_QUANT_TYPES(X)

typedef struct sn_quant_form {
    int low_bits, high_bits;
    sn_quant_scale scale;
    int scale_bytes, super_bytes, zero, table;
    int groups, entry, book, index_bits, sign_bits, halvings;
} sn_quant_form;
#define SN_QUANT_FORM(low, high, scale, ...) {low, high, SN_SCALE_##scale, __VA_ARGS__}

enum { SN_TRITS = 5 /* as entry */, SN_QUANT_SUPER_MAX = 22 };

typedef struct sn_quant_parts {
    uint8_t codes[SN_QUANT_GROUP * SN_QUANT_GROUPS_MAX]; /* of each group 32 places; of 8 bits the integers, two's
                                                            complement (of I8_128 128 less); of codebook types and
                                                            TQ1_0 the words */
    uint8_t scales[SN_QUANT_GROUPS_MAX][4];              /* of each group the scale_bytes of its form */
    uint8_t super[SN_QUANT_SUPER_MAX];
} sn_quant_parts;

#ifndef __cplusplus /* CUDA's kernels read the types alone */
/* Of each type; low_bits is 0 where it is not quantised. Here, so that the CPU's kernels see constants. */
static const sn_quant_form sn_quant_forms[SN_DTYPE_COUNT] = {
#define X(type, ...) [SN_##type] = SN_QUANT_FORM(__VA_ARGS__),
    SN_ALL_QUANT_TYPES(X)
#undef X
};
#endif

/* The form of a quantised type; NULL: it is none. Static. */
const sn_quant_form *sn_quant_form_of(sn_dtype dtype);
/* Whether blocks of the host are the parts one after the other. */
bool sn_quant_is_plain(const sn_quant_form *form);
/* The scale in a word of SN_SCALE_W. */
static inline float sn_quant_word_scale(uint32_t word) {
    union {
        uint32_t u;
        float f;
    } x = {word & 0xffffff00u};
    return x.f;
}
/* The scale of SN_SCALE_E. */
float sn_half_power_of_two(uint8_t exponent);
/* Takes one block of a quantised type apart. Nothing is rounded.
 *
 * TQ1_0: a byte holds digit n as 3 * (3^n * byte mod 256) / 256. Digits 0 to 4 of byte k of a group's word are its
 * weights k, 4 + k, .., 16 + k. The last 12 weights of the groups share the words of the superblock: the weights 20 + 4
 * n + k of group g are digit s % 5 of byte k of word s / 5, s = 3 g + n. */
void sn_quant_split(sn_dtype dtype, const void *block, sn_quant_parts *out);
/* Group g of a codebook type or of TQ1_0 from its parts. */
void sn_quant_join(sn_dtype dtype, const sn_quant_parts *parts, size_t g, sn_quant_group *out);

/* Converts a row of `cols` elements of any weight type (F32, F16, BF16, F8, NF4, FP4 or quantised) to float32. The row
 * may lie unaligned; cols is a multiple of the type's block. */
void sn_dequantize_row(sn_dtype dtype, const void *row, size_t cols, float *out);

#endif
