/* The architecture descriptor: text and back, ranges, relations, refusals, demanded tensors. */
#include "lib/format/arch.h"

#include <math.h>

#include "test/check.h"
#include "test/tiny_model.h"

static struct clb_arch a, b;
static struct clb_err err;
static struct clb_text text;

static bool parse(const char *json, struct clb_arch *out)
{
    struct clb_json j;

    clb_json_open(&j, json, strlen(json), "test");
    clb_arch_read(out, &j);
    return clb_json_close(&j, &err);
}

static const char *write(const struct clb_arch *x)
{
    clb_text_clear(&text);
    clb_arch_write(x, &text);
    return text.p;
}

static void round_trip(void)
{
    tiny_arch(&a);
    a.qk_norm = CLB_QK_NORM_FULL;
    a.clip_qkv = 1.1f;
    a.window[1] = 32;
    a.no_rope[0] = true;
    a.layer_experts[1] = 6;
    a.attn_scale = 0.1f;
    a.act = CLB_ACT_CLAMPED_SWIGLU;
    CHECK(parse(write(&a), &b));
    CHECK(!memcmp(&a, &b, sizeof a));
    CHECK_HAS(text.p, "\"qk_norm\":\"full\"");
    CHECK_HAS(text.p, "\"window\":[0,32]");
    CHECK_HAS(text.p, "\"no_rope\":[true,false]");
    CHECK(!strstr(text.p, "q_bias")); /* neutral */
    a.layer_experts[1] = 8;
    CHECK_HAS(write(&a), "\"layer_experts\":8,");
    CHECK(parse(text.p, &b));
    CHECK(!memcmp(&a, &b, sizeof a));
}

/* Every float survives, whatever its bits. */
static void floats_survive(void)
{
    tiny_arch(&a);
    for (uint64_t i = 0; i < 2000; i++) {
        a.attn_scale = fabsf(ldexpf(tiny_random(1, 2, i), (int)(i % 200) - 100));
        CHECK(parse(write(&a), &b));
        CHECK(a.attn_scale == b.attn_scale);
    }
}

static void refuses(const char *json, const char *part)
{
    CHECK(!parse(json, &b));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, part);
}

static void bad_text(void)
{
    refuses("{\"n_layer\":2,\"warp_drive\":true}", "warp_drive");
    refuses("{\"n_layer\":513}", "n_layer");
    refuses("{\"n_layer\":-1}", "n_layer");
    refuses("{\"n_layer\":\"2\"}", "n_layer");
    refuses("{\"n_layer\":1.0}", "n_layer");
    refuses("{\"act\":\"swish\"}", "swish");
    refuses("{\"norm_eps\":-1.0}", "norm_eps");
    refuses("{\"norm_eps\":1e39}", "norm_eps");
    refuses("{\"q_bias\":1}", "q_bias");
    refuses("{\"n_layer\":3,\"window\":[1,2]}", "window");
    refuses("{\"n_layer\":3,\"window\":[]}", "window");
    refuses("{\"n_layer\":3,\"window\":[1,2,3,4]}", "window");
    refuses("{\"n_layer\":3,\"n_layer\":3}", "n_layer");
    refuses("[]", "object");
}

