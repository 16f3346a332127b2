#include "client/generate/logprob.h"

#include "base/math.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 16 }; /* values in one step of a loop, so that compilers make vector code */

/* sn_exp of base/math.h in a form that compilers turn into vector code: coefficients instead of divisions, and 2^n made
 * from the bits that the rounding with MAGIC leaves. -700 <= x <= 0. */
static inline __attribute__((always_inline)) double exp_negative(double x) {
    static const double MAGIC = 0x1.8p52, INV_LN2 = 0x1.71547652b82fep0;
    static const double LN2_HIGH = 0x1.62e42fee00000p-1, LN2_LOW = 0x1.a39ef35793c76p-33;
    static const double C[] = {
        1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
        1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    double shifted = x * INV_LN2 + MAGIC, n = shifted - MAGIC;
    double r = (x - n * LN2_HIGH) - n * LN2_LOW; /* |r| <= ln2 / 2 */
    double sum = C[13];
    for (int k = 12; k >= 0; k--) sum = C[k] + r * sum;
    uint64_t power, bits;
    memcpy(&power, &shifted, sizeof power);
    memcpy(&bits, &sum, sizeof bits);
    bits += power << 52; /* the low bits of `shifted` are n: add it to the exponent */
    memcpy(&sum, &bits, sizeof sum);
    return sum;
}

static inline __attribute__((always_inline)) double weight(float logit, double top, double temperature) {
    double x = ((double)logit - top) / temperature;
    return exp_negative(x < -700 ? -700 : x);
}

/* -- loops over a row, compiled for several instruction sets. Wider vectors give the same bits: every operation rounds
 * by itself, and a sum is 16 partial sums, by index modulo 16, added as a tree. */

static double tree_sum(double part[16]) {
    for (size_t half = 8; half; half /= 2)
        for (size_t lane = 0; lane < half; lane++) part[lane] += part[lane + half];
    return part[0];
}

#define INLINE static inline __attribute__((always_inline))

/* The greatest value of the row without NaN; -infinity for an empty row. *bad: there is a NaN or +infinity. */
INLINE float row_greatest(const float *logits, size_t n, bool *bad) {
    float top[LANES];
    int odd[LANES] = {0};
    size_t whole = n / LANES * LANES;
    for (int lane = 0; lane < LANES; lane++) top[lane] = -INFINITY;
    for (size_t i = 0; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float x = logits[i + (size_t)lane];
            odd[lane] |= !(x < INFINITY);
            top[lane] = x > top[lane] ? x : top[lane];
        }
    for (size_t i = whole; i < n; i++) {
        odd[0] |= !(logits[i] < INFINITY);
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
    }
    *bad = odd[0];
    for (int lane = 1; lane < LANES; lane++) {
        *bad |= odd[lane];
        top[0] = top[lane] > top[0] ? top[lane] : top[0];
    }
    return top[0];
}

/* Index of the first occurrence of a value that the row contains. */
INLINE size_t row_index_of(const float *logits, size_t n, float value) {
    size_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        int here = 0;
        for (size_t lane = 0; lane < LANES; lane++) here |= logits[i + lane] == value;
        if (here) break;
    }
    while (logits[i] != value) i++;
    return i;
}

/* The first of the greatest values. False: there is a NaN or +infinity, or all are -infinity. */
INLINE bool argmax_row(const float *logits, size_t n, int32_t *id) {
    bool bad;
    float top = row_greatest(logits, n, &bad);
    if (bad || !(top > -INFINITY)) return false;
    *id = (int32_t)row_index_of(logits, n, top);
    return true;
}

INLINE void exp_row(const float *logits, size_t n, double top, double temperature, double *out) {
    for (size_t i = 0; i < n; i++) out[i] = weight(logits[i], top, temperature);
}

INLINE double sum_row(const float *logits, size_t n, double top) {
    double part[16] = {0};
    size_t whole = n / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t lane = 0; lane < 16; lane++) part[lane] += weight(logits[i + lane], top, 1);
    for (size_t i = whole; i < n; i++) part[i - whole] += weight(logits[i], top, 1);
    return tree_sum(part);
}

INLINE double exp_sum_row(const float *logits, size_t n, double top, double *out) {
    double part[16] = {0};
    exp_row(logits, n, top, 1, out);
    size_t whole = n / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t lane = 0; lane < 16; lane++) part[lane] += out[i + lane];
    for (size_t i = whole; i < n; i++) part[i - whole] += out[i];
    return tree_sum(part);
}

typedef struct loops {
    bool (*argmax)(const float *logits, size_t n, int32_t *id);
    void (*exp)(const float *logits, size_t n, double top, double temperature, double *out);
    double (*sum)(const float *logits, size_t n, double top);
    double (*exp_sum)(const float *logits, size_t n, double top, double *out);
} loops;

/* `target` is an attribute, which parentheses would break. NOLINTBEGIN(bugprone-macro-parentheses) */
#define LOOPS(name, target)                                                                                            \
    target static bool argmax_##name(const float *logits, size_t n, int32_t *id) { return argmax_row(logits, n, id); } \
    target static void exp_##name(const float *logits, size_t n, double top, double temperature, double *out) {        \
        exp_row(logits, n, top, temperature, out);                                                                     \
    }                                                                                                                  \
    target static double sum_##name(const float *logits, size_t n, double top) { return sum_row(logits, n, top); }     \
    target static double exp_sum_##name(const float *logits, size_t n, double top, double *out) {                      \
        return exp_sum_row(logits, n, top, out);                                                                       \
    }                                                                                                                  \
    static const loops name = {argmax_##name, exp_##name, sum_##name, exp_sum_##name};

/* NOLINTEND(bugprone-macro-parentheses) */
LOOPS(plain, )
#if defined(__x86_64__)
LOOPS(avx2, __attribute__((target("avx2"))))
LOOPS(avx512, __attribute__((target("avx512f,avx512dq"))))
#endif

static const loops *loops_best(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return &avx512;
    if (__builtin_cpu_supports("avx2")) return &avx2;
#endif
    return &plain;
}

sn_status sn_logits_argmax(const float *logits, size_t n, int32_t *id, sn_err *err) {
    if (loops_best()->argmax(logits, n, id)) return SN_OK;
    return sn_fail(
        err, SN_RETRY,
        "the logits are not finite (NaN or infinity), so no token can be chosen: a node or the model file is faulty");
}

void sn_logits_exp(const float *logits, size_t n, double top, double temperature, double *out) {
    loops_best()->exp(logits, n, top, temperature, out);
}

double sn_logits_sum_exp(const float *logits, size_t n, double top) { return loops_best()->sum(logits, n, top); }

double sn_logits_exp_and_sum(const float *logits, size_t n, double top, double *out) {
    return loops_best()->exp_sum(logits, n, top, out);
}

double sn_logits_logprob(const float *logits, size_t n, double top, int32_t id) {
    return ((double)logits[id] - top) - sn_ln(sn_logits_sum_exp(logits, n, top));
}

void sn_logits_top(const float *logits, size_t n, double top, size_t n_top, int32_t *ids, double *logprobs) {
    size_t found = 0;
    for (size_t id = 0; id < n && n_top; id++) {
        if (found == n_top && !(logits[id] > logits[ids[found - 1]])) continue;
        size_t at = found < n_top ? found++ : found - 1;
        for (; at && logits[id] > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)id;
    }
    if (!n_top) return;
    double log_sum = sn_logits_logprob(logits, n, top, ids[0]) - (double)logits[ids[0]];
    for (size_t i = 0; i < found; i++) logprobs[i] = (double)logits[ids[i]] + log_sum;
}
