/* describe.c - an architecture in words, a line for each part of the model. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/cli/report.h"

/* Prints a line, continued below where it is too long, and empties it. */
static void line(const char *label, struct clb_text *t)
{
    enum { WIDTH = 78 };
    const char *rest = t->n ? t->p : "";

    while (*rest) {
        size_t n = strlen(rest), cut = n;

        if (n > WIDTH)
            for (cut = WIDTH; cut > 0 && rest[cut] != ' ';)
                cut--;
        cut = cut ? cut : n;
        printf("  %-14s %.*s\n", label, (int)cut, rest);
        rest += cut + (rest[cut] == ' ');
        label = "";
    }
    clb_text_clear(t);
}

/* Appends behind a comma. */
static void add(struct clb_text *t, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    clb_text_printf(t, "%s%s", t->n ? ", " : "", text);
}

/* " on layer 3", " on layers 0, 1, 2", " on 12 layers (0, 2, 4, ...)"; "" for all. */
static const char *layers_of(char buf[static 96], const struct clb_arch *a, const bool *is)
{
    uint32_t n = 0, shown = 0;
    size_t used;

    for (uint32_t l = 0; l < a->n_layer; l++)
        n += is[l];
    buf[0] = 0;
    if (n == a->n_layer)
        return buf;
    used = n > 6 ? (size_t)snprintf(buf, 96, " on %u layers (", n)
                 : (size_t)snprintf(buf, 96, " on layer%s ", n == 1 ? "" : "s");
    for (uint32_t l = 0; l < a->n_layer && shown < (n > 6 ? 3 : 6); l++)
        if (is[l])
            used += (size_t)snprintf(buf + used, 96 - used, shown++ ? ", %u" : "%u", l);
    if (n > 6)
        snprintf(buf + used, 96 - used, ", ...)");
    return buf;
}

static void layers_line(const struct clb_arch *a, struct clb_text *t)
{
    bool is_dense[CLB_MAX_LAYERS];
    uint32_t dense = 0;
    char where[96];

    for (uint32_t l = 0; l < a->n_layer; l++)
        dense += is_dense[l] = !clb_arch_is_moe(a, l);
    add(t, "%u", a->n_layer);
    if (!dense) {
        add(t, "all with experts");
    } else {
        add(t, "%u with experts", a->n_layer - dense);
        add(t, "%u dense of inner width %u%s", dense, a->dense_size,
            layers_of(where, a, is_dense));
    }
    line("layers", t);
}

static void sizes_line(const struct clb_arch *a, struct clb_text *t)
{
    char vocab[CLB_HUMAN], positions[CLB_HUMAN];

    add(t, "hidden %u", a->hidden_size);
    add(t, "vocabulary %s%s", clb_human_count(vocab, a->vocab_size),
        a->tied_embeddings ? " (tied)" : "");
    add(t, "positions %s", clb_human_count(positions, a->max_positions));
    line("sizes", t);
}

/* "window of 32 on layers 0, 2" */
static void add_limit(struct clb_text *t, const struct clb_arch *a, const char *what,
                      const uint32_t *limit)
{
    bool is[CLB_MAX_LAYERS];
    uint32_t most = 0, least = UINT32_MAX;
    char where[96];

    for (uint32_t l = 0; l < a->n_layer; l++) {
        is[l] = limit[l] > 0;
        most = limit[l] > most ? limit[l] : most;
        least = is[l] && limit[l] < least ? limit[l] : least;
    }
    if (most && least == most)
        add(t, "%s of %u%s", what, most, layers_of(where, a, is));
    else if (most)
        add(t, "%s of %u to %u%s", what, least, most, layers_of(where, a, is));
}

static void add_biases(struct clb_text *t, const struct clb_arch *a)
{
    char names[32] = "";

    if (!a->q_bias && !a->k_bias && !a->v_bias && !a->o_bias)
        return;
    snprintf(names, sizeof names, "%s%s%s%s", a->q_bias ? " q" : "", a->k_bias ? " k" : "",
             a->v_bias ? " v" : "", a->o_bias ? " o" : "");
    add(t, "biases of%s", names);
}

