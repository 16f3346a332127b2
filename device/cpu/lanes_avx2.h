/* The vector of kernels.inc.c in AVX2 with FMA and F16C, as two halves. lanes_c.h documents each name. */
#ifndef SN_DEVICE_CPU_LANES_AVX2_H
#define SN_DEVICE_CPU_LANES_AVX2_H

#include "device/cpu/kernels.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES_NAME    "avx2"
#define LANES_KERNELS sn_cpu_kernels_avx2
#define ROW_TILE      4 /* rows of x whose results stay in registers */

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;
typedef struct {
    __m256i a, b;
} vb;

#define BOTH(type, op, x, y) ((type){op((x).a, (y).a), op((x).b, (y).b)})

static inline vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
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
static inline vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vf vf_add(vf x, vf y) { return BOTH(vf, _mm256_add_ps, x, y); }
static inline vf vf_sub(vf x, vf y) { return BOTH(vf, _mm256_sub_ps, x, y); }
static inline vf vf_mul(vf x, vf y) { return BOTH(vf, _mm256_mul_ps, x, y); }
static inline vf vf_div(vf x, vf y) { return BOTH(vf, _mm256_div_ps, x, y); }
static inline vf vf_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vf vf_if_less(vf p, vf q, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ))};
}
static inline vf vf_max(vf x, vf y) { return BOTH(vf, _mm256_max_ps, x, y); }
static inline vf vf_min(vf x, vf y) { return BOTH(vf, _mm256_min_ps, x, y); }
static inline vf vf_if_nan(vf p, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, p.a, _CMP_UNORD_Q)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, p.b, _CMP_UNORD_Q))};
}
static inline __m128i eight_halves(const void *p, int at) { return _mm_loadu_si128((const __m128i *)p + at); }
static inline vf vf_from_f16(const void *p) {
    return (vf){_mm256_cvtph_ps(eight_halves(p, 0)), _mm256_cvtph_ps(eight_halves(p, 1))};
}
static inline __m256 from_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline vf vf_from_bf16(const void *p) {
    return (vf){from_bf16(eight_halves(p, 0)), from_bf16(eight_halves(p, 1))};
}
static inline vf vf_from_f8(const void *p) { /* the sign comes twice, and once it is masked */
    __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xbf80));
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
static inline vf vf_set_bf16(const void *p) {
    __m256 all = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_broadcastw_epi16(_mm_loadu_si16(p)), 16));
    return (vf){all, all};
}
static inline vf vf_from_i8(const void *p) {
    const __m128i all = _mm_loadu_si128(p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
static inline __m256 from_e8(__m128i p) { /* the greater is right, below 2 the second */
    __m256i e = _mm256_cvtepu8_epi32(p), one = _mm256_set1_epi32(1);
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(_mm256_sub_epi32(e, one), 23),
                                                _mm256_slli_epi32(_mm256_add_epi32(e, one), 21)));
}
static inline vf vf_from_e8(const void *p) {
    const __m128i all = _mm_loadu_si128(p);
    return (vf){from_e8(all), from_e8(_mm_srli_si128(all, 8))};
}
static inline vf vf_from_int(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline vf vf_bits(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

static inline vi vi_bits(vf x) { return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
static inline vi vi_load(const int32_t *p) {
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
static inline vi vi_from_u8(const void *p) {
    const __m128i all = _mm_loadu_si128(p);
    return (vi){_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))};
}
static inline vi vi_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline vi vi_add(vi x, vi y) { return BOTH(vi, _mm256_add_epi32, x, y); }
static inline vi vi_sub(vi x, vi y) { return BOTH(vi, _mm256_sub_epi32, x, y); }
static inline vi vi_and(vi x, vi y) { return BOTH(vi, _mm256_and_si256, x, y); }
static inline vi vi_max(vi x, vi y) { return BOTH(vi, _mm256_max_epi32, x, y); }
typedef int32_t ints __attribute__((vector_size(32)));
static inline __m256i shifted(__m256i x, int n) { return (__m256i)(n < 0 ? (ints)x << -n : (ints)x >> n); }
static inline vi vi_shift(vi x, int n) { return (vi){shifted(x.a, n), shifted(x.b, n)}; }
static inline vi vi_exponent(vi x) { return (vi){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
/* The pack instructions work on 128-bit halves: the permutation between them restores the order. */
static inline void vi_store_u16(uint16_t *p, vi x) {
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8));
}
static inline void vi_store_i8(int8_t *p, vi x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}
static inline int32_t vi_sum(vi x) {
    __m256i s = _mm256_add_epi32(x.a, x.b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
static inline int32_t vi_top(vi x) {
    __m256i s = _mm256_max_epi32(x.a, x.b);
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

static inline vb vb_load(const void *p) {
    return (vb){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
/* Shifts of vector types take a constant or not, at every level of optimisation. */
typedef uint16_t words __attribute__((vector_size(32)));
static inline __m256i bits_of(__m256i x, int shift, int mask) {
    words w = (words)x;
    return _mm256_and_si256((__m256i)(shift < 0 ? w << -shift : w >> shift), _mm256_set1_epi8((char)mask));
}
static inline vb vb_bits(vb x, int shift, int mask) {
    return (vb){bits_of(x.a, shift, mask), bits_of(x.b, shift, mask)};
}
static inline vb vb_or_bits(vb x, vb y, int shift, int mask) {
    y = vb_bits(y, shift, mask);
    return BOTH(vb, _mm256_or_si256, x, y);
}
static inline vb vb_less(vb x, uint8_t less) {
    __m256i all = _mm256_set1_epi8((char)less);
    return (vb){_mm256_sub_epi8(x.a, all), _mm256_sub_epi8(x.b, all)};
}
static inline __m256 eight_of_16(const float table[16], __m256i places) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), places),
                 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), places);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28)));
}
static inline vf vf_lookup(const float table[16], vi places) {
    return (vf){eight_of_16(table, places.a), eight_of_16(table, places.b)};
}
static inline vb vb_lookup(const uint8_t table[16], vb places) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (vb){_mm256_shuffle_epi8(both, places.a), _mm256_shuffle_epi8(both, places.b)};
}
static inline void vb_store(void *p, vb x) {
    _mm256_storeu_si256(p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
static inline __m128i four_points(const uint32_t *book, const uint16_t *at) {
    __m128i p = _mm_cvtsi32_si128((int)book[at[0]]);
    p = _mm_insert_epi32(p, (int)book[at[1]], 1);
    p = _mm_insert_epi32(p, (int)book[at[2]], 2);
    return _mm_insert_epi32(p, (int)book[at[3]], 3);
}
static inline __m256i of_halves(__m128i a, __m128i b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}
static inline vb vb_points_of_4(const uint32_t *book, const uint16_t *at) {
    return (vb){of_halves(four_points(book, at), four_points(book, at + 4)),
                of_halves(four_points(book, at + 8), four_points(book, at + 12))};
}
static inline __m128i two_points(const uint64_t *book, const uint16_t *at) {
    const __m128i p = _mm_loadl_epi64((const __m128i *)(book + at[0]));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(p), (const __m64 *)(book + at[1])));
}
/* Points of eight lanes: the lower halves to *first, the upper ones to *second. */
static inline void eight_points(const uint64_t *book, const uint16_t *at, __m256i *first, __m256i *second) {
    const __m256 a = _mm256_castsi256_ps(of_halves(two_points(book, at), two_points(book, at + 4))),
                 b = _mm256_castsi256_ps(of_halves(two_points(book, at + 2), two_points(book, at + 6)));
    *first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    *second = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}
