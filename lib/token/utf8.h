/* utf8.h - characters in text. */
#ifndef CLB_TOKEN_UTF8_H
#define CLB_TOKEN_UTF8_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/str.h"

/* The character at s < end and how many bytes it has. Meant for text that was checked: for anything
 * else it answers U+FFFD and one byte, and never reads at or behind end. */
static inline uint32_t clb_utf8_get(const char *s, const char *end, unsigned *n)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t room = (size_t)(end - s);

    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xe0 && p[0] >= 0xc0 && room > 1) {
        *n = 2;
        return (p[0] & 31u) << 6 | (p[1] & 63u);
    }
    if (p[0] < 0xf0 && p[0] >= 0xe0 && room > 2) {
        *n = 3;
        return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    }
    if (p[0] < 0xf4 && p[0] >= 0xf0 && room > 3) {
        *n = 4;
        return (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
    }
    if (p[0] == 0xf4 && room > 3 && p[1] < 0x90) {
        *n = 4;
        return 0x100000u | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
    }
    *n = 1;
    return 0xfffd;
}

/* The character before s (begin < s). */
static inline uint32_t clb_utf8_before(const char *begin, const char *s, unsigned *n)
{
    const char *p = s - 1;

    while (p > begin && s - p < 4 && ((uint8_t)*p & 0xc0) == 0x80)
        p--;
    uint32_t c = clb_utf8_get(p, s, n);
    if (*n != (unsigned)(s - p)) {
        *n = 1;
        return 0xfffd;
    }
    return c;
}

/* What stands at s, strictly (no surrogates, nothing overlong): a character of r > 0 bytes; r < 0:
 * -r bytes that become one U+FFFD (the longest start of a character, else one byte); 0: the start
 * of a character that the n bytes do not finish. n > 0. */
int clb_utf8_step(const char *s, size_t n);
/* Bytes of s, from its start, that are valid. */
size_t clb_utf8_valid(const char *s, size_t n);
/* Appends s with U+FFFD for what is not UTF-8, as Python's errors="replace" does. */
void clb_utf8_repair(struct clb_str s, struct clb_text *out);

#endif
