#include "lib/import/map_impl.h"

#include <stdio.h>

#include "lib/base/mem.h"

static const struct {
    const char *name;
    enum clb_map_word word;
} words[] = {
    { "rope_theta", CLB_MAP_THETA },
    { "rope_scaling", CLB_MAP_PUBLISHED },
    { "partial_rotary_factor", CLB_MAP_PUBLISHED },
    { "original_max_position_embeddings", CLB_MAP_PUBLISHED },
    { "bos_token_id", CLB_MAP_PUBLISHED },
    { "eos_token_id", CLB_MAP_PUBLISHED },
    { "yarn_scales_attention", CLB_MAP_YARN_SCALES },
    { "moe_layers", CLB_MAP_MOE_LAYERS },
    { "dense_layers", CLB_MAP_DENSE_LAYERS },
    { "first_dense_layers", CLB_MAP_FIRST_DENSE },
    { "moe_interval", CLB_MAP_MOE_INTERVAL },
    { "shared_experts", CLB_MAP_SHARED_EXPERTS },
    { "rope_scale", CLB_MAP_COMPUTED },
    { "rope_long_from", CLB_MAP_COMPUTED },
    { "rope_scale_long", CLB_MAP_COMPUTED },
    { "router_clip", CLB_MAP_COMPUTED },
};

enum clb_map_word clb_map_word_of(struct clb_str name)
{
    size_t at;
    bool per_layer;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (clb_str_is(name, words[i].name))
            return words[i].word;
    return clb_arch_field(name, &at, &per_layer) ? CLB_MAP_FIELD : CLB_MAP_NO_WORD;
}

/* -- entries --------------------------------------------------------------------------------- */

static const struct clb_map_entry *giver(const struct clb_map *m, struct clb_str field)
{
    for (uint32_t i = 0; i < m->n_entry; i++)
        if (m->entry[i].field && clb_str_is(field, m->entry[i].field))
            return &m->entry[i];
    return NULL;
}

/* A word that may be given here, and was not yet. */
static bool check_field(const struct clb_map *m, struct clb_json *j, struct clb_str field,
                        bool fixed)
{
    const struct clb_map_entry *other = giver(m, field);
    enum clb_map_word w = clb_map_word_of(field);
    int n = field.n > 60 ? 60 : (int)field.n;

    if (!clb_json_ok(j))
        return false;
    if (w == CLB_MAP_NO_WORD)
        return clb_json_fail(j, "'%.*s' is no field of the descriptor", n, field.p);
    if (w == CLB_MAP_COMPUTED)
        return clb_json_fail(j, "'%.*s' is computed by convert and cannot be given", n, field.p);
    if (w == CLB_MAP_PUBLISHED && fixed)
        return clb_json_fail(j, "'%.*s' can only be a key of config.json", n, field.p);
    if (w == CLB_MAP_YARN_SCALES && !fixed)
        return clb_json_fail(j, "'%.*s' can only be fixed", n, field.p);
    if (!other)
        return true;
    if (other->key)
        return clb_json_fail(j, "'%.*s' is given twice: here, and by the key '%.60s'", n, field.p,
                             other->key);
    return clb_json_fail(j, "'%.*s' is given twice: here, and in 'descriptor'", n, field.p);
}

static char *copy(struct clb_str s, struct clb_err *err)
{
    char *out = clb_new(s.n + 1, 1, err);

    if (out && s.n)
        memcpy(out, s.p, s.n);
    return out;
}

/* Takes a copy of e with these names; field.p NULL: it has none. */
static bool add_entry(struct clb_map *m, const struct clb_map_entry *e, const char *key,
                      struct clb_str field, struct clb_json *j, struct clb_err *err)
{
    struct clb_map_entry *to;

    if (m->n_entry == CLB_MAP_MOST)
        return clb_json_fail(j, "more than %d entries", CLB_MAP_MOST);
    if (m->n_entry == m->entry_room) {
        uint32_t room = m->entry_room ? 2 * m->entry_room : 32;
        void *grown = clb_grow(m->entry, room, sizeof *m->entry, err);

        if (!grown)
            return false;
        m->entry = grown;
        m->entry_room = room;
    }
    to = &m->entry[m->n_entry++];
    *to = *e;
    to->key = key ? copy(clb_str(key), err) : NULL;
    to->field = field.p ? copy(field, err) : NULL;
    return (to->key || !key) && (to->field || !field.p);
}

