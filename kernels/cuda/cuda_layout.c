/* cuda_layout.c - how activations are cut: the block on the device and its pinned counterpart,
 * those of other devices, those of the CPU's experts, and cuDNN's. Nothing but this knows their
 * shapes. It runs without memory first, to measure; and it calls no runtime, so that runs can be
 * planned for devices that are elsewhere. */
#include "kernels/cuda/cuda_sizes.h"

#include "lib/base/mem.h"

enum { SPLIT_BLOCKS = 2048 }; /* partial results of attention, in queries times splits / 16 */

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* -- attention by cuDNN ------------------------------------------------------------------------ */

uint32_t clb_cuda_dnn_room(uint32_t n, uint32_t all)
{
    uint32_t r = CLB_DNN_LEAST_ROOM;

    while (r < n)
        r *= 2;
    all = (all + CLB_DNN_LEAST_ROOM - 1) / CLB_DNN_LEAST_ROOM * CLB_DNN_LEAST_ROOM;
    return r < all ? r : all;
}

bool clb_cuda_dnn_serves(const struct clb_backend *be, const struct clb_acts *x)
{
    return be->dnn.n_layer && x->shape.kv_dtype == CLB_KV_F16;
}

static void lay_out_dnn(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
                        const struct clb_arch *a)
{
    uint64_t rows = clb_cuda_dnn_room(x->shape.max_rows, x->shape.max_rows);
    uint64_t keys = clb_cuda_dnn_room(x->shape.max_context, x->shape.max_context);
    struct clb_cuda_dnn_rows *r = &x->dnn;

    if (!clb_cuda_dnn_serves(be, x))
        return;
    r->q = clb_carve_rows(c, rows, (uint64_t)a->n_head * a->head_dim, sizeof *r->q);
    r->out = clb_carve_rows(c, rows, (uint64_t)a->n_head * a->value_dim, sizeof *r->out);
    r->k = clb_carve_rows(c, keys, (uint64_t)a->n_kv_head * a->head_dim, sizeof *r->k);
    r->v = clb_carve_rows(c, keys, (uint64_t)a->n_kv_head * a->value_dim, sizeof *r->v);
    r->workspace = clb_carve(c, CLB_DNN_WORKSPACE, 1);
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

void clb_cuda_lay_out_pinned(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a)
{
    lay_out_told(&x->here, c, x);
    lay_out_routes(x, c, a);
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
    lay_out_dnn(x, c, be, a);
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

void clb_cuda_lay_out(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
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

/* -- beside experts of the CPU ----------------------------------------------------------------- */

void clb_cuda_host_lay_out(struct clb_cuda_host_acts *h, struct clb_carver *c,
                           const struct clb_backend *be, const struct clb_acts *x,
                           const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows;

    h->rows = clb_carve_rows(c, rows, x->ld_hidden, sizeof *h->rows);
    h->out = clb_carve_rows(c, rows * x->top_k, x->ld_hidden, sizeof *h->out);
    clb_cuda_host_lay_out_cpu(be->cpu, c, a, x->shape.max_rows, x->top_k, x->ld_hidden, &h->cpu);
}

uint64_t clb_cuda_host_bytes(const struct clb_backend *be, const struct clb_acts *x,
                             const struct clb_arch *a)
{
    struct clb_cuda_host_acts h = { 0 };
    struct clb_carver c = { 0 };

    if (be->share ? !be->n_host : be->offload == CLB_OFFLOAD_COPY)
        return 0;
    clb_cuda_host_lay_out(&h, &c, be, x, a);
    return c.overflow ? UINT64_MAX : c.at;
}

/* -- on other devices -------------------------------------------------------------------------- */

/* The index comes last: of it only the slots in use are copied. */
static void lay_out_lists(struct clb_cuda_peer_told *t, struct clb_carver *c,
                          const struct clb_arch *a, uint64_t slots)
{
    t->chunks.n = clb_carve(c, CLB_CUDA_CLASSES, sizeof *t->chunks.n);
    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        t->chunks.list[k] =
            clb_carve(c, clb_cuda_chunks_most(a->n_expert, slots), sizeof *t->chunks.list[k]);
    t->index = clb_carve(c, slots, sizeof *t->index);
}

void clb_cuda_peer_lay_out(struct clb_cuda_peer_acts *p, struct clb_carver *c,
                           const struct clb_backend *be, const struct clb_acts *x,
                           const struct clb_arch *a)
{
    uint64_t rows = x->shape.max_rows, slots = rows * x->top_k;

    lay_out_lists(&p->there, c, a, slots);
    p->in = rows_of(be, c, a->scale_expert_input ? slots : rows, a->hidden_size);
    p->inner = rows_of(be, c, slots, a->expert_size);
    p->out = clb_carve_rows(c, slots, x->ld_hidden, sizeof *p->out);
}

void clb_cuda_peer_lay_out_pinned(struct clb_cuda_peer_acts *p, struct clb_carver *c,
                                  const struct clb_arch *a, const struct clb_acts *x)
{
    uint64_t rows = x->shape.max_rows;

    lay_out_lists(&p->here, c, a, rows * x->top_k);
    p->row = clb_carve(c, rows, sizeof *p->row);
    p->number = clb_carve(c, rows, sizeof *p->number);
}

/* Of all peers. */
static uint64_t peers_host_bytes(const struct clb_backend *be, const struct clb_acts *x,
                                 const struct clb_arch *a)
{
    struct clb_cuda_peer_acts p = { 0 };
    struct clb_carver c = { 0 };

    for (unsigned i = 0; i < be->n_peer; i++)
        clb_cuda_peer_lay_out_pinned(&p, &c, a, x);
    return c.overflow ? UINT64_MAX : c.at;
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

bool clb_cuda_measure(struct clb_acts *x, const struct clb_backend *be, const struct clb_arch *a,
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
    clb_cuda_lay_out(x, &there, be, a);
    lay_out_told(&x->here, &here, x);
    x->told_bytes = here.at;
    x->bytes = there.at;
    return !there.overflow && !here.overflow;
}

uint64_t clb_cuda_acts_bytes(const struct clb_backend *be, const struct clb_arch *a,
                             const struct clb_acts_shape *s)
{
    struct clb_acts x;

    return clb_cuda_measure(&x, be, a, s) ? x.bytes : UINT64_MAX;
}

uint64_t clb_cuda_acts_host_bytes(const struct clb_backend *be, const struct clb_arch *a,
                                  const struct clb_acts_shape *s)
{
    struct clb_carver here = { 0 };
    struct clb_acts x;
    uint64_t sum;

    if (!clb_cuda_measure(&x, be, a, s))
        return UINT64_MAX;
    clb_cuda_lay_out_pinned(&x, &here, a);
    return !here.overflow && clb_add(here.at, peers_host_bytes(be, &x, a), &sum) &&
                   clb_add(sum, clb_cuda_host_bytes(be, &x, a), &sum)
               ? sum
               : UINT64_MAX;
}
