#include "cmd/colibri-inspect/inspect.h"
#include "cmd/colibri-inspect/tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/json.h"
#include "lib/base/mapfile.h"
#include "lib/base/mem.h"
#include "lib/cli/sigbus.h"
#include "lib/format/reader.h"
#include "lib/import/hf_tokenizer.h"
#include "lib/import/spm_tokenizer.h"
#include "lib/import/tiktoken.h"
#include "lib/token/tokenizer.h"

/* -- where the tokenizer comes from ----------------------------------------------------------- */

enum { MOST_JSON = 256 << 20, MOST_LINE = 256 << 20 };

struct source {
    struct clb_reader model;
    struct clb_text tables; /* compiled here */
    struct clb_tokenizer *t;
};

static bool in_source(const void *arg, const void *address, uint64_t *offset, const char **path)
{
    const struct source *s = arg;
    const uint8_t *p = address;

    if (!s->model.data || p < s->model.data || p >= s->model.data + s->model.size)
        return false;
    *offset = (uint64_t)(p - s->model.data);
    *path = s->model.path;
    return true;
}

static void source_close(struct source *s)
{
    clb_sigbus_install(PROGRAM, NULL, NULL);
    clb_tokenizer_close(s->t);
    clb_text_free(&s->tables);
    clb_reader_close(&s->model);
}

/* Read, not mapped: its end may not go away while it is parsed. out->p is owned by the caller. */
static bool read_file(struct clb_str *out, const char *path, struct clb_err *err)
{
    struct clb_mapfile m;
    char *text = NULL;

    if (!clb_mapfile_open(&m, path, err))
        return false;
    bool ok = m.size <= MOST_JSON;
    if (!ok)
        clb_fail(err, CLB_UNSUPPORTED, "%s: is longer than %d bytes", path, MOST_JSON);
    ok = ok && (text = clb_new(m.size, 1, err)) && clb_mapfile_read(&m, text, 0, m.size, err);
    *out = (struct clb_str){ text, m.size };
    clb_mapfile_close(&m);
    if (!ok)
        clb_free(text);
    return ok;
}

static bool open_tables(struct source *s, const char *path, struct clb_err *err)
{
    return clb_tokenizer_open(&s->t, s->tables.p, s->tables.n, err) || clb_fail_in(err, "%s", path);
}

static bool open_json(struct source *s, const char *path, struct clb_err *err)
{
    struct clb_str text;

    if (!read_file(&text, path, err))
        return false;
    bool ok = clb_hf_tokenizer_compile(&s->tables, text.p, text.n, path, UINT32_MAX, err) &&
              open_tables(s, path, err);
    clb_free((char *)(uintptr_t)text.p);
    return ok;
}

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);

    return n >= m && !strcmp(path + n - m, suffix);
}

/* A tokenizer.model or tiktoken.model; config: the tokenizer_config.json beside it, or NULL. */
static bool open_vocabulary(struct source *s, const char *path, const char *config,
                            struct clb_err *err)
{
    struct clb_spm_source from = { .file = path, .config_file = config, .vocab_size = UINT32_MAX };
    bool ok = read_file(&from.model, path, err);

    if (ok && config && !(ok = read_file(&from.config, config, err)))
        clb_free((char *)(uintptr_t)from.model.p);
    if (!ok)
        return false;
    const struct clb_tiktoken_source tik = { from.model, path, from.config, config,
                                             from.vocab_size };
    if (has_suffix(path, "tiktoken.model"))
        ok = clb_tiktoken_compile(&s->tables, &tik, err);
    else
        ok = clb_spm_tokenizer_compile(&s->tables, &from, err);
    ok = ok && open_tables(s, path, err);
    clb_free((char *)(uintptr_t)from.model.p);
    clb_free((char *)(uintptr_t)from.config.p);
    return ok;
}

static bool open_model(struct source *s, const char *path, struct clb_err *err)
{
    if (!clb_reader_open(&s->model, path, err))
        return false;
    clb_sigbus_install(PROGRAM, in_source, s);
    const struct clb_section *tables = clb_reader_section(&s->model, "tokenizer.tables");
    if (!tables)
        return clb_fail(err, CLB_USAGE, "%s: has no tokenizer", path);
    return clb_tokenizer_open(&s->t, s->model.data + tables->offset, tables->size, err) ||
           clb_fail_in(err, "%s", path);
}

