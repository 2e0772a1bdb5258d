/* fmath.c - elementary functions from IEEE operations only, the same bits on every machine.
 *
 * The f32 functions are written so that a vector kernel can repeat them operation by operation:
 * where a branch chooses between two formulas, the vector computes both and blends. Horner's
 * scheme throughout, with fma. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/fmath.h"
#include "lib/base/fmath_poly.h"
#include "lib/base/half.h"

/* -- f32 ----------------------------------------------------------------------------------- */

/* CLB_EXP_MIN <= x <= CLB_EXP_MAX */
static inline __attribute__((always_inline)) float expf_inside(float x)
{
    float n = rintf(x * CLB_LOG2E);
    float r = fmaf(n, -CLB_LN2_HI, x);
    r = fmaf(n, -CLB_LN2_LO, r);

    float p = fmaf(CLB_EXP_C4, r, CLB_EXP_C3);
    p = fmaf(p, r, CLB_EXP_C2);
    p = fmaf(p, r, CLB_EXP_C1);
    p = fmaf(p, r, CLB_EXP_C0);
    p = fmaf(p, r * r, r) + 1.0f;
    /* Times 2^n by adding to the exponent: inside the limits it stays 1..254. */
    return clb_f32_from_bits(clb_f32_bits(p) + ((uint32_t)(int32_t)n << 23));
}

static inline __attribute__((always_inline)) float expf_of(float x)
{
    if (!(x >= CLB_EXP_MIN))
        return x != x ? x : 0.0f;
    return x > CLB_EXP_MAX ? INFINITY : expf_inside(x);
}

#if defined(__x86_64__)
/* The same operations; fma and rint are instructions, not calls of the C library. */
__attribute__((target("fma"))) static float expf_fma(float x)
{
    return expf_of(x);
}
#endif

float clb_expf(float x)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma"))
        return expf_fma(x);
#endif
    return expf_of(x);
}

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#else
#define WIDE
#endif

/* Blocks of a fixed size and no branch: compilers make vectors of it. */
WIDE static void expf_blocks(float *x, size_t n)
{
    enum { AT_ONCE = 16 };
    size_t i = 0;

    for (; n - i >= AT_ONCE; i += AT_ONCE)
        for (int k = 0; k < AT_ONCE; k++)
            x[i + k] = expf_inside(x[i + k]);
    for (; i < n; i++)
        x[i] = expf_inside(x[i]);
}

void clb_expf_inside(float *x, size_t n)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        for (size_t i = 0; i < n; i++)
            x[i] = clb_expf(x[i]);
        return;
    }
#endif
    expf_blocks(x, n);
}

/* x = m 2^k with sqrt(1/2) <= m < sqrt(2); log x = f - f^2/2 + f^3 P(f) + k ln 2, f = m - 1 */
float clb_logf(float x)
{
    static const float c[] = { 0x1.555548p-2f,  -0x1.000006p-2f, 0x1.99a478p-3f,
                               -0x1.555c4ep-3f, 0x1.233b78p-3f,  -0x1.fc26acp-4f,
                               0x1.e6c03ep-4f,  -0x1.de1004p-4f, 0x1.1484e8p-4f };
    int k = 0;

    if (x != x || x < 0)
        return NAN;
    if (x == 0)
        return -INFINITY;
    if (x == INFINITY)
        return x;
    if (x < 0x1p-126f) {
        x *= 0x1p24f;
        k = -24;
    }
    uint32_t bits = clb_f32_bits(x) - 0x3f3504f3u; /* from sqrt(1/2) up */
    k += (int32_t)bits >> 23;
    float f = clb_f32_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;

    float p = c[8];
    for (int i = 7; i >= 0; i--)
        p = fmaf(p, f, c[i]);
    float z = f * f;
    float tail = fmaf(p, z * f, (float)k * CLB_LN2_LO);
    tail = fmaf(-0.5f, z, tail);
    return fmaf((float)k, CLB_LN2_HI, f + tail);
}