static void attention_line(const struct clb_arch *a, struct clb_text *t)
{
    static const char *const norms[] = { "", "norm of each query and key head",
                                         "norm over all query and key heads",
                                         "norm of heads after rope", "heads of length 1" };
    bool mla = a->attention == CLB_ATTN_MLA;

    if (mla) {
        add(t, "latent: %u heads of %u (%u of them rotated)", a->n_head, a->head_dim,
            a->qk_rope_dim);
        add(t, "keys and values from %u", a->kv_lora_rank);
        if (a->q_lora_rank)
            add(t, "queries from %u", a->q_lora_rank);
    } else {
        add(t, "%u heads of %u", a->n_head, a->head_dim);
        add(t, "%u for keys and values", a->n_kv_head);
    }
    if (a->value_dim != a->head_dim)
        add(t, "values of %u", a->value_dim);
    if (a->qk_norm != CLB_QK_NORM_NONE)
        add(t, "%s", norms[a->qk_norm]);
    add_biases(t, a);
    if (a->sinks)
        add(t, "sinks");
    add_limit(t, a, "window", a->window);
    add_limit(t, a, "chunks", a->chunk);
    if (a->clip_qkv > 0)
        add(t, "q, k, v within +-%g", (double)a->clip_qkv);
    if (a->attn_scale > 0)
        add(t, "scores times %g", (double)a->attn_scale);
    if (a->attn_softcap > 0)
        add(t, "scores capped at %g", (double)a->attn_softcap);
    line("attention", t);
}

static void position_line(const struct clb_arch *a, struct clb_text *t)
{
    bool any = false;
    char where[96];

    if (a->rope == CLB_ROPE_NONE) {
        add(t, "none");
    } else {
        add(t, "rope on %u of %u", a->rope_dim, a->head_dim);
        add(t, "%s", a->rope == CLB_ROPE_HALF ? "halves" : "interleaved");
    }
    if (a->rope_scale > 0)
        add(t, "sines times %g", (double)a->rope_scale);
    if (a->rope_long_from)
        add(t, "other frequencies beyond %u positions, sines times %g", a->rope_long_from,
            (double)(a->rope_scale_long > 0 ? a->rope_scale_long : a->rope_scale));
    for (uint32_t l = 0; l < a->n_layer; l++)
        any |= a->no_rope[l];
    if (any)
        add(t, "none%s", layers_of(where, a, a->no_rope));
    if (a->attn_temperature_scale > 0)
        add(t, "there queries grow by %g log(1 + position / %g)",
            (double)a->attn_temperature_scale, (double)a->attn_temperature_floor);
    line("position", t);
}

static void norms_line(const struct clb_arch *a, struct clb_text *t)
{
    add(t, "%s", a->norm == CLB_NORM_RMS ? "RMS" : "LayerNorm");
    if (a->norm_place == CLB_NORM_AFTER)
        add(t, "behind attention and experts");
    add(t, "epsilon %g", (double)a->norm_eps);
    if (a->lora_norm_eps > 0)
        add(t, "%g for latents", (double)a->lora_norm_eps);
    if (a->qk_norm_eps > 0)
        add(t, "%g for heads", (double)a->qk_norm_eps);
    line("norms", t);
}

static void experts_line(const struct clb_arch *a, struct clb_text *t)
{
    static const char *const acts[] = { "silu", "gelu", "gelu (tanh)", "relu", "clamped swiglu" };

    add(t, "%u a layer", a->n_expert);
    add(t, "%u per token", a->top_k);
    add(t, "inner width %u", a->expert_size);
    add(t, "%s", acts[a->act]);
    if (a->act == CLB_ACT_CLAMPED_SWIGLU)
        add(t, "limit %g, alpha %g", (double)a->act_limit, (double)a->act_alpha);
    if (a->expert_bias)
        add(t, "biases");
    if (a->scale_expert_input)
        add(t, "weights multiply the input");
    line("experts", t);
}

