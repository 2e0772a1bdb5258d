/* Every level's matmul gives the bits of the scalar one, for all types, shapes and extremes. With
 * --bench: decode (one row, weights from memory) against a streaming read, and prefill. */
#include <math.h>

#include "test/kernel/levels.h"

enum { MAX_ROWS = 20 };

/* One matrix, its activation rows and the call. */
struct problem {
    enum clb_dtype dtype;
    uint32_t cols; /* padded */
    uint8_t *tiles;
    float *row_scale;
    void *rows; /* all activation rows */
    const void *x[512];
    struct clb_matmul m;
};

static uint16_t rnd_half(enum clb_dtype t, bool extreme)
{
    uint16_t h = (uint16_t)rnd();

    if (t == CLB_F16)
        return (uint16_t)(extreme ? (h & 0x7c00) == 0x7c00 ? h ^ 0x4000 : h
                                  : clb_f32_to_f16(rnd_unit()));
    return (uint16_t)(extreme ? (h & 0x7f80) == 0x7f80 ? h ^ 0x4000 : h
                              : clb_f32_to_bf16(rnd_unit()));
}

/* Bytes of the steps; int8 may be any byte, floats are finite. */
static void fill_steps(uint8_t *p, size_t bytes, enum clb_dtype t, bool extreme)
{
    uint32_t same = rnd() & 1 ? 255 : 0; /* 127, -128 */

    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(t == CLB_INT8 && extreme ? same : rnd());
    for (size_t i = 0; i < bytes && t == CLB_F32; i += 4) {
        float f = extreme ? rnd_value(rnd() & 1 ? TINY : HUGE_VALUES) : rnd_unit();
        memcpy(p + i, &f, 4);
    }
    for (size_t i = 0; i < bytes && (t == CLB_F16 || t == CLB_BF16); i += 2) {
        uint16_t h = rnd_half(t, extreme);
        memcpy(p + i, &h, 2);
    }
}

static void fill_scales(uint8_t *p, size_t bytes, enum clb_dtype t, bool extreme)
{
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        uint16_t h = rnd_half(CLB_F16, extreme);
        if (t == CLB_MXFP4)
            h = (uint16_t)(extreme ? rnd_below(255) | rnd_below(3) << 8
                                   : (120 + rnd_below(12)) | (120 + rnd_below(12)) << 8);
        memcpy(p + i, &h, 2);
    }
}

static void fill_rows(struct problem *p, uint32_t n_row, enum values v, size_t misalign)
{
    bool is_float = clb_dtype_is_float(p->dtype);
    size_t stride = is_float ? (p->cols + 3) * sizeof(float) : clb_record_bytes(p->cols);
    float *x = malloc((p->cols + 1) * sizeof *x);

    p->rows = aligned_alloc(64, (stride * n_row + 127) & ~(size_t)63);
    for (uint32_t t = 0; t < n_row; t++) {
        uint8_t *row = (uint8_t *)p->rows + t * stride + (is_float ? 4 * misalign : 0);
        rnd_row(x, p->cols, v);
        for (uint32_t c = 0; c < p->cols && !is_float && t % 4 == 1; c++)
            x[c] = t % 8 == 1 ? 3.0f : -3.0f; /* all 127, all -127 */
        if (is_float)
            memcpy(row, x, p->cols * sizeof *x);
        else
            ref.quantise(row, x, p->cols);
        p->x[t] = row;
    }
    free(x);
}

static void problem_new(struct problem *p, enum clb_dtype t, uint32_t n_tile, uint32_t cols,
                        uint32_t n_row, enum values v, bool extreme)
{
    static int8_t book[16];
    size_t tile_bytes = clb_tile_bytes(t, cols), steps_at = clb_tile_steps_at(t, cols);

    *p = (struct problem){ .dtype = t, .cols = clb_cols_padded(t, cols) };
    p->tiles = aligned_alloc(64, n_tile * tile_bytes);
    for (uint32_t i = 0; i < n_tile; i++) {
        fill_scales(p->tiles + i * tile_bytes, steps_at, t, extreme);
        fill_steps(p->tiles + i * tile_bytes + steps_at, tile_bytes - steps_at, t, extreme);
    }
    p->row_scale = malloc(n_tile * CLB_TILE * sizeof(float));
    rnd_row(p->row_scale, n_tile * CLB_TILE, extreme ? MIXED : PLAIN);
    memcpy(book, clb_book_int4, sizeof book);
    for (int i = 0; i < 16 && extreme; i++) /* a book of the extremes */
        book[i] = (int8_t)(rnd() & 1 ? 127 : -127);
    fill_rows(p, n_row, v, rnd_below(3));
    p->m = (struct clb_matmul){ .tiles = p->tiles,
                                .tile_bytes = tile_bytes,
                                .n_tile = n_tile,
                                .cols = p->cols,
                                .row_scale = p->row_scale,
                                .book = t == CLB_MXFP4 ? clb_book_mxfp4 : book,
                                .x = p->x,
                                .n_row = n_row,
                                .next = rnd() & 1 ? p->tiles : NULL,
                                .next_bytes = tile_bytes };
}

