/* normalise.c - NFC, NFD, NFKC, NFKD.
 *
 * The text is worked on in stretches: one starts at every character that neither combines nor
 * composes with what stands before it. Most stretches are one character that stays as it is. */
#include "lib/token/unicode.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/token/utf8.h"

enum {
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7,
    HANGUL_S = 0xac00,
    N_HANGUL_L = 19,
    N_HANGUL_V = 21,
    N_HANGUL_T = 28,
    N_HANGUL_S = 11172,
};

/* A decomposed character as one number that sorts by class, then by place: class << 56 | place <<
 * 21 | code point. */
struct stretch {
    uint64_t *item; /* owned */
    size_t n, room;
    struct clb_err err; /* code CLB_OK, or what went wrong */
};

static unsigned norm(uint32_t c)
{
    uint32_t block = clb_uc_norm_mid[(uint32_t)clb_uc_norm_top[c >> 10] << 6 | (c >> 4 & 63)];

    return clb_uc_norm_block[block << 4 | (c & 15)];
}
static unsigned ccc(uint32_t c)
{
    return clb_uc_ccc[norm(c) & 63];
}
/* May a text in this form change at a character of this norm() value? */
static bool may_change(unsigned v, enum clb_form form)
{
    return v & (form == CLB_NFKC || form == CLB_NFKD ? 0x80 : 0x40);
}

bool clb_is_normal(struct clb_str s, enum clb_form form)
{
    const char *end = s.p + s.n;
    unsigned last = 0;

    for (const char *p = s.p; p < end;) {
        unsigned n = 1;
        if ((uint8_t)*p < (form == CLB_NFC ? 0xcc : 0x80)) { /* NFC: nothing below U+0300 changes */
            last = 0;
            p++;
            continue;
        }
        if (form == CLB_NFD || form == CLB_NFKD)
            return false;
        unsigned v = norm(clb_utf8_get(p, end, &n)), class = clb_uc_ccc[v & 63];
        if (may_change(v, form) || (class && class < last))
            return false;
        last = class;
        p += n;
    }
    return true;
}

static void push(struct stretch *t, uint32_t c)
{
    if (t->n == t->room) {
        size_t room = t->room ? t->room * 2 : 64;
        uint64_t *more = clb_grow(t->item, room, sizeof *more, &t->err);
        if (!more)
            return;
        t->item = more;
        t->room = room;
    }
    t->item[t->n] = (uint64_t)ccc(c) << 56 | (uint64_t)t->n << 21 | c;
    t->n++;
}

/* sorted: low halves; those of plane p are plane[p] .. plane[p + 1] - 1. */
static long find(const uint16_t *sorted, const uint16_t plane[4], uint32_t c)
{
    if (c >> 16 > 2)
        return -1;
    unsigned low = plane[c >> 16], end = plane[(c >> 16) + 1], high = end;
    uint16_t half = (uint16_t)c;

    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (sorted[mid] < half)
            low = mid + 1;
        else
            high = mid;
    }
    return low < end && sorted[low] == half ? (long)low : -1;
}

static void push_text(struct stretch *t, const uint8_t *text, const uint16_t *at,
                      const uint8_t *bytes, unsigned i)
{
    const char *p = (const char *)text + at[i / 16], *end;
    unsigned n;

    for (unsigned k = i / 16 * 16; k < i; k++)
        p += bytes[k];
    end = p + bytes[i];

    for (; p < end; p += n)
        push(t, clb_utf8_get(p, end, &n));
}

