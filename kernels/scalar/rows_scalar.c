/* rows_scalar.c - operations on one row of activations, by definition. */
#include <math.h>
#include <string.h>

#include "kernels/scalar/scalar.h"
#include "lib/base/fmath.h"
#include "lib/base/half.h"
#include "lib/format/arch.h"

/* Largest magnitude as bits: NaN and infinity are above every finite value. */
static uint32_t max_magnitude(const float *x, uint32_t n)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = clb_f32_bits(x[i]) & 0x7fffffffu;
        max = b > max ? b : max;
    }
    return max;
}

static void quantise_group(int8_t a[static CLB_GROUP], struct clb_group_info *info, const float *x,
                           uint32_t n)
{
    uint32_t bits = max_magnitude(x, n);
    float amax = clb_f32_from_bits(bits), inverse = 127.0f / amax;
    bool finite = bits < 0x7f800000u, usable = finite && inverse < INFINITY;
    int32_t sum = 0;

    memset(a, 0, CLB_GROUP);
    for (uint32_t i = 0; i < n && usable; i++) {
        float q = rintf(x[i] * inverse);
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        a[i] = (int8_t)q;
        sum += a[i];
    }
    info->scale = usable ? amax / 127.0f : finite ? 0.0f : NAN;
    info->minus128sum = -128 * sum;
}

static void quantise(void *record, const float *x, uint32_t cols)
{
    int8_t *a = record;
    uint32_t n_group = (cols + CLB_GROUP - 1) / CLB_GROUP;
    struct clb_group_info *info = (struct clb_group_info *)((char *)record + n_group * CLB_GROUP);

    for (uint32_t g = 0; g < n_group; g++) {
        uint32_t left = cols - g * CLB_GROUP;
        quantise_group(a + g * CLB_GROUP, info + g, x + g * CLB_GROUP,
                       left < CLB_GROUP ? left : CLB_GROUP);
    }
}

/* sum of (x - shift)^2, in 16 lanes; x - 0 is x */
static float sum_squares(const float *x, float shift, uint32_t n)
{
    float lane[16] = { 0 };
    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i] - shift, x[i] - shift, lane[i % 16]);
    return clb_tree16(lane);
}

static float sum(const float *x, uint32_t n)
{
    float lane[16] = { 0 };
    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] += x[i];
    return clb_tree16(lane);
}

static void rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float r = 1.0f / sqrtf(sum_squares(x, 0.0f, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n,
                       float eps)
{
    float mean = sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * r;
        y[i] = b ? fmaf(v, w[i], b[i]) : v * w[i];
    }
}

/* The gate is bounded above only, as gpt-oss does. */
static float clamped_swiglu(float gate, float up, float limit, float alpha)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0f) * (gate * clb_sigmoidf(alpha * gate));
}

static void glu(uint32_t act, float *y, const float *gate, const float *up, uint32_t n, float limit,
                float alpha)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];
        switch ((enum clb_act)act) {
        case CLB_ACT_SILU:
            y[i] = clb_siluf(g) * u;
            break;
        case CLB_ACT_GELU:
            y[i] = clb_geluf(g) * u;
            break;
        case CLB_ACT_GELU_TANH:
            y[i] = clb_gelu_tanhf(g) * u;
            break;
        case CLB_ACT_RELU:
            y[i] = (0.0f > g ? 0.0f : g) * u; /* NaN stays */
            break;
        case CLB_ACT_CLAMPED_SWIGLU:
            y[i] = clamped_swiglu(g, u, limit, alpha);
            break;
        }
    }
}

static void softmax(float *x, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        x[i] = clb_expf(x[i] - max);
    float total = sum(x, n);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= total;
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void scale_add(float *y, const float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(s, x[i], y[i]);
}

static void scale(float *y, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] *= s;
}

static void clip(float *y, float limit, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = y[i] > limit ? limit : y[i] < -limit ? -limit : y[i];
}

static void rotate(float *a, float *b, float cosine, float sine)
{
    float a0 = *a, b0 = *b;
    *a = fmaf(-b0, sine, a0 * cosine);
    *b = fmaf(a0, sine, b0 * cosine);
}

static void rope_half(float *x, const float *cosine, const float *sine, uint32_t dim)
{
    for (uint32_t i = 0; i < dim / 2; i++)
        rotate(x + i, x + dim / 2 + i, cosine[i], sine[i]);
}

static void rope_interleaved(float *x, const float *cosine, const float *sine, uint32_t dim)
{
    for (uint32_t i = 0; i < dim / 2; i++)
        rotate(x + 2 * i, x + 2 * i + 1, cosine[i], sine[i]);
}

static void widen(float *y, const void *row, enum clb_dtype t, uint32_t n)
{
    const uint16_t *h = row;

    if (t == CLB_F32)
        memcpy(y, row, n * sizeof *y);
    for (uint32_t i = 0; i < n && t == CLB_F16; i++)
        y[i] = clb_f16_to_f32(h[i]);
    for (uint32_t i = 0; i < n && t == CLB_BF16; i++)
        y[i] = clb_bf16_to_f32(h[i]);
}

static void narrow(uint16_t *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = clb_f32_to_f16_within(x[i]);
}

void clb_fill_rows_scalar(struct clb_kernels *k)
{
    k->quantise = quantise;
    k->rms_norm = rms_norm;
    k->layer_norm = layer_norm;
    k->glu = glu;
    k->softmax = softmax;
    k->add = add;
    k->scale_add = scale_add;
    k->scale = scale;
    k->clip = clip;
    k->rope_half = rope_half;
    k->rope_interleaved = rope_interleaved;
    k->widen = widen;
    k->narrow = narrow;
}

void clb_kernels_fill_scalar(struct clb_kernels *k)
{
    clb_fill_matmul_scalar(k);
    clb_fill_rows_scalar(k);
    clb_fill_attn_scalar(k);
}
