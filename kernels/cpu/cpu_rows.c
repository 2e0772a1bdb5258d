/* cpu_rows.c - steps on single rows that several stages share. */
#include "kernels/cpu/cpu.h"

#include <string.h>

void clb_cpu_norm_row(const struct clb_backend *be, struct clb_acts *x, uint32_t i, const float *in,
                      const float *weight, bool quantised)
{
    uint32_t n = x->a->hidden_size;
    float *y = x->norm + i * x->ld_hidden;

    be->k.rms_norm(y, in, weight, n, x->a->norm_eps);
    memset(y + n, 0, (x->ld_hidden - n) * sizeof *y);
    if (quantised)
        be->k.quantise(x->record + i * x->hidden_record, y, n);
}

void clb_cpu_residual_row(const struct clb_backend *be, const struct clb_acts *x, float *y,
                          const float *branch)
{
    const struct clb_arch *a = x->a;

    if (a->residual_scale > 0 && a->residual_scale != 1)
        be->k.scale_add(y, branch, a->residual_scale, a->hidden_size);
    else
        be->k.add(y, branch, a->hidden_size);
}
