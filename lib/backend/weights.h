/* weights.h - the weights of one model as a backend sees them. Filled by lib/model/bind.c from a
 * reader; every pointer is borrowed from the mapping. A missing vector is NULL, a missing matrix
 * has tiles NULL. */
#ifndef CLB_BACKEND_WEIGHTS_H
#define CLB_BACKEND_WEIGHTS_H

#include "lib/format/arch.h"
#include "lib/format/dtype.h"
#include "lib/format/reader.h"

struct clb_layer {
    uint32_t index;
    const float *attn_norm, *attn_norm_bias; /* [hidden] */
    struct clb_matrix q, k, v;               /* [heads*dim][hidden]; biases inside */
    struct clb_matrix o;                     /* [hidden][n_head*value_dim] */
    const float *q_norm, *k_norm;            /* [head_dim] or [heads*head_dim], see qk_norm */
    const float *sinks;                      /* [n_head] */
    struct clb_matrix q_a, kv_a, k_up, v_up; /* MLA */
    const float *q_a_norm, *kv_a_norm;
    const float *mlp_norm, *mlp_norm_bias; /* [hidden] */
    struct clb_matrix router, router_in;   /* [n_expert][hidden]; bias inside */
    const float *router_correction;        /* [n_expert] */
    struct clb_matrix shared_gate;         /* [1][hidden] */
    struct clb_matrix shared[CLB_PARTS];   /* gate, up [shared_size][hidden], down transposed */
    struct clb_matrix dense[CLB_PARTS];    /* dense layers only */
    uint32_t n_expert, top_k;               /* 0: a dense layer */
    const struct clb_expert_layer *experts; /* how an expert's block is laid out; NULL: dense */
};

struct clb_weights {
    const struct clb_arch *arch;
    const struct clb_reader *reader;
    enum clb_dtype embed_dtype;
    const void *embed;                               /* [vocab][hidden] row-major */
    const float *rope_inv_freq, *rope_inv_freq_long; /* [rope_dim / 2] */
    const float *final_norm, *final_norm_bias;       /* [hidden] */
    struct clb_matrix output;                        /* [vocab][hidden] */
    struct clb_layer *layer;                         /* [n_layer] owned by the model */
};

#endif
