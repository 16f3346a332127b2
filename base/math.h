/* Elementary functions in double precision that give the same bits on every machine.
 *
 * libm's own differ in the last bit between its variants for different processors; these use only operations that IEEE 754
 * rounds correctly (+ - * / and comparisons), in a fixed order. Error below 1e-14 relative in the ranges given; not for
 * inner loops. Method: Cody and Waite's argument reduction, Taylor series. */
#ifndef SN_BASE_MATH_H
#define SN_BASE_MATH_H

double sn_exp(double x);                                   /* |x| <= 700; saturates beyond */
double sn_ln(double x);                                    /* x > 0, normal */
double sn_pow(double base, double exponent);               /* base > 0 */
void sn_sincos(double x, double *sine, double *cosine);    /* |x| <= 1e8 */

#endif
