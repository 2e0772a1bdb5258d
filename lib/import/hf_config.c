#include "lib/import/hf_config.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"

const char *const clb_key_state_name[] = { "unknown", "used", "irrelevant", "ignored" };

/* Settings of training, of the Python classes, and of text generation: at the top level none
 * changes a logit. */
static const char *const irrelevant[] = {
    "architectures",
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_z_loss_coef",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
};
static const char *const irrelevant_prefix[] = { "_", "output_", "aux_loss", "initializer" };

/* Makes room for one more; NULL without memory. */
static struct clb_setting *next_setting(struct clb_settings *s, uint32_t *room, struct clb_err *err)
{
    if (s->n == *room) {
        uint32_t more = *room ? *room * 2 : 64;
        void *grown = more > *room ? clb_grow(s->setting, more, sizeof *s->setting, err) : NULL;

        if (!grown)
            return NULL;
        s->setting = grown;
        *room = more;
    }
    s->setting[s->n] = (struct clb_setting){ 0 };
    return &s->setting[s->n++];
}

/* Keys are stored with `prefix` before them. */
static bool read_all(struct clb_settings *s, struct clb_json *j, const char *prefix,
                     struct clb_err *err)
{
    uint32_t room = s->n;
    struct clb_str key;

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        struct clb_setting *e = next_setting(s, &room, err);

        if (!e)
            return false;
        if (!key.n || memchr(key.p, 0, key.n))
            clb_json_fail(j, "a key that is empty or contains a NUL");
        clb_text_puts(&s->keys, prefix);
        clb_text_add(&s->keys, key.p, key.n);
        clb_text_add(&s->keys, "", 1);
        e->type = clb_json_peek(j);
        e->at = (size_t)j->base + j->value_at;
        clb_json_skip(j, &e->raw);
    }
    return !s->keys.failed || clb_fail_nomem(err, s->keys.n);
}

static bool read_object(struct clb_settings *s, struct clb_str text, uint64_t base,
                        const char *prefix, struct clb_err *err)
{
    struct clb_json j;
    const char *key;

    clb_json_open(&j, text.p, text.n, s->file);
    j.base = base;
    if (!read_all(s, &j, prefix, err)) {
        clb_json_abandon(&j);
        return false;
    }
    if (!clb_json_close(&j, err))
        return false;
    key = s->keys.p;
    for (uint32_t i = 0; i < s->n; i++, key += strlen(key) + 1) {
        struct clb_setting *e = &s->setting[i];

        /* a new one has neither */
        e->as = e->as == e->key + e->skip ? key + e->skip : e->as;
        e->key = key;
    }
    return true;
}

bool clb_settings_read(struct clb_settings *s, const char *text, size_t n, const char *file,
                       struct clb_err *err)
{
    *s = (struct clb_settings){ .file = file };
    return read_object(s, (struct clb_str){ text, n }, 0, "", err);
}

bool clb_settings_nested(struct clb_settings *s, struct clb_settings *parent, const char *key,
                         struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(parent, key);

    *s = (struct clb_settings){ .file = parent->file };
    snprintf(s->prefix, sizeof s->prefix, "%.60s.", e ? e->key : key);
    if (!e)
        return true;
    if (e->type != CLB_JSON_OBJECT)
        return clb_setting_fail(parent, e, err, "an object is expected, found %s",
                                clb_json_type_name(e->type));
    return read_object(s, e->raw, e->at, "", err);
}

bool clb_settings_flatten(struct clb_settings *s, uint32_t i, struct clb_err *err)
{
    const struct clb_setting e = s->setting[i];
    char prefix[256];

    if (strlen(e.key) + 1 >= sizeof prefix)
        return clb_setting_fail(s, &e, err, "the key is too long");
    snprintf(prefix, sizeof prefix, "%s.", e.key);
    s->setting[i].state = CLB_KEY_USED;
    return read_object(s, e.raw, e.at, prefix, err);
}

