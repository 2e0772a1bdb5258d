/* test_backend_archs.c - the CUDA backend on the emulation: everything that architectures differ
 * in. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

/* Norms behind branches, routers of two layers, every factor and cap. */
static void scaled_arch(struct clb_arch *a)
{
    tiny_arch(a);
    a->norm_place = CLB_NORM_AFTER;
    a->qk_norm = CLB_QK_NORM_HEAD_AFTER_ROPE;
    a->clip_qkv = 1.5f;
    a->router = CLB_ROUTER_TOPK_SOFTMAX;
    a->router_two_layers = true;
    a->router_clip = 3;
    a->act = CLB_ACT_GELU;
    a->embedding_scale = 2;
    a->residual_scale = 0.7f;
    a->logit_scale = 0.5f;
    a->logit_softcap = 4;
    a->rope_dim = 8;
    a->rope = CLB_ROPE_INTERLEAVED;
}

static void mixed(void)
{
    struct clb_arch a;

    rig_mixed_arch(&a);
    check_model("mixed", &a, CLB_INT8, rig_bound[CLB_INT8]);
    check_model("mixed", &a, CLB_F32, rig_bound[CLB_F32]);
}

static void latent(void)
{
    struct clb_arch a;

    rig_latent_arch(&a);
    check_model("latent", &a, CLB_INT4, rig_bound[CLB_INT4]);
    check_model("latent", &a, CLB_F32, rig_bound[CLB_F32]);
    a.q_lora_rank = 0;
    check_model("latent, queries as they are", &a, CLB_BF16, rig_bound[CLB_BF16]);
}

static void biased(void)
{
    struct clb_arch a;

    rig_biased_arch(&a);
    check_model("biased", &a, CLB_INT8, rig_bound[CLB_INT8]);
    check_model("biased", &a, CLB_MXFP4, rig_bound[CLB_MXFP4]);
    check_model("biased", &a, CLB_F32, rig_bound[CLB_F32]);
}

static void scaled(void)
{
    struct clb_arch a;

    scaled_arch(&a);
    check_model("scaled", &a, CLB_F16, rig_bound[CLB_F16]);
    a.router_two_layers = false;
    a.router = CLB_ROUTER_SPARSEMIXER;
    a.router_jitter = 0.01f;
    check_model("sparsemixer", &a, CLB_F32, rig_bound[CLB_F32]);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(mixed);
    TEST(latent);
    TEST(biased);
    TEST(scaled);
    TEST(nothing_leaks);
    return test_result();
}
