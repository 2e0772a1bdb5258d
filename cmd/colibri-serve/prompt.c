#include "cmd/colibri-serve/request.h"

#include <inttypes.h>
#include <stdio.h>

#include "cmd/colibri-serve/field.h"
#include "lib/base/mem.h"

enum { BLOCK = 64 }; /* positions that a KV cache gives out at once */

bool serve_library_refuses(struct serve_refusal *no, const char *field)
{
    const struct colibri_error *e = colibri_last_error_info();

    if (e->code == COLIBRI_BAD_INPUT || e->code == COLIBRI_USAGE || e->code == COLIBRI_UNSUPPORTED)
        return serve_refuse_field(no, field, "%s", e->text);
    return serve_refuse(no, e->code == COLIBRI_NO_SPACE ? 503 : 500, NULL, "%.500s", e->text);
}

static bool no_memory(struct serve_refusal *no)
{
    return serve_refuse(no, 503, "no_memory", "not enough memory for this request");
}

static bool too_long(const struct serve *s, const char *name, uint64_t n, struct serve_refusal *no)
{
    serve_refuse_field(no, name,
                       "has %" PRIu64 " tokens, but the context is %u, of which an "
                       "answer needs at least one",
                       n, s->context);
    no->code = "context_length_exceeded";
    return false;
}

/* -- ids --------------------------------------------------------------------------------------- */

bool serve_read_ids(const struct serve *s, struct json_object *array, const char *name,
                    int32_t **ids, size_t *n, struct serve_refusal *no)
{
    struct clb_err err;

    *n = json_object_array_length(array);
    *ids = clb_new(*n, sizeof **ids, &err);
    if (!*ids)
        return no_memory(no);
    for (size_t i = 0; i < *n; i++) {
        struct json_object *item = json_object_array_get_idx(array, i);
        int64_t id = json_object_is_type(item, json_type_int) ? json_object_get_int64(item) : -1;
        if (id < 0 || id >= s->info.vocab_size)
            return serve_refuse_field(no, name, "item %zu is '%.40s', not a token id from 0 to %u",
                                      i, json_object_to_json_string(item), s->info.vocab_size - 1);
        (*ids)[i] = (int32_t)id;
    }
    return true;
}

/* What token ids say as text. */
static bool decode(const struct serve *s, const struct serve_prompt *p, struct clb_text *text)
{
    struct colibri_decoder *d = NULL;
    const char *piece;
    size_t n;
    bool ok = colibri_decoder_open(&d, s->model, true) == COLIBRI_OK;

    for (size_t i = 0; ok && i < p->n; i++) {
        ok = colibri_decoder_feed(d, p->ids[i], &piece, &n) == COLIBRI_OK;
        if (ok)
            clb_text_add(text, piece, n);
    }
    ok = ok && colibri_decoder_flush(d, &piece, &n) == COLIBRI_OK;
    if (ok)
        clb_text_add(text, piece, n);
    colibri_decoder_close(d);
    return ok && !text->failed;
}

/* -- text -------------------------------------------------------------------------------------- */

/* Encodes with room for the context and one more: what is longer will be refused. */
static bool encode(struct serve_reading *r, struct serve_prompt *p, struct clb_str text, bool chat,
                   struct serve_refusal *no)
{
    const struct serve *s = r->serve;
    const struct serve_params *o = &r->job->p;
    uint32_t flags = (o->parse_special ? COLIBRI_ENCODE_PARSE_SPECIAL : 0) |
                     (o->add_special ? 0 : COLIBRI_ENCODE_NO_BOS);
    bool all = r->job->kind == SERVE_TOKENIZE; /* may be longer than the context */
    size_t room = text.n < s->context || all ? text.n + 64 : (size_t)s->context + 1;
    struct clb_err err;
    int64_t n = -1;

    for (int pass = 0; pass < 2; pass++) {
        clb_free(p->ids);
        p->ids = clb_new(room, sizeof *p->ids, &err);
        if (!p->ids)
            return no_memory(no);
        n = chat ? colibri_chat_encode(s->model, text.p, text.n, p->ids, room)
                 : colibri_encode(s->model, text.p, text.n, flags, p->ids, room);
        if (n < 0)
            return serve_library_refuses(no, r->prompt_name);
        if ((uint64_t)n <= room)
            break;
        if (!all && (uint64_t)n > s->context)
            return too_long(s, r->prompt_name, (uint64_t)n, no);
        room = (size_t)n;
    }
    p->n = (size_t)n;
    return true;
}

static bool add_prompt(struct serve_reading *r, struct json_object *value, const char *name,
                       struct serve_refusal *no)
{
    struct serve_prompt *p = &r->job->prompt[r->job->n_prompt++];
    struct clb_str text;

