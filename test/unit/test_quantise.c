/* Packing is checked against the definition in doubles and against clb_matrix_at, which reads what
 * was packed. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "lib/base/half.h"
#include "lib/import/quantise.h"
#include "test/check.h"

enum { COLS = 67, STRIDE = 96, ROWS = 13 };

static float rows[CLB_TILE * STRIDE], dense[ROWS * COLS]; /* the same weights, side by side */
static uint8_t tile[1 << 16];
static float scale[CLB_TILE];
static struct clb_pack_kernels kernels;
static struct clb_int4_book book;

static uint64_t seed = 1;
static float rnd(void) /* about normal */
{
    float sum = 0;

    for (int i = 0; i < 6; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(seed >> 40) * 0x1p-24f - 0.5f;
    }
    return sum;
}

static void fill(float factor)
{
    memset(rows, 0, sizeof rows);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            rows[r * STRIDE + c] = rnd() * factor;
}

static const struct clb_rows *source(void)
{
    static const struct clb_rows m = { dense, CLB_F32, ROWS, COLS };

    for (int r = 0; r < ROWS; r++)
        memcpy(dense + r * COLS, rows + r * STRIDE, COLS * sizeof *dense);
    return &m;
}

static struct clb_loss pack(enum clb_dtype t)
{
    struct clb_pack p = { &kernels, t, false, &book };
    struct clb_loss loss = { 0 };

    memset(tile, 0xee, sizeof tile);
    CHECK(clb_pack_tile(&p, tile, scale, source(), &loss));
    CHECK_EQ(tile[clb_tile_bytes(t, COLS)], 0xee); /* nothing beyond the tile */
    CHECK_EQ(loss.values, ROWS * COLS);
    return loss;
}

static float at(enum clb_dtype t, uint32_t row, uint32_t col)
{
    struct clb_matrix m = { t, CLB_TILE, COLS, tile, scale, NULL, clb_book_int4 };

    return clb_matrix_at(&m, row, col);
}

/* The loss that pack reports is the one that reading back shows; padding is zero. */
static void check_loss(enum clb_dtype t, const struct clb_loss *loss)
{
    double signal = 0, noise = 0;

    for (uint32_t r = 0; r < CLB_TILE; r++)
        for (uint32_t c = 0; c < clb_cols_padded(t, COLS); c++) {
            double w = (double)rows[r * STRIDE + c], d = w - (double)at(t, r, c);

            signal += w * w;
            noise += d * d;
            if (r >= ROWS || c >= COLS)
                CHECK(at(t, r, c) == 0);
        }
    CHECK(fabs(loss->noise - noise) <= 1e-5 * noise);
    CHECK(noise == 0 || fabs(loss->signal - signal) <= 1e-5 * signal);
}

static int nearest_code(float w, float s)
{
    long q = lrintf(w / s);

    return q > 127 ? 127 : q < -127 ? -127 : (int)q;
}

static double row_error(const float *w, float s)
{
    double sum = 0;

    for (uint32_t c = 0; c < COLS; c++)
        sum += pow((double)w[c] - (double)s * nearest_code(w[c], s), 2);
    return sum;
}

/* Of the four that are tried, none is better by more than rounding; the choice is not always the
 * first. */
static void int8_scales_have_the_least_error(void)
{
    int smaller = 0;

    for (int k = 0; k < 50; k++) {
        fill(ldexpf(1, k - 25));
        pack(CLB_INT8);
        for (uint32_t r = 0; r < ROWS; r++) {
            const float *w = rows + r * STRIDE;
            uint32_t most = kernels.largest(w, CLB_F32, COLS);
            float max = clb_f32_from_bits(most);

            for (int i = 0; i < 4; i++)
                CHECK(row_error(w, scale[r]) <=
                      1.0001 * row_error(w, max / (127.0f + 0.5f * (float)i)));
            CHECK(scale[r] >= max / 128.5f && scale[r] <= max / 127.0f);
            smaller += scale[r] < max / 127.0f;
        }
    }
    CHECK(smaller > 0);
}