static void field_bad(const char *name)
{
    memset(&err, 0, sizeof err);
    CHECK(!clb_arch_check(&a, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_STR(err.field, name);
    CHECK_HAS(err.text, name);
    tiny_arch(&a);
}

static void relations(void)
{
    tiny_arch(&a);
    CHECK(clb_arch_check(&a, &err));
    a.n_layer = 0, field_bad("n_layer");
    a.n_layer = 513, field_bad("n_layer");
    a.hidden_size = 0, field_bad("hidden_size");
    a.hidden_size = 1u << 25, field_bad("hidden_size");
    a.n_kv_head = 3, field_bad("n_kv_head");
    a.n_kv_head = 8, field_bad("n_kv_head");
    a.top_k = 9, field_bad("top_k");
    a.top_k = 0, field_bad("top_k");
    a.rope_dim = 15, field_bad("rope_dim");
    a.rope_dim = 18, field_bad("rope_dim");
    a.rope_dim = 0, field_bad("rope_dim");
    a.rope = CLB_ROPE_NONE, field_bad("rope_dim");
    a.norm_eps = 0, field_bad("norm_eps");
    a.norm_eps = NAN, field_bad("norm_eps");
    a.clip_qkv = -1, field_bad("clip_qkv");
    a.layer_experts[0] = 0, field_bad("dense_size");
    a.dense_size = 32, field_bad("dense_size");
    a.layer_experts[0] = 9, field_bad("layer_experts");
    a.layer_experts[0] = 1, field_bad("top_k");
    a.layer_top_k[0] = 9, field_bad("layer_top_k");
    a.n_expert = 9, field_bad("n_expert");
    a.shared_gate = true, field_bad("shared_gate");
    a.q_lora_rank = 8, field_bad("q_lora_rank");
    a.attention = CLB_ATTN_MLA, field_bad("kv_lora_rank");
    a.n_group = 3, a.top_groups = 1, field_bad("n_group");
    a.n_group = 4, a.top_groups = 1, a.group_score = CLB_GROUP_MAX, a.top_k = 3;
    field_bad("top_k");
    a.router = CLB_ROUTER_SPARSEMIXER, a.top_k = 3, field_bad("top_k");
    a.attn_temperature_scale = 0.1f, field_bad("attn_temperature_floor");
    a.act_limit = 2, field_bad("act_limit");
    a.layer_experts[0] = a.layer_experts[1] = 0, a.dense_size = 8, field_bad("layer_experts");
    a.layer_experts[0] = 0, a.dense_size = 8;
    CHECK(clb_arch_check(&a, &err));
}

static void runs_not(const char *name)
{
    CHECK(!clb_arch_runnable(&a, &err));
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK_STR(err.field, name);
    CHECK_HAS(err.text, name);
    tiny_arch(&a);
}

static void unsupported(void)
{
    tiny_arch(&a);
    CHECK(clb_arch_runnable(&a, &err));
    a.window[1] = 16, a.qk_norm = CLB_QK_NORM_FULL, a.tied_embeddings = true;
    CHECK(clb_arch_runnable(&a, &err));
    a.linear_attention[1] = true, runs_not("linear_attention");
    a.attn_output_gate = true, runs_not("attn_output_gate");
    a.index_top_k = 64, runs_not("index_top_k");
    a.norm_plus_one = true, runs_not("norm_plus_one");
}

static void count_field(void *arg, const char *name, const char *value)
{
    int *n = arg;

    n[0]++;
    n[1] += *value != 0;
    if (!strcmp(name, "rope"))
        CHECK_STR(value, "\"half\"");
}

/* The man page of the format explains every field (tests start in the root of the repository). */
static void in_page(void *arg, const char *name, const char *value)
{
    const char *at = arg;
    size_t n = strlen(name);
    bool found = false;

    (void)value;
    while (!found && (at = strstr(at, name))) {
        found = at[-1] == ' ' && (at[n] == ' ' || at[n] == '\n');
        at += n;
    }
    if (!found) {
        printf("# '%s' is not in man/colibri.bin.5\n", name);
        test_bad = 1;
    }
}

static void documented(void)
{
    static char page[1 << 16];
    FILE *f = fopen("man/colibri.bin.5", "r");

    CHECK(f != NULL);
    if (!f)
        return;
    page[fread(page, 1, sizeof page - 1, f)] = 0;
    fclose(f);
    tiny_arch(&a);
    clb_arch_fields(&a, in_page, page);
}

static void fields_walk(void)
{
    int n[2] = { 0 };

    tiny_arch(&a);
    clb_arch_fields(&a, count_field, n);
    CHECK(n[0] > 60);
    CHECK_EQ(n[1], 16);
}

static void demanded(void)
{
    static const char *const want[] = {
        "embed",
        "rope.inv_freq",
        "layers.0.attn_norm",
        "layers.0.q",
        "layers.0.k",
        "layers.0.v",
        "layers.0.o",
        "layers.0.mlp_norm",
        "layers.0.dense_gate",
        "layers.0.dense_up",
        "layers.0.dense_down",
        "layers.1.attn_norm",
        "layers.1.q",
        "layers.1.k",
        "layers.1.v",
        "layers.1.o",
        "layers.1.mlp_norm",
        "layers.1.router",
        "layers.1.shared_gate",
        "layers.1.shared_gate_proj",
        "layers.1.shared_up",
        "layers.1.shared_down",
        "final_norm",
        "output",
    };
    uint32_t n = sizeof want / sizeof *want;
    struct clb_tensor_spec s;
    char name[64];

    tiny_arch(&a);
    a.layer_experts[0] = 0, a.dense_size = 40, a.shared_size = 24, a.shared_gate = true;
    CHECK_EQ(clb_arch_tensor_count(&a), n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(clb_arch_tensor(&a, i, &s));
        clb_spec_name(&s, name);
        CHECK_STR(name, want[i]);
    }
    CHECK(!clb_arch_tensor(&a, n, &s));
    CHECK(clb_arch_tensor(&a, 4, &s));
    CHECK_EQ(s.rows, 2 * 16);
    CHECK_EQ(s.cols, 64);
    CHECK(clb_arch_tensor(&a, 18, &s));
    CHECK_EQ(s.form, CLB_FORM_ROUTER);
    CHECK_EQ(s.rows, 1);
}

static void defaults(void)
{
    tiny_arch(&a);
    CHECK(clb_arch_attn_scale(&a) == 0.25f);
    a.attn_scale = 0.5f;
    CHECK(clb_arch_attn_scale(&a) == 0.5f);
    a.layer_top_k[1] = 1;
    CHECK_EQ(clb_arch_layer_top_k(&a, 0), 2);
    CHECK_EQ(clb_arch_layer_top_k(&a, 1), 1);
}

int main(void)
{
    TEST(round_trip);
    TEST(floats_survive);
    TEST(bad_text);
    TEST(relations);
    TEST(unsupported);
    TEST(fields_walk);
    TEST(documented);
    TEST(demanded);
    TEST(defaults);
    clb_text_free(&text);
    return test_result();
}
