/* arch.h - the architecture descriptor: everything that decides the arithmetic of a model.
 *
 * Families are data: lib/import/families fills this struct from a config.json; the engine reads
 * nothing else. In the file it is the object `architecture`. Fields with their neutral value (zero,
 * false, the first enumerator) are left out, so old files stay readable, and a reader refuses a key
 * it does not know, so new features are refused by old programs. What this engine cannot run it
 * refuses by the field's name (clb_arch_runnable). */
#ifndef CLB_FORMAT_ARCH_H
#define CLB_FORMAT_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/json.h"
#include "lib/base/str.h"

enum { CLB_MAX_LAYERS = 512, CLB_MAX_EXPERTS = 4096, CLB_MAX_TOP_K = 64, CLB_MAX_ROPE = 512 };

enum clb_attn_kind { CLB_ATTN_GQA, CLB_ATTN_MLA };
enum clb_qk_norm {
    CLB_QK_NORM_NONE,
    CLB_QK_NORM_HEAD, /* RMSNorm per head, weight [head_dim] (Qwen3) */
    CLB_QK_NORM_FULL, /* RMSNorm over the whole projection, weight [heads * head_dim] (OLMoE) */
    CLB_QK_NORM_HEAD_AFTER_ROPE, /* per head, after rope (Hunyuan) */
    CLB_QK_NORM_L2,              /* per head, after rope, without weight (Llama 4) */
};
enum clb_norm_kind { CLB_NORM_RMS, CLB_NORM_LAYER };     /* LayerNorm has weight and bias */
enum clb_norm_place { CLB_NORM_BEFORE, CLB_NORM_AFTER }; /* after: on the branch's output */
enum clb_router_kind {
    CLB_ROUTER_SOFTMAX_TOPK, /* softmax over all experts, then top-k (Mixtral, Qwen, OLMoE) */
    CLB_ROUTER_TOPK_SOFTMAX, /* top-k of the logits, softmax over those (gpt-oss, Granite) */
    CLB_ROUTER_SIGMOID,      /* sigmoid of each logit, then top-k (DeepSeek-V3, GLM, MiniMax) */
    CLB_ROUTER_SPARSEMIXER,  /* PhiMoE: top-2, two masked softmaxes */
};
enum clb_group_score { CLB_GROUP_NONE, CLB_GROUP_MAX, CLB_GROUP_TOP2_SUM };
enum clb_act {
    CLB_ACT_SILU, /* silu(gate) * up */
    CLB_ACT_GELU, /* gelu(gate) * up, exact (erf) */
    CLB_ACT_GELU_TANH,
    CLB_ACT_RELU,
    /* gpt-oss: gate * sigmoid(act_alpha * gate) * (up + 1), both clamped by act_limit */
    CLB_ACT_CLAMPED_SWIGLU,
};
enum clb_rope_kind { CLB_ROPE_NONE, CLB_ROPE_HALF, CLB_ROPE_INTERLEAVED };

struct clb_arch {
    /* sizes */
    uint32_t n_layer, hidden_size, vocab_size, max_positions;

    /* attention */
    enum clb_attn_kind attention;
    uint32_t n_head, n_kv_head;
    uint32_t head_dim, value_dim; /* width of a key (and query), of a value */
    enum clb_qk_norm qk_norm;
    float qk_norm_eps; /* 0: norm_eps */
    bool q_bias, k_bias, v_bias, o_bias;
    bool sinks;                   /* one learned logit per head joins the softmax */
    float clip_qkv;               /* clamp q, k, v to +-this, after norms; 0: off */
    float attn_scale;             /* multiplies q.k; 0: 1/sqrt(head_dim) */
    float attn_softcap;           /* cap * tanh(score / cap); 0: off */
    /* Llama 4 NoPE layers: q *= 1 + scale * log(1 + floor((pos + 1) / floor)) */
    float attn_temperature_scale, attn_temperature_floor;
    uint32_t q_lora_rank, kv_lora_rank; /* MLA; q_lora_rank 0: plain q projection */
    uint32_t qk_nope_dim, qk_rope_dim;  /* MLA: head_dim = nope + rope */
    float lora_norm_eps;                /* MLA: of the norms on the latents; 0: norm_eps */
    uint32_t window[CLB_MAX_LAYERS];    /* sliding window: keys pos-window+1..pos; 0: all */
    uint32_t chunk[CLB_MAX_LAYERS];     /* chunked attention: keys of the same chunk only; 0: off */
    bool no_rope[CLB_MAX_LAYERS];       /* no position on this layer */
    uint32_t index_heads, index_head_dim, index_top_k; /* lightning indexer (GLM-5); 0: none */
    bool linear_attention[CLB_MAX_LAYERS];             /* gated DeltaNet (Qwen3-Next) */
    bool attn_output_gate;                             /* Qwen3-Next */