static void int8_codes_are_nearest(void)
{
    for (int k = 0; k < 50; k++) {
        fill(ldexpf(1, k - 25));
        struct clb_loss loss = pack(CLB_INT8);
        check_loss(CLB_INT8, &loss);
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t c = 0; c < COLS; c++) {
                int code = tile[c / 4 * 64 + r * 4 + c % 4] - 128;

                CHECK(code >= -127 && code <= 127);
                CHECK_EQ(code, nearest_code(rows[r * STRIDE + c], scale[r]));
            }
        }
    }
}

static void int8_rows_of_zero_and_of_almost_nothing(void)
{
    fill(1);
    memset(rows + 3 * STRIDE, 0, STRIDE * sizeof *rows);
    for (int c = 0; c < COLS; c++)
        rows[5 * STRIDE + c] = c % 2 ? 1e-40f : 0;
    pack(CLB_INT8);
    CHECK(scale[3] == 0 && scale[5] == 0 && scale[14] == 0 && scale[4] > 0);
    for (uint32_t c = 0; c < COLS; c++) {
        CHECK_EQ(tile[c / 4 * 64 + 3 * 4 + c % 4], 128);
        CHECK_EQ(tile[c / 4 * 64 + 5 * 4 + c % 4], 128);
        CHECK_EQ(tile[c / 4 * 64 + 14 * 4 + c % 4], 128);
    }
}

static void int8_takes_a_shared_scale(void)
{
    struct clb_pack p = { &kernels, CLB_INT8, true, NULL };
    struct clb_loss loss = { 0 };

    fill(0.01f);
    for (int r = 0; r < CLB_TILE; r++)
        scale[r] = r < ROWS ? 0.125f : 0;
    CHECK(clb_pack_tile(&p, tile, scale, source(), &loss));
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            CHECK(at(CLB_INT8, r, c) == 0.125f * rintf(rows[r * STRIDE + c] / 0.125f));
    check_loss(CLB_INT8, &loss);
}

/* Scales that are too small for the largest weights: their codes end at 127. */
static void int8_codes_stay_in_range(void)
{
    struct clb_pack p = { &kernels, CLB_INT8, true, NULL };
    struct clb_loss loss = { 0 };
    int ends = 0;

    fill(1);
    for (int r = 0; r < CLB_TILE; r++)
        scale[r] = 0.004f;
    CHECK(clb_pack_tile(&p, tile, scale, source(), &loss));
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++) {
            float q = rintf(rows[r * STRIDE + c] / 0.004f);

            ends += fabsf(q) > 127;
            CHECK(at(CLB_INT8, r, c) == 0.004f * fmaxf(-127, fminf(127, q)));
        }
    CHECK(ends > 10);
    check_loss(CLB_INT8, &loss);
}

/* One group by itself: its scale and codes. */
static uint16_t int4_group(const float *w, uint8_t *code, struct clb_loss *loss)
{
    struct clb_rows m = { w, CLB_F32, 1, CLB_GROUP };
    const uint8_t *step = tile + clb_tile_steps_at(CLB_INT4, CLB_GROUP);
    uint16_t h;

    kernels.int4(tile, &m, &book, loss);
    for (int i = 0; i < 16; i++) {
        code[i] = step[i / 4 * 64 + i % 4] & 15;
        code[16 + i] = step[i / 4 * 64 + i % 4] >> 4;
    }
    memcpy(&h, tile, 2);
    return h;
}

static double group_error(double s, const float *w)
{
    double sum = 0;

    for (int i = 0; i < CLB_GROUP; i++) {
        double best = INFINITY;

        for (int c = 0; c < 16; c++) {
            double d = (double)w[i] - s * clb_book_int4[c];
            best = d * d < best ? d * d : best;
        }
        sum += best;
    }
    return sum;
}

