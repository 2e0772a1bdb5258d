/* family_help.c - what several families have in common, for their derive functions. */
#include <stdio.h>

#include "lib/import/family.h"

bool clb_family_word(struct clb_settings *c, const char *key, const char *words,
                     struct clb_err *err)
{
    char text[64] = "";
    size_t n;

    if (!clb_setting_find(c, key))
        return true;
    if (!clb_setting_text(c, key, text, sizeof text, err))
        return false;
    for (const char *w = words; *w; w += n + (w[n] == '|')) {
        n = strcspn(w, "|");
        if (strlen(text) == n && !memcmp(text, w, n))
            return true;
    }
    return clb_setting_fail(c, clb_setting_find(c, key), err,
                            "is \"%s\", which is not known; known: %s", text, words);
}

bool clb_family_number(struct clb_settings *c, const char *key, uint32_t value, struct clb_err *err)
{
    uint32_t found = value;

    if (!clb_setting_u32(c, key, 0, UINT32_MAX, &found, err))
        return false;
    return found == value || clb_setting_fail(c, clb_setting_find(c, key), err,
                                              "is %u; only %u is known", found, value);
}

bool clb_family_flag(struct clb_settings *c, const char *key, bool value, struct clb_err *err)
{
    bool found = value;

    if (!clb_setting_bool(c, key, &found, err))
        return false;
    return found == value ||
           clb_setting_fail(c, clb_setting_find(c, key), err, "is %s; only %s is known",
                            found ? "true" : "false", value ? "true" : "false");
}

void clb_family_dense_size(struct clb_arch *a)
{
    for (uint32_t l = 0; l < a->n_layer; l++)
        if (!a->layer_experts[l])
            return;
    a->dense_size = 0;
}

bool clb_family_first_dense(struct clb_settings *c, const char *key, struct clb_arch *a,
                            struct clb_err *err)
{
    uint32_t n = 0;

    if (!clb_setting_u32(c, key, 0, CLB_MAX_LAYERS, &n, err))
        return false;
    for (uint32_t l = 0; l < n && l < a->n_layer; l++)
        a->layer_experts[l] = 0;
    clb_family_dense_size(a);
    return true;
}

bool clb_family_sparse_step(struct clb_settings *c, struct clb_arch *a, struct clb_err *err)
{
    uint32_t step = 1, only[CLB_MAX_LAYERS], n_only = 0;

    if (!clb_setting_u32(c, "decoder_sparse_step", 1, 1 << 20, &step, err) ||
        !clb_setting_list(c, "mlp_only_layers", INT32_MAX, only, CLB_MAX_LAYERS, &n_only, err))
        return false;
    for (uint32_t l = 0; l < a->n_layer; l++) {
        bool listed = false;

        for (uint32_t i = 0; i < n_only; i++)
            listed |= only[i] == l;
        if (listed || (l + 1) % step)
            a->layer_experts[l] = 0;
    }
    clb_family_dense_size(a);
    return true;
}

bool clb_family_must(struct clb_settings *c, const char *const *keys, struct clb_err *err)
{
    for (; *keys; keys++)
        if (!clb_setting_find(c, *keys))
            return clb_setting_missing(c, *keys, err);
    return true;
}

bool clb_family_groups(struct clb_settings *c, struct clb_arch *a, enum clb_group_score score,
                       struct clb_err *err)
{
    uint32_t n = 1, kept = 1;

    if (!clb_setting_u32(c, "n_group", 1, CLB_MAX_EXPERTS, &n, err) ||
        !clb_setting_u32(c, "topk_group", 1, CLB_MAX_EXPERTS, &kept, err))
        return false;
    if (kept > n)
        return clb_setting_fail(c, clb_setting_find(c, "topk_group"), err,
                                "is %u, more than 'n_group', which is %u", kept, n);
    if (a->n_expert % n)
        return clb_setting_fail(c, clb_setting_find(c, "n_group"), err,
                                "is %u, which does not divide %u experts", n, a->n_expert);
    if (n > 1 && score == CLB_GROUP_TOP2_SUM && a->n_expert / n < 2)
        return clb_setting_fail(c, clb_setting_find(c, "n_group"), err,
                                "leaves one expert to a group, but the best two are its score");
    if (a->top_k > a->n_expert / n * kept)
        return clb_setting_fail(c, clb_setting_find(c, "topk_group"), err,
                                "keeps %u experts, fewer than 'num_experts_per_tok', which is %u",
                                a->n_expert / n * kept, a->top_k);
    if (n > 1) {
        a->n_group = n;
        a->top_groups = kept;
        a->group_score = score;
    }
    return true;
}

