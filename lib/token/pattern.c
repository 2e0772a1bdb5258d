/* pattern.c - the published patterns, written out.
 *
 * Each match function answers how many bytes its pattern takes at p, 0 if it does not match there;
 * alternatives are tried in the order of the pattern, repetition is greedy and gives back as the
 * regular expression would. The pattern stands above its function; sets are named as in it: L
 * letters, N numbers, P punctuation, S symbols, M marks. */
#include "lib/token/pattern.h"

#include "lib/token/program.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

typedef size_t match_fn(const char *p, const char *end);

/* Classes of the character at p < end. */
static inline uint32_t class_at(const char *p, const char *end, unsigned *n)
{
    if ((uint8_t)*p < 0x80) {
        *n = 1;
        return clb_uc((uint8_t)*p);
    }
    return clb_uc(clb_utf8_get(p, end, n));
}

static inline bool in(uint32_t class, uint32_t set)
{
    return set >> (class & 31) & 1;
}

/* End of the run of characters of the set. */
static const char *run(const char *p, const char *end, uint32_t set)
{
    unsigned n;

    while (p < end && in(class_at(p, end, &n), set))
        p += n;
    return p;
}

/* [^\s\p{L}\p{N}]: what is neither white space, letter nor number. */
static const char *run_other(const char *p, const char *end)
{
    unsigned n;

    while (p < end) {
        uint32_t class = class_at(p, end, &n);
        if (class & CLB_UC_SPACE || in(class, CLB_SET_L | CLB_SET_N))
            break;
        p += n;
    }
    return p;
}

static bool is_line_end(char c)
{
    return c == '\r' || c == '\n';
}

/* Up to `most` characters of the set. */
static const char *run_up_to(const char *p, const char *end, uint32_t set, unsigned most)
{
    unsigned n;

    while (p < end && most-- && in(class_at(p, end, &n), set))
        p += n;
    return p;
}

/* 's|'t|'re|'ve|'m|'ll|'d; with fold in any case. U+017F is an s in any case. */
static size_t contraction(const char *p, const char *end, bool fold)
{
    char c[2] = { 0, 0 };

    if (end - p < 2 || *p != '\'')
        return 0;
    for (int i = 0; i < 2 && p + 1 + i < end; i++)
        c[i] = fold && p[1 + i] >= 'A' && p[1 + i] <= 'Z' ? (char)(p[1 + i] + 32) : p[1 + i];
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd')
        return 2;
    if ((c[1] == 'e' && (c[0] == 'r' || c[0] == 'v')) || (c[0] == 'l' && c[1] == 'l'))
        return 3;
    return fold && c[0] == '\xc5' && c[1] == '\xbf' ? 3 : 0;
}

