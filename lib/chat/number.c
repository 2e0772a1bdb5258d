#include "lib/chat/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/fpstate.h"

/* What printf and strtod see of the program around us, put aside. */
struct around {
    locale_t c, before;
    struct clb_fp fp;
};

static struct around enter(void)
{
    struct around a = { .c = newlocale(LC_ALL_MASK, "C", (locale_t)0) };

    a.before = a.c ? uselocale(a.c) : (locale_t)0;
    a.fp = clb_fp_enter();
    return a;
}

static void leave(struct around a)
{
    clb_fp_leave(a.fp);
    if (a.c) {
        uselocale(a.before);
        freelocale(a.c);
    }
}

double clb_number_read(const char *s, size_t n)
{
    char text[1024];
    struct around a = enter();

    n = n < sizeof text - 1 ? n : sizeof text - 1;
    memcpy(text, s, n);
    text[n] = '\0';
    double v = strtod(text, NULL);
    leave(a);
    return v;
}

static size_t digits(const char *s, size_t i, size_t n)
{
    size_t from = i;

    while (i < n && ((s[i] >= '0' && s[i] <= '9') ||
                     (s[i] == '_' && i > from && s[i - 1] != '_' && i + 1 < n)))
        i++;
    return i;
}

static bool word(const char *s, size_t n, const char *is)
{
    if (n != strlen(is))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((s[i] | 0x20) != is[i])
            return false;
    return true;
}

bool clb_float_read(const char *s, size_t n, double *out)
{
    char text[512];
    size_t i = n > 0 && (*s == '-' || *s == '+'), m = 0, whole = digits(s, i, n), at = whole;
    double sign = i && *s == '-' ? -1 : 1;

    if (word(s + i, n - i, "inf") || word(s + i, n - i, "infinity")) {
        *out = sign * INFINITY;
        return true;
    }
    if (word(s + i, n - i, "nan")) {
        *out = NAN;
        return true;
    }
    if (at < n && s[at] == '.') {
        size_t more = digits(s, at + 1, n);
        if (whole == i && more == at + 1)
            return false;
        at = more;
    } else if (whole == i) {
        return false;
    }
    if (at < n && (s[at] | 0x20) == 'e') {
        size_t first = at + 1 + (at + 1 < n && (s[at + 1] == '-' || s[at + 1] == '+'));
        at = digits(s, first, n);
        if (at == first)
            return false;
    }
    if (at != n || n >= sizeof text)
        return false;
    for (i = 0; i < n; i++)
        if (s[i] != '_')
            text[m++] = s[i];
    *out = clb_number_read(text, m);
    return true;
}

bool clb_integer_read(const char *s, size_t n, int64_t *out)
{
    size_t i = n > 0 && (*s == '-' || *s == '+');
    bool negative = i && *s == '-';
    int64_t v = 0;

    if (i == n || digits(s, i, n) != n)
        return false;
    for (; i < n; i++) {
        int d = s[i] - '0';
        if (s[i] == '_')
            continue;
        if (__builtin_mul_overflow(v, 10, &v) ||
            (negative ? __builtin_sub_overflow(v, d, &v) : __builtin_add_overflow(v, d, &v)))
            return false;
    }
    *out = v;
    return true;
}

/* Digits and exponent of "d.ddde+xx" as Python shows them. */
static void lay_out(char *out, const char *scientific, bool negative)
{
    const char *e = strchr(scientific, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10), n = 0, at = 0;
    char digit[20];

    for (const char *p = scientific; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digit[n++] = *p;
    while (n > 1 && digit[n - 1] == '0')
        n--;
    if (negative)
        out[at++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[at++] = digit[0];
        if (n > 1)
            out[at++] = '.';
        memcpy(out + at, digit + 1, (size_t)n - 1);
        at += n - 1;
        snprintf(out + at, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    for (int place = exponent < 0 ? 0 : exponent; place >= exponent - n + 1 || place >= -1;
         place--) {
        int i = exponent - place;
        if (place == -1)
            out[at++] = '.';
        out[at++] = i >= 0 && i < n ? digit[i] : '0';
    }
    out[at] = '\0';
}

void clb_number_repr(char out[static CLB_NUMBER_TEXT], double v)
{
    char s[40];

    if (isnan(v) || isinf(v)) {
        snprintf(out, CLB_NUMBER_TEXT, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    struct around a = enter();
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(s, sizeof s, "%.*e", precision, fabs(v));
        if (strtod(s, NULL) == fabs(v))
            break;
    }
    leave(a);
    lay_out(out, s, signbit(v));
}

void clb_number_fixed(char out[static CLB_NUMBER_TEXT], double v, int digit)
{
    struct around a = enter();

    snprintf(out, CLB_NUMBER_TEXT, "%.*f", digit, v);
    leave(a);
}