static inline void vb_points_of_8(const uint64_t *book, const uint16_t *at, vb *out) {
    eight_points(book, at, &out[0].a, &out[1].a);
    eight_points(book, at + 8, &out[0].b, &out[1].b);
}
static inline __m256i with_sign(__m256i x, __m256i signs, int byte, int part, int twice) {
    const __m256i places = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c)),
                  own = _mm256_shuffle_epi8(signs, _mm256_add_epi8(places, _mm256_set1_epi8((char)byte))),
                  bits = _mm256_set1_epi32((int)(0x08040201u << 4 * part)),
                  negative = _mm256_cmpeq_epi8(_mm256_and_si256(own, bits), bits);
    return _mm256_blendv_epi8(x, _mm256_sub_epi8(_mm256_set1_epi8((char)twice), x), negative);
}
static inline vb vb_signed(vb x, vb signs, int byte, int part, int twice) {
    return (vb){with_sign(x.a, signs.a, byte, part, twice), with_sign(x.b, signs.b, byte, part, twice)};
}
static inline __m256i less_where(__m256i x, __m256i y, int bits, uint8_t less) {
    const __m256i all = _mm256_set1_epi32(bits), lanes = _mm256_cmpeq_epi32(_mm256_and_si256(y, all), all);
    return _mm256_sub_epi8(x, _mm256_and_si256(lanes, _mm256_set1_epi8((char)less)));
}
static inline vb vb_less_where(vb x, vi y, int bit, uint8_t less) {
    return (vb){less_where(x.a, y.a, bit, less), less_where(x.b, y.b, bit, less)};
}
static const uint8_t trit_powers[5] = {1, 3, 9, 27, 81};
/* Even and odd bytes in the upper halves of words, whose lower halves the products do not reach. */
static inline __m256i trit_of(__m256i x, int n) {
    const __m256i power = _mm256_set1_epi16(trit_powers[n]), three = _mm256_set1_epi16(3);
    __m256i even = _mm256_slli_epi16(x, 8), odd = _mm256_and_si256(x, _mm256_set1_epi16((short)0xff00));
    even = _mm256_mulhi_epu16(_mm256_mullo_epi16(even, power), three);
    odd = _mm256_mulhi_epu16(_mm256_mullo_epi16(odd, power), three);
    return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
}
static inline vb vb_trit(vb x, int n) { return (vb){trit_of(x.a, n), trit_of(x.b, n)}; }

