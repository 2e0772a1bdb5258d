/* What families make of keys that their test checkpoints do not have. */
#include <math.h>

#include "lib/import/family.h"
#include "test/check.h"

static struct clb_arch a;
static struct clb_family_extra extra;
static struct clb_err err;
static struct clb_problems problems;

static bool read(const char *text)
{
    const struct clb_family_options o = { .router_clip = 0 };
    const struct clb_family *family;
    struct clb_settings config = { 0 };
    struct clb_text notes = { 0 };
    bool ok;

    clb_problems_free(&problems);
    ok = clb_settings_read(&config, text, strlen(text), "config.json", &err) &&
         clb_family_read(&family, &a, &extra, &config, &o, &problems, &notes, &err);
    clb_settings_free(&config);
    clb_text_free(&notes);
    return ok;
}

#define COMMON(type)                                                                               \
    "{\"model_type\":\"" type "\",\"hidden_act\":\"silu\",\"hidden_size\":64,"                     \
    "\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":99,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"                    \
    "\"num_local_experts\":6,\"num_experts_per_tok\":2,\"intermediate_size\":32,"
#define QWEN2                                                                                      \
    COMMON("qwen2_moe")                                                                            \
    "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32,"

static void windows_of_qwen2(void)
{
    CHECK(read(QWEN2 "\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":4}"));
    CHECK(a.window[0] == 8 && !a.window[1] && a.window[2] == 8 && !a.window[3] && !a.window[4]);
    CHECK(read(QWEN2 "\"use_sliding_window\":true}"));
    CHECK(a.window[0] == 4096 && !a.window[1] && a.window[4] == 4096);
    CHECK(read(QWEN2 "\"use_sliding_window\":false,\"sliding_window\":8,\"max_window_layers\":4}"));
    CHECK(!a.window[0] && !a.window[2]);
    CHECK(read(QWEN2 "\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":"
                     "[\"full_attention\",\"sliding_attention\",\"full_attention\","
                     "\"full_attention\",\"sliding_attention\"]}"));
    CHECK(!a.window[0] && a.window[1] == 8 && !a.window[2] && a.window[4] == 8);
    CHECK(!read(QWEN2 "\"layer_types\":[\"full_attention\",\"sliding_attention\","
                      "\"full_attention\",\"full_attention\",\"full_attention\"]}"));
    CHECK_HAS(err.text, "layer 1 slides, but 'use_sliding_window' is not true");
}

#define GPT_OSS COMMON("gpt_oss") "\"rope_scaling\":{\"rope_type\":\"default\"},"

static void gpt_oss(void)
{
    CHECK(read(GPT_OSS "\"head_dim\":16}"));
    CHECK(a.window[0] == 128 && !a.window[1] && a.window[4] == 128);
    CHECK(a.q_bias && a.k_bias && a.v_bias && a.o_bias && a.sinks && a.expert_bias);
    CHECK(a.act == CLB_ACT_CLAMPED_SWIGLU && a.act_limit == 7 && a.act_alpha == 1.702f);
    CHECK(read(GPT_OSS "\"experts_per_token\":2}"));
    CHECK(!read(GPT_OSS "\"experts_per_token\":3}"));
    CHECK_HAS(err.text, "'experts_per_token': is 3, but 'num_experts_per_tok' is 2");
    CHECK(read(GPT_OSS "\"swiglu_alpha\":1.5}"));
    CHECK(a.act_alpha == 1.5f);
    CHECK(!read(COMMON("gpt_oss") "\"head_dim\":16}"));
    CHECK_HAS(err.text, "'rope_scaling' is missing");
    CHECK(!read(COMMON("gpt_oss") "\"rope_scaling\":null}"));
    CHECK(read(COMMON("gpt_oss") "\"rope_parameters\":{\"rope_type\":\"default\"}}"));
}

#define SHARED "\"moe_intermediate_size\":32,\"n_shared_experts\":1,"
#define MLA                                                                                        \
    COMMON("deepseek_v3")                                                                          \
    SHARED "\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":8,\"v_head_dim\":16,"  \
           "\"routed_scaling_factor\":2.5,"
#define EXAONE COMMON("exaone_moe") "\"moe_intermediate_size\":32,\"num_shared_experts\":1,"
#define FIVE(last)                                                                                 \
    "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\","                   \
    "\"full_attention\",\"" last "\"]"

/* The frequency of the second pair, of 16 dimensions that are rotated. */
static bool turns_by(double theta)
{
    return fabs(extra.inv_freq[1] * pow(theta, 2.0 / 16) - 1) < 1e-5;
}

/* Keys that are not there mean what the reference makes of that, or must be there. */
static void absent(void)
{
    CHECK(read(COMMON("phimoe") "\"head_dim\":16}"));
    CHECK(turns_by(1e6));
    CHECK(read(COMMON("mixtral") "\"head_dim\":16}"));
    CHECK(turns_by(1e6));
    CHECK(read(COMMON("qwen3_moe") "\"moe_intermediate_size\":32}"));
    CHECK(turns_by(1e4) && !a.topk_normalise);
    CHECK(read(COMMON("dots1") SHARED "\"head_dim\":16}"));
    CHECK(turns_by(1e4) && !a.topk_normalise && a.routed_scale == 0);
    CHECK(read(COMMON("glm4_moe") SHARED "\"head_dim\":32}"));
    CHECK(a.rope_dim == 16 && a.topk_normalise);
    CHECK(read(COMMON("glm4_moe") SHARED "\"head_dim\":32,\"partial_rotary_factor\":1.0}"));
    CHECK(a.rope_dim == 32);
    CHECK(read(MLA "\"n_group\":1,\"topk_group\":1}"));
    CHECK(read(MLA "\"n_group\":3,\"topk_group\":1}"));
    CHECK(!read(MLA "\"n_group\":6,\"topk_group\":2}"));
    CHECK_HAS(err.text, "'n_group': leaves one expert to a group");
    CHECK(!read(MLA "\"topk_group\":1}"));
    CHECK_HAS(err.text, "'n_group' is missing");
    CHECK(!read(MLA "\"n_group\":2}"));
    CHECK_HAS(err.text, "'topk_group' is missing");
}

static void exaone(void)
{
    CHECK(read(EXAONE "\"rope_theta\":10000," FIVE("sliding_attention") ",\"sliding_window\":8}"));
    CHECK(a.routed_scale == 2.5f && a.window[4] == 8 && !a.no_rope[4] && a.no_rope[0]);
    CHECK(read(EXAONE "\"rope_theta\":10000," FIVE("full_attention") ",\"sliding_window\":null}"));
    CHECK(!a.no_rope[0] && !a.window[4]);
    CHECK(!read(EXAONE "\"rope_theta\":10000," FIVE("full_attention") "}"));
    CHECK_HAS(err.text, "'sliding_window' is missing");
    CHECK(!read(EXAONE
                "\"rope_theta\":10000," FIVE("sliding_attention") ",\"sliding_window\":null}"));
    CHECK_HAS(err.text, "'sliding_window' is missing");
    CHECK(!read(EXAONE FIVE("sliding_attention") ",\"sliding_window\":8}"));
    CHECK_HAS(err.text, "'rope_theta' is missing");
}

static void granite(void)
{
    CHECK(read(COMMON("granitemoe") "\"attention_bias\":true}"));
    CHECK(a.attn_scale == 1 && a.logit_scale == 1 && a.q_bias && a.o_bias);
    CHECK(read(COMMON("granitemoeshared") "\"shared_intermediate_size\":48,"
                                          "\"logits_scaling\":8,\"embedding_multiplier\":12}"));
    CHECK(a.shared_size == 48 && a.logit_scale == 0.125f && a.embedding_scale == 12);
    CHECK(!read(COMMON("granitemoe") "\"shared_intermediate_size\":48}"));
    CHECK_HAS(err.text, "'shared_intermediate_size'");
}

#define LLAMA4 COMMON("llama4_text") "\"intermediate_size_mlp\":96,"

static void llama4(void)
{
    CHECK(read(LLAMA4 "\"attn_temperature_tuning\":4}"));
    CHECK(a.attn_temperature_scale == 0.1f && a.attn_temperature_floor == 8192);
    CHECK(a.no_rope[3] && !a.no_rope[4] && a.chunk[0] == 8192 && !a.chunk[3]);
    CHECK(a.layer_experts[0] == 6 && a.dense_size == 0 && a.shared_size == 32);
    CHECK(read(LLAMA4 "\"attn_temperature_tuning\":false,\"interleave_moe_layer_step\":2,"
                      "\"no_rope_layers\":[0,1,1,1,1],\"use_qk_norm\":false}"));
    CHECK(a.attn_temperature_scale == 0 && a.qk_norm == CLB_QK_NORM_NONE);
    CHECK(!a.layer_experts[0] && a.layer_experts[1] == 6 && !a.layer_experts[4]);
    CHECK(a.dense_size == 96 && a.no_rope[0] && !a.no_rope[3] && !a.chunk[0] && a.chunk[3]);
    CHECK(read(LLAMA4 "\"moe_layers\":[4]}"));
    CHECK(!a.layer_experts[1] && a.layer_experts[4] == 6);
    CHECK(!read(LLAMA4 "\"moe_layers\":[5]}"));
    CHECK(!read(LLAMA4 "\"no_rope_layers\":[1,1]}"));
    CHECK_HAS(err.text, "has 2 entries, but there are 5 layers");
    CHECK(!read("{\"model_type\":\"llama4\",\"num_experts\":3}"));
    CHECK_HAS(err.text, "'text_config' is missing");
    CHECK(!read("{\"model_type\":\"llama4\",\"text_config\":[3]}"));
    CHECK_HAS(err.text, "an object is expected");
}

static void quantised(void)
{
    CHECK(read(COMMON("granitemoe") "\"quantization_config\":{\"quant_method\":\"fp8\","
                                    "\"weight_block_size\":[64,256],\"scale_fmt\":\"ue8m0\","
                                    "\"ignored_layers\":[\"x\"]}}"));
    CHECK(extra.quant.method == CLB_QUANT_FP8);
    CHECK(extra.quant.block_rows == 64 && extra.quant.block_cols == 256);
    CHECK(read(COMMON("granitemoe") "\"quantization_config\":{\"quant_method\":\"fp8\"}}"));
    CHECK(extra.quant.block_rows == 128 && extra.quant.block_cols == 128);
    CHECK(read(COMMON("granitemoe") "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}"));
    CHECK(extra.quant.method == CLB_QUANT_MXFP4);
    CHECK(read(COMMON("granitemoe") "\"quantization_config\":null}"));
    CHECK(extra.quant.method == CLB_QUANT_NONE);
}

int main(void)
{
    TEST(windows_of_qwen2);
    TEST(gpt_oss);
    TEST(absent);
    TEST(exaone);
    TEST(granite);
    TEST(llama4);
    TEST(quantised);
    clb_problems_free(&problems);
    return test_result();
}
