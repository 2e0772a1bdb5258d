/* cuda_weights.c - dense weights on the device: the tensors of the file, one behind the other, as
 * the file has them. Descriptions of layers are copies of the host's with other addresses. */
#include "kernels/cuda/cuda.h"

#include <string.h>

#include "lib/base/mem.h"

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

static bool check(struct clb_backend *be, struct clb_err *err)
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

/* -- where tensors lie ------------------------------------------------------------------------- */

/* These are cut up by head instead. */
static bool by_head(const struct clb_tensor *t)
{
    return t->spec.role == CLB_K_UP || t->spec.role == CLB_V_UP;
}

static bool place_tensors(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;

    be->tensor_at = clb_new(r->n_tensors, sizeof *be->tensor_at, err);
    if (!be->tensor_at)
        return false;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        be->tensor_at[i] = be->dense_bytes;
        if (!by_head(&r->tensors[i])) /* parts of one file, 4 times at most: no sum overflows */
            be->dense_bytes += (clb_cuda_dense_bytes(be, i) + 255) & ~UINT64_C(255);
    }
    return true;
}

uint32_t clb_cuda_tensor_at(const struct clb_backend *be, const void *host)
{
    const struct clb_reader *r = be->host->reader;
    uint32_t i = 0;

    while (i < r->n_tensors && r->data + r->tensors[i].offset != host)
        i++;
    return i;
}

uint32_t clb_cuda_tensor_there(const struct clb_backend *be, const void *there)
{
    uint64_t at = (uint64_t)((const uint8_t *)there - be->dense);
    uint32_t low = 0, n = be->host->reader->n_tensors, high = n;

    while (high - low > 1) { /* the last one that begins there: those before it are empty */
        uint32_t middle = low + (high - low) / 2;

        if (be->tensor_at[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low < n && be->tensor_at[low] == at ? low : n;
}

const void *clb_cuda_there(const struct clb_backend *be, const void *host)
{
    const struct clb_reader *r = be->host->reader;
    uint64_t at = host ? (uint64_t)((const uint8_t *)host - r->data) : 0;

    for (uint32_t i = 0; host && i < r->n_tensors; i++)
        if (at >= r->tensors[i].offset && at - r->tensors[i].offset < r->tensors[i].size)
            return be->dense + be->tensor_at[i] + (at - r->tensors[i].offset);
    return NULL;
}

static struct clb_matrix matrix(const struct clb_backend *be, struct clb_matrix m)
{
    const struct clb_cuda_by_rows *r;

    m.tiles = clb_cuda_there(be, m.tiles);
    m.row_scale = clb_cuda_there(be, m.row_scale);
    m.bias = clb_cuda_there(be, m.bias);
    if ((r = clb_cuda_dense_of(be, &m)))
        m = (struct clb_matrix){ r->plan->dtype, m.rows, m.cols, m.tiles, NULL, NULL, NULL };
    return m;
}

static void move_layer(const struct clb_backend *be, struct clb_layer *l)
{
    const float **const vector[] = { &l->attn_norm,        &l->attn_norm_bias, &l->q_norm,
                                     &l->k_norm,           &l->sinks,          &l->q_a_norm,
                                     &l->kv_a_norm,        &l->mlp_norm,       &l->mlp_norm_bias,
                                     &l->router_correction };
    struct clb_matrix *const dense[] = { &l->q,      &l->k,         &l->v,
                                         &l->o,      &l->q_a,       &l->kv_a,
                                         &l->router, &l->router_in, &l->shared_gate };

    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++)
        *vector[i] = clb_cuda_there(be, *vector[i]);
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        *dense[i] = matrix(be, *dense[i]);
    for (int p = 0; p < CLB_PARTS; p++) {
        l->shared[p] = matrix(be, l->shared[p]);
        l->dense[p] = matrix(be, l->dense[p]);
    }
}

static void move_all(struct clb_backend *be)
{
    const struct clb_weights *w = be->host;

    be->w = *w;
    be->w.embed = clb_cuda_there(be, w->embed);
    be->w.rope_inv_freq = clb_cuda_there(be, w->rope_inv_freq);
    be->w.rope_inv_freq_long = clb_cuda_there(be, w->rope_inv_freq_long);
    be->w.final_norm = clb_cuda_there(be, w->final_norm);
    be->w.final_norm_bias = clb_cuda_there(be, w->final_norm_bias);
    be->w.output = matrix(be, w->output);
    for (uint32_t i = 0; i < w->arch->n_layer; i++) {
        be->layer[i].w = w->layer[i];
        move_layer(be, &be->layer[i].w);
    }
}

/* -- bind, copy -------------------------------------------------------------------------------- */

bool clb_cuda_bind(struct clb_backend *be, const struct clb_weights *w, struct clb_err *err)
{
    be->host = w;
    be->head_bytes = clb_cuda_per_head_bytes(w);
    be->layer = clb_new(w->arch->n_layer, sizeof *be->layer, err);
    return be->layer && check(be, err) && clb_cuda_dense_choose(be, err) &&
           clb_cuda_dnn_choose(be, err) && place_tensors(be, err) && clb_cuda_experts_open(be, err);
}

void clb_cuda_unbind(struct clb_backend *be)
{
    if (!be->host)
        return;
    clb_cuda_experts_close(be);
    clb_cuda_put(be, be->dense, be->dense_bytes);
    clb_cuda_put(be, be->heads, be->head_bytes);
    clb_free(be->tensor_at);
    clb_free(be->layer);
}

static bool send_tensor(struct clb_backend *be, uint32_t i, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;

    if (be->dense_lib.of && be->dense_lib.of[i].plan)
        return clb_cuda_dense_send(be, i, err);
    return clb_cuda_send(&be->link, be->dense + be->tensor_at[i], r->data + r->tensors[i].offset,
                         r->tensors[i].size, err);
}

static bool send_tensors(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;

    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (!by_head(&r->tensors[i]) && !send_tensor(be, i, err))
            return clb_fail_in(err, "tensor '%s'", r->tensors[i].name);
    return true;
}

bool clb_cuda_send_dense(struct clb_backend *be, struct clb_err *err)
{
    if (be->there)
        return true;
    if (!be->dense)
        be->dense = clb_cuda_get(be, be->dense_bytes, "dense weights", err);
    if (!be->dense || !send_tensors(be, err))
        return false;
    move_all(be);
    be->there = clb_cuda_send_heads(be, err);
    return be->there;
}
