#include "lib/import/origin.h"

#include <string.h>

#include "lib/import/convert_impl.h"

const struct clb_arch *clb_convert_arch(const struct clb_conversion *c)
{
    return &c->arch;
}

static void from_tensor(const struct clb_conversion *c, const struct clb_ckpt_tensor *t,
                        struct clb_origin *out)
{
    out->dtype = clb_st_dtype_name(t->t->dtype);
    out->kind = clb_st_as_dtype(t->t->dtype);
    out->kernels = &c->kernels;
    out->file = &c->ckpt.shard[t->shard].map;
    out->at = t->t->begin;
}

void clb_origin_dense(const struct clb_conversion *c, uint32_t i, struct clb_origin *out)
{
    struct clb_tensor_spec s;

    clb_arch_tensor(&c->arch, i, &s);
    *out = (struct clb_origin){ .dtype = "computed", .rows = s.rows, .cols = s.cols };
    if (c->bind.dense[i])
        from_tensor(c, c->bind.dense[i], out);
    else
        out->values =
            s.role == CLB_ROPE_INV_FREQ ? c->extra.inv_freq : c->extra.inv_freq_long;
}

void clb_origin_expert(const struct clb_conversion *c, uint32_t layer, uint32_t expert,
                       enum clb_part part, struct clb_origin *out)
{
    uint32_t inner = c->arch.expert_size, hidden = c->arch.hidden_size;

    *out = (struct clb_origin){ .rows = part == CLB_DOWN ? hidden : inner,
                                .cols = part == CLB_DOWN ? inner : hidden };
    from_tensor(c, clb_bound_expert(&c->bind, layer, expert, part), out);
}

/* `n` 16-bit values from `at`. */
static bool widen(const struct clb_origin *o, uint64_t at, float *out, size_t n,
                  struct clb_err *err)
{
    uint16_t raw[2048];

    while (n > 0) {
        size_t some = n < sizeof raw / sizeof *raw ? n : sizeof raw / sizeof *raw;

        if (!clb_mapfile_read(o->file, raw, at, some * sizeof *raw, err))
            return false;
        o->kernels->widen(out, raw, o->kind, some);
        at += some * sizeof *raw;
        out += some;
        n -= some;
    }
    return true;
}

bool clb_origin_row(const struct clb_origin *o, uint32_t row, float *out, struct clb_err *err)
{
    size_t n = o->cols;
    uint64_t at = o->at + row * clb_rows_bytes(o->kind, 1, o->cols);

    if (!o->file) {
        memcpy(out, o->values, n * sizeof *out);
        return true;
    }
    if (o->kind == CLB_F32)
        return clb_mapfile_read(o->file, out, at, n * sizeof *out, err);
    return widen(o, at, out, n, err);
}
