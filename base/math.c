#include "base/math.h"

#include <stdint.h>
#include <string.h>

/* ln 2 in two parts: n * LN2_HIGH is exact for |n| < 2^20. */
static const double LN2_HIGH = 0x1.62e42fee00000p-1, LN2_LOW = 0x1.a39ef35793c76p-33;

static double round_to_nearest(double x) { /* rounds to the nearest integer, |x| < 2^51 */
    double magic = 0x1.8p52;
    /* this sum must be rounded to double: volatile keeps the compiler from optimising it away */
    volatile double sum = x + magic;
    return sum - magic;
}

static double times_power_of_two(double x, int n) { /* n: within the exponents of normal numbers */
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double factor;
    memcpy(&factor, &bits, sizeof factor);
    return x * factor;
}

double sn_exp(double x) {
    if (x > 700) x = 700;
    if (x < -700) x = -700;
    double n = round_to_nearest(x / (LN2_HIGH + LN2_LOW));
    double r = (x - n * LN2_HIGH) - n * LN2_LOW; /* |r| <= ln2 / 2 */
    double sum = 1;
    for (int k = 16; k >= 1; k--) sum = 1 + r * sum / k;
    return times_power_of_two(sum, (int)n);
}

double sn_ln(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int n = (int)(bits >> 52 & 2047) - 1023;
    double m = times_power_of_two(x, -n); /* 1 <= m < 2 */
    if (m > 1.4142135623730951) {
        m /= 2;
        n++;
    }
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0; /* log m = 2 atanh t */
    for (int k = 25; k >= 1; k -= 2) sum = 1.0 / k + t2 * sum;
    return n * LN2_HIGH + (2 * t * sum + n * LN2_LOW);
}

double sn_pow(double base, double exponent) { return sn_exp(exponent * sn_ln(base)); }

void sn_sincos(double x, double *sine, double *cosine) {
    /* pi / 2 in three parts of 33 bits: n * part is exact for n < 2^20, and precise enough beyond for |x| <= 1e8. */
    static const double P1 = 0x1.921fb54400000p0, P2 = 0x1.0b4611a600000p-34, P3 = 0x1.3198a2e037073p-69;
    double n = round_to_nearest(x / (P1 + P2));
    double r = ((x - n * P1) - n * P2) - n * P3, r2 = r * r;
    double s = 1, c = 1; /* Taylor series in Horner form, |r| <= pi / 4 */
    for (int k = 10; k >= 1; k--) {
        s = 1 - r2 * s / ((2 * k) * (2 * k + 1));
        c = 1 - r2 * c / ((2 * k - 1) * (2 * k));
    }
    s *= r;
    int64_t quadrant = (int64_t)n & 3;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}
