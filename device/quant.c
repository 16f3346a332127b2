/* How each quantised type is decoded: of GGUF files one function per type (decode_q4_0, ...) reads a block of the file
 * and writes its groups of 32 integers with a scale and an offset per half; the table `decoders` at the end maps types
 * to functions. The layouts are those of ggml's quantisation formats.
 *
 * All types are variations of one form, weight = d * q + m. In Q4_0 to Q8_0, IQ4_NL and MXFP4 a block is one group. The
 * K types and IQ4_XS have superblocks of 8 groups, whose scales are small integers times a half d of the superblock;
 * Q2_K, Q4_K and Q5_K also have offsets, small integers times a half dmin, which are subtracted. The IQ4 types and
 * MXFP4 store indices into a table of 16 values. */
#include "device/quant.h"

#include <assert.h>
#include <string.h>

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* Converts normal halves inline: packing a model reads some ten million of them. */
static inline float read_f16(const uint8_t *p) {
    uint16_t half = read_u16(p);
    unsigned exponent = half >> 10 & 31;
    if (exponent == 0 || exponent == 31) return sn_f16_to_f32(half);
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)(half & 0x8000) << 16 | ((uint32_t)(half & 0x7fff) + (112 << 10)) << 13};
    return x.f;
}

/* The scales of a superblock (the K types and IQ4_XS) as in the file: the half h of group g has d = f16(d) * scale[2g +
 * h] and m = f16(m) * offset[2g + h], both exact in float32. A scale or an offset of a whole group is stored twice
 * here. */
typedef struct superblock {
    uint16_t d, m;
    int8_t scale[2 * SN_QUANT_GROUPS_MAX], offset[2 * SN_QUANT_GROUPS_MAX];
} superblock;

static void set_scales(sn_quant_group *g, float d, float m) {
    g->d[0] = g->d[1] = d;
    g->m[0] = g->m[1] = m;
}

/* 16 bytes hold 32 nibbles: the low nibbles are elements 0..15, the high nibbles 16..31. */
static void split_nibbles(const uint8_t *qs, int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(qs[i] & 15);
        q[i + 16] = (int8_t)(qs[i] >> 4);
    }
}

static void look_up_nibbles(const uint8_t *qs, const int8_t table[16], int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = table[qs[i] & 15];
        q[i + 16] = table[qs[i] >> 4];
    }
}

static void decode_q4_0(const uint8_t *b, sn_quant_group *out) {
    float d = read_f16(b);
    split_nibbles(b + 2, out->q);
    set_scales(out, d, -8 * d);
}

static void decode_q4_1(const uint8_t *b, sn_quant_group *out) {
    split_nibbles(b + 4, out->q);
    set_scales(out, read_f16(b), read_f16(b + 2));
}

/* Adds the fifth bits of 32 elements: bit i of qh belongs to element i. */
static void add_fifth_bits(const uint8_t *qh, int8_t *q) {
    for (int i = 0; i < 32; i++) q[i] = (int8_t)(q[i] | (qh[i / 8] >> i % 8 & 1) << 4);
}

static void decode_q5_0(const uint8_t *b, sn_quant_group *out) {
    split_nibbles(b + 6, out->q);
    add_fifth_bits(b + 2, out->q);
    for (int i = 0; i < 32; i++) out->q[i] = (int8_t)(out->q[i] - 16);
    set_scales(out, read_f16(b), 0);
}

static void decode_q5_1(const uint8_t *b, sn_quant_group *out) {
    split_nibbles(b + 8, out->q);
    add_fifth_bits(b + 4, out->q);
    set_scales(out, read_f16(b), read_f16(b + 2));
}

static void decode_q8_0(const uint8_t *b, sn_quant_group *out) {
    memcpy(out->q, b + 2, 32);
    set_scales(out, read_f16(b), 0);
}

/* In all types the offsets are subtracted: the sign of m is flipped.
 *
 * Q2_K: 16 scales (low nibbles) and offsets (high nibbles), one of each per half. */
static void scales_of_q2_k(const uint8_t *b, superblock *out) {
    out->d = read_u16(b + 80);
    out->m = read_u16(b + 82) ^ 0x8000;
    for (int s = 0; s < 16; s++) {
        out->scale[s] = (int8_t)(b[s] & 15);
        out->offset[s] = (int8_t)(b[s] >> 4);
    }
}

/* Q3_K: 16 signed 6-bit scales: their low four bits in the nibbles of bytes 0..7, the upper two in bytes 8..11. */
static void scales_of_q3_k(const uint8_t *b, superblock *out) {
    const uint8_t *scales = b + 96;
    out->d = read_u16(b + 108);
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4, high = scales[8 + s % 4] >> 2 * (s / 4) & 3;
        out->scale[s] = (int8_t)((low | high << 4) - 32);
    }
}

