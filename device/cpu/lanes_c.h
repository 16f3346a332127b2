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
EACH(vi, vi_add, (vi a, vi b), (int32_t)((uint32_t)a.v[j] + (uint32_t)b.v[j]))
EACH(vi, vi_sub, (vi a, vi b), (int32_t)((uint32_t)a.v[j] - (uint32_t)b.v[j]))
EACH(vi, vi_and, (vi a, vi b), a.v[j] & b.v[j])
EACH(vi, vi_max, (vi a, vi b), a.v[j] > b.v[j] ? a.v[j] : b.v[j])
EACH(vi, vi_exponent, (vi a), (int32_t)((uint32_t)a.v[j] << 23))
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
static inline vb vb_low(vb a) {
    for (int j = 0; j < 64; j++) a.v[j] &= 15;
    return a;
}
static inline vb vb_high(vb a) {
    for (int j = 0; j < 64; j++) a.v[j] >>= 4;
    return a;
}
static inline vb vb_lookup(const int8_t table[16], vb places) { /* indices below 16 */
    for (int j = 0; j < 64; j++) places.v[j] = (uint8_t)table[places.v[j]];
    return places;
}
static inline void vb_store(void *p, vb a) { memcpy(p, a.v, sizeof a.v); }

/* acc[lane] += the sum over i < 4 of (w[4 * lane + i] - less) * x[i]. */
static inline vi dot4(vi acc, vb w, const int8_t *x, int less) {
    for (int j = 0; j < 16; j++)
        for (int i = 0; i < 4; i++) acc.v[j] += (w.v[4 * j + i] - less) * x[i];
    return acc;
}
/* vs: sums of products with four bytes of x at a time, in the form that is fastest on the machine.
 *
 * - vs_nibbles: weights 0..15; `low` times x, `high` times x + 16.
 * - vs_bytes: weights stored as q + 128; c is the number of the vector in its group.
 * - vs_table: indices into sn_q4_table, as nibbles.
 *
 * vs_end_* returns the sums and adds the bias where the instruction set multiplied unsigned weights: the bias of bytes
 * is -128 * (sum of x) for q + 128, that of the table -12 * (sum of x) for its numbers + 12. */
typedef vi vs;
typedef vb vw;
static inline vw vw_load(const void *p) { return vb_load(p); }
static inline vs vs_zero(void) { return vi_set(0); }
static inline vs vs_nibbles(vs s, vb low, vb high, const int8_t *x) {
    return dot4(dot4(s, low, x, 0), high, x + 16, 0);
}
static inline vs vs_bytes(vs s, vw w, const int8_t *x, int c) {
    (void)c;
    return dot4(s, w, x, 128);
}
static inline vi vs_end_nibbles(vs s, int32_t bias) { return vi_add(s, vi_set(bias)); }
static inline vi vs_end_bytes(vs s, int32_t bias) {
    (void)bias;
    return s;
}
typedef vb vt;
static inline vt vt_of(vb places) {
    vb q = vb_lookup(sn_q4_table, places);
    for (int j = 0; j < 64; j++) q.v[j] = (uint8_t)(q.v[j] + 12);
    return q;
}
static inline vs vs_table(vs s, vt low, vt high, const int8_t *x) {
    return dot4(dot4(s, low, x, 12), high, x + 16, 12);
}
static inline vi vs_end_table(vs s, int32_t bias) {
    (void)bias;
    return s;
}

#undef EACH
#endif
