/* What is known about a terminal. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/cli/report.h"

int clb_term_width(FILE *f)
{
    struct winsize w;

    if (ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

bool clb_term_colour(FILE *f)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(fileno(f)) && !(none && *none) && term && strcmp(term, "dumb");
}

static uint32_t code_point(const unsigned char *u, size_t len)
{
    uint32_t cp = len == 1 ? u[0] : u[0] & (0x7fu >> len);

    for (size_t i = 1; i < len; i++)
        cp = cp << 6 | (u[i] & 63);
    return cp;
}

static int columns_of(uint32_t cp)
{
    static const struct {
        uint32_t first, last;
        int columns;
    } range[] = {
        { 0x0000, 0x001f, 0 },   { 0x0300, 0x036f, 0 },   { 0x0483, 0x0489, 0 },
        { 0x0591, 0x05bd, 0 },   { 0x0610, 0x061a, 0 },   { 0x064b, 0x065f, 0 },
        { 0x0900, 0x0902, 0 },   { 0x093c, 0x093c, 0 },   { 0x0941, 0x0948, 0 },
        { 0x094d, 0x094d, 0 },   { 0x0e31, 0x0e31, 0 },   { 0x0e34, 0x0e3a, 0 },
        { 0x0e47, 0x0e4e, 0 },   { 0x1100, 0x115f, 2 },   { 0x1ab0, 0x1aff, 0 },
        { 0x1dc0, 0x1dff, 0 },   { 0x200b, 0x200f, 0 },   { 0x20d0, 0x20ff, 0 },
        { 0x231a, 0x231b, 2 },   { 0x2e80, 0x303e, 2 },   { 0x3041, 0xa4cf, 2 },
        { 0xac00, 0xd7a3, 2 },   { 0xf900, 0xfaff, 2 },   { 0xfe00, 0xfe0f, 0 },
        { 0xfe20, 0xfe2f, 0 },   { 0xfe30, 0xfe6f, 2 },   { 0xff00, 0xff60, 2 },
        { 0xffe0, 0xffe6, 2 },   { 0x1f300, 0x1f64f, 2 }, { 0x1f680, 0x1f6ff, 2 },
        { 0x1f900, 0x1f9ff, 2 }, { 0x20000, 0x3fffd, 2 }, { 0xe0100, 0xe01ef, 0 },
    };

    for (size_t i = 0; i < sizeof range / sizeof *range && cp >= range[i].first; i++)
        if (cp <= range[i].last)
            return range[i].columns;
    return 1;
}

int clb_text_columns(const char *s)
{
    int columns = 0;

    for (size_t n = strlen(s), i = 0; i < n;) {
        size_t len = clb_utf8_len(s + i, n - i);
        columns += len ? columns_of(code_point((const unsigned char *)s + i, len)) : 1;
        i += len ? len : 1;
    }
    return columns;
}
