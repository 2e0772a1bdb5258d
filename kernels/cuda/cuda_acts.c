/* cuda_acts.c - the activations of a batch: one block of the device's memory, cut once, its pinned
 * counterpart for what the host tells a pass, and a stream. lay_out is the only place that knows
 * the shapes; it runs without memory first, to measure. */
#include "kernels/cuda/cuda.h"

#include <inttypes.h>

#include "lib/base/mem.h"

enum { MOST_ROWS = 8 * 65535 }; /* 8 for each block of a grid's second dimension */
enum { SPLIT_BLOCKS = 2048 };   /* partial results of attention, in queries times splits / 16 */

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* -- what the host tells ----------------------------------------------------------------------- */

/* Page tables come last: of them only the rows in use are copied. */
static void lay_out_told(struct clb_cuda_told *t, struct clb_carver *c, const struct clb_acts *x)
{
    uint64_t rows = x->shape.max_rows, seqs = x->shape.max_seqs;

    t->token = clb_carve(c, rows, sizeof *t->token);
    t->position = clb_carve(c, rows, sizeof *t->position);
    t->sequence = clb_carve(c, rows, sizeof *t->sequence);
    t->logit_row = clb_carve(c, x->shape.max_logits, sizeof *t->logit_row);
    t->want = clb_carve(c, x->shape.max_candidates ? x->shape.max_logits : 0, sizeof *t->want);
    t->inv_freq = clb_carve(c, seqs, sizeof *t->inv_freq);
    t->rope_scale = clb_carve(c, seqs, sizeof *t->rope_scale);
    t->tile = clb_carve(c, x->most_tiles, sizeof *t->tile);
    t->n_chunk = clb_carve(c, CLB_CUDA_CLASSES, sizeof *t->n_chunk);
    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        t->chunk[k] = clb_carve(c, x->most_chunks, sizeof *t->chunk[k]);
    t->count = clb_carve_rows(c, seqs, 2 * CLB_DNN_APART, sizeof *t->count);
    t->table = clb_carve_rows(c, seqs, x->ld_table, sizeof *t->table);
}

/* What the device tells the host of routes; only here. */
static void lay_out_routes(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t slots = (uint64_t)x->shape.max_rows * x->top_k;

    x->r_expert = clb_carve(c, slots, sizeof *x->r_expert);
    x->r_weight = clb_carve(c, slots, sizeof *x->r_weight);
    x->r_row = clb_carve(c, slots, sizeof *x->r_row);
    x->r_slot = clb_carve(c, slots, sizeof *x->r_slot);
    x->r_first = clb_carve(c, a->n_expert + 1, sizeof *x->r_first);
    x->r_active = clb_carve(c, a->n_expert, sizeof *x->r_active);
    x->r_reused = clb_carve(c, 1, sizeof *x->r_reused);
    for (int i = 0; i < 2; i++)
        x->r_block[i] = clb_carve(c, a->n_expert, sizeof *x->r_block[i]);
}

/* -- on the device ----------------------------------------------------------------------------- */

static struct clb_cuda_rows rows_of(const struct clb_backend *be, struct clb_carver *c, uint64_t n,
                                    uint64_t width)
{
    struct clb_cuda_rows r = { .ld = clb_cuda_ld(width) };

    if (!width)
        return r;
    if (be->has[CLB_CUDA_WIDE])
        r.wide = clb_carve_rows(c, n, r.ld, sizeof *r.wide);
    for (int k = 0; k < 2; k++)
        if (be->has[k])
            r.half[k] = clb_carve_rows(c, n, r.ld, sizeof *r.half[k]);
    return r;
}

static void lay_out_mla(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
                        const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, heads = rows * a->n_head;

    x->query = clb_carve_rows(c, rows, x->ld_query, sizeof *x->query);
    x->q_a = clb_carve_rows(c, rows, clb_cuda_ld(a->q_lora_rank), sizeof *x->q_a);
    x->q_in = rows_of(be, c, rows, a->q_lora_rank);
    x->nope = rows_of(be, c, heads, a->qk_nope_dim);
    x->mixed = rows_of(be, c, heads, a->kv_lora_rank);
    x->head_out = clb_carve_rows(c, heads, x->ld_head, sizeof *x->head_out);
}

static void lay_out_attention(struct clb_acts *x, struct clb_carver *c,
                              const struct clb_backend *be, const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, width = sizeof(float);
    bool mla = a->attention == CLB_ATTN_MLA;

    x->q = clb_carve_rows(c, rows, x->ld_q, width);
    x->k = clb_carve_rows(c, rows, x->ld_k, width);
    x->v = mla ? x->k : clb_carve_rows(c, rows, x->ld_v, width);
    x->query = x->q;
    if (mla)
        lay_out_mla(x, c, be, a);
    x->mix = rows_of(be, c, rows, (uint64_t)a->n_head * a->value_dim);
    clb_cuda_dnn_lay_out(x, c, be, a);
    x->partial = clb_carve_rows(c, x->most_partials, CLB_CUDA_QUERIES * (x->value_dim + 2), width);
}

