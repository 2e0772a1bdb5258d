/* Strings of the JSON reader: strict UTF-8, escapes. */
#include "lib/base/json_impl.h"

static bool plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Passes plain ASCII, eight bytes at a time: a byte stops the run when it is a quote, a backslash,
 * below 0x20 or above 0x7f. Borrows may mark a byte above a stopping one as well, never below it,
 * so the lowest mark is right. */
static size_t skip_plain(const char *s, size_t i, size_t n)
{
    const uint64_t ones = 0x0101010101010101u, high = ones << 7;

    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
        uint64_t stop = ((quote - ones) | (slash - ones) | (w - ones * 0x20) | w) & high;
        if (stop)
            return i + (size_t)__builtin_ctzll(stop) / 8;
    }
    while (i < n && plain((unsigned char)s[i]))
        i++;
    return i;
}

bool clb_json_fail_byte(struct clb_json *j, size_t at, const char *expected)
{
    if (at >= j->n)
        return clb_json_fail_at(j, CLB_BAD_INPUT, j->n, "the text ends, but %s was expected",
                                expected);
    unsigned char c = (unsigned char)j->text[at];
    if (c >= 0x80 && clb_utf8_len(j->text + at, j->n - at) == 0)
        return clb_json_fail_at(j, CLB_BAD_INPUT, at, "byte 0x%02x is not valid UTF-8", c);
    if (c <= 0x20 || c >= 0x7f)
        return clb_json_fail_at(j, CLB_BAD_INPUT, at, "found byte 0x%02x, expected %s", c,
                                expected);
    return clb_json_fail_at(j, CLB_BAD_INPUT, at, "found '%c', expected %s", c, expected);
}

/* The four hexadecimal digits at s; -1 when they are not. */
static int hex4(const char *s, size_t n)
{
    int v = 0;

    if (n < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)s[i], low = c | 0x20;
        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v * 16 + (low - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* Decodes the escape at s ("\n", "\u00e9", a surrogate pair): bytes taken, 0 when it is none;
 * *len bytes go to out. */
static size_t unescape(const char *s, size_t n, char out[4], size_t *len)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";

    if (n < 2)
        return 0;
    if (s[1] != 'u') {
        const char *f = s[1] ? strchr(from, s[1]) : NULL;
        if (!f)
            return 0;
        out[0] = to[f - from];
        *len = 1;
        return 2;
    }
    int hi = hex4(s + 2, n - 2);
    if (hi < 0 || (hi >= 0xdc00 && hi < 0xe000))
        return 0;
    if (hi < 0xd800 || hi >= 0xe000) {
        *len = clb_utf8_put(out, (uint32_t)hi);
        return 6;
    }
    int lo = n >= 12 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8, n - 8) : -1;
    if (lo < 0xdc00 || lo >= 0xe000)
        return 0;
    *len = clb_utf8_put(out, 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00));
    return 12;
}

static bool fail_escape(struct clb_json *j, size_t at)
{
    size_t n = j->n - at;
    const char *s = j->text + at;

    if (n >= 6 && s[1] == 'u' && hex4(s + 2, 4) >= 0)
        return clb_json_fail_at(j, CLB_BAD_INPUT, at, "'%.6s' is half of a surrogate pair", s);
    return clb_json_fail_at(j, CLB_BAD_INPUT, at, "not a valid escape in a string");
}

bool clb_json_scan_string(struct clb_json *j, struct clb_str *decoded)
{
    const char *s = j->text;
    size_t start = j->at, i = start + 1;
    bool escaped = false;

    while ((i = skip_plain(s, i, j->n)) < j->n && s[i] != '"') {
        char out[4];
        size_t len, took;
        if (s[i] == '\\') {
            escaped = true;
            if (!(took = unescape(s + i, j->n - i, out, &len)))
                return fail_escape(j, i);
        } else if ((unsigned char)s[i] < 0x20) {
            return clb_json_fail_at(j, CLB_BAD_INPUT, i, "control character 0x%02x inside a string",
                                    s[i]);
        } else if (!(took = clb_utf8_len(s + i, j->n - i))) {
            return clb_json_fail_byte(j, i, "");
        }
        i += took;
    }
    if (i >= j->n)
        return clb_json_fail_at(j, CLB_BAD_INPUT, start, "the string is not closed");
    j->at = i + 1;
    if (!decoded)
        return true;
    *decoded = (struct clb_str){ s + start + 1, i - start - 1 };
    if (!escaped)
        return true;
    struct clb_text *t = &j->state->text[j->state->skipping];
    clb_text_clear(t);
    clb_json_decode(j, start, t);
    if (t->failed)
        return clb_json_fail_at(j, CLB_NO_SPACE, start, "out of memory");
    *decoded = (struct clb_str){ t->p, t->n };
    return true;
}

void clb_json_decode(const struct clb_json *j, size_t at, struct clb_text *out)
{
    const char *s = j->text;

    for (size_t i = at + 1; s[i] != '"';) {
        size_t run = i;
        while (s[run] != '"' && s[run] != '\\')
            run++;
        clb_text_add(out, s + i, run - i);
        i = run;
        if (s[i] == '\\') {
            char bytes[4];
            size_t len = 0;
            i += unescape(s + i, j->n - i, bytes, &len);
            clb_text_add(out, bytes, len);
        }
    }
}
