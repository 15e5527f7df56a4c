/* Elementary functions in double, Invar's own: the same bits on every machine and compiler (only +, *, fma, sqrt
 * and integer operations; no libm). For scalars - schedules, rotary tables, random normals, losses of a whole
 * step; kern has the vector forms in fp32. Errors are below 2 units in the last place in the ranges named unless
 * said otherwise. */
#ifndef BASE_FMATH_H
#define BASE_FMATH_H

double fmath_fma(double a, double b, double c); /* one rounding */
double fmath_sqrt(double x);                    /* IEEE, x >= 0 */
double fmath_exp(double x);                     /* [-700, 700]; below 0, above +infinity */
double fmath_log(double x);                     /* x > 0 normal */
double fmath_pow(double x, double y); /* x > 0: exp(y log x); relative error below 1e-13 for |y log x| < 100 */
double fmath_cos(double x);                     /* |x| < 1e9 */
double fmath_sin(double x);
/* sin and cos of 2 pi t, t in [0, 1). */
void fmath_sincos_turns(double t, double *sine, double *cosine);

#endif