static void int4_codes_are_nearest_for_the_stored_scale(void)
{
    for (int k = 0; k < 20; k++) {
        fill(ldexpf(1, k - 12));
        struct clb_loss loss = pack(CLB_INT4);
        check_loss(CLB_INT4, &loss);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t g = 0; g < STRIDE / CLB_GROUP; g++) {
                uint16_t h;
                double got = 0;

                memcpy(&h, tile + (g * CLB_TILE + r) * 2, 2);
                for (uint32_t c = g * CLB_GROUP; c < (g + 1) * CLB_GROUP; c++) {
                    double d = (double)rows[r * STRIDE + c] - (double)at(CLB_INT4, r, c);
                    got += d * d;
                }
                double want =
                    group_error((double)clb_f16_to_f32(h), rows + r * STRIDE + g * CLB_GROUP);
                CHECK(got <= want * (1 + 1e-6)); /* quotients are f32 */
            }
    }
}

/* Every f16 scale that could do is tried: the search loses at most a few hundredths of a decibel.
 */
static void int4_search_is_close_to_the_best_scale(void)
{
    struct clb_loss loss = { 0 };
    double best_noise = 0;

    for (int k = 0; k < 40; k++) {
        float w[CLB_GROUP], most = 0;
        uint8_t code[CLB_GROUP];
        double best = INFINITY;

        for (int i = 0; i < CLB_GROUP; i++) {
            w[i] = rnd() * 0.02f;
            most = fabsf(w[i]) > most ? fabsf(w[i]) : most;
        }
        int4_group(w, code, &loss);
        for (uint32_t h = 1; h < 0x7c00; h++) {
            double s = (double)clb_f16_to_f32((uint16_t)h), e;

            if (s * 60 > (double)most || s * 200 < (double)most)
                continue;
            e = fmin(group_error(s, w), group_error(-s, w));
            best = e < best ? e : best;
        }
        best_noise += best;
    }
    CHECK(10 * log10(loss.noise / best_noise) < 0.03);
    CHECK(loss.noise >= best_noise * (1 - 1e-9));
}

static void int4_groups_of_zero_tiny_and_large(void)
{
    struct clb_loss loss = { 0 };
    float w[CLB_GROUP] = { 0 };
    uint8_t code[CLB_GROUP];

    CHECK_EQ(int4_group(w, code, &loss), 0);
    CHECK_EQ(clb_book_int4[code[7]], 0);
    w[7] = 1e-30f;
    CHECK_EQ(int4_group(w, code, &loss), 0);
    CHECK_EQ(clb_book_int4[code[7]], 0);
    w[7] = -CLB_INT4_LIMIT;
    uint16_t h = int4_group(w, code, &loss);
    CHECK((h & 0x7c00) != 0x7c00);
    CHECK(fabs(clb_f16_to_f32(h) * clb_book_int4[code[7]] / w[7] - 1) < 0.01);
}

static void floats_are_rounded_to_nearest_even(void)
{
    fill(1);
    rows[0] = 0x1.01p0f; /* bf16: a tie, to even: 1 */
    rows[1] = 0x1.03p0f; /* bf16: a tie, to even: 1.015625 */
    rows[2] = 65504;
    rows[3] = 0x1p-24f;      /* the smallest f16 */
    rows[4] = 0x1p-26f;      /* f16: becomes zero */
    rows[5] = 0x1.8008p-15f; /* f16: subnormal, loses bits */
    rows[6] = -0.0f;
    struct clb_loss loss = pack(CLB_F16);
    check_loss(CLB_F16, &loss);
    CHECK_EQ(loss.underflows, 2);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            CHECK(at(CLB_F16, r, c) == clb_f16_to_f32(clb_f32_to_f16(rows[r * STRIDE + c])));
    loss = pack(CLB_BF16);
    check_loss(CLB_BF16, &loss);
    CHECK(at(CLB_BF16, 0, 0) == 1 && at(CLB_BF16, 0, 1) == 1.015625f);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            CHECK(at(CLB_BF16, r, c) == clb_bf16_to_f32(clb_f32_to_bf16(rows[r * STRIDE + c])));
    loss = pack(CLB_F32);
    CHECK(isinf(clb_loss_sqnr(&loss)));
    for (uint32_t r = 0; r < ROWS; r++)
        CHECK(!memcmp(&(float){ at(CLB_F32, r, 6) }, &rows[r * STRIDE + 6], 4));
}

