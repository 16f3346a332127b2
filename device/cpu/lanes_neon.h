/* The vector of kernels.inc.c in NEON (AArch64), as four quarters. lanes_c.h documents each name.
 *
 * The same file serves three instruction sets, which differ in how they sum products of bytes: NEON alone multiplies to
 * 16 bits and adds in pairs; the dot product (ARMv8.2, FEAT_DotProd) sums four products in a lane; the matrix product
 * (ARMv8.6, FEAT_I8MM) eight, of two outputs with two rows at a time. Arm Architecture Reference Manual, C7.2. */
#ifndef SN_DEVICE_CPU_LANES_NEON_H
#define SN_DEVICE_CPU_LANES_NEON_H

#include "device/cpu/kernels.h"

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define LANES_NAME    "i8mm"
#define LANES_KERNELS sn_cpu_kernels_i8mm
#elif defined(__ARM_FEATURE_DOTPROD)
#define LANES_NAME    "dotprod"
#define LANES_KERNELS sn_cpu_kernels_dotprod
#else
#define LANES_NAME    "neon"
#define LANES_KERNELS sn_cpu_kernels_neon
#endif
#define ROW_TILE 4 /* rows of x whose results stay in registers */

typedef struct {
    float32x4_t v[4];
} vf;
typedef struct {
    int32x4_t v[4];
} vi;
typedef struct {
    uint8x16_t v[4];
} vb;

/* Defines a function whose result has `expression` in quarter j. */
#define EACH(type, name, arguments, expression)                                                                        \
    static inline __attribute__((always_inline)) type name arguments {                                                 \
        type r;                                                                                                        \
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) r.v[j] = expression;                                       \
        return r;                                                                                                      \
    }

