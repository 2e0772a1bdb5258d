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

/* To a multiple of a power of two. */
static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) & -to;
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

/* The scale of a row (lane of its tile) in one group of 32 inputs. */
static float group_scale(const struct clb_matrix *m, const uint8_t *tile, uint32_t group,
                         uint32_t lane)
{
    uint64_t i = (uint64_t)group * CLB_TILE + lane;

    return m->dtype == CLB_MXFP4 ? clb_e8m0(tile[i]) : clb_f16_to_f32(load_u16(tile + 2 * i));
}

static float four_bit_at(const struct clb_matrix *m, const uint8_t *tile, uint32_t lane,
                         uint32_t col)
{
    uint32_t group = col / CLB_GROUP, i = col % CLB_GROUP;
    uint32_t low = i % 16; /* inputs i and i + 16 share a byte */
    const uint8_t *step = tile + clb_tile_steps_at(m->dtype, m->cols) +
                          ((uint64_t)group * 4 + low / 4) * STEP_BYTES;
    uint8_t byte = step[lane * 4 + low % 4];
    int8_t value = m->book[i < 16 ? byte & 15 : byte >> 4];

    return (float)value * group_scale(m, tile, group, lane);
}

/* One float or int8 weight; `four` are the 4 bytes of its row and step, k its place in them. */
static float wide_at(const struct clb_matrix *m, uint32_t row, const uint8_t *four, uint32_t k)
{
    float f;

    switch (m->dtype) {
    case CLB_F16:
        return clb_f16_to_f32(load_u16(four + 2 * k));
    case CLB_BF16:
        return clb_bf16_to_f32(load_u16(four + 2 * k));
    case CLB_INT8:
        return (float)(four[k] - 128) * m->row_scale[row];
    default:
        memcpy(&f, four, sizeof f);
        return f;
    }
}

static const uint8_t *tile_of(const struct clb_matrix *m, uint32_t row)
{
    return m->tiles + row / CLB_TILE * clb_tile_bytes(m->dtype, m->cols);
}

float clb_matrix_at(const struct clb_matrix *m, uint32_t row, uint32_t col)
{
    uint32_t lane = row % CLB_TILE, per_step = dtypes[m->dtype].per_step;
    const uint8_t *tile = tile_of(m, row);

    if (per_step == 8)
        return four_bit_at(m, tile, lane, col);
    return wide_at(m, row, tile + (uint64_t)(col / per_step) * STEP_BYTES + (size_t)lane * 4,
                   col % per_step);
}

/* A whole group of a 4-bit row: 4 steps of 4 bytes, two inputs each. */
static void four_bit_group(const struct clb_matrix *m, const uint8_t *four, float scale, float *out,
                           uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint8_t byte = four[i % 16 / 4 * STEP_BYTES + i % 4];
        out[i] = (float)m->book[i < 16 ? byte & 15 : byte >> 4] * scale;
    }
}

void clb_matrix_row(const struct clb_matrix *m, uint32_t row, float *out)
{
    uint32_t lane = row % CLB_TILE, per_step = dtypes[m->dtype].per_step;
    const uint8_t *tile = tile_of(m, row);
    const uint8_t *four = tile + clb_tile_steps_at(m->dtype, m->cols) + (size_t)lane * 4;

    for (uint32_t c = 0; per_step == 8 && c < m->cols; c += CLB_GROUP) {
        uint32_t n = m->cols - c < CLB_GROUP ? m->cols - c : CLB_GROUP;
        four_bit_group(m, four, group_scale(m, tile, c / CLB_GROUP, lane), out + c, n);
        four += 4 * STEP_BYTES;
    }
    for (uint32_t c = 0; per_step < 8 && c < m->cols; four += STEP_BYTES)
        for (uint32_t k = 0; k < per_step && c < m->cols; k++)
            out[c++] = wide_at(m, row, four, k);
}