/* Q4_K and Q5_K: eight 6-bit scales and eight 6-bit offsets in 12 bytes. */
static void scales_of_q4_k(const uint8_t *b, superblock *out) {
    const uint8_t *s = b + 4;
    out->d = read_u16(b);
    out->m = read_u16(b + 2) ^ 0x8000;
    for (int g = 0; g < 8; g++) {
        int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        int offset = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
        out->scale[2 * g] = out->scale[2 * g + 1] = (int8_t)scale;
        out->offset[2 * g] = out->offset[2 * g + 1] = (int8_t)offset;
    }
}

static void scales_of_iq4_xs(const uint8_t *b, superblock *out) {
    unsigned high = read_u16(b + 2);
    out->d = read_u16(b);
    for (int g = 0; g < 8; g++) {
        int scale = (b[4 + g / 2] >> 4 * (g % 2) & 15) | (int)(high >> 2 * g & 3) << 4;
        out->scale[2 * g] = out->scale[2 * g + 1] = (int8_t)(scale - 32);
    }
}

static void superblock_scales(sn_dtype dtype, const void *block, superblock *out) {
    const uint8_t *b = block;
    *out = (superblock){.d = 0};
    if (dtype == SN_Q6_K) {
        out->d = read_u16(b + 208);
        memcpy(out->scale, b + 192, sizeof out->scale);
    } else if (dtype == SN_Q2_K) {
        scales_of_q2_k(b, out);
    } else if (dtype == SN_Q3_K) {
        scales_of_q3_k(b, out);
    } else if (dtype == SN_IQ4_XS) {
        scales_of_iq4_xs(b, out);
    } else {
        scales_of_q4_k(b, out);
    }
}

static void set_super_scales(sn_dtype dtype, const uint8_t *b, sn_quant_group *out) {
    superblock super;
    superblock_scales(dtype, b, &super);
    float d = sn_f16_to_f32(super.d), m = sn_f16_to_f32(super.m);
    for (int g = 0; g < 8; g++)
        for (int h = 0; h < 2; h++) {
            out[g].d[h] = d * (float)super.scale[2 * g + h];
            out[g].m[h] = m * (float)super.offset[2 * g + h];
        }
}

/* Bytes 0..31 hold elements 0..127 in four layers of two bits, bytes 32..63 the other 128. */
static void decode_q2_k(const uint8_t *b, sn_quant_group *out) {
    const uint8_t *qs = b + 16;
    set_super_scales(SN_Q2_K, b, out);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) out[g].q[i] = (int8_t)(qs[g / 4 * 32 + i] >> 2 * (g % 4) & 3);
}

/* As Q2_K, with a third bit in hmask (when it is clear, 4 is subtracted). */
static void decode_q3_k(const uint8_t *b, sn_quant_group *out) {
    const uint8_t *hmask = b, *qs = b + 32;
    set_super_scales(SN_Q3_K, b, out);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            int low = qs[g / 4 * 32 + i] >> 2 * (g % 4) & 3;
            out[g].q[i] = (int8_t)(low - (hmask[i] >> g & 1 ? 0 : 4));
        }
}

/* Runs of 32 bytes: the low nibbles are one group, the high nibbles the next. */
static void set_k_nibbles(const uint8_t *qs, sn_quant_group *out) {
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) out[g].q[i] = (int8_t)(qs[g / 2 * 32 + i] >> 4 * (g % 2) & 15);
}

static void decode_q4_k(const uint8_t *b, sn_quant_group *out) {
    set_super_scales(SN_Q4_K, b, out);
    set_k_nibbles(b + 16, out);
}

static void decode_q5_k(const uint8_t *b, sn_quant_group *out) {
    const uint8_t *qh = b + 16;
    set_super_scales(SN_Q5_K, b, out);
    set_k_nibbles(b + 48, out);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) out[g].q[i] = (int8_t)(out[g].q[i] | (qh[i] >> g & 1) << 4);
}

/* Each half of 128 elements is 64 bytes of nibbles (two groups low, two groups high) and 32 bytes with their upper two
 * bits. */
