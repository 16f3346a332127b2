/* Packed weights: how the CPU backend stores a matrix in memory, so that its kernels read it as one stream.
 *
 * pack.c converts a matrix from the layout of the model file (sn_cpu_weight_pack); sn_cpu_weight is the view that the
 * kernels take (kernels.h). Private to device/cpu/. All functions are pure, except that sn_cpu_weight_pack uses the
 * device's thread pool: it is called on the device's thread.
 *
 * A packed weight is a sequence of panels. A panel holds SN_LANES output rows (a row of the matrix is one output);
 * rows beyond the end of the matrix are zero. A panel is a sequence of blocks; a block covers some consecutive k
 * (columns) of all its rows:
 *
 * - Float types: w[k][lane]. In the 16-bit types two panels lie interleaved as a pair, w[k][panel][lane]; a last odd
 *   panel lies alone. F8 has 128 k in a block, after the float32 scales of its lanes, each times 256 in E4M3; NF4 and
 *   FP4 have 64, two of them in a byte, k and k + 1, after the scales. NF4_256 and FP4_256 have 256, after the factors
 *   of the scales of the lanes and the codes of the scales, scale[part][lane]; their offsets lie before the first
 * block, because all blocks of a row have the same one. Reason for pairs: the fma chains of a single row wait for
 * themselves; those of two panels overlap, and the pair is still read as one stream.
 * - Quantised types: the parts of sn_quant_split, not one bit more than the file has but where its scales have 6 bits,
 *   which are bytes here. Of a superblock a head, d[lane] and then m[lane] where there are offsets; and then groups of
 *   32 k, each the planes of its codes followed by its scales, lane by lane. The scales lie next to their codes because
 *   memory is then read in equal steps, which the hardware prefetcher follows; with the scales at the block's begin,
 *   Q4_K was a quarter slower.
 *
 * Codes of a group: vector v of 64 bytes holds k = 4v + i of each lane in byte 4 * lane + i, v = 0..7. Their low bits
 * come first:
 *
 * - 8 bits: vector after vector. Q8_0 has q + 128.
 * - 4 bits: 256 bytes; vector v in the low nibbles of bytes 64 * v .., v + 4 in the high ones.
 * - 2 bits: 128 bytes; vector v in bits 2 * (v % 4) of bytes 64 * (v / 4) ..
 * - 1 bit: 64 bytes, vector v in bit v
 *
 * Then their high bits: 1 or 2 bits as above.
 *
 * Codebook types and TQ1_0: the words of a group instead, word w of each lane in bytes 64 * w + 4 * lane ..; so lie the
 * words of TQ1_0's head after its d[lane]. */
#ifndef SN_DEVICE_CPU_PACK_H
#define SN_DEVICE_CPU_PACK_H

#include "device/device.h"
#include "device/quant.h"

enum {
    SN_LANES = 16,               /* interleaved output rows: the width of a vector in every instruction set */
    SN_VECTOR = 4 * SN_LANES,    /* bytes of four k of all lanes */
    SN_F8_K = 128,               /* k that share a scale in F8 */
    SN_F8_SCALES = 4 * SN_LANES, /* bytes of the scales of a block of F8, NF4 and FP4 */
    SN_CPU_BFLOAT = 0x80,        /* sn_cpu_short_words */
};

/* The types whose codes and scales the kernels are compiled for; the others are float types. */
#define SN_FLOAT_TYPES(X) X(F32) X(F16) X(BF16) X(F8_E4M3) X(F8_E5M2) X(NF4) X(FP4) X(NF4_256) X(FP4_256)

static inline bool sn_cpu_float4(sn_dtype t) { return sn_float4_values(t); }
static inline bool sn_cpu_quantised(sn_dtype t) { return sn_quant_forms[t].low_bits; }
/* Whether each half of a group has scales of its own. */
static inline bool sn_cpu_fine(sn_dtype t) {
    sn_quant_scale s = sn_quant_forms[t].scale;
    return s == SN_SCALE_S || s == SN_SCALE_N || s == SN_SCALE_U || s == SN_SCALE_V || s == SN_SCALE_O;
}
static inline bool sn_cpu_offsets(sn_dtype t) {
    sn_quant_scale s = sn_quant_forms[t].scale;
    return s == SN_SCALE_DM || s == SN_SCALE_K || s == SN_SCALE_N || s == SN_SCALE_W;
}
/* Whether the words of SN_SCALE_W lie in three bytes: the scale as a half or a bfloat16 of each lane, and then the code
 * that stands for 0, with SN_CPU_BFLOAT where it is a bfloat16. */
