#include "base/wire.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 32, Q8_MAX = 127, F16_INFINITY = 0x7c00, BF16_INFINITY = 0x7f80, NAN_SCALE = 0x7fc0 };

const sn_dtype sn_wire_dtypes[SN_WIRE_DTYPES] = {SN_F32, SN_F16, SN_BF16, SN_Q8};

bool sn_is_wire_dtype(uint64_t number) {
    for (int i = 0; i < SN_WIRE_DTYPES; i++)
        if (number == (uint64_t)sn_wire_dtypes[i]) return true;
    return false;
}

const sn_word sn_wire_dtype_words[] = {{"f32", SN_F32}, {"bf16", SN_BF16}, {"f16", SN_F16}, {"q8", SN_Q8}, {NULL, 0}};

/* -- 16 bits: a finite number that would round to infinity becomes the largest finite one */

static uint16_t f16_saturate(float x) {
    uint16_t half = sn_f32_to_f16(x);
    return (half & 0x7fff) == F16_INFINITY && isfinite(x) ? (uint16_t)(half - 1) : half;
}

static uint16_t bf16_saturate(float x) {
    uint16_t half = sn_f32_to_bf16(x);
    return (half & 0x7fff) == BF16_INFINITY && isfinite(x) ? (uint16_t)(half - 1) : half;
}

/* -- 8 bits */

/* A block is a scale in bfloat16, which has the range of float32, and 32 signed bytes. 127 / scale errs by less than
 * half a step, so the largest number always becomes 127 and the products are exact: therefore rounding twice gives the
 * same as rounding once. */

static uint16_t q8_block_scale(const float *x) {
    float amax = 0;
    bool finite = true;
    for (int i = 0; i < BLOCK; i++) {
        float size = fabsf(x[i]);
        amax = size > amax ? size : amax;
        finite = finite && isfinite(x[i]);
    }
    if (!finite) return NAN_SCALE;
    uint16_t scale = sn_f32_to_bf16(amax / Q8_MAX);
    if (sn_bf16_to_f32(scale) < 0x1p-100f) return 0; /* so that no product is subnormal */
    return isfinite(sn_bf16_to_f32(scale) * Q8_MAX) ? scale : (uint16_t)(scale - 1);
}

/* Rounds to the nearest integer, ties to even, below 2^22: the addition rounds. */
static float round_to_nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static void q8_encode_block(const float *x, uint8_t *to) {
    uint16_t bits = q8_block_scale(x);
    float scale = sn_bf16_to_f32(bits);
    memcpy(to, &bits, sizeof bits);
    if (!bits || bits == NAN_SCALE) {
        memset(to + sizeof bits, 0, BLOCK);
        return;
    }
    for (int i = 0; i < BLOCK; i++) {
        float q = round_to_nearest(x[i] / scale);
        q = q > Q8_MAX ? Q8_MAX : q < -Q8_MAX ? -Q8_MAX : q;
        to[sizeof bits + (size_t)i] = (uint8_t)(int8_t)q;
    }
}

static void q8_decode_block(const uint8_t *from, float *x) {
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    float scale = sn_bf16_to_f32(bits);
    for (int i = 0; i < BLOCK; i++) /* one bit pattern of NaN for all machines, which differ in NaN times a number */
        x[i] = isfinite(scale) ? (float)(int8_t)from[sizeof bits + (size_t)i] * scale : NAN;
}

/* -- rows */

void sn_wire_encode(sn_dtype dtype, const float *rows, size_t n, void *wire) {
    uint8_t *to = wire;
    if (dtype == SN_F32) memcpy(to, rows, n * sizeof *rows);
    if (dtype == SN_Q8)
        for (size_t i = 0; i < n; i += BLOCK, to += sn_dtype_bytes(SN_Q8)) q8_encode_block(rows + i, to);
    if (dtype != SN_F16 && dtype != SN_BF16) return;
    for (size_t i = 0; i < n; i++, to += sizeof(uint16_t)) {
        uint16_t half = dtype == SN_F16 ? f16_saturate(rows[i]) : bf16_saturate(rows[i]);
        memcpy(to, &half, sizeof half);
    }
}

void sn_wire_decode(sn_dtype dtype, const void *wire, size_t n, float *rows) {
    const uint8_t *from = wire;
    if (dtype == SN_F32) memcpy(rows, from, n * sizeof *rows);
    if (dtype == SN_Q8)
        for (size_t i = 0; i < n; i += BLOCK, from += sn_dtype_bytes(SN_Q8)) q8_decode_block(from, rows + i);
    if (dtype != SN_F16 && dtype != SN_BF16) return;
    for (size_t i = 0; i < n; i++, from += sizeof(uint16_t)) {
        uint16_t half;
        memcpy(&half, from, sizeof half);
        rows[i] = dtype == SN_F16 ? sn_f16_to_f32(half) : sn_bf16_to_f32(half);
    }
}

void sn_wire_round(sn_dtype dtype, float *rows, size_t n) {
    uint8_t block[BLOCK * sizeof(float)]; /* large enough for a block of any type */
    if (dtype == SN_F32) return;
    for (size_t i = 0, m; i < n; i += m) {
        m = n - i < BLOCK ? n - i : BLOCK;
        sn_wire_encode(dtype, rows + i, m, block);
        sn_wire_decode(dtype, block, m, rows + i);
    }
}

/* Far beyond any hidden state or gradient of a model; the square of it, a million times, is finite. */
static const float USABLE_MAX = 1e15f;

bool sn_wire_is_usable(const float *rows, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(rows[i]) <= USABLE_MAX)) return false;
    return true;
}

/* -- tiny numbers */

static const float TINY = 0x1p-80f, TINY_ROW = 0x1p-40f;

/* The size below which a number of the row is tiny. */
static float least_of_row(const float *row, size_t width) {
    float largest = 0;
    for (size_t i = 0; i < width; i++) {
        float size = fabsf(row[i]);
        if (size > largest && isfinite(size)) largest = size;
    }
    if (largest < TINY_ROW) return TINY_ROW;
    return TINY * fmaxf(largest, 1);
}

static bool is_tiny(float x, float least) { return x != 0 && fabsf(x) < least; }

bool sn_wire_has_tiny(const float *rows, size_t n_rows, size_t width) {
    for (size_t r = 0; r < n_rows; r++, rows += width) {
        float least = least_of_row(rows, width);
        for (size_t i = 0; i < width; i++)
            if (is_tiny(rows[i], least)) return true;
    }
    return false;
}

void sn_wire_clear_tiny(float *rows, size_t n_rows, size_t width) {
    for (size_t r = 0; r < n_rows; r++, rows += width) {
        float least = least_of_row(rows, width);
        for (size_t i = 0; i < width; i++)
            if (is_tiny(rows[i], least)) rows[i] = 0;
    }
}
