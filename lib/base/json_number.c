/* Numbers of the JSON reader: exact integers, correctly rounded floats. */
#include <math.h>
#include <stdlib.h>

#include "lib/base/fpstate.h"
#include "lib/base/json_impl.h"
#include "lib/base/mem.h"

static size_t digits(const struct clb_json *j, size_t i)
{
    while (i < j->n && j->text[i] >= '0' && j->text[i] <= '9')
        i++;
    return i;
}

bool clb_json_scan_number(struct clb_json *j, bool *integer)
{
    size_t start = j->at, i = start + (j->text[start] == '-'), first = i;
    bool whole = true;

    i = digits(j, i);
    if (i == first)
        return clb_json_fail_byte(j, i, "a digit");
    if (j->text[first] == '0' && i > first + 1)
        return clb_json_fail_at(j, CLB_BAD_INPUT, start, "a number may not start with 0");
    if (i < j->n && j->text[i] == '.') {
        whole = false;
        first = ++i;
        i = digits(j, i);
        if (i == first)
            return clb_json_fail_byte(j, i, "a digit");
    }
    if (i < j->n && (j->text[i] == 'e' || j->text[i] == 'E')) {
        whole = false;
        i++;
        if (i < j->n && (j->text[i] == '+' || j->text[i] == '-'))
            i++;
        first = i;
        i = digits(j, i);
        if (i == first)
            return clb_json_fail_byte(j, i, "a digit");
    }
    j->at = i;
    j->state->value_due = false;
    if (integer)
        *integer = whole;
    return true;
}

static int shown(size_t n)
{
    return n > 40 ? 40 : (int)n;
}

/* Nearly all numbers of a header: up to 19 digits that nothing follows. False: look closer. */
static bool short_integer(struct clb_json *j, uint64_t *magnitude)
{
    const char *s = j->text;
    size_t i = j->at, end = j->n - i > 19 ? i + 19 : j->n;
    uint64_t v = 0;

    for (; i < end && s[i] >= '0' && s[i] <= '9'; i++)
        v = v * 10 + (uint64_t)(s[i] - '0');
    if (i == j->at || i == end || (s[j->at] == '0' && i > j->at + 1) || s[i] == '.' ||
        (s[i] | 0x20) == 'e')
        return false;
    *magnitude = v;
    j->at = i;
    j->state->value_due = false;
    return true;
}

/* Magnitude and sign of the integer that comes next. */
static bool integer(struct clb_json *j, uint64_t *magnitude, bool *negative)
{
    bool whole = true;
    enum clb_json_type t = clb_json_peek(j);

    if (t == CLB_JSON_ERROR)
        return false;
    if (t != CLB_JSON_NUMBER)
        return clb_json_fail(j, "%s, but a whole number was expected", clb_json_type_name(t));
    *negative = false;
    if (short_integer(j, magnitude))
        return true;
    if (!clb_json_scan_number(j, &whole))
        return false;
    const char *s = j->text + j->value_at;
    size_t n = j->at - j->value_at;
    if (!whole)
        return clb_json_fail(j, "%.*s is not a whole number", shown(n), s);
    *negative = s[0] == '-';
    *magnitude = 0;
    for (size_t i = *negative; i < n; i++)
        if (!clb_mul(*magnitude, 10, magnitude) ||
            !clb_add(*magnitude, (uint64_t)(s[i] - '0'), magnitude))
            return clb_json_fail(j, "%.*s is too large a number", shown(n), s);
    return true;
}

uint64_t clb_json_u64(struct clb_json *j, uint64_t max)
{
    uint64_t v;
    bool negative;

    if (!integer(j, &v, &negative))
        return 0;
    if (negative && v != 0) {
        clb_json_fail(j, "-%llu is negative", (unsigned long long)v);
        return 0;
    }
    if (v > max) {
        clb_json_fail(j, "%llu is more than %llu", (unsigned long long)v, (unsigned long long)max);
        return 0;
    }
    return v;
}

int64_t clb_json_i64(struct clb_json *j, int64_t min, int64_t max)
{
    uint64_t v;
    bool negative;

    if (!integer(j, &v, &negative))
        return 0;
    uint64_t most = (uint64_t)INT64_MAX + negative;
    int64_t i = v > most ? 0 : negative ? (int64_t)(0 - v) : (int64_t)v;
    if (v > most || i < min || i > max) {
        clb_json_fail(j, "%s%llu is not between %lld and %lld", negative ? "-" : "",
                      (unsigned long long)v, (long long)min, (long long)max);
        return 0;
    }
    return i;
}

double clb_json_f64(struct clb_json *j)
{
    char small[64];

    enum clb_json_type t = clb_json_peek(j);
    if (t != CLB_JSON_NUMBER && t != CLB_JSON_ERROR)
        clb_json_fail(j, "%s, but a number was expected", clb_json_type_name(t));
    if (t != CLB_JSON_NUMBER || !clb_json_scan_number(j, NULL))
        return 0;
    size_t n = j->at - j->value_at;
    char *s = n < sizeof small ? small : clb_grow(NULL, n + 1, 1, &j->fault);
    if (!s)
        return 0;
    memcpy(s, j->text + j->value_at, n);
    s[n] = '\0';
    struct clb_fp caller = clb_fp_enter(); /* strtod rounds as the thread does */
    double v = strtod_l(s, NULL, j->state->c_locale);
    clb_fp_leave(caller);
    if (s != small)
        clb_free(s);
    if (!isfinite(v)) {
        clb_json_fail(j, "%.*s is too large a number", shown(n), j->text + j->value_at);
        return 0;
    }
    return v;
}

bool clb_json_number_key(struct clb_json *j, struct clb_str key, const char *what, uint32_t *n)
{
    bool ok = key.n > 0 && key.n <= 9;

    *n = 0;
    for (size_t i = 0; ok && i < key.n; i++) {
        ok = key.p[i] >= '0' && key.p[i] <= '9';
        *n = *n * 10 + (uint32_t)(key.p[i] - '0');
    }
    return ok || clb_json_fail(j, "'%.*s' is no %s", (int)(key.n < 12 ? key.n : 12), key.p, what);
}
