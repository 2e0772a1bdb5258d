/* str.h - text as (pointer, length), and a buffer that grows. */
#ifndef CLB_BASE_STR_H
#define CLB_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A view: borrowed bytes, not terminated. Use with "%.*s", (int)s.n, s.p. */
struct clb_str {
    const char *p;
    size_t n;
};

static inline struct clb_str clb_str(const char *s)
{
    return (struct clb_str){ s, strlen(s) };
}
static inline bool clb_str_eq(struct clb_str a, struct clb_str b)
{
    return a.n == b.n && (a.n == 0 || !memcmp(a.p, b.p, a.n));
}
static inline bool clb_str_is(struct clb_str a, const char *s)
{
    return clb_str_eq(a, clb_str(s));
}
static inline bool clb_str_starts(struct clb_str a, const char *s)
{
    size_t n = strlen(s);
    return a.n >= n && !memcmp(a.p, s, n);
}

/* Bytes of the well-formed UTF-8 character at the start of s (1 to 4); 0 when there is none
 * (invalid, overlong, a surrogate, cut off, or n is 0). */
size_t clb_utf8_len(const char *s, size_t n);
/* Writes c (below 0x110000) and returns how many bytes it took. */
unsigned clb_utf8_put(char out[4], uint32_t c);

/* A growable text; zero-initialised is empty. Always terminated (p may be NULL when empty).
 * An append that finds no memory sets `failed` and leaves the text as it was; the owner checks
 * once. */
struct clb_text {
    char *p; /* owned */
    size_t n, room;
    bool failed;
};

void clb_text_add(struct clb_text *t, const void *bytes, size_t n);
void clb_text_puts(struct clb_text *t, const char *s);
void clb_text_printf(struct clb_text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends s as a JSON string with quotes; invalid UTF-8 becomes U+FFFD. */
void clb_text_json(struct clb_text *t, const char *s, size_t n);
/* Shortest decimal that reads back to the same float (always with a '.', an exponent, or both:
 * "1.0"). v is finite (else "null" is appended). Depends on neither the locale nor the rounding
 * mode. */
void clb_text_f32(struct clb_text *t, float v);
void clb_text_clear(struct clb_text *t); /* keeps the memory */
void clb_text_free(struct clb_text *t);

#endif
