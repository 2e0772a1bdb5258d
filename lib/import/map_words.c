/* map_words.c - what a map says about layers and shared experts, when sizes are known; and what it
 * must say. */
#include "lib/import/map_impl.h"

/* The value of a word: whole numbers, a list or one, and where it stands. */
struct word {
    enum clb_map_word is;
    const char *file;
    size_t at;
    bool given; /* not null */
    uint32_t list[CLB_MAX_LAYERS], n;
};

static bool read_word(const struct clb_map *m, const struct clb_map_entry *e,
                      const struct clb_settings *c, struct word *w, struct clb_err *err)
{
    struct clb_text t = { 0 };
    struct clb_json j;
    bool own, ok = clb_map_value(m, e, c, true, &t, &w->at, &own, err);

    w->is = clb_map_word_of(clb_str(e->field));
    w->file = own ? m->file : c->file;
    w->n = 0;
    w->given = t.n > 0;
    if (ok && w->given) {
        clb_json_open(&j, t.p, t.n, w->file);
        j.base = w->at;
        if (clb_json_peek(&j) == CLB_JSON_ARRAY) {
            clb_json_array(&j);
            while (clb_json_item(&j) && (w->n < CLB_MAX_LAYERS || clb_json_fail(&j, "too many")))
                w->list[w->n++] = (uint32_t)clb_json_u64(&j, 1 << 20);
        } else {
            w->list[w->n++] = (uint32_t)clb_json_u64(&j, 1 << 20);
        }
        ok = clb_json_close(&j, err) || clb_fail_in(err, "'%s'", e->key ? e->key : e->field);
    }
    clb_text_free(&t);
    return ok;
}

static bool bad_word(const struct word *w, const struct clb_map_entry *e, struct clb_err *err,
                     const char *why)
{
    const char *field = e->key ? e->key : e->field;

    clb_fail(err, CLB_BAD_INPUT, "%s: byte %zu: '%s', which is '%s': %s", w->file, w->at, field,
             e->field, why);
    return clb_err_place(err, w->file, field, w->at);
}

static bool check_word(const struct word *w, const struct clb_map_entry *e,
                       const struct clb_arch *a, struct clb_err *err)
{
    bool layers = w->is == CLB_MAP_MOE_LAYERS || w->is == CLB_MAP_DENSE_LAYERS;

    if (!layers && w->n != 1)
        return bad_word(w, e, err, "one number is expected, not a list");
    for (uint32_t i = 0; layers && i < w->n; i++)
        if (w->list[i] >= a->n_layer)
            return bad_word(w, e, err, "lists a layer that the model does not have");
    if (w->is == CLB_MAP_MOE_INTERVAL && w->list[0] == 0)
        return bad_word(w, e, err, "0 is no interval");
    if (w->is == CLB_MAP_SHARED_EXPERTS && (uint64_t)w->list[0] * a->expert_size > 1 << 24)
        return bad_word(w, e, err, "the shared experts are too wide");
    return true;
}

/* Whether a layer has experts, by one word. */
static bool has_experts(const struct word *w, uint32_t layer)
{
    bool listed = false;

    for (uint32_t i = 0; i < w->n; i++)
        listed |= w->list[i] == layer;
    return w->is == CLB_MAP_MOE_LAYERS     ? listed
           : w->is == CLB_MAP_DENSE_LAYERS ? !listed
           : w->is == CLB_MAP_FIRST_DENSE  ? layer >= w->list[0]
                                           : (layer + 1) % w->list[0] == 0;
}

static bool apply_word(const struct clb_map *m, const struct clb_map_entry *e,
                       const struct clb_settings *c, struct clb_arch *a, struct clb_err *err)
{
    struct word w;

    if (!read_word(m, e, c, &w, err) || (w.given && !check_word(&w, e, a, err)))
        return false;
    if (!w.given)
        return true;
    if (w.is == CLB_MAP_SHARED_EXPERTS)
        a->shared_size = w.list[0] * a->expert_size;
    for (uint32_t l = 0; l < a->n_layer && w.is != CLB_MAP_SHARED_EXPERTS; l++)
        if (!has_experts(&w, l))
            a->layer_experts[l] = 0;
    return true;
}

/* Fields whose neutral value is a choice: a map says what it is, so that nothing is assumed. */
static bool check_said(const struct clb_map *m, const struct clb_arch *a, struct clb_err *err)
{
    const struct {
        size_t field;
        const char *name;
        bool needed;
    } said[] = {
        { CLB_KEY_AT(expert_size), "expert_size", true },
        { CLB_KEY_AT(top_k), "top_k", a->top_k == 0 },
        { CLB_KEY_AT(rope), "rope", true },
        { CLB_KEY_AT(router), "router", true },
        { CLB_KEY_AT(topk_normalise), "topk_normalise",
          a->router == CLB_ROUTER_SOFTMAX_TOPK || a->router == CLB_ROUTER_SIGMOID },
    };

    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (said[i].needed && !clb_map_gives(m, said[i].field)) {
            clb_fail(err, CLB_BAD_INPUT, "%s: nothing gives '%s', which has no default", m->file,
                     said[i].name);
            return clb_err_place(err, m->file, said[i].name, CLB_NO_OFFSET);
        }
    return true;
}

/* Two ways to say one thing. */
static bool check_words(const struct clb_map *m, const struct clb_map_entry *e, const char **by,
                        struct clb_err *err)
{
    enum clb_map_word w = clb_map_word_of(clb_str(e->field));
    int what = w == CLB_MAP_SHARED_EXPERTS;

    if (!by[what]) {
        by[what] = e->field;
        return true;
    }
    clb_fail(err, CLB_BAD_INPUT, "%s: '%s' and '%s' are both given, and say the same thing",
             m->file, by[what], e->field);
    return clb_err_place(err, m->file, e->field, CLB_NO_OFFSET);
}

bool clb_map_derive(const struct clb_map *m, struct clb_settings *config, struct clb_arch *a,
                    struct clb_err *err)
{
    const char *by[2] = { clb_map_gives(m, CLB_KEY_AT(layer_experts)) ? "layer_experts" : NULL,
                          clb_map_gives(m, CLB_KEY_AT(shared_size)) ? "shared_size" : NULL };

    if (!check_said(m, a, err))
        return false;
    for (uint32_t i = 0; i < m->n_entry; i++) {
        const struct clb_map_entry *e = &m->entry[i];

        if (e->field && clb_map_word_of(clb_str(e->field)) >= CLB_MAP_MOE_LAYERS &&
            (!check_words(m, e, by, err) || !apply_word(m, e, config, a, err)))
            return false;
    }
    clb_family_dense_size(a);
    return clb_arch_runnable(a, err) || clb_fail_in(err, "%s", m->file);
}
