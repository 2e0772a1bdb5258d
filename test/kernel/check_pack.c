/* Packing kernels of every level against the scalar ones: tiles and sums of losses by bits. */
#include "kernels/pack.h"
#include "test/kernel/levels.h"

enum { MOST = 700, ROOM = CLB_TILE * MOST * 4 + 64 };

static struct clb_pack_kernels want, got;
static struct clb_int4_book book;
static _Alignas(64) uint8_t source[ROOM], a[ROOM + 4096], b[ROOM + 4096];

/* Weights of a magnitude that all types take. */
/* Two random numbers in an expression would come in the order that a compiler likes. */
static float any_magnitude(uint32_t range, int lowest)
{
    int power = (int)rnd_below(range) + lowest;

    return ldexpf(rnd_unit(), power);
}

static void fill(enum clb_dtype from, uint32_t n, int kind)
{
    for (uint32_t i = 0; i < n; i++) {
        float w = rnd_unit() * rnd_unit();

        if (kind == 1) /* any magnitude that fp16 holds, subnormal ones, zeros */
            w = rnd_below(8) ? any_magnitude(40, -26) : 0.0f;
        if (kind == 2 && from == CLB_F32) /* next to nothing */
            w = any_magnitude(110, -149);
        if (kind == 3) /* ties of every kind */
            w = (float)((int)rnd_below(255) - 127) / (rnd() & 1 ? 2.0f : 64.0f);
        if (kind == 4 && rnd_below(40) == 0)
            w = rnd() & 1 ? 65504.0f : -65504.0f;
        if (from == CLB_F32)
            memcpy(source + 4 * i, &w, 4);
        else {
            uint16_t h = from == CLB_F16 ? clb_f32_to_f16(w) : clb_f32_to_bf16(w);
            memcpy(source + 2 * i, &h, 2);
        }
    }
}

static bool same(size_t bytes, const struct clb_loss *x, const struct clb_loss *y)
{
    return !memcmp(a, b, bytes + 64) && !memcmp(x, y, sizeof *x);
}

static bool check_rows(const struct clb_rows *m)
{
    struct clb_loss x = { 0 }, y = { 0 };
    float scale[CLB_TILE];
    bool ok = true;

    for (int r = 0; r < CLB_TILE; r++) { /* some of them too small, some zero */
        uint32_t most = (uint32_t)r < m->n_row
                            ? want.largest((const char *)m->x + (size_t)r * m->cols *
                                               (m->from == CLB_F32 ? 4 : 2),
                                           m->from, m->cols)
                            : 0;
        scale[r] = clb_f32_from_bits(most) / (rnd_below(4) ? 127.0f : 190.0f);
        scale[r] = scale[r] < 0x1p-126f ? 0 : scale[r];
    }
    float inverse[CLB_INT8_TRIES], noise[2][CLB_INT8_TRIES];

    for (int t = 0; t < CLB_INT8_TRIES; t++) /* finite, whatever the weights are */
        inverse[t] = scale[0] > 0 ? (1 + 0.1f * (float)t) / scale[0] : 1;
    want.int8_noise(noise[0], m->x, m->from, m->cols, inverse);
    got.int8_noise(noise[1], m->x, m->from, m->cols, inverse);
    ok &= !memcmp(noise[0], noise[1], sizeof noise[0]);
    memset(a, 0xee, sizeof a);
    memset(b, 0xee, sizeof b);
    want.int8(a, m, scale, &x);
    got.int8(b, m, scale, &y);
    ok &= same(clb_tile_bytes(CLB_INT8, m->cols), &x, &y);
    want.int4(a, m, &book, &x);
    got.int4(b, m, &book, &y);
    ok &= same(clb_tile_bytes(CLB_INT4, m->cols), &x, &y);
    for (enum clb_dtype to = CLB_F32; to <= CLB_BF16; to++) {
        want.floats(a, m, to, &x);
        got.floats(b, m, to, &y);
        ok &= same(clb_tile_bytes(to, m->cols), &x, &y);
    }
    return ok;
}

static bool check_tiles(void)
{
    bool ok = true;

    for (int i = 0; i < 300; i++) {
        struct clb_rows m = { source, (enum clb_dtype)rnd_below(3), 1 + rnd_below(CLB_TILE),
                              1 + rnd_below(i % 3 ? 80 : MOST - 1) };

        fill(m.from, m.n_row * m.cols, i % 5);
        if (!check_rows(&m)) {
            printf("# %u rows of %u from %s, kind %d\n", m.n_row, m.cols, clb_dtype_name(m.from),
                   i % 5);
            ok = false;
        }
    }
    return ok;
}

