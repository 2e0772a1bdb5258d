/* fmath_poly.h - the constants of the f32 functions in fmath.c. They stand here so that vector
 * kernels repeat the functions with the same numbers. Polynomials are minimax fits, rounded to f32
 * coefficient by coefficient; the comment gives the interval. */
#ifndef CLB_BASE_FMATH_POLY_H
#define CLB_BASE_FMATH_POLY_H

#define CLB_LN2_HI 0x1.62e430p-1f /* ln 2 = hi + lo */
#define CLB_LN2_LO -0x1.05c610p-29f
#define CLB_LOG2E  0x1.715476p+0f

/* exp(r) = 1 + r + r^2 (C0 + C1 r + ...), |r| <= ln(2)/2. The last finite result is at EXP_MAX. */
#define CLB_EXP_MIN -87.3f
#define CLB_EXP_MAX 0x1.62e42ep+6f
#define CLB_EXP_C0  0x1.fffffcp-2f
#define CLB_EXP_C1  0x1.555492p-3f
#define CLB_EXP_C2  0x1.5558b2p-5f
#define CLB_EXP_C3  0x1.12398ep-7f
#define CLB_EXP_C4  0x1.6a4b36p-10f

/* tanh(a) = a + a z (C0 + C1 z + ...), z = a^2, 0 <= a < TANH_SMALL */
#define CLB_TANH_SMALL 0.625f
#define CLB_TANH_C0    -0x1.555554p-2f
#define CLB_TANH_C1    0x1.11107ap-3f
#define CLB_TANH_C2    -0x1.b9f18ap-5f
#define CLB_TANH_C3    0x1.63a57ep-6f
#define CLB_TANH_C4    -0x1.0c6020p-7f
#define CLB_TANH_C5    0x1.1a2e3ep-9f

/* erf(a) = a + a (C0 + C1 z + ...), z = a^2, 0 <= a < ERF_SMALL */
#define CLB_ERF_SMALL 0.92f
#define CLB_ERF_C0    0x1.06eba8p-3f
#define CLB_ERF_C1    -0x1.812740p-2f
#define CLB_ERF_C2    0x1.ce2d64p-4f
#define CLB_ERF_C3    -0x1.b8011ap-6f
#define CLB_ERF_C4    0x1.544a1ap-8f
#define CLB_ERF_C5    -0x1.a60a2ep-11f
#define CLB_ERF_C6    0x1.4f675ep-14f

/* erfc(t) = exp(-t (C0 + C1 t + ...)), ERF_SMALL <= t <= 4; erf(4) rounds to 1 */
#define CLB_ERFC_C0 0x1.20e8c4p+0f
#define CLB_ERFC_C1 0x1.4570b2p-1f
#define CLB_ERFC_C2 0x1.af2792p-4f
#define CLB_ERFC_C3 -0x1.737c5ap-6f
#define CLB_ERFC_C4 0x1.8004bep-9f
#define CLB_ERFC_C5 -0x1.9ec9dap-15f
#define CLB_ERFC_C6 -0x1.7ea1cep-15f
#define CLB_ERFC_C7 0x1.4b9a58p-18f

#define CLB_RSQRT2    0x1.6a09e6p-1f /* 1 / sqrt(2) */
#define CLB_SQRT2_PI  0x1.988454p-1f /* sqrt(2 / pi) */
#define CLB_GELU_CUBE 0.044715f

#endif