/* tokenizer.json is what programs read, so it comes first, as when converting. */
static bool open_folder(struct source *s, const char *path, struct clb_err *err)
{
    struct clb_text json = { 0 }, model = { 0 }, tiktoken = { 0 }, config = { 0 };
    bool ok;

    clb_text_printf(&json, "%s/tokenizer.json", path);
    clb_text_printf(&model, "%s/tokenizer.model", path);
    clb_text_printf(&tiktoken, "%s/tiktoken.model", path);
    clb_text_printf(&config, "%s/tokenizer_config.json", path);
    if (json.failed || model.failed || tiktoken.failed || config.failed) {
        ok = clb_fail_nomem(err, strlen(path));
    } else {
        const char *beside = access(config.p, F_OK) == 0 ? config.p : NULL;
        if (access(json.p, F_OK) != 0 && access(model.p, F_OK) == 0)
            ok = open_vocabulary(s, model.p, beside, err);
        else if (access(json.p, F_OK) != 0 && access(tiktoken.p, F_OK) == 0)
            ok = open_vocabulary(s, tiktoken.p, beside, err);
        else
            ok = open_json(s, json.p, err);
    }
    clb_text_free(&json);
    clb_text_free(&model);
    clb_text_free(&tiktoken);
    clb_text_free(&config);
    return ok;
}

/* A tiktoken.model says nothing without the configuration beside it. */
static bool open_tiktoken(struct source *s, const char *path, struct clb_err *err)
{
    int folder = (int)(strlen(path) - strlen("tiktoken.model"));
    struct clb_text config = { 0 };

    clb_text_printf(&config, "%.*stokenizer_config.json", folder, path);
    bool ok = config.failed
                  ? clb_fail_nomem(err, strlen(path))
                  : open_vocabulary(s, path, access(config.p, F_OK) == 0 ? config.p : NULL, err);
    clb_text_free(&config);
    return ok;
}

static bool source_open(struct source *s, const char *path, struct clb_err *err)
{
    struct stat st;

    *s = (struct source){ .t = NULL };
    if (stat(path, &st) != 0)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s", path);
    if (S_ISDIR(st.st_mode))
        return open_folder(s, path, err);
    if (has_suffix(path, "tiktoken.model"))
        return open_tiktoken(s, path, err);
    return has_suffix(path, ".json")    ? open_json(s, path, err)
           : has_suffix(path, ".model") ? open_vocabulary(s, path, NULL, err)
                                        : open_model(s, path, err);
}

/* -- lines ------------------------------------------------------------------------------------ */

struct request {
    struct clb_text text;
    bool has_text, add_special, has_ids;
    struct clb_ids ids;
};

static void read_ids(struct clb_json *j, struct clb_ids *ids)
{
    struct clb_err err;

    clb_json_array(j);
    while (clb_json_item(j)) {
        if (ids->n == ids->room) {
            size_t room = ids->room ? ids->room * 2 : 256;
            int32_t *more = clb_grow(ids->id, room, sizeof *more, &err);
            if (!more) {
                clb_json_fail(j, "out of memory");
                return;
            }
            ids->id = more;
            ids->room = room;
        }
        /* What no vocabulary has is passed on: decoding drops it. */
        uint64_t id = clb_json_u64(j, UINT32_MAX);
        ids->id[ids->n++] = id > INT32_MAX ? -1 : (int32_t)id;
    }
}

static bool read_request(struct request *r, const char *line, size_t n, struct clb_err *err)
{
    struct clb_json j;
    struct clb_str key;

    clb_text_clear(&r->text);
    r->ids.n = 0;
    r->has_text = r->has_ids = false;
    r->add_special = true;
    clb_json_open(&j, line, n, "standard input");
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "text")) {
            struct clb_str s = clb_json_string(&j);
            clb_text_add(&r->text, s.p, s.n);
            r->has_text = true;
        } else if (clb_str_is(key, "add_special")) {
            r->add_special = clb_json_bool(&j);
        } else if (clb_str_is(key, "ids")) {
            read_ids(&j, &r->ids);
            r->has_ids = true;
        } else {
            clb_json_skip(&j, NULL);
        }
    }
    if (!clb_json_close(&j, err))
        return false;
    return !r->text.failed || clb_fail_nomem(err, n);
}

void inspect_json(struct clb_text *out, struct clb_str s)
{
    struct clb_text raw = { 0 };

    clb_text_json(&raw, s.p ? s.p : "", s.n);
    for (size_t i = 0; i < raw.n; i++) {
        const char *p = raw.p + i;
        size_t left = raw.n - i;
        if (left >= 2 && !memcmp(p, "\xc2\x85", 2)) {
            clb_text_puts(out, "\\u0085");
            i += 1;
        } else if (left >= 3 && !memcmp(p, "\xe2\x80", 2) && (p[2] == '\xa8' || p[2] == '\xa9')) {
            clb_text_puts(out, p[2] == '\xa8' ? "\\u2028" : "\\u2029");
            i += 2;
        } else {
            clb_text_add(out, p, 1);
        }
    }
    out->failed |= raw.failed;
    clb_text_free(&raw);
}

/* What answers one request: appends the line without its end to out. */
typedef bool answer_fn(void *arg, const struct clb_tokenizer *t, struct request *r,
                       struct clb_text *out, struct clb_err *err);

