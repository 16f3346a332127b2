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
    } else if (sn_quant_forms[dtype].scale == SN_SCALE_H) {
        out->d = read_u16(b + (dtype == SN_TQ2_0 ? 64 : 0));
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

/* E2M1 values, doubled so that they are integers (OCP Microscaling 1.0). */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Times a shared power of two. */
static void decode_mxfp4(const uint8_t *b, sn_quant_group *out) {
    look_up_nibbles(b + 1, e2m1_values, out->q);
    set_scales(out, sn_half_power_of_two(b[0]), 0); /* the halving undoes the doubling */
}

/* -1, 0 and 1 (and 2 in Q2_0); the scale at `d` is that of the block. */
static void decode_two_bits(const uint8_t *d, const uint8_t *qs, bool planes, size_t n_groups, sn_quant_group *out) {
    for (size_t g = 0; g < n_groups; g++) {
        for (size_t i = 0; i < 32; i++)
            out[g].q[i] =
                (int8_t)((planes ? qs[g / 4 * 32 + i] >> 2 * (g % 4) & 3 : qs[8 * g + i / 4] >> i % 4 * 2 & 3) - 1);
        set_scales(out + g, read_f16(d), 0);
    }
}

static void decode_tq2_0(const uint8_t *b, sn_quant_group *out) { decode_two_bits(b + 64, b, true, 8, out); }
static void decode_q2_0(const uint8_t *b, sn_quant_group *out) { decode_two_bits(b, b + 2, false, 2, out); }

static void decode_q1_0(const uint8_t *b, sn_quant_group *out) {
    for (int g = 0; g < 4; g++) {
        for (int i = 0; i < 32; i++) out[g].q[i] = (int8_t)((b[2 + 4 * g + i / 8] >> i % 8 & 1) * 2 - 1);
        set_scales(out + g, read_f16(b), 0);
    }
}

/* The scale of a sixteenth: E4M3 without its sign; the NaN is zero. */
static uint8_t nvfp4_scale(uint8_t x) { return x == 0x7f ? 0 : x & 0x7f; }

/* Element i of the 16 that share a scale is in the low nibble of byte i, and 8 + i in the high one. */
static void split_nvfp4(const uint8_t *b, uint8_t *codes) {
    for (int i = 0; i < 64; i++) codes[i] = b[4 + i / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15;
}

static void decode_nvfp4(const uint8_t *b, sn_quant_group *out) {
    uint8_t codes[64];
    split_nvfp4(b, codes);
    for (int i = 0; i < 64; i++) out[i / 32].q[i % 32] = e2m1_values[codes[i]];
    for (int h = 0; h < 4; h++) {
        out[h / 2].d[h % 2] = sn_f16_to_f32(sn_f8_to_f16_256th(nvfp4_scale(b[h]))) * 128; /* the other half: as MXFP4 */
        out[h / 2].m[h % 2] = 0;
    }
}

/* Digit n of a byte of TQ1_0. */
static int trit(uint8_t byte, int n) {
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(byte * powers[n]) * 3 >> 8;
}

/* Bytes 0..31 have elements 0..159 in five layers, bytes 32..47 the next 80, bytes 48..51 the last 16 in four. */
static void decode_tq1_0(const uint8_t *b, sn_quant_group *out) {
    for (int i = 0; i < 256; i++) {
        int at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
        int n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        out[i / 32].q[i % 32] = (int8_t)(trit(b[at], n) - 1);
    }
    for (int g = 0; g < 8; g++) set_scales(out + g, read_f16(b + 52), 0);
}

static void (*const decoders[SN_DTYPE_COUNT])(const uint8_t *, sn_quant_group *) = {
    [SN_Q4_0] = decode_q4_0,   [SN_Q4_1] = decode_q4_1,   [SN_Q5_0] = decode_q5_0,     [SN_Q5_1] = decode_q5_1,
    [SN_Q8_0] = decode_q8_0,   [SN_Q2_K] = decode_q2_k,   [SN_Q3_K] = decode_q3_k,     [SN_Q4_K] = decode_q4_k,
    [SN_Q5_K] = decode_q5_k,   [SN_Q6_K] = decode_q6_k,   [SN_IQ4_NL] = decode_iq4_nl, [SN_IQ4_XS] = decode_iq4_xs,
    [SN_MXFP4] = decode_mxfp4, [SN_TQ1_0] = decode_tq1_0, [SN_TQ2_0] = decode_tq2_0,   [SN_NVFP4] = decode_nvfp4,
    [SN_Q1_0] = decode_q1_0,   [SN_Q2_0] = decode_q2_0,
};

bool sn_dtype_quantised(sn_dtype dtype) { return (unsigned)dtype < SN_DTYPE_COUNT && sn_quant_forms[dtype].low_bits; }

bool sn_quant_is_plain(const sn_quant_form *form) {
    const sn_quant_scale scale = form->scale;
    return scale == SN_SCALE_BF || scale == SN_SCALE_W || scale == SN_SCALE_F || scale == SN_SCALE_V;
}

/* The parts of a plain block. */
static void split_plain(const sn_quant_form *form, const uint8_t *b, sn_quant_parts *out) {
    const size_t scale_bytes = (size_t)form->scale_bytes;
    memcpy(out->super, b, (size_t)form->super_bytes);
    b += form->super_bytes;
    for (int g = 0; g < form->groups; g++, b += scale_bytes) memcpy(out->scales[g], b, scale_bytes);
    const int n = SN_QUANT_GROUP * form->groups, low = form->low_bits, in_byte = 8 / low;
    const uint8_t *high = b + n / in_byte;
    for (int i = 0; i < n; i++) {
        unsigned code = b[i / in_byte] >> i % in_byte * low & ((1u << low) - 1);
        if (form->high_bits) code |= (high[i / 8] >> i % 8 & 1u) << low;
        out->codes[i] = (uint8_t)(low == 8 ? code ^ 0x80 : code);
    }
}

/* Scale and offset of half h of group g. */
static void scale_of_parts(const sn_quant_form *form, const sn_quant_parts *parts, int g, int h, float *d, float *m) {
    float super;
    uint32_t word;
    *m = 0;
    if (form->scale == SN_SCALE_BF) {
        *d = sn_bf16_to_f32(read_u16(parts->scales[g]));
    } else if (form->scale == SN_SCALE_W) {
        memcpy(&word, parts->super, sizeof word);
        *d = sn_quant_word_scale(word);
        *m = *d * (float)((form->low_bits == 8 ? 128 : 0) - (int)(word & 0xff));
    } else {
        memcpy(&super, parts->super, sizeof super);
        *d = form->scale == SN_SCALE_F ? super : sn_f16_to_f32(sn_f8_to_f16_256th(parts->scales[g][h])) * (256 * super);
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
    if (sn_quant_is_plain(&sn_quant_forms[dtype])) {
        decode_plain(&sn_quant_forms[dtype], block, out);
        return;
    }
    if (decoders[dtype]) {
        decoders[dtype](block, out);
        return;
    }
    sn_quant_parts parts;
    sn_quant_split(dtype, block, &parts);
    for (size_t g = 0; g < SN_QUANT_GROUPS_MAX; g++) sn_quant_join(dtype, &parts, g, out + g);
}

/* -- blocks taken apart */

const sn_quant_form *sn_quant_form_of(sn_dtype dtype) {
    return sn_dtype_quantised(dtype) ? &sn_quant_forms[dtype] : NULL;
}

static void split_codes(sn_dtype dtype, const sn_quant_form *form, const uint8_t *block, uint8_t *codes) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    size_t n = sn_dtype_block(dtype);
    if (dtype == SN_NVFP4) {
        split_nvfp4(block, codes);
        return;
    }
    if (form->table && form->low_bits == 4) {
        const uint8_t *qs = block + (dtype == SN_IQ4_XS ? 8 : dtype == SN_MXFP4 ? 1 : 2);
        for (size_t g = 0; g < n / 32; g++) split_nibbles(qs + 16 * g, (int8_t *)codes + 32 * g);
        return;
    }
    int zero = dtype == SN_Q4_0 ? 0 : form->zero; /* it is decoded as 0..15 already */
    sn_quant_decode(dtype, block, groups);
    for (size_t g = 0; g < n / 32; g++)
        for (size_t i = 0; i < 32; i++)
            codes[32 * g + i] = (uint8_t)((groups[g].q[i] + zero) >> (form->low_bits == 1)); /* Q1_0: -1, 1 */
}

/* Packs the digits of TQ1_0, as sn_quant_split says. */
static void split_tq1_0(const uint8_t *block, sn_quant_parts *out) {
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    uint16_t own[SN_QUANT_GROUPS_MAX][4] = {{0}}, shared[5][4] = {{0}}; /* the numbers with these digits */
    decode_tq1_0(block, groups);
    for (int s = 0; s < 25; s++)
        for (int k = 0; k < 4; k++)
            shared[s / 5][k] =
                (uint16_t)(3 * shared[s / 5][k] + (s < 24 ? groups[s / 3].q[20 + 4 * (s % 3) + k] + 1 : 0));
    for (int g = 0; g < SN_QUANT_GROUPS_MAX; g++)
        for (int i = 0; i < 20; i++) own[g][i % 4] = (uint16_t)(3 * own[g][i % 4] + groups[g].q[i] + 1);
    memcpy(out->super, block + 52, 2);
    for (int i = 0; i < 20; i++)
        out->super[2 + i] = (uint8_t)((256 * shared[i / 4][i % 4] + 242) / 243); /* rounded up */
    for (int g = 0; g < SN_QUANT_GROUPS_MAX; g++)
        for (int k = 0; k < 4; k++) out->codes[32 * g + k] = (uint8_t)((256 * own[g][k] + 242) / 243);
}

/* Four times seven signs, and four bits, as a byte of each eight weights. */
static void split_signs(const uint8_t *from, uint8_t *to) {
    uint32_t word = (uint32_t)read_u16(from) | (uint32_t)read_u16(from + 2) << 16;
    for (int j = 0; j < 4; j++) to[j] = (uint8_t)((word >> 7 * j & 127) | (word >> (28 + j) & 1) << 7);
}

/* IQ1_S has in 16 bits the high bits of four indices, the scale, and which way all weights are moved. */
static void split_iq1_s(const uint8_t *b, size_t g, sn_quant_parts *out) {
    unsigned high = read_u16(b + 34 + 2 * g), moved = high >> 12 /* the scale's three bits, and the way */;
    memcpy(out->codes + 32 * g, b + 2 + 4 * g, 4);
    for (unsigned e = 0; e < 4; e++) {
        unsigned nibble = (high >> 3 * e & 7) | (moved >> e & 1) << 3;
        out->scales[g][e / 2] = (uint8_t)(e % 2 ? out->scales[g][e / 2] | nibble << 4 : nibble);
    }
}

/* IQ1_M: three bits for each scale, four words of four of them; their upper four bits are the superblock's half. */
static void split_iq1_m(const uint8_t *b, size_t g, sn_quant_parts *out) {
    unsigned scales = (unsigned)read_u16(b + 48 + g / 2 * 2) >> g % 2 * 6;
    memcpy(out->codes + 32 * g, b + 4 * g, 4);
    out->scales[g][0] = (uint8_t)((scales & 7) | (scales >> 3 & 7) << 4);
    memcpy(out->scales[g] + 1, b + 32 + 2 * g, 2);
}

static void split_codebook_group(sn_dtype dtype, const uint8_t *b, size_t g, sn_quant_parts *out) {
    uint8_t *codes = out->codes + 32 * g, *scales = out->scales[g];
    switch (dtype) {
    case SN_IQ2_XXS: /* of each group four indices, then the signs */
        memcpy(codes, b + 2 + 8 * g, 4);
        split_signs(b + 6 + 8 * g, codes + 4);
        break;
    case SN_IQ3_XXS: /* the indices of all groups, then their signs */
        memcpy(codes, b + 2 + 8 * g, 8);
        split_signs(b + 66 + 4 * g, codes + 8);
        break;
    case SN_IQ2_XS: /* nine bits of an index and seven signs in 16 bits */
        for (size_t e = 0; e < 4; e++) {
            unsigned both = read_u16(b + 2 + 8 * g + 2 * e);
            codes[e] = (uint8_t)both;
            codes[4 + e] = (uint8_t)(both >> 9 | (both >> 8 & 1) << 7);
        }
        scales[0] = b[66 + g];
        break;
    case SN_IQ2_S: /* low bytes of the indices, signs, high bits of the indices, scales */
        memcpy(codes, b + 2 + 4 * g, 4);
        memcpy(codes + 4, b + 34 + 4 * g, 4);
        scales[0] = b[74 + g];
        scales[1] = b[66 + g];
        break;
    case SN_IQ3_S: /* low bytes of the indices, their ninth bits, signs, scales */
        memcpy(codes, b + 2 + 8 * g, 8);
        memcpy(codes + 8, b + 74 + 4 * g, 4);
        scales[0] = (uint8_t)((b[106 + g / 2] >> g % 2 * 4 & 15) * 2 + 1);
        scales[1] = b[66 + g];
        break;
    case SN_IQ1_S:
        split_iq1_s(b, g, out);
        break;
    default:
        split_iq1_m(b, g, out);
    }
}

static void split_codebook(sn_dtype dtype, const uint8_t *b, sn_quant_parts *out) {
    memcpy(out->super, b, 2);
    for (int i = 0; i < 4 && dtype == SN_IQ1_M; i++) {
        uint8_t nibble = b[49 + 2 * i] >> 4, *to = &out->super[i / 2];
        *to = (uint8_t)(i % 2 ? *to | nibble << 4 : nibble);
    }
    for (size_t g = 0; g < SN_QUANT_GROUPS_MAX; g++) split_codebook_group(dtype, b, g, out);
}

/* -- groups of codebook types from their parts */

static int odd_scale(const sn_quant_form *f, const uint8_t *signs, const uint8_t *scales, int h) {
    switch (f->scale) {
    case SN_SCALE_B:
        return scales[0];
    case SN_SCALE_O:
        return (scales[0] >> 4 * h & 15) * 2 + 1;
    case SN_SCALE_P:
        return (signs[0] >> 7 | signs[1] >> 7 << 1 | signs[2] >> 7 << 2 | signs[3] >> 7 << 3) * 2 + 1;
    case SN_SCALE_Q:
        return ((scales[0] >> 3 & 1) | (scales[0] >> 7) << 1 | (scales[1] >> 3 & 1) << 2) * 2 + 1;
    default:
        return 1;
    }
}

/* The index of entry e, and what belongs to it beside: the bit that lowers its weights. */
static unsigned index_of(const sn_quant_form *f, const uint8_t *codes, const uint8_t *signs, const uint8_t *high,
                         size_t e, bool *lowered) {
    unsigned more = 0, n_entries = SN_QUANT_GROUP / (unsigned)f->entry;
    if (f->index_bits == 11) {
        more = high[e / 2] >> e % 2 * 4;
        *lowered = f->scale == SN_SCALE_Q ? high[1] >> 7 : more >> 3 & 1;
    } else if (f->sign_bits == 7) {
        more = signs[e] >> 7;
    } else {
        more = high[0] >> e * (8 / n_entries);
    }
    return codes[e] | (more & ((1u << (f->index_bits - 8)) - 1)) << 8;
}

static void join_entries(const sn_quant_form *f, const uint8_t *codes, const uint8_t *scales, int8_t *q) {
    const size_t entry = (size_t)f->entry;
    const uint8_t *signs = codes + 4 * (f->low_bits - 1), *high = scales + (f->scale != SN_SCALE_Q);
    for (size_t e = 0; e < SN_QUANT_GROUP / entry; e++) {
        bool lowered = false;
        unsigned at = (unsigned)f->book + index_of(f, codes, signs, high, e, &lowered);
        uint64_t point = entry == 8 ? sn_books_of_8[at] : sn_books_of_4[at];
        for (size_t i = 0; i < entry; i++, point >>= 8) {
            size_t k = entry * e + i;
            int value = (int)(point & 255) - f->zero - 2 * lowered;
            unsigned byte = f->sign_bits ? signs[k / 8] : 0;
            if (f->sign_bits == 7) byte = (byte & 127) | (unsigned)__builtin_parity(byte & 127) << 7;
            q[k] = (int8_t)(byte >> k % 8 & 1 ? -value : value);
        }
    }
}

void sn_quant_join(sn_dtype dtype, const sn_quant_parts *parts, size_t g, sn_quant_group *out) {
    const sn_quant_form *f = &sn_quant_forms[dtype];
    const uint8_t *codes = parts->codes + SN_QUANT_GROUP * g, *shared = parts->super + 2;
    const float d = sn_f16_to_f32(read_u16(parts->super)) / (float)(1 << f->halvings);
    for (int h = 0; h < 2; h++) {
        out->d[h] = d * (float)odd_scale(f, codes + 4 * (f->low_bits - 1), parts->scales[g], h);
        out->m[h] = 0;
    }
    if (f->entry != SN_TRITS) {
        join_entries(f, codes, parts->scales[g], out->q);
        return;
    }
    for (int i = 0; i < SN_QUANT_GROUP; i++) {
        int s = 3 * (int)g + (i - 20) / 4;
        out->q[i] = (int8_t)((i < 20 ? trit(codes[i % 4], i / 4) : trit(shared[s / 5 * 4 + i % 4], s % 5)) - 1);
    }
}

void sn_quant_split(sn_dtype dtype, const void *block, sn_quant_parts *out) {
    const sn_quant_form *form = sn_quant_form_of(dtype);
    superblock super;
    if (sn_quant_is_plain(form)) {
        split_plain(form, block, out);
        return;
    }
    if (form->entry) {
        dtype == SN_TQ1_0 ? split_tq1_0(block, out) : split_codebook(dtype, block, out);
        return;
    }
    split_codes(dtype, form, block, out->codes);
    if (dtype == SN_NVFP4) {
        for (int h = 0; h < 4; h++) out->scales[h / 2][h % 2] = nvfp4_scale(((const uint8_t *)block)[h]);
        return;
    }
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
static void dequantize_f8(sn_dtype dtype, const uint8_t *row, size_t cols, float *out) {
    enum { BLOCK = 128 };
    for (float scale; cols; cols -= BLOCK, row += sizeof scale + BLOCK, out += BLOCK) {
        memcpy(&scale, row, sizeof scale);
        for (size_t i = 0; i < BLOCK; i++)
            out[i] = sn_f16_to_f32(sn_f8_half(dtype, row[sizeof scale + i])) * (sn_f8_factor(dtype) * scale);
    }
}

static void dequantize_float4(sn_dtype dtype, const uint8_t *row, size_t cols, float *out) {
    const float *values = sn_float4_values(dtype);
    const size_t block = sn_dtype_block(dtype);
    for (size_t k = 0; k < cols; k++) {
        const uint8_t *at = row + k / block * sn_dtype_bytes(dtype);
        const size_t part = k % block / SN_FLOAT4_PART, i = k % SN_FLOAT4_PART;
        out[k] = values[sn_float4_codes(dtype, at, part)[i / 2] >> i % 2 * 4 & 15] * sn_float4_scale(dtype, at, part);
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
    } else if (sn_is_f8(dtype)) {
        assert(cols % sn_dtype_block(dtype) == 0);
        dequantize_f8(dtype, bytes, cols, out);
    } else if (sn_float4_values(dtype)) {
        assert(cols % sn_dtype_block(dtype) == 0);
        dequantize_float4(dtype, bytes, cols, out);
    } else {
        assert(sn_dtype_quantised(dtype) && cols % sn_dtype_block(dtype) == 0);
        dequantize_blocks(dtype, bytes, cols, out);
    }
}
