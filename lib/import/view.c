#include "lib/import/view.h"

static bool is_mxfp4(const struct clb_view *v)
{
    return v->t->t->dtype == CLB_ST_U8;
}

enum clb_dtype clb_view_dtype(const struct clb_view *v)
{
    if (is_mxfp4(v))
        return CLB_MXFP4;
    return v->scale ? CLB_F32 : clb_st_as_dtype(v->t->t->dtype);
}

uint32_t clb_view_bits(const struct clb_view *v)
{
    return is_mxfp4(v) ? 4 : 8 * clb_st_dtype_bytes(v->t->t->dtype);
}

uint64_t clb_view_index(const struct clb_view *v, uint32_t row, uint32_t col)
{
    return v->first + row / v->group_rows * v->group_step + row % v->group_rows * v->row_step +
           col * v->col_step;
}

uint64_t clb_view_byte(const struct clb_view *v, uint64_t index)
{
    return index * clb_view_bits(v) / 8;
}

bool clb_view_is_dense(const struct clb_view *v)
{
    return v->col_step == 1 && v->row_step == v->cols && v->group_rows == v->rows;
}

bool clb_view_is_slice(const struct clb_view *v)
{
    uint64_t bytes = (v->t->t->end - v->t->t->begin) / v->slices;

    return clb_view_is_dense(v) && clb_view_byte(v, v->first) == v->slice * bytes &&
           clb_view_byte(v, (uint64_t)v->rows * v->cols) == bytes;
}

bool clb_view_is_turned(const struct clb_view *v)
{
    return v->col_step > 1 && v->rows > 1;
}

uint64_t clb_view_bytes(const struct clb_view *v)
{
    return clb_view_byte(v, (uint64_t)v->rows * v->cols);
}
