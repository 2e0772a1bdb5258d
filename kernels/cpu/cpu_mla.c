/* cpu_mla.c - multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), absorbed:
 * the cache holds the normalised latent and the rotated key that all heads share. k_up takes a
 * head's query into the latent's space, so that attention meets one KV head whose keys are latent
 * and rotated key side by side and whose values are the latent; v_up takes what a head mixed out of
 * latents to its values. Prefill and decode compute the same. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    bool quantised;
    struct clb_cpu_list down, up; /* from hidden; from the query's latent */
    atomic_uint next;
};

/* One head's product: rows at .. at + n_out - 1 of w on n_row inputs that lie ld_in apart. */
struct head {
    const struct clb_matrix *w;
    uint32_t at, n_out;
    const float *in;
    size_t ld_in;
    float *out;
    size_t ld_out;
};

static const void *head_input(const struct clb_backend *be, const struct clb_cpu_head_scratch *s,
                              const struct head *h, uint32_t i)
{
    uint32_t n = h->w->cols, padded = clb_cols_padded(h->w->dtype, n);
    const float *in = h->in + i * h->ld_in;

    if (clb_cpu_quantised(h->w)) {
        uint8_t *record = s->record + i * clb_record_bytes(n);

        be->k.quantise(record, in, n);
        return record;
    }
    float *copy = memcpy(s->in + i * (size_t)padded, in, n * sizeof *in);
    memset(copy + n, 0, (padded - n) * sizeof *copy);
    return copy;
}

/* The head's rows may begin and end inside a tile: whole tiles go to scratch. */
static void head_product(const struct clb_backend *be, const struct clb_cpu_head_scratch *s,
                         const struct head *h, uint32_t n_row)
{
    size_t tile_bytes = clb_tile_bytes(h->w->dtype, h->w->cols);
    uint32_t first = h->at / CLB_TILE, end = (h->at + h->n_out + CLB_TILE - 1) / CLB_TILE;
    const void *x[CLB_CPU_HEAD_ROWS];
    struct clb_matmul m = {
        .tiles = h->w->tiles + first * tile_bytes,
        .tile_bytes = tile_bytes,
        .n_tile = end - first,
        .cols = clb_cols_padded(h->w->dtype, h->w->cols),
        .row_scale = h->w->row_scale ? h->w->row_scale + first * CLB_TILE : NULL,
        .book = h->w->book,
        .x = x,
        .n_row = n_row,
        .y = s->out,
        .ldy = (size_t)(end - first) * CLB_TILE,
    };

    for (uint32_t i = 0; i < n_row; i++)
        x[i] = head_input(be, s, h, i);
    be->k.matmul[h->w->dtype](&m);
    for (uint32_t i = 0; i < n_row; i++)
        memcpy(h->out + i * h->ld_out, s->out + i * m.ldy + h->at % CLB_TILE,
               h->n_out * sizeof *h->out);
}

/* Heads and pieces of rows are taken dynamically. `all` is of head 0 and row 0; the next head lies
 * step_in and step_out further. */
static void every_head(const struct clb_backend *be, const struct clb_acts *x,
                       const struct head *all, uint32_t step_in, uint32_t step_out,
                       atomic_uint *next, unsigned thread)
{
    uint32_t n_row = x->p->n_row, pieces = (n_row + CLB_CPU_HEAD_ROWS - 1) / CLB_CPU_HEAD_ROWS, i;

    while (clb_take(next, x->a->n_head * pieces, &i)) {
        uint32_t head = i / pieces, row = i % pieces * CLB_CPU_HEAD_ROWS, left = n_row - row;
        struct head h = *all;

        h.at = head * h.n_out;
        h.in += row * h.ld_in + (size_t)head * step_in;
        h.out += row * h.ld_out + (size_t)head * step_out;
        head_product(be, &x->head[thread], &h, left < CLB_CPU_HEAD_ROWS ? left : CLB_CPU_HEAD_ROWS);
    }
}

static float lora_eps(const struct clb_arch *a)
{
    return a->lora_norm_eps > 0 ? a->lora_norm_eps : a->norm_eps;
}