EACH(vf, vf_load, (const float *p), vld1q_f32(p + 4 * j))
static inline void vf_store(float *p, vf x) {
    for (int j = 0; j < 4; j++) vst1q_f32(p + 4 * j, x.v[j]);
}
static inline vf vf_load_n(const float *p, size_t n) {
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return vf_load(t);
}
static inline void vf_store_n(float *p, vf x, size_t n) {
    float t[16];
    vf_store(t, x);
    memcpy(p, t, n * sizeof *p);
}
EACH(vf, vf_set, (float x), vdupq_n_f32(x))
EACH(vf, vf_add, (vf x, vf y), vaddq_f32(x.v[j], y.v[j]))
EACH(vf, vf_sub, (vf x, vf y), vsubq_f32(x.v[j], y.v[j]))
EACH(vf, vf_mul, (vf x, vf y), vmulq_f32(x.v[j], y.v[j]))
EACH(vf, vf_div, (vf x, vf y), vdivq_f32(x.v[j], y.v[j]))
EACH(vf, vf_fma, (vf x, vf y, vf z), vfmaq_f32(z.v[j], x.v[j], y.v[j]))
EACH(vf, vf_if_less, (vf p, vf q, vf x, vf y), vbslq_f32(vcltq_f32(p.v[j], q.v[j]), x.v[j], y.v[j]))
/* Not vmaxq_f32, whose result is NaN when either is. */
EACH(vf, vf_max, (vf x, vf y), vbslq_f32(vcgtq_f32(x.v[j], y.v[j]), x.v[j], y.v[j]))
EACH(vf, vf_min, (vf x, vf y), vbslq_f32(vcltq_f32(x.v[j], y.v[j]), x.v[j], y.v[j]))
EACH(vf, vf_if_nan, (vf p, vf x, vf y), vbslq_f32(vceqq_f32(p.v[j], p.v[j]), y.v[j], x.v[j]))
static inline uint16x4_t four_halves(const void *p, int at) {
    uint16x4_t h;
    memcpy(&h, (const uint8_t *)p + 8 * at, sizeof h);
    return h;
}
EACH(vf, vf_from_f16, (const void *p), vcvt_f32_f16(vreinterpret_f16_u16(four_halves(p, j))))
EACH(vf, vf_from_bf16, (const void *p), vreinterpretq_f32_u32(vshll_n_u16(four_halves(p, j), 16)))
static inline vf vf_from_f8(const void *p) { /* the sign comes twice, and once it is masked */
    const uint16x8_t bits = vdupq_n_u16(0xbf80);
    int8x16_t all = vld1q_s8(p);
    float16x8_t low = vreinterpretq_f16_u16(vandq_u16(vreinterpretq_u16_s16(vshll_n_s8(vget_low_s8(all), 7)), bits)),
                high = vreinterpretq_f16_u16(vandq_u16(vreinterpretq_u16_s16(vshll_high_n_s8(all, 7)), bits));
    return (vf){{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
                 vcvt_high_f32_f16(high)}};
}
static inline vf vf_set_bf16(const void *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    float32x4_t all = vreinterpretq_f32_u32(vdupq_n_u32((uint32_t)half << 16));
    return (vf){{all, all, all, all}};
}
static inline vf vf_from_i8(const void *p) {
    int8x16_t all = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
static inline float32x4_t from_e8(uint16x4_t e) { /* the greater is right, below 2 the second */
    int32x4_t wide = vreinterpretq_s32_u32(vmovl_u16(e)), one = vdupq_n_s32(1);
    return vreinterpretq_f32_s32(
        vmaxq_s32(vshlq_n_s32(vsubq_s32(wide, one), 23), vshlq_n_s32(vaddq_s32(wide, one), 21)));
}
static inline vf vf_from_e8(const void *p) {
    uint8x16_t all = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_high_u8(all);
    return (vf){{from_e8(vget_low_u16(low)), from_e8(vget_high_u16(low)), from_e8(vget_low_u16(high)),
                 from_e8(vget_high_u16(high))}};
}
EACH(vf, vf_from_int, (vi x), vcvtq_f32_s32(x.v[j]))
EACH(vf, vf_bits, (vi x), vreinterpretq_f32_s32(x.v[j]))

EACH(vi, vi_bits, (vf x), vreinterpretq_s32_f32(x.v[j]))
EACH(vi, vi_load, (const int32_t *p), vld1q_s32(p + 4 * j))
static inline vi vi_from_u8(const void *p) {
    uint8x16_t all = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_high_u8(all);
    return (vi){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_high_u16(low)),
                 vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}
EACH(vi, vi_set, (int32_t x), vdupq_n_s32(x))
EACH(vi, vi_add, (vi x, vi y), vaddq_s32(x.v[j], y.v[j]))
EACH(vi, vi_sub, (vi x, vi y), vsubq_s32(x.v[j], y.v[j]))
EACH(vi, vi_and, (vi x, vi y), vandq_s32(x.v[j], y.v[j]))
EACH(vi, vi_max, (vi x, vi y), vmaxq_s32(x.v[j], y.v[j]))
EACH(vi, vi_shift, (vi x, int n), vshlq_s32(x.v[j], vdupq_n_s32(-n)))
EACH(vi, vi_exponent, (vi x), vshlq_n_s32(x.v[j], 23))
static inline void vi_store_u16(uint16_t *p, vi x) {
    vst1q_u16(p, vreinterpretq_u16_s16(vmovn_high_s32(vmovn_s32(x.v[0]), x.v[1])));
    vst1q_u16(p + 8, vreinterpretq_u16_s16(vmovn_high_s32(vmovn_s32(x.v[2]), x.v[3])));
}
static inline void vi_store_i8(int8_t *p, vi x) {
    int16x8_t low = vmovn_high_s32(vmovn_s32(x.v[0]), x.v[1]), high = vmovn_high_s32(vmovn_s32(x.v[2]), x.v[3]);
    vst1q_s8(p, vmovn_high_s16(vmovn_s16(low), high));
}
static inline int32_t vi_sum(vi x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
static inline int32_t vi_top(vi x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}

EACH(vb, vb_load, (const void *p), vld1q_u8((const uint8_t *)p + 16 * j))
/* Shifts of vector types take a constant or not, at every level of optimisation. */
EACH(vb, shifted, (vb x, int shift), shift < 0 ? x.v[j] << -shift : x.v[j] >> shift)
EACH(vb, masked, (vb x, int mask), vandq_u8(x.v[j], vdupq_n_u8((uint8_t)mask)))
static inline vb vb_bits(vb x, int shift, int mask) {
    x = shift ? shifted(x, shift) : x;
    return shift > 0 && mask == 255 >> shift ? x : masked(x, mask);
}
EACH(vb, or_each, (vb x, vb y), vorrq_u8(x.v[j], y.v[j]))
static inline vb vb_or_bits(vb x, vb y, int shift, int mask) { return or_each(x, vb_bits(y, shift, mask)); }
EACH(vb, vb_less, (vb x, uint8_t less), vsubq_u8(x.v[j], vdupq_n_u8(less)))
static inline float32x4_t four_of_16(const float table[16], int32x4_t places) {
    const uint8_t *bytes = (const uint8_t *)table;
    const uint8x16x4_t all = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    const int32x4_t at = vmlaq_n_s32(vdupq_n_s32(0x03020100), places, 0x04040404); /* of each byte */
    return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_s32(at)));
}
EACH(vf, vf_lookup, (const float table[16], vi places), four_of_16(table, places.v[j]))
EACH(vb, vb_lookup, (const uint8_t table[16], vb places), vqtbl1q_u8(vld1q_u8(table), places.v[j]))
static inline void vb_store(void *p, vb x) {
    for (int j = 0; j < 4; j++) vst1q_u8((uint8_t *)p + 16 * j, x.v[j]);
}
static inline uint8x16_t four_points(const uint32_t *book, const uint16_t *at) {
    uint32x4_t p = vdupq_n_u32(book[at[0]]);
    p = vld1q_lane_u32(book + at[1], p, 1);
    p = vld1q_lane_u32(book + at[2], p, 2);
    return vreinterpretq_u8_u32(vld1q_lane_u32(book + at[3], p, 3));
}
EACH(vb, vb_points_of_4, (const uint32_t *book, const uint16_t *at), four_points(book, at + 4 * j))
static inline void vb_points_of_8(const uint64_t *book, const uint16_t *at, vb *out) {
    for (int j = 0; j < 4; j++) {
        const uint16_t *p = at + 4 * j;
        const uint32x4_t a = vreinterpretq_u32_u64(vcombine_u64(vld1_u64(book + p[0]), vld1_u64(book + p[1]))),
                         b = vreinterpretq_u32_u64(vcombine_u64(vld1_u64(book + p[2]), vld1_u64(book + p[3])));
        out[0].v[j] = vreinterpretq_u8_u32(vuzp1q_u32(a, b));
        out[1].v[j] = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
    }
}
static const uint8_t sign_places[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
static inline uint8x16_t with_sign(uint8x16_t x, uint8x16_t signs, int byte, int part, int twice) {
    const uint8x16_t own = vqtbl1q_u8(signs, vaddq_u8(vld1q_u8(sign_places), vdupq_n_u8((uint8_t)byte))),
                     bits = vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << 4 * part));
    return vbslq_u8(vtstq_u8(own, bits), vsubq_u8(vdupq_n_u8((uint8_t)twice), x), x);
}
EACH(vb, vb_signed, (vb x, vb signs, int byte, int part, int twice), with_sign(x.v[j], signs.v[j], byte, part, twice))
EACH(vb, vb_less_where, (vb x, vi y, int bits, uint8_t less),
     vsubq_u8(x.v[j], vandq_u8(vreinterpretq_u8_u32(vtstq_s32(y.v[j], vdupq_n_s32(bits))), vdupq_n_u8(less))))
