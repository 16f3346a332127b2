/* The vector of kernels.inc.c in plain C: vf is 16 floats, vi 16 int32, vb 64 bytes. Every other lanes_*.h defines the
 * same names with the same results, bit for bit; this file documents them. */
#ifndef SN_DEVICE_CPU_LANES_C_H
#define SN_DEVICE_CPU_LANES_C_H

#include "base/dtype.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* Plain inline: always_inline would take a minute to compile, and there are no vector registers to gain. */
#define INLINE static inline
#define UNROLL
#define LANES_NAME    "c"
#define LANES_KERNELS sn_cpu_kernels_c
#define ROW_TILE      4 /* rows of x whose results stay in registers */

typedef struct {
    float v[16];
} vf;
typedef struct {
    int32_t v[16];
} vi;
typedef struct {
    uint8_t v[64];
} vb;

/* Defines a function whose result has `expression` in lane j. */
#define EACH(type, name, arguments, expression)                                                                        \
    static inline type name arguments {                                                                                \
        type r;                                                                                                        \
        for (int j = 0; j < 16; j++) r.v[j] = expression;                                                              \
        return r;                                                                                                      \
    }

static inline vf vf_load(const float *p) {
    vf r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
static inline void vf_store(float *p, vf a) { memcpy(p, a.v, sizeof a.v); }
static inline vf vf_load_n(const float *p, size_t n) {
    vf r = {{0}};
    memcpy(r.v, p, n * sizeof *p);
    return r;
}
static inline void vf_store_n(float *p, vf a, size_t n) { memcpy(p, a.v, n * sizeof *p); }
EACH(vf, vf_set, (float x), x)
EACH(vf, vf_add, (vf a, vf b), a.v[j] + b.v[j])
EACH(vf, vf_sub, (vf a, vf b), a.v[j] - b.v[j])
EACH(vf, vf_mul, (vf a, vf b), a.v[j] * b.v[j])
EACH(vf, vf_div, (vf a, vf b), a.v[j] / b.v[j])
EACH(vf, vf_fma, (vf a, vf b, vf c), fmaf(a.v[j], b.v[j], c.v[j]))
/* a < b ? x : y; false when either is NaN. */
EACH(vf, vf_if_less, (vf a, vf b, vf x, vf y), a.v[j] < b.v[j] ? x.v[j] : y.v[j])
/* b when either is NaN, or when both are zero. */
EACH(vf, vf_max, (vf a, vf b), a.v[j] > b.v[j] ? a.v[j] : b.v[j])
EACH(vf, vf_min, (vf a, vf b), a.v[j] < b.v[j] ? a.v[j] : b.v[j])
EACH(vf, vf_if_nan, (vf a, vf x, vf y), a.v[j] != a.v[j] ? x.v[j] : y.v[j])
static inline uint16_t half_at(const void *p, int i) {
    uint16_t half;
    memcpy(&half, (const uint8_t *)p + 2 * i, sizeof half);
    return half;
}
EACH(vf, vf_from_f16, (const void *p), sn_f16_to_f32(half_at(p, j)))
EACH(vf, vf_from_bf16, (const void *p), sn_bf16_to_f32(half_at(p, j)))
EACH(vf, vf_from_f8, (const void *p), sn_f16_to_f32(sn_f8_to_f16_256th(((const uint8_t *)p)[j]))) /* 1/256 of E4M3 */
EACH(vf, vf_set_bf16, (const void *p), sn_bf16_to_f32(half_at(p, 0)))
EACH(vf, vf_from_e8, (const void *p), sn_half_power_of_two(((const uint8_t *)p)[j]))
EACH(vf, vf_from_i8, (const void *p), (float)((const int8_t *)p)[j])
EACH(vf, vf_from_int, (vi a), (float)a.v[j])
static inline vf vf_bits(vi a) {
    vf r;
    memcpy(r.v, a.v, sizeof r.v);
    return r;
}

static inline vi vi_bits(vf a) {
    vi r;
    memcpy(r.v, a.v, sizeof r.v);
    return r;
}
static inline vi vi_load(const int32_t *p) {
    vi r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
EACH(vi, vi_set, (int32_t x), x)
EACH(vf, vf_lookup, (const float table[16], vi places), table[places.v[j]]) /* places below 16 */
EACH(vi, vi_add, (vi a, vi b), (int32_t)((uint32_t)a.v[j] + (uint32_t)b.v[j]))
EACH(vi, vi_sub, (vi a, vi b), (int32_t)((uint32_t)a.v[j] - (uint32_t)b.v[j]))
EACH(vi, vi_and, (vi a, vi b), a.v[j] & b.v[j])
EACH(vi, vi_from_u8, (const void *p), ((const uint8_t *)p)[j])
EACH(vi, vi_max, (vi a, vi b), a.v[j] > b.v[j] ? a.v[j] : b.v[j])
/* To the right; negative: to the left. */
EACH(vi, vi_shift, (vi a, int n), n < 0 ? (int32_t)((uint32_t)a.v[j] << -n) : a.v[j] >> n)
EACH(vi, vi_exponent, (vi a), (int32_t)((uint32_t)a.v[j] << 23))
static inline void vi_store_u16(uint16_t *p, vi a) {
    for (int j = 0; j < 16; j++) p[j] = (uint16_t)a.v[j];
}
static inline void vi_store_i8(int8_t *p, vi a) {
    for (int j = 0; j < 16; j++) p[j] = (int8_t)a.v[j];
}
static inline int32_t vi_sum(vi a) {
    int32_t s = 0;
    for (int j = 0; j < 16; j++) s += a.v[j];
    return s;
}
static inline int32_t vi_top(vi a) {
    int32_t top = a.v[0];
    for (int j = 1; j < 16; j++) top = a.v[j] > top ? a.v[j] : top;
    return top;
}

static inline vb vb_load(const void *p) {
    vb r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
static inline vb vb_bits(vb a, int shift, int mask) { /* shift: to the right; negative: to the left */
    for (int j = 0; j < 64; j++) a.v[j] = (uint8_t)((shift < 0 ? a.v[j] << -shift : a.v[j] >> shift) & mask);
    return a;
}
static inline vb vb_or_bits(vb a, vb b, int shift, int mask) { /* a | vb_bits(b, shift, mask) */
    b = vb_bits(b, shift, mask);
    for (int j = 0; j < 64; j++) a.v[j] |= b.v[j];
    return a;
}
static inline vb vb_less(vb a, uint8_t less) {
    for (int j = 0; j < 64; j++) a.v[j] = (uint8_t)(a.v[j] - less);
    return a;
}
static inline vb vb_lookup(const uint8_t table[16], vb places) { /* indices below 16 */
    for (int j = 0; j < 64; j++) places.v[j] = table[places.v[j]];
    return places;
}
static inline void vb_store(void *p, vb a) { memcpy(p, a.v, sizeof a.v); }
/* Points of a codebook, the one that each lane's index names; the second vector has the upper four bytes. */
static inline vb vb_points_of_4(const uint32_t *book, const uint16_t *at) {
    vb r;
    for (int j = 0; j < 16; j++) memcpy(r.v + 4 * j, book + at[j], 4);
    return r;
}
static inline void vb_points_of_8(const uint64_t *book, const uint16_t *at, vb *out) {
    for (int j = 0; j < 16; j++) {
        memcpy(out[0].v + 4 * j, book + at[j], 4);
        memcpy(out[1].v + 4 * j, (const uint8_t *)(book + at[j]) + 4, 4);
    }
}
/* `twice` - a where the sign is set: of byte i of a lane bit 4 * part + i of byte `byte` of that lane of signs. */
static inline vb vb_signed(vb a, vb signs, int byte, int part, int twice) {
    for (int j = 0; j < 64; j++)
        if (signs.v[j / 4 * 4 + byte] >> (4 * part + j % 4) & 1) a.v[j] = (uint8_t)(twice - a.v[j]);
    return a;
}
/* All bytes of the lanes whose x has a bit of `bits` become less; they do not fall below 0. */
static inline vb vb_less_where(vb a, vi x, int bits, uint8_t less) {
    for (int j = 0; j < 64; j++)
        if (x.v[j / 4] & bits) a.v[j] = (uint8_t)(a.v[j] - less);
    return a;
}
/* The powers of three that bring digit n of TQ1_0's bytes to the top. */
static const uint8_t trit_powers[5] = {1, 3, 9, 27, 81};
/* 3 * (3^n * a mod 256) / 256 */
static inline vb vb_trit(vb a, int n) {
    for (int j = 0; j < 64; j++) a.v[j] = (uint8_t)(3 * (uint8_t)(a.v[j] * trit_powers[n]) >> 8);
    return a;
}

/* acc[lane] += the sum over i < 4 of w[4 * lane + i] * x[i]. */
static inline vi dot4(vi acc, vb w, const int8_t *x) {
    for (int j = 0; j < 16; j++)
        for (int i = 0; i < 4; i++) acc.v[j] += w.v[4 * j + i] * x[i];
    return acc;
}
/* vs: sums of products with four bytes of x at a time, in the form that is fastest on the machine. vs_dot adds those of
 * two vectors of unsigned numbers below 2^bits, bits <= 8, which vw_of has prepared for all rows; of fewer than
 * five bits at most eight vectors come together. vs_end returns the sums plus the bias, which corrects that the numbers
 * are unsigned; of 8 bits, sets that multiply signed bytes have subtracted 128 already.
 *
 * HALVES_AT_ONCE: the sums of the first vectors and of the second ones stay apart, so that one pass gives the sums of
 * both halves of a group: vs_end returns that of `half` 0 or 1, or of both for -1. WIDE_SUMS: `bits` does not count. */
typedef vi vs;
enum { HALVES_AT_ONCE = 0, WIDE_SUMS = 0 };
static inline vs vs_zero(void) { return vi_set(0); }
typedef vb vw;
static inline vw vw_of(int bits, vb numbers) {
    (void)bits;
    return numbers;
}
static inline vs vs_dot(vs s, int bits, vw a, const int8_t *xa, vw b, const int8_t *xb) {
    (void)bits;
    return dot4(dot4(s, a, xa), b, xb);
}
static inline vi vs_end(vs s, int bits, int half, vi bias) {
    (void)bits, (void)half;
    return vi_add(s, bias);
}

#undef EACH
#endif
