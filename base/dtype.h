/* Element types of tensors in files, on devices and on the wire, and the sizes of their storage. All functions are
 * pure.
 *
 * A type stores `block` consecutive elements of a row in `bytes` bytes; plain types have block 1. The layouts of the
 * quantised blocks are those of the GGUF specification (ggml's quantisation formats); device/quant.h decodes them.
 * Messages number the types in this order, so the first four keep their places (docs/PROTOCOL.md). */
#ifndef SN_BASE_DTYPE_H
#define SN_BASE_DTYPE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*        name    block bytes */
#define SN_DTYPES(X)                                                                                                   \
    X(F32, 1, 4)                                                                                                       \
    X(F16, 1, 2)                                                                                                       \
    X(BF16, 1, 2)                                                                                                      \
    X(Q8, 32, 34) /* only hidden states on the wire: base/wire.h */                                                    \
    X(I32, 1, 4)                                                                                                       \
    X(I64, 1, 8)                                                                                                       \
    X(Q4_0, 32, 18)                                                                                                    \
    X(Q4_1, 32, 20)                                                                                                    \
    X(Q5_0, 32, 22)                                                                                                    \
    X(Q5_1, 32, 24)                                                                                                    \
    X(Q8_0, 32, 34)                                                                                                    \
    X(Q2_K, 256, 84)                                                                                                   \
    X(Q3_K, 256, 110)                                                                                                  \
    X(Q4_K, 256, 144)                                                                                                  \
    X(Q5_K, 256, 176)                                                                                                  \
    X(Q6_K, 256, 210)                                                                                                  \
    X(IQ4_NL, 32, 18)                                                                                                  \
    X(IQ4_XS, 256, 136)                                                                                                \
    X(MXFP4, 32, 17)                                                                                                   \
    X(F8_E4M3, 128, 132) /* FP8 of folders: a float32 scale, then 128 elements. No GGUF file has it */                 \
    /* Quantised weights of folders, which no GGUF file has: device/quant.h */                                         \
    X(I4_B32, 32, 18)                                                                                                  \
    X(I4_32, 32, 20)                                                                                                   \
    X(I4_64, 64, 36)                                                                                                   \
    X(I4_128, 128, 68)                                                                                                 \
    X(I8_128, 128, 132)                                                                                                \
    X(NVFP4_256, 256, 148)                                                                                             \
    X(NF4, 64, 36) /* of bitsandbytes: a float32 scale, then 64 codes, the first in the low half of a byte */          \
    X(IQ1_S, 256, 50)                                                                                                  \
    X(IQ1_M, 256, 56)                                                                                                  \
    X(IQ2_XXS, 256, 66)                                                                                                \
    X(IQ2_XS, 256, 74)                                                                                                 \
    X(IQ2_S, 256, 82)                                                                                                  \
    X(IQ3_XXS, 256, 98)                                                                                                \
    X(IQ3_S, 256, 110)                                                                                                 \
    X(TQ1_0, 256, 54)                                                                                                  \
    X(TQ2_0, 256, 66)                                                                                                  \
    X(NVFP4, 64, 36)                                                                                                   \
    X(Q1_0, 128, 18)                                                                                                   \
    X(Q2_0, 64, 18)                                                                                                    \
    /* Of folders, too. I2, I3: as I4_128. I8_128F: a float32 scale, then integers + 128. FP4: as NF4 */               \
    X(I2_128, 128, 36)                                                                                                 \
    X(I3_128, 128, 52)                                                                                                 \
    X(I8_128F, 128, 132)                                                                                               \
    X(FP4, 64, 36)                                                                                                     \
    X(F8_E5M2, 128, 132)                                                                                               \
    X(F64, 1, 8) /* this and I8, I16: of tensors that no operation takes */                                            \
    X(I8, 1, 1)                                                                                                        \
    X(I16, 1, 2)                                                                                                       \
    /* NF4, FP4 with codes as scales: factor, offset (float32; equal in a row), 4 codes, then 256 as of NF4 */         \
    X(NF4_256, 256, 140)                                                                                               \
    X(FP4_256, 256, 140)

typedef enum sn_dtype {
#define X(name, block, bytes) SN_##name,
    SN_DTYPES(X)
#undef X
        SN_DTYPE_COUNT
} sn_dtype;

enum { /* elements in a block, as constants */
#define X(name, block, bytes) SN_BLOCK_OF_##name = block,
       SN_DTYPES(X)
#undef X
};

const char *sn_dtype_name(sn_dtype dtype); /* "Q4_1"; "?" for a number that is not a dtype */
size_t sn_dtype_block(sn_dtype dtype);     /* elements in a block */
size_t sn_dtype_bytes(sn_dtype dtype);     /* bytes of a block */

/* Bytes of a row of `cols` elements; SN_REFUSED when cols is not a multiple of the block, or the size overflows. */
sn_status sn_dtype_row_bytes(sn_dtype dtype, size_t cols, size_t *out, sn_err *err) SN_MUST_USE;

/* Conversions of IEEE half and bfloat16 from and to float (round to nearest even): the same bits on every machine. */
float sn_f16_to_f32(uint16_t half);
uint16_t sn_f32_to_f16(float value);
static inline float sn_bf16_to_f32(uint16_t half) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)half << 16};
    return x.f;
}
uint16_t sn_f32_to_bf16(float value);
/* E4M3 (OCP 8-bit Floating Point Specification 1.0; not its NaN, 0x7f and 0xff) as the half that is 1/256 of it: four
 * bits of exponent are moved into five, whose bias is larger by 8. */
static inline uint16_t sn_f8_to_f16_256th(uint8_t x) { return (uint16_t)((x & 0x80) << 8 | (x & 0x7f) << 7); }
/* The two types of 8 bits: an element as a half, and what that half is to be multiplied by. E5M2 is the upper byte of a
 * half. */
static inline bool sn_is_f8(sn_dtype t) { return t == SN_F8_E4M3 || t == SN_F8_E5M2; }
static inline uint16_t sn_f8_half(sn_dtype t, uint8_t x) {
    return (uint16_t)(t == SN_F8_E4M3 ? sn_f8_to_f16_256th(x) : x << 8);
}
static inline float sn_f8_factor(sn_dtype t) { return t == SN_F8_E4M3 ? 256 : 1; }
static inline bool sn_f8_is_number(sn_dtype t, uint8_t x) { return (x & 0x7f) < (t == SN_F8_E4M3 ? 0x7f : 0x7c); }

#endif
