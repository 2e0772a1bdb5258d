#include "lib/import/origin.h"

#include <string.h>

#include "lib/base/mem.h"
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
    if (s.role == CLB_K_UP || s.role == CLB_V_UP)
        out->kv_b = clb_kv_b_of(&c->arch, s.role);
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

static bool read_values(const struct clb_origin *o, uint64_t at, float *out, size_t n,
                        struct clb_err *err)
{
    if (o->kind == CLB_F32)
        return clb_mapfile_read(o->file, out, at, n * sizeof *out, err);
    return widen(o, at, out, n, err);
}

/* Rows of v_up are rows of the tensor; a row of k_up is a column of its head's part. */
static bool kv_b_row(const struct clb_origin *o, uint32_t row, float *out, struct clb_err *err)
{
    const struct clb_kv_b *k = &o->kv_b;
    uint32_t per_head = k->keys ? k->latent : k->value, first = k->keys ? 0 : k->nope;
    size_t width = clb_rows_bytes(o->kind, 1, 1), part = (size_t)k->nope * k->latent;
    uint64_t head = o->at + (uint64_t)(row / per_head) * (k->nope + k->value) * k->latent * width;
    const struct clb_origin plain = { .file = o->file, .kind = o->kind, .kernels = o->kernels };

    if (!k->keys)
        return read_values(&plain, head + (first + row % per_head) * k->latent * width, out,
                           k->latent, err);
    float *all = clb_new(part, sizeof *all, err);
    bool ok = all && read_values(&plain, head, all, part, err);

    for (uint32_t d = 0; ok && d < k->nope; d++)
        out[d] = all[(size_t)d * k->latent + row % per_head];
    clb_free(all);
    return ok;
}

bool clb_origin_row(const struct clb_origin *o, uint32_t row, float *out, struct clb_err *err)
{
    size_t n = o->cols;
    uint64_t at = o->at + row * clb_rows_bytes(o->kind, 1, o->cols);

    if (!o->file) {
        memcpy(out, o->values, n * sizeof *out);
        return true;
    }
    if (o->kv_b.n_head)
        return kv_b_row(o, row, out, err);
    return read_values(o, at, out, n, err);
}
