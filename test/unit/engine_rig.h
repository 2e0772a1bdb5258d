/* engine_rig.h - a tiny model, a backend and sequences, without model and session layers: what
 * tests of the forward pass share. Batches are driven by hand, so that every cut of the work can be
 * tried. */
#ifndef TEST_UNIT_ENGINE_RIG_H
#define TEST_UNIT_ENGINE_RIG_H

#include "test/check.h"
#include "test/tiny_model.h"

#include "lib/forward/forward.h"
#include "lib/model/bind.h"

enum { RIG_SEQS = 8, RIG_CONTEXT = 640 };

struct rig {
    struct tiny file; /* built here unless the options bring one */
    struct clb_reader reader;
    struct clb_weights w;
    struct clb_experts *experts;
    struct clb_ledger ledger;
    struct clb_slab *slab;
    const struct clb_backend_ops *op;
    struct clb_backend *be, *cpu;
    struct clb_ledger device;
    struct clb_acts *x;
    struct clb_kv_pool *kv;
    const uint8_t *block[64];
    uint32_t table[RIG_SEQS][RIG_CONTEXT / CLB_KV_BLOCK];
    struct clb_kv_seq seq[RIG_SEQS], *seqs[RIG_SEQS];
    struct clb_engine engine;
};

struct rig_options {
    struct tiny_options model;
    const struct tiny *file; /* borrowed; NULL: build `model` */
    const struct clb_backend_ops *op; /* NULL: the CPU's */
    bool no_slabs;  /* likewise */
    struct clb_devices devices; /* likewise; none: one */
    bool dense_library, dense_widened, attention_library; /* likewise */
    uint32_t slots; /* of backends with a device: experts that it has room for; 0: all */
    enum clb_offload offload; /* likewise: what happens to the others */
    enum clb_kv_dtype kv;
    unsigned n_thread;
    const char *level;
    bool no_routing_cache;
    uint64_t budget;   /* of the expert store; 0: the mapping */
    uint32_t max_rows; /* 0: the most that fits */
    uint32_t n_block;  /* of the KV cache; 0: as many */
};

/* Weights to the device, `run` bytes are left for activations and KV cache. */
static inline bool rig_upload(struct rig *g, uint64_t run, struct clb_err *err)
{
    const struct clb_device_ops *d = g->op->device;
    bool wanted, full = false;

    if (!d->reserve(g->be, run, &wanted, err))
        return false;
    for (uint32_t i = 0; wanted && i < g->reader.n_expert_layers; i++)
        for (uint32_t e = 0; e < g->reader.experts[i].count; e++)
            if (d->wants(g->be, g->reader.experts[i].layer, e) &&
                !d->upload(g->be, g->reader.experts[i].layer, e,
                           g->reader.data + g->reader.experts[i].offset[e], &full, err))
                return false;
    return d->settle(g->be, err);
}

static inline bool rig_memory(struct rig *g, const struct rig_options *o, struct clb_err *err)
{
    const struct clb_device_ops *d = g->op->device;
    const struct clb_slab_options slabs = { .disabled = o->no_slabs };
    struct clb_backend_options bo = { .n_thread = o->n_thread,
                                      .cpu_level = o->level,
                                      .no_routing_cache = o->no_routing_cache,
                                      .slab_options = &slabs,
                                      .devices = o->devices,
                                      .dense_library = o->dense_library,
                                      .offload = o->offload,
                                      .dense_widened = o->dense_widened,
                                      .attention_library = o->attention_library,
                                      .device_ledger = &g->device };
    struct clb_acts_shape shape = {
        .max_rows = o->max_rows ? o->max_rows : RIG_SEQS * RIG_CONTEXT,
        .max_logits = o->max_rows ? o->max_rows : RIG_SEQS * RIG_CONTEXT,
        .max_seqs = RIG_SEQS,
        .max_context = RIG_CONTEXT,
        .kv_dtype = o->kv,
    };
    struct clb_kv_where where = { 0 };
    struct clb_kv_shape kv;

    if (!clb_slab_new(&g->slab, &(struct clb_slab_options){ 0 }, &g->ledger, err))
        return false;
    bo.slab = g->slab;
    if (o->offload && !clb_backend_cpu.open(&g->cpu, &bo, err))
        return false;
    bo.cpu = g->cpu;
    if (!g->op->open(&g->be, &bo, err) ||
        !(d ? d->kv_shape(&kv, &g->reader.arch, o->kv, err)
            : clb_kv_shape_init(&kv, &g->reader.arch, o->kv)) ||
        (d && !d->bind(g->be, &g->w, err)))
        return false;
    uint32_t n_block = o->n_block ? o->n_block : RIG_SEQS * RIG_CONTEXT / CLB_KV_BLOCK;
    if (d) {
        uint64_t acts = g->op->acts_bytes(g->be, &g->reader.arch, &shape);
        where.memory = d->memory(g->be);
        uint64_t run = n_block * kv.block_bytes + acts;
        uint64_t two = d->available(g->be), slot = (g->reader.experts[0].size[0] + 255) & ~255ull;
        if (o->slots) /* what is left beside two experts, or none; but for the others */
            run = two - ((uint64_t)o->slots - (o->offload ? 0 : 2)) * slot;
        if (!rig_upload(g, run, err))
            return false;
    }
    return g->op->acts_new(g->be, &g->x, &g->reader.arch, &shape, err) &&
           clb_kv_pool_new(&g->kv, &kv, n_block, &where, err);
}

