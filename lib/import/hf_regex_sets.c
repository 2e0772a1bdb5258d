/* hf_regex_sets.c - sets of characters and escapes. */
#include <stdlib.h>

#include "lib/import/hf_regex_impl.h"
#include "lib/token/program.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

void clb_regex_refuse(struct clb_regex *r, const char *at, const char *what)
{
    if (!r->failed)
        clb_fail(r->err, CLB_BAD_INPUT, "%s at byte %zu of the pattern", what,
                 (size_t)(at - r->pattern.p));
    r->failed = true;
    r->p = r->end;
}

/* -- sets ------------------------------------------------------------------------------------- */

uint32_t *clb_regex_set_new(struct clb_regex *r)
{
    if (r->n_set == CLB_REGEX_SETS || r->n_word + CLB_SET_WORDS > CLB_REGEX_SET_WORDS) {
        clb_regex_refuse(r, r->p, "too many sets");
        return NULL;
    }
    uint32_t *set = r->set + r->n_word;
    r->set_at[r->n_set++] = r->n_word;
    r->n_word += CLB_SET_WORDS;
    memset(set, 0, CLB_SET_WORDS * sizeof *set);
    return set;
}

void clb_regex_set_range(struct clb_regex *r, uint32_t *set, uint32_t low, uint32_t high)
{
    if (r->n_word + 2 > CLB_REGEX_SET_WORDS) {
        clb_regex_refuse(r, r->p, "a set that is too large");
        return;
    }
    r->set[r->n_word++] = low;
    r->set[r->n_word++] = high;
    set[6]++;
}

/* With the other case of ASCII letters; U+017F and U+212A are cases of s and k. */
void clb_regex_set_folded(struct clb_regex *r, uint32_t *set, uint32_t low, uint32_t high)
{
    clb_regex_set_range(r, set, low, high);
    if (!r->fold)
        return;
    if (high > 127)
        clb_regex_refuse(r, r->p, "a character outside of ASCII in (?i:");
    for (uint32_t c = low; c <= high && c < 128; c++) {
        uint32_t lower = c | 32;
        if (lower < 'a' || lower > 'z')
            continue;
        clb_regex_set_range(r, set, c ^ 32, c ^ 32);
        if (lower == 's')
            clb_regex_set_range(r, set, 0x17f, 0x17f);
        if (lower == 'k')
            clb_regex_set_range(r, set, 0x212a, 0x212a);
    }
}

