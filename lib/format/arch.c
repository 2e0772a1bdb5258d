/* arch.c - the architecture descriptor as data: one table says of every field its name, kind,
 * place, legal range and whether this engine can run it. Writing, reading, listing and refusing
 * walk that table. */
#include "lib/format/arch.h"

#include <math.h>
#include <stddef.h>

enum kind { NUMBER, REAL, FLAG, WORD, NUMBER_PER_LAYER, FLAG_PER_LAYER };

/* What this engine runs. WORD: a bit for each enumerator. Other kinds: every value, or only the
 * neutral one. */
enum { RUNS_NOT = 0, RUNS = ~0 };
#define BIT(e) (1 << (e))

static const char *const attention_words[] = { "gqa", "mla", NULL };
static const char *const qk_norm_words[] = {
    "none", "head", "full", "head_after_rope", "l2", NULL
};
static const char *const norm_words[] = { "rms", "layer", NULL };
static const char *const place_words[] = { "before", "after", NULL };
static const char *const router_words[] = { "softmax_topk", "topk_softmax", "sigmoid",
                                            "sparsemixer", NULL };
static const char *const group_words[] = { "none", "max", "top2_sum", NULL };
static const char *const act_words[] = {
    "silu", "gelu", "gelu_tanh", "relu", "clamped_swiglu", NULL
};
static const char *const rope_words[] = { "none", "half", "interleaved", NULL };

struct field {
    const char *name;
    enum kind kind;
    int runs;
    size_t at;
    uint32_t lo, hi; /* numbers; lo > 0 makes the field mandatory */
    const char *const *words;
};

#define AT(f) offsetof(struct clb_arch, f)
#define N(f, runs, lo, hi) { #f, NUMBER, runs, AT(f), lo, hi, NULL }
#define R(f, runs) { #f, REAL, runs, AT(f), 0, 0, NULL }
#define B(f, runs) { #f, FLAG, runs, AT(f), 0, 0, NULL }
#define W(f, runs, words) { #f, WORD, runs, AT(f), 0, 0, words }
#define NL(f, runs, hi) { #f, NUMBER_PER_LAYER, runs, AT(f), 0, hi, NULL }
#define BL(f, runs) { #f, FLAG_PER_LAYER, runs, AT(f), 0, 0, NULL }

/* Bounds of widths are far above every model and keep each product of two below 2^31. */
enum { WIDTH = 1 << 24, HEADS = 1 << 12, RANK = 1 << 16, POSITIONS = 1 << 30 };