    if (json_object_is_type(value, json_type_array)) {
        if (!serve_read_ids(r->serve, value, name, &p->ids, &p->n, no))
            return false;
        return !r->job->p.echo || decode(r->serve, p, &p->text) || no_memory(no);
    }
    if (!serve_read_text(value, name, &text, no))
        return false;
    if (r->job->p.echo)
        clb_text_add(&p->text, text.p, text.n);
    return p->text.failed ? no_memory(no) : encode(r, p, text, false, no);
}

/* -- conversations ----------------------------------------------------------------------------- */

/* Texts of the parts of a content, a line each; templates know only strings. */
static bool join_parts(struct json_object *parts, const char *name, struct clb_text *all,
                       struct serve_refusal *no)
{
    for (size_t i = 0; i < json_object_array_length(parts); i++) {
        struct json_object *part = json_object_array_get_idx(parts, i), *type = NULL, *text = NULL;
        if (json_object_is_type(part, json_type_object)) {
            json_object_object_get_ex(part, "type", &type);
            json_object_object_get_ex(part, "text", &text);
        }
        if (!json_object_is_type(type, json_type_string) ||
            strcmp(json_object_get_string(type), "text") ||
            !json_object_is_type(text, json_type_string))
            return serve_refuse_field(no, name,
                                      "part %zu is not a text; this model reads nothing "
                                      "else",
                                      i);
        if (i)
            clb_text_puts(all, "\n");
        clb_text_add(all, json_object_get_string(text), (size_t)json_object_get_string_len(text));
    }
    return !all->failed || no_memory(no);
}

static bool flatten(struct json_object *message, size_t i, struct serve_refusal *no)
{
    struct json_object *content = NULL, *role = NULL;
    struct clb_text all = { 0 };
    char name[48];

    snprintf(name, sizeof name, "messages[%zu]", i);
    if (!json_object_is_type(message, json_type_object))
        return serve_refuse_field(no, name, "is %s; it must be an object", serve_type_of(message));
    snprintf(name, sizeof name, "messages[%zu].role", i);
    json_object_object_get_ex(message, "role", &role);
    if (!json_object_is_type(role, json_type_string))
        return serve_refuse_field(no, name, "is %s; it must be a string", serve_type_of(role));
    snprintf(name, sizeof name, "messages[%zu].content", i);
    json_object_object_get_ex(message, "content", &content);
    if (!content || json_object_is_type(content, json_type_string))
        return true;
    if (!json_object_is_type(content, json_type_array))
        return serve_refuse_field(no, name, "is %s; it must be a string or an array of parts",
                                  serve_type_of(content));
    bool ok = join_parts(content, name, &all, no);
    if (ok)
        json_object_object_add(message, "content",
                               json_object_new_string_len(all.n ? all.p : "", (int)all.n));
    clb_text_free(&all);
    return ok;
}

static void add_json(struct clb_text *t, const char *before, struct json_object *o)
{
    size_t n;
    const char *text = json_object_to_json_string_length(
        o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);

    clb_text_puts(t, before);
    clb_text_add(t, text, n);
}

/* "reasoning_effort" is an argument of the template, unless that is given itself. */
static void add_effort(struct serve_reading *r)
{
    if (!r->effort)
        return;
    if (!r->template_arguments)
        r->template_arguments = r->own_arguments = json_object_new_object();
    if (!json_object_object_get_ex(r->template_arguments, "reasoning_effort", NULL))
        json_object_object_add(r->template_arguments, "reasoning_effort",
                               json_object_get(r->effort));
}

static bool read_messages(struct serve_reading *r, struct serve_refusal *no)
{
    struct clb_text json = { 0 };
    bool ok = r->serve->info.has_chat_template;

    r->prompt_name = "messages";
    if (!ok) {
        serve_refuse_field(no, "messages",
                           "the model has no chat template; it only continues "
                           "text: POST /v1/completions");
        no->code = "no_chat_template";
    }
    for (size_t i = 0; ok && i < json_object_array_length(r->messages); i++)
        ok = flatten(json_object_array_get_idx(r->messages, i), i, no);
    if (ok) {
        add_json(&json, "{\"add_generation_prompt\":true,\"messages\":", r->messages);
        add_effort(r);
        if (r->template_arguments)
            add_json(&json, ",\"chat_template_kwargs\":", r->template_arguments);
        clb_text_puts(&json, "}");
        struct clb_str text = { json.p, json.n };
        ok = json.failed ? no_memory(no)
                         : encode(r, &r->job->prompt[r->job->n_prompt++], text, true, no);
    }
    clb_text_free(&json);
    json_object_put(r->own_arguments);
    r->own_arguments = NULL;
    return ok;
}