/* \s+(?!\S)|\s+ at white space: a run that text follows leaves its last character to it. */
static size_t spaces(const char *p, const char *end)
{
    const char *q = p, *last = p;
    unsigned n;

    while (q < end && class_at(q, end, &n) & CLB_UC_SPACE) {
        last = q;
        q += n;
    }
    return (size_t)(q < end && last > p ? last - p : q - p);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t spaces_or_lines(const char *p, const char *end)
{
    const char *after = NULL; /* behind the last line end of the run */
    unsigned n;

    for (const char *q = p; q < end && class_at(q, end, &n) & CLB_UC_SPACE; q += n)
        if (is_line_end(*q))
            after = q + 1;
    return after ? (size_t)(after - p) : spaces(p, end);
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t match_gpt2(const char *p, const char *end)
{
    size_t taken = contraction(p, end, false);
    if (taken)
        return taken;
    const char *q = *p == ' ' && end - p > 1 ? p + 1 : p;
    unsigned n;
    uint32_t class = class_at(q, end, &n);
    if (in(class, CLB_SET_L))
        return (size_t)(run(q + n, end, CLB_SET_L) - p);
    if (in(class, CLB_SET_N))
        return (size_t)(run(q + n, end, CLB_SET_N) - p);
    if (!(class & CLB_UC_SPACE))
        return (size_t)(run_other(q + n, end) - p);
    return spaces(p, end);
}

/*  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+  (with `slash` the first class is [\r\n/]) */
static size_t other_or_spaces(const char *p, const char *end, bool slash)
{
    const char *from = *p == ' ' ? p + 1 : p, *q = run_other(from, end);

    if (q == from)
        return spaces_or_lines(p, end);
    while (q < end && (is_line_end(*q) || (slash && *q == '/')))
        q++;
    return (size_t)(q - p);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}, then other_or_spaces; Qwen 2
 * has \p{N} instead of \p{N}{1,3} */
static size_t match_cl100k_n(const char *p, const char *end, unsigned digits)
{
    size_t taken = contraction(p, end, true);
    if (taken)
        return taken;
    unsigned n;
    uint32_t class = class_at(p, end, &n);
    if (in(class, CLB_SET_L))
        return (size_t)(run(p + n, end, CLB_SET_L) - p);
    if (in(class, CLB_SET_N))
        return (size_t)(run_up_to(p + n, end, CLB_SET_N, digits - 1) - p);
    if (!is_line_end(*p)) {
        const char *q = run(p + n, end, CLB_SET_L);
        if (q > p + n)
            return (size_t)(q - p);
    }
    return other_or_spaces(p, end, false);
}

static size_t match_cl100k(const char *p, const char *end)
{
    return match_cl100k_n(p, end, 3);
}

static size_t match_qwen2(const char *p, const char *end)
{
    return match_cl100k_n(p, end, 1);
}

/* Sets of the case-aware patterns: heads of a word, and its tail. */
#define UPPER (CLB_SET(CLB_LU) | CLB_SET(CLB_LT) | CLB_SET(CLB_LM) | CLB_SET(CLB_LO) | CLB_SET_M)
#define LOWER (CLB_SET(CLB_LL) | CLB_SET(CLB_LM) | CLB_SET(CLB_LO) | CLB_SET_M)

/* [UPPER]*[LOWER]+ at p: its end, or NULL. */
static const char *cased_lower(const char *p, const char *end)
{
    const char *q = p, *back = NULL; /* back: behind the last one of the run that is LOWER too */
    unsigned n;

    for (; q < end; q += n) {
        uint32_t class = class_at(q, end, &n);
        if (!in(class, UPPER))
            break;
        if (in(class, LOWER))
            back = q + n;
    }
    const char *tail = run(q, end, LOWER);
    return tail > q ? tail : back;
}

/* [^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+|[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*: its end, or NULL. The
 * second alternative is reached only where no LOWER follows. */
static const char *cased_word(const char *p, const char *end)
{
    unsigned n;
    uint32_t class = class_at(p, end, &n);
    const char *after = is_line_end(*p) || in(class, CLB_SET_L | CLB_SET_N) ? NULL : p + n, *q;

    if (after && (q = cased_lower(after, end)))
        return q;
    if ((q = cased_lower(p, end)))
        return q;
    if (after && (q = run(after, end, UPPER)) > after)
        return q;
    q = run(p, end, UPPER);
    return q > p ? q : NULL;
}

/* WORD(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * (twice WORD, see cased_word) */
static size_t match_o200k(const char *p, const char *end)
{
    const char *q = cased_word(p, end);

    if (q)
        return (size_t)(q - p) + contraction(q, end, true);
    q = run_up_to(p, end, CLB_SET_N, 3);
    return q > p ? (size_t)(q - p) : other_or_spaces(p, end, true);
}

/* The same without contractions, and single digits. */
static size_t match_tekken(const char *p, const char *end)
{
    const char *q = cased_word(p, end);

    if (!q)
        q = run_up_to(p, end, CLB_SET_N, 1);
    return q > p ? (size_t)(q - p) : other_or_spaces(p, end, true);
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_ascii_punctuation(char c)
{
    return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
           (c > 'z' && c < 0x7f);
}

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
 *  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t match_deepseek3(const char *p, const char *end)
{
    const uint32_t word = CLB_SET_L | CLB_SET_M, sign = CLB_SET_P | CLB_SET_S;
    const char *q = p + 1;

    if (is_ascii_punctuation(*p)) {
        while (q < end && is_ascii_letter(*q))
            q++;
        if (q > p + 1)
            return (size_t)(q - p);
    }
    unsigned n;
    uint32_t class = class_at(p, end, &n);
    q = run(p, end, word);
    if (q == p && !is_line_end(*p) && !in(class, sign)) {
        q = run(p + n, end, word);
        if (q == p + n)
            q = p;
    }
    if (q > p)
        return (size_t)(q - p);
    const char *from = *p == ' ' ? p + 1 : p;
    q = run(from, end, sign);
    if (q > from) {
        while (q < end && is_line_end(*q))
            q++;
        return (size_t)(q - p);
    }
    return class & CLB_UC_SPACE ? spaces_or_lines(p, end) : 0;
}

/* \p{N}{1,3} */
static size_t match_numbers3(const char *p, const char *end)
{
    return (size_t)(run_up_to(p, end, CLB_SET_N, 3) - p);
}

/* [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+ */
static size_t match_cjk(const char *p, const char *end)
{
    const char *q = p;
    unsigned n;

    while (q < end) {
        uint32_t c = clb_utf8_get(q, end, &n);
        if (!(c >= 0x4e00 && c <= 0x9fa5) && !(c >= 0x3040 && c <= 0x30ff))
            break;
        q += n;
    }
    return (size_t)(q - p);
}

static size_t match_numeric(const char *p, const char *end)
{
    unsigned n;

    return clb_uc_is_numeric(clb_utf8_get(p, end, &n)) ? n : 0;
}

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define OTHER       "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OTHER_SLASH "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_UPPER    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_LOWER    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_BEFORE   "[^\\r\\n\\p{L}\\p{N}]?"

static const struct {
    match_fn *match;
    const char *regex; /* NULL: has no spelling */
} table[CLB_N_FIND] = {
    [CLB_FIND_NUMERIC] = { match_numeric, NULL },
    [CLB_FIND_GPT2] = { match_gpt2,
                        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                        "|\\s+(?!\\S)|\\s+" },
    [CLB_FIND_CL100K] = { match_cl100k, CONTRACTION "|" RE_BEFORE "\\p{L}+|\\p{N}{1,3}" OTHER },
    [CLB_FIND_QWEN2] = { match_qwen2, CONTRACTION "|" RE_BEFORE "\\p{L}+|\\p{N}" OTHER },
    [CLB_FIND_O200K] = { match_o200k, RE_BEFORE RE_UPPER
                         "*" RE_LOWER "+" CONTRACTION "?|" RE_BEFORE RE_UPPER "+" RE_LOWER
                         "*" CONTRACTION "?|\\p{N}{1,3}" OTHER_SLASH },
    [CLB_FIND_TEKKEN] = { match_tekken, RE_BEFORE RE_UPPER "*" RE_LOWER "+|" RE_BEFORE RE_UPPER
                                                           "+" RE_LOWER "*|\\p{N}" OTHER_SLASH },
    [CLB_FIND_DEEPSEEK3] = { match_deepseek3,
                             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                             "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
                             "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" },
    [CLB_FIND_NUMBERS3] = { match_numbers3, "\\p{N}{1,3}" },
    [CLB_FIND_CJK] = { match_cjk, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+" },
};

enum clb_find clb_pattern_known(struct clb_str regex)
{
    for (int i = 0; i < CLB_N_FIND; i++)
        if (table[i].regex && clb_str_is(regex, table[i].regex))
            return (enum clb_find)i;
    return CLB_FIND_NONE;
}

static bool find_text(struct clb_str text, const char *end, const char **from, const char **to)
{
    const char *p = memmem(*from, (size_t)(end - *from), text.p, text.n);

    if (!p)
        return false;
    *from = p;
    *to = p + text.n;
    return true;
}

bool clb_pattern_find(const struct clb_tokenizer *t, const struct clb_step *s,
                      const struct clb_part *part, const char **from, const char **to,
                      uint64_t *budget)
{
    if (s->find == CLB_FIND_TEXT)
        return find_text(clb_tables_string(t, s->text), part->end, from, to);
    if (s->find == CLB_FIND_PROGRAM)
        return clb_program_find(t->programs + s->text.at, part->s, part->end, from, to, budget);
    match_fn *match = table[s->find].match;
    unsigned n;
    for (const char *p = *from; match && p < part->end; p += n) {
        size_t taken = match(p, part->end);
        if (taken) {
            *from = p;
            *to = p + taken;
            return true;
        }
        clb_utf8_get(p, part->end, &n);
    }
    return false;
}
