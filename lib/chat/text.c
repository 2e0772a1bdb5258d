/* Work on text that filters and methods share. Every part of a result keeps its origin. */
#include <string.h>

#include "lib/chat/lex.h"
#include "lib/chat/vm.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

/* -- case -------------------------------------------------------------------------------------- */

static bool is_cased(uint32_t c)
{
    return clb_uc_in(c, CLB_SET(CLB_LU) | CLB_SET(CLB_LL) | CLB_SET(CLB_LT));
}

/* Upper case of a letter beyond ASCII where it is one other letter, which is also its title case;
 * 0: not one of those. */
static uint32_t upper_of(uint32_t c)
{
    if ((c >= 0xe0 && c <= 0xfe && c != 0xf7) || (c >= 0x3b1 && c <= 0x3c9 && c != 0x3c2) ||
        (c >= 0x430 && c <= 0x44f))
        return c - 32;
    if (c >= 0x450 && c <= 0x45f)
        return c - 80;
    if (c == 0xff)
        return 0x178;
    bool odd = (c >= 0x101 && c <= 0x137) || (c >= 0x14b && c <= 0x177);
    bool even = (c >= 0x13a && c <= 0x148) || (c >= 0x17a && c <= 0x17e);
    if ((odd && c % 2 == 1 && c != 0x131) || (even && c % 2 == 0))
        return c - 1;
    return 0;
}

static bool refuse_letter(struct clb_vm *vm, uint32_t c)
{
    return clb_vm_fail(vm, CLB_UNSUPPORTED, "changing the case of U+%04X is not supported", c);
}

/* Appends one character in the other case. */
static bool put_case(struct clb_vm *vm, struct clb_out *b, struct clb_str c, uint32_t code,
                     bool upper, const uint8_t *mark)
{
    char out[4];

    if (code < 0x80) {
        bool letter = (code | 32) >= 'a' && (code | 32) <= 'z';
        *out = (char)(!letter ? code : upper ? code & ~32u : code | 32);
        clb_out_add(b, out, 1, mark);
        return true;
    }
    if (upper) {
        uint32_t big = upper_of(code);
        bool others = (code >= 0x2170 && code <= 0x217f) || (code >= 0x24d0 && code <= 0x24e9) ||
                      code == 0x345 || clb_uc_in(code, CLB_SET(CLB_LL) | CLB_SET(CLB_LT));
        if (!big && others)
            return refuse_letter(vm, code);
        if (big)
            c = (struct clb_str){ out, clb_utf8_put(out, big) };
        clb_out_add(b, c.p, c.n, mark && *mark ? clb_of_template : NULL);
        return true;
    }
    if (code == 0x3a3) /* the end of a word decides */
        return refuse_letter(vm, code);
    struct clb_text low = { 0 };
    clb_lower_case(c, &low);
    b->failed |= low.failed;
    clb_out_add(b, low.p, low.n, mark && *mark ? clb_of_template : NULL);
    clb_text_free(&low);
    return true;
}

/* Whether a word of the filter `title` begins behind c. */
static bool begins_word(const char *c, const char *end)
{
    return strchr("-({[<", *c) || clb_space_at(c, end);
}

bool clb_recase(struct clb_vm *vm, const struct clb_string *s, enum clb_case how,
                struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };
    const char *end = s->p + s->n;
    bool start = true; /* of the text, or of a word */
    unsigned n;

    if (!clb_vm_charge(vm, s->n / 8))
        return false;
    for (const char *p = s->p; p < end; p += n) {
        uint32_t c = clb_utf8_get(p, end, &n);
        bool upper = how == CLB_UPPER || (how != CLB_LOWER && start);
        if (!put_case(vm, &b, (struct clb_str){ p, n }, c, upper,
                      clb_mark_at(s->mark, (size_t)(p - s->p))))
            return false;
        start = how == CLB_TITLE ? !is_cased(c) : how == CLB_WORDS && *p && begins_word(p, end);
    }
    return clb_vm_got(vm, clb_out_done(&b, out));
}

/* -- cutting ----------------------------------------------------------------------------------- */

static bool among(const struct clb_string *chars, const char *p, size_t n)
{
    return memmem(chars->p, chars->n, p, n) != NULL;
}

