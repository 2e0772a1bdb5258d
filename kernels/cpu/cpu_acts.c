/* cpu_acts.c - the activations of a batch: one block of memory, cut once. Nothing is allocated
 * later. lay_out is the only place that knows the shapes; it runs twice, first to measure. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "lib/base/carve.h"

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void set_strides(struct clb_acts *x, const struct clb_arch *a)
{
    x->ld_hidden = clb_cpu_ld(a->hidden_size);
    x->ld_q = clb_cpu_ld((uint64_t)a->n_head * a->head_dim);
    x->ld_k = clb_cpu_ld((uint64_t)x->n_kv_head * x->key_dim);
    x->ld_v =
        a->attention == CLB_ATTN_MLA ? x->ld_k : clb_cpu_ld((uint64_t)x->n_kv_head * x->value_dim);
    x->ld_query = clb_cpu_ld((uint64_t)a->n_head * x->key_dim);
    x->ld_mixed = clb_cpu_ld((uint64_t)a->n_head * x->value_dim);
    x->ld_q_a = clb_cpu_ld(a->q_lora_rank);
    x->q_a_record_bytes = clb_record_bytes(a->q_lora_rank);
    x->ld_mix = clb_cpu_ld((uint64_t)a->n_head * a->value_dim);
    x->ld_expert = clb_cpu_ld(a->n_expert);
    x->ld_value = clb_cpu_ld(x->value_dim);
    x->hidden_record = clb_record_bytes(a->hidden_size);
    x->mix_record_bytes = clb_record_bytes(a->n_head * a->value_dim);
}

static void lay_out_mla(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, width = sizeof(float), most_rows = CLB_CPU_HEAD_ROWS;
    uint32_t in = (uint32_t)most(a->qk_nope_dim, a->kv_lora_rank);
    uint64_t out = most(a->value_dim, a->kv_lora_rank) + 2 * CLB_TILE; /* both ends inside a tile */

    x->q_a = clb_carve_rows(c, rows, a->q_lora_rank ? x->ld_q_a : 0, width);
    x->q_a_record = clb_carve_rows(c, rows, x->q_a_record_bytes, 1);
    x->head = clb_carve(c, x->n_thread, sizeof *x->head);
    for (unsigned t = 0; t < x->n_thread; t++) {
        struct clb_cpu_head_scratch s = {
            .in = clb_carve_rows(c, most_rows, clb_cpu_ld(in), width),
            .out = clb_carve_rows(c, most_rows, out, width),
            .record = clb_carve_rows(c, most_rows, clb_record_bytes(in), 1),
        };
        if (x->head)
            x->head[t] = s;
    }
}

static void lay_out_attention(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, width = sizeof(float);
    bool mla = a->attention == CLB_ATTN_MLA;

    x->q = clb_carve_rows(c, rows, x->ld_q, width);
    x->k = clb_carve_rows(c, rows, x->ld_k, width);
    x->v = mla ? x->k : clb_carve_rows(c, rows, x->ld_v, width);
    x->mix = clb_carve_rows(c, rows, x->ld_mix, width);
    x->query = mla ? clb_carve_rows(c, rows, x->ld_query, width) : x->q;
    x->mixed = mla ? clb_carve_rows(c, rows, x->ld_mixed, width) : x->mix;
    if (mla)
        lay_out_mla(x, c, a);
    x->mix_record = clb_carve_rows(c, rows, x->mix_record_bytes, 1);
    x->group = clb_carve(c, rows, sizeof *x->group);
    x->total_m = clb_carve_rows(c, rows, a->n_head, width);
    x->total_l = clb_carve_rows(c, rows, a->n_head, width);
    x->left = clb_carve_rows(c, x->n_thread, CLB_CPU_FEW_ITEMS, sizeof *x->left);
    x->partial.o = clb_carve_rows(c, x->n_partial, x->ld_value, width);
    x->partial.m = clb_carve(c, x->n_partial, width);
    x->partial.l = clb_carve(c, x->n_partial, width);
}

static void lay_out_maps(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t slots = (uint64_t)x->shape.max_rows * x->top_k, width = sizeof(uint32_t);

    x->map = clb_carve(c, a->n_layer, sizeof *x->map);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        if (!clb_arch_is_moe(a, l))
            continue;
        struct clb_cpu_map m = {
            .expert = clb_carve(c, slots, width),
            .row = clb_carve(c, slots, width),
            .slot = clb_carve(c, slots, width),
            .first = clb_carve(c, a->layer_experts[l] + 1, width),
            .active = clb_carve(c, a->layer_experts[l], width),
        };
        if (x->map)
            x->map[l] = m;
    }
}