static const struct field fields[] = {
    N(n_layer, RUNS, 1, CLB_MAX_LAYERS),
    N(hidden_size, RUNS, 1, WIDTH),
    N(vocab_size, RUNS, 1, WIDTH),
    N(max_positions, RUNS, 1, POSITIONS),

    W(attention, RUNS, attention_words),
    N(n_head, RUNS, 1, HEADS),
    N(n_kv_head, RUNS, 1, HEADS),
    N(head_dim, RUNS, 1, HEADS),
    N(value_dim, RUNS, 1, HEADS),
    W(qk_norm, RUNS, qk_norm_words),
    R(qk_norm_eps, RUNS),
    B(q_bias, RUNS),
    B(k_bias, RUNS),
    B(v_bias, RUNS),
    B(o_bias, RUNS),
    B(sinks, RUNS),
    R(clip_qkv, RUNS),
    R(attn_scale, RUNS),
    R(attn_softcap, RUNS),
    R(attn_temperature_scale, RUNS),
    R(attn_temperature_floor, RUNS),
    N(q_lora_rank, RUNS, 0, RANK),
    N(kv_lora_rank, RUNS, 0, RANK),
    N(qk_nope_dim, RUNS, 0, HEADS),
    N(qk_rope_dim, RUNS, 0, HEADS),
    R(lora_norm_eps, RUNS),
    NL(window, RUNS, POSITIONS),
    NL(chunk, RUNS, POSITIONS),
    BL(no_rope, RUNS),
    N(index_heads, RUNS_NOT, 0, HEADS),
    N(index_head_dim, RUNS_NOT, 0, HEADS),
    N(index_top_k, RUNS_NOT, 0, POSITIONS),
    BL(linear_attention, RUNS_NOT),
    B(attn_output_gate, RUNS_NOT),

    W(rope, RUNS, rope_words),
    N(rope_dim, RUNS, 0, CLB_MAX_ROPE),
    R(rope_scale, RUNS),
    N(rope_long_from, RUNS, 0, POSITIONS),
    R(rope_scale_long, RUNS),

    W(norm, RUNS, norm_words),
    W(norm_place, RUNS, place_words),
    R(norm_eps, RUNS),
    B(norm_plus_one, RUNS_NOT),

    N(n_expert, RUNS, 1, CLB_MAX_EXPERTS),
    N(top_k, RUNS, 1, CLB_MAX_TOP_K),
    NL(layer_experts, RUNS, CLB_MAX_EXPERTS),
    NL(layer_top_k, RUNS, CLB_MAX_TOP_K),
    N(expert_size, RUNS, 1, WIDTH),
    N(dense_size, RUNS, 0, WIDTH),
    W(router, RUNS, router_words),
    B(router_bias, RUNS),
    B(router_correction, RUNS),
    B(router_two_layers, RUNS),
    R(router_jitter, RUNS),
    N(n_group, RUNS, 0, CLB_MAX_EXPERTS),
    N(top_groups, RUNS, 0, CLB_MAX_EXPERTS),
    W(group_score, RUNS, group_words),
    B(topk_normalise, RUNS),
    R(topk_normalise_min, RUNS),
    R(router_clip, RUNS),
    R(routed_scale, RUNS),
    B(scale_expert_input, RUNS),
    N(shared_size, RUNS, 0, WIDTH),
    B(shared_gate, RUNS),
    B(expert_bias, RUNS),
    W(act, RUNS, act_words),
    R(act_limit, RUNS),
    R(act_alpha, RUNS),

    R(embedding_scale, RUNS),
    R(residual_scale, RUNS),
    R(logit_scale, RUNS),
    R(logit_softcap, RUNS),
    B(output_bias, RUNS),
    B(tied_embeddings, RUNS),
};

enum { N_FIELDS = sizeof fields / sizeof *fields };
_Static_assert(sizeof(enum clb_act) == sizeof(uint32_t), "words are stored as 32 bits");

static void *place(const struct field *f, const struct clb_arch *a)
{
    return (char *)(uintptr_t)a + f->at;
}

/* The value of a field (or of a layer's place in it) as bits; 0 is neutral for all kinds. */
static uint32_t value_at(const struct field *f, const struct clb_arch *a, uint32_t layer)
{
    const void *p = place(f, a);

    switch (f->kind) {
    case FLAG:
        return *(const bool *)p;
    case FLAG_PER_LAYER:
        return ((const bool *)p)[layer];
    case NUMBER_PER_LAYER:
        return ((const uint32_t *)p)[layer];
    default: { /* REAL: +0 is neutral, and -0 is refused by its sign */
        uint32_t bits;
        memcpy(&bits, p, sizeof bits);
        return bits;
    }
    }
}

static bool per_layer(const struct field *f)
{
    return f->kind == NUMBER_PER_LAYER || f->kind == FLAG_PER_LAYER;
}

static bool uniform(const struct field *f, const struct clb_arch *a)
{
    for (uint32_t l = 1; per_layer(f) && l < a->n_layer; l++)
        if (value_at(f, a, l) != value_at(f, a, 0))
            return false;
    return true;
}

static bool neutral(const struct field *f, const struct clb_arch *a)
{
    return uniform(f, a) && value_at(f, a, 0) == 0;
}

/* -- text ------------------------------------------------------------------------------------- */

static void write_one(const struct field *f, const struct clb_arch *a, uint32_t layer,
                      struct clb_text *out)
{
    uint32_t v = value_at(f, a, layer);

    switch (f->kind) {
    case REAL:
        clb_text_f32(out, *(const float *)place(f, a));
        break;
    case FLAG:
    case FLAG_PER_LAYER:
        clb_text_puts(out, v ? "true" : "false");
        break;
    case WORD:
        clb_text_json(out, f->words[v], strlen(f->words[v]));
        break;
    default:
        clb_text_printf(out, "%u", v);
    }
}

