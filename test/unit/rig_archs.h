/* rig_archs.h - architectures that between them meet every part of a pass, small and odd. */
#ifndef TEST_UNIT_RIG_ARCHS_H
#define TEST_UNIT_RIG_ARCHS_H

#include "test/tiny_model.h"

/* Everything that the engine cuts differently: several query heads per KV head, a window, shared
 * and dense parts, more rows than one piece holds. */
static inline void rig_mixed_arch(struct clb_arch *a)
{
    tiny_arch(a);
    a->n_layer = 3;
    a->n_head = 6;
    a->value_dim = 24;
    a->window[1] = 50;
    a->shared_size = 40;
    a->shared_gate = true;
    a->dense_size = 72;
    a->layer_experts[2] = 0;
    a->qk_norm = CLB_QK_NORM_HEAD;
    a->attn_softcap = 3;
}

/* Multi-head latent attention, experts chosen in groups. */
static inline void rig_latent_arch(struct clb_arch *a)
{
    tiny_arch(a);
    a->attention = CLB_ATTN_MLA;
    a->n_head = a->n_kv_head = 5;
    a->q_lora_rank = 36;
    a->kv_lora_rank = 40;
    a->qk_nope_dim = 18;
    a->qk_rope_dim = a->rope_dim = 6;
    a->head_dim = 24;
    a->value_dim = 23;
    a->rope = CLB_ROPE_INTERLEAVED;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->n_group = 4;
    a->top_groups = 2;
    a->group_score = CLB_GROUP_TOP2_SUM;
    a->top_k = 3;
    a->routed_scale = 2.5f;
    a->shared_size = 40;
}

/* Biases, sinks, layers without positions, experts that read scaled rows. */
static inline void rig_biased_arch(struct clb_arch *a)
{
    tiny_arch(a);
    a->q_bias = a->k_bias = a->v_bias = a->o_bias = a->expert_bias = a->router_bias = true;
    a->output_bias = a->sinks = a->no_rope[1] = a->scale_expert_input = true;
    a->qk_norm = CLB_QK_NORM_L2;
    a->attn_temperature_scale = 0.3f;
    a->attn_temperature_floor = 16;
    a->chunk[0] = 70;
    a->norm = CLB_NORM_LAYER;
    a->act = CLB_ACT_CLAMPED_SWIGLU;
    a->act_limit = 0.5f;
    a->act_alpha = 1.702f;
}

#endif