static void every_16_bit_value_is_widened_exactly(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t x[19];
        float f[19], b[19], want_f = clb_f16_to_f32((uint16_t)h);
        float want_b = clb_bf16_to_f32((uint16_t)h);

        for (int i = 0; i < 19; i++)
            x[i] = (uint16_t)h;
        kernels.widen(f, x, CLB_F16, 19);
        kernels.widen(b, x, CLB_BF16, 19);
        for (int i = 0; i < 19; i++) {
            if (isnan(want_f) ? !isnan(f[i]) : memcmp(&f[i], &want_f, 4) != 0)
                CHECK_EQ(clb_f32_bits(f[i]), clb_f32_bits(want_f));
            if (isnan(want_b) ? !isnan(b[i]) : memcmp(&b[i], &want_b, 4) != 0)
                CHECK_EQ(clb_f32_bits(b[i]), clb_f32_bits(want_b));
        }
    }
}

static void beyond_is_found_at_its_first_place(void)
{
    enum { N = 9000 };
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY, 65520 };
    static float x[N];
    float value;
    size_t found;

    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        for (size_t i = 0; i < N; i += i < 200 ? 7 : 1009) {
            for (size_t j = 0; j < N; j++)
                x[j] = j % 2 ? -65504.0f : FLT_MIN;
            CHECK(!clb_find_beyond(&kernels, x, CLB_F32, N, 65504, &found, &value));
            x[i] = x[N - 1] = bad[k];
            CHECK(clb_find_beyond(&kernels, x, CLB_F32, N, 65504, &found, &value));
            CHECK_EQ(found, i);
            CHECK(!memcmp(&value, &bad[k], sizeof value));
            CHECK(!clb_find_beyond(&kernels, x, CLB_F32, i, 65504, &found, &value));
        }
}

/* A tile with an element that its type cannot hold is refused, wherever it stands. */
static void limits_are_checked_when_packing(void)
{
    static const struct {
        enum clb_dtype t;
        float good, bad;
    } limit[] = {
        { CLB_F16, 65504, 65505 },
        { CLB_BF16, 0x1.FEp127f, FLT_MAX },
        { CLB_F32, FLT_MAX, INFINITY },
        { CLB_INT8, FLT_MAX, NAN },
        { CLB_INT4, CLB_INT4_LIMIT, CLB_INT4_LIMIT * 1.001f },
    };

    for (size_t k = 0; k < sizeof limit / sizeof *limit; k++)
        for (int i = 0; i < ROWS * COLS; i += 53) {
            struct clb_pack p = { &kernels, limit[k].t, false, &book };
            struct clb_loss loss = { 0 };

            fill(1);
            rows[i / COLS * STRIDE + i % COLS] = -limit[k].good;
            CHECK(clb_pack_tile(&p, tile, scale, source(), &loss));
            rows[i / COLS * STRIDE + i % COLS] = limit[k].bad;
            CHECK(!clb_pack_tile(&p, tile, scale, source(), &loss));
        }
}

int main(void)
{
    clb_pack_kernels_for(&kernels, clb_isa_best());
    clb_int4_book_init(&book, clb_book_int4);
    TEST(int8_codes_are_nearest);
    TEST(int8_scales_have_the_least_error);
    TEST(int8_rows_of_zero_and_of_almost_nothing);
    TEST(int8_takes_a_shared_scale);
    TEST(int8_codes_stay_in_range);
    TEST(int4_codes_are_nearest_for_the_stored_scale);
    TEST(int4_search_is_close_to_the_best_scale);
    TEST(int4_groups_of_zero_tiny_and_large);
    TEST(floats_are_rounded_to_nearest_even);
    TEST(every_16_bit_value_is_widened_exactly);
    TEST(beyond_is_found_at_its_first_place);
    TEST(limits_are_checked_when_packing);
    return test_result();
}
