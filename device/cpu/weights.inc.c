/* What kernels.inc.c and linear_tiles.inc.c share: reading codes and scales, and prefetching weights. Included after a
 * lanes_*.h. */
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
               : low == 2 ? vb_bits(vb_load(w + SN_VECTOR * (v / 4)), v % 4 * 2, 3)
                          : vb_bits(vb_load(w), v, 1);
    w += SN_VECTOR * low;
    if (high == 1) codes = vb_or_bits(codes, vb_load(w), v - low, 1 << low);
    if (high == 2) codes = vb_or_bits(codes, vb_load(w + SN_VECTOR * (v / 4)), v % 4 * 2 - low, 3 << low);
    return codes;
}
/* The numbers that the codes stand for, unsigned: see sn_cpu_zero. */
INLINE vb load_numbers(sn_dtype t, const uint8_t *w, int v) {
    if (sn_quant_forms[t].table == 3) return vb_bits(vb_load(w), v - 1, 2); /* twice the bit */
    const vb codes = load_codes(t, w, v);
    return sn_quant_forms[t].table ? vb_lookup(sn_cpu_tables[sn_quant_forms[t].table], codes) : codes;
}

/* -- codebook types: as many entries as two vectors hold at a time, because one of eight weights lies in both */

/* The signs of the group at w: byte j of a lane has those of weights 8 j to 8 j + 7. */
INLINE vb load_signs(sn_dtype t, const uint8_t *w) {
    /* Whether a number of four bits has an odd number of ones, in bit 3 and in bit 7. */
    static const uint8_t odd_8[16] = {0, 8, 8, 0, 8, 0, 0, 8, 8, 0, 0, 8, 0, 8, 8, 0},
                         odd_128[16] = {0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0};
    const vb signs = vb_load(w + SN_VECTOR * (sn_quant_forms[t].low_bits - 1));
    if (sn_quant_forms[t].sign_bits != 7) return signs;
    const vb low = vb_lookup(odd_8, vb_bits(signs, 0, 15));
    return vb_or_bits(vb_lookup(odd_128, vb_or_bits(low, signs, 4, 7)), signs, 0, 127);
}

/* The indices of entry e of each lane; high: the bytes with their high bits. */
INLINE vi load_indices(sn_dtype t, const uint8_t *w, const uint8_t *high, int e) {
    const sn_quant_form *f = &sn_quant_forms[t];
    const vi low = vi_and(vi_shift(vi_load((const int32_t *)(w + SN_VECTOR * (e / 4))), e % 4 * 8), vi_set(255)),
             mask = vi_set((1 << f->index_bits) - 256);
    if (f->index_bits == 8) return low;
    vi more; /* the bit 0 of the index's high bits is bit 8 in here */
    if (f->index_bits == 11)
        more = vi_shift(vi_from_u8(high + SN_LANES * (e / 2)), e % 2 * 4 - 8);
    else if (f->sign_bits == 7)
        more = vi_shift(vi_load((const int32_t *)(w + SN_VECTOR * (f->low_bits - 1))), 8 * e - 1);
    else
        more = vi_shift(vi_from_u8(high), e * (8 * f->entry / SN_QUANT_GROUP) - 8);
    return vi_add(low, vi_and(more, mask));
}

INLINE const uint8_t *high_bits_at(sn_dtype t, const uint8_t *w) {
    return w + sn_cpu_code_bytes(t) + (sn_quant_forms[t].scale == SN_SCALE_Q ? 0 : SN_LANES);
}
/* Whether the type needs places: the indices of all groups of a block, [group][entry][lane]. They are computed before
 * the first is used, because a processor that reads what it has just written in larger pieces waits. */
INLINE bool has_entries(sn_dtype t) { return sn_quant_forms[t].entry && sn_quant_forms[t].entry != SN_TRITS; }
enum { ENTRIES_MAX = 8, PLACES = SN_QUANT_GROUPS_MAX * ENTRIES_MAX * SN_LANES };
INLINE void load_places(sn_dtype t, const uint8_t *w, size_t n_groups, uint16_t *out) {
    if (!has_entries(t)) return;
    const int n = SN_QUANT_GROUP / sn_quant_forms[t].entry;
    for (size_t g = 0; g < n_groups; g++, w += sn_cpu_group_bytes(t), out += SN_LANES * n) {
        UNROLL
        for (int e = 0; e < n; e++) vi_store_u16(out + SN_LANES * e, load_indices(t, w, high_bits_at(t, w), e));
    }
}

/* A group of a block. */
typedef struct group_at {
    const uint8_t *w;
    size_t number;          /* in its block */
    const uint16_t *places; /* [entry][lane] */
} group_at;
INLINE group_at group_of(sn_dtype t, const uint8_t *w, size_t number, const uint16_t *places) {
    const size_t n = has_entries(t) ? (size_t)(SN_QUANT_GROUP / sn_quant_forms[t].entry) : 0;
    return (group_at){w, number, places + SN_LANES * n * number};
}

/* Vectors v and v + 1 of a codebook type; v is even. */
INLINE void load_entries(sn_dtype t, group_at g, vb signs, int v, vb *out) {
    const sn_quant_form *f = &sn_quant_forms[t];
    const uint8_t *high = high_bits_at(t, g.w);
    if (f->entry == 8) {
        vb_points_of_8(sn_books_of_8 + f->book, g.places + SN_LANES * (v / 2), out);
    } else {
        out[0] = vb_points_of_4(sn_books_of_4 + f->book, g.places + SN_LANES * v);
        out[1] = vb_points_of_4(sn_books_of_4 + f->book, g.places + SN_LANES * (v + 1));
    }
    for (int i = 0; i < 2; i++) {
        if (f->sign_bits) out[i] = vb_signed(out[i], signs, v / 2, i, 2 * f->zero);
        if (f->index_bits != 11) continue;
        const int entry = f->scale == SN_SCALE_Q ? 3 : v / 2; /* that has the bit which lowers this one */
        out[i] = vb_less_where(out[i], vi_from_u8(high + SN_LANES * (entry / 2)), 8 << entry % 2 * 4, 2);
    }
}