    /* position: inverse frequencies are computed by convert and stored as tensors "rope.inv_freq"
     * (and "rope.inv_freq_long") */
    enum clb_rope_kind rope;
    uint32_t rope_dim;       /* rotated width (partial: < head_dim); even */
    float rope_scale;        /* factor on cos and sin (yarn, longrope attention factor); 0: 1 */
    uint32_t rope_long_from; /* longrope: contexts longer than this use inv_freq_long; 0: never */
    float rope_scale_long;   /* factor on cos and sin of the long ones; 0: rope_scale */

    /* norms */
    enum clb_norm_kind norm;
    enum clb_norm_place norm_place;
    float norm_eps;
    bool norm_plus_one; /* weight + 1 (Gemma style) */

    /* mixture of experts */
    uint32_t n_expert, top_k;               /* the most of any layer */
    uint32_t layer_experts[CLB_MAX_LAYERS]; /* 0: a dense layer */
    uint32_t layer_top_k[CLB_MAX_LAYERS];   /* 0: top_k */
    uint32_t expert_size;                   /* inner width of an expert */
    uint32_t dense_size;                    /* inner width of the MLP of dense layers; 0: none */
    enum clb_router_kind router;
    bool router_bias;             /* bias on the router's logits (gpt-oss) */
    bool router_correction;       /* bias that chooses but does not weigh */
    bool router_two_layers;       /* linear, tanh, linear (LLaMA-MoE) */
    float router_jitter;          /* sparsemixer threshold */
    uint32_t n_group, top_groups; /* group-limited routing; 0: off */
    enum clb_group_score group_score;
    bool topk_normalise;      /* weights of the chosen sum to 1 */
    float topk_normalise_min; /* lower bound of that sum (Ernie); 0: off */
    float router_clip;  /* --clip-gate-softmax: logits clamped to +-this before softmax; 0: off */
    float routed_scale; /* factor on the weights; 0: 1 */
    bool scale_expert_input;    /* the weight multiplies the expert's input (Llama 4) */
    uint32_t shared_size;       /* inner width of the shared expert(s); 0: none */
    bool shared_gate;           /* sigmoid(w.x) weighs the shared expert */
    bool expert_bias;           /* gate, up, down have biases */
    enum clb_act act;           /* of experts, shared experts and dense MLPs */
    float act_limit, act_alpha; /* clamped SwiGLU */

    /* multipliers; 0 means 1 */
    float embedding_scale, residual_scale, logit_scale;
    float logit_softcap; /* 0: off */
    bool output_bias;
    bool tied_embeddings; /* information: the file stores both */
};

/* Effective values where 0 means "default". */
float clb_arch_attn_scale(const struct clb_arch *a);
uint32_t clb_arch_layer_top_k(const struct clb_arch *a, uint32_t layer);
bool clb_arch_is_moe(const struct clb_arch *a, uint32_t layer);
/* Of n experts of a layer, how many a token can choose from: those of the groups it keeps. */
uint32_t clb_arch_choosable(const struct clb_arch *a, uint32_t n);
/* The first position that a query at `position` sees: window and chunk are considered. */
uint32_t clb_arch_first_key(const struct clb_arch *a, uint32_t layer, uint32_t position);

/* Appends the JSON object, keys in the order of the field table, neutral values left out. Per-layer
 * lists are arrays of n_layer values; left out when all are neutral, one value when all are equal.
 */
void clb_arch_write(const struct clb_arch *a, struct clb_text *out);
/* Reads what clb_arch_write wrote; unknown keys, wrong types and values out of range fail the
 * reader. */
