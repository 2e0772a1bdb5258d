#include "cmd/colibri-inspect/chat.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/base/json.h"
#include "lib/base/mapfile.h"
#include "lib/base/mem.h"
#include "lib/chat/template.h"
#include "lib/format/reader.h"

enum { MOST_TEMPLATE = 1 << 20 };

/* A template, and the variables that come with it. */
struct source {
    struct clb_template *t;
    struct clb_text vars;
};

static bool open_model(struct source *s, const char *path, struct clb_err *err)
{
    struct clb_reader r;

    if (!clb_reader_open(&r, path, err))
        return false;
    const struct clb_section *text = clb_reader_section(&r, "chat_template");
    const struct clb_section *vars = clb_reader_section(&r, "chat_variables");
    bool ok = text || clb_fail(err, CLB_BAD_INPUT, "%s: has no chat template", path);
    if (ok && vars)
        clb_text_add(&s->vars, r.data + vars->offset, vars->size);
    ok = ok && clb_template_parse(
                   &s->t, (struct clb_str){ (const char *)r.data + text->offset, text->size },
                   "chat template", err);
    clb_reader_close(&r);
    return ok;
}

static bool open_file(struct source *s, const char *path, struct clb_err *err)
{
    struct clb_mapfile m;
    char *text = NULL;

    if (!clb_mapfile_open(&m, path, err))
        return false;
    bool ok = m.size <= MOST_TEMPLATE ||
              clb_fail(err, CLB_UNSUPPORTED, "%s: is longer than %d bytes", path, MOST_TEMPLATE);
    ok = ok && (text = clb_new(m.size + 1, 1, err)) && clb_mapfile_read(&m, text, 0, m.size, err) &&
         clb_template_parse(&s->t, (struct clb_str){ text, m.size }, path, err);
    clb_free(text);
    clb_mapfile_close(&m);
    return ok;
}

static bool source_open(struct source *s, const char *path, struct clb_err *err)
{
    char magic[8] = { 0 };
    FILE *f = fopen(path, "rb");

    if (!f)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s", path);
    size_t n = fread(magic, 1, sizeof magic, f);
    fclose(f);
    return (n == 8 && !memcmp(magic, "COLIBRI", 8) ? open_model : open_file)(s, path, err);
}

/* The line is JSON at all: what the conversation does wrong in it is an answer, this is not. */
static bool check_line(const char *line, size_t n, struct clb_err *err)
{
    struct clb_json j;

    clb_json_open(&j, line, n, "standard input");
    if (clb_json_peek(&j) != CLB_JSON_OBJECT)
        clb_json_fail(&j, "an object was expected");
    clb_json_skip(&j, NULL);
    return clb_json_close(&j, err);
}

static bool answer(const struct source *s, const char *line, size_t n, struct clb_text *out,
                   struct clb_err *err)
{
    const struct clb_render_request q = { .json = { line, n },
                                          .json_name = "standard input",
                                          .vars = { s->vars.p, s->vars.n },
                                          .lenient = true };
    struct clb_rendered r;

    if (!check_line(line, n, err))
        return false;
    bool ok = clb_template_render(s->t, &q, &r, err);
    clb_text_puts(out, ok ? "{\"text\":" : "{\"error\":");
    if (ok)
        inspect_json(out, (struct clb_str){ r.text.p, r.text.n });
    else if (r.raised.n)
        inspect_json(out, (struct clb_str){ r.raised.p, r.raised.n });
    else
        inspect_json(out, clb_str(err->text));
    clb_text_puts(out, "}\n");
    clb_rendered_free(&r);
    return !out->failed || clb_fail_nomem(err, out->n);
}

bool inspect_render_chat(const char *path, FILE *in, struct clb_err *err)
{
    struct source s = { NULL };
    struct clb_text out = { 0 };
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool ok = source_open(&s, path, err);

    for (unsigned long at = 1; ok && (n = getline(&line, &room, in)) > 0; at++) {
        if (strspn(line, " \t\r\n") >= (size_t)n)
            continue;
        clb_text_clear(&out);
        ok = answer(&s, line, (size_t)n, &out, err);
        if (!ok)
            clb_fail_in(err, "line %lu", at);
        else if (fwrite(out.p, 1, out.n, stdout) != out.n || fflush(stdout) != 0)
            ok = clb_fail_sys(err, CLB_FAILED, "standard output");
    }
    if (ok && !feof(in)) /* getline also ends when there is no memory */
        ok = clb_fail_sys(err, CLB_BAD_INPUT, "<stdin>: cannot be read");
    free(line);
    clb_text_free(&out);
    clb_text_free(&s.vars);
    clb_template_free(s.t);
    return ok;
}
