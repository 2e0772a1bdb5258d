/* cpu_rows.c - steps on single rows that several stages share. */
#include "kernels/cpu/cpu.h"

#include <string.h>

static void norm(const struct clb_backend *be, const struct clb_arch *a, float *y, const float *in,
                 struct clb_cpu_norm w)
{
    if (a->norm == CLB_NORM_LAYER)
        be->k.layer_norm(y, in, w.weight, w.bias, a->hidden_size, a->norm_eps);
    else
        be->k.rms_norm(y, in, w.weight, a->hidden_size, a->norm_eps);
}

/* Row i of the branch's input is there: its padding, and its record. */
static void finish(const struct clb_backend *be, struct clb_acts *x, uint32_t i, bool quantised)
{
    uint32_t n = x->a->hidden_size;
    float *y = x->norm + i * x->ld_hidden;

    memset(y + n, 0, (x->ld_hidden - n) * sizeof *y);
    if (quantised)
        be->k.quantise(x->record + i * x->hidden_record, y, n);
}

void clb_cpu_norm_row(const struct clb_backend *be, struct clb_acts *x, uint32_t i, const float *in,
                      struct clb_cpu_norm w, bool quantised)
{
    norm(be, x->a, x->norm + i * x->ld_hidden, in, w);
    finish(be, x, i, quantised);
}

void clb_cpu_branch_row(const struct clb_backend *be, struct clb_acts *x, uint32_t row,
                        struct clb_cpu_norm w, bool quantised)
{
    const float *in = x->x + row * x->ld_hidden;

    if (x->a->norm_place == CLB_NORM_AFTER)
        memcpy(x->norm + row * x->ld_hidden, in, x->a->hidden_size * sizeof *in);
    else
        norm(be, x->a, x->norm + row * x->ld_hidden, in, w);
    finish(be, x, row, quantised);
}

void clb_cpu_rotate(const struct clb_backend *be, const struct clb_acts *x,
                    const struct clb_layer *l, float *head, uint32_t row)
{
    const struct clb_arch *a = x->a;
    const float *cosine = x->cosine + (size_t)row * (a->rope_dim / 2);
    const float *sine = x->sine + (size_t)row * (a->rope_dim / 2);

    if (a->rope == CLB_ROPE_NONE || a->no_rope[l->index])
        return;
    if (a->rope == CLB_ROPE_HALF)
        be->k.rope_half(head, cosine, sine, a->rope_dim);
    else
        be->k.rope_interleaved(head, cosine, sine, a->rope_dim);
}

void clb_cpu_residual_row(const struct clb_backend *be, const struct clb_acts *x, uint32_t row,
                          float *branch, struct clb_cpu_norm w)
{
    const struct clb_arch *a = x->a;
    float *y = x->x + row * x->ld_hidden;

    if (a->norm_place == CLB_NORM_AFTER)
        norm(be, a, branch, branch, w);
    if (a->residual_scale > 0 && a->residual_scale != 1)
        be->k.scale_add(y, branch, a->residual_scale, a->hidden_size);
    else
        be->k.add(y, branch, a->hidden_size);
}
