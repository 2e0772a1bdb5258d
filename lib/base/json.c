#include "lib/base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "lib/base/clock.h"
#include "lib/base/json_impl.h"
#include "lib/base/mem.h"

/* -- errors ---------------------------------------------------------------------------------- */

/* "a.b[3].c" of the place where the reader stands. */
static void write_path(const struct clb_json *j, struct clb_text *out)
{
    for (uint32_t d = 0; d < j->depth; d++) {
        const struct clb_json_level *l = &j->state->level[d];
        if (!l->object && !l->first) {
            clb_text_printf(out, "[%u]", l->item);
        } else if (l->object && l->key_at) {
            if (out->n)
                clb_text_puts(out, ".");
            clb_json_decode(j, l->key_at, out);
        }
    }
}

static bool fail_va(struct clb_json *j, enum clb_code code, size_t at, const char *fmt, va_list ap)
{
    struct clb_text path = { 0 };
    char why[256];

    if (j->fault.code != CLB_OK)
        return false;
    vsnprintf(why, sizeof why, fmt, ap);
    if (j->state)
        write_path(j, &path);
    clb_fail(&j->fault, code, "%s", why);
    if (path.n) /* a key can be of any length: a message shows its start */
        clb_fail_in(&j->fault, "'%.100s%s'", path.p, path.n > 100 ? "..." : "");
    clb_fail_in(&j->fault, "%s: byte %llu", j->file, (unsigned long long)(j->base + at));
    clb_err_place(&j->fault, j->file, path.n ? path.p : NULL, j->base + at);
    clb_text_free(&path);
    return false;
}

bool clb_json_fail_at(struct clb_json *j, enum clb_code code, size_t at, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_va(j, code, at, fmt, ap);
    va_end(ap);
    return false;
}

bool clb_json_fail(struct clb_json *j, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_va(j, CLB_BAD_INPUT, j->value_at, fmt, ap);
    va_end(ap);
    return false;
}

/* -- open and close -------------------------------------------------------------------------- */

void clb_json_open(struct clb_json *j, const char *text, size_t n, const char *file)
{
    *j = (struct clb_json){ .text = text, .n = n, .file = file };
    struct clb_json_state *s = j->state = clb_new(1, sizeof *s, &j->fault);
    if (!s) {
        clb_fail_in(&j->fault, "%s", file);
        return;
    }
    s->value_due = true;
    s->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!s->c_locale) {
        clb_fail_sys(&j->fault, CLB_FAILED, "%s: the C locale cannot be loaded", file);
        return;
    }
    if (getrandom(s->seed, sizeof s->seed, GRND_NONBLOCK) != (ssize_t)sizeof s->seed) {
        s->seed[0] = (uint64_t)(uintptr_t)s;
        s->seed[1] = (uint64_t)(clb_now() * 1e9);
    }
    if (n > UINT32_MAX)
        clb_json_fail_at(j, CLB_BAD_INPUT, 0, "%zu bytes of JSON, but 4 GB is the most", n);
}

void clb_json_abandon(struct clb_json *j)
{
    struct clb_json_state *s = j->state;

    if (!s)
        return;
    for (uint32_t d = 0; d < CLB_JSON_DEPTH; d++)
        clb_free(s->level[d].keys.entry);
    clb_text_free(&s->text[0]);
    clb_text_free(&s->text[1]);
    if (s->c_locale)
        freelocale(s->c_locale);
    clb_free(s);
    j->state = NULL;
}

static inline void skip_space(struct clb_json *j)
{
    size_t at = j->at;

    if (at < j->n && (unsigned char)j->text[at] > ' ') /* nearly always */
        return;
    while (at < j->n && (j->text[at] == ' ' || j->text[at] == '\n' || j->text[at] == '\t' ||
                         j->text[at] == '\r'))
        at++;
    j->at = at;
}

bool clb_json_close(struct clb_json *j, struct clb_err *err)
{
    if (clb_json_ok(j)) {
        skip_space(j);
        if (j->depth || j->state->value_due)
            clb_json_fail_at(j, CLB_BAD_INPUT, j->at, "the document was not read to its end");
        else if (j->at < j->n)
            clb_json_fail_byte(j, j->at, "the end of the text");
    }
    bool ok = clb_json_ok(j);
    if (!ok)
        *err = j->fault;
    clb_json_abandon(j);
    return ok;
}

bool clb_json_ok(const struct clb_json *j)
{
    return j->fault.code == CLB_OK;
}

/* -- values ---------------------------------------------------------------------------------- */

static enum clb_json_type type_of(char c)
{
    switch (c) {
    case '{':
        return CLB_JSON_OBJECT;
    case '[':
        return CLB_JSON_ARRAY;
    case '"':
        return CLB_JSON_STRING;
    case 't':
    case 'f':
        return CLB_JSON_BOOL;
    case 'n':
        return CLB_JSON_NULL;
    default:
        return c == '-' || (c >= '0' && c <= '9') ? CLB_JSON_NUMBER : CLB_JSON_ERROR;
    }
}

enum clb_json_type clb_json_peek(struct clb_json *j)
{
    if (!clb_json_ok(j))
        return CLB_JSON_ERROR;
    if (!j->state->value_due) {
        clb_json_fail_at(j, CLB_FAILED, j->at, "no value is due here");
        return CLB_JSON_ERROR;
    }
    skip_space(j);
    j->value_at = j->at;
    enum clb_json_type t = j->at < j->n ? type_of(j->text[j->at]) : CLB_JSON_ERROR;
    if (t == CLB_JSON_ERROR)
        clb_json_fail_byte(j, j->at, "a value");
    return t;
}

