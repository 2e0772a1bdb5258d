/* The scalar kernels and lib/base/fmath give the same bits on every machine: checksums of what they
 * make of fixed random inputs. Whoever changes the definition on purpose changes these numbers, and
 * knows that outputs of all models change. Also: levels by name, and tables without holes. */
#include "lib/backend/kv.h"
#include "lib/base/fmath.h"
#include "lib/format/arch.h"
#include "test/kernel/levels.h"

static uint64_t hash;

static void mix(const void *p, size_t bytes)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ b[i]) * 1099511628211u;
}

/* The sign and the payload of a NaN are the machine's own. */
static void mix_f32(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f = x[i] == x[i] ? x[i] : 12345.0f;
        mix(&f, sizeof f);
    }
}

static void mix_f64(double x)
{
    double d = x == x ? x : 12345.0;
    mix(&d, sizeof d);
}

static void begin(void)
{
    rng = 88172645463325252u;
    hash = 14695981039346656037u;
}

static bool end(uint64_t want)
{
    if (hash != want)
        printf("# checksum is 0x%016llx\n", (unsigned long long)hash);
    return hash == want;
}

static void functions_keep_their_bits(void)
{
    begin();
    for (int i = 0; i < 30000; i++) {
        float x = rnd_value((enum values)(i % VALUES_COUNT));
        float y[] = { clb_expf(x),  clb_logf(x),     clb_tanhf(x), clb_erff(x),
                      clb_siluf(x), clb_sigmoidf(x), clb_geluf(x), clb_gelu_tanhf(x) };
        double s, c;
        clb_sincos(x * 1e4, &s, &c);
        mix_f32(y, sizeof y / sizeof *y);
        mix_f64(s);
        mix_f64(c);
        mix_f64(clb_exp(x));
        mix_f64(clb_log(x));
        mix_f64(clb_pow(fabs(x), 0.3));
    }
    CHECK(end(0x3c0faa22388e219bu));
}

static void rows_keep_their_bits(void)
{
    static float x[4][512];
    static uint16_t half[512];
    static _Alignas(64) uint8_t record[1024];

    begin();
    for (int i = 0; i < 120; i++) {
        uint32_t n = 1 + rnd_below(511);
        for (int j = 0; j < 4; j++)
            rnd_row(x[j], 512, (enum values)(i % VALUES_COUNT));
        memset(record, 0, sizeof record);
        ref.quantise(record, x[0], n);
        mix(record, (n + 31) / 32 * 32);
        mix_f32((const float *)(const void *)(record + (n + 31) / 32 * 32), (n + 31) / 32 * 2);
        ref.rms_norm(x[3], x[0], x[1], n, 1e-6f);
        mix_f32(x[3], n);
        ref.layer_norm(x[3], x[0], x[1], x[2], n, 1e-6f);
        mix_f32(x[3], n);
        for (uint32_t act = CLB_ACT_SILU; act <= CLB_ACT_CLAMPED_SWIGLU; act++) {
            ref.glu(act, x[3], x[0], x[1], n, 7.0f, 1.702f);
            mix_f32(x[3], n);
        }
        ref.rope_half(x[2], x[0], x[1], n & ~1u);
        ref.rope_interleaved(x[2], x[0], x[1], n & ~1u);
        mix_f32(x[2], n);
        ref.softmax(x[1], n);
        mix_f32(x[1], n);
        ref.narrow(half, x[0], n);
        mix(half, n * sizeof *half);
    }
    CHECK(end(0xe5068fffbac65445u));
}

static void matmul_keeps_its_bits(void)
{
    enum { COLS = 96, TILES = 2 };
    static _Alignas(64) uint8_t tiles[TILES * COLS * 64], record[1024];
    static float x[COLS], y[TILES * CLB_TILE], row_scale[TILES * CLB_TILE];

    begin();
    for (int i = 0; i < 60; i++) {
        enum clb_dtype t = (enum clb_dtype)(i % CLB_DTYPE_COUNT);
        const void *row = clb_dtype_is_float(t) ? (const void *)x : record;
        struct clb_matmul m = { .tiles = tiles,
                                .tile_bytes = clb_tile_bytes(t, COLS),
                                .n_tile = TILES,
                                .cols = COLS,
                                .row_scale = row_scale,
                                .book = t == CLB_MXFP4 ? clb_book_mxfp4 : clb_book_int4,
                                .x = &row,
                                .n_row = 1,
                                .y = y,
                                .ldy = TILES * CLB_TILE };
        for (size_t j = 0; j < sizeof tiles; j++) /* halves and floats of magnitude 2^-8 to 2^7 */
            tiles[j] =
                (uint8_t)(j % 2 && t != CLB_INT8 ? 0x3c | (rnd() & 0x83) : 1 + rnd_below(255));
        rnd_row(row_scale, TILES * CLB_TILE, PLAIN);
        rnd_row(x, COLS, PLAIN);
        ref.quantise(record, x, COLS);
        ref.matmul[t](&m);
        mix_f32(y, TILES * CLB_TILE);
    }
    CHECK(end(0x173f0634c8e02960u));
}