static bool check_vectors(void)
{
    struct pair y = pair_new(MOST, 1);
    bool ok = true;

    for (int i = 0; i < 400; i++) {
        enum clb_dtype from = (enum clb_dtype)rnd_below(3);
        uint32_t n = rnd_below(MOST), bytes = from == CLB_F32 ? 4 : 2;

        fill(from, n, i % 5);
        if (n && i % 4 == 0) { /* any bits at all: NaN, infinity */
            uint32_t any = rnd() << 1 | 0x7f800000;
            memcpy(source + rnd_below(n) * bytes, (char *)&any + 4 - bytes, bytes);
        }
        ok &= want.largest(source, from, n) == got.largest(source, from, n);
        want.widen(y.want, source, from, n);
        got.widen(y.got, source, from, n);
        ok &= pair_equal(&y, "widen");
    }
    pair_free(&y);
    return ok;
}

/* Whoever changes the definition on purpose changes these numbers, and knows that the files of all
 * conversions change. */
static void definition_keeps_its_bytes(void)
{
    uint64_t hash[3] = { 14695981039346656037u, 14695981039346656037u, 14695981039346656037u };

    rng = 88172645463325252u;
    for (int i = 0; i < 60; i++) {
        struct clb_rows m = { source, (enum clb_dtype)(i % 3), 13, 67 };
        struct clb_loss loss = { 0 };
        float scale[CLB_TILE];

        fill(m.from, m.n_row * m.cols, i % 2);
        for (int r = 0; r < CLB_TILE; r++)
            scale[r] = (float)(1 + r) / 127;
        memset(a, 0, sizeof a);
        want.int8(a, &m, scale, &loss);
        for (size_t k = 0; k < clb_tile_bytes(CLB_INT8, m.cols); k++)
            hash[0] = (hash[0] ^ a[k]) * 1099511628211u;
        want.int4(a, &m, &book, &loss);
        for (size_t k = 0; k < clb_tile_bytes(CLB_INT4, m.cols); k++)
            hash[1] = (hash[1] ^ a[k]) * 1099511628211u;
        want.floats(a, &m, i & 1 ? CLB_F16 : CLB_BF16, &loss);
        for (size_t k = 0; k < clb_tile_bytes(CLB_F16, m.cols); k++)
            hash[2] = (hash[2] ^ a[k]) * 1099511628211u;
    }
    CHECK_EQ(hash[0], 0x8d16c3cc68f400e8u);
    CHECK_EQ(hash[1], 0xfbf27787f29ca951u);
    CHECK_EQ(hash[2], 0xdcc04e6cabfda4d3u);
}

/* -- speed --------------------------------------------------------------------------------- */

enum { COLS = 2048 };
static uint8_t *wide;

static void bench_int8(void *k)
{
    static const float scale[CLB_TILE] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    struct clb_rows m = { wide, CLB_BF16, CLB_TILE, COLS };
    const struct clb_pack_kernels *kernels = k;
    struct clb_loss loss = { 0 };
    float noise[CLB_INT8_TRIES];

    for (int r = 0; r < CLB_TILE; r++)
        if (kernels->largest(wide + r * COLS * 2, CLB_BF16, COLS))
            kernels->int8_noise(noise, wide + r * COLS * 2, CLB_BF16, COLS, scale);
    kernels->int8(wide + CLB_TILE * COLS * 4, &m, scale, &loss);
}

static void bench_int4(void *k)
{
    struct clb_rows m = { wide, CLB_BF16, CLB_TILE, COLS };
    struct clb_loss loss = { 0 };

    ((struct clb_pack_kernels *)k)->int4(wide + CLB_TILE * COLS * 4, &m, &book, &loss);
}

static void bench_bf16(void *k)
{
    struct clb_rows m = { wide, CLB_BF16, CLB_TILE, COLS };
    struct clb_loss loss = { 0 };

    ((struct clb_pack_kernels *)k)->floats(wide + CLB_TILE * COLS * 4, &m, CLB_BF16, &loss);
}

static void bench(struct clb_pack_kernels *k, const char *level)
{
    double n = CLB_TILE * COLS / 1e6;

    wide = calloc(CLB_TILE * COLS, 8);
    for (uint32_t i = 0; i < CLB_TILE * COLS; i++) {
        uint16_t h = clb_f32_to_bf16(rnd_unit() + rnd_unit() + rnd_unit());
        memcpy(wide + 2 * i, &h, 2);
    }
    printf("# %s: bf16 to int8 %.0f, int4 %.0f, bf16 %.0f million weights a second\n", level,
           n / time_calls(bench_int8, k), n / time_calls(bench_int4, k),
           n / time_calls(bench_bf16, k));
    free(wide);
}

int main(int argc, char **argv)
{
    start(argc, argv);
    clb_int4_book_init(&book, clb_book_int4);
    clb_pack_kernels_for(&want, CLB_ISA_SCALAR);
    TEST(definition_keeps_its_bytes);
    for (int l = 0; l < n_level; l++) {
        if (strstr(levels[l].name, "emulated")) /* these kernels need no more than AVX2 */
            continue;
        clb_pack_kernels_for(&got, levels[l].k.isa);
        report(check_tiles(), "tiles", levels[l].name);
        report(check_vectors(), "vectors", levels[l].name);
        if (want_bench)
            bench(&got, levels[l].name);
    }
    return test_result();
}