bool clb_settings_lift(struct clb_settings *s, uint32_t i, struct clb_err *err)
{
    uint32_t first = s->n, skip = (uint32_t)strlen(s->setting[i].key) + 1;

    if (!clb_settings_flatten(s, i, err))
        return false;
    for (uint32_t k = first; k < s->n; k++) {
        struct clb_setting *e = &s->setting[k];

        e->skip = skip;
        e->as = e->key + skip;
        for (uint32_t outside = 0; outside < first; outside++)
            if (!strcmp(s->setting[outside].as, e->as))
                s->setting[outside].as = "";
    }
    return true;
}

void clb_settings_adopt(struct clb_settings *s, const char *key, const struct clb_settings *inner)
{
    struct clb_err ignored;
    uint32_t first = s->n;

    for (uint32_t i = 0; i < first; i++) {
        const struct clb_setting *e = &s->setting[i];

        if (strcmp(e->as, key) || e->type != CLB_JSON_OBJECT)
            continue;
        if (!clb_settings_flatten(s, i, &ignored) || s->n - first != inner->n)
            return;
        for (uint32_t k = 0; k < inner->n; k++) {
            s->setting[first + k].as = "";
            s->setting[first + k].state = inner->setting[k].state;
            s->setting[first + k].told = inner->setting[k].told;
        }
        return;
    }
}

void clb_settings_free(struct clb_settings *s)
{
    clb_free(s->setting);
    clb_text_free(&s->keys);
    *s = (struct clb_settings){ 0 };
}

struct clb_setting *clb_setting_find(struct clb_settings *s, const char *key)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->setting[i].as, key)) {
            s->setting[i].state = CLB_KEY_USED;
            return s->setting[i].type == CLB_JSON_NULL ? NULL : &s->setting[i];
        }
    return NULL;
}

const struct clb_setting *clb_setting_peek(const struct clb_settings *s, const char *key)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->setting[i].as, key))
            return &s->setting[i];
    return NULL;
}

void clb_setting_no_effect(struct clb_settings *s, const char *key)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->setting[i].as, key))
            s->setting[i].state = CLB_KEY_IRRELEVANT;
}

bool clb_setting_fail(const struct clb_settings *s, const struct clb_setting *e,
                      struct clb_err *err, const char *fmt, ...)
{
    char why[420], field[128];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(field, sizeof field, "%s%s", s->prefix, e->key);
    clb_fail(err, CLB_BAD_INPUT, "%s: byte %zu: '%s': %s", s->file, e->at, field, why);
    return clb_err_place(err, s->file, field, e->at);
}

bool clb_setting_missing(const struct clb_settings *s, const char *key, struct clb_err *err)
{
    clb_fail(err, CLB_BAD_INPUT, "%s: '%s%s' is missing", s->file, s->prefix, key);
    return clb_err_place(err, s->file, key, CLB_NO_OFFSET);
}

/* The value as it stands in the file, for messages, in one line; long ones are cut. */
static const char *shown(const struct clb_setting *e, char buf[static 48])
{
    size_t n = 0, i = 0;

    for (; i < e->raw.n && n < 40; i++) {
        char c = e->raw.p[i];

        if (strchr("\t\r\n ", c) && n && buf[n - 1] == ' ')
            continue;
        buf[n++] = strchr("\t\r\n", c) ? ' ' : c;
    }
    snprintf(buf + n, 48 - n, "%s", i < e->raw.n ? "..." : "");
    return buf;
}

bool clb_setting_u32(struct clb_settings *s, const char *key, uint32_t lo, uint32_t hi,
                     uint32_t *out, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    struct clb_err ignored;
    struct clb_json j;
    char text[48];

    if (!e)
        return true;
    clb_json_open(&j, e->raw.p, e->raw.n, s->file);
    uint64_t v = clb_json_u64(&j, hi);
    if (!clb_json_close(&j, &ignored) || v < lo)
        return clb_setting_fail(s, e, err, "a whole number from %u to %u is expected, found %s", lo,
                                hi, shown(e, text));
    *out = (uint32_t)v;
    return true;
}