static void problem_free(struct problem *p)
{
    free(p->tiles);
    free(p->row_scale);
    free(p->rows);
}

static bool same_bits(struct problem *p, const struct clb_kernels *k)
{
    uint32_t width = CLB_TILE * p->m.n_tile;
    char what[160];

    p->m.ldy = width + rnd_below(20);
    struct pair y = pair_new(p->m.ldy * p->m.n_row, rnd_below(8));
    p->m.y = y.want;
    ref.matmul[p->dtype](&p->m);
    p->m.y = y.got;
    k->matmul[p->dtype](&p->m);
    snprintf(what, sizeof what, "%s, %u tiles, %u inputs, %u rows, ldy %zu",
             clb_dtype_name(p->dtype), p->m.n_tile, p->cols, p->m.n_row, p->m.ldy);
    bool ok = pair_equal(&y, what);
    pair_free(&y);
    return ok;
}

/* As many rows as a piece of a prompt has, with every rest of four; more inputs than one stretch
 * of a panel. */
static bool check_many_rows(enum clb_dtype t, const struct clb_kernels *k)
{
    bool ok = true;

    for (uint32_t n_row = 47; n_row <= 132 && ok; n_row += n_row < 52 ? 1 : 1 + rnd_below(40)) {
        struct problem p;
        problem_new(&p, t, 1 + rnd_below(3), 480 + rnd_below(100), n_row, PLAIN, false);
        ok = same_bits(&p, k);
        problem_free(&p);
    }
    return ok;
}

static bool check_type(enum clb_dtype t, const struct clb_kernels *k)
{
    static const uint32_t cols[] = {
        32, 64, 96, 160, 224, 352, 1, 2, 3, 7, 17, 33, 100, 255, 2048
    };
    bool ok = true;

    for (size_t c = 0; c < sizeof cols / sizeof *cols && ok; c++)
        for (uint32_t n_row = 1; n_row <= MAX_ROWS && ok; n_row += cols[c] > 1000 ? 9 : 1) {
            enum values v = (enum values)rnd_below(VALUES_COUNT);
            struct problem p;
            problem_new(&p, t, 1 + rnd_below(5), cols[c], n_row, v, rnd_below(4) == 0);
            ok = same_bits(&p, k);
            problem_free(&p);
        }
    return ok;
}

/* The scalar kernel itself against plain sums of clb_matrix_at, in double. */
static void the_definition_multiplies(void)
{
    for (int t = 0; t < CLB_DTYPE_COUNT; t++) {
        struct problem p;
        problem_new(&p, (enum clb_dtype)t, 2, 96, 1, PLAIN, false);
        struct clb_matrix w = { .dtype = (enum clb_dtype)t,
                                .rows = 32,
                                .cols = 96,
                                .tiles = p.tiles,
                                .row_scale = p.row_scale,
                                .book = p.m.book };
        const struct clb_group_info *info = (const void *)((const char *)p.x[0] + 96);
        float y[32];

        p.m.y = y;
        p.m.ldy = 32;
        ref.matmul[t](&p.m);
        for (uint32_t r = 0; r < 32; r++) {
            double sum = 0, size = 1e-30;
            for (uint32_t c = 0; c < 96; c++) {
                double x = clb_dtype_is_float((enum clb_dtype)t)
                               ? ((const float *)p.x[0])[c]
                               : ((const int8_t *)p.x[0])[c] * (double)info[c / 32].scale;
                sum += clb_matrix_at(&w, r, c) * x;
                size += fabs(clb_matrix_at(&w, r, c) * x);
            }
            if (!(fabs(sum - y[r]) <= 100 * 0x1p-24 * size)) {
                printf("# %s: row %u is %g, not %g\n", clb_dtype_name((enum clb_dtype)t), r, y[r],
                       sum);
                test_bad = 1;
                break;
            }
        }
        problem_free(&p);
    }
}