/* -- "config" -------------------------------------------------------------------------------- */

static void take_raw(struct clb_json *j, struct clb_map_raw *out)
{
    clb_json_peek(j);
    out->at = (size_t)j->base + j->value_at;
    clb_json_skip(j, &out->text);
}

/* "field" of an entry: its entries are added, without what stands beside "field". */
static bool read_fields(struct clb_map *m, const char *key, struct clb_json *j, struct clb_err *err)
{
    const struct clb_map_entry plain = { 0 };
    struct clb_str field;

    if (clb_json_peek(j) != CLB_JSON_ARRAY) {
        field = clb_json_string(j);
        return check_field(m, j, field, false) && add_entry(m, &plain, key, field, j, err);
    }
    clb_json_array(j);
    while (clb_json_item(j)) {
        field = clb_json_string(j);
        if (!check_field(m, j, field, false) || !add_entry(m, &plain, key, field, j, err))
            return false;
    }
    return clb_json_ok(j);
}

static bool read_theta(struct clb_map *m, struct clb_json *j)
{
    m->family.default_theta = clb_json_f64(j);
    if (clb_json_ok(j) && !(m->family.default_theta >= 1.5 && m->family.default_theta <= 1e12))
        clb_json_fail(j, "a number from 1.5 to 1e12 is expected");
    return clb_json_ok(j);
}

/* Some keys are read as they are published: only another name can be given. */
static bool check_published(struct clb_map *m, const struct clb_map_entry *e, struct clb_json *j)
{
    enum clb_map_word w = clb_map_word_of(clb_str(e->field));
    struct clb_err ignored;
    struct clb_json value;

    if (w != CLB_MAP_PUBLISHED && w != CLB_MAP_THETA)
        return true;
    if (e->values.text.p)
        return clb_json_fail(j, "'values' cannot translate for '%s'", e->field);
    if (!e->absent.text.p || clb_str_is(e->absent.text, "null"))
        return true;
    if (w == CLB_MAP_PUBLISHED)
        return clb_json_fail(j, "'absent' can only be null for '%s'", e->field);
    clb_json_open(&value, e->absent.text.p, e->absent.text.n, "");
    read_theta(m, &value);
    return clb_json_close(&value, &ignored) ||
           clb_json_fail(j, "'absent' of '%s' is a number from 1.5 to 1e12", e->field);
}

/* What stands beside "field" holds for all of its entries, from `first` on. */
static bool finish_entries(struct clb_map *m, uint32_t first, const struct clb_map_entry *with,
                           const char *key, struct clb_json *j, struct clb_err *err)
{
    if (!with->equals.text.p && first == m->n_entry)
        return clb_json_fail(j, "'field' or 'equals' is expected");
    if (with->equals.text.p &&
        (first < m->n_entry || with->values.text.p || with->absent.text.p))
        return clb_json_fail(j, "'equals' stands alone");
    if (with->equals.text.p)
        return add_entry(m, with, key, (struct clb_str){ NULL, 0 }, j, err);
    for (uint32_t i = first; i < m->n_entry; i++) {
        m->entry[i].values = with->values;
        m->entry[i].absent = with->absent;
        if (!check_published(m, &m->entry[i], j))
            return false;
    }
    return true;
}

static bool read_entry_object(struct clb_map *m, const char *key, struct clb_json *j,
                              struct clb_err *err)
{
    struct clb_map_entry with = { 0 };
    uint32_t first = m->n_entry;
    struct clb_str name;

    clb_json_object(j);
    while (clb_json_key(j, &name)) {
        if (clb_str_is(name, "field")) {
            if (!read_fields(m, key, j, err))
                return false;
        } else if (clb_str_is(name, "values")) {
            if (clb_json_peek(j) != CLB_JSON_OBJECT)
                return clb_json_fail(j, "an object is expected, found %s",
                                     clb_json_type_name(clb_json_peek(j)));
            take_raw(j, &with.values);
        } else if (clb_str_is(name, "absent")) {
            take_raw(j, &with.absent);
        } else if (clb_str_is(name, "equals")) {
            take_raw(j, &with.equals);
        } else {
            return clb_json_fail(j, "not known here; known are field, values, absent, equals");
        }
    }
    return clb_json_ok(j) && finish_entries(m, first, &with, key, j, err);
}