bool clb_setting_f64(struct clb_settings *s, const char *key, double lo, double hi, double *out,
                     struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    struct clb_err ignored;
    struct clb_json j;
    char text[48];

    if (!e)
        return true;
    clb_json_open(&j, e->raw.p, e->raw.n, s->file);
    double v = clb_json_f64(&j);
    if (!clb_json_close(&j, &ignored) || !(v >= lo && v <= hi))
        return clb_setting_fail(s, e, err, "a number from %g to %g is expected, found %s", lo, hi,
                                shown(e, text));
    *out = v;
    return true;
}

bool clb_setting_bool(struct clb_settings *s, const char *key, bool *out, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    char text[48];

    if (!e)
        return true;
    if (e->type != CLB_JSON_BOOL)
        return clb_setting_fail(s, e, err, "true or false is expected, found %s", shown(e, text));
    *out = e->raw.p[0] == 't';
    return true;
}

bool clb_setting_text(struct clb_settings *s, const char *key, char *buf, size_t n,
                      struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    char text[48];

    if (!e)
        return true;
    if (e->type != CLB_JSON_STRING)
        return clb_setting_fail(s, e, err, "a text is expected, found %s", shown(e, text));

    struct clb_err ignored;
    struct clb_json j;
    clb_json_open(&j, e->raw.p, e->raw.n, s->file);
    struct clb_str v = clb_json_string(&j);
    bool fits = v.n < n && !(v.n && memchr(v.p, 0, v.n));
    if (fits) {
        memcpy(buf, v.p ? v.p : "", v.n);
        buf[v.n] = 0;
    }
    if (clb_json_close(&j, &ignored) && fits)
        return true;
    return clb_setting_fail(s, e, err, "%s is no text that is understood here", shown(e, text));
}

/* The next item of a list goes to place n; false when its value is not accepted. */
typedef bool item_fn(struct clb_json *j, void *list, uint32_t n, const double range[2]);

static bool read_list(struct clb_settings *s, const char *key, item_fn *item, void *list,
                      const double range[2], uint32_t room, uint32_t *count, const char *expected,
                      struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    struct clb_err ignored;
    struct clb_json j;
    uint32_t n = 0;
    bool good = true;
    char text[48];

    if (!e)
        return true;
    if (e->type != CLB_JSON_ARRAY)
        return clb_setting_fail(s, e, err, "a list of %s is expected, found %s", expected,
                                shown(e, text));
    clb_json_open(&j, e->raw.p, e->raw.n, s->file);
    clb_json_array(&j);
    while (good && clb_json_item(&j)) {
        good = n < room && item(&j, list, n, range);
        n++;
    }
    if (!good)
        clb_json_abandon(&j);
    if (good && clb_json_close(&j, &ignored)) {
        *count = n;
        return true;
    }
    return clb_setting_fail(s, e, err, "entry %u: %s, at most %u of them, are expected", n,
                            expected, room);
}

static bool real_item(struct clb_json *j, void *list, uint32_t n, const double range[2])
{
    double v = clb_json_f64(j);

    ((double *)list)[n] = v;
    return v >= range[0] && v <= range[1];
}

static bool text_item(struct clb_json *j, void *list, uint32_t n, const double range[2])
{
    struct clb_str v = clb_json_string(j);
    char *to = ((char(*)[32])list)[n];

    (void)range;
    if (v.n >= 32 || (v.n && memchr(v.p, 0, v.n)))
        return false;
    memcpy(to, v.n ? v.p : "", v.n);
    to[v.n] = 0;
    return true;
}

static bool flag_item(struct clb_json *j, void *list, uint32_t n, const double range[2])
{
    (void)range;
    ((bool *)list)[n] = clb_json_bool(j);
    return true;
}

bool clb_setting_reals(struct clb_settings *s, const char *key, double lo, double hi, double *list,
                       uint32_t room, uint32_t *count, struct clb_err *err)
{
    return read_list(s, key, real_item, list, (double[]){ lo, hi }, room, count, "numbers", err);
}

bool clb_setting_texts(struct clb_settings *s, const char *key, char (*list)[32], uint32_t room,
                       uint32_t *count, struct clb_err *err)
{
    return read_list(s, key, text_item, list, NULL, room, count, "texts", err);
}

