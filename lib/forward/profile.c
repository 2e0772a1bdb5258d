/* profile.c - where the time of a pass went, and what each stage had to read and multiply. */
#include "lib/forward/stages.h"

#include "lib/base/clock.h"

const char *const clb_stage_name[CLB_STAGES] = {
    [CLB_STAGE_EMBED] = "Embed",
    [CLB_STAGE_PROJECT] = "AttnProject",
    [CLB_STAGE_MIX] = "Attention",
    [CLB_STAGE_OUTPUT] = "AttnOutput",
    [CLB_STAGE_GATE] = "Gate",
    [CLB_STAGE_SCATTER] = "Scatter",
    [CLB_STAGE_EXPERTS] = "ExpertCompute",
    [CLB_STAGE_GATHER] = "Gather",
    [CLB_STAGE_MLP] = "DenseMLP",
    [CLB_STAGE_LOGITS] = "Logits",
};

bool clb_lap(struct clb_run *r, enum clb_stage stage, bool ok)
{
    if (r->profile) {
        double now = clb_now();

        r->profile->seconds[stage] += now - r->mark;
        r->profile->waited[stage] += r->use.waited - r->before.waited;
        if (r->use.shared == r->before.shared)
            r->profile->alone[stage] += now - r->mark;
        r->mark = now;
        r->before = r->use;
    }
    return ok;
}

static void count_macs(struct clb_profile *f, enum clb_stage stage, uint64_t n, bool is_float)
{
    f->macs[stage] += n;
    f->f32_macs[stage] += is_float ? n : 0;
}

static void matrix(struct clb_profile *f, enum clb_stage stage, const struct clb_matrix *m,
                   uint64_t rows)
{
    if (!m->tiles)
        return;
    f->bytes[stage] += clb_tiles_bytes(m->dtype, m->rows, m->cols) +
                       clb_row_scale_bytes(m->dtype, m->rows) + (m->bias ? 4ull * m->rows : 0);
    count_macs(f, stage, rows * m->rows * m->cols, clb_dtype_is_float(m->dtype));
}

static void mlp(struct clb_profile *f, enum clb_stage stage,
                const struct clb_matrix part[CLB_PARTS], uint64_t rows)
{
    for (int p = 0; p < CLB_PARTS; p++)
        matrix(f, stage, &part[p], rows);
}

/* Keys that a row at `position` sees. */
static uint64_t n_key(const struct clb_arch *a, uint32_t layer, uint32_t position)
{
    return position + 1ull - clb_arch_first_key(a, layer, position);
}

/* The cache of a sequence is read once per pass, from the first key to the last that a row sees. */
static void attention(struct clb_profile *f, const struct clb_arch *a, const struct clb_pass *p,
                      uint32_t layer)
{
    uint32_t first = 0;
    const struct clb_kv_shape *shape = clb_kv_pool_shape(p->seq[0]->pool);
    uint64_t per_key = (uint64_t)a->n_head * (shape->key_dim + shape->value_dim);

    for (uint32_t r = 0; r < p->n_row; r++) {
        uint32_t s = p->sequence[r];

        count_macs(f, CLB_STAGE_MIX, n_key(a, layer, p->position[r]) * per_key, true);
        if (r == 0 || p->sequence[r - 1] != s)
            first = r;
        if (r + 1 == p->n_row || p->sequence[r + 1] != s) {
            uint32_t more = p->position[r] - p->position[first];
            uint64_t keys = n_key(a, layer, p->position[first]) + more;

            f->bytes[CLB_STAGE_MIX] +=
                keys * clb_kv_pool_shape(p->seq[s]->pool)->layer_bytes / CLB_KV_BLOCK;
        }
    }
}

void clb_profile_pass(struct clb_profile *f, const struct clb_weights *w, const struct clb_pass *p)
{
    const struct clb_arch *a = w->arch;

    f->passes++;
    f->rows += p->n_row;
    f->bytes[CLB_STAGE_EMBED] += p->n_row * clb_rows_bytes(w->embed_dtype, 1, a->hidden_size);
    for (uint32_t i = 0; i < a->n_layer; i++) {
        const struct clb_layer *l = &w->layer[i];

        matrix(f, CLB_STAGE_PROJECT, &l->q_a, p->n_row);
        matrix(f, CLB_STAGE_PROJECT, &l->kv_a, p->n_row);
        matrix(f, CLB_STAGE_PROJECT, &l->k_up, p->n_row);
        matrix(f, CLB_STAGE_PROJECT, &l->q, p->n_row);
        matrix(f, CLB_STAGE_PROJECT, &l->k, p->n_row);
        matrix(f, CLB_STAGE_PROJECT, &l->v, p->n_row);
        attention(f, a, p, i);
        matrix(f, CLB_STAGE_OUTPUT, &l->v_up, p->n_row);
        matrix(f, CLB_STAGE_OUTPUT, &l->o, p->n_row);
        matrix(f, CLB_STAGE_GATE, &l->router_in, p->n_row);
        matrix(f, CLB_STAGE_GATE, &l->router, p->n_row);
        matrix(f, CLB_STAGE_GATHER, &l->shared_gate, p->n_row);
        mlp(f, CLB_STAGE_GATHER, l->shared, p->n_row);
        mlp(f, CLB_STAGE_MLP, l->dense, p->n_row);
    }
    if (p->n_logit)
        matrix(f, CLB_STAGE_LOGITS, &w->output, p->n_logit);
}

void clb_profile_routes(struct clb_profile *f, const struct clb_weights *w,
                        const struct clb_layer *l, const struct clb_routes *routes)
{
    uint64_t slots = (uint64_t)routes->n_row * routes->top_k;
    uint64_t per_slot = 3ull * w->arch->expert_size * w->arch->hidden_size;

    for (uint32_t i = 0; i < routes->n_active; i++) {
        uint32_t e = routes->active[i];

        f->bytes[CLB_STAGE_EXPERTS] += l->experts->size[e];
        if (f->expert_rows)
            f->expert_rows[(size_t)l->index * w->arch->n_expert + e] +=
                routes->first[e + 1] - routes->first[e];
    }
    count_macs(f, CLB_STAGE_EXPERTS, slots * per_slot,
               clb_dtype_is_float(l->experts->part[0].dtype));
    f->experts_touched += routes->n_active;
    f->expert_slots += slots;
    f->routes_reused += routes->reused;
}