static void decode_q6_k(const uint8_t *b, sn_quant_group *out) {
    set_super_scales(SN_Q6_K, b, out);
    for (int g = 0; g < 8; g++) {
        const uint8_t *ql = b + g / 4 * 64 + g % 2 * 32, *qh = b + 128 + g / 4 * 32;
        int shift = g % 4 / 2 * 4;
        for (int i = 0; i < 32; i++)
            out[g].q[i] = (int8_t)(((ql[i] >> shift & 15) | (qh[i] >> 2 * (g % 4) & 3) << 4) - 32);
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void decode_iq4_nl(const uint8_t *b, sn_quant_group *out) {
    look_up_nibbles(b + 2, iq4_values, out->q);
    set_scales(out, read_f16(b), 0);
}

static void decode_iq4_xs(const uint8_t *b, sn_quant_group *out) {
    set_super_scales(SN_IQ4_XS, b, out);
    for (int g = 0; g < 8; g++) look_up_nibbles(b + 8 + 16 * g, iq4_values, out[g].q);
}

float sn_half_power_of_two(uint8_t e) {
    union {
        uint32_t u;
        float f;
    } half = {e < 2 ? (uint32_t)0x200000 << e : (uint32_t)(e - 1) << 23};
    return half.f;
}

/* E2M1 values, doubled so that they are integers, times a shared power of two (OCP Microscaling 1.0). */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void decode_mxfp4(const uint8_t *b, sn_quant_group *out) {
    look_up_nibbles(b + 1, e2m1_values, out->q);
    set_scales(out, sn_half_power_of_two(b[0]), 0); /* the halving undoes the doubling */
}

static void (*const decoders[SN_DTYPE_COUNT])(const uint8_t *, sn_quant_group *) = {
    [SN_Q4_0] = decode_q4_0,   [SN_Q4_1] = decode_q4_1, [SN_Q5_0] = decode_q5_0,     [SN_Q5_1] = decode_q5_1,
    [SN_Q8_0] = decode_q8_0,   [SN_Q2_K] = decode_q2_k, [SN_Q3_K] = decode_q3_k,     [SN_Q4_K] = decode_q4_k,
    [SN_Q5_K] = decode_q5_k,   [SN_Q6_K] = decode_q6_k, [SN_IQ4_NL] = decode_iq4_nl, [SN_IQ4_XS] = decode_iq4_xs,
    [SN_MXFP4] = decode_mxfp4,
};

bool sn_dtype_quantised(sn_dtype dtype) { return (unsigned)dtype < SN_DTYPE_COUNT && sn_quant_forms[dtype].low_bits; }

bool sn_quant_is_plain(const sn_quant_form *form) {
    return form->scale == SN_SCALE_H || form->scale == SN_SCALE_W || form->scale == SN_SCALE_V;
}

/* The parts of a plain block. */
static void split_plain(const sn_quant_form *form, const uint8_t *b, sn_quant_parts *out) {
    const size_t scale_bytes = (size_t)form->scale_bytes;
    memcpy(out->super, b, (size_t)form->super_bytes);
    b += form->super_bytes;
    for (int g = 0; g < form->groups; g++, b += scale_bytes) memcpy(out->scales[g], b, scale_bytes);
    for (int i = 0; i < SN_QUANT_GROUP * form->groups; i++)
        out->codes[i] = form->low_bits == 8 ? b[i] ^ 0x80 : b[i / 2] >> i % 2 * 4 & 15;
}

/* Scale and offset of half h of group g. */
static void scale_of_parts(const sn_quant_form *form, const sn_quant_parts *parts, int g, int h, float *d, float *m) {
    float super;
    uint32_t word;
    *m = 0;
    memcpy(&word, parts->super, sizeof word);
    if (form->scale == SN_SCALE_H) {
        *d = sn_bf16_to_f32(read_u16(parts->scales[g]));
    } else if (form->scale == SN_SCALE_W) {
        *d = sn_quant_word_scale(word);
        *m = *d * (float)((form->low_bits == 8 ? 128 : 0) - (int)(word & 0xff));
    } else {
        memcpy(&super, parts->super, sizeof super);
        *d = sn_f16_to_f32(sn_f8_to_f16_256th(parts->scales[g][h])) * (256 * super);
    }
}

static void decode_plain(const sn_quant_form *form, const void *block, sn_quant_group *out) {
    sn_quant_parts parts;
    split_plain(form, block, &parts);
    for (int g = 0; g < form->groups; g++, out++) {
        for (int i = 0; i < SN_QUANT_GROUP; i++) {
            uint8_t code = parts.codes[SN_QUANT_GROUP * g + i];
            out->q[i] = form->table ? e2m1_values[code] : (int8_t)(code - form->zero);
        }
        for (int h = 0; h < 2; h++) scale_of_parts(form, &parts, g, h, &out->d[h], &out->m[h]);
    }
}

void sn_quant_decode(sn_dtype dtype, const void *block, sn_quant_group *out) {
    const sn_quant_form *form = &sn_quant_forms[dtype];
    if (sn_quant_is_plain(form))
        decode_plain(form, block, out);
    else
        decoders[dtype](block, out);
}

/* -- blocks taken apart */

const sn_quant_form *sn_quant_form_of(sn_dtype dtype) {
    return sn_dtype_quantised(dtype) ? &sn_quant_forms[dtype] : NULL;
}

static void split_codes(sn_dtype dtype, const sn_quant_form *form, const uint8_t *block, uint8_t *codes) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t n = sn_dtype_block(dtype);
    if (form->table) {
        const uint8_t *qs = block + (dtype == SN_IQ4_XS ? 8 : dtype == SN_MXFP4 ? 1 : 2);
        for (size_t g = 0; g < n / 32; g++) split_nibbles(qs + 16 * g, (int8_t *)codes + 32 * g);
        return;
    }
    int zero = dtype == SN_Q4_0 ? 0 : form->zero; /* it is decoded as 0..15 already */
    sn_quant_decode(dtype, block, groups);
    for (size_t g = 0; g < n / 32; g++)
        for (size_t i = 0; i < 32; i++) codes[32 * g + i] = (uint8_t)(groups[g].q[i] + zero);
}

void sn_quant_split(sn_dtype dtype, const void *block, sn_quant_parts *out) {
    const sn_quant_form *form = sn_quant_form_of(dtype);
    superblock super;
    if (sn_quant_is_plain(form)) {
        split_plain(form, block, out);
        return;
    }
    split_codes(dtype, form, block, out->codes);
    if (!form->super_bytes) {
        memcpy(out->scales[0], block, (size_t)form->scale_bytes);
        return;
    }
    superblock_scales(dtype, block, &super);
    memcpy(out->super, &super.d, sizeof super.d);
    memcpy(out->super + sizeof super.d, &super.m, sizeof super.m);
    for (int g = 0; g < SN_QUANT_GROUPS_MAX; g++) {
        const int8_t *scale = super.scale + 2 * g, *offset = super.offset + 2 * g;
        uint8_t *to = out->scales[g];
        to[0] = (uint8_t)(form->scale == SN_SCALE_N ? scale[0] | offset[0] << 4 : scale[0]);
        to[1] = (uint8_t)(form->scale == SN_SCALE_N   ? scale[1] | offset[1] << 4
                          : form->scale == SN_SCALE_K ? offset[0]
                                                      : scale[1]);
    }
}

static void dequantize_blocks(sn_dtype dtype, const uint8_t *row, size_t cols, float *out) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t block = sn_dtype_block(dtype), bytes = sn_dtype_bytes(dtype);
    for (size_t at = 0; at < cols; at += block, row += bytes) {
        sn_quant_decode(dtype, row, groups);
        for (size_t i = 0; i < block; i++) {
            const sn_quant_group *g = &groups[i / 32];
            out[at + i] = g->d[i / 16 % 2] * (float)g->q[i % 32] + g->m[i / 16 % 2];
        }
    }
}

