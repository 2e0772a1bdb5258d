#include "lib/import/family.h"

#include <stdio.h>

#include "lib/import/map.h"
#include "lib/import/rope.h"

#define ADDRESS(name) &clb_family_##name,
static const struct clb_family *const families[] = { CLB_FAMILIES(ADDRESS) };
enum { N_FAMILY = sizeof families / sizeof *families };

static const struct clb_family_key shared_keys[] = {
    { "hidden_size", NULL, CLB_KEY_U32, CLB_KEY_AT(hidden_size), true, 1, 1 << 24 },
    { "num_hidden_layers", NULL, CLB_KEY_U32, CLB_KEY_AT(n_layer), true, 1, CLB_MAX_LAYERS },
    { "num_attention_heads", NULL, CLB_KEY_U32, CLB_KEY_AT(n_head), true, 1, 4096 },
    { "num_key_value_heads", NULL, CLB_KEY_U32, CLB_KEY_AT(n_kv_head), false, 1, 4096 },
    { "head_dim", NULL, CLB_KEY_U32, CLB_KEY_AT(head_dim), false, 1, 4096 },
    { "vocab_size", NULL, CLB_KEY_U32, CLB_KEY_AT(vocab_size), true, 1, 1 << 24 },
    { "max_position_embeddings", NULL, CLB_KEY_U32, CLB_KEY_AT(max_positions), true, 1, 1 << 30 },
    { "rms_norm_eps", NULL, CLB_KEY_F32, CLB_KEY_AT(norm_eps), true, 1e-12, 1 },
    { "hidden_act", NULL, CLB_KEY_ACT, CLB_KEY_AT(act), true, 0, 0 },
    { "num_local_experts", "num_experts|n_routed_experts|moe_num_experts", CLB_KEY_U32,
      CLB_KEY_AT(n_expert), true, 1, CLB_MAX_EXPERTS },
    { "num_experts_per_tok", "moe_k", CLB_KEY_U32, CLB_KEY_AT(top_k), false, 1, CLB_MAX_TOP_K },
    { "tie_word_embeddings", NULL, CLB_KEY_BOOL, CLB_KEY_AT(tied_embeddings), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

const struct clb_family_tensor clb_family_common[] = {
    { "model.embed_tokens.weight", CLB_EMBED, 0 },
    { "model.norm.weight", CLB_FINAL_NORM, 0 },
    { "lm_head.weight", CLB_OUTPUT, 0 },
    { "model.layers.#.input_layernorm.weight", CLB_ATTN_NORM, 0 },
    { "model.layers.#.post_attention_layernorm.weight", CLB_MLP_NORM, 0 },
    { "model.layers.#.self_attn.q_proj.weight", CLB_Q, 0 },
    { "model.layers.#.self_attn.q_proj.bias", CLB_Q_BIAS, 0 },
    { "model.layers.#.self_attn.k_proj.weight", CLB_K, 0 },
    { "model.layers.#.self_attn.k_proj.bias", CLB_K_BIAS, 0 },
    { "model.layers.#.self_attn.v_proj.weight", CLB_V, 0 },
    { "model.layers.#.self_attn.v_proj.bias", CLB_V_BIAS, 0 },
    { "model.layers.#.self_attn.o_proj.weight", CLB_O, 0 },
    { "model.layers.#.self_attn.o_proj.bias", CLB_O_BIAS, 0 },
    { "model.layers.#.self_attn.q_norm.weight", CLB_Q_NORM, 0 },
    { "model.layers.#.self_attn.k_norm.weight", CLB_K_NORM, 0 },
    { "model.layers.#.self_attn.rotary_emb.inv_freq", CLB_FOR_NOTHING, 0 },
    { "model.rotary_emb.inv_freq", CLB_FOR_NOTHING, 0 },
    { NULL, 0, 0 },
};

const struct clb_family_tensor clb_family_mlp[] = {
    { "model.layers.#.mlp.gate.weight", CLB_ROUTER, 0 },
    { "model.layers.#.mlp.experts.#.gate_proj.weight", CLB_FOR_EXPERT + CLB_GATE, 0 },
    { "model.layers.#.mlp.experts.#.up_proj.weight", CLB_FOR_EXPERT + CLB_UP, 0 },
    { "model.layers.#.mlp.experts.#.down_proj.weight", CLB_FOR_EXPERT + CLB_DOWN, 0 },
    { "model.layers.#.mlp.shared_experts.gate_proj.weight", CLB_SHARED_GATE_PROJ, 0 },
    { "model.layers.#.mlp.shared_experts.up_proj.weight", CLB_SHARED_UP, 0 },
    { "model.layers.#.mlp.shared_experts.down_proj.weight", CLB_SHARED_DOWN, 0 },
    { "model.layers.#.mlp.gate_proj.weight", CLB_DENSE_GATE, 0 },
    { "model.layers.#.mlp.up_proj.weight", CLB_DENSE_UP, 0 },
    { "model.layers.#.mlp.down_proj.weight", CLB_DENSE_DOWN, 0 },
    { NULL, 0, 0 },
};

/* Names of activation functions, as the reference spells them. */
static const struct {
    const char *name;
    enum clb_act act;
} acts[] = {
    { "silu", CLB_ACT_SILU },
    { "swish", CLB_ACT_SILU },
    { "gelu", CLB_ACT_GELU },
    { "gelu_new", CLB_ACT_GELU_TANH },
    { "gelu_pytorch_tanh", CLB_ACT_GELU_TANH },
    { "relu", CLB_ACT_RELU },
};

static bool read_act(struct clb_settings *c, const char *key, enum clb_act *out,
                     struct clb_err *err)
{
    char name[64] = "";

    if (!clb_setting_text(c, key, name, sizeof name, err))
        return false;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(name, acts[i].name)) {
            *out = acts[i].act;
            return true;
        }
    return clb_setting_fail(c, clb_setting_find(c, key), err,
                            "activation function '%s' is not known", name);
}

static bool same_value(struct clb_settings *c, const struct clb_setting *a,
                       const struct clb_setting *b, struct clb_err *err)
{
    if (!a || !b || clb_str_eq(a->raw, b->raw))
        return true;
    return clb_setting_fail(c, b, err, "is %.*s, but '%s' is %.*s",
                            b->raw.n < 32 ? (int)b->raw.n : 32, b->raw.p, a->key,
                            a->raw.n < 32 ? (int)a->raw.n : 32, a->raw.p);
}

/* *found: the setting by any of its names; NULL: there is none. */
static bool find_key(struct clb_settings *c, const struct clb_family_key *k,
                     const struct clb_setting **found, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(c, k->key);

    for (const char *alias = k->alias; alias; alias = strchr(alias, '|')) {
        char name[64];
        const struct clb_setting *other;

        alias += *alias == '|';
        snprintf(name, sizeof name, "%.*s", (int)strcspn(alias, "|"), alias);
        other = clb_setting_find(c, name);
        if (!same_value(c, e, other, err))
            return false;
        e = e ? e : other;
    }
    *found = e;
    return true;
}

static bool read_key(struct clb_settings *c, const struct clb_family_key *k, struct clb_arch *a,
                     struct clb_err *err)
{
    void *at = (char *)a + k->field;
    const struct clb_setting *e;
    double real = 0;

    if (!find_key(c, k, &e, err))
        return false;
    if (!e)
        return !k->required || clb_setting_missing(c, k->key, err);
    const char *key = e->as;
    switch (k->kind) {
    case CLB_KEY_U32:
        return clb_setting_u32(c, key, (uint32_t)k->lo, (uint32_t)k->hi, at, err);
    case CLB_KEY_BOOL:
        return clb_setting_bool(c, key, at, err);
    case CLB_KEY_ACT:
        return read_act(c, key, at, err);
    case CLB_KEY_F32:
        if (!clb_setting_f64(c, key, k->lo, k->hi, &real, err))
            return false;
        *(float *)at = (float)real;
        return true;
    }
    return false;
}

static bool read_keys(struct clb_settings *c, const struct clb_family_key *k, struct clb_arch *a,
                      struct clb_err *err)
{
    for (; k->key; k++)
        if (!read_key(c, k, a, err))
            return false;
    return true;
}

/* A key that all families share, beside a map: what both give must agree, and what neither gives is
 * not guessed. */
static bool read_beside_map(struct clb_settings *c, const struct clb_map *map,
                            const struct clb_family_key *k, struct clb_arch *a, struct clb_err *err)
{
    const size_t size = k->kind == CLB_KEY_BOOL ? sizeof(bool) : sizeof(uint32_t);
    const struct clb_setting *e;
    struct clb_arch other = *a;

    if (!find_key(c, k, &e, err))
        return false;
    if (!clb_map_gives(map, k->field))
        return e || !k->required ? read_key(c, k, a, err) : clb_map_lacks(map, k->key, err);
    if (!e)
        return true;
    if (!read_key(c, k, &other, err))
        return false;
    return !memcmp((char *)&other + k->field, (char *)a + k->field, size) ||
           clb_setting_fail(c, e, err, "is %.*s, but the map gives something else",
                            e->raw.n < 32 ? (int)e->raw.n : 32, e->raw.p);
}

static bool read_shared(struct clb_settings *c, const struct clb_family *f, struct clb_arch *a,
                        struct clb_err *err)
{
    if (!f->map)
        return read_keys(c, shared_keys, a, err);
    for (const struct clb_family_key *k = shared_keys; k->key; k++)
        if (!read_beside_map(c, f->map, k, a, err))
            return false;
    return true;
}

/* Every published MoE configuration counts its experts under one of these. */
static bool has_experts(struct clb_settings *c)
{
    static const char *const keys[] = { "num_local_experts", "num_experts",
                                        "n_routed_experts",  "moe_num_experts",
                                        "num_moe_experts",   "num_experts_per_tok",
                                        "moe_topk",          "ffn_config" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (clb_setting_find(c, keys[i]))
            return true;
    return false;
}

/* Families that need what the engine does not have yet, by the field of the descriptor. */
static const struct {
    const char *type, *field;
} not_run[] = {
    { "qwen3_next", "linear_attention" },
    { "deepseek_v32", "index_top_k" },
    { "glm_moe_dsa", "index_top_k" },
};

static bool unknown_family(struct clb_settings *c, const char *type, const char *known,
                           struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(c, "model_type");

    for (size_t i = 0; i < sizeof not_run / sizeof *not_run; i++)
        if (!strcmp(type, not_run[i].type))
            return clb_setting_fail(c, e, err,
                                    "'%s' needs '%s', which this engine does not run yet", type,
                                    not_run[i].field);
    if (has_experts(c))
        return clb_setting_fail(
            c, e, err, "'%s' is not known (--map describes others); known are %s", type, known);
    return clb_setting_fail(
        c, e, err, "'%s' is a dense model; only Mixture-of-Experts models are served", type);
}

static bool find_family(const struct clb_family **family, struct clb_settings *c,
                        struct clb_err *err)
{
    char type[64] = "", known[1024] = "";
    size_t n = 0;

    if (!clb_setting_text(c, "model_type", type, sizeof type, err))
        return false;
    for (int i = 0; i < N_FAMILY; i++) {
        if (!strcmp(type, families[i]->model_type)) {
            *family = families[i];
            return true;
        }
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "",
                                  families[i]->model_type);
    }
    if (!type[0])
        return clb_setting_missing(c, "model_type", err);
    return unknown_family(c, type, known, err);
}

static bool disagree(struct clb_settings *c, const char *key, uint32_t value, const char *relation,
                     const char *other, uint32_t limit, struct clb_err *err)
{
    clb_fail(err, CLB_BAD_INPUT, "%s: '%s' is %u, %s '%s', which is %u", c->file, key, value,
             relation, other, limit);
    return clb_err_place(err, c->file, key, CLB_NO_OFFSET);
}

/* A field in the words of the descriptor, which maps use, or of config.json. */
static const char *word_of(const struct clb_family *f, const char *field, const char *key)
{
    return f->map ? field : key;
}

/* Values that follow from others. */
static bool complete(struct clb_settings *c, const struct clb_family *f, struct clb_arch *a,
                     struct clb_err *err)
{
    bool per_layer = false;

    if (!a->n_head) { /* a map may have given it */
        clb_fail(err, CLB_BAD_INPUT, "%s: 'n_head' is 0", c->file);
        return clb_err_place(err, c->file, "n_head", CLB_NO_OFFSET);
    }
    if (!a->n_kv_head)
        a->n_kv_head = a->n_head;
    if (a->attention == CLB_ATTN_MLA) {
        a->rope_dim = a->qk_rope_dim;
        a->head_dim = a->head_dim ? a->head_dim : a->qk_nope_dim + a->qk_rope_dim;
    }
    if (!a->head_dim)
        a->head_dim = a->hidden_size / a->n_head;
    if (!a->value_dim)
        a->value_dim = a->head_dim;
    for (uint32_t l = 0; l < a->n_layer; l++)
        per_layer |= a->layer_experts[l] > 0;
    for (uint32_t l = 0; !per_layer && l < a->n_layer; l++)
        a->layer_experts[l] = a->n_expert;
    if (a->n_head % a->n_kv_head)
        return disagree(c, word_of(f, "n_head", "num_attention_heads"), a->n_head, "no multiple of",
                        word_of(f, "n_kv_head", "num_key_value_heads"), a->n_kv_head, err);
    if (a->head_dim == 0 || a->head_dim % 2)
        return disagree(c, "head_dim", a->head_dim, "but must be even; see", "hidden_size",
                        a->hidden_size, err);
    return true;
}

/* Newer programs save which layers slide for every family: it must be what the other keys say. */
static bool check_layer_types(struct clb_settings *c, const struct clb_family *f,
                              const struct clb_arch *a, struct clb_err *err)
{
    bool sliding[CLB_MAX_LAYERS], found;
    const struct clb_setting *e = clb_setting_peek(c, "layer_types");

    if (f->map || !e || e->state != CLB_KEY_UNKNOWN)
        return true;
    if (!clb_family_layer_types(c, a, sliding, &found, err))
        return false;
    for (uint32_t l = 0; found && l < a->n_layer; l++)
        if (sliding[l] != (a->window[l] > 0))
            return clb_setting_fail(c, e, err, "layer %u is %s, but the other keys say %s", l,
                                    sliding[l] ? "sliding" : "full",
                                    sliding[l] ? "no window for it" : "that it slides");
    return true;
}

/* Values that derive may still have set. */
static bool completed(struct clb_settings *c, const struct clb_family *f, struct clb_arch *a,
                      struct clb_family_extra *extra, struct clb_err *err)
{
    if (!a->top_k)
        return clb_setting_missing(c, "num_experts_per_tok", err);
    if (a->top_k > a->n_expert)
        return disagree(c, word_of(f, "top_k", "num_experts_per_tok"), a->top_k, "more than",
                        word_of(f, "n_expert", "num_local_experts"), a->n_expert, err);
    return !f->further_layers ||
           clb_setting_u32(c, f->further_layers, 0, CLB_MAX_LAYERS, &extra->n_further, err);
}

/* The keys of the language model stand in an object of their own. */
static bool open_text_config(struct clb_settings *c, const struct clb_family *f,
                             struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(c, f->text_config);

    if (!e)
        return clb_setting_missing(c, f->text_config, err);
    if (e->type != CLB_JSON_OBJECT)
        return clb_setting_fail(c, e, err, "an object is expected, found %s",
                                clb_json_type_name(e->type));
    for (const char *const *key = f->beside; *key; key++)
        clb_setting_no_effect(c, *key);
    return clb_settings_lift(c, (uint32_t)(e - c->setting), err);
}

bool clb_family_read(const struct clb_family **family, struct clb_arch *a,
                     struct clb_family_extra *extra, struct clb_settings *config,
                     const struct clb_family_options *o, struct clb_problems *problems,
                     struct clb_text *notes, struct clb_err *err)
{
    *a = (struct clb_arch){ 0 };
    *extra = (struct clb_family_extra){ 0 };
    if (o->map)
        *family = clb_map_family(o->map);
    else if (!find_family(family, config, err))
        return false;

    const struct clb_family *f = *family;
    struct clb_rope_source rope = {
        config,    f->default_theta, f->partial_rotary, f->yarn_scales_attention,
        o->ignore, o->n_ignore,      f->default_part
    };
    f->start(a);
    if (f->text_config && !open_text_config(config, f, err))
        return false;
    if ((f->map && !clb_map_fields(f->map, config, a, err)) || !read_shared(config, f, a, err) ||
        !read_keys(config, f->keys, a, err) || !complete(config, f, a, err) ||
        (f->map && !clb_map_derive(f->map, config, a, err)) ||
        (f->derive && !f->derive(config, a, notes, err)) || !check_layer_types(config, f, a, err) ||
        !completed(config, f, a, extra, err))
        return false;
    if (f->map)
        rope.partial = a->rope_dim == 0;
    if (a->rope != CLB_ROPE_NONE &&
        !clb_rope_read(&rope, a, extra->inv_freq, extra->inv_freq_long, problems, err))
        return false;
    if (!clb_quant_read(&extra->quant, config, o->ignore, o->n_ignore, problems, err))
        return false;
    a->router_clip = o->router_clip;
    clb_settings_check_rest(config, o->ignore, o->n_ignore, problems);
    if (!clb_problems_none(problems, config->file, err))
        return false;
    if (clb_arch_check(a, err))
        return true;
    clb_fail_in(err, "%s", config->file);
    return clb_err_place(err, config->file, NULL, CLB_NO_OFFSET);
}

/* -- tensor names ---------------------------------------------------------------------------- */

/* A number without leading zeros, below 10^9. */
static const char *read_number(const char *s, uint32_t *out)
{
    const char *start = s;

    for (*out = 0; *s >= '0' && *s <= '9' && s - start < 9; s++)
        *out = *out * 10 + (uint32_t)(*s - '0');
    return s == start || (*start == '0' && s - start > 1) ? NULL : s;
}

static bool match(const char *pattern, const char *name, uint32_t number[2])
{
    int n = 0;

    number[0] = number[1] = UINT32_MAX;
    for (; *pattern; pattern++) {
        if (*pattern == '*' && !pattern[1])
            return true;
        if (*pattern != '#') {
            if (*pattern != *name++)
                return false;
        } else {
            name = read_number(name, &number[n++]);
            if (!name)
                return false;
        }
    }
    return !*name;
}

const struct clb_family_tensor *clb_family_match(const struct clb_family *f, const char *name,
                                                 uint32_t number[2])
{
    const struct clb_family_tensor *list[] = { f->tensors, f->mlp, clb_family_common };
    size_t n = f->prefix ? strlen(f->prefix) : 0;

    if (n && !strncmp(name, f->prefix, n))
        name += n;
    for (int i = 0; i < 3; i++)
        for (const struct clb_family_tensor *t = list[i]; t && t->pattern; t++)
            if (match(t->pattern, name, number))
                return t;
    return NULL;
}

const struct clb_family_tensor *clb_family_name(const struct clb_family *f, int target,
                                                uint32_t layer, uint32_t expert, char *buf,
                                                size_t n)
{
    const struct clb_family_tensor *list[] = { f->tensors, f->mlp, clb_family_common };
    uint32_t number[2] = { layer, expert };
    size_t used = 0, k = 0;

    for (int i = 0; i < 3; i++)
        for (const struct clb_family_tensor *t = list[i]; t && t->pattern; t++) {
            if (t->target != target)
                continue;
            used = (size_t)snprintf(buf, n, "%s", f->prefix ? f->prefix : "");
            for (const char *p = t->pattern; *p && used + 12 < n; p++)
                if (*p == '#')
                    used += (size_t)snprintf(buf + used, n - used, "%u", number[k++]);
                else
                    buf[used++] = *p;
            buf[used] = 0;
            return t;
        }
    return NULL;
}
