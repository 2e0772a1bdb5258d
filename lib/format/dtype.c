/* dtype.c - sizes and addressing of stored matrices. Everything that knows how a weight lies inside
 * a tile is here; kernels have their own copies of the pattern, checked against clb_matrix_at. */
#include "lib/format/dtype.h"

#include "lib/base/half.h"

/* One row per type. `per_step` inputs of a row share one step; columns are padded to `pad`. */
static const struct {
    const char *name;
    uint32_t pad, per_step;
    uint32_t scale_bytes; /* per row and group of 32, at the head of each tile */
    uint32_t row_major;   /* bytes of one element stored row-major; 0: never */
} dtypes[CLB_DTYPE_COUNT] = {
    [CLB_F32] = { "f32", 1, 1, 0, 4 },           [CLB_F16] = { "fp16", 2, 2, 0, 2 },
    [CLB_BF16] = { "bf16", 2, 2, 0, 2 },         [CLB_INT8] = { "int8", CLB_GROUP, 4, 0, 0 },
    [CLB_INT4] = { "int4", CLB_GROUP, 8, 2, 0 }, [CLB_MXFP4] = { "mxfp4", CLB_GROUP, 8, 1, 0 },
};

enum { STEP_BYTES = 64 };

const int8_t clb_book_mxfp4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
const int8_t clb_book_int4[16] = { -127, -98, -77, -61, -46, -34, -22, -11,
                                   0,    11,  22,  35,  48,  64,  81,  104 };

const char *clb_dtype_name(enum clb_dtype t)
{
    return (unsigned)t < CLB_DTYPE_COUNT ? dtypes[t].name : "?";
}

bool clb_dtype_parse(struct clb_str name, enum clb_dtype *out)
{
    for (int t = 0; t < CLB_DTYPE_COUNT; t++)
        if (clb_str_is(name, dtypes[t].name)) {
            *out = (enum clb_dtype)t;
            return true;
        }
    return false;
}

bool clb_dtype_is_float(enum clb_dtype t)
{
    return dtypes[t].row_major != 0;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

uint32_t clb_cols_padded(enum clb_dtype t, uint32_t cols)
{
    return (uint32_t)round_up(cols, dtypes[t].pad);
}

uint32_t clb_rows_padded(uint32_t rows)
{
    return (uint32_t)round_up(rows, CLB_TILE);
}

uint64_t clb_tile_steps_at(enum clb_dtype t, uint32_t cols)
{
    uint64_t groups = round_up(cols, CLB_GROUP) / CLB_GROUP;

    return round_up(groups * CLB_TILE * dtypes[t].scale_bytes, CLB_ALIGN);
}

uint64_t clb_tile_bytes(enum clb_dtype t, uint32_t cols)
{
    uint64_t steps = clb_cols_padded(t, cols) / dtypes[t].per_step;

    return clb_tile_steps_at(t, cols) + steps * STEP_BYTES;
}

uint64_t clb_tiles_bytes(enum clb_dtype t, uint32_t rows, uint32_t cols)
{
    return clb_rows_padded(rows) / CLB_TILE * clb_tile_bytes(t, cols);
}

uint64_t clb_row_scale_bytes(enum clb_dtype t, uint32_t rows)
{
    return t == CLB_INT8 ? sizeof(float) * clb_rows_padded(rows) : 0;
}

uint64_t clb_rows_bytes(enum clb_dtype t, uint32_t rows, uint32_t cols)
{
    return (uint64_t)dtypes[t].row_major * rows * cols;
}

float clb_e8m0(uint8_t e)
{
    /* 2^(e-128) has the exponent field e - 1; the two smallest are subnormal. */
    return clb_f32_from_bits(e >= 2 ? (uint32_t)(e - 1) << 23 : e ? 0x00400000u : 0x00200000u);
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static float four_bit_at(const struct clb_matrix *m, const uint8_t *tile, uint32_t lane,
                         uint32_t col)
{
    uint32_t group = col / CLB_GROUP, i = col % CLB_GROUP;
    uint32_t byte_of = i % 16; /* inputs i and i + 16 share a byte */
    const uint8_t *step = tile + clb_tile_steps_at(m->dtype, m->cols) +
                          ((uint64_t)group * 4 + byte_of / 4) * STEP_BYTES;
    uint8_t byte = step[lane * 4 + byte_of % 4];
    int8_t value = m->book[i < 16 ? byte & 15 : byte >> 4];
    uint64_t scale = (uint64_t)group * CLB_TILE + lane;

    if (m->dtype == CLB_MXFP4)
        return (float)value * clb_e8m0(tile[scale]);
    return (float)value * clb_f16_to_f32(load_u16(tile + 2 * scale));
}

float clb_matrix_at(const struct clb_matrix *m, uint32_t row, uint32_t col)
{
    uint32_t lane = row % CLB_TILE, per_step = dtypes[m->dtype].per_step;
    const uint8_t *tile = m->tiles + row / CLB_TILE * clb_tile_bytes(m->dtype, m->cols);
    const uint8_t *four = tile + (uint64_t)(col / per_step) * STEP_BYTES + (size_t)lane * 4;
    uint32_t k = col % per_step;
    float f;

    switch (m->dtype) {
    case CLB_F16:
        return clb_f16_to_f32(load_u16(four + 2 * k));
    case CLB_BF16:
        return clb_bf16_to_f32(load_u16(four + 2 * k));
    case CLB_INT8:
        return (float)(four[k] - 128) * m->row_scale[row];
    case CLB_INT4:
    case CLB_MXFP4:
        return four_bit_at(m, tile, lane, col);
    default:
        memcpy(&f, four, sizeof f);
        return f;
    }
}

void clb_matrix_row(const struct clb_matrix *m, uint32_t row, float *out)
{
    for (uint32_t c = 0; c < m->cols; c++)
        out[c] = clb_matrix_at(m, row, c);
}