/* -- timing -------------------------------------------------------------------------------- */

/* 2048 x 2048 matrices one after the other, so that weights come from memory; or one, again
 * and again. */
struct timed {
    struct problem *p;
    const struct clb_kernels *k;
    uint32_t n_matrix, i;
    size_t matrix_bytes;
};

static void call_matmul(void *arg)
{
    struct timed *t = arg;
    struct clb_matmul *m = &t->p->m;

    m->tiles = t->p->tiles + t->i * t->matrix_bytes;
    t->i = (t->i + 1) % t->n_matrix;
    m->next = t->p->tiles + t->i * t->matrix_bytes;
    m->next_bytes = t->matrix_bytes;
    t->k->matmul[t->p->dtype](m);
}

struct stream {
    const uint64_t *p;
    size_t n;
    uint64_t sum[8];
};

static void read_stream(void *arg)
{
    struct stream *s = arg;
    for (size_t i = 0; i < s->n; i += 8) {
        __builtin_prefetch(s->p + i + 256);
        for (size_t j = 0; j < 8; j++)
            s->sum[j] += s->p[i + j];
        __asm__ volatile("" : : "r"(s) : "memory"); /* the sums count */
    }
}

static void bench(const struct level *l)
{
    enum { N_TILE = 128, COLS = 2048 };
    static const uint32_t rows[] = { 1, 2, 4, 6, 16, 64, 480 };
    bool slow = l->k.isa == CLB_ISA_SCALAR;

    for (int t = 0; t < CLB_DTYPE_COUNT; t++) {
        struct problem p;
        size_t one = N_TILE * clb_tile_bytes((enum clb_dtype)t, COLS);
        uint32_t n_matrix = slow ? 1 : (uint32_t)(((size_t)256 << 20) / one);
        problem_new(&p, (enum clb_dtype)t, N_TILE * n_matrix, COLS, slow ? 1 : 480, PLAIN, false);
        float *y = malloc(480 * N_TILE * CLB_TILE * sizeof *y);
        p.m.n_tile = N_TILE;
        p.m.y = y;
        p.m.ldy = N_TILE * CLB_TILE;
        for (size_t i = 0; i < sizeof rows / sizeof *rows && !(slow && i); i++) {
            struct timed timed = { .p = &p, .k = &l->k, .n_matrix = n_matrix, .matrix_bytes = one };
            struct stream s = { .p = (const void *)p.tiles, .n = n_matrix * one / 8 };
            double read = time_calls(read_stream, &s);
            p.m.n_row = rows[i];
            double cold = time_calls(call_matmul, &timed);
            timed.n_matrix = 1;
            timed.i = 0;
            double hot = time_calls(call_matmul, &timed);
            double macs = (double)rows[i] * N_TILE * CLB_TILE * COLS;
            printf("# %-5s %-8s %3u rows: cold %5.1f GB/s %6.1f GMAC/s (reading %4.1f GB/s), "
                   "hot %6.1f GMAC/s\n",
                   clb_dtype_name((enum clb_dtype)t), l->name, rows[i], (double)one / cold * 1e-9,
                   macs / cold * 1e-9, (double)(n_matrix * one) / read * 1e-9, macs / hot * 1e-9);
        }
        free(y);
        problem_free(&p);
    }
}

int main(int argc, char **argv)
{
    char what[64];

    start(argc, argv);
    TEST(the_definition_multiplies);
    for (int l = 0; l < n_level; l++) {
        for (int t = 0; t < CLB_DTYPE_COUNT && !want_bench; t++) {
            snprintf(what, sizeof what, "matmul %s", clb_dtype_name((enum clb_dtype)t));
            report(check_type((enum clb_dtype)t, &levels[l].k) &&
                       check_many_rows((enum clb_dtype)t, &levels[l].k),
                   what, levels[l].name);
        }
        if (want_bench)
            bench(&levels[l]);
    }
    return test_result();
}
