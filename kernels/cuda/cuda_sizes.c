/* cuda_sizes.c - what of a model lies on devices, and how much of their memory it takes. Nothing
 * here calls the runtime: the backend works with these numbers, and plans of runs that will be
 * elsewhere do (cuda_paper.c). */
#include <inttypes.h>
#include <string.h>

#include "kernels/cuda/cuda_sizes.h"
#include "lib/base/mem.h"

/* Of a peer's memory so much at most is kept for activations: they are a part of the first's. */
enum { SPARE_SHARE = 8 };

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* -- what the device can run ------------------------------------------------------------------- */

static bool same_types(const struct clb_matrix *gate, const struct clb_matrix *up,
                       const struct clb_matrix *down)
{
    return gate->dtype == up->dtype && clb_cuda_kind(gate->dtype) == clb_cuda_kind(down->dtype);
}

static void note(struct clb_backend *be, const struct clb_matrix *m)
{
    if (m->tiles)
        be->has[clb_cuda_kind(m->dtype)] = true;
}

static bool check_mlp(struct clb_backend *be, const struct clb_matrix part[CLB_PARTS],
                      const char *what, struct clb_err *err)
{
    for (int p = 0; p < CLB_PARTS; p++)
        note(be, &part[p]);
    if (!part[CLB_GATE].tiles || same_types(&part[CLB_GATE], &part[CLB_UP], &part[CLB_DOWN]))
        return true;
    return clb_fail(err, CLB_UNSUPPORTED,
                    "%s: gate is %s, up %s, down %s; on CUDA they have one type", what,
                    clb_dtype_name(part[CLB_GATE].dtype), clb_dtype_name(part[CLB_UP].dtype),
                    clb_dtype_name(part[CLB_DOWN].dtype));
}

static bool check_layer(struct clb_backend *be, const struct clb_layer *l, struct clb_err *err)
{
    const struct clb_matrix *const dense[] = { &l->q,    &l->k,    &l->v,
                                               &l->o,    &l->q_a,  &l->kv_a,
                                               &l->k_up, &l->v_up, &l->shared_gate };
    struct clb_matrix expert[CLB_PARTS];

    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        note(be, dense[i]);
    if (!check_mlp(be, l->shared, "shared expert", err) ||
        !check_mlp(be, l->dense, "dense MLP", err))
        return false;
    if (!l->experts)
        return true;
    for (int p = 0; p < CLB_PARTS; p++)
        expert[p] = clb_expert_matrix(be->host->reader, l->experts, (enum clb_part)p,
                                      be->host->reader->data);
    return check_mlp(be, expert, "experts", err);
}

bool clb_cuda_check(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    bool mla = a->attention == CLB_ATTN_MLA;
    uint32_t key = mla ? a->kv_lora_rank + a->qk_rope_dim : a->head_dim;
    uint32_t value = mla ? a->kv_lora_rank : a->value_dim;

    if (key > 1024 || value > 512)
        return clb_fail(err, CLB_UNSUPPORTED,
                        "keys of %u and values of %u numbers; on CUDA at most 1024 and 512", key,
                        value);
    note(be, &be->host->output);
    for (uint32_t i = 0; i < a->n_layer; i++)
        if (!check_layer(be, &be->host->layer[i], err))
            return clb_fail_in(err, "layer %u", i);
    if (be->has[CLB_CUDA_BRAIN] && be->major < 8)
        return clb_fail(err, CLB_UNSUPPORTED,
                        "bf16 and mxfp4 need compute capability 8.0, but device %d has %s; convert "
                        "the model with --dtype int8 or fp16",
                        be->device, be->name);
    return true;
}

/* -- dense weights ----------------------------------------------------------------------------- */

uint64_t clb_cuda_dense_bytes(const struct clb_backend *be, uint32_t i)
{
    const struct clb_tensor *t = &be->host->reader->tensors[i];
    bool rows = be->dense_lib.of && be->dense_lib.of[i].plan;

    return rows ? 2ull * t->spec.rows * t->spec.cols : t->size;
}

bool clb_cuda_place(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;

    be->tensor_at = clb_new(r->n_tensors, sizeof *be->tensor_at, err);
    if (!be->tensor_at)
        return false;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        be->tensor_at[i] = be->dense_bytes;
        /* parts of one file, 4 times at most: no sum overflows */
        if (!clb_cuda_by_head(&r->tensors[i]))
            be->dense_bytes += clb_cuda_aligned(clb_cuda_dense_bytes(be, i));
    }
    return true;
}

/* Of one matrix: a block for each head, and the table that says where they are. */
static uint64_t matrix_bytes(const struct clb_matrix *m, uint32_t n_head)
{
    struct clb_matrix head = clb_cuda_head_matrix(m, n_head);

    if (!m->tiles)
        return 0;
    return n_head * clb_cuda_head_bytes(&head) + clb_cuda_aligned(n_head * sizeof(uint8_t *));
}