bool clb_arch_read(struct clb_arch *a, struct clb_json *j);
/* Internal consistency: every division, product and bound that the engine relies on (n_head a
 * multiple of n_kv_head, top_k <= n_expert, rope_dim even and <= head_dim, layers with experts >=
 * 1, ...). CLB_BAD_INPUT naming the field. */
bool clb_arch_check(const struct clb_arch *a, struct clb_err *err);
/* The first part of clb_arch_check: every field within its own range, whatever the others say. */
bool clb_arch_ranges(const struct clb_arch *a, struct clb_err *err);
/* Whether this engine can run it: CLB_UNSUPPORTED naming the first field it cannot. */
bool clb_arch_runnable(const struct clb_arch *a, struct clb_err *err);

/* Where a field lies in the struct, and whether it has a value for each layer; false: there is no
 * field of this name. */
bool clb_arch_field(struct clb_str name, size_t *at, bool *per_layer);

/* Walks every field for display and --diff: name, value as text ("" = neutral). */
typedef void clb_arch_field_fn(void *arg, const char *name, const char *value);
void clb_arch_fields(const struct clb_arch *a, clb_arch_field_fn *fn, void *arg);

/* The dense tensors that a descriptor demands, in file order. One list serves writer, reader and
 * binder. */
enum clb_form {
    CLB_FORM_VECTOR, /* row-major f32, rows = 1 */
    CLB_FORM_ROWS,   /* row-major, any float dtype: the embedding */
    CLB_FORM_MATRIX, /* tiled, any dtype */
    CLB_FORM_ROUTER, /* tiled f32 */
};
enum clb_role {
    CLB_EMBED,
    CLB_ROPE_INV_FREQ,
    CLB_ROPE_INV_FREQ_LONG,
    CLB_FINAL_NORM,
    CLB_FINAL_NORM_BIAS,
    CLB_OUTPUT,
    CLB_OUTPUT_BIAS,
    /* per layer */
    CLB_ATTN_NORM,
    CLB_ATTN_NORM_BIAS,
    CLB_Q,
    CLB_Q_BIAS,
    CLB_K,
    CLB_K_BIAS,
    CLB_V,
    CLB_V_BIAS,
    CLB_Q_NORM,
    CLB_K_NORM,
    CLB_SINKS,
    CLB_Q_A,
    CLB_Q_A_NORM,
    CLB_KV_A,
    CLB_KV_A_NORM,
    CLB_K_UP,
    CLB_V_UP,
    CLB_O,
    CLB_O_BIAS,
    CLB_MLP_NORM,
    CLB_MLP_NORM_BIAS,
    CLB_ROUTER,
    CLB_ROUTER_BIAS,
    CLB_ROUTER_CORRECTION,
    CLB_ROUTER_IN,
    CLB_SHARED_GATE,
    CLB_SHARED_GATE_PROJ,
    CLB_SHARED_UP,
    CLB_SHARED_DOWN,
    CLB_DENSE_GATE,
    CLB_DENSE_UP,
    CLB_DENSE_DOWN,
    CLB_ROLE_COUNT,
};
struct clb_tensor_spec {
    enum clb_role role;
    uint32_t layer; /* UINT32_MAX for the whole model's */
    enum clb_form form;
    uint32_t rows, cols; /* outputs, inputs; a vector has rows = 1 */
};
/* Canonical name: "embed", "output", "final_norm", "rope.inv_freq", "layers.3.attn_norm",
 * "layers.3.q", ... */
void clb_spec_name(const struct clb_tensor_spec *s, char out[64]);
/* The i-th tensor the descriptor demands (file order); false when i is past the end. */
bool clb_arch_tensor(const struct clb_arch *a, uint32_t i, struct clb_tensor_spec *out);
uint32_t clb_arch_tensor_count(const struct clb_arch *a);

/* The three projections of an expert: gate and up are [expert_size][hidden], down is
 * [hidden][expert_size]. */
enum clb_part { CLB_GATE, CLB_UP, CLB_DOWN, CLB_PARTS };
extern const char *const clb_part_name[CLB_PARTS]; /* "gate", "up", "down" */

#endif
