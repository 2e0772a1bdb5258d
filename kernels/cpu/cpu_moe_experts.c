/* cpu_moe_experts.c - every active expert once, on all its rows, read through the index map;
 * results stand in slot order. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const uint8_t *const *block;
    struct clb_cpu_mlp mlp;
};

/* Llama 4: an expert reads its rows times their weights. They go where its results will be. */
static void scale_input(const struct job *j, uint32_t slot)
{
    const struct clb_acts *x = j->x;
    const struct clb_routes *r = &x->routes;
    size_t row = r->row[slot], i = row * r->top_k;
    float *y = x->slot_out + slot * x->ld_hidden;

    while (r->slot[i] != slot)
        i++;
    memcpy(y, x->norm + row * x->ld_hidden, x->ld_hidden * sizeof *y);
    j->be->k.scale(y, r->weight[i], x->a->hidden_size);
    j->be->k.quantise(x->slot_record + slot * x->hidden_record, y, x->a->hidden_size);
}

/* Only for the experts of this call: the slots of earlier ones hold results. */
static void scale_inputs(const struct job *j, unsigned thread, unsigned n_thread)
{
    const struct clb_routes *r = &j->x->routes;

    for (uint32_t i = 0; i < r->n_active; i++)
        for (uint32_t s = r->first[r->active[i]]; j->block[i] && s < r->first[r->active[i] + 1];
             s++)
            if (s % n_thread == thread)
                scale_input(j, s);
    clb_pool_barrier(j->be->pool);
}

static void run(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;

    if (j->x->a->scale_expert_input)
        scale_inputs(j, thread, n_thread);
    clb_cpu_mlp_run(j->be, j->x, &j->mlp, thread, n_thread);
}

static void add_expert(struct job *j, const struct clb_layer *l, uint32_t expert,
                       const uint8_t *block)
{
    const struct clb_acts *x = j->x;
    struct clb_cpu_rows from = clb_cpu_norm_rows(x);
    struct clb_matrix part[CLB_PARTS];
    uint32_t slot = x->routes.first[expert];

    for (int p = 0; p < CLB_PARTS; p++)
        part[p] = clb_expert_matrix(x->w->reader, l->experts, (enum clb_part)p, block);
    if (x->a->scale_expert_input) {
        from.f32 = x->slot_out + slot * x->ld_hidden;
        from.record = x->slot_record + slot * x->hidden_record;
    } else {
        from.index = x->routes.row + slot;
    }
    clb_cpu_mlp_set(x, &j->mlp, j->mlp.in.n++, part, &from, x->routes.first[expert + 1] - slot,
                    slot, x->slot_out + slot * x->ld_hidden);
    j->mlp.out.n = j->mlp.in.n;
}

bool clb_cpu_moe_experts(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         const uint8_t *const *block, struct clb_err *err)
{
    struct job j = {
        .be = be,
        .x = x,
        .block = block,
        .mlp = { .in = { .l = x->linear }, .out = { .l = x->linear + l->n_expert } },
    };

    (void)err;
    for (uint32_t i = 0; i < x->routes.n_active; i++)
        if (block[i])
            add_expert(&j, l, x->routes.active[i], block[i]);
    clb_cpu_mlp_plan(be, &j.mlp);
    clb_cpu_run(be, j.mlp.in.cost + j.mlp.out.cost, run, &j);
    return true;
}
