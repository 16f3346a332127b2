/* The vector of kernels.inc.c in AVX-512 with VNNI. lanes_c.h documents each name. */
#ifndef SN_DEVICE_CPU_LANES_AVX512_H
#define SN_DEVICE_CPU_LANES_AVX512_H

#include "device/cpu/kernels.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES_NAME    "avx512"
#define LANES_KERNELS sn_cpu_kernels_avx512
#define ROW_TILE      8 /* rows of x whose results stay in registers */

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;

static inline __mmask16 first_n(size_t n) { return (__mmask16)((1u << n) - 1); }

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf vf_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
static inline void vf_store_n(float *p, vf a, size_t n) { _mm512_mask_storeu_ps(p, first_n(n), a); }
static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_if_less(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_if_nan(vf a, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, x);
}
static inline vf vf_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
static inline vf vf_from_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
static inline vf vf_from_f8(const void *p) { /* the sign comes twice, and once it is masked */
    __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16((short)0xbf80)));
}
static inline vf vf_set_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_broadcastw_epi16(_mm_loadu_si16(p)), 16));
}
static inline vf vf_from_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
static inline vf vf_from_e8(const void *p) { /* the greater is right, below 2 the second */
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p)), one = _mm512_set1_epi32(1);
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
                                                _mm512_slli_epi32(_mm512_add_epi32(e, one), 21)));
}
static inline vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }

static inline vi vi_bits(vf a) { return _mm512_castps_si512(a); }
static inline vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline vi vi_from_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
static inline vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
typedef int32_t ints __attribute__((vector_size(64)));
static inline vi vi_shift(vi a, int n) { return (vi)(n < 0 ? (ints)a << -n : (ints)a >> n); }
static inline vi vi_exponent(vi a) { return _mm512_slli_epi32(a, 23); }
static inline void vi_store_u16(uint16_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a)); }
static inline void vi_store_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
static inline int32_t vi_sum(vi a) { return _mm512_reduce_add_epi32(a); }
static inline int32_t vi_top(vi a) { return _mm512_reduce_max_epi32(a); }

static inline vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
/* Shifts of vector types take a constant or not, at every level of optimisation. */
typedef uint16_t words __attribute__((vector_size(64)));
static inline vb shifted(vb a, int shift) { return (vb)(shift < 0 ? (words)a << -shift : (words)a >> shift); }
static inline vb vb_bits(vb a, int shift, int mask) {
    return _mm512_and_si512(shifted(a, shift), _mm512_set1_epi8((char)mask));
}
static inline vb vb_or_bits(vb a, vb b, int shift, int mask) {
    return _mm512_ternarylogic_epi32(a, shifted(b, shift), _mm512_set1_epi8((char)mask), 0xf8); /* a | b & c */
}
static inline vb vb_less(vb a, uint8_t less) { return _mm512_sub_epi8(a, _mm512_set1_epi8((char)less)); }
static inline vf vf_lookup(const float table[16], vi places) {
    return _mm512_permutexvar_ps(places, _mm512_loadu_ps(table));
}
static inline vb vb_lookup(const uint8_t table[16], vb places) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), places);
}
static inline void vb_store(void *p, vb a) { _mm512_storeu_si512(p, a); }
/* By single loads, because the instructions that gather are slower on AMD's processors. */
static inline __m128i four_points(const uint32_t *book, const uint16_t *at) {
    __m128i p = _mm_cvtsi32_si128((int)book[at[0]]);
    p = _mm_insert_epi32(p, (int)book[at[1]], 1);
    p = _mm_insert_epi32(p, (int)book[at[2]], 2);
    return _mm_insert_epi32(p, (int)book[at[3]], 3);
}
static inline __m512i of_quarters(__m128i a, __m128i b, __m128i c, __m128i d) {
    const __m256i ab = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1),
                  cd = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(ab), cd, 1);
}
static inline vb vb_points_of_4(const uint32_t *book, const uint16_t *at) {
    return of_quarters(four_points(book, at), four_points(book, at + 4), four_points(book, at + 8),
                       four_points(book, at + 12));
}
static inline __m128i two_points(const uint64_t *book, const uint16_t *at) {
    const __m128i p = _mm_loadl_epi64((const __m128i *)(book + at[0]));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(p), (const __m64 *)(book + at[1])));
}
static inline void vb_points_of_8(const uint64_t *book, const uint16_t *at, vb *out) {
    const __m512 a = _mm512_castsi512_ps(of_quarters(two_points(book, at), two_points(book, at + 4),
                                                     two_points(book, at + 8), two_points(book, at + 12))),
                 b = _mm512_castsi512_ps(of_quarters(two_points(book, at + 2), two_points(book, at + 6),
                                                     two_points(book, at + 10), two_points(book, at + 14)));
    out[0] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
    out[1] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
}
static inline vb vb_signed(vb a, vb signs, int byte, int part, int twice) {
    const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c)),
                  own = _mm512_shuffle_epi8(signs, _mm512_add_epi8(places, _mm512_set1_epi8((char)byte)));
    const __mmask64 negative = _mm512_test_epi8_mask(own, _mm512_set1_epi32((int)(0x08040201u << 4 * part)));
    return _mm512_mask_sub_epi8(a, negative, _mm512_set1_epi8((char)twice), a);
}
static inline vb vb_less_where(vb a, vi x, int bits, uint8_t less) {
    const __mmask16 lanes = _mm512_test_epi32_mask(x, _mm512_set1_epi32(bits));
    return _mm512_mask_sub_epi32(a, lanes, a, _mm512_set1_epi32(less * 0x01010101));
}
static const uint8_t trit_powers[5] = {1, 3, 9, 27, 81};
/* Even and odd bytes in the upper halves of words, whose lower halves the products do not reach. */
static inline vb vb_trit(vb a, int n) {
    const __m512i power = _mm512_set1_epi16(trit_powers[n]), three = _mm512_set1_epi16(3);
    __m512i even = _mm512_slli_epi16(a, 8), odd = _mm512_and_si512(a, _mm512_set1_epi16((short)0xff00));
    even = _mm512_mulhi_epu16(_mm512_mullo_epi16(even, power), three);
    odd = _mm512_mulhi_epu16(_mm512_mullo_epi16(odd, power), three);
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
}

static inline vi broadcast_four(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, sizeof word);
    return _mm512_set1_epi32(word);
}
/* Two sums in alternation, because a dot product has a latency of five cycles. */
typedef struct {
    __m512i a, b;
} vs;
enum { HALVES_AT_ONCE = 1, WIDE_SUMS = 1 };
static inline vs vs_zero(void) { return (vs){_mm512_setzero_si512(), _mm512_setzero_si512()}; }
typedef vb vw;
static inline vw vw_of(int bits, vb numbers) {
    (void)bits;
    return numbers;
}
static inline vs vs_dot(vs s, int bits, vw a, const int8_t *xa, vw b, const int8_t *xb) {
    (void)bits;
    return (vs){_mm512_dpbusd_epi32(s.a, a, broadcast_four(xa)), _mm512_dpbusd_epi32(s.b, b, broadcast_four(xb))};
}
static inline vi vs_end(vs s, int bits, int half, vi bias) {
    (void)bits;
    return vi_add(half < 0 ? vi_add(s.a, s.b) : half ? s.b : s.a, bias);
}

#endif