static bool is_blank(const struct clb_text *line)
{
    return line->n == 0 || strspn(line->p, " \t\r\n") >= line->n;
}

/* The next line with its end; an empty one at the end of the input. */
static bool read_line(struct clb_text *line, FILE *in, struct clb_err *err)
{
    char some[4096];
    size_t n = 0;
    int c = 0;

    clb_text_clear(line);
    while (c != '\n' && (c = getc(in)) != EOF) {
        some[n++] = (char)c;
        if (n < sizeof some && c != '\n')
            continue;
        clb_text_add(line, some, n);
        n = 0;
        if (line->n > MOST_LINE)
            return clb_fail(err, CLB_UNSUPPORTED, "a line of standard input has more than %d bytes",
                            MOST_LINE);
        if (line->failed)
            return clb_fail_nomem(err, line->n);
    }
    clb_text_add(line, some, n);
    if (ferror(in))
        return clb_fail_sys(err, CLB_BAD_INPUT, "<stdin>: cannot be read");
    return !line->failed || clb_fail_nomem(err, line->n);
}

static bool each_line(const char *path, FILE *in, answer_fn *answer, void *arg, struct clb_err *err)
{
    struct source s;
    struct request r = { .has_text = false };
    struct clb_text out = { 0 }, line = { 0 };
    bool ok = source_open(&s, path, err);

    for (unsigned long at = 1; ok && (ok = read_line(&line, in, err)) && line.n > 0; at++) {
        if (is_blank(&line))
            continue;
        clb_text_clear(&out);
        ok = read_request(&r, line.p, line.n, err) && answer(arg, s.t, &r, &out, err);
        if (ok && out.failed)
            ok = clb_fail_nomem(err, out.n);
        if (!ok)
            clb_fail_in(err, "line %lu", at);
        else if (fwrite(out.p, 1, out.n, stdout) != out.n || putchar('\n') == EOF ||
                 fflush(stdout) != 0)
            ok = clb_fail_sys(err, CLB_FAILED, "standard output");
    }
    clb_text_free(&line);
    clb_text_free(&out);
    clb_text_free(&r.text);
    clb_ids_free(&r.ids);
    source_close(&s);
    return ok;
}

/* -- encode ----------------------------------------------------------------------------------- */

static bool answer_encode(void *arg, const struct clb_tokenizer *t, struct request *r,
                          struct clb_text *out, struct clb_err *err)
{
    const struct clb_encode_options o = { .parse_special = *(bool *)arg,
                                          .add_special = r->add_special };

    if (!r->has_text)
        return clb_fail(err, CLB_BAD_INPUT, "no \"text\"");
    r->ids.n = 0;
    if (!clb_encode(t, r->text.p ? r->text.p : "", r->text.n, &o, &r->ids, err))
        return false;
    clb_text_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < r->ids.n; i++)
        clb_text_printf(out, "%s%d", i ? "," : "", (int)r->ids.id[i]);
    clb_text_puts(out, "]}");
    return true;
}

bool inspect_encode(const char *path, bool parse_special, FILE *in, struct clb_err *err)
{
    return each_line(path, in, answer_encode, &parse_special, err);
}

/* -- decode ----------------------------------------------------------------------------------- */

static void add_piece(struct clb_text *out, size_t i, struct clb_str piece)
{
    clb_text_puts(out, i ? "," : "");
    inspect_json(out, piece);
}

static bool answer_decode(void *arg, const struct clb_tokenizer *t, struct request *r,
                          struct clb_text *out, struct clb_err *err)
{
    bool skip_special = *(bool *)arg;
    struct clb_decoder *d = NULL;
    struct clb_str piece;

    if (!r->has_ids)
        return clb_fail(err, CLB_BAD_INPUT, "no \"ids\"");
    clb_text_clear(&r->text);
    bool ok = clb_decode(t, r->ids.id, r->ids.n, skip_special, &r->text, err) &&
              clb_decoder_open(&d, t, skip_special, err);
    clb_text_puts(out, "{\"text\":");
    inspect_json(out, (struct clb_str){ r->text.p, r->text.n });
    clb_text_puts(out, ",\"pieces\":[");
    for (size_t i = 0; ok && i < r->ids.n; i++) {
        ok = clb_decoder_feed(d, r->ids.id[i], &piece, err);
        if (ok)
            add_piece(out, i, piece);
    }
    ok = ok && clb_decoder_flush(d, &piece, err);
    if (ok && piece.n)
        add_piece(out, r->ids.n, piece);
    clb_text_puts(out, "]}");
    clb_decoder_close(d);
    return ok;
}

bool inspect_decode(const char *path, bool skip_special, FILE *in, struct clb_err *err)
{
    return each_line(path, in, answer_decode, &skip_special, err);
}