/* What one key means; of a list, each of its items. */
static bool read_meaning(struct clb_map *m, const char *key, bool in_list, struct clb_json *j,
                         struct clb_err *err)
{
    const struct clb_map_entry nothing = { 0 };
    enum clb_json_type type = clb_json_peek(j);

    if (type == CLB_JSON_OBJECT)
        return read_entry_object(m, key, j, err);
    if (type == CLB_JSON_STRING)
        return read_fields(m, key, j, err);
    if (type == CLB_JSON_NULL && !in_list)
        return clb_json_null(j) &&
               add_entry(m, &nothing, key, (struct clb_str){ NULL, 0 }, j, err);
    if (type != CLB_JSON_ARRAY || in_list)
        return clb_json_fail(j, "%s, but names of fields, an object or null are expected",
                             clb_json_type_name(type));
    clb_json_array(j);
    while (clb_json_item(j))
        if (!read_meaning(m, key, true, j, err))
            return false;
    return clb_json_ok(j);
}

static bool read_config(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str name;
    bool ok = true;

    clb_json_object(j);
    while (ok && clb_json_key(j, &name)) {
        char *key = copy(name, err);

        if (!key)
            return false;
        if (!name.n || memchr(name.p, 0, name.n))
            clb_json_fail(j, "a key that is empty or contains a NUL");
        ok = read_meaning(m, key, false, j, err);
        clb_free(key);
    }
    return ok && clb_json_ok(j);
}

/* -- the whole ------------------------------------------------------------------------------- */

static bool read_descriptor(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str field;

    clb_json_object(j);
    while (clb_json_key(j, &field)) {
        enum clb_map_word w = clb_map_word_of(field);
        struct clb_map_entry e = { 0 };

        clb_json_peek(j);
        if (!check_field(m, j, field, true) || !add_entry(m, &e, NULL, field, j, err))
            return false;
        if (w == CLB_MAP_THETA)
            read_theta(m, j);
        else if (w == CLB_MAP_YARN_SCALES)
            m->family.yarn_scales_attention = clb_json_bool(j);
        else
            take_raw(j, &m->entry[m->n_entry - 1].value);
    }
    return clb_json_ok(j);
}

static bool read_name(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str s = clb_json_string(j);

    if (!clb_json_ok(j))
        return false;
    if (!s.n || s.n > 60 || memchr(s.p, 0, s.n))
        return clb_json_fail(j, "a name of 1 to 60 bytes is expected");
    m->name = copy(s, err);
    m->family.model_type = m->name;
    return m->name != NULL;
}

static bool read_all(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str key;
    bool ok = true;

    clb_json_object(j);
    while (ok && clb_json_key(j, &key)) {
        if (clb_str_is(key, "name"))
            ok = read_name(m, j, err);
        else if (clb_str_is(key, "config"))
            ok = read_config(m, j, err);
        else if (clb_str_is(key, "descriptor"))
            ok = read_descriptor(m, j, err);
        else if (clb_str_is(key, "tensors"))
            ok = clb_map_read_tensors(m, j, err);
        else
            ok = clb_json_fail(j, "not known; known are name, config, descriptor and tensors");
    }
    return ok && clb_json_ok(j) && (m->name || clb_json_fail(j, "'name' is missing"));
}

static void start(struct clb_arch *a)
{
    (void)a; /* clb_map_fields does it */
}

static const struct clb_family_key no_keys[] = {
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

bool clb_map_open(struct clb_map **out, const char *text, size_t n, const char *file,
                  struct clb_err *err)
{
    struct clb_map *m = *out = clb_new(1, sizeof *m, err);
    struct clb_json j;

    if (!m)
        return false;
    m->file = file;
    m->family =
        (struct clb_family){ .map = m, .start = start, .keys = no_keys, .mlp = clb_family_mlp };
    clb_json_open(&j, text, n, file);
    if (read_all(m, &j, err) || !clb_json_ok(&j))
        return clb_json_close(&j, err);
    clb_json_abandon(&j); /* no memory: err says so */
    return false;
}

void clb_map_close(struct clb_map *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_entry; i++) {
        clb_free(m->entry[i].key);
        clb_free(m->entry[i].field);
    }
    for (uint32_t i = 0; i < m->n_tensor; i++)
        clb_free((char *)(uintptr_t)m->tensor[i].pattern);
    clb_free(m->entry);
    clb_free(m->tensor);
    clb_free(m->name);
    clb_free(m);
}

const struct clb_family *clb_map_family(const struct clb_map *m)
{
    return &m->family;
}
