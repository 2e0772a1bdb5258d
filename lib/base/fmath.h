/* fmath.h - elementary functions made of IEEE operations only (+, -, *, /, fma, rint, sqrt, bit
 * moves), so that they give the same bits on every machine. Vector kernels repeat them operation by
 * operation (kernels/README.md). Accuracy is tested against libm. */
#ifndef CLB_BASE_FMATH_H
#define CLB_BASE_FMATH_H

#include <stddef.h>

/* f32, <= 2 ulp (erf, tanh, sigmoid, silu: <= 4; gelu: 2^-22 |x|). exp(0) is 1 and exp(-inf) is 0
 * exactly; exp of less than -87.3 is 0 (no subnormal results); overflow is +inf; NaN stays NaN. */
float clb_expf(float x);
void clb_expf_inside(float *x, size_t n); /* the same of each, in place; all from -87.3 to 88.7 */
float clb_logf(float x);     /* x > 0; 0 gives -inf, negative NaN */
float clb_tanhf(float x);
float clb_erff(float x);
float clb_sigmoidf(float x); /* 1 / (1 + exp(-x)) */
float clb_siluf(float x);    /* x / (1 + exp(-x)) */
float clb_geluf(float x);    /* x/2 (1 + erf(x / sqrt 2)) */
float clb_gelu_tanhf(float x);

/* double, <= 2 ulp (pow: while |y log x| <= 64; sin and cos: |x| < 1e9, NaN beyond) */
double clb_exp(double x);
double clb_log(double x);
double clb_pow(double x, double y); /* x > 0 */
void clb_sincos(double x, double *sine, double *cosine);

#endif
