/* words.c - small things that several answers need. */
#include <stdio.h>

#include "cmd/colibri-inspect/inspect.h"

const char *inspect_expert_dtype(const struct clb_reader *r)
{
    return clb_dtype_name(r->experts[0].part[CLB_GATE].dtype);
}

const char *inspect_dense_dtype(const struct clb_reader *r)
{
    return clb_dtype_name(clb_reader_find(r, CLB_OUTPUT, UINT32_MAX)->dtype);
}

const char *inspect_amount(char buf[static 32], double n)
{
    static const char *const unit[] = { "", " k", " M", " B", " T" };
    int u = 0;

    while (n >= 1000 && u < 4) {
        n /= 1000;
        u++;
    }
    snprintf(buf, 32, u == 0 || n >= 100 ? "%.0f%s" : n >= 10 ? "%.1f%s" : "%.2f%s", n, unit[u]);
    return buf;
}

const char *inspect_safe(char *buf, size_t room, const char *text)
{
    size_t n = 0;

    for (const unsigned char *p = (const unsigned char *)text; *p && n + 1 < room; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 to U+009F in UTF-8 */
        if (*p < 0x20 || *p == 0x7f || c1)
            buf[n++] = '?';
        else
            buf[n++] = (char)*p;
        p += c1;
    }
    buf[n] = 0;
    return buf;
}
