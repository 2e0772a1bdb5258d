/* Mutations of config.json: refused with a place, or a descriptor that is consistent. MUTATIONS=N
 * in the environment asks for another count. */
#include <stdlib.h>

#include "lib/import/family.h"
#include "test/check.h"

enum { ROOM = 1 << 13 };

static const char *const configs[] = {
    "{\"model_type\":\"qwen3_moe\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"rope_theta\":"
    "1e6,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":"
    "64},"
    "\"max_position_embeddings\":256,\"max_window_layers\":48,\"sliding_window\":32,\"use_sliding_"
    "window\":true,"
    "\"norm_topk_prob\":false,\"decoder_sparse_step\":2,\"mlp_only_layers\":[0],\"attention_bias\":"
    "false,"
    "\"tie_word_embeddings\":true,\"vocab_size\":301,\"hidden_size\":64,\"intermediate_size\":96,"
    "\"moe_intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_"
    "value_heads\":4,"
    "\"head_dim\":16,\"num_experts\":6,\"num_experts_per_tok\":2,\"_x\":[1,{\"a\":null}]}",
    "{\"model_type\":\"mixtral\",\"hidden_act\":\"gelu\",\"rms_norm_eps\":1e-5,\"max_position_"
    "embeddings\":256,"
    "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5,\"factor\":8,\"low_freq_"
    "factor\":1,"
    "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192},\"sliding_window\":null,"
    "\"vocab_size\":300,"
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"num_local_experts\":8,\"num_experts\":8,\"num_experts_per_tok\":"
    "2}",
    "{\"model_type\":\"olmoe\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,"
    "\"clip_qkv\":1.5,"
    "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"max_position_embeddings\":4096,\"norm_"
    "topk_prob\":true,"
    "\"attention_bias\":true,\"vocab_size\":263,\"hidden_size\":64,\"intermediate_size\":32,\"num_"
    "hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"num_experts\":12,\"num_experts_per_"
    "tok\":6}",
};
enum { N_CONFIG = sizeof configs / sizeof *configs };

static uint64_t seed = 11;
static unsigned long accepted, refused;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static bool try_config(const char *json, size_t n, struct clb_err *err)
{
    static struct clb_arch a;
    static struct clb_family_extra extra;
    const struct clb_family *family = NULL;
    struct clb_family_options o = { 0 };
    struct clb_problems problems = { 0 };
    struct clb_settings config = { 0 };
    struct clb_text notes = { 0 };
    struct clb_err check = { 0 };
    bool ok = clb_settings_read(&config, json, n, "config.json", err) &&
              clb_family_read(&family, &a, &extra, &config, &o, &problems, &notes, err);

    if (ok) {
        accepted++;
        CHECK(clb_arch_check(&a, &check));
        CHECK_STR(check.text, "");
        for (uint32_t i = 0; i < a.rope_dim / 2; i++)
            CHECK(extra.inv_freq[i] >= 0 && extra.inv_freq[i] <= 1e6f);
    } else {
        refused++;
        CHECK(err->code == CLB_BAD_INPUT || err->code == CLB_UNSUPPORTED);
        CHECK_HAS(err->text, "config.json: ");
        CHECK_STR(err->file, "config.json");
    }
    clb_settings_free(&config);
    clb_problems_free(&problems);
    clb_text_free(&notes);
    return ok;
}

static void the_originals_are_accepted(void)
{
    for (int i = 0; i < N_CONFIG; i++) {
        struct clb_err err = { 0 };

        CHECK(try_config(configs[i], strlen(configs[i]), &err));
        CHECK_STR(err.text, "");
    }
}

/* Replaces the value that follows a random colon. */
static size_t edit_value(char *text, size_t n)
{
    static const char *const values[] = {
        "0",        "-1",    "1",          "2",    "3",       "7",
        "1e30",     "0.5",   "4294967296", "null", "true",    "false",
        "\"silu\"", "\"\"",  "[]",         "{}",   "[0,1,2]", "{\"rope_type\":\"yarn\"}",
        "64",       "100000"
    };
    const char *with = values[rnd(sizeof values / sizeof *values)];
    size_t at = rnd((uint32_t)n), end, len = strlen(with);

    while (at < n && text[at] != ':')
        at++;
    if (at++ >= n)
        return n;
    for (end = at; end < n && text[end] != ',' && text[end] != '}';)
        end++;
    memmove(text + at + len, text + end, n - end);
    memcpy(text + at, with, len);
    return n - (end - at) + len;
}

/* Removes a key with its value, up to the next comma. */
static size_t drop_key(char *text, size_t n)
{
    size_t at = rnd((uint32_t)n), end;

    while (at < n && text[at] != ',')
        at++;
    for (end = at + 1; end < n && text[end] != ',';)
        end++;
    if (end >= n)
        return n;
    memmove(text + at, text + end, n - end);
    return n - (end - at);
}

static void random_edits(void)
{
    const char *count = getenv("MUTATIONS");
    unsigned long n_try = count ? strtoul(count, NULL, 10) : 6000;
    static char text[ROOM];

    for (unsigned long i = 0; i < n_try; i++) {
        const char *from = configs[rnd(N_CONFIG)];
        struct clb_err err = { 0 };
        size_t n = strlen(from);

        memcpy(text, from, n);
        for (uint32_t k = 1 + rnd(3); k > 0; k--) {
            if (rnd(6) == 0)
                text[rnd((uint32_t)n)] = (char)rnd(256);
            else if (rnd(3) == 0)
                n = drop_key(text, n);
            else
                n = edit_value(text, n);
        }
        try_config(text, n, &err);
    }
    printf("# %lu accepted, %lu refused\n", accepted, refused);
    CHECK(accepted > 100 && refused > 1000);
}

static void names_are_matched_exactly(void)
{
    static const char *const wrong[] = {
        "model.layers.0.mlp.experts.1.gate_proj.weightx",
        "model.layers.0.mlp.experts.1.gate_proj.weigh",
        "model.layers.00.mlp.experts.1.gate_proj.weight",
        "model.layers..mlp.experts.1.gate_proj.weight",
        "model.layers.0.mlp.experts.-1.gate_proj.weight",
        "model.layers.0.mlp.experts.#.gate_proj.weight",
        "model.layers.4294967296.mlp.experts.1.gate_proj.weight",
        "",
        "model.layers.",
    };
    uint32_t number[2];
    const struct clb_family_tensor *line;
    char name[128];

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(!clb_family_match(&clb_family_olmoe, wrong[i], number));
    line = clb_family_match(&clb_family_olmoe, "model.layers.12.mlp.experts.340.up_proj.weight",
                            number);
    CHECK(line && line->target == CLB_FOR_EXPERT + CLB_UP && !line->form);
    CHECK_EQ(number[0], 12);
    CHECK_EQ(number[1], 340);
    CHECK(clb_family_name(&clb_family_olmoe, CLB_FOR_EXPERT + CLB_UP, 12, 340, name, sizeof name));
    CHECK_STR(name, "model.layers.12.mlp.experts.340.up_proj.weight");
    CHECK(!clb_family_name(&clb_family_olmoe, CLB_SINKS, 0, 0, name, sizeof name));
}

int main(void)
{
    TEST(the_originals_are_accepted);
    TEST(random_edits);
    TEST(names_are_matched_exactly);
    return test_result();
}