static void decompose(struct stretch *t, uint32_t c, enum clb_form form)
{
    if (c - HANGUL_S < N_HANGUL_S) {
        uint32_t s = c - HANGUL_S;
        push(t, HANGUL_L + s / (N_HANGUL_V * N_HANGUL_T));
        push(t, HANGUL_V + s / N_HANGUL_T % N_HANGUL_V);
        if (s % N_HANGUL_T)
            push(t, HANGUL_T + s % N_HANGUL_T);
        return;
    }
    long i;
    if (c < 0xa0)
        push(t, c);
    else if ((form == CLB_NFKC || form == CLB_NFKD) &&
             (i = find(clb_uc_compat, clb_uc_compat_plane, c)) >= 0)
        push_text(t, clb_uc_compat_text, clb_uc_compat_at, clb_uc_compat_bytes, (unsigned)i);
    else if ((i = find(clb_uc_canonical, clb_uc_canonical_plane, c)) >= 0)
        push_text(t, clb_uc_canonical_text, clb_uc_canonical_at, clb_uc_canonical_bytes,
                  (unsigned)i);
    else
        push(t, c);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Marks between two characters of class 0 are put in the order of their classes. */
static void reorder(struct stretch *t)
{
    for (size_t i = 0; i < t->n;) {
        size_t end = i;
        while (end < t->n && t->item[end] >> 56)
            end++;
        if (end - i > 1)
            qsort(t->item + i, end - i, sizeof *t->item, by_number);
        i = end + 1;
    }
}

/* The composed character, or 0. */
static uint32_t pair(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < N_HANGUL_L && b - HANGUL_V < N_HANGUL_V)
        return HANGUL_S + ((a - HANGUL_L) * N_HANGUL_V + (b - HANGUL_V)) * N_HANGUL_T;
    if (a - HANGUL_S < N_HANGUL_S && (a - HANGUL_S) % N_HANGUL_T == 0 && b > HANGUL_T &&
        b < HANGUL_T + N_HANGUL_T)
        return a + (b - HANGUL_T);
    if (a >> 16 > 2 || a >> 16 != b >> 16)
        return 0;
    unsigned low = clb_uc_pairs_plane[a >> 16], end = clb_uc_pairs_plane[(a >> 16) + 1], high = end;
    uint16_t first = (uint16_t)a, second = (uint16_t)b;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        const uint16_t *row = clb_uc_pairs[mid];
        if (row[0] < first || (row[0] == first && row[1] < second))
            low = mid + 1;
        else
            high = mid;
    }
    if (low < end && clb_uc_pairs[low][0] == first && clb_uc_pairs[low][1] == second)
        return (a & ~0xffffu) | clb_uc_pairs[low][2];
    return 0;
}

static uint32_t point(uint64_t item)
{
    return item & 0x1fffff;
}

static void compose(struct stretch *t)
{
    size_t n = 0, starter = SIZE_MAX;
    int last = -1; /* class of the last mark kept since the starter; -1: none */

    for (size_t i = 0; i < t->n; i++) {
        uint32_t c = point(t->item[i]), both = 0;
        int class = (int)(t->item[i] >> 56);
        if (starter != SIZE_MAX && last < class)
            both = pair(point(t->item[starter]), c);
        if (both) {
            t->item[starter] = both;
            continue;
        }
        if (class == 0) {
            starter = n;
            last = -1;
        } else {
            last = class;
        }
        t->item[n++] = t->item[i];
    }
    t->n = n;
}

static void flush(struct stretch *t, enum clb_form form, struct clb_text *out)
{
    reorder(t);
    if (form == CLB_NFC || form == CLB_NFKC)
        compose(t);
    for (size_t i = 0; i < t->n; i++) {
        char utf8[4];
        clb_text_add(out, utf8, clb_utf8_put(utf8, point(t->item[i])));
    }
    t->n = 0;
}

/* Where the stretch that starts at s ends; *plain: it is one character that stays. */
static const char *stretch_end(const char *s, const char *end, enum clb_form form, bool *plain)
{
    unsigned n;
    uint32_t c = clb_utf8_get(s, end, &n);
    bool stays = (form == CLB_NFC || form == CLB_NFKC || c < 0x80) && !norm(c);
    const char *p = s + n;

    while (p < end) {
        unsigned v = (uint8_t)*p < 0x80 ? 0 : norm(clb_utf8_get(p, end, &n));
        if (!(v & 63) && !may_change(v, form))
            break;
        p += n;
        stays = false;
    }
    *plain = stays;
    return p;
}

void clb_normalise(struct clb_str s, enum clb_form form, struct clb_text *out)
{
    struct stretch t = { .err = { .code = CLB_OK } };
    const char *end = s.p + s.n, *kept = s.p; /* [kept, p): to be copied */

    for (const char *p = s.p; p < end;) {
        bool plain;
        const char *next = stretch_end(p, end, form, &plain);
        if (!plain) {
            clb_text_add(out, kept, (size_t)(p - kept));
            unsigned n;
            for (; p < next; p += n)
                decompose(&t, clb_utf8_get(p, end, &n), form);
            flush(&t, form, out);
            kept = next;
        }
        p = next;
    }
    clb_text_add(out, kept, (size_t)(end - kept));
    out->failed |= t.err.code != CLB_OK;
    clb_free(t.item);
}
