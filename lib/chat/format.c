/* Texts with places to fill: format % values, "{}".format(), strftime. */
#include <stdio.h>
#include <string.h>

#include "lib/chat/number.h"
#include "lib/chat/vm.h"

/* -- % ----------------------------------------------------------------------------------------- */

struct spec {
    bool left, zero, plus, space;
    int64_t width, digits; /* digits -1: not given */
    char type;
};

/* What stands between '%' and the type, which ends it. False: it is not one we know. */
static bool read_spec(const char *p, const char *end, struct spec *s, const char **after)
{
    *s = (struct spec){ .digits = -1 };
    for (; p < end && *p && strchr("-0+ ", *p); p++) {
        s->left |= *p == '-';
        s->zero |= *p == '0';
        s->plus |= *p == '+';
        s->space |= *p == ' ';
    }
    for (; p < end && *p >= '0' && *p <= '9' && s->width < 10000; p++)
        s->width = s->width * 10 + (*p - '0');
    if (p < end && *p == '.')
        for (s->digits = 0, p++; p < end && *p >= '0' && *p <= '9' && s->digits < 10000; p++)
            s->digits = s->digits * 10 + (*p - '0');
    if (p >= end || !*p || !strchr("sridfFxX%", *p) || s->width > 1000)
        return false;
    s->type = *p;
    *after = p + 1;
    return true;
}

static void pad(struct clb_out *b, const struct spec *s, const struct clb_string *text, bool number)
{
    int64_t n = (int64_t)clb_count_chars(text->p, text->n);
    bool zero = s->zero && number && !s->left;
    size_t sign = zero && text->n && strchr("+- ", text->p[0]);

    if (sign)
        clb_out_part(b, text, 0, 1);
    for (int64_t i = n; !s->left && i < s->width; i++)
        clb_out_puts(b, zero ? "0" : " ");
    clb_out_part(b, text, sign, text->n - sign);
    for (int64_t i = n; s->left && i < s->width; i++)
        clb_out_puts(b, " ");
}

static bool put_number(struct clb_vm *vm, struct clb_out *b, const struct spec *s,
                       const struct clb_value *v)
{
    char text[CLB_NUMBER_TEXT + 2] = "", *t = text + 1;
    bool real = s->type == 'f' || s->type == 'F', whole = v->kind != CLB_V_FLOAT;

    if (v->kind != CLB_V_INT && v->kind != CLB_V_BOOL && v->kind != CLB_V_FLOAT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "%%%c needs a number, not '%s'", s->type,
                           clb_type_name(v));
    int64_t i = v->kind == CLB_V_BOOL ? v->u.b : whole ? v->u.i : 0;
    if (!whole && !real && !(v->u.f > -0x1p62 && v->u.f < 0x1p62))
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "an integer beyond 64 bits");
    i = whole || real ? i : (int64_t)v->u.f;
    if ((!real && s->digits >= 0) || s->digits > 20 || (!whole && (s->type | 32) == 'x'))
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "this format of a number is not supported");
    if (real)
        clb_number_fixed(t, whole ? (double)i : v->u.f, s->digits < 0 ? 6 : (int)s->digits);
    else if ((s->type | 32) == 'x')
        snprintf(t, CLB_NUMBER_TEXT, s->type == 'x' ? "%s%llx" : "%s%llX", i < 0 ? "-" : "",
                 i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i);
    else
        snprintf(t, CLB_NUMBER_TEXT, "%lld", (long long)i);
    if ((s->plus || s->space) && *t != '-')
        *--t = s->plus ? '+' : ' ';
    const struct clb_string shown = { t, clb_of_template, strlen(t) };
    pad(b, s, &shown, true);
    return true;
}

static bool put_text(struct clb_vm *vm, struct clb_out *b, const struct spec *s,
                     const struct clb_value *v)
{
    struct clb_out t = { .arena = &vm->arena };
    struct clb_value text;

    if (!(s->type == 'r' ? clb_repr(vm, &t, v) : clb_print(vm, &t, v)) ||
        !clb_vm_got(vm, clb_out_done(&t, &text)))
        return false;
    struct clb_string cut = *text.u.s;
    if (s->digits >= 0)
        cut.n = clb_skip_chars(cut.p, cut.n, (size_t)s->digits);
    pad(b, s, &cut, false);
    return true;
}

bool clb_percent(struct clb_vm *vm, const struct clb_string *format, const struct clb_value *args,
                 size_t n, const struct clb_dict *named, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };
    const char *p = format->p, *end = p + format->n;
    size_t used = 0;
    bool by_name = false;

    while (p < end) {
        const char *mark = memchr(p, '%', (size_t)(end - p)), *close = NULL;
        const struct clb_value *v = NULL;
        struct spec s;
        clb_out_part(&b, format, (size_t)(p - format->p), (size_t)((mark ? mark : end) - p));
        if (!mark)
            break;
        p = mark + 1;
        if (p < end && *p == '(' && (close = memchr(p, ')', (size_t)(end - p)))) {
            v = named ? clb_dict_find(named, (struct clb_str){ p + 1, (size_t)(close - p - 1) })
                      : NULL;
            p = close + 1;
            by_name = true;
        }
        if (!read_spec(p, end, &s, &p))
            return clb_vm_fail(vm, CLB_UNSUPPORTED, "this format after '%%' is not supported");
        if (s.type == '%') {
            clb_out_puts(&b, "%");
            continue;
        }
        if (!close && used < n)
            v = &args[used++];
        if (!v)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "not enough values for the format");
        if (!(strchr("sr", s.type) ? put_text : put_number)(vm, &b, &s, v) || !clb_vm_charge(vm, 1))
            return false;
    }
    if (used < n && !by_name && !named)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "more values than the format has places");
    return clb_vm_got(vm, clb_out_done(&b, out));
}