static const uint8_t trit_powers[5] = {1, 3, 9, 27, 81};
static inline uint8x16_t trit_of(uint8x16_t x, int n) {
    const uint8x16_t top = vmulq_u8(x, vdupq_n_u8(trit_powers[n])), three = vdupq_n_u8(3);
    return vshrn_high_n_u16(vshrn_n_u16(vmull_u8(vget_low_u8(top), vget_low_u8(three)), 8), vmull_high_u8(top, three),
                            8);
}
EACH(vb, vb_trit, (vb x, int n), trit_of(x.v[j], n))

static inline int8x16_t broadcast_four(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
/* s + the four products of each lane, of signed weights. */
static inline __attribute__((always_inline)) int32x4_t dot_four(int32x4_t s, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(s, w, x);
#else /* a pair of products is at most 2 * 128 * 127 < 2^15 */
    return vpadalq_s16(s, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)));
#endif
}
typedef vi vs;
enum { HALVES_AT_ONCE = 0, WIDE_SUMS = 0 };
static inline vs vs_zero(void) { return vi_set(0); }
EACH(vs, dot, (vs s, vb w, int8x16_t x), dot_four(s.v[j], vreinterpretq_s8_u8(w.v[j]), x))
/* Of 8 bits the signed numbers; of fewer the numbers themselves are signed bytes. */
typedef vb vw;
static inline vw vw_of(int bits, vb numbers) { return bits == 8 ? vb_less(numbers, 128) : numbers; }
static inline vs vs_dot(vs s, int bits, vw a, const int8_t *xa, vw b, const int8_t *xb) {
    (void)bits;
    return dot(dot(s, a, broadcast_four(xa)), b, broadcast_four(xb));
}
static inline vi vs_end(vs s, int bits, int half, vi bias) {
    (void)half;
    return bits == 8 ? s : vi_add(s, bias);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* row_pairs.inc.c: the sums of two rows of x. v[j] holds the outputs 2 j and 2 j + 1, each for both rows. */
#define ROW_PAIRS
typedef struct {
    int32x4_t v[8];
} vp;
static inline vp vp_zero(void) {
    int32x4_t zero = vdupq_n_s32(0);
    return (vp){{zero, zero, zero, zero, zero, zero, zero, zero}};
}
static inline vs dot_single(vs s, vb w, const int8_t *x) { return dot(s, w, broadcast_four(x)); }
/* Products of 8 k: w of the first four, next of the others; x0 and x1 are 8 elements of both rows. */
static inline __attribute__((always_inline)) vp vp_dot(vp s, vb w, vb next, const int8_t *x0, const int8_t *x1) {
    const int8x16_t x = vcombine_s8(vld1_s8(x0), vld1_s8(x1));
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
        int32x4_t a = vreinterpretq_s32_u8(w.v[j]), b = vreinterpretq_s32_u8(next.v[j]);
        s.v[2 * j] = vmmlaq_s32(s.v[2 * j], vreinterpretq_s8_s32(vzip1q_s32(a, b)), x);
        s.v[2 * j + 1] = vmmlaq_s32(s.v[2 * j + 1], vreinterpretq_s8_s32(vzip2q_s32(a, b)), x);
    }
    return s;
}
EACH(vi, vp_row, (vp s, int row), row ? vuzp2q_s32(s.v[2 * j], s.v[2 * j + 1]) : vuzp1q_s32(s.v[2 * j], s.v[2 * j + 1]))
#endif

#undef EACH
#endif