/* The latents of one row: norms, and the rotation of the shared key. */
static void finish_latents(const struct job *j, uint32_t r)
{
    struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;
    float *kv = x->k + r * x->ld_k, *q = x->q_a + r * x->ld_q_a;

    j->be->k.rms_norm(kv, kv, j->l->kv_a_norm, a->kv_lora_rank, lora_eps(a));
    clb_cpu_rotate(j->be, x, j->l, kv + a->kv_lora_rank, r);
    if (!a->q_lora_rank)
        return;
    j->be->k.rms_norm(q, q, j->l->q_a_norm, a->q_lora_rank, lora_eps(a));
    memset(q + a->q_lora_rank, 0, (x->ld_q_a - a->q_lora_rank) * sizeof *q);
    if (clb_cpu_quantised(&j->l->q))
        j->be->k.quantise(x->q_a_record + r * x->q_a_record_bytes, q, a->q_lora_rank);
}

static void rotate_queries(const struct job *j, uint32_t r)
{
    const struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;

    for (uint32_t h = 0; h < a->n_head; h++) {
        float *to = x->query + r * x->ld_query + (size_t)h * x->key_dim + a->kv_lora_rank;

        memcpy(to, x->q + r * x->ld_q + (size_t)h * a->head_dim + a->qk_nope_dim,
               a->qk_rope_dim * sizeof *to);
        clb_cpu_rotate(j->be, x, j->l, to, r);
    }
}

static void project(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;
    const struct head absorb = {
        .w = &j->l->k_up,
        .n_out = a->kv_lora_rank,
        .in = x->q,
        .ld_in = x->ld_q,
        .out = x->query,
        .ld_out = x->ld_query,
    };
    uint32_t first, last;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_branch_row(j->be, x, r, clb_cpu_attn_norm(j->l), j->quantised);
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->down, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        finish_latents(j, r);
    clb_cpu_append(j->be, x, j->l->index, first, last);
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->up, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        rotate_queries(j, r);
    every_head(j->be, x, &absorb, a->head_dim, x->key_dim, &j->next, thread);
}

static struct clb_cpu_linear product(const struct clb_acts *x, const struct clb_matrix *w,
                                     struct clb_cpu_rows from, float *y, size_t ldy)
{
    return (struct clb_cpu_linear){ .w = *w, .x = from, .n_row = x->p->n_row, .y = y, .ldy = ldy };
}

bool clb_cpu_mla_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l)
{
    struct clb_cpu_rows hidden = clb_cpu_norm_rows(x), latent = {
        .f32 = x->q_a,
        .ld = x->ld_q_a,
        .record = x->q_a_record,
        .record_bytes = x->q_a_record_bytes,
    };
    struct job j = {
        .be = be,
        .x = x,
        .l = l,
        .quantised =
            clb_cpu_quantised(&l->kv_a) || clb_cpu_quantised(&l->q_a) || clb_cpu_quantised(&l->q),
        .down = { .l = x->linear, .n = 2 },
        .up = { .l = x->linear + 2, .n = l->q_a.tiles != NULL },
    };

    x->linear[0] = product(x, &l->kv_a, hidden, x->k, x->ld_k);
    if (j.up.n) {
        x->linear[1] = product(x, &l->q_a, hidden, x->q_a, x->ld_q_a);
        x->linear[2] = product(x, &l->q, latent, x->q, x->ld_q);
    } else {
        x->linear[1] = product(x, &l->q, hidden, x->q, x->ld_q);
    }
    clb_cpu_list_plan(be, &j.down);
    clb_cpu_list_plan(be, &j.up);
    clb_cpu_run(be, j.down.cost + j.up.cost, project, &j);
    return true;
}

void clb_cpu_mla_values(const struct clb_backend *be, const struct clb_acts *x,
                        const struct clb_layer *l, atomic_uint *next, unsigned thread)
{
    const struct head values = {
        .w = &l->v_up,
        .n_out = x->a->value_dim,
        .in = x->mixed,
        .ld_in = x->ld_mixed,
        .out = x->mix,
        .ld_out = x->ld_mix,
    };

    every_head(be, x, &values, x->value_dim, x->a->value_dim, next, thread);
}
