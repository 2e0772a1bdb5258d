#include "lib/chat/lex.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/chat/number.h"

/* -- places ------------------------------------------------------------------------------------ */

void clb_lex_place(struct clb_str src, size_t at, unsigned *line, unsigned *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at && i < src.n; i++) {
        if (src.p[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)src.p[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

bool clb_template_fail(struct clb_err *err, const char *name, struct clb_str src, size_t at,
                       enum clb_code code, const char *fmt, ...)
{
    char why[400];
    unsigned line, column;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_lex_place(src, at, &line, &column);
    clb_fail(err, code, "%s: line %u, column %u: %s", name, line, column, why);
    return clb_err_place(err, name, NULL, at);
}

static bool fail(struct clb_lexer *x, size_t at, const char *what)
{
    return clb_template_fail(x->err, x->name, x->src, at, CLB_BAD_INPUT, "%s", what);
}

/* -- white space ------------------------------------------------------------------------------- */

size_t clb_space_at(const char *s, const char *end)
{
    const unsigned char *p = (const unsigned char *)s;

    if (p[0] < 0x80)
        return p[0] == ' ' || (p[0] >= 9 && p[0] <= 13) || (p[0] >= 0x1c && p[0] <= 0x1f);
    if (end - s >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0))
        return 2;
    if (end - s < 3 || p[0] < 0xe1 || p[0] > 0xe3)
        return 0;
    unsigned c = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
                   c == 0x202f || c == 0x205f || c == 0x3000
               ? 3
               : 0;
}

size_t clb_space_before(const char *s, const char *end)
{
    for (size_t n = 1; n <= 3 && n <= (size_t)(end - s); n++)
        if (((unsigned char)end[-(ptrdiff_t)n] & 0xc0) != 0x80)
            return clb_space_at(end - n, end) == n ? n : 0;
    return 0;
}

struct clb_str clb_strip(struct clb_str s, bool left, bool right)
{
    size_t n;

    while (left && s.n && (n = clb_space_at(s.p, s.p + s.n))) {
        s.p += n;
        s.n -= n;
    }
    while (right && s.n && (n = clb_space_before(s.p, s.p + s.n)))
        s.n -= n;
    return s;
}

static void skip_space(struct clb_lexer *x)
{
    size_t n;

    while (x->at < x->src.n && (n = clb_space_at(x->src.p + x->at, x->src.p + x->src.n)))
        x->at += n;
}

/* -- between tags ------------------------------------------------------------------------------ */

void clb_lex_open(struct clb_lexer *x, struct clb_str src, const char *name, struct clb_err *err)
{
    *x = (struct clb_lexer){
        .name = name, .src = src, .mode = CLB_T_DATA, .line_starting = true, .err = err
    };
}

static char byte_at(const struct clb_lexer *x, size_t at)
{
    return at < x->src.n ? x->src.p[at] : '\0';
}

/* The next "{%", "{{" or "{#". */
static size_t find_tag(const struct clb_lexer *x, size_t at)
{
    for (; at < x->src.n; at++) {
        const char *p = memchr(x->src.p + at, '{', x->src.n - at);

        if (!p)
            return x->src.n;
        at = (size_t)(p - x->src.p);
        char c = byte_at(x, at + 1);
        if (c == '%' || c == '{' || c == '#')
            return at;
    }
    return x->src.n;
}

/* What is left of the text before a tag with this sign. */
static struct clb_str cut_before(const struct clb_lexer *x, size_t from, size_t to, char sign,
                                 bool print)
{
    struct clb_str s = { x->src.p + from, to - from };

    if (sign == '-')
        return clb_strip(s, false, true);
    if (sign == '+' || print)
        return s;
    size_t line = s.n;
    while (line > 0 && s.p[line - 1] != '\n')
        line--;
    if ((line > 0 || x->line_starting) &&
        clb_strip((struct clb_str){ s.p + line, s.n - line }, true, false).n == 0)
        s.n = line;
    return s;
}

/* At the end of a tag: "-%}" with the white space behind it, "+%}", or "%}" with a newline. `mark`
 * is '%' or '#'. False: it is not the end. */
static bool take_end(struct clb_lexer *x, char mark)
{
    size_t at = x->at;
    char sign = byte_at(x, at);

    at += sign == '-' || sign == '+';
    if (byte_at(x, at) != mark || byte_at(x, at + 1) != '}')
        return false;
    x->at = at + 2;
    if (sign == '-')
        skip_space(x);
    else if (sign != '+' && byte_at(x, x->at) == '\n')
        x->at++;
    x->line_starting = x->src.p[x->at - 1] == '\n';
    return true;
}

static bool skip_comment(struct clb_lexer *x, size_t start)
{
    char sign = byte_at(x, start + 2);

    for (x->at = start + 2 + (sign == '-' || sign == '+'); x->at < x->src.n; x->at++)
        if (take_end(x, '#'))
            return true;
    return fail(x, start, "a comment is not closed: '#}' is missing");
}

static bool word_at(const struct clb_lexer *x, size_t *at, const char *word)
{
    size_t n = strlen(word);

    while (*at < x->src.n && clb_space_at(x->src.p + *at, x->src.p + x->src.n))
        *at += clb_space_at(x->src.p + *at, x->src.p + x->src.n);
    if (x->src.n - *at < n || memcmp(x->src.p + *at, word, n))
        return false;
    *at += n;
    while (*at < x->src.n && clb_space_at(x->src.p + *at, x->src.p + x->src.n))
        *at += clb_space_at(x->src.p + *at, x->src.p + x->src.n);
    return true;
}

/* "{% raw %}" at `start`: where its text begins; 0: it is another tag. */
static size_t raw_begin(struct clb_lexer *x, size_t start)
{
    size_t at = start + 2;
    char sign = byte_at(x, at);

    at += sign == '-' || sign == '+';
    if (!word_at(x, &at, "raw"))
        return 0;
    bool cut = byte_at(x, at) == '-';
    at += cut;
    if (byte_at(x, at) != '%' || byte_at(x, at + 1) != '}')
        return 0;
    at += 2;
    while (cut && at < x->src.n && clb_space_at(x->src.p + at, x->src.p + x->src.n))
        at += clb_space_at(x->src.p + at, x->src.p + x->src.n);
    return at;
}

static bool take_raw(struct clb_lexer *x, size_t start, size_t begin, struct clb_token *t)
{
    for (size_t tag = find_tag(x, begin); tag < x->src.n; tag = find_tag(x, tag + 1)) {
        char sign = byte_at(x, tag + 2);
        size_t at = tag + 2 + (sign == '-' || sign == '+');

        if (byte_at(x, tag + 1) != '%' || !word_at(x, &at, "endraw"))
            continue;
        x->at = at;
        x->line_starting = false;
        struct clb_str text = cut_before(x, begin, tag, sign, false);
        if (!take_end(x, '%'))
            continue;
        *t = (struct clb_token){ .type = CLB_T_DATA, .text = text };
        return true;
    }
    return fail(x, start, "a raw block is not closed: '{% endraw %}' is missing");
}

/* Text up to the next tag; a tag that begins right here begins. */
static bool next_data(struct clb_lexer *x, struct clb_token *t)
{
    for (;;) {
        size_t from = x->at, tag = find_tag(x, from), raw;

        if (tag == x->src.n) {
            *t = (struct clb_token){ .type = from < tag ? CLB_T_DATA : CLB_T_END,
                                     .text = { x->src.p + from, tag - from } };
            x->at = tag;
            return true;
        }
        char kind = x->src.p[tag + 1], sign = byte_at(x, tag + 2);
        struct clb_str text = cut_before(x, from, tag, sign, kind == '{');
        x->line_starting = false;
        if (kind == '#') {
            if (!skip_comment(x, tag))
                return false;
        } else if (kind == '%' && (raw = raw_begin(x, tag))) {
            if (text.n) { /* first what stands before it; then it is found again */
                x->at = tag;
            } else if (!take_raw(x, tag, raw, t)) {
                return false;
            } else if (t->text.n) {
                return true;
            }
        } else {
            x->next_begin = kind == '%' ? CLB_T_BLOCK_BEGIN : CLB_T_PRINT_BEGIN;
            x->next_text = (struct clb_str){ x->src.p + tag, 2 };
            x->at = tag + 2 + (sign == '-' || sign == '+');
        }
        if (text.n || x->next_begin) {
            *t = (struct clb_token){ .type = CLB_T_DATA, .text = text };
            return true;
        }
    }
}

/* -- inside tags ------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Digits with single underscores between them. */
static size_t digits(const struct clb_lexer *x, size_t at)
{
    while (is_digit(byte_at(x, at)) || (byte_at(x, at) == '_' && is_digit(byte_at(x, at + 1))))
        at++;
    return at;
}

static bool next_number(struct clb_lexer *x, struct clb_token *t)
{
    size_t from = x->at, at = digits(x, from), more;
    char text[64];
    size_t n = 0;
    bool real = false, after_dot = from > 0 && x->src.p[from - 1] == '.';

    if (byte_at(x, from) == '0' && strchr("bBoOxX", byte_at(x, at)) && byte_at(x, at) != '\0')
        return fail(x, from, "numbers are decimal here");
    if (!after_dot && byte_at(x, at) == '.' && is_digit(byte_at(x, at + 1))) {
        at = digits(x, at + 1);
        real = true;
    }
    if (!after_dot && (byte_at(x, at) | 0x20) == 'e') {
        more = at + 1 + (byte_at(x, at + 1) == '-' || byte_at(x, at + 1) == '+');
        if (is_digit(byte_at(x, more))) {
            at = digits(x, more);
            real = true;
        }
    }
    for (size_t i = from; i < at; i++) {
        if (n == sizeof text - 1)
            return fail(x, from, "a number is too long");
        if (x->src.p[i] != '_')
            text[n++] = x->src.p[i];
    }
    text[n] = '\0';
    *t = (struct clb_token){ .type = real ? CLB_T_FLOAT : CLB_T_INT,
                             .text = { x->src.p + from, at - from } };
    x->at = at;
    if (real) {
        t->u.f = clb_number_read(text, n);
        return true;
    }
    if (text[0] == '0' && strspn(text, "0") < n)
        return fail(x, from, "an integer may not start with 0");
    return clb_integer_read(text, n, &t->u.i) || fail(x, from, "an integer beyond 64 bits");
}

static bool next_string(struct clb_lexer *x, struct clb_token *t)
{
    size_t from = x->at, at = from + 1;
    char quote = x->src.p[from];

    while (at < x->src.n && x->src.p[at] != quote)
        at += x->src.p[at] == '\\' ? 2 : 1;
    if (at >= x->src.n)
        return fail(x, from, "a string is not closed");
    x->at = at + 1;
    *t = (struct clb_token){ .type = CLB_T_STRING, .text = { x->src.p + from, x->at - from } };
    return true;
}

static bool balance(struct clb_lexer *x, char c)
{
    static const char opens[] = "([{", closes[] = ")]}";
    const char *o = strchr(opens, c), *e = strchr(closes, c);

    if (o) {
        if (x->depth == sizeof x->open)
            return fail(x, x->at, "brackets are nested too deeply");
        x->open[x->depth++] = closes[o - opens];
    } else if (e && (x->depth == 0 || x->open[--x->depth] != c)) {
        return fail(x, x->at, "a closing bracket without its opening one");
    }
    return true;
}

static bool next_operator(struct clb_lexer *x, struct clb_token *t)
{
    static const char two[] = "// ** == != >= <= ";
    char a = byte_at(x, x->at), b = byte_at(x, x->at + 1);
    size_t n = 1;
    char what[64];

    for (const char *p = two; *p; p += 3)
        if (p[0] == a && p[1] == b)
            n = 2;
    if (n == 1 && (!a || !strchr("+-/*%~[](){}><=.:|,", a))) {
        if ((unsigned char)a < 0x20 || (unsigned char)a >= 0x7f)
            snprintf(what, sizeof what, "byte 0x%02x does not belong into a tag", (unsigned char)a);
        else
            snprintf(what, sizeof what, "'%c' does not belong into a tag", a);
        return fail(x, x->at, what);
    }
    *t = (struct clb_token){ .type = CLB_T_OP,
                             .op = n == 2 ? CLB_OP2(a, b) : (uint16_t)a,
                             .text = { x->src.p + x->at, n } };
    if (!balance(x, n == 1 ? a : ' '))
        return false;
    x->at += n;
    return true;
}

/* The end of the tag, if it is here and no bracket is open. */
static bool at_end(struct clb_lexer *x, struct clb_token *t)
{
    size_t from = x->at, at = from + (byte_at(x, from) == '-');

    if (x->depth > 0)
        return false;
    if (x->mode == CLB_T_BLOCK_BEGIN) {
        if (!take_end(x, '%'))
            return false;
        t->type = CLB_T_BLOCK_END;
    } else {
        if (byte_at(x, at) != '}' || byte_at(x, at + 1) != '}')
            return false;
        x->at = at + 2;
        if (at > from)
            skip_space(x);
        x->line_starting = x->src.p[x->at - 1] == '\n';
        t->type = CLB_T_PRINT_END;
    }
    t->text = (struct clb_str){ x->src.p + from, 2 };
    x->mode = CLB_T_DATA;
    return true;
}

bool clb_lex_next(struct clb_lexer *x, struct clb_token *t)
{
    *t = (struct clb_token){ .type = CLB_T_END, .text = { x->src.p + x->at, 0 } };
    if (x->next_begin) {
        *t = (struct clb_token){ .type = x->next_begin, .text = x->next_text };
        x->mode = x->next_begin;
        x->next_begin = 0;
        return true;
    }
    if (x->mode == CLB_T_DATA) {
        if (!next_data(x, t))
            return false;
        return t->type != CLB_T_DATA || t->text.n > 0 || clb_lex_next(x, t);
    }
    skip_space(x);
    if (x->at >= x->src.n)
        return fail(x, x->src.n,
                    x->mode == CLB_T_BLOCK_BEGIN ? "the template ends inside '{%'"
                                                 : "the template ends inside '{{'");
    if (at_end(x, t))
        return true;
    char c = x->src.p[x->at];
    if (is_digit(c))
        return next_number(x, t);
    if (c == '"' || c == '\'')
        return next_string(x, t);
    if (!is_word(c))
        return next_operator(x, t);
    size_t from = x->at;
    while (is_word(byte_at(x, x->at)))
        x->at++;
    *t = (struct clb_token){ .type = CLB_T_NAME, .text = { x->src.p + from, x->at - from } };
    return true;
}