static void lay_out_choice(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    x->choice = clb_carve(c, x->n_thread, sizeof *x->choice);
    for (unsigned t = 0; t < x->n_thread; t++) {
        struct clb_cpu_choice choice = {
            .score = clb_carve(c, a->n_expert, sizeof(float)),
            .best = clb_carve(c, most(x->top_k, a->n_group), sizeof(float)),
            .group_score = clb_carve(c, a->n_group, sizeof(float)),
            .group = clb_carve(c, a->n_group, sizeof(uint32_t)),
            .kept = clb_carve(c, a->n_group, sizeof(bool)),
        };
        if (x->choice)
            x->choice[t] = choice;
    }
}

static void lay_out(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, slots = rows * x->top_k, width = sizeof(float);
    uint64_t wide = most(a->shared_size, a->dense_size); /* 0: none */
    uint64_t narrow_record = clb_record_bytes(a->expert_size);
    uint64_t wide_record = clb_record_bytes((uint32_t)wide);

    clb_carve(c, 1, sizeof *x); /* this struct lies at the start */
    x->x = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->norm = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->record = clb_carve_rows(c, rows, x->hidden_record, 1);
    x->branch = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->cosine = clb_carve_rows(c, rows, a->rope_dim / 2, width);
    x->sine = clb_carve_rows(c, rows, a->rope_dim / 2, width);
    lay_out_attention(x, c, a);

    x->score = clb_carve_rows(c, rows, x->ld_expert, width);
    x->score_in = clb_carve_rows(c, a->router_two_layers ? rows : 0, x->ld_expert, width);
    lay_out_choice(x, c, a);
    x->chosen = clb_carve(c, slots, sizeof *x->chosen);
    x->weight = clb_carve(c, slots, width);
    x->inner =
        clb_carve(c, most(slots * clb_cpu_ld(a->expert_size), rows * clb_cpu_ld(wide)), width);
    x->inner_record = clb_carve(c, most(slots * narrow_record, rows * wide_record), 1);
    x->slot_out = clb_carve_rows(c, slots, x->ld_hidden, width);
    x->slot_record = clb_carve_rows(c, a->scale_expert_input ? slots : 0, x->hidden_record, 1);
    x->linear = clb_carve(c, 2 * (uint64_t)a->n_expert + 4, sizeof *x->linear);
    x->gated = clb_carve_rows(c, x->n_thread, 2 * CLB_CPU_ROWS * CLB_CPU_TILES * CLB_TILE, width);
    lay_out_maps(x, c, a);
}

/* False when the size overflows. */
static bool measure(struct clb_acts *x, const struct clb_backend *be, const struct clb_arch *a,
                    const struct clb_acts_shape *s)
{
    struct clb_carver c = { 0 };
    struct clb_kv_shape kv;

    *x = (struct clb_acts){ .shape = *s, .top_k = s->top_k };
    if (s->top_k > CLB_MAX_TOP_K)
        return false;
    for (uint32_t l = 0; l < a->n_layer && !s->top_k; l++)
        x->top_k = (uint32_t)most(x->top_k, clb_arch_layer_top_k(a, l));
    x->n_thread = clb_pool_threads(be->pool);
    x->n_partial = x->n_thread > 1 ? x->n_thread * 8 * CLB_CPU_QUERIES : 0;
    if (!clb_kv_shape_init(&kv, a, s->kv_dtype))
        return false;
    x->n_kv_head = kv.n_kv_head;
    x->key_dim = kv.key_dim;
    x->value_dim = kv.value_dim;
    set_strides(x, a);
    lay_out(x, &c, a);
    x->bytes = c.at;
    return !c.overflow;
}

uint64_t clb_cpu_acts_bytes(const struct clb_backend *be, const struct clb_arch *a,
                            const struct clb_acts_shape *s)
{
    struct clb_acts x;

    return measure(&x, be, a, s) ? x.bytes : UINT64_MAX;
}

bool clb_cpu_acts_new(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                      const struct clb_acts_shape *s, struct clb_err *err)
{
    struct clb_acts x;

    *out = NULL;
    if (!clb_arch_runnable(a, err))
        return false;
    if (s->top_k > CLB_MAX_TOP_K)
        return clb_fail(err, CLB_USAGE, "%u experts per token; the most is %d", s->top_k,
                        CLB_MAX_TOP_K);
    if (!measure(&x, be, a, s) || x.bytes > SIZE_MAX)
        return clb_fail(err, CLB_NO_SPACE, "activations of %u rows are larger than memory can be",
                        s->max_rows);
    struct clb_carver c = { .base = clb_slab_get(be->slab, x.bytes, err) };
    if (!c.base)
        return clb_fail_in(err, "activations of %u rows", s->max_rows);
    lay_out(&x, &c, a);
    memcpy(c.base, &x, sizeof x);
    *out = (struct clb_acts *)(void *)c.base;
    return true;
}

void clb_cpu_acts_free(struct clb_backend *be, struct clb_acts *x)
{
    if (x)
        clb_slab_put(be->slab, x, x->bytes);
}