float clb_tanhf(float x)
{
    float a = fabsf(x), r;

    if (a < CLB_TANH_SMALL) {
        float z = a * a;
        float p = fmaf(CLB_TANH_C5, z, CLB_TANH_C4);
        p = fmaf(p, z, CLB_TANH_C3);
        p = fmaf(p, z, CLB_TANH_C2);
        p = fmaf(p, z, CLB_TANH_C1);
        p = fmaf(p, z, CLB_TANH_C0);
        r = fmaf(p * z, a, a);
    } else {
        r = 1.0f - 2.0f / (clb_expf(a + a) + 1.0f);
    }
    return copysignf(r, x);
}

float clb_erff(float x)
{
    float a = fabsf(x), r;

    if (a < CLB_ERF_SMALL) {
        float z = a * a;
        float p = fmaf(CLB_ERF_C6, z, CLB_ERF_C5);
        p = fmaf(p, z, CLB_ERF_C4);
        p = fmaf(p, z, CLB_ERF_C3);
        p = fmaf(p, z, CLB_ERF_C2);
        p = fmaf(p, z, CLB_ERF_C1);
        p = fmaf(p, z, CLB_ERF_C0);
        r = fmaf(p, a, a);
    } else {
        float t = a > 4.0f ? 4.0f : a; /* NaN stays */
        float p = fmaf(CLB_ERFC_C7, t, CLB_ERFC_C6);
        p = fmaf(p, t, CLB_ERFC_C5);
        p = fmaf(p, t, CLB_ERFC_C4);
        p = fmaf(p, t, CLB_ERFC_C3);
        p = fmaf(p, t, CLB_ERFC_C2);
        p = fmaf(p, t, CLB_ERFC_C1);
        p = fmaf(p, t, CLB_ERFC_C0);
        r = 1.0f - clb_expf(-t * p);
    }
    return copysignf(r, x);
}

float clb_sigmoidf(float x)
{
    return 1.0f / (1.0f + clb_expf(-x));
}

float clb_siluf(float x)
{
    return x / (1.0f + clb_expf(-x));
}

float clb_geluf(float x)
{
    return (0.5f * x) * (1.0f + clb_erff(x * CLB_RSQRT2));
}

float clb_gelu_tanhf(float x)
{
    float inner = CLB_SQRT2_PI * fmaf((x * x) * CLB_GELU_CUBE, x, x);
    return (0.5f * x) * (1.0f + clb_tanhf(inner));
}

/* -- double -------------------------------------------------------------------------------- */

#define LN2_HI 0x1.62e42fefa39efp-1
#define LN2_LO 0x1.abc9e3b39803fp-56

static double from_bits(uint64_t b)
{
    double d;
    memcpy(&d, &b, 8);
    return d;
}

static uint64_t to_bits(double d)
{
    uint64_t b;
    memcpy(&b, &d, 8);
    return b;
}

/* 2^n for normal results */
static double power_of_two(int n)
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

/* exp(x + low), |low| far below 1 */
static double exp_sum(double x, double low)
{
    static const double inverse_factorial[] = {
        1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
        1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0,
    };

    if (x != x)
        return x;
    if (x > 709.79)
        return INFINITY;
    if (x < -745.2)
        return 0.0;

    double n = rint(x * 0x1.71547652b82fep+0);
    double r = fma(n, -LN2_HI, x);
    double rest = fma(n, -LN2_LO, low);
    double p = inverse_factorial[11];
    for (int i = 10; i >= 0; i--)
        p = fma(p, r, inverse_factorial[i]);
    /* exp(r + rest) = exp(r) + exp(r) rest, with exp(r) = 1 + q */
    double z = r * r, q = fma(p, z, r);
    double y = 1.0 + (r + fma(p, z, fma(rest, q, rest)));
    int half = (int)n / 2; /* in two steps: 2^1024 and 2^-1074 are not normal numbers */
    return y * power_of_two(half) * power_of_two((int)n - half);
}

double clb_exp(double x)
{
    return exp_sum(x, 0.0);
}

