/* Elementary functions in double precision that give the same bits on every machine. Pure functions.
 *
 * The results of libm differ in the last bit between its variants for different processors. These functions use only
 * operations that IEEE 754 rounds correctly (+ - * / and comparisons), in a fixed order. The relative error is below
 * 1e-14 in the ranges given. They are too slow for inner loops. Method: argument reduction of Cody and Waite, Taylor
 * series. */
#ifndef SN_BASE_MATH_H
#define SN_BASE_MATH_H

double sn_exp(double x);                                /* |x| <= 700; saturates beyond */
double sn_ln(double x);                                 /* x > 0 and normal */
double sn_pow(double base, double exponent);            /* base > 0 */
void sn_sincos(double x, double *sine, double *cosine); /* |x| <= 1e8 */

#endif