static void write_value(const struct field *f, const struct clb_arch *a, struct clb_text *out)
{
    if (uniform(f, a)) {
        write_one(f, a, 0, out);
        return;
    }
    for (uint32_t l = 0; l < a->n_layer; l++) {
        clb_text_puts(out, l ? "," : "[");
        write_one(f, a, l, out);
    }
    clb_text_puts(out, "]");
}

void clb_arch_write(const struct clb_arch *a, struct clb_text *out)
{
    const char *before = "{";

    for (size_t i = 0; i < N_FIELDS; i++) {
        if (neutral(&fields[i], a))
            continue;
        clb_text_printf(out, "%s\"%s\":", before, fields[i].name);
        write_value(&fields[i], a, out);
        before = ",";
    }
    clb_text_puts(out, *before == '{' ? "{}" : "}");
}

void clb_arch_fields(const struct clb_arch *a, clb_arch_field_fn *fn, void *arg)
{
    struct clb_text value = { 0 };

    for (size_t i = 0; i < N_FIELDS; i++) {
        clb_text_clear(&value);
        if (!neutral(&fields[i], a))
            write_value(&fields[i], a, &value);
        fn(arg, fields[i].name, value.n ? value.p : "");
    }
    clb_text_free(&value);
}

/* -- reading ---------------------------------------------------------------------------------- */

static uint32_t read_word(const struct field *f, struct clb_json *j)
{
    struct clb_str s = clb_json_string(j);

    for (uint32_t i = 0; f->words[i]; i++)
        if (clb_str_is(s, f->words[i]))
            return i;
    if (clb_json_ok(j))
        clb_json_fail(j, "'%.*s' is not a value of '%s' that this program knows",
                      s.n > 40 ? 40 : (int)s.n, s.p, f->name);
    return 0;
}

static float read_real(struct clb_json *j)
{
    double v = clb_json_f64(j);
    float f = (float)v;

    if (clb_json_ok(j) && (!isfinite(f) || signbit(f)))
        clb_json_fail(j, "%g is out of range (0 to 3.4e38)", v);
    return f;
}

static void read_one(const struct field *f, struct clb_arch *a, uint32_t layer, struct clb_json *j)
{
    void *p = place(f, a);

    switch (f->kind) {
    case NUMBER:
        *(uint32_t *)p = (uint32_t)clb_json_u64(j, f->hi);
        break;
    case REAL:
        *(float *)p = read_real(j);
        break;
    case FLAG:
        *(bool *)p = clb_json_bool(j);
        break;
    case WORD: {
        uint32_t v = read_word(f, j);
        memcpy(p, &v, sizeof v);
        break;
    }
    case NUMBER_PER_LAYER:
        ((uint32_t *)p)[layer] = (uint32_t)clb_json_u64(j, f->hi);
        break;
    case FLAG_PER_LAYER:
        ((bool *)p)[layer] = clb_json_bool(j);
        break;
    }
}

enum { FOR_ALL = CLB_MAX_LAYERS + 1 }; /* the length of a list that was one value */

/* An array of one value per layer, or one value for all. Returns how many there were. The number of
 * layers may be unknown yet, so one value fills all places and finish_lists() cuts. */
static uint32_t read_list(const struct field *f, struct clb_arch *a, struct clb_json *j)
{
    uint32_t n = 0;

    if (clb_json_peek(j) == CLB_JSON_ARRAY) {
        clb_json_array(j);
        while (clb_json_item(j)) {
            if (n == CLB_MAX_LAYERS) {
                clb_json_fail(j, "more than %d values", CLB_MAX_LAYERS);
                return 0;
            }
            read_one(f, a, n++, j);
        }
        return n;
    }
    read_one(f, a, 0, j);
    for (uint32_t l = 1; l < CLB_MAX_LAYERS; l++)
        if (f->kind == NUMBER_PER_LAYER)
            ((uint32_t *)place(f, a))[l] = ((uint32_t *)place(f, a))[0];
        else
            ((bool *)place(f, a))[l] = ((bool *)place(f, a))[0];
    return FOR_ALL;
}

static bool finish_lists(struct clb_arch *a, const uint32_t *length, struct clb_json *j)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        size_t each = f->kind == NUMBER_PER_LAYER ? sizeof(uint32_t) : sizeof(bool);

        if (!length[i])
            continue;
        if (length[i] != a->n_layer && length[i] != FOR_ALL)
            return clb_json_fail(j, "'%s' has %u values, but 'n_layer' is %u", f->name, length[i],
                                 a->n_layer);
        memset((char *)place(f, a) + each * a->n_layer, 0, each * (CLB_MAX_LAYERS - a->n_layer));
    }
    return true;
}

