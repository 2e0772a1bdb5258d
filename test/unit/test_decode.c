/* Codes and scales to numbers, against their definitions in doubles. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/format/dtype.h"
#include "lib/import/decode.h"
#include "test/check.h"

static double e4m3_by_definition(int code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double v = exponent ? ldexp(8 + fraction, exponent - 7 - 3) : ldexp(fraction, -6 - 3);

    return code & 0x80 ? -v : v;
}

static void e4m3_all_codes(void)
{
    for (int code = 0; code < 256; code++) {
        float v = clb_e4m3((uint8_t)code);

        if ((code & 0x7f) == 0x7f) {
            CHECK(isnan(v));
            continue;
        }
        CHECK((double)v == e4m3_by_definition(code));
        CHECK(!signbit(v) == !(code & 0x80));
    }
    CHECK(clb_e4m3(0x7e) == 448);
    CHECK(clb_e4m3(0x01) == 0x1p-9f);
}

enum { ROWS = 37, LINE = 45, BLOCK_ROWS = 16, BLOCK_COLS = 20, PER_ROW = 3, N = ROWS * LINE };

/* Blocks at both edges are cut; pieces begin and end anywhere. */
static void fp8_blocks(void)
{
    static uint8_t code[N];
    static float scale[3 * PER_ROW], out[N + 1];
    const struct clb_fp8_scales s = { scale, LINE, BLOCK_ROWS, BLOCK_COLS };

    for (int i = 0; i < N; i++)
        code[i] = (uint8_t)((i * 7 + i / 100) % 127);
    for (int i = 0; i < 3 * PER_ROW; i++)
        scale[i] = 0.37f * (float)(i + 1);
    for (size_t piece = 1; piece <= N; piece = piece * 3 + 1) {
        memset(out, 0, sizeof out);
        for (size_t at = 0; at < N; at += piece)
            clb_decode_fp8(out + at, code + at, at, N - at < piece ? N - at : piece, &s);
        for (int i = 0; i < N; i++) {
            int row = i / LINE, col = i % LINE;
            float want = scale[row / BLOCK_ROWS * PER_ROW + col / BLOCK_COLS];
            CHECK(out[i] == (float)e4m3_by_definition(code[i]) * want);
        }
        CHECK(out[N] == 0);
    }
}

static const double e2m1[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };

static void mxfp4_groups(void)
{
    uint8_t code[2 * 16], scale[2] = { 0, 0 };
    float out[2 * 32];

    for (int i = 0; i < 32; i++)
        code[i] = (uint8_t)(i * 37 + 11);
    for (int e = 0; e < 252; e++) { /* beyond, 6 * 2^(e - 127) can be infinite */
        scale[0] = (uint8_t)e;
        scale[1] = (uint8_t)(251 - e);
        clb_decode_mxfp4(out, code, scale, 2);
        for (int i = 0; i < 64; i++) {
            int c = i % 2 ? code[i / 2] >> 4 : code[i / 2] & 15;
            double v = ldexp(e2m1[c & 7], scale[i / 32] - 127);
            CHECK((double)out[i] == (c & 8 ? -v : v));
        }
    }
    scale[0] = 255;
    clb_decode_mxfp4(out, code, scale, 1);
    CHECK(isnan(out[0]) && isnan(out[31]));
}

/* What was laid into a tile is read by clb_matrix_at. */
static void mxfp4_in_a_tile(void)
{
    enum { COLS = 96, ROW = 5 };
    static uint8_t tile[4096];
    uint8_t code[COLS / 2], scale[COLS / 32] = { 120, 127, 133 };
    float out[COLS];
    const struct clb_matrix m = {
        .dtype = CLB_MXFP4, .rows = 16, .cols = COLS, .tiles = tile, .book = clb_book_mxfp4
    };
    uint8_t *step = tile + clb_tile_steps_at(CLB_MXFP4, COLS) + (size_t)ROW * 4;

    for (int i = 0; i < COLS / 2; i++)
        code[i] = (uint8_t)(i * 91 + 5);
    for (int g = 0; g < COLS / 32; g++) {
        tile[g * CLB_TILE + ROW] = scale[g];
        clb_mxfp4_steps(step + g * 256, 64, code + g * 16);
    }
    clb_decode_mxfp4(out, code, scale, COLS / 32);
    for (uint32_t c = 0; c < COLS; c++)
        CHECK(clb_matrix_at(&m, ROW, c) == out[c]);
    CHECK(clb_matrix_at(&m, ROW - 1, 3) == 0 && clb_matrix_at(&m, ROW + 1, 3) == 0);
}

int main(void)
{
    TEST(e4m3_all_codes);
    TEST(fp8_blocks);
    TEST(mxfp4_groups);
    TEST(mxfp4_in_a_tile);
    return test_result();
}
