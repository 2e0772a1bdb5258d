/* map_apply.c - a map meets a config.json: the descriptor's fields get their values. */
#include "lib/base/mem.h"
#include "lib/import/map_impl.h"

/* How many bytes of a text fit into a message. */
static int cut(struct clb_str s)
{
    return s.n < 40 ? (int)s.n : 40;
}

bool clb_map_gives(const struct clb_map *m, size_t field)
{
    bool per_layer;
    size_t at;

    for (uint32_t i = 0; i < m->n_entry; i++)
        if (m->entry[i].field && clb_arch_field(clb_str(m->entry[i].field), &at, &per_layer) &&
            at == field)
            return true;
    return false;
}

bool clb_map_lacks(const struct clb_map *m, const char *key, struct clb_err *err)
{
    clb_fail(err, CLB_BAD_INPUT,
             "%s: config.json has no '%s', and nothing here gives what it would mean", m->file,
             key);
    return clb_err_place(err, m->file, key, CLB_NO_OFFSET);
}

static bool key_missing(const struct clb_map *m, const struct clb_map_entry *e,
                        const struct clb_settings *c, struct clb_err *err)
{
    clb_fail(err, CLB_BAD_INPUT, "%s: '%s' is missing; %s makes '%s' of it", c->file, e->key,
             m->file, e->field);
    return clb_err_place(err, c->file, e->key, CLB_NO_OFFSET);
}

/* -- keys of config.json ----------------------------------------------------------------------- */

static struct clb_setting *by_key(const struct clb_settings *c, const char *key)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp(c->setting[i].key, key))
            return &c->setting[i];
    return NULL;
}

/* Makes "a.b" a setting when 'a' is an object that has 'b'. */
static bool open_dots(struct clb_settings *c, const char *key, struct clb_err *err)
{
    char outer[256];

    for (const char *dot = strchr(key, '.'); dot && !by_key(c, key); dot = strchr(dot + 1, '.')) {
        size_t n = (size_t)(dot - key);

        if (n >= sizeof outer)
            return true;
        memcpy(outer, key, n);
        outer[n] = 0;
        const struct clb_setting *e = by_key(c, outer);
        if (e && e->type == CLB_JSON_OBJECT && e->state != CLB_KEY_USED &&
            !clb_settings_flatten(c, (uint32_t)(e - c->setting), err))
            return false;
    }
    return true;
}

static bool same_raw(struct clb_str a, struct clb_str b)
{
    double x = 0, y = 1;
    struct clb_err ignored;
    struct clb_json j;
    bool numbers = true;

    if (clb_str_eq(a, b))
        return true;
    clb_json_open(&j, a.p, a.n, "");
    x = clb_json_f64(&j);
    numbers &= clb_json_close(&j, &ignored);
    clb_json_open(&j, b.p, b.n, "");
    y = clb_json_f64(&j);
    numbers &= clb_json_close(&j, &ignored);
    return numbers && !(x < y) && !(x > y);
}

/* "equals", and keys that mean nothing. */
static bool check_equals(const struct clb_map_entry *e, const struct clb_settings *c,
                         const struct clb_setting *s, struct clb_err *err)
{
    struct clb_str want = e->equals.text;

    if (!want.p || s->type == CLB_JSON_NULL || same_raw(s->raw, want))
        return true;
    return clb_setting_fail(c, s, err, "is %.*s, but the map knows only %.*s", cut(s->raw),
                            s->raw.p, cut(want), want.p);
}

/* A published key under another name: beside the published one, both must say the same. */
static bool rename_key(struct clb_settings *c, struct clb_setting *s, const char *as,
                       struct clb_err *err)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct clb_setting *other = &c->setting[i];

        if (other == s || strcmp(other->as, as) || other->type == CLB_JSON_NULL)
            continue;
        if (!same_raw(other->raw, s->raw))
            return clb_setting_fail(c, other, err, "is %.*s, but '%.60s' is %.*s", cut(other->raw),
                                    other->raw.p, s->key, cut(s->raw), s->raw.p);
        other->state = CLB_KEY_USED;
        other->as = "";
    }
    s->as = as;
    return true;
}