uint64_t clb_cuda_per_head_bytes(const struct clb_weights *w)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < w->arch->n_layer; i++)
        sum += matrix_bytes(&w->layer[i].k_up, w->arch->n_head) +
               matrix_bytes(&w->layer[i].v_up, w->arch->n_head);
    return sum;
}

/* -- experts ----------------------------------------------------------------------------------- */

static uint64_t largest_block(const struct clb_reader *r)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++)
            most = r->experts[i].size[e] > most ? r->experts[i].size[e] : most;
    return clb_cuda_aligned(most);
}

bool clb_cuda_experts_count(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    const struct clb_reader *r = be->host->reader;

    x->slot_bytes = largest_block(r);
    x->first = clb_new(be->host->arch->n_layer, sizeof *x->first, err);
    if (!x->first)
        return false;
    for (uint32_t i = 0; i < r->n_expert_layers; i++) {
        uint32_t n = r->experts[i].count;

        x->first[r->experts[i].layer] = x->n_expert;
        x->n_expert += n;
    }
    x->n_local = x->n_expert;                   /* until shares are decided */
    x->least = x->n_local < 2 ? x->n_local : 2; /* one is multiplied, one is copied */
    if (be->offload != CLB_OFFLOAD_COPY)
        x->least = 0;
    return true;
}

uint64_t clb_cuda_experts_least(const struct clb_backend *be)
{
    return be->experts.least * be->experts.slot_bytes + clb_cuda_table_bytes(be);
}

/* -- KV cache ---------------------------------------------------------------------------------- */

bool clb_cuda_kv_shape(struct clb_kv_shape *s, const struct clb_arch *a, enum clb_kv_dtype dtype,
                       struct clb_err *err)
{
    if (clb_kv_shape_init(s, a, dtype)) {
        s->v_bytes = clb_cuda_kv_part_bytes(dtype, clb_cuda_kv_values(dtype, s->value_dim));
        s->k_bytes = clb_cuda_kv_values_at(dtype, s->key_dim);
        s->k_scale_at = dtype == CLB_KV_INT8 ? s->k_bytes - CLB_KV_BLOCK * sizeof(float) : 0;
        s->v_scale_at = dtype == CLB_KV_INT8 ? s->v_bytes - CLB_KV_BLOCK * sizeof(float) : 0;
        s->head_bytes = s->k_bytes + s->v_bytes;
        if (clb_mul(s->head_bytes, s->n_kv_head, &s->layer_bytes) &&
            clb_mul(s->layer_bytes, s->n_layer, &s->block_bytes))
            return true;
    }
    return clb_fail(err, CLB_USAGE, "a KV cache of this model is larger than memory can be");
}

/* -- memory of the first device ---------------------------------------------------------------- */

uint64_t clb_cuda_available(const struct clb_backend *be)
{
    uint64_t fixed = be->dense_bytes + be->head_bytes + clb_cuda_experts_least(be);

    return be->budget > fixed ? be->budget - fixed : 0;
}

bool clb_cuda_holds(const struct clb_backend *be, struct clb_err *err)
{
    uint64_t dense = be->dense_bytes + be->head_bytes, experts = clb_cuda_experts_least(be);

    if (clb_cuda_available(be) > 0)
        return true;
    clb_fail(err, CLB_NO_SPACE,
             "device %d: more than %" PRIu64 " bytes are needed there (dense weights %" PRIu64
             ", some experts %" PRIu64 "), but %" PRIu64 " %s",
             be->device, dense + experts, dense, experts, be->budget,
             be->asked ? "is the limit of GPU memory; raise it"
                       : "may be used; end other programs that use it, or choose another device");
    return clb_err_place(err, NULL, be->asked ? "gpu_memory" : NULL, CLB_NO_OFFSET);
}

/* -- who has how many experts ------------------------------------------------------------------ */

static bool rooms(const struct clb_backend *be, uint64_t left, uint64_t run_bytes, uint64_t *room,
                  struct clb_err *err)
{
    uint64_t table = clb_cuda_table_bytes(be), slot = be->experts.slot_bytes;

    room[0] = left > table ? smaller((left - table) / slot, be->experts.n_expert) : 0;
    for (unsigned i = 0; i < be->n_peer; i++) {
        const struct clb_cuda_peer *p = &be->peer[i];
        uint64_t taken = p->used + table + smaller(run_bytes, p->budget / SPARE_SHARE);

        if (p->budget < taken + slot)
            return clb_fail(err, CLB_NO_SPACE,
                            "CUDA: the %" PRIu64 " bytes to use of device %d have no room for an "
                            "expert; leave it out, or %s",
                            p->budget, p->link.device,
                            be->asked ? "raise the limit of GPU memory"
                                      : "end other programs that use it");
        room[i + 1] = smaller((p->budget - taken) / slot, be->experts.n_expert);
    }
    return true;
}