static void router_line(const struct clb_arch *a, struct clb_text *t)
{
    static const char *const routers[] = { "softmax, then top-k", "top-k, then softmax",
                                           "sigmoid, then top-k", "sparsemixer" };
    bool choice = a->router == CLB_ROUTER_SOFTMAX_TOPK || a->router == CLB_ROUTER_SIGMOID;

    if (a->router_two_layers)
        add(t, "two layers");
    if (a->router_bias)
        add(t, "bias");
    add(t, "%s", routers[a->router]);
    if (a->router_jitter > 0)
        add(t, "threshold %g", (double)a->router_jitter);
    if (a->n_group)
        add(t, "of the %u best of %u groups (by their best%s expert%s)", a->top_groups, a->n_group,
            a->group_score == CLB_GROUP_MAX ? "" : " two",
            a->group_score == CLB_GROUP_MAX ? "" : "s");
    if (a->router_correction)
        add(t, "a bias chooses");
    if (a->topk_normalise)
        add(t, "weights sum to 1");
    else if (choice)
        add(t, "weights as they are");
    if (a->routed_scale > 0)
        add(t, "times %g", (double)a->routed_scale);
    if (a->router_clip > 0)
        add(t, "logits within +-%g", (double)a->router_clip);
    line("router", t);
    if (a->shared_size)
        add(t, "inner width %u%s", a->shared_size, a->shared_gate ? ", with a gate" : "");
    line("shared expert", t);
}

static void multipliers_line(const struct clb_arch *a, struct clb_text *t)
{
    if (a->embedding_scale > 0)
        add(t, "embedding %g", (double)a->embedding_scale);
    if (a->residual_scale > 0)
        add(t, "residual %g", (double)a->residual_scale);
    if (a->logit_scale > 0)
        add(t, "logits %g", (double)a->logit_scale);
    if (a->logit_softcap > 0)
        add(t, "logits capped at %g", (double)a->logit_softcap);
    if (a->output_bias)
        add(t, "output bias");
    line("multipliers", t);
}

/* Fields that the lines above do not speak of, so that nothing unusual stays unseen. */
static void other_field(void *arg, const char *name, const char *value)
{
    static const char *const told[] = {
        "n_layer",        "hidden_size",      "vocab_size",      "max_positions",
        "attention",      "n_head",           "n_kv_head",       "head_dim",
        "value_dim",      "qk_norm",          "qk_norm_eps",     "q_bias",
        "k_bias",         "v_bias",           "o_bias",          "sinks",
        "clip_qkv",       "attn_scale",       "attn_softcap",    "attn_temperature_scale",
        "q_lora_rank",    "kv_lora_rank",     "qk_nope_dim",     "attn_temperature_floor",
        "qk_rope_dim",    "lora_norm_eps",    "window",          "chunk",
        "no_rope",        "rope",             "rope_dim",        "rope_scale",
        "rope_long_from", "rope_scale_long",  "norm",            "norm_place",
        "norm_eps",       "n_expert",         "top_k",           "layer_experts",
        "expert_size",    "dense_size",       "router",          "router_bias",
        "n_group",        "router_correction", "router_jitter",  "router_two_layers",
        "top_groups",     "group_score",      "topk_normalise",  "router_clip",
        "routed_scale",   "scale_expert_input", "shared_size",   "shared_gate",
        "expert_bias",    "act",              "act_limit",       "act_alpha",
        "logit_scale",    "embedding_scale",  "residual_scale",  "logit_softcap",
        "output_bias",    "tied_embeddings",
    };

    if (!*value)
        return;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (!strcmp(name, told[i]))
            return;
    add(arg, "%s %.60s", name, value);
}

void inspect_describe(const struct clb_arch *a)
{
    struct clb_text t = { 0 };

    layers_line(a, &t);
    sizes_line(a, &t);
    attention_line(a, &t);
    position_line(a, &t);
    norms_line(a, &t);
    experts_line(a, &t);
    router_line(a, &t);
    multipliers_line(a, &t);
    clb_arch_fields(a, other_field, &t);
    line("also", &t);
    clb_text_free(&t);
}
