/* Conversations. Templates are parsed when the first conversation comes, not when a model is
 * loaded; a program that has none does not even link the template language. */
#include "lib/api/api.h"

#include <stdatomic.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/json.h"
#include "lib/base/mem.h"
#include "lib/chat/template.h"

static void chat_free(struct clb_chat *c)
{
    if (!c)
        return;
    clb_template_free(c->usual);
    clb_template_free(c->with_tools);
    clb_text_free(&c->vars);
    clb_free(c);
}

/* A section of text, checked; n 0: the file has none. */
static bool section(const struct clb_reader *r, const char *name, struct clb_str *text,
                    struct clb_err *err)
{
    const struct clb_section *s = clb_reader_section(r, name);

    *text = (struct clb_str){ "", 0 };
    if (!s)
        return true;
    if (clb_crc32(0, r->data + s->offset, s->size) != s->crc32) {
        clb_fail(err, CLB_BAD_INPUT, "%s: section '%s': the checksum differs from the header's",
                 r->path, s->name);
        return clb_err_place(err, r->path, s->name, s->offset);
    }
    *text = (struct clb_str){ (const char *)r->data + s->offset, s->size };
    return true;
}

static bool parse(struct clb_template **out, const struct clb_reader *r, const char *name,
                  struct clb_err *err)
{
    struct clb_str text;

    return section(r, name, &text, err) &&
           (text.n == 0 || clb_template_parse(out, text, name, err) ||
            clb_fail_in(err, "%s", r->path));
}

/* Files of before the section: bos_token and eos_token from the vocabulary. */
static void known_tokens(struct clb_text *vars, const struct colibri_model *model)
{
    const struct clb_generation *g = &model->m->reader.generation;
    const int32_t id[] = { g->bos_token, g->n_eos ? g->eos_token[0] : -1 };

    clb_text_puts(vars, "{");
    for (int i = 0; i < 2; i++) {
        if (id[i] < 0 || (uint32_t)id[i] >= clb_tokenizer_size(model->tokenizer))
            continue;
        struct clb_str s = clb_token_bytes(model->tokenizer, id[i]);
        clb_text_printf(vars, "%s\"%s\":", vars->n > 1 ? "," : "", i ? "eos_token" : "bos_token");
        clb_text_json(vars, s.p, s.n);
    }
    clb_text_puts(vars, "}");
}

static bool chat_open(struct clb_chat **out, const struct colibri_model *model, struct clb_err *err)
{
    const struct clb_reader *r = &model->m->reader;
    struct clb_chat *c = clb_new(1, sizeof *c, err);
    struct clb_str vars;

    if (!c)
        return false;
    c->free = chat_free;
    bool ok = parse(&c->usual, r, "chat_template", err) &&
              parse(&c->with_tools, r, "chat_template.tool_use", err) &&
              section(r, "chat_variables", &vars, err);
    if (ok && !c->usual) {
        clb_fail(err, CLB_USAGE, "%s: the model has no chat template; it only continues text",
                 r->path);
        ok = clb_err_place(err, r->path, "chat_template", CLB_NO_OFFSET);
    }
    if (ok && vars.n)
        clb_text_add(&c->vars, vars.p, vars.n);
    else if (ok)
        known_tokens(&c->vars, model);
    if (ok && c->vars.failed)
        ok = clb_fail_nomem(err, vars.n);
    if (ok)
        *out = c;
    else
        chat_free(c);
    return ok;
}

/* The model's, made by whichever thread comes first. */
static const struct clb_chat *chat_of(const struct colibri_model *model, struct clb_err *err)
{
    /* To the caller the model is constant; of this member he sees nothing. */
    struct colibri_model *own = (struct colibri_model *)model;
    struct clb_chat *c = atomic_load(&own->chat), *mine = NULL;

    if (c || !chat_open(&mine, model, err) || atomic_compare_exchange_strong(&own->chat, &c, mine))
        return c ? c : mine;
    chat_free(mine);
    return c;
}

static bool has_tools(const char *json, size_t n)
{
    struct clb_json j;
    struct clb_str key;
    bool tools = false;

    clb_json_open(&j, json, n, "conversation");
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        tools |= clb_str_is(key, "tools") && clb_json_peek(&j) != CLB_JSON_NULL;
        clb_json_skip(&j, NULL);
    }
    clb_json_abandon(&j);
    return tools;
}

static bool render(const struct colibri_model *model, const char *json, size_t n,
                   struct clb_rendered *out, struct clb_err *err)
{
    const struct clb_chat *c = chat_of(model, err);
    const struct clb_render_request q = {
        .json = { json, n },
        .json_name = "conversation",
        .vars = { c ? c->vars.p : NULL, c ? c->vars.n : 0 },
    };

    *out = (struct clb_rendered){ 0 };
    if (!c)
        return false;
    return clb_template_render(c->with_tools && has_tools(json, n) ? c->with_tools : c->usual, &q,
                               out, err);
}

/* What the caller gave; false: remembered. */
static bool take(const struct colibri_model *model, const char *json, const void *to, size_t room)
{
    struct clb_err err;

    if (!model || !json || (!to && room > 0)) {
        clb_api_null(!model ? "model" : !json ? "json" : "the result");
        return false;
    }
    if (model->tokenizer)
        return true;
    clb_fail(&err, CLB_USAGE, "%s: the model has no tokenizer; use token ids",
             model->m->reader.path);
    clb_api_fail(&err);
    return false;
}

int64_t colibri_chat_render(const struct colibri_model *model, const char *json, size_t n,
                            char *text, size_t room)
{
    struct clb_rendered r;
    struct clb_err err;
    int64_t count = -1;

    if (!take(model, json, text, room))
        return -1;
    if (render(model, json, n, &r, &err)) {
        size_t copied = r.text.n < room ? r.text.n : room;
        if (copied > 0)
            memcpy(text, r.text.p, copied);
        count = (int64_t)r.text.n;
    } else {
        clb_api_fail(&err);
    }
    clb_rendered_free(&r);
    return count;
}

int64_t colibri_chat_encode(const struct colibri_model *model, const char *json, size_t n,
                            int32_t *ids, size_t room)
{
    struct clb_rendered r;
    struct clb_ids all = { 0 };
    struct clb_err err;
    int64_t count = -1;

    if (!take(model, json, ids, room))
        return -1;
    bool ok = render(model, json, n, &r, &err);
    if (ok) {
        const struct clb_encode_options o = {
            .origin = (const uint8_t *)(r.origin.n ? r.origin.p : ""),
        };
        ok = clb_encode(model->tokenizer, r.text.p, r.text.n, &o, &all, &err);
    }
    if (ok) {
        size_t copied = all.n < room ? all.n : room;
        if (copied > 0)
            memcpy(ids, all.id, copied * sizeof *ids);
        count = (int64_t)all.n;
    } else {
        clb_api_fail(&err);
    }
    clb_ids_free(&all);
    clb_rendered_free(&r);
    return count;
}
