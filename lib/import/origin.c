#include "lib/import/origin.h"

#include <string.h>

#include "lib/import/convert_impl.h"

const struct clb_arch *clb_convert_arch(const struct clb_conversion *c)
{
    return &c->arch;
}

static struct clb_origin of_view(const struct clb_conversion *c, const struct clb_view *v)
{
    return (struct clb_origin){
        .c = c,
        .dtype = clb_view_dtype(v) == CLB_MXFP4 ? "MXFP4" : clb_st_dtype_name(v->t->t->dtype),
        .rows = v->rows,
        .cols = v->cols,
        .view = v,
    };
}

void clb_origin_dense(const struct clb_conversion *c, uint32_t i, struct clb_origin *out)
{
    const struct clb_view *v = &c->bind.dense[i];
    struct clb_tensor_spec s;

    if (v->t) {
        *out = of_view(c, v);
        return;
    }
    clb_arch_tensor(&c->arch, i, &s);
    *out = (struct clb_origin){ .dtype = "computed", .rows = s.rows, .cols = s.cols };
    out->values = s.role == CLB_ROPE_INV_FREQ ? c->extra.inv_freq : c->extra.inv_freq_long;
}

void clb_origin_expert(const struct clb_conversion *c, uint32_t layer, uint32_t expert,
                       enum clb_part part, bool bias, struct clb_origin *out)
{
    const struct clb_view *v = bias ? c->bind.bias : c->bind.expert;

    *out = of_view(c, &v[clb_bound_index(&c->bind, layer, expert, part)]);
}

static bool open_source(struct clb_origin *o, struct clb_err *err)
{
    struct clb_room room = { 0 };

    clb_room_add(&room, o->view);
    o->io.kernels = &o->c->kernels;
    o->io.measuring = true;
    return clb_worker_init(&o->w, &room, err) &&
           clb_source_open(&o->in, &o->w, &o->io, &o->c->ckpt, o->view, err);
}

bool clb_origin_row(struct clb_origin *o, uint32_t row, float *out, struct clb_err *err)
{
    if (o->values) {
        memcpy(out, o->values, o->cols * sizeof *out);
        return true;
    }
    if (!o->w.in && !open_source(o, err))
        return false;
    if (row < o->first || row >= o->first + o->n) {
        uint32_t step = clb_source_step(&o->in);

        o->first = row;
        o->n = o->rows - row < step ? o->rows - row : step;
        if (!clb_source_rows(&o->in, row, o->n, o->w.in, err))
            return false;
    }
    o->io.kernels->widen(out, o->w.in + (row - o->first) * clb_rows_bytes(o->in.dtype, 1, o->cols),
                         o->in.dtype, o->cols);
    return true;
}

void clb_origin_done(struct clb_origin *o)
{
    clb_worker_done(&o->w);
}