bool clb_family_mla(struct clb_settings *c, struct clb_arch *a, struct clb_err *err)
{
    static const char *const must[] = { "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                        "v_head_dim", NULL };

    if (!clb_family_must(c, must, err) ||
        !clb_setting_u32(c, "q_lora_rank", 1, 1 << 16, &a->q_lora_rank, err) ||
        !clb_setting_u32(c, "kv_lora_rank", 1, 1 << 16, &a->kv_lora_rank, err) ||
        !clb_setting_u32(c, "qk_nope_head_dim", 1, 2048, &a->qk_nope_dim, err) ||
        !clb_setting_u32(c, "qk_rope_head_dim", 2, CLB_MAX_ROPE, &a->qk_rope_dim, err) ||
        !clb_setting_u32(c, "v_head_dim", 1, 4096, &a->value_dim, err))
        return false;
    a->attention = CLB_ATTN_MLA;
    a->n_kv_head = a->n_head;
    a->head_dim = a->qk_nope_dim + a->qk_rope_dim;
    a->rope_dim = a->qk_rope_dim;
    return clb_family_number(c, "qk_head_dim", a->head_dim, err); /* saved by newer programs */
}

bool clb_family_shared(struct clb_settings *c, const char *count, struct clb_arch *a,
                       struct clb_err *err)
{
    uint32_t n = 0;

    if (!clb_setting_u32(c, count, 0, 1 << 10, &n, err))
        return false;
    if ((uint64_t)n * a->expert_size > 1 << 24)
        return clb_setting_fail(c, clb_setting_find(c, count), err,
                                "%u shared experts of %u are too wide", n, a->expert_size);
    a->shared_size = n * a->expert_size;
    return true;
}

bool clb_family_layer_types(struct clb_settings *c, const struct clb_arch *a, bool *sliding,
                            bool *found, struct clb_err *err)
{
    char type[CLB_MAX_LAYERS][32];
    const struct clb_setting *e = clb_setting_find(c, "layer_types");
    uint32_t n = 0;

    *found = e != NULL;
    if (!clb_setting_texts(c, "layer_types", type, CLB_MAX_LAYERS, &n, err))
        return false;
    if (e && n != a->n_layer)
        return clb_setting_fail(c, e, err, "has %u entries, but there are %u layers", n,
                                a->n_layer);
    for (uint32_t l = 0; l < n; l++) {
        sliding[l] = !strcmp(type[l], "sliding_attention") || !strcmp(type[l], "chunked_attention");
        if (!sliding[l] && strcmp(type[l], "full_attention") != 0)
            return clb_setting_fail(c, e, err, "layer %u is \"%s\", which is not known", l,
                                    type[l]);
    }
    return true;
}

bool clb_family_per_layer(struct clb_settings *c, const char *key, const struct clb_arch *a,
                          uint32_t lo, uint32_t hi, uint32_t *value, struct clb_err *err)
{
    uint32_t list[CLB_MAX_LAYERS], n = 0;
    const struct clb_setting *e = clb_setting_find(c, key);

    if (!clb_setting_list(c, key, hi, list, CLB_MAX_LAYERS, &n, err))
        return false;
    if (!e)
        return true;
    if (e->type == CLB_JSON_ARRAY ? n != a->n_layer : n != 1)
        return clb_setting_fail(c, e, err, "has %u entries, but there are %u layers", n,
                                a->n_layer);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        value[l] = list[n == 1 ? 0 : l];
        if (value[l] < lo)
            return clb_setting_fail(c, e, err, "is %u for layer %u; at least %u is expected",
                                    value[l], l, lo);
    }
    return true;
}