static inline __m256i broadcast_four(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, sizeof word);
    return _mm256_set1_epi32(word);
}
static inline __m256i pairs_to_ints(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Forces the sums to be computed here: gcc would postpone all of them to the end, with every product on the stack. */
static inline vi materialize(vi s) {
    __asm__("" : "+x"(s.a), "+x"(s.b));
    return s;
}
/* Two vectors' products as 16 sums of 16 bits: a pair of products is at most 2 * 63 * 127, two stay below 2^15. */
static inline __m256i dot_pairs(__m256i a, __m256i xa, __m256i b, __m256i xb) {
    return _mm256_add_epi16(_mm256_maddubs_epi16(a, xa), _mm256_maddubs_epi16(b, xb));
}
/* maddubs needs one unsigned operand. Of numbers of 8 bits, q * x = |q| * (x with the sign of q); a pair is at most
 * 2 * 128 * 127 < 2^15. */
typedef struct {
    vb q, size;
} vw;
static inline vw vw_of(int bits, vb numbers) {
    if (bits != 8) return (vw){numbers, numbers};
    const vb q = vb_less(numbers, 128);
    return (vw){q, {_mm256_abs_epi8(q.a), _mm256_abs_epi8(q.b)}};
}
static inline __m256i dot_unsigned(__m256i q, __m256i x) { return pairs_to_ints(_mm256_maddubs_epi16(q, x)); }
static inline __m256i dot_signed(__m256i q, __m256i size, __m256i x) {
    return pairs_to_ints(_mm256_maddubs_epi16(size, _mm256_sign_epi8(x, q)));
}
/* Of fewer than 5 bits 16 sums of 16 bits each: eight pairs of at most 2 * 15 * 127 stay below 2^15, so they are
 * widened once. Else 8 sums of 32 bits. */
typedef vi vs;
enum { HALVES_AT_ONCE = 0, WIDE_SUMS = 0 };
static inline vs vs_zero(void) { return vi_set(0); }
static inline vs vs_dot(vs s, int bits, vw a, const int8_t *xa, vw b, const int8_t *xb) {
    const __m256i x = broadcast_four(xa), y = broadcast_four(xb);
    if (bits == 8) {
        s = materialize(vi_add(s, (vi){dot_signed(a.q.a, a.size.a, x), dot_signed(a.q.b, a.size.b, x)}));
        return materialize(vi_add(s, (vi){dot_signed(b.q.a, b.size.a, y), dot_signed(b.q.b, b.size.b, y)}));
    }
    if (bits == 7) { /* a pair is at most 2 * 127 * 127 < 2^15 */
        s = materialize(vi_add(s, (vi){dot_unsigned(a.q.a, x), dot_unsigned(a.q.b, x)}));
        return materialize(vi_add(s, (vi){dot_unsigned(b.q.a, y), dot_unsigned(b.q.b, y)}));
    }
    const vi pairs = {dot_pairs(a.q.a, x, b.q.a, y), dot_pairs(a.q.b, x, b.q.b, y)};
    if (bits < 5) return materialize((vi){_mm256_add_epi16(s.a, pairs.a), _mm256_add_epi16(s.b, pairs.b)});
    return materialize(vi_add(s, (vi){pairs_to_ints(pairs.a), pairs_to_ints(pairs.b)}));
}
static inline vi vs_end(vs s, int bits, int half, vi bias) {
    (void)half;
    if (bits == 8) return s;
    if (bits < 5) s = (vi){pairs_to_ints(s.a), pairs_to_ints(s.b)};
    return vi_add(s, bias);
}

#undef BOTH
#endif