static void lay_out_maps(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    uint64_t slots = (uint64_t)x->shape.max_rows * x->top_k, width = sizeof(uint32_t);

    for (uint32_t l = 0; l < a->n_layer; l++) {
        uint32_t n = a->layer_experts[l];
        struct clb_cuda_map m = { 0 };

        if (!clb_arch_is_moe(a, l))
            continue;
        m.kept = clb_carve(c, slots + 2, width);
        m.first = clb_carve(c, n + 1, width);
        m.row = clb_carve(c, slots, width);
        m.slot = clb_carve(c, slots, width);
        m.reused = clb_carve(c, 1, width);
        m.chunks.n = clb_carve(c, CLB_CUDA_CLASSES, width);
        for (int k = 0; k < CLB_CUDA_CLASSES; k++)
            m.chunks.list[k] =
                clb_carve(c, clb_cuda_chunks_most(n, slots), sizeof *m.chunks.list[k]);
        if (x->map)
            x->map[l] = m;
    }
}

static void lay_out_experts(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
                            const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, slots = rows * x->top_k, width = sizeof(float);
    bool choice = a->router_correction || a->n_group > 1;

    x->score = clb_carve_rows(c, rows, x->ld_expert, width);
    x->choice = clb_carve_rows(c, choice ? rows : 0, x->ld_expert, width);
    x->score_in = clb_carve_rows(c, a->router_two_layers ? rows : 0, x->ld_expert, width);
    x->arrived = clb_carve(c, rows / 8 + 1, sizeof *x->arrived);
    x->chosen = clb_carve(c, slots, sizeof *x->chosen);
    x->weight = clb_carve(c, slots, width);
    x->inner = rows_of(be, c, slots, a->expert_size);
    x->shared_inner = rows_of(be, c, rows, a->shared_size);
    x->dense_inner = rows_of(be, c, rows, a->dense_size);
    for (int k = 0; k < 2 && be->dense_lib.asked; k++)
        x->gate_up[k] =
            clb_carve_rows(c, rows, clb_cuda_ld(most(a->shared_size, a->dense_size)), width);
    x->slot_in = rows_of(be, c, a->scale_expert_input ? slots : 0, a->hidden_size);
    x->slot_out = clb_carve_rows(c, slots, x->ld_hidden, width);
    x->shared_gate = clb_carve(c, rows, width);
    x->call_block = clb_carve(c, a->n_expert, sizeof *x->call_block);
    x->pack_row = clb_carve_rows(c, be->n_peer, rows, sizeof *x->pack_row);
    lay_out_maps(x, c, a);
}

static void lay_out(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
                    const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, width = sizeof(float);

    lay_out_told(&x->there, c, x);
    x->x = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->in = rows_of(be, c, rows, a->hidden_size);
    if (!x->in.wide) /* routers read it */
        x->in.wide = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->out = clb_carve_rows(c, rows, x->ld_hidden, width);
    x->cosine = clb_carve_rows(c, rows, a->rope_dim / 2, width);
    x->sine = clb_carve_rows(c, rows, a->rope_dim / 2, width);
    lay_out_attention(x, c, be, a);
    lay_out_experts(x, c, be, a);
    x->last = rows_of(be, c, x->shape.max_logits, a->hidden_size);
    x->logits = clb_carve_rows(c, x->shape.max_logits, a->vocab_size, width);
    x->kept =
        clb_carve_rows(c, x->shape.max_candidates, clb_cuda_slices(a->vocab_size), sizeof *x->kept);
    x->candidate = clb_carve(c, x->shape.max_candidates, sizeof *x->candidate);
}

/* -- sizes ------------------------------------------------------------------------------------- */

static void set_strides(struct clb_acts *x, const struct clb_arch *a)
{
    x->ld_hidden = clb_cuda_ld(a->hidden_size);
    x->ld_q = clb_cuda_ld((size_t)a->n_head * a->head_dim);
    x->ld_k = clb_cuda_ld((size_t)x->n_kv_head * x->key_dim);
    x->ld_v =
        a->attention == CLB_ATTN_MLA ? x->ld_k : clb_cuda_ld((size_t)x->n_kv_head * x->value_dim);
    x->ld_query = clb_cuda_ld((size_t)a->n_head * x->key_dim);
    x->ld_expert = clb_cuda_ld(a->n_expert);
    x->ld_head = clb_cuda_ld(most(a->kv_lora_rank, a->value_dim));
}