static bool account(const struct clb_map *m, struct clb_settings *c, struct clb_err *err)
{
    for (uint32_t i = 0; i < m->n_entry; i++)
        if (m->entry[i].key && !open_dots(c, m->entry[i].key, err))
            return false;
    for (uint32_t i = 0; i < m->n_entry; i++) {
        const struct clb_map_entry *e = &m->entry[i];
        struct clb_setting *s = e->key ? by_key(c, e->key) : NULL;
        enum clb_map_word w = e->field ? clb_map_word_of(clb_str(e->field)) : CLB_MAP_FIELD;

        bool published = w == CLB_MAP_PUBLISHED || w == CLB_MAP_THETA;

        if (e->key && published && (!s || s->type == CLB_JSON_NULL) && !e->absent.text.p)
            return key_missing(m, e, c, err);
        if (!s)
            continue;
        if (!check_equals(e, c, s, err))
            return false;
        s->state = e->field || e->equals.text.p ? CLB_KEY_USED : CLB_KEY_IRRELEVANT;
        s->as = "";
        if (published && !rename_key(c, s, e->field, err))
            return false;
    }
    return true;
}

/* -- values ------------------------------------------------------------------------------------ */

/* What "values" makes of one value: the text of a string, or a value as it is written. */
static bool look_up(const struct clb_map_entry *e, struct clb_str raw, struct clb_text *out)
{
    struct clb_text text = { 0 };
    struct clb_str key, value;
    struct clb_err ignored;
    struct clb_json j;
    bool found = false;

    clb_json_open(&j, raw.p, raw.n, "");
    if (clb_json_peek(&j) == CLB_JSON_STRING) {
        key = clb_json_string(&j);
        clb_text_add(&text, key.p, key.n);
        raw = (struct clb_str){ text.p, text.n };
    }
    clb_json_abandon(&j);
    clb_json_open(&j, e->values.text.p, e->values.text.n, "");
    clb_json_object(&j);
    while (!found && clb_json_key(&j, &key)) {
        found = clb_str_eq(key, raw);
        if (clb_json_skip(&j, &value) && found)
            clb_text_add(out, value.p, value.n);
    }
    if (found)
        clb_json_abandon(&j);
    else
        clb_json_close(&j, &ignored);
    clb_text_free(&text);
    return found;
}

/* A list of one value for all, as in "num_experts": [8]. */
static bool only_value(struct clb_json *j, struct clb_str *value)
{
    struct clb_str item;
    bool same = true;
    uint32_t n = 0;

    clb_json_array(j);
    while (clb_json_item(j)) {
        clb_json_skip(j, &item);
        same &= n == 0 || clb_str_eq(item, *value);
        *value = n++ ? *value : item;
    }
    return clb_json_ok(j) && n > 0 && same;
}

static bool translate_list(const struct clb_map_entry *e, struct clb_str raw, struct clb_text *out,
                           struct clb_str *unknown)
{
    struct clb_str item;
    struct clb_json j;
    bool ok = true;
    uint32_t n = 0;

    clb_text_puts(out, "[");
    clb_json_open(&j, raw.p, raw.n, "");
    clb_json_array(&j);
    while (ok && clb_json_item(&j)) {
        clb_json_skip(&j, &item);
        clb_text_puts(out, n++ ? "," : "");
        ok = look_up(e, item, out);
        *unknown = item;
    }
    clb_json_abandon(&j);
    clb_text_puts(out, "]");
    return ok;
}

/* The value of a key as the field wants it. */
static bool translate(const struct clb_map_entry *e, const struct clb_settings *c,
                      const struct clb_setting *s, bool list_wanted, struct clb_text *out,
                      struct clb_err *err)
{
    struct clb_str raw = s->raw, unknown = raw;
    struct clb_json j;

    if (s->type == CLB_JSON_ARRAY && !list_wanted) {
        clb_json_open(&j, raw.p, raw.n, "");
        bool one = only_value(&j, &raw);

        clb_json_abandon(&j);
        if (!one)
            return clb_setting_fail(c, s, err, "one value is expected for '%s', found %.*s",
                                    e->field, cut(s->raw), s->raw.p);
    }
    if (!e->values.text.p) {
        clb_text_add(out, raw.p, raw.n);
        return true;
    }
    bool known = *raw.p == '[' ? translate_list(e, raw, out, &unknown)
                               : look_up(e, unknown = raw, out);
    return known || clb_setting_fail(c, s, err, "the map does not say what %.*s means",
                                     cut(unknown), unknown.p);
}

bool clb_map_value(const struct clb_map *m, const struct clb_map_entry *e,
                   const struct clb_settings *c, bool list_wanted, struct clb_text *out,
                   size_t *place, bool *own, struct clb_err *err)
{
    const struct clb_map_raw *raw = e->key ? &e->absent : &e->value;
    const struct clb_setting *s = e->key ? by_key(c, e->key) : NULL;

    clb_text_clear(out);
    *own = !s || s->type == CLB_JSON_NULL;
    if (!*own) {
        *place = s->at;
        if (!translate(e, c, s, list_wanted, out, err))
            return false;
    } else if (raw->text.p) {
        *place = raw->at;
        if (!clb_str_is(raw->text, "null"))
            clb_text_add(out, raw->text.p, raw->text.n);
    } else {
        return key_missing(m, e, c, err);
    }
    return !out->failed || clb_fail_nomem(err, out->n);
}