static int by_start(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;

    return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Ranges in order, those that touch as one. The words behind the last one are left over. */
static void sort_ranges(uint32_t *set)
{
    uint32_t *range = set + CLB_SET_WORDS, n = 0;

    qsort(range, set[6], 2 * sizeof *range, by_start);
    for (uint32_t i = 0; i < set[6]; i++) {
        uint32_t low = range[2 * i], high = range[2 * i + 1];
        if (n && low <= range[2 * n - 1] + 1) {
            range[2 * n - 1] = high > range[2 * n - 1] ? high : range[2 * n - 1];
            continue;
        }
        range[2 * n] = low;
        range[2 * n + 1] = high;
        n++;
    }
    set[6] = n;
    set[0] |= CLB_SET_SORTED;
}

/* Answers for ASCII, so that these characters need no look at the rest. */
void clb_regex_set_done(uint32_t *set)
{
    sort_ranges(set);
    for (uint32_t c = 0; c < 128; c++) {
        uint32_t class = clb_uc(c);
        bool has = set[1] >> (class & 31) & 1;
        has |= set[0] & (class & CLB_UC_SPACE ? CLB_SET_SPACE : CLB_SET_NOT_SPACE);
        has |= set[0] & CLB_SET_NOT_HAN;
        for (uint32_t i = 0; i < set[6]; i++)
            has |= c >= set[7 + 2 * i] && c <= set[8 + 2 * i];
        if (has != (bool)(set[0] & CLB_SET_NEGATED))
            set[2 + c / 32] |= 1u << c % 32;
    }
}

/* -- escapes ---------------------------------------------------------------------------------- */

static uint32_t hex_digits(struct clb_regex *r, unsigned least, unsigned most)
{
    uint32_t v = 0;
    unsigned n = 0;

    for (; n < most && r->p < r->end; n++, r->p++) {
        char c = *r->p;
        uint32_t digit = c >= '0' && c <= '9'                 ? (uint32_t)(c - '0')
                         : (c | 32) >= 'a' && (c | 32) <= 'f' ? (uint32_t)((c | 32) - 'a' + 10)
                                                              : 16;
        if (digit == 16)
            break;
        v = v * 16 + digit;
    }
    if (n < least || v > 0x10ffff)
        clb_regex_refuse(r, r->p, "a bad number");
    return v;
}

uint32_t clb_regex_escaped_char(struct clb_regex *r)
{
    static const char from[] = "rntfvae", to[] = "\r\n\t\f\v\a\x1b";
    const char *found;
    char c = *r->p;

    if ((found = memchr(from, c, sizeof from - 1))) {
        r->p++;
        return (uint8_t)to[found - from];
    }
    if (c == 'u') {
        r->p++;
        return hex_digits(r, 4, 4);
    }
    if (c == 'x') {
        bool braces = ++r->p < r->end && *r->p == '{';
        r->p += braces;
        uint32_t v = hex_digits(r, 1, braces ? 8 : 2);
        if (braces && (r->p == r->end || *r->p++ != '}'))
            clb_regex_refuse(r, r->p, "a number without its brace");
        if (!braces && v > 127)
            clb_regex_refuse(r, r->p, "a byte that is not ASCII");
        return v;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c & 0x80)
        return UINT32_MAX;
    r->p++;
    return (uint8_t)c;
}

/* Categories of a name like L or Lu; 0: not known. */
static uint32_t categories(struct clb_str name)
{
    static const char all[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
    uint32_t set = 0;

    if (name.n == 1 || name.n == 2)
        for (uint32_t i = 0; i < sizeof all / 2; i++)
            if (!memcmp(all + 2 * i, name.p, name.n))
                set |= CLB_SET(i);
    return set;
}

/* \p{Lu}, \P{Lu}, \p{^Lu}; r->p is on the p. */
static void add_property(struct clb_regex *r, uint32_t *set)
{
    const char *at = r->p - 1;
    bool negated = *r->p == 'P';
    const char *close = memchr(r->p, '}', (size_t)(r->end - r->p));

    if (r->end - r->p < 3 || r->p[1] != '{' || !close) {
        clb_regex_refuse(r, at, "a property without braces");
        return;
    }
    struct clb_str name = { r->p + 2, (size_t)(close - r->p - 2) };
    if (clb_str_starts(name, "^")) {
        negated = !negated;
        name.p++;
        name.n--;
    }
    uint32_t found = categories(name);
    if (found)
        set[1] |= negated ? CLB_SET_TO(CLB_LU, CLB_CN) & ~found : found;
    else if (clb_str_is(name, "Han"))
        set[0] |= negated ? CLB_SET_NOT_HAN : CLB_SET_HAN;
    else
        clb_regex_refuse(r, at, "a property that is not a general category or Han");
    if (r->fold)
        clb_regex_refuse(r, at, "a property in (?i:");
    if (!r->failed)
        r->p = close + 1;
}

void clb_regex_escaped_set(struct clb_regex *r, uint32_t *set)
{
    switch (*r->p) {
    case 's':
        set[0] |= CLB_SET_SPACE;
        break;
    case 'S':
        set[0] |= CLB_SET_NOT_SPACE;
        break;
    case 'd':
        set[1] |= CLB_SET(CLB_ND);
        break;
    case 'D':
        set[1] |= CLB_SET_TO(CLB_LU, CLB_CN) & ~CLB_SET(CLB_ND);
        break;
    case 'p':
    case 'P':
        add_property(r, set);
        return;
    default:
        clb_regex_refuse(r, r->p - 1, "an escape that is not understood");
        return;
    }
    r->p++;
}

/* -- [...] ------------------------------------------------------------------------------------ */

/* A character of a set, or UINT32_MAX when an escape added a set of its own. */
static uint32_t set_item(struct clb_regex *r, uint32_t *set)
{
    unsigned n;

    if (*r->p == '[' || (*r->p == '&' && r->p + 1 < r->end && r->p[1] == '&')) {
        clb_regex_refuse(r, r->p, "a set inside a set");
        return UINT32_MAX;
    }
    if (*r->p != '\\') {
        uint32_t c = clb_utf8_get(r->p, r->end, &n);
        r->p += n;
        return c;
    }
    if (++r->p == r->end) {
        clb_regex_refuse(r, r->p, "a backslash at the end");
        return UINT32_MAX;
    }
    uint32_t c = clb_regex_escaped_char(r);
    if (c == UINT32_MAX)
        clb_regex_escaped_set(r, set);
    return c;
}

/* The one intersection that is published: "&&[^\p{Han}]" at the end of a set. r->p is behind it
 * then. */
static bool but_han(struct clb_regex *r, uint32_t *set)
{
    const struct clb_str rest = { r->p, (size_t)(r->end - r->p) };

    if (r->fold || set[0] & CLB_SET_NEGATED || !clb_str_starts(rest, "&&[^\\p{Han}]]"))
        return false;
    set[0] |= CLB_SET_BUT_HAN;
    r->p += strlen("&&[^\\p{Han}]");
    return true;
}

bool clb_regex_read_set(struct clb_regex *r)
{
    const char *at = r->p++;
    uint32_t *set = clb_regex_set_new(r);
    bool first = true;

    if (!set)
        return false;
    if (r->p < r->end && *r->p == '^') {
        set[0] |= CLB_SET_NEGATED;
        r->p++;
    }
    for (; r->p < r->end && (*r->p != ']' || first); first = false) {
        if (*r->p == ']') {
            clb_regex_refuse(r, r->p, "an empty set");
            return false;
        }
        if (!first && but_han(r, set))
            break;
        const char *item = r->p;
        uint32_t low = set_item(r, set), high = low;
        if (r->end - r->p >= 2 && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            high = low == UINT32_MAX ? low : set_item(r, set);
            if (low == UINT32_MAX || high == UINT32_MAX || high < low)
                clb_regex_refuse(r, item, "a bad range");
        }
        if (!r->failed && low != UINT32_MAX)
            clb_regex_set_folded(r, set, low, high);
    }
    if (r->p == r->end)
        clb_regex_refuse(r, at, "a set that does not end");
    if (r->failed)
        return false;
    r->p++;
    clb_regex_set_done(set);
    return true;
}
