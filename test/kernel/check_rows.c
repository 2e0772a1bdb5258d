/* Every level's operations on rows of activations give the bits of the scalar ones. */
#include <math.h>

#include "lib/format/arch.h"
#include "test/kernel/levels.h"

enum { MAX_N = 1100 };

/* One call on a row: `in` three rows of input, y also holds input where the operation is in
 * place. */
struct call {
    const struct clb_kernels *k;
    float *y;
    const float *in[3];
    uint32_t n;
    float a, b;
};
typedef void op_fn(const struct call *c);

static void rms_norm(const struct call *c)
{
    c->k->rms_norm(c->y, c->in[0], c->in[1], c->n, 1e-6f);
}
static void rms_norm_plain_in_place(const struct call *c)
{
    c->k->rms_norm(c->y, c->y, NULL, c->n, 1e-5f);
}
static void layer_norm(const struct call *c)
{
    c->k->layer_norm(c->y, c->in[0], c->in[1], c->in[2], c->n, 1e-5f);
}
static void layer_norm_without_bias(const struct call *c)
{
    c->k->layer_norm(c->y, c->y, c->in[1], NULL, c->n, 1e-5f);
}
static void glu_silu(const struct call *c)
{
    c->k->glu(CLB_ACT_SILU, c->y, c->in[0], c->in[1], c->n, 0, 0);
}
static void glu_gelu(const struct call *c)
{
    c->k->glu(CLB_ACT_GELU, c->y, c->in[0], c->in[1], c->n, 0, 0);
}
static void glu_gelu_tanh(const struct call *c)
{
    c->k->glu(CLB_ACT_GELU_TANH, c->y, c->in[0], c->in[1], c->n, 0, 0);
}
static void glu_relu_in_place(const struct call *c)
{
    c->k->glu(CLB_ACT_RELU, c->y, c->y, c->in[1], c->n, 0, 0);
}
static void glu_clamped_swiglu(const struct call *c)
{
    c->k->glu(CLB_ACT_CLAMPED_SWIGLU, c->y, c->in[0], c->in[1], c->n, 7.0f, 1.702f);
}
static void softmax(const struct call *c)
{
    c->k->softmax(c->y, c->n);
}
static void add(const struct call *c)
{
    c->k->add(c->y, c->in[0], c->n);
}
static void scale_add(const struct call *c)
{
    c->k->scale_add(c->y, c->in[0], c->a, c->n);
}
static void scale(const struct call *c)
{
    c->k->scale(c->y, c->a, c->n);
}
static void clip(const struct call *c)
{
    c->k->clip(c->y, 1.5f, c->n);
}
static void rope_half(const struct call *c)
{
    c->k->rope_half(c->y, c->in[0], c->in[1], c->n & ~1u);
}
static void rope_interleaved(const struct call *c)
{
    c->k->rope_interleaved(c->y, c->in[0], c->in[1], c->n & ~1u);
}
static void widen_f32(const struct call *c)
{
    c->k->widen(c->y, c->in[0], CLB_F32, c->n);
}
static void widen_f16(const struct call *c)
{
    c->k->widen(c->y, c->in[0], CLB_F16, c->n);
}
static void widen_bf16(const struct call *c)
{
    c->k->widen(c->y, c->in[0], CLB_BF16, c->n);
}
static void narrow(const struct call *c)
{
    c->k->narrow((uint16_t *)(void *)c->y, c->in[0], c->n);
}
/* Around the largest half and the smallest ones. */
static void narrow_ends(const struct call *c)
{
    float x[MAX_N];

    for (uint32_t i = 0; i < c->n; i++)
        x[i] = c->in[0][i] * (i % 2 ? 60000.0f : 0x1p-22f);
    c->k->narrow((uint16_t *)(void *)c->y, x, c->n);
}
static void attn_fold(const struct call *c)
{
    float m = c->a, l = c->in[1][0];
    c->k->attn_fold(&m, &l, c->y, c->b, c->in[1][1], c->in[0], c->n);
    c->y[c->n / 2] += m + l;
}
static void attn_fold_first(const struct call *c)
{
    float m = -INFINITY, l = 0;
    memset(c->y, 0, c->n * sizeof *c->y);
    c->k->attn_fold(&m, &l, c->y, c->b, c->in[1][1], c->in[0], c->n);
    c->y[c->n / 2] += m + l;
}

static const struct op {
    const char *name;
    op_fn *fn;
} ops[] = {
    { "rms_norm", rms_norm },
    { "rms_norm in place, no weight", rms_norm_plain_in_place },
    { "layer_norm", layer_norm },
    { "layer_norm without bias", layer_norm_without_bias },
    { "glu silu", glu_silu },
    { "glu gelu", glu_gelu },
    { "glu gelu_tanh", glu_gelu_tanh },
    { "glu relu in place", glu_relu_in_place },
    { "glu clamped swiglu", glu_clamped_swiglu },
    { "softmax", softmax },
    { "add", add },
    { "scale_add", scale_add },
    { "scale", scale },
    { "clip", clip },
    { "rope_half", rope_half },
    { "rope_interleaved", rope_interleaved },
    { "widen f32", widen_f32 },
    { "widen fp16", widen_f16 },
    { "widen bf16", widen_bf16 },
    { "narrow", narrow },
    { "narrow at both ends", narrow_ends },
    { "attn_fold", attn_fold },
    { "attn_fold of the first block", attn_fold_first },
};

static float input[4][MAX_N + 8];

