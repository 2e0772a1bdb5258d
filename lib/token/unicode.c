#include "lib/token/unicode.h"

#include <stdlib.h>

#include "lib/token/utf8.h"

bool clb_uc_is_numeric(uint32_t c)
{
    if (clb_uc_in(c, CLB_SET_N))
        return true;
    if (c < clb_uc_numeric_extra[0])
        return false;
    for (unsigned i = 0; i < CLB_UC_NUMERIC; i++)
        if (clb_uc_numeric_extra[i] == c)
            return true;
    return false;
}

static uint32_t lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    unsigned low = 0, high = CLB_UC_LOWER;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (clb_uc_lower[mid].first <= c)
            low = mid + 1;
        else
            high = mid;
    }
    if (!low)
        return c;
    const struct clb_uc_range *r = &clb_uc_lower[low - 1];
    uint32_t ahead = c - r->first;
    return ahead % r->step || ahead / r->step >= r->n ? c : (uint32_t)((int32_t)c + r->add);
}

void clb_lower_case(struct clb_str s, struct clb_text *out)
{
    const char *end = s.p + s.n;

    for (const char *p = s.p; p < end;) {
        unsigned n;
        uint32_t c = clb_utf8_get(p, end, &n);
        char utf8[4];
        if (c == 0x130) /* the one that becomes two */
            clb_text_puts(out, "i\xcc\x87");
        else
            clb_text_add(out, utf8, clb_utf8_put(utf8, lower(c)));
        p += n;
    }
}
