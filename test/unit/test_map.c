/* Maps: what each entry does to the descriptor, and what is refused, with file, byte and field. */
#include <stdlib.h>

#include "lib/import/map.h"
#include "test/check.h"

static const char config_json[] =
    "{\"width\":32,\"layers\":3,\"heads\":4,\"vocab\":50,\"ctx\":64,\"eps\":1e-5,\"base\":500.0,"
    "\"kinds\":[\"full\",\"local\",\"full\"],\"mlp\":{\"act\":\"swiglu\",\"width\":48},"
    "\"moe\":{\"n\":[6,6],\"k\":2,\"w\":16,\"at\":[1,2],\"free\":null},\"bias\":true,"
    "\"dropout\":0.1,\"old\":false}";

#define FIELDS                                                                                    \
    "\"width\":\"hidden_size\",\"layers\":\"n_layer\",\"heads\":\"n_head\","                      \
    "\"vocab\":\"vocab_size\",\"ctx\":\"max_positions\",\"eps\":\"norm_eps\","                    \
    "\"base\":\"rope_theta\",\"moe.n\":\"n_expert\",\"moe.k\":\"top_k\","                         \
    "\"moe.w\":\"expert_size\",\"moe.at\":\"moe_layers\",\"mlp.width\":\"dense_size\","           \
    "\"mlp.act\":{\"field\":\"act\",\"values\":{\"swiglu\":\"silu\",\"reglu\":\"relu\"}},"        \
    "\"bias\":[\"q_bias\",\"k_bias\"],\"dropout\":null,\"old\":{\"equals\":false}"
#define KINDS ",\"kinds\":{\"field\":\"window\",\"values\":{\"full\":0,\"local\":8}}"
#define FIXED                                                                                     \
    "\"descriptor\":{\"rope\":\"half\",\"router\":\"softmax_topk\",\"topk_normalise\":true}"
#define TENSORS "\"tensors\":{\"a.#.x\":\"q\",\"e\":\"embed\",\"n.#\":null}"
#define MAP "{\"name\":\"t\",\"config\":{" FIELDS KINDS "}," FIXED "," TENSORS "}"

static struct clb_arch a;
static struct clb_map *map;
static struct clb_settings config;

static void close_all(void)
{
    clb_settings_free(&config);
    clb_map_close(map);
    map = NULL;
}

static bool read_with(const char *m, size_t n, const char *c, struct clb_err *err)
{
    static struct clb_family_extra extra;
    const struct clb_family *family = NULL;
    struct clb_problems problems = { 0 };
    struct clb_text notes = { 0 };
    struct clb_err good = { 0 };

    *err = good;
    bool ok = clb_map_open(&map, m, n, "own.json", err) &&
              clb_settings_read(&config, c, strlen(c), "config.json", err);
    struct clb_family_options o = { .map = map };

    ok = ok && clb_family_read(&family, &a, &extra, &config, &o, &problems, &notes, err);
    clb_problems_free(&problems);
    clb_text_free(&notes);
    return ok;
}

static void every_kind_of_entry(void)
{
    struct clb_err err;

    CHECK(read_with(MAP, strlen(MAP), config_json, &err));
    CHECK_STR(err.text, "");
    CHECK_EQ(a.n_layer, 3);
    CHECK_EQ(a.hidden_size, 32);
    CHECK_EQ(a.n_kv_head, 4);
    CHECK_EQ(a.head_dim, 8);
    CHECK_EQ(a.n_expert, 6);
    CHECK_EQ(a.layer_experts[0], 0);
    CHECK_EQ(a.layer_experts[1], 6);
    CHECK_EQ(a.dense_size, 48);
    CHECK_EQ(a.window[0], 0);
    CHECK_EQ(a.window[1], 8);
    CHECK_EQ(a.act, CLB_ACT_SILU);
    CHECK(a.q_bias && a.k_bias && !a.v_bias);
    CHECK(a.topk_normalise);
    CHECK_EQ(a.rope_dim, 8);
    for (uint32_t i = 0; i < config.n; i++) {
        const struct clb_setting *s = &config.setting[i];

        CHECK(s->state == (!strcmp(s->key, "dropout") || !strcmp(s->key, "moe.free")
                               ? CLB_KEY_IRRELEVANT
                               : CLB_KEY_USED));
    }

    const struct clb_family *f = clb_map_family(map);
    uint32_t number[2];
    const struct clb_family_tensor *t = clb_family_match(f, "a.12.x", number);
    CHECK(t && t->target == CLB_Q && number[0] == 12);
    t = clb_family_match(f, "n.3", number);
    CHECK(t && t->target == CLB_FOR_NOTHING);
    t = clb_family_match(f, "lm_head.weight", number);
    CHECK(t && t->target == CLB_OUTPUT);
    CHECK(!clb_family_match(f, "a.b.x", number));
    close_all();
}