/* Vector v of a group of TQ1_0: see sn_quant_split. */
INLINE vb load_trits(sn_dtype t, group_at g, int v) {
    if (v < 5) return vb_trit(vb_load(g.w), v);
    const size_t place = 3 * g.number + (size_t)v - 5;
    const uint8_t *block = g.w - g.number * sn_cpu_group_bytes(t) - sn_cpu_head_bytes(t);
    return vb_trit(vb_load(block + 2 * SN_LANES + SN_VECTOR * (place / 5)), (int)(place % 5));
}

/* The numbers of vectors first, .., first + n - 1; both are even. */
INLINE void load_vectors(sn_dtype t, group_at g, int first, int n, vb *out) {
    const sn_quant_form *f = &sn_quant_forms[t];
    const vb signs = f->sign_bits ? load_signs(t, g.w) : vb_load(g.w);
    UNROLL
    for (int i = 0; i < n; i++) {
        if (!has_entries(t))
            out[i] = f->entry ? load_trits(t, g, first + i) : load_numbers(t, g.w, first + i);
        else if (i % 2 == 0)
            load_entries(t, g, signs, first + i, out + i);
    }
}
/* The integers of the weights instead, signed bytes. */
INLINE void load_integers(sn_dtype t, group_at g, int first, int n, vb *out) {
    load_vectors(t, g, first, n, out);
    UNROLL
    for (int i = 0; i < n; i++) out[i] = vb_less(out[i], (uint8_t)sn_cpu_zero(t));
}

/* The head of a superblock. */
INLINE void load_head(sn_dtype t, const uint8_t *block, vf *d, vf *m) {
    *d = *m = vf_set(0);
    if (sn_cpu_short_words(t)) {
        const vi zeros = vi_from_u8(block + 2 * SN_LANES), small = vi_and(zeros, vi_set(SN_CPU_BFLOAT - 1));
        const vf half = vf_set(SN_CPU_BFLOAT - 0.5f);
        *d = vf_if_less(vf_from_int(zeros), half, vf_from_f16(block), vf_from_bf16(block));
        *m = vf_mul(*d, vf_sub(vf_set(0), vf_from_int(small)));
        return;
    }
    if (sn_quant_forms[t].scale == SN_SCALE_W) {
        const vi word = vi_load((const int32_t *)block), zeros = vi_and(word, vi_set(0xff));
        *d = vf_bits(vi_and(word, vi_set(~0xff)));
        *m = vf_mul(*d, vf_sub(vf_set(128), vf_from_int(zeros)));
        return;
    }
    if (sn_quant_forms[t].scale == SN_SCALE_F) {
        *d = vf_load((const float *)block);
        return;
    }
    if (sn_quant_forms[t].scale == SN_SCALE_V) {
        *d = vf_mul(vf_load((const float *)block), vf_set(256)); /* vf_from_f8 has 1/256 of the scales */
        return;
    }
    if (sn_quant_forms[t].super_bytes) *d = vf_from_f16(block);
    if (sn_quant_forms[t].halvings) *d = vf_mul(*d, vf_set(1 / (float)(1 << sn_quant_forms[t].halvings)));
    if (sn_quant_forms[t].super_bytes && sn_cpu_offsets(t)) *m = vf_from_f16(block + 2 * SN_LANES);
    if (sn_quant_forms[t].scale == SN_SCALE_N)
        *m = vf_mul(*m, vf_set(0x1p-4f)); /* load_scales has 16 times the offsets */
}

/* 2 s + 1, from 2 s in four bits. */
INLINE vf odd_factor(vi a, vi b, vi c, vi d) {
    return vf_from_int(vi_add(vi_add(vi_add(a, b), vi_add(c, d)), vi_set(1)));
}
INLINE vi bit_of(vi x, int from, int to) { return vi_and(vi_shift(x, from - to), vi_set(1 << to)); }

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
    case SN_SCALE_BF:
        *d = vf_from_bf16(p);
        break;
    case SN_SCALE_W:
        *d = head_d;
        *m = head_m;
        break;
    case SN_SCALE_V:
        *d = vf_mul(head_d, vf_from_f8(p + SN_LANES * h));
        break;
    case SN_SCALE_U:
        *d = vf_mul(vf_from_f8(p + SN_LANES * h), vf_set(128));
        break;
    case SN_SCALE_F:
    case SN_SCALE_H:
        *d = head_d;
        break;
    case SN_SCALE_O: {
        const vi twice = vi_and(vi_shift(vi_from_u8(p), 4 * h - 1), vi_set(30));
        *d = vf_mul(head_d, vf_from_int(vi_add(twice, vi_set(1))));
        break;
    }
    case SN_SCALE_P: {
        const vi signs = vi_load((const int32_t *)(p - SN_VECTOR));
        *d = vf_mul(head_d,
                    odd_factor(bit_of(signs, 7, 1), bit_of(signs, 15, 2), bit_of(signs, 23, 3), bit_of(signs, 31, 4)));
        break;
    }
    case SN_SCALE_Q: {
        const vi a = vi_from_u8(p), b = vi_from_u8(p + SN_LANES);
        *d = vf_mul(head_d, odd_factor(bit_of(a, 3, 1), bit_of(a, 7, 2), bit_of(b, 3, 3), vi_set(0)));
        break;
    }
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