bool clb_setting_flags(struct clb_settings *s, const char *key, bool *list, uint32_t room,
                       uint32_t *count, struct clb_err *err)
{
    return read_list(s, key, flag_item, list, NULL, room, count, "true and false", err);
}

bool clb_setting_list(struct clb_settings *s, const char *key, uint32_t hi, uint32_t *list,
                      uint32_t room, uint32_t *count, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(s, key);
    struct clb_err ignored;
    struct clb_json j;
    uint32_t n = 0;
    bool fits = true;
    char text[48];

    if (!e)
        return true;
    clb_json_open(&j, e->raw.p, e->raw.n, s->file);
    if (e->type == CLB_JSON_ARRAY) {
        clb_json_array(&j);
        while (fits && clb_json_item(&j)) {
            fits = n < room;
            list[fits ? n++ : 0] = (uint32_t)clb_json_u64(&j, hi);
        }
    } else {
        list[n++] = (uint32_t)clb_json_u64(&j, hi);
    }
    if (!fits) {
        clb_json_abandon(&j);
        return clb_setting_fail(s, e, err, "more than %u entries", room);
    }
    if (!clb_json_close(&j, &ignored))
        return clb_setting_fail(s, e, err, "whole numbers from 0 to %u are expected, found %s", hi,
                                shown(e, text));
    *count = n;
    return true;
}

static bool is_irrelevant(const char *key)
{
    for (size_t i = 0; i < sizeof irrelevant / sizeof *irrelevant; i++)
        if (!strcmp(key, irrelevant[i]))
            return true;
    for (size_t i = 0; i < sizeof irrelevant_prefix / sizeof *irrelevant_prefix; i++)
        if (!strncmp(key, irrelevant_prefix[i], strlen(irrelevant_prefix[i])))
            return true;
    return false;
}

/* null, false, "", [] and {} switch something off. */
static bool is_off(const struct clb_setting *e)
{
    size_t inside = 0;

    if (e->type == CLB_JSON_NULL || (e->type == CLB_JSON_BOOL && e->raw.p[0] == 'f'))
        return true;
    if (e->type == CLB_JSON_NUMBER || e->type == CLB_JSON_BOOL)
        return false;
    if (e->type == CLB_JSON_STRING)
        return e->raw.n == 2;
    for (size_t i = 1; i + 1 < e->raw.n; i++)
        inside += !strchr(" \t\r\n", e->raw.p[i]);
    return inside == 0;
}

/* The state of a key that is named `full`: what is left over may be ignored. */
static void account(struct clb_setting *e, const char *full, struct clb_ignore *ignore,
                    uint32_t n_ignore, bool may_be_irrelevant)
{
    if (e->state == CLB_KEY_UNKNOWN &&
        (is_off(e) || (may_be_irrelevant && is_irrelevant(e->as[0] ? e->as : e->key))))
        e->state = CLB_KEY_IRRELEVANT;
    for (uint32_t k = 0; k < n_ignore; k++)
        if (!strcmp(full, ignore[k].name)) {
            if (e->state == CLB_KEY_UNKNOWN)
                e->state = CLB_KEY_IGNORED;
            ignore[k].state = e->state;
        }
}

void clb_settings_check_rest(struct clb_settings *s, struct clb_ignore *ignore, uint32_t n_ignore,
                             struct clb_problems *problems)
{
    char text[48], full[256];

    for (uint32_t i = 0; i < s->n; i++) {
        struct clb_setting *e = &s->setting[i];

        snprintf(full, sizeof full, "%s%s", s->prefix, e->key);
        account(e, full, ignore, n_ignore, !s->prefix[0]);
        if (e->state == CLB_KEY_UNKNOWN && !e->told)
            clb_problem(problems,
                        "byte %zu: '%s' is %s, and what it means is not known; if it changes "
                        "nothing, accept it with --ignore-key %s",
                        e->at, full, shown(e, text), full);
        e->told = true;
    }
    s->accounted = true;
}