static const struct field *find(struct clb_str key, size_t *index)
{
    for (*index = 0; *index < N_FIELDS; ++*index)
        if (clb_str_is(key, fields[*index].name))
            return &fields[*index];
    return NULL;
}

bool clb_arch_field(struct clb_str name, size_t *at, bool *each_layer)
{
    size_t i;
    const struct field *f = find(name, &i);

    if (!f)
        return false;
    *at = f->at;
    *each_layer = per_layer(f);
    return true;
}

bool clb_arch_read(struct clb_arch *a, struct clb_json *j)
{
    uint32_t length[N_FIELDS] = { 0 };
    struct clb_str key;
    size_t i;

    memset(a, 0, sizeof *a);
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        const struct field *f = find(key, &i);

        if (!f)
            return clb_json_fail(j, "'%.*s' is a feature that this program does not know",
                                 key.n > 60 ? 60 : (int)key.n, key.p);
        if (!per_layer(f))
            read_one(f, a, 0, j);
        else if (!(length[i] = read_list(f, a, j)))
            return clb_json_fail(j, "'%s' is an empty list", f->name);
    }
    return clb_json_ok(j) && finish_lists(a, length, j);
}

/* -- what this engine runs -------------------------------------------------------------------- */

bool clb_arch_ranges(const struct clb_arch *a, struct clb_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        uint32_t n = per_layer(f) ? a->n_layer : 1;
        float real;

        for (uint32_t l = 0; l < n; l++) {
            uint32_t v = value_at(f, a, l);
            if ((f->kind == NUMBER || f->kind == NUMBER_PER_LAYER) && (v < f->lo || v > f->hi)) {
                clb_fail(err, CLB_BAD_INPUT, "'%s' is %u, but must be within %u and %u", f->name, v,
                         f->lo, f->hi);
                return clb_err_place(err, NULL, f->name, CLB_NO_OFFSET);
            }
        }
        if (f->kind != REAL)
            continue;
        memcpy(&real, place(f, a), sizeof real);
        if (!isfinite(real) || signbit(real)) {
            clb_fail(err, CLB_BAD_INPUT, "'%s' is %g, but must be a number of 0 or more", f->name,
                     (double)real);
            return clb_err_place(err, NULL, f->name, CLB_NO_OFFSET);
        }
    }
    return true;
}

bool clb_arch_runnable(const struct clb_arch *a, struct clb_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        struct clb_text value = { 0 };
        bool ok =
            f->kind == WORD ? f->runs >> value_at(f, a, 0) & 1 : f->runs == RUNS || neutral(f, a);

        if (ok)
            continue;
        write_value(f, a, &value);
        clb_fail(err, CLB_UNSUPPORTED,
                 "the model needs '%s' = %.60s, which this engine does not run yet", f->name,
                 value.n ? value.p : "?");
        clb_text_free(&value);
        return clb_err_place(err, NULL, f->name, CLB_NO_OFFSET);
    }
    return true;
}

float clb_arch_attn_scale(const struct clb_arch *a)
{
    return a->attn_scale > 0 ? a->attn_scale : (float)(1 / sqrt(a->head_dim));
}

uint32_t clb_arch_layer_top_k(const struct clb_arch *a, uint32_t layer)
{
    return a->layer_top_k[layer] ? a->layer_top_k[layer] : a->top_k;
}

bool clb_arch_is_moe(const struct clb_arch *a, uint32_t layer)
{
    return a->layer_experts[layer] > 0;
}

uint32_t clb_arch_first_key(const struct clb_arch *a, uint32_t layer, uint32_t position)
{
    uint32_t window = a->window[layer], chunk = a->chunk[layer];
    uint32_t by_window = window && position >= window ? position - window + 1 : 0;
    uint32_t by_chunk = chunk ? position / chunk * chunk : 0;

    return by_window > by_chunk ? by_window : by_chunk;
}

uint32_t clb_arch_choosable(const struct clb_arch *a, uint32_t n)
{
    return a->n_group ? n / a->n_group * a->top_groups : n;
}