const char *clb_json_type_name(enum clb_json_type t)
{
    static const char *const name[] = { "an error",  "null",     "true or false", "a number",
                                        "a string", "an array", "an object" };
    return name[t];
}

/* The next value must be of this type. */
static bool begin(struct clb_json *j, enum clb_json_type want)
{
    enum clb_json_type t = clb_json_peek(j);

    if (t == CLB_JSON_ERROR)
        return false;
    if (t != want)
        return clb_json_fail(j, "%s, but %s was expected", clb_json_type_name(t),
                             clb_json_type_name(want));
    return true;
}

static bool push(struct clb_json *j, bool object)
{
    if (j->depth == CLB_JSON_DEPTH)
        return clb_json_fail(j, "nested deeper than %d", CLB_JSON_DEPTH);
    struct clb_json_level *l = &j->state->level[j->depth++];
    l->object = object;
    l->first = true;
    l->key_at = l->item = 0;
    j->at++;
    j->state->value_due = false;
    return true;
}

bool clb_json_object(struct clb_json *j)
{
    return begin(j, CLB_JSON_OBJECT) && push(j, true);
}

bool clb_json_array(struct clb_json *j)
{
    return begin(j, CLB_JSON_ARRAY) && push(j, false);
}

/* Between the members of an object or array: true when another one follows, with j->at on it. */
static inline bool next_member(struct clb_json *j, bool object)
{
    if (!clb_json_ok(j))
        return false;
    struct clb_json_level *l = j->depth ? &j->state->level[j->depth - 1] : NULL;
    if (!l || l->object != object || j->state->value_due)
        return clb_json_fail_at(j, CLB_FAILED, j->at, "the reader is not inside %s here",
                                object ? "an object" : "an array");
    skip_space(j);
    char c = j->at < j->n ? j->text[j->at] : '\0';
    if (c == (object ? '}' : ']')) {
        j->at++;
        clb_json_keys_clear(&l->keys);
        j->depth--;
        return false;
    }
    if (l->first) {
        l->first = false;
        return true;
    }
    if (c != ',')
        return clb_json_fail_byte(j, j->at, object ? "',' or '}'" : "',' or ']'");
    j->at++;
    l->item++;
    skip_space(j);
    return true;
}

bool clb_json_key(struct clb_json *j, struct clb_str *key)
{
    *key = (struct clb_str){ "", 0 };
    if (!next_member(j, true))
        return false;
    struct clb_json_level *l = &j->state->level[j->depth - 1];
    size_t at = j->value_at = j->at;
    struct clb_str k;

    if (at >= j->n || j->text[at] != '"')
        return clb_json_fail_byte(j, at, "a key in quotes");
    if (!clb_json_scan_string(j, &k))
        return false;
    l->key_at = (uint32_t)at;
    if (!clb_json_add_key(j, at, k))
        return false;
    skip_space(j);
    if (j->at >= j->n || j->text[j->at] != ':')
        return clb_json_fail_byte(j, j->at, "':'");
    j->at++;
    j->state->value_due = true;
    *key = k;
    return true;
}

bool clb_json_item(struct clb_json *j)
{
    return next_member(j, false) && (j->state->value_due = true);
}

struct clb_str clb_json_string(struct clb_json *j)
{
    struct clb_str s = { "", 0 };

    if (!begin(j, CLB_JSON_STRING) || !clb_json_scan_string(j, &s))
        return (struct clb_str){ "", 0 };
    j->state->value_due = false;
    return s;
}

static bool word(struct clb_json *j, const char *w)
{
    size_t n = strlen(w);

    if (j->n - j->at < n || memcmp(j->text + j->at, w, n))
        return clb_json_fail(j, "not a value; '%s' was expected", w);
    j->at += n;
    j->state->value_due = false;
    return true;
}

bool clb_json_bool(struct clb_json *j)
{
    if (!begin(j, CLB_JSON_BOOL))
        return false;
    bool yes = j->text[j->at] == 't';
    return word(j, yes ? "true" : "false") && yes;
}

bool clb_json_null(struct clb_json *j)
{
    return begin(j, CLB_JSON_NULL) && word(j, "null");
}

/* Consumes one value that is not a container, with full validation. */
static bool skip_scalar(struct clb_json *j, enum clb_json_type t)
{
    switch (t) {
    case CLB_JSON_STRING:
        j->state->value_due = false;
        return clb_json_scan_string(j, NULL);
    case CLB_JSON_NUMBER:
        return clb_json_scan_number(j, NULL);
    case CLB_JSON_BOOL:
        clb_json_bool(j);
        return clb_json_ok(j);
    case CLB_JSON_NULL:
        return clb_json_null(j);
    default:
        return false;
    }
}

bool clb_json_skip(struct clb_json *j, struct clb_str *raw)
{
    enum clb_json_type t = clb_json_peek(j);
    uint32_t depth = j->depth;
    size_t start = j->at;
    struct clb_str key;

    if (raw)
        *raw = (struct clb_str){ "", 0 };
    if (t == CLB_JSON_ERROR)
        return false;
    j->state->skipping = true;
    do {
        if (j->state->value_due) {
            t = clb_json_peek(j);
            if (t == CLB_JSON_OBJECT || t == CLB_JSON_ARRAY)
                push(j, t == CLB_JSON_OBJECT);
            else
                skip_scalar(j, t);
        } else if (j->state->level[j->depth - 1].object) {
            clb_json_key(j, &key);
        } else {
            clb_json_item(j);
        }
    } while (clb_json_ok(j) && (j->depth > depth || j->state->value_due));
    j->state->skipping = false;
    if (!clb_json_ok(j))
        return false;
    j->value_at = start;
    if (raw)
        *raw = (struct clb_str){ j->text + start, j->at - start };
    return true;
}