static size_t edited(char *out, size_t room, const char *from, const char *to)
{
    const char *at = strstr(MAP, from);

    CHECK(at != NULL);
    return (size_t)snprintf(out, room, "%.*s%s%s", (int)(at - MAP), MAP, to, at + strlen(from));
}

#define AT "\"moe.at\":\"moe_layers\""
#define AT_NULL "\"moe.at\":null,"

/* What other words make of layers, of absent keys, of one key for two fields. */
static void words(void)
{
    static const struct {
        const char *from, *to;
        uint32_t experts[3], shared, window[3];
    } row[] = {
        { AT, "\"moe.at\":\"dense_layers\"", { 6, 0, 0 }, 0, { 0, 8, 0 } },
        { AT, AT_NULL "\"moe.k2\":{\"field\":\"moe_interval\",\"absent\":2}",
          { 0, 6, 0 }, 0, { 0, 8, 0 } },
        { AT,
          AT_NULL "\"moe.free\":{\"field\":\"first_dense_layers\",\"absent\":2}",
          { 0, 0, 6 }, 0, { 0, 8, 0 } },
        { AT, AT_NULL "\"moe.free\":{\"field\":\"shared_experts\",\"absent\":3}",
          { 6, 6, 6 }, 48, { 0, 8, 0 } },
        { AT, AT_NULL "\"moe.free\":{\"field\":\"moe_layers\",\"absent\":[1]}",
          { 0, 6, 0 }, 0, { 0, 8, 0 } },
        { AT, AT_NULL "\"moe.k3\":{\"field\":\"moe_layers\",\"absent\":null}",
          { 6, 6, 6 }, 0, { 0, 8, 0 } },
        { AT, AT_NULL "\"moe.k3\":{\"field\":\"dense_layers\",\"absent\":[]}",
          { 6, 6, 6 }, 0, { 0, 8, 0 } },
        { "\"rope\":\"half\"", "\"rope\":\"half\",\"shared_experts\":2",
          { 0, 6, 6 }, 32, { 0, 8, 0 } },
        { AT, AT_NULL "\"x\":{\"field\":\"layer_experts\",\"absent\":[4,6,6]}",
          { 4, 6, 6 }, 0, { 0, 8, 0 } },
        { "{\"field\":\"window\",\"values\":{\"full\":0,\"local\":8}}",
          "[{\"field\":\"chunk\",\"values\":{\"full\":0,\"local\":16}},"
          "{\"field\":\"window\",\"values\":{\"full\":5,\"local\":0}}]",
          { 0, 6, 6 }, 0, { 5, 0, 5 } },
    };
    static char text[4096];
    struct clb_err err;

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        size_t n = edited(text, sizeof text, row[i].from, row[i].to);

        CHECK(read_with(text, n, config_json, &err));
        CHECK_STR(err.text, "");
        for (uint32_t l = 0; l < 3; l++) {
            CHECK_EQ(a.layer_experts[l], row[i].experts[l]);
            CHECK_EQ(a.window[l], row[i].window[l]);
        }
        CHECK_EQ(a.shared_size, row[i].shared);
        CHECK_EQ(a.chunk[1], i == 9 ? 16 : 0);
        close_all();
    }
}

