/* cuda_weights.c - dense weights on the device: the tensors of the file, one behind the other, as
 * the file has them. Descriptions of layers are copies of the host's with other addresses. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_sizes.h"

#include <string.h>

#include "lib/base/mem.h"

/* -- where tensors lie ------------------------------------------------------------------------- */

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
    return be->layer && clb_cuda_check(be, err) && clb_cuda_dense_choose(be, err) &&
           clb_cuda_dnn_choose(be, err) && clb_cuda_place(be, err) &&
           clb_cuda_experts_open(be, err);
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
        if (!clb_cuda_by_head(&r->tensors[i]) && !send_tensor(be, i, err))
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