static inline bool sn_cpu_short_words(sn_dtype t) {
    return sn_quant_forms[t].scale == SN_SCALE_W && sn_quant_forms[t].low_bits != 8;
}
/* Bytes of a block's head, of the codes of a group, and of a group with its scales. */
static inline size_t sn_cpu_head_bytes(sn_dtype t) {
    return (size_t)(SN_LANES * (sn_cpu_short_words(t) ? 3 : sn_quant_forms[t].super_bytes));
}
static inline size_t sn_cpu_code_bytes(sn_dtype t) {
    return (size_t)(SN_VECTOR * (sn_quant_forms[t].low_bits + sn_quant_forms[t].high_bits));
}
static inline size_t sn_cpu_group_bytes(sn_dtype t) {
    return sn_cpu_code_bytes(t) + (size_t)(SN_LANES * sn_quant_forms[t].scale_bytes);
}
static inline size_t sn_cpu_groups(sn_dtype t) {
    return sn_quant_forms[t].super_bytes ? (size_t)sn_quant_forms[t].groups : 1;
}
/* Bytes of NF4 and FP4 before the first block, and before the codes of a block. */
static inline size_t sn_cpu_offset_bytes(sn_dtype t) { return sn_float4_twice(t) ? SN_F8_SCALES : 0; }
static inline size_t sn_cpu_float4_head(sn_dtype t) {
    return (size_t)(SN_F8_SCALES + (sn_float4_twice(t) ? SN_FLOAT4_PARTS * SN_LANES : 0));
}
/* k of a block, and its bytes. */
static inline size_t sn_cpu_block(sn_dtype t) {
    return sn_is_f8(t)           ? SN_F8_K
           : sn_cpu_float4(t)    ? (size_t)SN_FLOAT4_PART * (sn_float4_twice(t) ? SN_FLOAT4_PARTS : 1)
           : sn_cpu_quantised(t) ? SN_QUANT_GROUP * sn_cpu_groups(t)
                                 : 1;
}
static inline size_t sn_cpu_block_bytes(sn_dtype t) {
    return sn_is_f8(t)           ? SN_F8_SCALES + SN_F8_K * SN_LANES
           : sn_cpu_float4(t)    ? sn_cpu_float4_head(t) + sn_cpu_block(t) / 2 * SN_LANES
           : sn_cpu_quantised(t) ? sn_cpu_head_bytes(t) + sn_cpu_groups(t) * sn_cpu_group_bytes(t)
                                 : SN_LANES * (t == SN_F32 ? 4 : 2);
}

/* The kernels multiply unsigned numbers below 2^bits, of which each is larger than the weight's integer by `zero`. A
 * number is a code itself, or the entry of sn_cpu_tables that the code names. */
static inline int sn_cpu_zero(sn_dtype t) {
    const sn_quant_form *f = &sn_quant_forms[t];
    return f->table == 1 || f->low_bits == 8 ? 128 : f->table == 2 ? 12 : f->zero;
}
static inline int sn_cpu_bits(sn_dtype t) {
    const sn_quant_form *f = &sn_quant_forms[t];
    return f->table == 1          ? 8
           : f->table == 2        ? 5
           : f->zero == 128       ? 8
           : f->entry == SN_TRITS ? 2
           : f->entry             ? 5
           : f->table == 3        ? 2
                                  : f->low_bits + f->high_bits;
}
/* The numbers of the IQ4 types + 128, twice those of E2M1 (OCP Microscaling 1.0) + 12, and -1 and 1, + 1. */
static const uint8_t sn_cpu_tables[4][16] = {
    [1] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    [2] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0},
    [3] = {0, 2},
};

/* A packed weight as the kernels read it; sn_cpu_weight_view derives it from an sn_weight. */
typedef struct sn_cpu_weight {
    sn_dtype dtype;
    size_t rows, cols;
    size_t n_blocks;    /* in a panel */
    size_t panel_bytes; /* n_blocks * bytes of a block, and sn_cpu_offset_bytes */
    size_t n_panels;
    const uint8_t *data;
} sn_cpu_weight;

/* The types whose panels lie interleaved in pairs: see the top. */
static inline bool sn_cpu_pairs(sn_dtype t) { return t == SN_F16 || t == SN_BF16; }
/* Where a panel of a float type other than F8 lies: k = 0 begins *offset bytes into the weight, consecutive k are
 * *step bytes apart. */
static inline void sn_cpu_float_panel(const sn_cpu_weight *w, size_t panel, size_t *offset, size_t *step) {
    size_t k_bytes = SN_LANES * (w->dtype == SN_F32 ? 4 : 2);
    bool paired = sn_cpu_pairs(w->dtype) && (panel | 1) < w->n_panels;
    *offset = paired ? (panel & ~(size_t)1) * w->panel_bytes + (panel & 1) * k_bytes : panel * w->panel_bytes;
    *step = paired ? 2 * k_bytes : k_bytes;
}

/* The packed size of a matrix; SN_REFUSED for a type that cannot be multiplied, or a matrix that is too large. As
 * weight_size of sn_device_ops. */
sn_status sn_cpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes,
                             sn_err *err) SN_MUST_USE;
/* As weight_pack of sn_device_ops. `host` may lie unaligned. */
sn_status sn_cpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err) SN_MUST_USE;
/* The view of a weight that sn_cpu_weight_pack made. It borrows the weight's memory. */
sn_cpu_weight sn_cpu_weight_view(const sn_weight *weight);
/* One row as float32: out (weight->cols). */
void sn_cpu_weight_dequantize_row(const sn_cpu_weight *weight, size_t row, float *out);

#endif