/* Equal numbers, but no more than there is room for; what nobody has room for stays out. */
static void fill_equally(uint64_t *number, const uint64_t *room, unsigned n_device, uint64_t left)
{
    for (bool more = true; more && left;) {
        unsigned n_open = 0;

        for (unsigned d = 0; d < n_device; d++)
            n_open += number[d] < room[d];
        more = n_open > 0;
        uint64_t each = more && left > n_open ? left / n_open : 1;
        for (unsigned d = 0; d < n_device && left; d++) {
            uint64_t n = smaller(smaller(each, room[d] - number[d]), left);

            number[d] += n;
            left -= n;
        }
    }
}

bool clb_cuda_divide(struct clb_cuda_division *d, const struct clb_backend *be, uint64_t left,
                     uint64_t run_bytes, struct clb_err *err)
{
    *d = (struct clb_cuda_division){ .n_rest = be->experts.n_expert };
    if (!rooms(be, left, run_bytes, d->room, err))
        return false;
    fill_equally(d->number, d->room, be->n_peer + 1, d->n_rest);
    for (unsigned i = 0; i <= be->n_peer; i++)
        d->n_rest -= d->number[i];
    return true;
}

/* -- a run, before it opens -------------------------------------------------------------------- */

/* Of experts that peers have, decided or not. */
static bool peers_have(uint64_t *number, const struct clb_backend *be, uint64_t left,
                       uint64_t run_bytes, struct clb_err *err)
{
    struct clb_cuda_division d = { 0 };

    if (!be->share && !clb_cuda_divide(&d, be, left, run_bytes, err))
        return false;
    for (uint32_t l = 0; be->share && l < be->host->reader->n_expert_layers; l++)
        for (unsigned i = 1; i <= be->n_peer; i++) {
            uint32_t layer = be->host->reader->experts[l].layer;

            d.number[i] += clb_cuda_share(be, layer, i + 1) - clb_cuda_share(be, layer, i);
        }
    memcpy(number, d.number, sizeof d.number);
    return true;
}

static bool peer_holds(const struct clb_backend *be, const struct clb_cuda_peer *p,
                       uint64_t experts, uint64_t acts, struct clb_err *err)
{
    uint64_t used = be->share ? p->used : experts;

    return (used <= p->budget && acts <= p->budget - used) ||
           clb_fail(err, CLB_NO_SPACE,
                    "device %d: %" PRIu64 " bytes are needed there (experts %" PRIu64
                    ", activations %" PRIu64 "), but %" PRIu64
                    " may be used; fewer or shorter sequences need less",
                    p->link.device, used + acts, used, acts, p->budget);
}

static bool plan_peers(const struct clb_backend *be, const struct clb_acts_shape *s,
                       const uint64_t *number, struct clb_device_plan *p, struct clb_err *err)
{
    struct clb_cuda_peer_acts acts = { 0 };
    struct clb_carver c = { 0 };
    struct clb_acts x;

    if (!be->n_peer)
        return true;
    if (!clb_cuda_measure(&x, be, be->host->arch, s))
        return clb_fail_nomem(err, UINT64_MAX);
    clb_cuda_peer_lay_out(&acts, &c, be, &x, be->host->arch);
    if (c.overflow)
        return clb_fail_nomem(err, UINT64_MAX);
    for (unsigned i = 0; i < be->n_peer; i++) {
        uint64_t bytes = number[i + 1] * be->experts.slot_bytes + clb_cuda_table_bytes(be);

        if (!peer_holds(be, &be->peer[i], bytes, c.at, err))
            return false;
        p->n_there += number[i + 1];
        p->experts += bytes;
        p->peer_acts += c.at;
    }
    return true;
}

bool clb_cuda_plan(const struct clb_backend *be, const struct clb_acts_shape *s, uint64_t run_bytes,
                   struct clb_device_plan *p, struct clb_err *err)
{
    uint64_t number[CLB_DEVICES_MOST], table = clb_cuda_table_bytes(be), local;
    uint64_t dense = be->dense_bytes + be->head_bytes;
    uint64_t left = be->budget > dense ? be->budget - dense : 0;

    *p = (struct clb_device_plan){ .n_device = be->n_peer + 1,
                                   .budget = be->budget,
                                   .dense = dense,
                                   .n_expert = be->experts.n_expert };
    left = left > run_bytes ? left - run_bytes : 0;
    if (!peers_have(number, be, left, run_bytes, err) || !plan_peers(be, s, number, p, err))
        return false;
    local = be->share ? be->experts.n_local : p->n_expert - p->n_there;
    local = smaller(local, left > table ? (left - table) / be->experts.slot_bytes : 0);
    p->n_there += local;
    p->experts += local * be->experts.slot_bytes + table;
    return true;
}