/* -- all of them ------------------------------------------------------------------------------- */

/* "prompt": a text, ids, or an array of either. */
static bool read_prompts(struct serve_reading *r, struct serve_refusal *no)
{
    struct json_object *first = json_object_is_type(r->prompt, json_type_array)
                                    ? json_object_array_get_idx(r->prompt, 0)
                                    : NULL;
    bool many =
        json_object_is_type(first, json_type_string) || json_object_is_type(first, json_type_array);
    char name[48];

    bool empty =
        json_object_is_type(r->prompt, json_type_array) && json_object_array_length(r->prompt) == 0;

    if (empty)
        return serve_refuse_field(no, r->prompt_name, "is empty");
    if (!many)
        return add_prompt(r, r->prompt, r->prompt_name, no);
    if (r->job->kind != SERVE_COMPLETION)
        return serve_refuse_field(no, r->prompt_name, "is an array; one prompt at a time");
    for (size_t i = 0; i < json_object_array_length(r->prompt); i++) {
        snprintf(name, sizeof name, "%s[%zu]", r->prompt_name, i);
        struct json_object *item = json_object_array_get_idx(r->prompt, i);
        if (json_object_get_type(item) != json_object_get_type(first))
            return serve_refuse_field(no, name, "is %s, but the first one is %s",
                                      serve_type_of(item), serve_type_of(first));
        if (!add_prompt(r, item, name, no))
            return false;
    }
    return true;
}

bool serve_prompt_read(struct serve_reading *r, struct serve_refusal *no)
{
    size_t n =
        json_object_is_type(r->prompt, json_type_array) ? json_object_array_length(r->prompt) : 1;
    struct json_object *first = n > 0 && json_object_is_type(r->prompt, json_type_array)
                                    ? json_object_array_get_idx(r->prompt, 0)
                                    : NULL;
    struct clb_err err;

    if (r->prompt && r->messages)
        return serve_refuse_field(no, "messages", "does not go with '%s'", r->prompt_name);
    if (!r->prompt && !r->messages)
        return serve_refuse_field(no, r->job->kind == SERVE_CHAT ? "messages" : "prompt",
                                  "is missing");
    if (json_object_is_type(first, json_type_int))
        n = 1;
    if (n * r->job->p.n > SERVE_CHOICES)
        return serve_refuse_field(no, r->job->p.n > 1 ? "n" : r->prompt_name,
                                  "asks for %zu answers; at most %d", n * r->job->p.n,
                                  SERVE_CHOICES);
    r->job->prompt = clb_new(n ? n : 1, sizeof *r->job->prompt, &err);
    if (!r->job->prompt)
        return no_memory(no);
    return r->messages ? read_messages(r, no) : read_prompts(r, no);
}

/* Positions that the answers to all prompts may take, in whole blocks. */
static uint64_t positions(const struct serve_reading *r, uint32_t max_tokens)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < r->job->n_prompt; i++) {
        uint64_t n = r->job->prompt[i].n + (uint64_t)max_tokens;
        n = n < r->serve->context ? n : r->serve->context;
        sum += (n + BLOCK - 1) / BLOCK * BLOCK * r->job->p.n;
    }
    return sum;
}

bool serve_prompt_fits(struct serve_reading *r, struct serve_refusal *no)
{
    struct serve_params *p = &r->job->p;
    uint64_t most = r->serve->kv_tokens;

    for (uint32_t i = 0; i < r->job->n_prompt; i++) {
        char name[48];
        snprintf(name, sizeof name, r->job->n_prompt > 1 ? "%.30s[%u]" : "%.30s", r->prompt_name,
                 i);
        if (r->job->prompt[i].n == 0)
            return serve_refuse_field(no, name, "is empty: there is nothing to continue");
        if (r->job->prompt[i].n >= r->serve->context)
            return too_long(r->serve, name, r->job->prompt[i].n, no);
    }
    /* Who does not say how much gets what there is. */
    while (!r->max_given && p->max_tokens > BLOCK && positions(r, p->max_tokens) > most)
        p->max_tokens -= BLOCK;
    if (positions(r, p->max_tokens) <= most)
        return true;
    serve_refuse_field(no,
                       p->n > 1               ? "n"
                       : r->job->n_prompt > 1 ? r->prompt_name
                                              : "max_tokens",
                       "asks for %" PRIu64 " positions (%u answers with their prompts), but the KV "
                       "cache has %" PRIu64,
                       positions(r, p->max_tokens), r->job->n_prompt * p->n, most);
    no->code = "budget_exceeded";
    return false;
}
