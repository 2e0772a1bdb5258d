/* lib/base/fmath against libm: f32 functions over a dense sweep of bit patterns compared with the
 * double function, double functions compared with long double ones. */
#include <math.h>
#include <stdint.h>

#include "lib/base/fmath.h"
#include "lib/base/half.h"
#include "test/check.h"

static double ulp_of(double want)
{
    int e;
    frexp(want, &e);
    return ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

/* Worst error in ulp over the floats of [from, to] (same sign), every `step`-th bit pattern. */
static double worst_in(float (*f)(float), double (*ref)(double), float from, float to,
                       uint32_t step)
{
    double worst = 0;
    for (uint32_t b = clb_f32_bits(from); b <= clb_f32_bits(to); b += step) {
        float x = clb_f32_from_bits(b);
        double want = ref(x), e = fabs(f(x) - want) / ulp_of(want);
        if (!(e <= worst))
            worst = e;
        if (!(e <= 8)) {
            printf("# x = %a: %a, not %a\n", x, f(x), want);
            return 1e9;
        }
    }
    return worst;
}

static double worst_both(float (*f)(float), double (*ref)(double), float from, float to)
{
    double a = worst_in(f, ref, from, to, 397), b = worst_in(f, ref, -from, -to, 397);
    return a > b ? a : b;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void f32_functions_are_close_to_libm(void)
{
    double worst_exp = worst_in(clb_expf, exp, 0x1p-40f, 88.7228f, 397);
    double worst_neg = worst_in(clb_expf, exp, -0x1p-40f, -87.29f, 397);
    double worst_log = worst_in(clb_logf, log, 0x1p-149f, 0x1.fffffep127f, 997);
    double near_one = worst_in(clb_logf, log, 0.9f, 1.1f, 1);
    double worst_tanh = worst_both(clb_tanhf, tanh, 0x1p-126f, 20.0f);
    double worst_erf = worst_both(clb_erff, erf, 0x1p-126f, 20.0f);
    double worst_sigmoid = worst_both(clb_sigmoidf, sigmoid, 0x1p-40f, 87.2f);
    double worst_silu = worst_both(clb_siluf, silu, 0x1p-60f, 80.0f);

    printf("# ulp: exp %.2f %.2f, log %.2f %.2f, tanh %.2f, erf %.2f, sigmoid %.2f, silu %.2f\n",
           worst_exp, worst_neg, worst_log, near_one, worst_tanh, worst_erf, worst_sigmoid,
           worst_silu);
    CHECK(worst_exp <= 2);
    CHECK(worst_neg <= 2);
    CHECK(worst_log <= 2);
    CHECK(near_one <= 2);
    CHECK(worst_tanh <= 4);
    CHECK(worst_erf <= 4);
    CHECK(worst_sigmoid <= 3);
    CHECK(worst_silu <= 3);
}

/* The negative tail of gelu is a difference of nearly equal numbers: the error is bounded by
 * |x|. */
static void gelu_is_close(void)
{
    double worst = 0, worst_tanh = 0;

    for (int i = -400000; i <= 400000; i++) {
        float x = (float)i * 0x1.1p-15f;
        double exact = 0.5 * x * (1 + erf(x * sqrt(0.5)));
        double approx = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        double scale = 0x1p-24 * fabs(x) + 1e-30;
        double e = fabs(clb_geluf(x) - exact) / scale, t = fabs(clb_gelu_tanhf(x) - approx) / scale;
        worst = e > worst ? e : worst;
        worst_tanh = t > worst_tanh ? t : worst_tanh;
    }
    printf("# gelu %.3f, gelu_tanh %.3f of 2^-24 |x|\n", worst, worst_tanh);
    CHECK(worst <= 4);
    CHECK(worst_tanh <= 4);
}

static void special_values_are_exact(void)
{
    CHECK(clb_expf(0.0f) == 1.0f);
    CHECK(clb_expf(-0.0f) == 1.0f);
    CHECK(clb_expf(-INFINITY) == 0.0f);
    CHECK(!signbit(clb_expf(-INFINITY)));
    CHECK(clb_expf(-87.4f) == 0.0f);
    CHECK(clb_expf(-87.3f) > 0x1p-126f);
    CHECK(clb_expf(88.8f) == INFINITY);
    CHECK(clb_expf(0x1.62e42ep+6f) < INFINITY);
    CHECK(clb_expf(INFINITY) == INFINITY);
    CHECK(isnan(clb_expf(NAN)));
    CHECK(clb_logf(1.0f) == 0.0f);
    CHECK(clb_logf(0.0f) == -INFINITY);
    CHECK(isnan(clb_logf(-1.0f)));
    CHECK(clb_logf(INFINITY) == INFINITY);
    CHECK(clb_tanhf(INFINITY) == 1.0f && clb_tanhf(-50.0f) == -1.0f);
    CHECK(signbit(clb_tanhf(-0.0f)) && clb_tanhf(-0.0f) == 0);
    CHECK(clb_erff(INFINITY) == 1.0f && clb_erff(-INFINITY) == -1.0f);
    CHECK(isnan(clb_erff(NAN)) && isnan(clb_tanhf(NAN)) && isnan(clb_siluf(NAN)));
    CHECK(clb_sigmoidf(-100.0f) == 0.0f && clb_sigmoidf(100.0f) == 1.0f);
    CHECK(clb_siluf(100.0f) == 100.0f && clb_siluf(0.0f) == 0.0f);
    CHECK(clb_geluf(0.0f) == 0.0f && clb_geluf(50.0f) == 50.0f && clb_geluf(-50.0f) == 0.0f);
}

static double ulp_error(double got, long double want)
{
    int e;
    frexpl(want, &e);
    return (double)(fabsl(got - want) / ldexpl(1, (e < -1021 ? -1021 : e) - 53));
}

static uint64_t seed = 88172645463325252ull;

static double uniform(double from, double to)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return from + (to - from) * (double)(seed >> 11) * 0x1p-53;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void double_functions_are_close_to_libm(void)
{
    double worst_exp = 0, worst_log = 0, worst_pow = 0, worst_trig = 0;

    for (int i = 0; i < 200000; i++) {
        double s, c, x = uniform(-700, 700);
        worst_exp = larger(worst_exp, ulp_error(clb_exp(x), expl(x)));
        x = i & 1 ? uniform(0.5, 2) : ldexp(uniform(1, 2), (int)uniform(-1060, 1000));
        worst_log = larger(worst_log, ulp_error(clb_log(x), logl(x)));
        x = uniform(1, 1e7);
        double y = uniform(-3, 3);
        worst_pow = larger(worst_pow, ulp_error(clb_pow(x, y), powl(x, y)));
        x = i & 1 ? uniform(-1e9, 1e9) : uniform(-30, 30);
        clb_sincos(x, &s, &c);
        worst_trig = larger(worst_trig, ulp_error(s, sinl(x)));
        worst_trig = larger(worst_trig, ulp_error(c, cosl(x)));
    }
    printf("# ulp: exp %.2f, log %.2f, pow %.2f, sin and cos %.2f\n", worst_exp, worst_log,
           worst_pow, worst_trig);
    CHECK(worst_exp <= 2);
    CHECK(worst_log <= 2);
    CHECK(worst_pow <= 2);
    CHECK(worst_trig <= 2);
}

/* Where the reduction cancels most; glibc's double functions reduce exactly. */
static void sincos_near_multiples_of_a_right_angle(void)
{
    double worst = 0;

    for (int64_t n = 1; n < 636000000; n += 1 + n / 50) {
        double x = (double)n * M_PI_2;
        for (int k = -1; k <= 1; k++) {
            double s, c, v = k < 0 ? nextafter(x, 0) : k > 0 ? nextafter(x, 1e30) : x;
            clb_sincos(v, &s, &c);
            worst = larger(worst, ulp_error(s, sin(v)));
            worst = larger(worst, ulp_error(c, cos(v)));
        }
    }
    printf("# %.3f ulp\n", worst);
    CHECK(worst <= 2);
}

static void double_special_values_are_exact(void)
{
    double s, c;

    CHECK(clb_exp(0) == 1 && clb_exp(-INFINITY) == 0 && clb_exp(INFINITY) == INFINITY);
    CHECK(clb_exp(-745) == 0x1p-1074);
    CHECK(isfinite(clb_exp(709.78)) && isinf(clb_exp(709.79)));
    CHECK(clb_log(1) == 0 && clb_log(0) == -INFINITY && isnan(clb_log(-2)));
    CHECK(clb_pow(10000, 0) == 1 && clb_pow(10000, 1) == 10000 && clb_pow(2, -1) == 0.5);
    CHECK(clb_pow(1, 1e300) == 1 && clb_pow(2, 5000) == INFINITY && clb_pow(2, -5000) == 0);
    clb_sincos(0, &s, &c);
    CHECK(s == 0 && c == 1);
    clb_sincos(1e9, &s, &c);
    CHECK(isnan(s) && isnan(c));
}

static void many_at_once_are_the_same_bits(void)
{
    enum { MANY = 1000 };
    float x[MANY], y[MANY];

    for (uint32_t n = MANY - 40; n < MANY; n++) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = y[i] = (float)uniform(-87.3, 88.7);
        x[0] = y[0] = -87.3f;
        x[1] = y[1] = -0.0f;
        clb_expf_inside(y, n);
        for (uint32_t i = 0; i < n; i++)
            CHECK_EQ(clb_f32_bits(y[i]), clb_f32_bits(clb_expf(x[i])));
    }
}

int main(void)
{
    TEST(f32_functions_are_close_to_libm);
    TEST(gelu_is_close);
    TEST(many_at_once_are_the_same_bits);
    TEST(special_values_are_exact);
    TEST(double_functions_are_close_to_libm);
    TEST(sincos_near_multiples_of_a_right_angle);
    TEST(double_special_values_are_exact);
    return test_result();
}
