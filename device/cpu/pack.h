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
 * - Float layouts: w[k][lane]. In the 16-bit types two panels lie interleaved as a pair, w[k][panel][lane]; a last odd
 *   panel lies alone. F8 has 128 k in a block, after the float32 scales of its lanes, each times 256. Reason for pairs:
 * the fma chains of a single row wait for themselves; those of two panels overlap, and the pair is still read as one
 * stream.
 * - Quantised layouts: groups of 32 k, each the quants followed by their scales. The scales lie next to their quants
 *   because memory is then read in equal steps, which the hardware prefetcher follows; with the scales at the block's
 *   begin, Q4_K was a quarter slower.
 * - SUPER layouts: a head, then 8 such groups.
 *
 * Quants of a group of 32 k:
 *
 * - Q4: 256 bytes. Byte 64 * c + 4 * lane + i holds k = 4c + i in its low nibble and k = 16 + 4c + i in its high one.
 *   In Q4_TABLE the nibbles are indices into sn_q4_table.
 * - Q8: 512 bytes. Byte 64 * c + 4 * lane + i is q + 128 of k = 4c + i.
 *
 * Scales of a group: d[lane], then m[lane] where the layout has offsets: weight = d * q + m. FINE layouts have scales
 * for both halves of the 32. In SUPER layouts the scales are int8 and are multiplied by the f16 d[lane] and m[lane] of
 * the head, as in the file: the products are exact in float32. */
#ifndef SN_DEVICE_CPU_PACK_H
#define SN_DEVICE_CPU_PACK_H

#include "device/device.h"
#include "device/quant.h"

enum { SN_LANES = 16 }; /* interleaved output rows: the width of a vector in every instruction set */

/* name, k of a block, bytes of a block. The types that use each layout, and its scales:
 *
 * - F32, F16, BF16: the type of that name; F8: F8_E4M3
 * - Q4_HALF: Q4_1; f16 d, m
 * - Q4_SIGNED: Q4_0; f16 d. The offset is -8 d, so the quants are signed integers and there is no m
 * - Q4_SUPER: Q4_K; f16 d, m; int8 d[8], m[8]
 * - Q4_TABLE: MXFP4; bf16 d
 * - Q8_HALF: Q8_0, Q5_0, IQ4_NL; f16 d
 * - Q8_WIDE: Q5_1, IQ4_XS; f32 d, m
 * - Q8_SUPER: Q5_K; f16 d, m; int8 d[8], m[8]
 * - Q8_FINE: Q2_K, Q3_K; f32 d[2], m[2]
 * - Q8_FINE_SUPER: Q6_K; f16 d and 16 unused values; int8 d[16] */
#define SN_LAYOUTS(X)                                                                                                  \
    X(F32, 1, 64)                                                                                                      \
    X(F16, 1, 32)                                                                                                      \
    X(BF16, 1, 32)                                                                                                     \
    X(F8, 128, 2112)                                                                                                   \
    X(Q4_HALF, 32, 320)                                                                                                \
    X(Q4_SIGNED, 32, 288)                                                                                              \
    X(Q4_SUPER, 256, 2368)                                                                                             \
    X(Q4_TABLE, 32, 288)                                                                                               \
    X(Q8_HALF, 32, 544)                                                                                                \
    X(Q8_WIDE, 32, 640)                                                                                                \
    X(Q8_SUPER, 256, 4416)                                                                                             \
    X(Q8_FINE, 32, 768)                                                                                                \
    X(Q8_FINE_SUPER, 256, 4416)

typedef enum sn_layout {
#define X(name, k, bytes) SN_LAYOUT_##name,
    SN_LAYOUTS(X)
#undef X
        SN_LAYOUT_COUNT
} sn_layout;

enum {
    SN_Q4_BYTES = 256,              /* bytes of a group's quants, in the layouts with nibbles */
    SN_Q8_BYTES = 512,              /* the same, in the layouts with bytes */
    SN_SUPER_HEAD = 64,             /* bytes of a SUPER block's head: d[lane], m[lane] */
    SN_SUPER_SCALES = 2 * SN_LANES, /* bytes of the scales of one group in a SUPER block */
    SN_SUPER_GROUPS = 8,            /* groups in a SUPER block */
    SN_F8_K = 128,                  /* k that share a scale in F8 */
    SN_F8_SCALES = 4 * SN_LANES,    /* bytes of the scales of a block of F8 */
};

static inline bool sn_layout_quantised(sn_layout layout) { return layout >= SN_LAYOUT_Q4_HALF; }
static inline bool sn_layout_nibbles(sn_layout layout) {
    return layout >= SN_LAYOUT_Q4_HALF && layout <= SN_LAYOUT_Q4_TABLE;
}
static inline bool sn_layout_fine(sn_layout layout) {
    return layout == SN_LAYOUT_Q8_FINE || layout == SN_LAYOUT_Q8_FINE_SUPER;
}
static inline bool sn_layout_super(sn_layout layout) {
    return layout == SN_LAYOUT_Q4_SUPER || layout == SN_LAYOUT_Q8_SUPER || layout == SN_LAYOUT_Q8_FINE_SUPER;
}
static inline bool sn_layout_offsets(sn_layout layout) {
    return layout != SN_LAYOUT_Q4_SIGNED && layout != SN_LAYOUT_Q4_TABLE && layout != SN_LAYOUT_Q8_HALF &&
           layout != SN_LAYOUT_Q8_FINE_SUPER;
}

/* The values of Q4_TABLE's nibbles: twice the numbers of E2M1 (OCP Microscaling 1.0), at most 12. */
static const int8_t sn_q4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* A packed weight as the kernels read it; sn_cpu_weight_view derives it from an sn_weight. */
typedef struct sn_cpu_weight {
    sn_layout layout;
    size_t rows, cols;
    size_t n_blocks;    /* in a panel */
    size_t panel_bytes; /* n_blocks * bytes of a block */
    size_t n_panels;
    const uint8_t *data;
} sn_cpu_weight;

/* The layouts whose panels lie interleaved in pairs: see the top. */
static inline bool sn_layout_pairs(sn_layout layout) { return layout == SN_LAYOUT_F16 || layout == SN_LAYOUT_BF16; }
/* Where a panel of a float layout other than F8 lies: k = 0 begins *offset bytes into the weight, consecutive k are
 * *step bytes apart. */
static inline void sn_cpu_float_panel(const sn_cpu_weight *w, size_t panel, size_t *offset, size_t *step) {
    size_t k_bytes = SN_LANES * (w->layout == SN_LAYOUT_F32 ? 4 : 2);
    bool paired = sn_layout_pairs(w->layout) && (panel | 1) < w->n_panels;
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
