/* publish.c - defaults for generation, as the publisher ships them. */
#include <math.h>

#include "lib/base/json.h"
#include "lib/import/convert_impl.h"
#include "lib/token/tokenizer.h"

enum { MANY_EOS = sizeof((struct clb_generation *)0)->eos_token / sizeof(int32_t) };

/* Adds an end token that is not in the list yet. */
static bool add_end(struct clb_generation *g, uint32_t id, struct clb_err *err)
{
    for (uint32_t i = 0; i < g->n_eos; i++)
        if ((uint32_t)g->eos_token[i] == id)
            return true;
    if (g->n_eos == MANY_EOS)
        return clb_fail(err, CLB_BAD_INPUT, "more than %d different end tokens", MANY_EOS);
    g->eos_token[g->n_eos++] = (int32_t)id;
    return true;
}

/* bos_token_id and eos_token_id; what the object does not have stays. */
static bool read_ends(struct clb_generation *g, struct clb_settings *s, uint32_t vocab_size,
                      struct clb_err *err)
{
    uint32_t bos = UINT32_MAX, eos[MANY_EOS], n = UINT32_MAX;

    if (!clb_setting_u32(s, "bos_token_id", 0, vocab_size - 1, &bos, err) ||
        !clb_setting_list(s, "eos_token_id", vocab_size - 1, eos, MANY_EOS, &n, err))
        return false;
    if (bos != UINT32_MAX)
        g->bos_token = (int32_t)bos;
    for (uint32_t i = 0; n != UINT32_MAX && i < n; i++)
        if (!add_end(g, eos[i], err))
            return clb_fail_in(err, "%s: eos_token_id", s->file);
    return true;
}

static bool read_real(struct clb_settings *s, const char *key, double lo, double hi, float *out,
                      struct clb_err *err)
{
    double v = NAN;

    if (!clb_setting_f64(s, key, lo, hi, &v, err))
        return false;
    *out = (float)v;
    return true;
}

bool clb_read_generation(struct clb_generation *g, const struct clb_checkpoint *c,
                         struct clb_settings *config, uint32_t vocab_size, struct clb_err *err)
{
    const struct clb_ckpt_file *m = &c->text[CLB_CKPT_GENERATION];
    struct clb_settings s = { 0 };
    uint32_t top_k = UINT32_MAX;
    bool ok = false;

    *g = (struct clb_generation){ .bos_token = -1,
                                  .temperature = NAN,
                                  .top_p = NAN,
                                  .min_p = NAN,
                                  .repetition_penalty = NAN,
                                  .top_k = -1 };
    if (!read_ends(g, config, vocab_size, err))
        return false;
    if (!m->path)
        return true;
    if (!clb_settings_read(&s, (const char *)m->data, m->size, m->path, err) ||
        !read_ends(g, &s, vocab_size, err) ||
        !read_real(&s, "temperature", 0, 1000, &g->temperature, err) ||
        !read_real(&s, "top_p", 0, 1, &g->top_p, err) ||
        !read_real(&s, "min_p", 0, 1, &g->min_p, err) ||
        !read_real(&s, "repetition_penalty", 1e-3, 1000, &g->repetition_penalty, err) ||
        !clb_setting_u32(&s, "top_k", 0, INT32_MAX, &top_k, err))
        goto done;
    if (top_k != UINT32_MAX)
        g->top_k = (int32_t)top_k;
    ok = true;
done:
    clb_settings_free(&s);
    return ok;
}

bool clb_read_token_text(struct clb_json *j, struct clb_text *text)
{
    struct clb_str key, s;
    bool found = false;

    if (clb_json_peek(j) == CLB_JSON_NULL) {
        clb_json_null(j);
        return false;
    }
    if (clb_json_peek(j) != CLB_JSON_OBJECT) {
        s = clb_json_string(j);
        clb_text_add(text, s.p, s.n);
        return true;
    }
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        if (!clb_str_is(key, "content")) {
            clb_json_skip(j, NULL);
            continue;
        }
        s = clb_json_string(j);
        clb_text_add(text, s.p, s.n);
        found = true;
    }
    return found;
}

static bool end_token_name(struct clb_text *name, const struct clb_ckpt_file *m,
                           struct clb_err *err)
{
    struct clb_json j;
    struct clb_str key;

    clb_json_open(&j, (const char *)m->data, m->size, m->path);
    clb_json_object(&j);
    while (clb_json_key(&j, &key))
        if (clb_str_is(key, "eos_token"))
            clb_read_token_text(&j, name);
        else
            clb_json_skip(&j, NULL);
    return clb_json_close(&j, err) && (!name->failed || clb_fail_nomem(err, name->n));
}

/* Many models have a vocabulary that is rounded up: that is said, not refused. */
static void note_size(struct clb_conversion *c, const struct clb_tokenizer *t)
{
    uint32_t n = clb_tokenizer_size(t);

    if (n < c->arch.vocab_size)
        clb_note(&c->notes,
                 "the tokenizer has %u tokens, the model %u: ids from %u on have no "
                 "text",
                 n, c->arch.vocab_size, n);
}

bool clb_add_tokenizer_end(struct clb_conversion *c, struct clb_err *err)
{
    const struct clb_ckpt_file *m = &c->ckpt.text[CLB_CKPT_TOKENIZER_CONFIG];
    struct clb_tokenizer *t = NULL;
    struct clb_text name = { 0 };
    bool ok = clb_tokenizer_open(&t, c->tables.p, c->tables.n, err);

    if (!ok)
        goto done;
    note_size(c, t);
    ok = !m->path || end_token_name(&name, m, err);
    if (!ok || !name.n)
        goto done;
    int32_t id = clb_token_find(t, (struct clb_str){ name.p, name.n });
    if (id < 0) {
        ok = clb_fail(err, CLB_BAD_INPUT, "%s: eos_token is '%s', which is no token of %s", m->path,
                      name.p, clb_tokenizer_file(c)->path);
        clb_err_place(err, m->path, "eos_token", CLB_NO_OFFSET);
    } else {
        uint32_t before = c->generation.n_eos;
        ok = add_end(&c->generation, (uint32_t)id, err) ||
             clb_fail_in(err, "%s: eos_token", m->path);
        c->generation.n_text_eos = c->generation.n_eos - before;
    }
done:
    clb_tokenizer_close(t);
    clb_text_free(&name);
    return ok;
}
