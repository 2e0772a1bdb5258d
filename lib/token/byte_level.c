/* byte_level.c - the characters that stand for bytes in byte-level vocabularies: printable Latin-1
 * stands for itself, the other 68 bytes are U+0100 and up in their order. */
#include "lib/token/build.h"
#include "lib/token/utf8.h"

static bool is_printable(uint32_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The byte of character c, or -1. */
static int byte_of(uint32_t c)
{
    if (c < 256)
        return is_printable(c) ? (int)c : -1;
    uint32_t n = c - 256; /* the n-th of those that are not printable */
    for (uint32_t b = 0; b < 256; b++)
        if (!is_printable(b) && n-- == 0)
            return (int)b;
    return -1;
}

void clb_byte_level_write(struct clb_str s, struct clb_text *out)
{
    for (size_t i = 0; i < s.n; i++) {
        uint32_t c = (uint8_t)s.p[i], n = 256;
        for (uint32_t b = 0; b < c; b++)
            n += !is_printable(b);
        n = is_printable(c) ? c : n;
        char two[2] = { (char)(0xc0 | n >> 6), (char)(0x80 | (n & 0x3f)) };
        if (n < 0x80)
            clb_text_add(out, &(char){ (char)n }, 1);
        else
            clb_text_add(out, two, 2);
    }
}

bool clb_byte_level_read(struct clb_str s, struct clb_text *out)
{
    const char *end = s.p + s.n;
    size_t before = out->n;
    unsigned n;

    for (const char *p = s.p; p < end; p += n) {
        int b = byte_of(clb_utf8_get(p, end, &n));
        if (b < 0) {
            if (out->p) {
                out->n = before;
                out->p[before] = 0;
            }
            return false;
        }
        char c = (char)b;
        clb_text_add(out, &c, 1);
    }
    return true;
}
