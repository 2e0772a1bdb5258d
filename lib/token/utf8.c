#include "lib/token/utf8.h"

/* Bytes of the character that starts with c, and the range of its second byte. 0: none does. */
static unsigned lead(uint8_t c, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return 0;
    if (c < 0xe0)
        return 2;
    if (c == 0xe0)
        *low = 0xa0;
    if (c == 0xed)
        *high = 0x9f; /* surrogates */
    if (c == 0xf0)
        *low = 0x90;
    if (c == 0xf4)
        *high = 0x8f;
    return c < 0xf0 ? 3 : 4;
}

int clb_utf8_step(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t low, high;
    unsigned want = lead(p[0], &low, &high);

    if (!want)
        return -1;
    for (unsigned i = 1; i < want; i++) {
        if (i == n)
            return 0;
        if (p[i] < low || p[i] > high)
            return -(int)i;
        low = 0x80;
        high = 0xbf;
    }
    return (int)want;
}

size_t clb_utf8_valid(const char *s, size_t n)
{
    size_t at = 0;

    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, s + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        int step = clb_utf8_step(s + at, n - at);
        if (step <= 0)
            break;
        at += (size_t)step;
    }
    return at;
}

void clb_utf8_repair(struct clb_str s, struct clb_text *out)
{
    while (s.n) {
        size_t good = clb_utf8_valid(s.p, s.n);
        clb_text_add(out, s.p, good);
        s.p += good;
        s.n -= good;
        if (!s.n)
            return;
        int step = clb_utf8_step(s.p, s.n);
        size_t bad = step < 0 ? (size_t)-step : s.n; /* an unfinished character is one U+FFFD */
        clb_text_puts(out, "\xef\xbf\xbd");
        s.p += bad;
        s.n -= bad;
    }
}