/* Replaces `from` in MAP; what it must say. */
static const struct {
    const char *from, *to, *says;
} refused[] = {
    { "\"name\":\"t\",", "", "own.json: byte" },
    { "\"name\":\"t\",", "", "'name' is missing" },
    { "\"name\":\"t\"", "\"name\":\"t\",\"extra\":1", "'extra': not known; known are name" },
    { "\"name\":\"t\"", "\"name\":3", "'name': a number, but a string was expected" },
    { "\"name\":\"t\"", "\"name\":\"\"", "'name': a name of 1 to 60 bytes" },
    { ":\"hidden_size\"", ":\"hiden\"", "own.json: byte 30: 'config.width': 'hiden' is no field" },
    { ":\"hidden_size\"", ":7", "'config.width': a number, but names of fields" },
    { ":\"hidden_size\"", ":[\"hidden_size\",null]",
      "'config.width[1]': null, but names of fields" },
    { ":\"hidden_size\"", ":\"rope_scale\"", "computed by convert" },
    { ":\"hidden_size\"", ":\"n_head\"", "'config.heads': 'n_head' is given twice: here, and by "
                                          "the key 'width'" },
    { "\"width\":", "\"layers\":1,\"width\":", "'config.layers': a number" },
    { "\"layers\":", "\"width\":", "duplicate key" },
    { "\"rope\":\"half\"", "\"hidden_size\":32", "is given twice: here, and by the key 'width'" },
    { "\"rope\":\"half\"", "\"rope\":\"spiral\"", "'rope': 'spiral' is not a value" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"clip_qkv\":true", "'clip_qkv': true or false, but "
                                                                 "a number was expected" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"chunk\":[1,2]", "'chunk' has 2 values, but "
                                                               "'n_layer' is 3" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"rope_scaling\":{}", "can only be a key" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"rope_theta\":9", "'rope_theta' is given twice" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"act_limit\":1", "'act_limit' is given, but has a "
                                                               "meaning only with" },
    { "\"rope\":\"half\",", "", "own.json: nothing gives 'rope', which has no default" },
    { ",\"topk_normalise\":true", "", "nothing gives 'topk_normalise'" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"first_dense_layers\":1",
      "'moe_layers' and 'first_dense_layers' are both given" },
    { "\"rope\":\"half\"", "\"rope\":\"half\",\"index_heads\":1,\"index_head_dim\":2,"
                           "\"index_top_k\":2", "does not run yet" },
    { "\"moe.k\":\"top_k\",", "", "own.json: nothing gives 'top_k'" },
    { "\"dropout\":null,", "", "'dropout' is 0.1, and what it means is not known" },
    { "\"moe.k\":\"top_k\"", "\"moe.z\":{\"field\":\"top_k\",\"absent\":2}",
      "'moe.k' is 2, and what it means is not known; if it changes nothing, accept it" },
    { "\"heads\":\"n_head\"", "\"heads\":{\"field\":\"n_head\",\"values\":{\"4\":0}}",
      "'n_head' is 0" },
    { "\"heads\":\"n_head\"", "\"heads\":\"n_head\",\"x\":{\"field\":\"n_kv_head\",\"absent\":3}",
      "no multiple of" },
    { "\"vocab\":\"vocab_size\"", "\"vocab\":{\"field\":\"vocab_size\",\"values\":{\"50\":0}}",
      "'vocab_size' is 0, but must be within" },
    { "\"moe.n\":\"n_expert\"", "\"moe.n\":{\"field\":\"n_expert\",\"values\":{\"6\":0}}",
      "'top_k' is 2, more than 'n_expert', which is 0" },
    { "\"layers\":\"n_layer\"", "\"layers\":{\"field\":\"n_layer\",\"values\":{\"3\":0}}",
      "num_hidden_layers" },
    { "\"layers\":\"n_layer\"", "\"layers\":{\"field\":\"n_layer\",\"values\":{\"3\":513}}",
      "513" },
    { "\"vocab\":\"vocab_size\"", "\"vocab\":null", "own.json: config.json has no 'vocab_size'" },
    { "\"vocab\":\"vocab_size\"", "\"vocabulary\":\"vocab_size\"",
      "config.json: 'vocabulary' is missing; own.json makes 'vocab_size' of it" },
    { "\"base\":\"rope_theta\"", "\"basis\":\"rope_theta\"", "'basis' is missing" },
    { "\"base\":\"rope_theta\"", "\"base\":null", "'rope_theta' is missing" },
    { "\"width\":\"hidden_size\"", "\"width\":\"norm_place\"",
      "own.json: 'width': config.json: byte 9: 'norm_place': a number, but a string" },
    { "\"moe.w\":\"expert_size\"", "\"kinds\":\"expert_size\"", "duplicate key" },
    { "\"swiglu\":", "\"glu\":", "'mlp.act': the map does not say what \"swiglu\" means" },
    { "\"local\":8", "\"locl\":8", "'kinds': the map does not say what \"local\" means" },
    { "\"local\":8", "\"local\":\"8\"", "own.json: 'kinds': config.json: byte 88: "
                                         "'window[1]': a string, but a" },
    { "{\"equals\":false}", "{\"equals\":true}", "'old': is false, but the map knows only true" },
    { "{\"equals\":false}", "{\"equals\":false,\"absent\":1}", "'equals' stands alone" },
    { "{\"equals\":false}", "{\"equal\":false}", "'config.old.equal': not known here" },
    { "{\"equals\":false}", "{}", "'field' or 'equals' is expected" },
    { "{\"equals\":false}", "{\"field\":\"act_alpha\",\"values\":3}", "an object is expected" },
    { "\"moe.n\":\"n_expert\"", "\"moe.at\":\"n_expert\"", "duplicate key" },
    { "\"moe.at\":\"moe_layers\"", "\"moe.at\":\"shared_experts\"",
      "config.json: byte 178: 'moe.at', which is 'shared_experts': one number is expected" },
    { AT, AT_NULL "\"moe.k3\":{\"field\":\"moe_layers\",\"absent\":[3]}", "lists a layer" },
    { AT, AT_NULL "\"moe.k3\":{\"field\":\"moe_interval\",\"absent\":0}", "0 is no interval" },
    { AT, AT_NULL "\"moe.k3\":{\"field\":\"moe_layers\",\"absent\":[]}", "'layer_experts' is 0" },
    { AT, AT_NULL "\"moe.k3\":{\"field\":\"moe_layers\",\"absent\":[1.5]}",
      "'moe.k3': own.json: byte" },
    { "\"moe.n\":\"n_expert\"", "\"moe\":null", "has no 'num_local_experts'" },
    { "\"a.#.x\":\"q\"", "\"a.x\":\"q\"", "'tensors.a.x': the pattern has 0 '#', but a tensor of a "
                                         "layer needs one" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":\"expert.up\"", "has 1 '#', but a tensor of an expert needs" },
    { "\"e\":\"embed\"", "\"e.#\":\"embed\"", "a tensor of the whole model needs none" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":\"qq\"", "'tensors.a.#.x': 'qq' is no tensor of the model" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":\"k_up\"", "is made by convert from 'kv_b'" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":\"rope.inv_freq\"", "is computed by convert" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":1", "a number, but a string was expected" },
    { "\"a.#.x\":\"q\"", "\"a.##.x\":\"q\"", "where its number ends is not clear" },
    { "\"a.#.x\":\"q\"", "\"a.1#.x\":\"q\"", "where its number ends is not clear" },
    { "\"a.#.x\":\"q\"", "\"a.#.#.#\":null", "more than two '#'" },
    { "\"n.#\":null", "\"a.17.x\":null", "'tensors.a.17.x': the pattern 'a.#.x' matches the same" },
    { "\"n.#\":null", "\"a.#.#\":null,\"a.#.5\":\"k\"", "the pattern 'a.#.#' matches the same" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"form\":[\"stacked\"]}",
      "'tensors.a.#.x': only tensors of experts can be stacked" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"form\":[\"interleaved\"]}",
      "only gate and up in one tensor" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"kv_b\",\"form\":[\"transposed\"]}", "only matrices" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"form\":[\"mxfp4\",\"transposed\"]}",
      "exclude each other" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"form\":[\"mxfp4\"]}", "ends in '_blocks'" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"form\":[\"flat\"]}",
      "'tensors.a.#.x.form[0]': not known; known are stacked" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"form\":[]}", "'is' is missing" },
    { "\"a.#.x\":\"q\"", "\"a.#.x\":{\"is\":\"q\",\"as\":1}", "known are is and form" },
    { "\"a.#.x\":\"q\"",
      "\"a.#.#\":{\"is\":\"expert.gate_up\",\"form\":[\"stacked\"]}",
      "has 2 '#', but a tensor of a layer" },
    { "\"a.#.x\":\"q\"", "\"a.*.x\":\"q\"", "'*' can only be the end" },
    { "\"a.#.x\":\"q\"", "\"a.#.*\":\"q\"", "'*' stands only in names of" },
    { "\"n.#\":null", "\"a.1*\":null", "the pattern 'a.#.x' matches the same" },
    { "\"n.#\":null", "\"\":null", "a pattern has 1 to 200 bytes" },
    { "\"n.#\":null", "\"a\\u0000b\":null", "contains a NUL" },
    { "\"n.#\":null}", "\"n.#\":null", "own.json: byte" },
};