bool clb_trim(struct clb_vm *vm, const struct clb_string *s, const struct clb_string *chars,
              bool left, bool right, struct clb_value *out)
{
    const char *p = s->p, *end = s->p + s->n;
    size_t n;

    if (!clb_vm_charge(vm, s->n / 8))
        return false;
    while (left && p < end) {
        n = chars ? clb_skip_chars(p, (size_t)(end - p), 1) : clb_space_at(p, end);
        if (!n || (chars && !among(chars, p, n)))
            break;
        p += n;
    }
    while (right && end > p) {
        n = 1;
        while (chars && n < (size_t)(end - p) && ((unsigned char)end[-(ptrdiff_t)n] & 0xc0) == 0x80)
            n++;
        n = chars ? n : clb_space_before(p, end);
        if (!n || (chars && !among(chars, end - n, n)))
            break;
        end -= n;
    }
    return clb_vm_got(vm,
                      clb_string_part(&vm->arena, out, s, (size_t)(p - s->p), (size_t)(end - p)));
}

bool clb_replace(struct clb_vm *vm, const struct clb_string *s, const struct clb_string *old,
                 const struct clb_string *with, int64_t most, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };
    size_t at = 0;

    for (int64_t k = 0; most < 0 || k < most; k++) {
        const char *found = at <= s->n ? memmem(s->p + at, s->n - at, old->p, old->n) : NULL;
        if (!found)
            break;
        size_t to = (size_t)(found - s->p), next = to + old->n;
        if (old->n == 0 && k > 0) { /* between all characters, and at both ends */
            if (at >= s->n)
                break;
            to = next = at + clb_skip_chars(s->p + at, s->n - at, 1);
        }
        clb_out_part(&b, s, at, to - at);
        clb_out_string(&b, with);
        at = next;
        if (!clb_vm_charge(vm, 1 + with->n / 64) || !clb_vm_got(vm, !b.failed))
            return false;
    }
    clb_out_part(&b, s, at, s->n - at);
    return clb_vm_charge(vm, s->n / 16) && clb_vm_got(vm, clb_out_done(&b, out));
}

bool clb_escape_html(struct clb_vm *vm, const struct clb_value *v, struct clb_value *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    struct clb_out b = { .arena = &vm->arena };
    struct clb_value text;

    if (!clb_as_string(vm, v, &text))
        return false;
    const struct clb_string *s = text.u.s;
    for (size_t i = 0; i < s->n && !text.safe; i++) {
        const char *f = s->p[i] ? strchr(from, s->p[i]) : NULL;
        const uint8_t *mark = clb_mark_at(s->mark, i);
        if (f)
            clb_out_add(&b, to[f - from], strlen(to[f - from]),
                        mark && *mark ? clb_of_template : NULL);
        else
            clb_out_add(&b, s->p + i, 1, mark);
    }
    if (text.safe)
        clb_out_string(&b, s);
    if (!clb_vm_charge(vm, s->n / 8) || !clb_vm_got(vm, clb_out_done(&b, out)))
        return false;
    out->safe = true;
    return true;
}

/* Bytes of the line break at s < end, as str.splitlines has it; 0: none. */
static size_t line_break(const char *s, const char *end)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t room = (size_t)(end - s);

    if (p[0] == '\r' && room > 1 && p[1] == '\n')
        return 2;
    if ((p[0] >= 0x0a && p[0] <= 0x0d) || (p[0] >= 0x1c && p[0] <= 0x1e))
        return 1;
    if (room > 1 && p[0] == 0xc2 && p[1] == 0x85)
        return 2;
    return room > 2 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9) ? 3 : 0;
}

bool clb_split_lines(struct clb_vm *vm, const struct clb_string *s, bool keep,
                     struct clb_value *out)
{
    const char *end = s->p + s->n;
    struct clb_value line;

    if (!clb_vm_charge(vm, s->n / 8) ||
        !clb_vm_got(vm, clb_list_make(&vm->arena, out, CLB_V_LIST, 0)))
        return false;
    for (const char *p = s->p; p < end;) {
        const char *stop = p;
        size_t n = 0;
        while (stop < end && !(n = line_break(stop, end)))
            stop++;
        if (!clb_vm_got(vm, clb_string_part(&vm->arena, &line, s, (size_t)(p - s->p),
                                            (size_t)(stop - p) + (keep ? n : 0)) &&
                                clb_list_push(&vm->arena, out->u.list, &line)))
            return false;
        p = stop + n;
    }
    return true;
}