/* False when a size overflows. */
static bool measure(struct clb_acts *x, const struct clb_backend *be, const struct clb_arch *a,
                    const struct clb_acts_shape *s)
{
    struct clb_carver there = { 0 }, here = { 0 };
    struct clb_kv_shape kv;

    *x = (struct clb_acts){ .shape = *s, .top_k = s->top_k };
    if (s->top_k > CLB_MAX_TOP_K || !clb_kv_shape_init(&kv, a, CLB_KV_F16))
        return false;
    for (uint32_t l = 0; l < a->n_layer && !s->top_k; l++)
        x->top_k = (uint32_t)most(x->top_k, clb_arch_layer_top_k(a, l));
    x->n_kv_head = kv.n_kv_head;
    x->key_dim = kv.key_dim;
    x->value_dim = kv.value_dim;
    x->group = a->n_head / kv.n_kv_head;
    x->ld_table = s->max_context / CLB_KV_BLOCK + 1;
    uint64_t per_row = ((uint64_t)x->group + CLB_CUDA_QUERIES - 1) / CLB_CUDA_QUERIES;
    uint64_t tiles = (uint64_t)s->max_rows * x->group / CLB_CUDA_QUERIES + s->max_seqs + 1;
    uint64_t partials = per_row * kv.n_kv_head * clb_cuda_splits(s->max_context);
    uint64_t chunks =
        a->attention == CLB_ATTN_MLA ? a->n_head * ((uint64_t)s->max_rows / 64 + 1) : 0;
    partials = most(partials, SPLIT_BLOCKS);
    if (tiles > UINT32_MAX || partials > UINT32_MAX || chunks > UINT32_MAX)
        return false;
    x->most_tiles = (uint32_t)tiles;
    x->most_partials = s->max_context > CLB_CUDA_SPLIT ? (uint32_t)partials : 0;
    x->most_chunks = (uint32_t)chunks;
    set_strides(x, a);
    lay_out(x, &there, be, a);
    lay_out_told(&x->here, &here, x);
    x->told_bytes = here.at;
    x->bytes = there.at;
    return !there.overflow && !here.overflow;
}

uint64_t clb_cuda_acts_bytes(const struct clb_backend *be, const struct clb_arch *a,
                             const struct clb_acts_shape *s)
{
    struct clb_acts x;

    return measure(&x, be, a, s) ? x.bytes : UINT64_MAX;
}

uint64_t clb_cuda_acts_host_bytes(const struct clb_backend *be, const struct clb_arch *a,
                                  const struct clb_acts_shape *s)
{
    struct clb_carver here = { 0 };
    struct clb_acts x;
    uint64_t sum;

    if (!measure(&x, be, a, s))
        return UINT64_MAX;
    lay_out_told(&x.here, &here, &x);
    lay_out_routes(&x, &here, a);
    return !here.overflow && clb_add(here.at, clb_cuda_spread_host_bytes(be, &x, a), &sum) &&
                   clb_add(sum, clb_cuda_host_bytes(be, &x, a), &sum)
               ? sum
               : UINT64_MAX;
}

/* -- new and free ------------------------------------------------------------------------------ */

static bool take_memory(struct clb_backend *be, struct clb_acts *x, const struct clb_arch *a,
                        struct clb_err *err)
{
    struct clb_carver there = { 0 }, here = { 0 }, size = { 0 };

    x->map = clb_new(a->n_layer, sizeof *x->map, err);
    there.base = x->block = x->map ? clb_cuda_slab_get(be, x->bytes, err) : NULL;
    if (!x->block)
        return clb_fail_in(err, "activations of %u rows", x->shape.max_rows);
    lay_out_told(&x->here, &size, x);
    lay_out_routes(x, &size, a);
    here.base = x->pin = be->pinned.get(be, size.at, err);
    if (!x->pin)
        return false;
    lay_out(x, &there, be, a);
    lay_out_told(&x->here, &here, x);
    lay_out_routes(x, &here, a);
    return clb_cuda_ok(cudaStreamCreateWithFlags(&x->stream, cudaStreamNonBlocking), err,
                       "a stream") &&
           clb_cuda_dnn_new(be, x, err) && clb_cuda_spread_new(be, x, err) &&
           clb_cuda_host_new(be, x, err);
}

bool clb_cuda_acts_new(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                       const struct clb_acts_shape *s, struct clb_err *err)
{
    struct clb_acts *x;

    *out = NULL;
    if (!clb_arch_runnable(a, err))
        return false;
    if (s->top_k > CLB_MAX_TOP_K)
        return clb_fail(err, CLB_USAGE, "%u experts per token; the most is %d", s->top_k,
                        CLB_MAX_TOP_K);
    if (s->max_rows > MOST_ROWS)
        return clb_fail(err, CLB_USAGE, "passes of %u rows; on CUDA the most is %d", s->max_rows,
                        MOST_ROWS);
    x = clb_new(1, sizeof *x, err);
    if (!x)
        return false;
    if (!measure(x, be, a, s)) {
        clb_free(x);
        return clb_fail(err, CLB_NO_SPACE, "activations of %u rows are larger than memory can be",
                        s->max_rows);
    }
    if (!take_memory(be, x, a, err)) {
        clb_cuda_acts_free(be, x);
        return false;
    }
    *out = x;
    return true;
}

void clb_cuda_acts_free(struct clb_backend *be, struct clb_acts *x)
{
    if (!x)
        return;
    cudaSetDevice(be->device);
    clb_cuda_graph_free(x);
    clb_cuda_spread_free(be, x);
    clb_cuda_host_free(be, x);
    if (x->stream) {
        cudaStreamSynchronize(x->stream);
        cudaStreamDestroy(x->stream);
    }
    clb_cuda_dnn_free(be, x);
    clb_cuda_slab_put(be, x->block, x->bytes);
    be->pinned.put(be, x->pin, 0);
    clb_free(x->map);
    clb_free(x);
}