static inline void rig_close(struct rig *g)
{
    clb_kv_pool_free(g->kv);
    if (g->be)
        g->op->acts_free(g->be, g->x);
    g->op->close(g->be);
    clb_backend_cpu.close(g->cpu);
    clb_slab_free(g->slab);
    clb_experts_free(g->experts);
    clb_weights_done(&g->w);
    clb_reader_close(&g->reader);
    tiny_free(&g->file);
}

/* rig_close also where this fails. */
static inline bool rig_try_open(struct rig *g, const struct rig_options *o, struct clb_err *err)
{
    const struct tiny *file = o->file ? o->file : &g->file;
    const struct clb_experts_options eo = { .budget = o->budget, .ledger = &g->ledger };

    *g = (struct rig){ .op = o->op ? o->op : &clb_backend_cpu };
    if (!o->file && !tiny_build(&g->file, &o->model))
        return false;
    if (!clb_reader_open_memory(&g->reader, file->bytes, file->n, err) ||
        !clb_weights_bind(&g->w, &g->reader, err) ||
        !clb_experts_new(&g->experts, &g->reader, &eo, err) ||
        !rig_memory(g, o, err))
        return false;
    g->engine = (struct clb_engine){
        .op = g->op, .be = g->be, .w = &g->w, .experts = g->experts, .block = g->block
    };
    for (int i = 0; i < RIG_SEQS; i++) {
        g->seq[i] = (struct clb_kv_seq){
            .pool = g->kv,
            .block = g->table[i],
            .n_block_max = RIG_CONTEXT / CLB_KV_BLOCK,
            .rope_scale = g->reader.arch.rope_scale,
            .inv_freq = g->w.rope_inv_freq,
        };
        g->seqs[i] = &g->seq[i];
    }
    return true;
}

static inline bool rig_open(struct rig *g, const struct rig_options *o)
{
    struct clb_err err = { 0 };

    if (rig_try_open(g, o, &err))
        return true;
    printf("# rig_open: %s\n", err.text);
    rig_close(g);
    return false;
}

/* Runs sequences (each from position 0) side by side, `chunk` rows of each per pass; logits of
 * every row: out[s] is [length][vocab]. */
struct rig_batch {
    uint32_t n_seq, chunk, top_k;
    const int32_t *ids[RIG_SEQS];
    uint32_t length[RIG_SEQS];
    float *out[RIG_SEQS];
    struct clb_profile *profile;
};

static inline bool rig_pass(struct rig *g, const struct rig_batch *b, uint32_t done[RIG_SEQS])
{
    static int32_t token[RIG_SEQS * RIG_CONTEXT];
    static uint32_t position[RIG_SEQS * RIG_CONTEXT], sequence[RIG_SEQS * RIG_CONTEXT],
        row[RIG_SEQS * RIG_CONTEXT];
    struct clb_pass p = { .token = token,
                          .position = position,
                          .sequence = sequence,
                          .seq = g->seqs,
                          .n_seq = b->n_seq,
                          .logit_row = row,
                          .top_k = b->top_k,
                          .want_routes = b->profile != NULL };
    size_t vocab = g->reader.arch.vocab_size;
    struct clb_err err = { 0 };

    for (uint32_t s = 0; s < b->n_seq; s++)
        for (uint32_t i = done[s]; i < b->length[s] && i < done[s] + b->chunk; i++) {
            token[p.n_row] = b->ids[s][i];
            position[p.n_row] = i;
            sequence[p.n_row] = s;
            row[p.n_row] = p.n_row;
            p.n_row++;
            if (!clb_kv_seq_reserve(&g->seq[s], i + 1, &err))
                printf("# %s\n", err.text);
        }
    p.n_logit = p.n_row;
    float *logits =
        malloc((p.n_row + 1) * vocab * sizeof *logits); /* one row more: must stay as it is */
    logits[p.n_row * vocab] = 12345;
    bool ok = clb_forward(&g->engine, g->x, &p, logits, b->profile, &err);
    if (!ok)
        printf("# clb_forward: %s\n", err.text);
    CHECK(logits[p.n_row * vocab] == 12345);
    for (uint32_t r = 0; r < p.n_row; r++)
        memcpy(b->out[sequence[r]] + position[r] * vocab, logits + r * vocab,
               vocab * sizeof *logits);
    for (uint32_t s = 0; s < b->n_seq; s++)
        done[s] = done[s] + b->chunk < b->length[s] ? done[s] + b->chunk : b->length[s];
    free(logits);
    return ok;
}

static inline bool rig_run(struct rig *g, const struct rig_batch *b)
{
    uint32_t done[RIG_SEQS] = { 0 }, most = 0;
    bool ok = true;

    for (uint32_t s = 0; s < b->n_seq; s++)
        most = b->length[s] > most ? b->length[s] : most;
    for (uint32_t i = 0; i < most && ok; i += b->chunk)
        ok = rig_pass(g, b, done);
    for (uint32_t s = 0; s < b->n_seq; s++)
        clb_kv_seq_truncate(&g->seq[s], 0);
    return ok;
}

static inline void rig_tokens(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((tiny_random(seed, 77, i) + 1) * 0.5f * (float)vocab) % (int32_t)vocab;
}

#endif
