#include "base/dtype.h"

#include "base/mem.h"

static const struct {
    const char *name;
    uint16_t block, bytes;
} types[] = {
#define X(name, block, bytes) {#name, block, bytes},
    SN_DTYPES(X)
#undef X
};

const char *sn_dtype_name(sn_dtype dtype) { return (unsigned)dtype < SN_DTYPE_COUNT ? types[dtype].name : "?"; }
size_t sn_dtype_block(sn_dtype dtype) { return types[dtype].block; }
size_t sn_dtype_bytes(sn_dtype dtype) { return types[dtype].bytes; }

sn_status sn_dtype_row_bytes(sn_dtype dtype, size_t cols, size_t *out, sn_err *err) {
    size_t block = types[dtype].block;
    if (cols % block)
        return sn_fail(err, SN_REFUSED, "a row of %zu elements is not a multiple of the block of %s, %zu elements",
                       cols, types[dtype].name, block);
    if (!sn_mul(cols / block, types[dtype].bytes, out))
        return sn_fail(err, SN_REFUSED, "a row of %zu elements is too large", cols);
    return SN_OK;
}

typedef union {
    uint32_t u;
    float f;
} bits32;

float sn_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 31) return (bits32){.u = sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0)}.f;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return (bits32){.u = sign | (exponent + 112) << 23 | mantissa << 13}.f;
}

uint16_t sn_f32_to_f16(float value) {
    uint32_t u = (bits32){.f = value}.u;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff)); /* NaN stays NaN, quiet */
    if (u >= 0x477ff000) return sign | 0x7c00;                                /* rounds to infinity */
    if (u < 0x38800000) { /* subnormal half: adding 0.5 rounds at the right bit */
        bits32 x = {.u = u};
        x.f += 0.5f;
        return (uint16_t)(sign | (x.u - 0x3f000000));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

uint16_t sn_f32_to_bf16(float value) {
    uint32_t u = (bits32){.f = value}.u;
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