static void what_is_wrong_is_refused(void)
{
    static char text[4096];
    struct clb_err err;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t n = edited(text, sizeof text, refused[i].from, refused[i].to);

        if (read_with(text, n, config_json, &err))
            printf("# accepted: %s\n", refused[i].to);
        CHECK_HAS(err.text, refused[i].says);
        CHECK(err.code == CLB_BAD_INPUT || err.code == CLB_UNSUPPORTED);
        close_all();
    }
}

/* Keys of known names beside a map: taken where the map is silent, else both must agree. */
static void known_keys_beside_a_map(void)
{
    static const struct {
        const char *more, *says;
    } with[] = {
        { "\"hidden_size\":32", "" },
        { "\"hidden_size\":64", "'hidden_size': is 64, but the map gives something else" },
        { "\"hidden_act\":\"silu\"", "" },
        { "\"hidden_act\":\"gelu\"", "'hidden_act': is \"gelu\", but the map gives" },
        { "\"num_key_value_heads\":2", "" },
        { "\"num_key_value_heads\":3", "'n_head' is 4, no multiple of 'n_kv_head'" },
        { "\"rope_theta\":500", "" },
        { "\"rope_theta\":600", "'rope_theta': is 600, but 'base' is 500.0" },
        { "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}", "" },
        { "\"rope_scaling\":{\"rope_type\":\"wild\"}", "'wild', which is not known" },
        { "\"partial_rotary_factor\":0.5", "" },
        { "\"model_type\":\"mixtral\"", "" },
        { "\"wobble\":1", "'wobble' is 1, and what it means is not known" },
    };
    static char text[2048];
    struct clb_err err;

    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        snprintf(text, sizeof text, "{%s,%s", with[i].more, config_json + 1);
        CHECK_EQ(read_with(MAP, strlen(MAP), text, &err), !*with[i].says);
        CHECK_HAS(err.text, with[i].says);
        close_all();
    }
}