/* The product with the scale is rounded once: factors of two are exact. */
static void dequantize_f8(const uint8_t *row, size_t cols, float *out) {
    enum { BLOCK = 128 };
    for (float scale; cols; cols -= BLOCK, row += sizeof scale + BLOCK, out += BLOCK) {
        memcpy(&scale, row, sizeof scale);
        for (size_t i = 0; i < BLOCK; i++)
            out[i] = sn_f16_to_f32(sn_f8_to_f16_256th(row[sizeof scale + i])) * (256 * scale);
    }
}

void sn_dequantize_row(sn_dtype dtype, const void *row, size_t cols, float *out) {
    const uint8_t *bytes = row;
    if (dtype == SN_F32) {
        if (cols) memcpy(out, row, cols * sizeof *out);
    } else if (dtype == SN_F16) {
        for (size_t i = 0; i < cols; i++) out[i] = read_f16(bytes + 2 * i);
    } else if (dtype == SN_BF16) {
        for (size_t i = 0; i < cols; i++) out[i] = sn_bf16_to_f32(read_u16(bytes + 2 * i));
    } else if (dtype == SN_F8_E4M3) {
        assert(cols % sn_dtype_block(dtype) == 0);
        dequantize_f8(bytes, cols, out);
    } else {
        assert(sn_dtype_quantised(dtype) && cols % sn_dtype_block(dtype) == 0);
        dequantize_blocks(dtype, bytes, cols, out);
    }
}