/* -- fields ------------------------------------------------------------------------------------ */

/* Reads {"n_layer":N,"field":value}, whose last value stands at `place` of `file`. */
static bool read_alone(const char *field, const struct clb_text *value, uint32_t n_layer,
                       const char *file, size_t place, struct clb_arch *a, struct clb_err *err)
{
    struct clb_text t = { 0 };
    struct clb_json j;
    bool ok;

    clb_text_puts(&t, "{");
    if (n_layer)
        clb_text_printf(&t, "\"n_layer\":%u,", n_layer);
    clb_text_printf(&t, "\"%s\":", field);
    place -= t.n;
    clb_text_add(&t, value->p, value->n);
    clb_text_puts(&t, "}");
    if (t.failed) {
        clb_text_free(&t);
        return clb_fail_nomem(err, 0);
    }
    clb_json_open(&j, t.p, t.n, file);
    j.base = place;
    clb_arch_read(a, &j);
    ok = clb_json_close(&j, err);
    clb_text_free(&t);
    return ok;
}

struct filler {
    const struct clb_map *m;
    struct clb_settings *config;
    uint32_t n_layer;
    struct clb_text value, all; /* owned: of one field; the fields read so far, as an object */
    struct clb_arch scratch;
};

static bool fill(struct filler *x, const struct clb_map_entry *e, struct clb_err *err)
{
    const char *file = x->m->file;
    bool per_layer = false, own;
    size_t at, place;

    clb_arch_field(clb_str(e->field), &at, &per_layer);
    if (!clb_map_value(x->m, e, x->config, per_layer, &x->value, &place, &own, err))
        return false;
    if (!x->value.n)
        return true;
    if (!read_alone(e->field, &x->value, x->n_layer, own ? file : x->config->file, place,
                    &x->scratch, err)) {
        if (!own)
            clb_fail_in(err, "%s: '%s'", file, e->key);
        return false;
    }
    clb_text_printf(&x->all, ",\"%s\":", e->field);
    clb_text_add(&x->all, x->value.p, x->value.n);
    return true;
}

/* How many layers there are decides how long lists must be, so it is read first. */
static bool fill_layers(struct filler *x, struct clb_err *err)
{
    for (uint32_t i = 0; i < x->m->n_entry; i++) {
        const struct clb_map_entry *e = &x->m->entry[i];

        if (!e->field || strcmp(e->field, "n_layer"))
            continue;
        if (!fill(x, e, err))
            return false;
        x->n_layer = x->scratch.n_layer;
        clb_text_clear(&x->all);
    }
    if (!x->n_layer && !clb_setting_u32(x->config, "num_hidden_layers", 1, CLB_MAX_LAYERS,
                                        &x->n_layer, err))
        return false;
    if (x->n_layer > 0 && x->n_layer <= CLB_MAX_LAYERS)
        return true;
    return clb_map_lacks(x->m, "num_hidden_layers", err);
}

static bool fill_all(struct filler *x, struct clb_arch *a, struct clb_err *err)
{
    struct clb_json j;

    if (!fill_layers(x, err))
        return false;
    clb_text_printf(&x->all, "{\"n_layer\":%u", x->n_layer);
    for (uint32_t i = 0; i < x->m->n_entry; i++) {
        const struct clb_map_entry *e = &x->m->entry[i];

        if (e->field && strcmp(e->field, "n_layer") &&
            clb_map_word_of(clb_str(e->field)) == CLB_MAP_FIELD && !fill(x, e, err))
            return false;
    }
    clb_text_puts(&x->all, "}");
    if (x->all.failed)
        return clb_fail_nomem(err, x->all.n);
    clb_json_open(&j, x->all.p, x->all.n, x->m->file);
    clb_arch_read(a, &j);
    return clb_json_close(&j, err);
}

bool clb_map_fields(const struct clb_map *m, struct clb_settings *config, struct clb_arch *a,
                    struct clb_err *err)
{
    struct filler *x = NULL;
    bool ok = false;

    if (!account(m, config, err) || !(x = clb_new(1, sizeof *x, err)))
        return false;
    x->m = m;
    x->config = config;
    ok = fill_all(x, a, err);
    clb_text_free(&x->value);
    clb_text_free(&x->all);
    clb_free(x);
    return ok;
}
