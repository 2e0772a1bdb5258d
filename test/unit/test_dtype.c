/* Sizes and addressing of the stored types. */
#include "lib/format/dtype.h"

#include <math.h>

#include "lib/base/half.h"
#include "test/check.h"

static void names(void)
{
    for (int t = 0; t < CLB_DTYPE_COUNT; t++) {
        enum clb_dtype back = CLB_DTYPE_COUNT;
        CHECK(clb_dtype_parse(clb_str(clb_dtype_name((enum clb_dtype)t)), &back));
        CHECK_EQ(back, t);
    }
    enum clb_dtype t;
    CHECK(!clb_dtype_parse(clb_str("int9"), &t));
    CHECK(!clb_dtype_parse(clb_str(""), &t));
}

static void sizes(void)
{
    /* Counted by hand: 17 rows are two tiles; 33 inputs are 33 steps of f32, 17 of bf16, 2 groups.
     */
    CHECK_EQ(clb_tiles_bytes(CLB_F32, 17, 33), 2 * 33 * 64);
    CHECK_EQ(clb_tiles_bytes(CLB_BF16, 17, 33), 2 * 17 * 64);
    CHECK_EQ(clb_tiles_bytes(CLB_F16, 16, 1), 64);
    CHECK_EQ(clb_tiles_bytes(CLB_INT8, 17, 33), 2 * 16 * 64);
    CHECK_EQ(clb_row_scale_bytes(CLB_INT8, 17), 32 * 4);
    CHECK_EQ(clb_row_scale_bytes(CLB_INT4, 17), 0);
    CHECK_EQ(clb_tile_steps_at(CLB_INT4, 33), 2 * 16 * 2);
    CHECK_EQ(clb_tile_steps_at(CLB_MXFP4, 33), 64); /* 32 bytes of scales, padded */
    CHECK_EQ(clb_tile_bytes(CLB_INT4, 33), 64 + 2 * 4 * 64);
    CHECK_EQ(clb_rows_bytes(CLB_BF16, 3, 5), 30);
    /* The largest legal matrix does not overflow. */
    CHECK(clb_tiles_bytes(CLB_F32, 0x7fffffff, 0x7fffffff) > (uint64_t)1 << 63);
    CHECK_EQ(clb_cols_padded(CLB_INT8, 0x7fffffff), 0x80000000u);
}

static void e8m0(void)
{
    for (int e = 0; e < 255; e++)
        CHECK(clb_e8m0((uint8_t)e) == ldexpf(1, e - 128));
}

static void books(void)
{
    static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    int zero = 0;

    for (int i = 0; i < 8; i++) {
        CHECK_EQ(clb_book_mxfp4[i], 2 * e2m1[i]);
        CHECK_EQ(clb_book_mxfp4[8 + i], -2 * e2m1[i]);
    }
    for (int i = 0; i < 16; i++) {
        zero += clb_book_int4[i] == 0;
        CHECK(i == 0 || clb_book_int4[i] > clb_book_int4[i - 1]);
    }
    CHECK_EQ(zero, 1);
    CHECK_EQ(clb_book_int4[0], -127);
}

/* One known weight at a place computed here from the text of dtype.h, everything else zero. */
static uint8_t tiles[2 * 64 * 64 + 4096];
static float scales[32];

static float look(enum clb_dtype t, uint32_t row, uint32_t col)
{
    struct clb_matrix m = { .dtype = t,
                            .rows = 20,
                            .cols = 40,
                            .tiles = tiles,
                            .row_scale = t == CLB_INT8 ? scales : NULL,
                            .book = t == CLB_INT4 ? clb_book_int4 : clb_book_mxfp4 };
    float out[40];

    clb_matrix_row(&m, row, out);
    CHECK(out[col] == clb_matrix_at(&m, row, col));
    return out[col];
}

static void places_float(void)
{
    float f = 1.5f;
    uint16_t h = clb_f32_to_bf16(-2.5f);

    memset(tiles, 0, sizeof tiles);
    memcpy(tiles + 40 * 64 + 37 * 64 + 3 * 4, &f, 4); /* second tile, step 37, row 16 + 3 */
    CHECK(look(CLB_F32, 19, 37) == 1.5f);
    CHECK(look(CLB_F32, 18, 37) == 0);
    memset(tiles, 0, sizeof tiles);
    memcpy(tiles + 20 * 64 + 18 * 64 + 3 * 4 + 2, &h, 2); /* input 37 is the second of step 18 */
    CHECK(look(CLB_BF16, 19, 37) == -2.5f);
    h = clb_f32_to_f16(0.25f);
    memcpy(tiles + 20 * 64 + 18 * 64 + 3 * 4 + 2, &h, 2);
    CHECK(look(CLB_F16, 19, 37) == 0.25f);
}

static void places_int8(void)
{
    memset(tiles, 0x80, sizeof tiles);
    scales[19] = 0.5f;
    tiles[16 * 64 + 9 * 64 + 3 * 4 + 1] =
        128 - 7; /* 16 steps a tile; input 37 is byte 1 of step 9 */
    CHECK(look(CLB_INT8, 19, 37) == -3.5f);
    CHECK(look(CLB_INT8, 19, 36) == 0);
}

static void places_int4(void)
{
    size_t tile = 64 + 8 * 64; /* two groups: 64 bytes of scales, 8 steps */
    uint16_t two = clb_f32_to_f16(-2);

    memset(tiles, 0, sizeof tiles);
    memcpy(tiles + tile + 2 * (16 + 3), &two, 2); /* group 1, row 3 */
    tiles[tile + 64 + 5 * 64 + 3 * 4 + 1] = 0xf8; /* group 1, step 1, byte 1: inputs 37 and 53 */
    CHECK(look(CLB_INT4, 19, 37) == 0);           /* code 8 is the zero of the book */
    tiles[tile + 64 + 5 * 64 + 3 * 4 + 1] = 0x80;
    CHECK(look(CLB_INT4, 19, 37) == 254); /* code 0: -127 * -2 */
    /* The high nibble belongs to an input 16 further. */
    memcpy(tiles + 2 * 3, &two, 2);
    tiles[64 + 1 * 64 + 3 * 4 + 1] = 0x18; /* first tile, group 0: inputs 5 and 21 */
    CHECK(look(CLB_INT4, 3, 5) == 0);
    CHECK(look(CLB_INT4, 3, 21) == 196); /* code 1: -98 * -2 */
}

static void places_mxfp4(void)
{
    memset(tiles, 0, sizeof tiles);
    tiles[16 + 3] = 130;                   /* 2^2, group 1, row 3 */
    tiles[64 + 5 * 64 + 3 * 4 + 1] = 0x0f; /* code 15: -12 */
    CHECK(look(CLB_MXFP4, 3, 37) == -48);
}

int main(void)
{
    TEST(names);
    TEST(sizes);
    TEST(e8m0);
    TEST(books);
    TEST(places_float);
    TEST(places_int8);
    TEST(places_int4);
    TEST(places_mxfp4);
    return test_result();
}
