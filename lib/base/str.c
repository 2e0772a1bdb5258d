#include "lib/base/str.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/fpstate.h"
#include "lib/base/mem.h"

size_t clb_utf8_len(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;

    if (n == 0)
        return 0;
    if (u[0] < 0x80)
        return 1;
    size_t len = u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    if (len == 0 || len > n)
        return 0;
    /* The second byte rules out overlong forms, surrogates and what lies beyond U+10FFFF. */
    unsigned lo = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
    unsigned hi = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
    if (u[1] < lo || u[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if (u[i] < 0x80 || u[i] > 0xbf)
            return 0;
    return len;
}

unsigned clb_utf8_put(char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Room for n more bytes and the terminator. */
static bool reserve(struct clb_text *t, size_t n)
{
    struct clb_err err;

    if (t->failed)
        return false;
    if (n < t->room - t->n)
        return true;
    size_t want = t->room ? t->room : 64;
    while (want - t->n <= n) {
        if (want > SIZE_MAX / 2) {
            t->failed = true;
            return false;
        }
        want *= 2;
    }
    char *p = clb_grow(t->p, want, 1, &err);
    if (!p) {
        t->failed = true;
        return false;
    }
    t->p = p;
    t->room = want;
    return true;
}

void clb_text_add(struct clb_text *t, const void *bytes, size_t n)
{
    if (!reserve(t, n))
        return;
    if (n)
        memcpy(t->p + t->n, bytes, n);
    t->n += n;
    t->p[t->n] = '\0';
}

void clb_text_puts(struct clb_text *t, const char *s)
{
    clb_text_add(t, s, strlen(s));
}

void clb_text_printf(struct clb_text *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        t->failed = true;
        return;
    }
    if (!reserve(t, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(t->p + t->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}

void clb_text_json(struct clb_text *t, const char *s, size_t n)
{
    static const char names[] = "\bb\tt\nn\ff\rr\"\"\\\\";

    clb_text_add(t, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t len = clb_utf8_len(s + i, n - i);
        const char *name = c && c < 0x80 ? strchr(names, c) : NULL;

        if (len == 0)
            clb_text_add(t, "\xef\xbf\xbd", 3);
        else if (name && (name - names) % 2 == 0)
            clb_text_add(t, (char[]){ '\\', name[1] }, 2);
        else if (c < 0x20)
            clb_text_printf(t, "\\u%04x", c);
        else
            clb_text_add(t, s + i, len);
        i += len ? len : 1;
    }
    clb_text_add(t, "\"", 1);
}

void clb_text_f32(struct clb_text *t, float v)
{
    char s[40];

    if (!isfinite(v)) { /* JSON has no word for it */
        clb_text_puts(t, "null");
        return;
    }
    /* The decimal point must not depend on the locale of the program around us. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        t->failed = true;
        return;
    }
    locale_t before = uselocale(c);
    struct clb_fp caller = clb_fp_enter();
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, (double)v);
        if (strtof(s, NULL) == v)
            break;
    }
    clb_fp_leave(caller);
    uselocale(before);
    freelocale(c);
    clb_text_puts(t, s);
    if (!strpbrk(s, ".e"))
        clb_text_puts(t, ".0");
}

void clb_text_clear(struct clb_text *t)
{
    t->n = 0;
    t->failed = false;
    if (t->p)
        t->p[0] = '\0';
}

void clb_text_free(struct clb_text *t)
{
    clb_free(t->p);
    *t = (struct clb_text){ 0 };
}