static bool same_bits(const struct op *op, const struct clb_kernels *k, uint32_t n, enum values v)
{
    uint32_t misalign = rnd_below(8);
    struct pair y = pair_new(n, misalign);
    struct call c = { .n = n, .a = rnd_value(v), .b = rnd_value(v) };
    char what[96];

    for (int i = 0; i < 4; i++)
        rnd_row(input[i], n + 8, v);
    for (int i = 0; i < 3; i++)
        c.in[i] = input[i] + (misalign + (uint32_t)i) % 8;
    pair_set(&y, input[3]);

    c.k = &ref;
    c.y = y.want;
    op->fn(&c);
    c.k = k;
    c.y = y.got;
    op->fn(&c);
    snprintf(what, sizeof what, "%s, n = %u, values %d", op->name, n, (int)v);
    bool ok = pair_equal(&y, what);
    pair_free(&y);
    return ok;
}

static bool check_op(const struct op *op, const struct clb_kernels *k)
{
    bool ok = true;

    for (int v = 0; v < VALUES_COUNT && ok; v++) {
        for (uint32_t n = 1; n <= 70 && ok; n++)
            ok = same_bits(op, k, n, (enum values)v);
        for (uint32_t n = 127; n <= MAX_N && ok; n += 1 + rnd_below(200))
            ok = same_bits(op, k, n, (enum values)v);
    }
    return ok;
}

/* -- records ------------------------------------------------------------------------------- */

static bool record_equal(const struct clb_kernels *k, const float *x, uint32_t n)
{
    size_t bytes = clb_record_bytes(n) + 64;
    uint8_t *want = aligned_alloc(64, bytes), *got = aligned_alloc(64, bytes);
    uint32_t padded = (n + 31) / 32 * 32;

    memset(want, 0x5a, bytes);
    memset(got, 0x5a, bytes);
    ref.quantise(want, x, n);
    k->quantise(got, x, n);
    for (uint32_t g = 0; g < padded / 32; g++) { /* NaN scales are all alike */
        struct clb_group_info *w = (struct clb_group_info *)(want + padded) + g;
        struct clb_group_info *h = (struct clb_group_info *)(got + padded) + g;
        if (w->scale != w->scale && h->scale != h->scale)
            h->scale = w->scale;
    }
    bool ok = !memcmp(want, got, bytes);
    if (!ok)
        printf("# quantise, n = %u: records differ\n", n);
    free(want);
    free(got);
    return ok;
}

static bool check_quantise(const struct clb_kernels *k)
{
    bool ok = true;

    for (int v = 0; v < VALUES_COUNT && ok; v++)
        for (uint32_t n = 1; n <= 300 && ok; n += n < 70 ? 1 : 31) {
            rnd_row(input[0], n + 8, (enum values)v);
            for (uint32_t i = 0; i < n && v == MIXED; i += 7) /* ties of the rounding */
                input[0][i] = (float)rnd_below(254) - 126.5f;
            ok = record_equal(k, input[0] + rnd_below(8), n);
        }
    return ok;
}

/* The contract in numbers, for the scalar kernel. */
static void quantise_means_what_the_contract_says(void)
{
    _Alignas(64) uint8_t record[128];
    const int8_t *a = (const int8_t *)record;
    const struct clb_group_info *info = (const struct clb_group_info *)(record + 64);
    float x[40] = { 127.0f, -127.0f, 0.5f, 1.5f, -2.5f };

    x[32] = 1.0f;
    x[33] = -0.25f;
    ref.quantise(record, x, 40);
    CHECK(a[0] == 127 && a[1] == -127 && a[2] == 0 && a[3] == 2 && a[4] == -2 && a[5] == 0);
    CHECK(info[0].scale == 1.0f && info[0].minus128sum == 0);
    CHECK(a[32] == 127 && a[33] == -32 && a[40] == 0);
    CHECK(info[1].scale == 1.0f / 127.0f && info[1].minus128sum == -128 * 95);
    x[3] = NAN;
    x[32] = 1e-45f; /* 127 / amax overflows */
    x[33] = 0;
    ref.quantise(record, x, 40);
    CHECK(info[0].scale != info[0].scale && a[0] == 0);
    CHECK(info[1].scale == 0 && a[32] == 0);
}

/* -- timing -------------------------------------------------------------------------------- */

struct timed {
    const struct op *op;
    struct call c;
};

static void call_op(void *arg)
{
    struct timed *t = arg;
    t->op->fn(&t->c);
}

static void bench(const struct level *l)
{
    static float y[MAX_N];

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct timed t = { .op = &ops[i], .c = { .k = &l->k, .y = y, .n = 1024, .a = 1, .b = 1 } };
        for (int j = 0; j < 3; j++) {
            rnd_row(input[j], MAX_N, PLAIN);
            t.c.in[j] = input[j];
        }
        rnd_row(y, MAX_N, PLAIN);
        printf("# %-30s %-8s %7.3f ns per element\n", ops[i].name, l->name,
               time_calls(call_op, &t) * 1e9 / 1024);
    }
}

int main(int argc, char **argv)
{
    start(argc, argv);
    TEST(quantise_means_what_the_contract_says);
    for (int l = 0; l < n_level; l++) {
        if (want_bench) {
            bench(&levels[l]);
            continue;
        }
        for (size_t i = 0; i < sizeof ops / sizeof *ops && !levels[l].only_matmul; i++)
            report(check_op(&ops[i], &levels[l].k), ops[i].name, levels[l].name);
        if (levels[l].k.quantise != ref.quantise)
            report(check_quantise(&levels[l].k), "quantise", levels[l].name);
    }
    return test_result();
}
