/* cpu_attn_project.c - norm, queries, keys and values, their norms, clip and rotation; then the new
 * keys and values go to the KV cache. */
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "lib/base/fmath.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    bool quantised;
    struct clb_cpu_list qkv;
};

static float norm_eps(const struct clb_arch *a)
{
    return a->qk_norm_eps > 0 ? a->qk_norm_eps : a->norm_eps;
}

static void norm_heads(const struct job *j, float *y, uint32_t n_head, const float *weight)
{
    uint32_t n = j->x->a->head_dim;

    for (uint32_t h = 0; h < n_head; h++)
        j->be->k.rms_norm(y + h * n, y + h * n, weight, n, norm_eps(j->x->a));
}

/* Heads of one row side by side: n_head * head_dim. */
static void finish_heads(const struct job *j, float *y, uint32_t n_head, const float *weight,
                         uint32_t r)
{
    const struct clb_arch *a = j->x->a;
    const struct clb_kernels *k = &j->be->k;
    bool rotated = a->rope != CLB_ROPE_NONE && !a->no_rope[j->l->index];

    if (a->qk_norm == CLB_QK_NORM_FULL)
        k->rms_norm(y, y, weight, n_head * a->head_dim, norm_eps(a));
    if (a->qk_norm == CLB_QK_NORM_HEAD)
        norm_heads(j, y, n_head, weight);
    if (a->clip_qkv > 0)
        k->clip(y, a->clip_qkv, n_head * a->head_dim);
    for (uint32_t h = 0; h < n_head; h++)
        clb_cpu_rotate(j->be, j->x, j->l, y + h * a->head_dim, r);
    if (a->qk_norm == CLB_QK_NORM_HEAD_AFTER_ROPE || (a->qk_norm == CLB_QK_NORM_L2 && rotated))
        norm_heads(j, y, n_head, weight);
}

/* Llama 4 makes queries of layers without rope longer with their position. */
static void scale_by_position(const struct job *j, uint32_t r)
{
    const struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;
    float steps = floorf(((float)x->p->position[r] + 1) / a->attn_temperature_floor);
    float scale = 1 + a->attn_temperature_scale * (float)clb_log(1 + (double)steps);

    j->be->k.scale(x->q + r * x->ld_q, scale, a->n_head * a->head_dim);
}

static void project(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;
    uint32_t first, last;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_branch_row(j->be, x, r, clb_cpu_attn_norm(j->l), j->quantised);
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->qkv, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++) {
        finish_heads(j, x->q + r * x->ld_q, a->n_head, j->l->q_norm, r);
        finish_heads(j, x->k + r * x->ld_k, a->n_kv_head, j->l->k_norm, r);
        if (a->attn_temperature_scale > 0 && a->no_rope[j->l->index])
            scale_by_position(j, r);
        if (a->clip_qkv > 0)
            j->be->k.clip(x->v + r * x->ld_v, a->clip_qkv, a->n_kv_head * a->value_dim);
    }
    clb_cpu_append(j->be, x, j->l->index, first, last);
}

bool clb_cpu_attn_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          struct clb_err *err)
{
    const struct clb_matrix *w[3] = { &l->q, &l->k, &l->v };
    float *const y[3] = { x->q, x->k, x->v };
    const size_t ld[3] = { x->ld_q, x->ld_k, x->ld_v };
    struct job j = { .be = be, .x = x, .l = l, .qkv = { .l = x->linear, .n = 3 } };

    (void)err;
    if (x->a->attention == CLB_ATTN_MLA)
        return clb_cpu_mla_project(be, x, l);
    for (int i = 0; i < 3; i++) {
        j.quantised |= clb_cpu_quantised(w[i]);
        x->linear[i] = (struct clb_cpu_linear){
            .w = *w[i], .x = clb_cpu_norm_rows(x), .n_row = x->p->n_row, .y = y[i], .ldy = ld[i]
        };
    }
    clb_cpu_list_plan(be, &j.qkv);
    clb_cpu_run(be, j.qkv.cost, project, &j);
    return true;
}