static void attention_keeps_its_bits(void)
{
    static _Alignas(64) float k[24 * CLB_KV_BLOCK], v[40 * CLB_KV_BLOCK];
    static float q[24], scale[CLB_KV_BLOCK], o[40], total[40];

    begin();
    for (int i = 0; i < 60; i++) {
        float m, l, total_m = -INFINITY, total_l = 0;
        uint8_t first = (uint8_t)rnd_below(32), last = (uint8_t)(33 + rnd_below(32));
        const float *query = q;
        float *out = o;
        struct clb_attn_tile a = { .n_query = 1,
                                   .key_dim = 24,
                                   .value_dim = 40,
                                   .q = &query,
                                   .k = k,
                                   .v = v,
                                   .k_scale = scale,
                                   .v_scale = scale,
                                   .first = &first,
                                   .last = &last,
                                   .scale = 0.2f,
                                   .softcap = i & 1 ? 30.0f : 0.0f,
                                   .o = &out,
                                   .m = &m,
                                   .l = &l };
        rnd_row(k, 24 * CLB_KV_BLOCK, PLAIN);
        rnd_row(v, 40 * CLB_KV_BLOCK, PLAIN);
        rnd_row(q, 24, PLAIN);
        rnd_row(scale, CLB_KV_BLOCK, PLAIN);
        for (size_t j = 0; j < 40 * CLB_KV_BLOCK && i % 3 == CLB_KV_F16; j++) {
            if (j < 24 * CLB_KV_BLOCK)
                ((uint16_t *)(void *)k)[j] = clb_f32_to_f16(rnd_unit());
            ((uint16_t *)(void *)v)[j] = clb_f32_to_f16(rnd_unit());
        }
        ref.attn_tile[i % 3](&a);
        memset(total, 0, sizeof total);
        for (int twice = 0; twice < 2; twice++)
            ref.attn_fold(&total_m, &total_l, total, m + (float)twice, l, o, 40);
        mix_f32(total, 40);
        mix_f32(&total_m, 1);
        mix_f32(&total_l, 1);
    }
    CHECK(end(0x32d9ea7d25f10b74u));
}

static void levels_have_names(void)
{
    enum clb_isa isa = CLB_ISA_COUNT;

    for (int i = 0; i < CLB_ISA_COUNT; i++)
        CHECK(clb_isa_parse(clb_isa_name((enum clb_isa)i), &isa) && (int)isa == i);
    CHECK(!clb_isa_parse("avx", &isa) && !clb_isa_parse("", &isa));
}

static void the_best_level_is_available(void)
{
    const char *why = "";

    CHECK(clb_isa_available(CLB_ISA_SCALAR, &why) && !why);
    CHECK(clb_isa_available(clb_isa_best(), &why) && !why);
    for (int i = (int)clb_isa_best() + 1; i < CLB_ISA_COUNT; i++)
        CHECK(!clb_isa_available((enum clb_isa)i, &why) && why && *why);
}

static void tables_have_no_holes(void)
{
    for (int i = 0; i < CLB_ISA_COUNT; i++) {
        struct clb_kernels k;
        uintptr_t slot;

        memset(&k, 0, sizeof k);
        clb_kernels_for(&k, (enum clb_isa)i);
        CHECK((int)k.isa == i);
        CHECK_STR(k.name, clb_isa_name((enum clb_isa)i));
        for (size_t at = offsetof(struct clb_kernels, matmul); at < sizeof k; at += sizeof slot) {
            memcpy(&slot, (const char *)&k + at, sizeof slot);
            CHECK(slot);
        }
    }
}

int main(int argc, char **argv)
{
    start(argc, argv);
    TEST(functions_keep_their_bits);
    TEST(rows_keep_their_bits);
    TEST(matmul_keeps_its_bits);
    TEST(attention_keeps_its_bits);
    TEST(levels_have_names);
    TEST(the_best_level_is_available);
    TEST(tables_have_no_holes);
    return test_result();
}
