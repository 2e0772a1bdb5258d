#include "lib/import/decode.h"

#include <math.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/format/dtype.h"

static inline float e4m3(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;

    if (rest == 0x7f)
        return NAN;
    if (rest < 8) { /* subnormal: eighths of 2^-6 */
        float f = (float)rest * 0x1p-9f;
        return sign ? -f : f;
    }
    return clb_f32_from_bits(sign | ((rest << 20) + (120u << 23)));
}

float clb_e4m3(uint8_t code)
{
    return e4m3(code);
}

void clb_decode_fp8(float *out, const uint8_t *code, uint64_t index, size_t n,
                    const struct clb_fp8_scales *s)
{
    uint64_t row = index / s->line;
    uint32_t col = (uint32_t)(index % s->line);
    uint64_t per_row = (s->line + s->block_cols - 1) / s->block_cols;

    while (n > 0) {
        float scale = s->scale[row / s->block_rows * per_row + col / s->block_cols];
        uint32_t in_block = s->block_cols - col % s->block_cols, in_line = s->line - col;
        uint32_t some = in_block < in_line ? in_block : in_line;

        some = some < n ? some : (uint32_t)n;
        for (uint32_t i = 0; i < some; i++)
            out[i] = e4m3(code[i]) * scale;
        out += some;
        code += some;
        n -= some;
        col += some;
        if (col == s->line) {
            col = 0;
            row++;
        }
    }
}

void clb_decode_mxfp4(float *out, const uint8_t *code, const uint8_t *scale, size_t n_group)
{
    float value[16];

    for (size_t g = 0; g < n_group; g++, code += CLB_GROUP / 2, out += CLB_GROUP) {
        float s = scale[g] == 255 ? NAN : clb_e8m0(scale[g]);

        for (int i = 0; i < 16; i++)
            value[i] = (float)clb_book_mxfp4[i] * s;
        for (int i = 0; i < CLB_GROUP / 2; i++) {
            out[2 * i] = value[code[i] & 15];
            out[2 * i + 1] = value[code[i] >> 4];
        }
    }
}

/* Eight codes, one in the low half of each byte. */
static uint64_t spread(const uint8_t code[4])
{
    uint32_t four;

    memcpy(&four, code, sizeof four);
    uint64_t x = four;
    x = (x | x << 16) & 0x0000ffff0000ffff;
    x = (x | x << 8) & 0x00ff00ff00ff00ff;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}

void clb_mxfp4_steps(uint8_t *out, size_t step, const uint8_t code[16])
{
    for (int i = 0; i < 2; i++) {
        uint64_t both = spread(code + 4 * i) | spread(code + 8 + 4 * i) << 4;

        memcpy(out, &both, 4);
        memcpy(out + step, (const uint8_t *)&both + 4, 4);
        out += 2 * step;
    }
}
