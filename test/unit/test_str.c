#include "lib/base/str.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "test/check.h"
#include "test/unit/odd_fp.h"

/* Stands before the one of the C library, so that it can find no memory. */
static bool no_locale;

locale_t newlocale(int mask, const char *name, locale_t base)
{
    static locale_t (*real)(int, const char *, locale_t);

    if (no_locale) {
        errno = ENOMEM;
        return (locale_t)0;
    }
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "newlocale");
    return real(mask, name, base);
}

static void test_views(void)
{
    CHECK(clb_str_is(clb_str("abc"), "abc"));
    CHECK(!clb_str_is(clb_str("abc"), "abd"));
    CHECK(!clb_str_is(clb_str("abc"), "ab"));
    CHECK(clb_str_eq((struct clb_str){ NULL, 0 }, clb_str("")));
    CHECK(clb_str_starts(clb_str("abc"), "ab"));
    CHECK(!clb_str_starts(clb_str("a"), "ab"));
}

static void test_utf8(void)
{
    CHECK_EQ(clb_utf8_len("a", 1), 1);
    CHECK_EQ(clb_utf8_len("", 1), 1); /* NUL is a character */
    CHECK_EQ(clb_utf8_len("", 0), 0);
    CHECK_EQ(clb_utf8_len("\xc3\xa9", 2), 2);
    CHECK_EQ(clb_utf8_len("\xe2\x82\xac", 3), 3);
    CHECK_EQ(clb_utf8_len("\xf0\x9f\x98\x80", 4), 4);
    CHECK_EQ(clb_utf8_len("\xf0\x9f\x98\x80", 3), 0);
    CHECK_EQ(clb_utf8_len("\xc1\x80", 2), 0);
    CHECK_EQ(clb_utf8_len("\xe0\x9f\xbf", 3), 0);
    CHECK_EQ(clb_utf8_len("\xed\xa0\x80", 3), 0);
    CHECK_EQ(clb_utf8_len("\xf0\x8f\xbf\xbf", 4), 0);
    CHECK_EQ(clb_utf8_len("\xf4\x90\x80\x80", 4), 0);
    CHECK_EQ(clb_utf8_len("\x80", 1), 0);
    CHECK_EQ(clb_utf8_len("\xe2\x82" "a", 3), 0);
}

static void test_append(void)
{
    struct clb_text t = { 0 };

    clb_text_add(&t, "", 0);
    CHECK_EQ(t.n, 0);
    for (int i = 0; i < 1000; i++)
        clb_text_printf(&t, "%d,", i);
    CHECK_EQ(t.n, 10 * 2 + 90 * 3 + 900 * 4);
    CHECK_EQ(strlen(t.p), t.n);
    CHECK(!strncmp(t.p, "0,1,2,3,", 8));
    clb_text_clear(&t);
    CHECK_STR(t.p, "");
    clb_text_puts(&t, "x");
    CHECK_STR(t.p, "x");
    clb_text_free(&t);
    CHECK(t.p == NULL && t.n == 0);
}

static void test_json_quoting(void)
{
    struct clb_text t = { 0 };
    static const char s[] = "a\"b\\c\n\t\x01\xc3\xa9\xff bnrt/";

    clb_text_json(&t, s, sizeof s - 1);
    CHECK_STR(t.p, "\"a\\\"b\\\\c\\n\\t\\u0001\xc3\xa9\xef\xbf\xbd bnrt/\"");
    clb_text_clear(&t);
    clb_text_json(&t, "\0", 1);
    CHECK_STR(t.p, "\"\\u0000\"");
    clb_text_free(&t);
}

static const char *f32(struct clb_text *t, float v)
{
    clb_text_clear(t);
    clb_text_f32(t, v);
    return t->p;
}

static void test_floats(void)
{
    struct clb_text t = { 0 };

    CHECK_STR(f32(&t, 0.1f), "0.1");
    CHECK_STR(f32(&t, 1.0f), "1.0");
    CHECK_STR(f32(&t, -0.0f), "-0.0");
    CHECK_STR(f32(&t, 1e-6f), "1e-06");
    CHECK_STR(f32(&t, 16777216.0f), "16777216.0");
    CHECK_STR(f32(&t, 3.4028235e38f), "3.4028235e+38");
    CHECK_STR(f32(&t, 1e-45f), "1e-45");
    CHECK_STR(f32(&t, INFINITY), "null");
    uint32_t x = 12345;
    for (int i = 0; i < 20000; i++) { /* any bits come back */
        float v;
        x = x * 1664525u + 1013904223u;
        memcpy(&v, &x, 4);
        if (isfinite(v))
            CHECK(strtof(f32(&t, v), NULL) == v);
    }
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
        CHECK_STR(f32(&t, 0.5f), "0.5");
    setlocale(LC_NUMERIC, "C");
    clb_text_free(&t);
}

static void test_floats_any_state(void)
{
    struct clb_text t = { 0 };

    odd_fp_set();
    clb_text_f32(&t, 0.1f);
    clb_text_puts(&t, " ");
    clb_text_f32(&t, 1e-40f);
    CHECK(odd_fp_reset());
    CHECK_STR(t.p, "0.1 1e-40");
    no_locale = true;
    clb_text_f32(&t, 0.1f);
    no_locale = false;
    CHECK(t.failed);
    CHECK_STR(t.p, "0.1 1e-40");
    clb_text_free(&t);
}

int main(void)
{
    TEST(test_views);
    TEST(test_utf8);
    TEST(test_append);
    TEST(test_json_quoting);
    TEST(test_floats);
    TEST(test_floats_any_state);
    return test_result();
}
