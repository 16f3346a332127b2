/* What kernels.inc.c and linear_tiles.inc.c share: reading scales, and prefetching weights. Included after a lanes_*.h.
 */
#include "device/cpu/kernels.h"

#ifndef INLINE /* lanes_c.h defines both as plain inline and nothing */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* where an array must become registers as a whole */
#endif
/* Instantiates an inline function with a constant shape as a function of its own: the compiler allocates registers for
 * one loop at a time, which is better and faster. */
#define SPECIAL(name, ...) static __attribute__((noinline)) void name(__VA_ARGS__)

/* Vector v of the codes of the group at w. Of a weight type that is a constant, as in all of the below. */
INLINE vb load_codes(sn_dtype t, const uint8_t *w, int v) {
    const int low = sn_quant_forms[t].low_bits, high = sn_quant_forms[t].high_bits;
    vb codes = low == 8   ? vb_load(w + SN_VECTOR * v)
               : low == 4 ? vb_bits(vb_load(w + SN_VECTOR * (v % 4)), v / 4 * 4, 15)
                          : vb_bits(vb_load(w + SN_VECTOR * (v / 4)), v % 4 * 2, 3);
    w += SN_VECTOR * low;
    if (high == 1) codes = vb_or_bits(codes, vb_load(w), v - low, 1 << low);
    if (high == 2) codes = vb_or_bits(codes, vb_load(w + SN_VECTOR * (v / 4)), v % 4 * 2 - low, 3 << low);
    return codes;
}
/* The numbers that the codes stand for, unsigned: see sn_cpu_zero. */
INLINE vb load_numbers(sn_dtype t, const uint8_t *w, int v) {
    const vb codes = load_codes(t, w, v);
    return sn_quant_forms[t].table ? vb_lookup(sn_cpu_tables[sn_quant_forms[t].table], codes) : codes;
}
/* The integers of the weights, signed bytes. */
INLINE vb load_integers(sn_dtype t, const uint8_t *w, int v) {
    return vb_less(load_numbers(t, w, v), (uint8_t)sn_cpu_zero(t));
}

/* The head of a superblock. */
INLINE void load_head(sn_dtype t, const uint8_t *block, vf *d, vf *m) {
    *d = *m = vf_set(0);
    if (sn_quant_forms[t].scale == SN_SCALE_W) {
        const vi word = vi_load((const int32_t *)block), zeros = vi_and(word, vi_set(0xff));
        *d = vf_bits(vi_and(word, vi_set(~0xff)));
        *m = vf_mul(*d, vf_sub(vf_set(sn_quant_forms[t].low_bits == 8 ? 128 : 0), vf_from_int(zeros)));
        return;
    }
    if (sn_quant_forms[t].scale == SN_SCALE_V) {
        *d = vf_mul(vf_load((const float *)block), vf_set(256)); /* vf_from_f8 has 1/256 of the scales */
        return;
    }
    if (sn_quant_forms[t].super_bytes) *d = vf_from_f16(block);
    if (sn_quant_forms[t].super_bytes > 2) *m = vf_from_f16(block + 2 * SN_LANES);
    if (sn_quant_forms[t].scale == SN_SCALE_N)
        *m = vf_mul(*m, vf_set(0x1p-4f)); /* load_scales has 16 times the offsets */
}

/* The scales of the group at p (of its half h in fine types), and the offsets where there are any. head_d, head_m: of
 * its superblock. */
INLINE void load_scales(sn_dtype t, const uint8_t *p, int h, vf head_d, vf head_m, vf *d, vf *m) {
    switch (sn_quant_forms[t].scale) {
    case SN_SCALE_D:
        *d = vf_from_f16(p);
        break;
    case SN_SCALE_DM:
        *d = vf_from_f16(p);
        *m = vf_from_f16(p + 2 * SN_LANES);
        break;
    case SN_SCALE_K:
        *d = vf_mul(head_d, vf_from_i8(p));
        *m = vf_mul(head_m, vf_from_i8(p + SN_LANES));
        break;
    case SN_SCALE_S:
        *d = vf_mul(head_d, vf_from_i8(p + SN_LANES * h));
        break;
    case SN_SCALE_B:
        *d = vf_mul(head_d, vf_from_i8(p));
        break;
    case SN_SCALE_N:
        *d = vf_mul(head_d, vf_from_int(vi_and(vi_from_u8(p + SN_LANES * h), vi_set(0x0f))));
        *m = vf_mul(head_m, vf_from_int(vi_and(vi_from_u8(p + SN_LANES * h), vi_set(0xf0))));
        break;
    case SN_SCALE_E:
        *d = vf_from_e8(p);
        break;
    case SN_SCALE_H:
        *d = vf_from_bf16(p);
        break;
    case SN_SCALE_W:
        *d = head_d;
        *m = head_m;
        break;
    case SN_SCALE_V:
        *d = vf_mul(head_d, vf_from_f8(p + SN_LANES * h));
        break;
    }
}

enum { LINE = 64 };

INLINE void prefetch_lines(const uint8_t *w, size_t bytes, sn_prefetch prefetch) {
    for (size_t at = prefetch.distance; at < prefetch.distance + bytes; at += LINE) {
        if (prefetch.to_l1)
            __builtin_prefetch(w + at);
        else
            __builtin_prefetch(w + at, 0, 2);
    }
}