static uint64_t seed = 3;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* Pieces of the map swapped, repeated or damaged: refused with a place, or a sound descriptor. */
static void random_edits(void)
{
    const char *count = getenv("MUTATIONS");
    unsigned long n_try = count ? strtoul(count, NULL, 10) : 4000, accepted = 0;
    static char text[8192], with[sizeof config_json];
    struct clb_err err, check;

    for (unsigned long i = 0; i < n_try; i++) {
        size_t n = strlen(MAP), digit = rnd(sizeof config_json - 1);

        memcpy(text, MAP, n);
        memcpy(with, config_json, sizeof with);
        if (with[digit] >= '0' && with[digit] <= '9')
            with[digit] = "0127"[rnd(4)];
        for (uint32_t k = rnd(3); k > 0; k--) {
            size_t from = rnd((uint32_t)n), to = rnd((uint32_t)n), len = 1 + rnd(24);

            len = len < n - from ? len : n - from;
            if (rnd(3) == 0) {
                text[to] = "#{}[]\",:.0195nqx"[rnd(16)];
            } else if (rnd(2)) {
                memmove(text + from, text + from + len, n - from - len);
                n -= len;
            } else {
                memmove(text + to, text + from, len < n - to ? len : n - to);
            }
        }
        if (read_with(text, n, with, &err)) {
            accepted++;
            CHECK(clb_arch_check(&a, &check));
        } else {
            CHECK(err.code == CLB_BAD_INPUT || err.code == CLB_UNSUPPORTED);
            CHECK(strstr(err.text, "own.json") || strstr(err.text, "config.json"));
        }
        close_all();
    }
    printf("# %lu of %lu accepted\n", accepted, n_try);
    CHECK(accepted > n_try / 100 && accepted < n_try);
}

int main(void)
{
    TEST(every_kind_of_entry);
    TEST(words);
    TEST(what_is_wrong_is_refused);
    TEST(known_keys_beside_a_map);
    TEST(random_edits);
    return test_result();
}
