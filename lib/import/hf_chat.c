/* hf_chat.c - what a publisher gives for conversations: the templates, and the texts of the special
 * tokens that they mention. */
#include "lib/base/json.h"
#include "lib/chat/template.h"
#include "lib/import/convert_impl.h"

/* Keeps the template if it is one of the two that are chosen by themselves. */
static void keep(struct clb_conversion *c, struct clb_str name, const struct clb_text *text)
{
    if (clb_str_is(name, "default"))
        clb_text_add(&c->chat_template, text->p, text->n);
    else if (clb_str_is(name, "tool_use"))
        clb_text_add(&c->chat_tool_use, text->p, text->n);
    else
        clb_note(&c->notes, "chat template '%.*s' is left out: 'default' and 'tool_use' are kept",
                 name.n > 60 ? 60 : (int)name.n, name.p);
}

/* One entry {"name": ..., "template": ...} of a list. */
static void read_named(struct clb_conversion *c, struct clb_json *j)
{
    struct clb_text text = { 0 }, name = { 0 };
    struct clb_str key, value;

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        struct clb_text *to = clb_str_is(key, "name")       ? &name
                              : clb_str_is(key, "template") ? &text
                                                            : NULL;
        if (!to) {
            clb_json_skip(j, NULL);
            continue;
        }
        value = clb_json_string(j);
        clb_text_add(to, value.p, value.n);
    }
    if (clb_json_ok(j))
        keep(c, (struct clb_str){ name.n ? name.p : "", name.n }, &text);
    c->chat_template.failed |= text.failed || name.failed;
    clb_text_free(&text);
    clb_text_free(&name);
}

/* The key chat_template: a text, or a list of named ones. */
static void read_templates(struct clb_conversion *c, struct clb_json *j, bool wanted)
{
    struct clb_str text;

    if (!wanted || clb_json_peek(j) == CLB_JSON_NULL) {
        clb_json_skip(j, NULL);
    } else if (clb_json_peek(j) != CLB_JSON_ARRAY) {
        text = clb_json_string(j);
        clb_text_add(&c->chat_template, text.p, text.n);
    } else {
        clb_json_array(j);
        while (clb_json_item(j))
            read_named(c, j);
        if (clb_json_ok(j) && !c->chat_template.n)
            clb_note(&c->notes, "none of the chat templates is called 'default'");
    }
}

static void read_token(struct clb_text *vars, const char *name, struct clb_json *j)
{
    struct clb_text text = { 0 };

    if (clb_read_token_text(j, &text)) {
        clb_text_printf(vars, "%s\"%s\":", vars->n ? "," : "{", name);
        clb_text_json(vars, text.n ? text.p : "", text.n);
    }
    vars->failed |= text.failed;
    clb_text_free(&text);
}

static bool read_config(struct clb_conversion *c, const struct clb_ckpt_file *m, bool wanted,
                        struct clb_err *err)
{
    static const char *const token[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };
    struct clb_json j;
    struct clb_str key;

    clb_json_open(&j, (const char *)m->data, m->size, m->path);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        size_t i = 0;
        while (i < sizeof token / sizeof *token && !clb_str_is(key, token[i]))
            i++;
        if (clb_str_is(key, "chat_template"))
            read_templates(c, &j, wanted);
        else if (i < sizeof token / sizeof *token)
            read_token(&c->chat_variables, token[i], &j);
        else
            clb_json_skip(&j, NULL);
    }
    if (c->chat_variables.n)
        clb_text_puts(&c->chat_variables, "}");
    return clb_json_close(&j, err);
}

/* A template that this version cannot render is kept all the same, and said. */
static void try_template(struct clb_conversion *c, const struct clb_text *text, const char *name)
{
    struct clb_template *t = NULL;
    struct clb_err err;

    if (text->n && !clb_template_parse(&t, (struct clb_str){ text->p, text->n }, name, &err))
        clb_note(&c->notes, "conversations will be refused: %s", err.text);
    clb_template_free(t);
}

bool clb_read_chat(struct clb_conversion *c, struct clb_err *err)
{
    const struct clb_ckpt_file *own = &c->ckpt.text[CLB_CKPT_CHAT_TEMPLATE];
    const struct clb_ckpt_file *config = &c->ckpt.text[CLB_CKPT_TOKENIZER_CONFIG];
    bool has_own = own->path && own->size;

    if (has_own)
        clb_text_add(&c->chat_template, own->data, own->size);
    if (config->path && !read_config(c, config, !has_own, err))
        return false;
    if (!c->chat_template.n)
        clb_text_clear(&c->chat_variables);
    if (c->chat_template.failed || c->chat_tool_use.failed || c->chat_variables.failed)
        return clb_fail_nomem(err, c->chat_template.n);
    try_template(c, &c->chat_template, "chat template");
    try_template(c, &c->chat_tool_use, "chat template 'tool_use'");
    return true;
}
