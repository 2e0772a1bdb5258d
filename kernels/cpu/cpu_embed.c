/* cpu_embed.c - the start of a pass: what was asked for is checked once, tokens become rows, and
 * the angles of their positions are computed for all layers. */
#include "kernels/cpu/cpu.h"

#include "lib/base/fmath.h"

enum { HUGE_FROM = 64 }; /* rows */

/* Rows of one array lie side by side: many of them use huge pages well, a single one would pay for
 * zeroing 2 MB in each array. */
static void want_huge(struct clb_acts *x, uint32_t n_row)
{
    if (x->huge || n_row < HUGE_FROM)
        return;
    clb_pages_huge(x, x->bytes);
    x->huge = true;
}

bool clb_cpu_begin(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                   const struct clb_pass *p, struct clb_err *err)
{
    const struct clb_arch *a = w->arch;
    uint32_t most = CLB_CPU_QUERIES / (a->n_head / x->n_kv_head); /* of a group; 0 counts as 1 */

    (void)be;
    if (!clb_pass_check(p, &x->shape, x->top_k, err))
        return false;
    want_huge(x, p->n_row);
    x->w = w;
    x->a = a;
    x->p = p;
    x->n_group = 0;
    for (uint32_t r = 0, n; r < p->n_row; r += n) {
        for (n = 1; n < most && r + n < p->n_row && p->sequence[r + n] == p->sequence[r];)
            n++;
        x->group[x->n_group++] = (struct clb_cpu_group){ .row = r, .n = n };
    }
    return true;
}

/* angle = position * inverse frequency in f32, as the reference has it; sine, cosine in double. */
static void rope_row(struct clb_acts *x, uint32_t r)
{
    const struct clb_kv_seq *s = x->p->seq[x->p->sequence[r]];
    uint32_t n = x->a->rope_dim / 2;
    float scale = s->rope_scale > 0 ? s->rope_scale : 1;
    float *cosine = x->cosine + (size_t)r * n, *sine = x->sine + (size_t)r * n;

    for (uint32_t i = 0; i < n; i++) {
        float angle = (float)x->p->position[r] * s->inv_freq[i];
        double sin_, cos_;

        clb_sincos(angle, &sin_, &cos_);
        cosine[i] = (float)cos_ * scale;
        sine[i] = (float)sin_ * scale;
    }
}

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
};

static void embed(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    const struct clb_weights *w = x->w;
    uint32_t n = x->a->hidden_size, first, last;
    size_t row_bytes = clb_rows_bytes(w->embed_dtype, 1, n);
    float scale = x->a->embedding_scale;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++) {
        float *y = x->x + r * x->ld_hidden;

        j->be->k.widen(y, (const uint8_t *)w->embed + (size_t)x->p->token[r] * row_bytes,
                       w->embed_dtype, n);
        if (scale > 0 && scale != 1)
            j->be->k.scale(y, scale, n);
        rope_row(x, r);
    }
}

bool clb_cpu_embed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    uint64_t cost = x->p->n_row * (x->a->hidden_size * 4ull + x->a->rope_dim * 1500ull);

    clb_cpu_run(be, cost, embed, &(struct job){ .be = be, .x = x });
    (void)err;
    return true;
}