/* -- {} ---------------------------------------------------------------------------------------- */

bool clb_braces(struct clb_vm *vm, const struct clb_string *format, const struct clb_call *c,
                struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };
    const char *p = format->p, *end = p + format->n;
    size_t next = 0;

    for (; p < end; p++) {
        const char *close = *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        const struct clb_value *v = NULL;
        if (p + 1 < end && (*p == '{' || *p == '}') && p[1] == *p) {
            clb_out_part(&b, format, (size_t)(p++ - format->p), 1);
            continue;
        }
        if (*p != '{' && *p != '}') {
            clb_out_part(&b, format, (size_t)(p - format->p), 1);
            continue;
        }
        struct clb_str name = { p + 1, close ? (size_t)(close - p - 1) : 0 };
        int64_t index;
        if (!close)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "a single brace in a format");
        if (name.n == 0)
            v = next < c->n ? &c->arg[next++] : NULL;
        else if (clb_integer_read(name.p, name.n, &index))
            v = index >= 0 && (uint64_t)index < c->n ? &c->arg[index] : NULL;
        else if (!memchr(name.p, ':', name.n) && !memchr(name.p, '!', name.n) &&
                 !memchr(name.p, '.', name.n) && !memchr(name.p, '[', name.n))
            v = clb_dict_find(c->named, name);
        else
            return clb_vm_fail(vm, CLB_UNSUPPORTED, "this format in braces is not supported");
        if (!v)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "a value for the format is missing");
        if (!clb_print(vm, &b, v))
            return false;
        p = close;
    }
    return clb_vm_charge(vm, format->n / 8) && clb_vm_got(vm, clb_out_done(&b, out));
}

/* -- dates ------------------------------------------------------------------------------------- */

static int days_before(int year, int month)
{
    static const int days[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 };
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (leap && month > 2);
}

/* 0 is Sunday. */
static int weekday(const struct clb_moment *m)
{
    int y = m->year - 1;

    return (y * 365 + y / 4 - y / 100 + y / 400 + days_before(m->year, m->month) + m->day) % 7;
}

static const char *const day_name[] = { "Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday" };
static const char *const month_name[] = { "January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December" };

/* One conversion; `bare`: "%-d", without padding. False: not known. */
static bool put_time(struct clb_out *b, const struct clb_moment *m, char type, bool bare)
{
    int hour = m->hour % 12 ? m->hour % 12 : 12, w = weekday(m);
    int day = days_before(m->year, m->month) + m->day;
    const struct {
        char type, width;
        int value;
    } number[] = { { 'd', 2, m->day }, { 'm', 2, m->month },      { 'H', 2, m->hour },
                   { 'I', 2, hour },   { 'M', 2, m->minute },     { 'S', 2, m->second },
                   { 'j', 3, day },    { 'y', 2, m->year % 100 }, { 'Y', 1, m->year },
                   { 'w', 1, w },      { 'u', 1, w ? w : 7 },     { 'f', 6, m->microsecond } };

    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (number[i].type == type && !(bare && type == 'f')) {
            clb_out_printf(b, "%0*d", bare ? 1 : number[i].width, number[i].value);
            return true;
        }
    if (bare)
        return false;
    if (type == 'A' || type == 'a')
        clb_out_printf(b, "%.*s", type == 'a' ? 3 : 9, day_name[w]);
    else if (type == 'B' || type == 'b' || type == 'h')
        clb_out_printf(b, "%.*s", type == 'B' ? 9 : 3, month_name[m->month - 1]);
    else if (type == 'e')
        clb_out_printf(b, "%2d", m->day);
    else if (type == 'p')
        clb_out_puts(b, m->hour < 12 ? "AM" : "PM");
    else if (type == 'F')
        clb_out_printf(b, "%d-%02d-%02d", m->year, m->month, m->day);
    else if (type == 'T')
        clb_out_printf(b, "%02d:%02d:%02d", m->hour, m->minute, m->second);
    else if (type == '%')
        clb_out_puts(b, "%");
    else
        return type == 'Z' || type == 'z'; /* empty: the time has no zone */
    return true;
}

bool clb_strftime(struct clb_vm *vm, struct clb_out *b, const struct clb_string *format)
{
    for (size_t i = 0; i < format->n; i++) {
        bool bare = i + 2 < format->n && format->p[i + 1] == '-';
        if (format->p[i] != '%') {
            clb_out_part(b, format, i, 1);
            continue;
        }
        i += 1 + bare;
        if (i >= format->n || !put_time(b, &vm->now, format->p[i], bare))
            return clb_vm_fail(vm, CLB_UNSUPPORTED, "'%%%s%c' of a date is not supported",
                               bare ? "-" : "", i < format->n ? format->p[i] : ' ');
    }
    return clb_vm_charge(vm, format->n) && clb_vm_got(vm, !b->failed);
}