/* log x = hi + lo for finite x > 0: with m = x / 2^k and s = (m - 1) / (m + 1),
 * log x = k ln 2 + 2 s + s^3 (2/3 + 2/5 s^2 + ...) */
static void log_sum(double x, double *hi, double *lo)
{
    int k = 0;

    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t bits = to_bits(x) - 0x3fe6a09e667f3bcdull; /* from sqrt(1/2) up */
    k += (int)((int64_t)bits >> 52);
    double m = from_bits((bits & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);

    double f = m - 1.0, g = m + 1.0;
    double g_low = m - (g - 1.0);
    double s = f / g;
    double s_low = (fma(-s, g, f) - s * g_low) / g;
    double z = s * s, p = 2.0 / 23;
    for (int i = 21; i >= 3; i -= 2)
        p = fma(p, z, 2.0 / i);

    double kln2 = k * LN2_HI, twice = s + s;
    double kln2_low = fma(k, LN2_HI, -kln2) + k * LN2_LO;
    double sum = kln2 + twice; /* |kln2| is 0 or the larger of the two */
    double tail = (twice - (sum - kln2)) + kln2_low + fma(s * z, p, s_low + s_low);
    *hi = sum + tail;
    *lo = tail - (*hi - sum);
}

double clb_log(double x)
{
    double hi, lo;

    if (x != x || x < 0)
        return NAN;
    if (x == 0)
        return -INFINITY;
    if (x == INFINITY)
        return x;
    log_sum(x, &hi, &lo);
    return hi;
}

double clb_pow(double x, double y)
{
    double hi, lo;

    if (!(x > 0 && x < INFINITY))
        return clb_exp(y * clb_log(x));
    log_sum(x, &hi, &lo);
    double product = y * hi;
    if (!(fabs(product) < 800)) /* overflow, underflow, NaN */
        return clb_exp(product);
    return exp_sum(product, fma(y, hi, -product) + y * lo);
}

/* sin and cos of r + low, |r| <= pi/4, by their Taylor series */
static double sin_kernel(double r, double low)
{
    static const double c[] = { -1.0 / 6,
                                1.0 / 120,
                                -1.0 / 5040,
                                1.0 / 362880,
                                -1.0 / 39916800,
                                1.0 / 6227020800.0,
                                -1.0 / 1307674368000.0,
                                1.0 / 355687428096000.0 };
    double z = r * r, p = c[7];

    for (int i = 6; i >= 0; i--)
        p = fma(p, z, c[i]);
    return r + fma(p, z * r, low * (1.0 - 0.5 * z));
}

static double cos_kernel(double r, double low)
{
    static const double c[] = { 1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0,
                                -1.0 / 6402373705728000.0 };
    double z = r * r, p = c[7];

    for (int i = 6; i >= 0; i--)
        p = fma(p, z, c[i]);
    double half = 0.5 * z, w = 1.0 - half;
    double w_low = (1.0 - w) - half + fma(r, r, -z) * -0.5;
    return w + (w_low + fma(p, z * z, -r * low));
}

void clb_sincos(double x, double *sine, double *cosine)
{
    if (!(fabs(x) < 1e9)) {
        *sine = *cosine = NAN;
        return;
    }
    /* x - n pi/2 with pi/2 in three parts of 53 bits; the first difference is exact. */
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double a = fma(n, -0x1.921fb54442d18p+0, x);
    double b = n * -0x1.1a62633145c07p-54;
    double b_low = fma(n, -0x1.1a62633145c07p-54, -b);
    double r = a + b, back = r - a;
    double low = ((a - (r - back)) + (b - back)) + b_low;
    low = fma(n, 0x1.f1976b7ed8fbcp-110, low);
    double sum = r + low; /* |r| may be small: renormalise */
    low = low - (sum - r);
    r = sum;

    double s = sin_kernel(r, low), c = cos_kernel(r, low);
    int64_t quadrant = (int64_t)n & 3;
    double sin_abs = quadrant & 1 ? c : s, cos_abs = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -sin_abs : sin_abs;
    *cosine = quadrant == 1 || quadrant == 2 ? -cos_abs : cos_abs;
}
