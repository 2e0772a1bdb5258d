#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "lib/base/json.h"
#include "lib/base/mem.h"
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

/* Reads the whole text as one value; the message, or "" when it is fine. */
static const char *verdict(const char *text, size_t n)
{
    static struct clb_err err;
    struct clb_json j;

    err = (struct clb_err){ 0 };
    clb_json_open(&j, text, n, "f");
    clb_json_skip(&j, NULL);
    clb_json_close(&j, &err);
    return err.text;
}

static const char *says(const char *text)
{
    return verdict(text, strlen(text));
}

static void test_accepts(void)
{
    static const char *const good[] = {
        "null",
        " true ",
        "\t\r\nfalse\n",
        "0",
        "-0",
        "-0.0e+1",
        "1E5",
        "\"\"",
        "[]",
        "{}",
        "[[],{}]",
        "{\"a\":1,\"b\":[1,2,{\"a\":null}]}",
        "\"\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\"",
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\"",
        "{\"\":1,\"a\":{\"\":2}}",
        "\"\x7f\"",
        "[1,2 , 3]",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_STR(says(good[i]), "");
}

static void test_refuses(void)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "", "f: byte 0: the text ends, but a value was expected" },
        { "  ", "f: byte 2: the text ends, but a value was expected" },
        { "nul", "f: byte 0: not a value; 'null' was expected" },
        { "nulll", "f: byte 4: found 'l', expected the end of the text" },
        { "truth", "f: byte 0: not a value; 'true' was expected" },
        { "1 2", "f: byte 2: found '2', expected the end of the text" },
        { "+1", "f: byte 0: found '+', expected a value" },
        { "01", "f: byte 0: a number may not start with 0" },
        { "-", "f: byte 1: the text ends, but a digit was expected" },
        { "1.", "f: byte 2: the text ends, but a digit was expected" },
        { ".5", "f: byte 0: found '.', expected a value" },
        { "1e", "f: byte 2: the text ends, but a digit was expected" },
        { "1e+x", "f: byte 3: found 'x', expected a digit" },
        { "NaN", "f: byte 0: found 'N', expected a value" },
        { "'a'", "f: byte 0: found ''', expected a value" },
        { "[1,]", "f: byte 3: '[1]': found ']', expected a value" },
        { "[1 2]", "f: byte 3: '[0]': found '2', expected ',' or ']'" },
        { "[1", "f: byte 2: '[0]': the text ends, but ',' or ']' was expected" },
        { "[1}", "f: byte 2: '[0]': found '}', expected ',' or ']'" },
        { "{\"a\" 1}", "f: byte 5: 'a': found '1', expected ':'" },
        { "{\"a\":1,}", "f: byte 7: 'a': found '}', expected a key in quotes" },
        { "{a:1}", "f: byte 1: found 'a', expected a key in quotes" },
        { "{\"a\":1", "f: byte 6: 'a': the text ends, but ',' or '}' was expected" },
        { "{\"a\":1]", "f: byte 6: 'a': found ']', expected ',' or '}'" },
        { "{\"a\":1,\"a\":2}", "f: byte 7: 'a': duplicate key" },
        { "{\"x\":[{\"ab\":1,\"\\u0061b\":2}]}", "f: byte 14: 'x[0].ab': duplicate key" },
        { "{\"\\u0061\":1,\"a\":2}", "f: byte 12: 'a': duplicate key" },
        { "\"abc", "f: byte 0: the string is not closed" },
        { "\"a\nb\"", "f: byte 2: control character 0x0a inside a string" },
        { "\"\\x\"", "f: byte 1: not a valid escape in a string" },
        { "\"\\u12g4\"", "f: byte 1: not a valid escape in a string" },
        { "\"\\ud800\"", "f: byte 1: '\\ud800' is half of a surrogate pair" },
        { "\"\\ud800\\u0041\"", "f: byte 1: '\\ud800' is half of a surrogate pair" },
        { "\"\\udc00\\ud800\"", "f: byte 1: '\\udc00' is half of a surrogate pair" },
        { "\"a\\", "f: byte 2: not a valid escape in a string" },
        { "\"\xff\"", "f: byte 1: byte 0xff is not valid UTF-8" },
        { "\"\xc0\xaf\"", "f: byte 1: byte 0xc0 is not valid UTF-8" },         /* overlong */
        { "\"\xe0\x80\xaf\"", "f: byte 1: byte 0xe0 is not valid UTF-8" },     /* overlong */
        { "\"\xed\xa0\x80\"", "f: byte 1: byte 0xed is not valid UTF-8" },     /* a surrogate */
        { "\"\xf4\x90\x80\x80\"", "f: byte 1: byte 0xf4 is not valid UTF-8" }, /* > U+10FFFF */
        { "\"12345678901\xe2\x82\"", "f: byte 12: byte 0xe2 is not valid UTF-8" },
        { "[1,\xfe]", "f: byte 3: '[1]': byte 0xfe is not valid UTF-8" },
        { "\xef\xbb\xbf{}",
          "f: byte 0: found byte 0xef, expected a value" }, /* a byte order mark */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_STR(says(bad[i].text), bad[i].why);
    CHECK_STR(verdict("\"a\0b\"", 5), "f: byte 2: control character 0x00 inside a string");
    CHECK_STR(verdict("\"\\\0\"", 4), "f: byte 1: not a valid escape in a string");
}

static void test_coordinates(void)
{
    static const char text[] = "{\"a\":{\"b\":[0,{\"c\":true}]}}";
    struct clb_json j;
    struct clb_str k;
    struct clb_err err;

    clb_json_open(&j, text, strlen(text), "x.json");
    CHECK(clb_json_object(&j) && clb_json_key(&j, &k) && clb_str_is(k, "a"));
    CHECK(clb_json_object(&j) && clb_json_key(&j, &k) && clb_str_is(k, "b"));
    CHECK(clb_json_array(&j) && clb_json_item(&j));
    CHECK_EQ(clb_json_u64(&j, 9), 0);
    CHECK(clb_json_item(&j) && clb_json_object(&j) && clb_json_key(&j, &k));
    CHECK_EQ(clb_json_peek(&j), CLB_JSON_BOOL);
    CHECK(clb_json_bool(&j));
    CHECK(!clb_json_fail(&j, "must be %s", "false"));
    CHECK(!clb_json_item(&j)); /* the first error sticks */
    CHECK(!clb_json_close(&j, &err));
    CHECK_STR(err.text, "x.json: byte 18: 'a.b[1].c': must be false");
    CHECK_STR(err.file, "x.json");
    CHECK_STR(err.field, "a.b[1].c");
    CHECK_EQ(err.offset, 18);
    CHECK_EQ(err.code, CLB_BAD_INPUT);
}

static uint64_t u64(const char *text, uint64_t max, const char **why)
{
    static struct clb_err err;
    struct clb_json j;

    err = (struct clb_err){ 0 };
    clb_json_open(&j, text, strlen(text), "f");
    uint64_t v = clb_json_u64(&j, max);
    clb_json_close(&j, &err);
    *why = err.text;
    return v;
}

static void test_integers(void)
{
    const char *why;

    CHECK(u64("18446744073709551615", UINT64_MAX, &why) == UINT64_MAX && !*why);
    CHECK(u64("9007199254740993", UINT64_MAX, &why) == 9007199254740993u && !*why);
    CHECK(u64("-0", 5, &why) == 0 && !*why);
    u64("18446744073709551616", UINT64_MAX, &why);
    CHECK_STR(why, "f: byte 0: 18446744073709551616 is too large a number");
    u64("11", 10, &why);
    CHECK_STR(why, "f: byte 0: 11 is more than 10");
    u64("-1", 10, &why);
    CHECK_STR(why, "f: byte 0: -1 is negative");
    u64("1.0", 10, &why);
    CHECK_STR(why, "f: byte 0: 1.0 is not a whole number");
    u64("1e3", 10000, &why);
    CHECK_STR(why, "f: byte 0: 1e3 is not a whole number");
    u64("\"1\"", 10, &why);
    CHECK_STR(why, "f: byte 0: a string, but a whole number was expected");

    static const char text[] = "[-9223372036854775808,9223372036854775807,-3,9223372036854775808]";
    struct clb_json j;
    struct clb_err err = { 0 };
    clb_json_open(&j, text, strlen(text), "f");
    clb_json_array(&j);
    CHECK(clb_json_item(&j) && clb_json_i64(&j, INT64_MIN, INT64_MAX) == INT64_MIN);
    CHECK(clb_json_item(&j) && clb_json_i64(&j, INT64_MIN, INT64_MAX) == INT64_MAX);
    CHECK(clb_json_item(&j) && clb_json_i64(&j, -3, 5) == -3);
    CHECK(clb_json_item(&j) && clb_json_i64(&j, INT64_MIN, INT64_MAX) == 0);
    CHECK(!clb_json_close(&j, &err));
    CHECK_HAS(err.text, "9223372036854775808 is not between");
}

static double f64(const char *text, bool *ok)
{
    struct clb_json j;
    struct clb_err err;

    clb_json_open(&j, text, strlen(text), "f");
    double v = clb_json_f64(&j);
    *ok = clb_json_close(&j, &err);
    return v;
}

static void test_floats(void)
{
    bool ok;
    char zeros[3000];

    CHECK(f64("0.1", &ok) == 0.1 && ok);
    CHECK(f64("-1.5E-3", &ok) == -1.5e-3 && ok);
    CHECK(signbit(f64("-0", &ok)) && ok);
    CHECK(f64("9007199254740993", &ok) == 9007199254740992.0 && ok); /* a tie: to even */
    CHECK(f64("9007199254740993.0000000000000000000000000000000000000000000000000000000001", &ok) ==
              9007199254740994.0 &&
          ok); /* above the tie */
    CHECK(f64("2.2250738585072011e-308", &ok) == 2.2250738585072011e-308 && ok);
    CHECK(f64("5e-324", &ok) == 5e-324 && ok);
    CHECK(f64("1e-400", &ok) == 0 && ok);
    f64("1e400", &ok);
    CHECK(!ok);
    memset(zeros, '0', sizeof zeros); /* longer than any buffer on the stack */
    memcpy(zeros, "1.", 2);
    zeros[sizeof zeros - 2] = '7';
    zeros[sizeof zeros - 1] = '\0';
    CHECK(f64(zeros, &ok) == 1.0 && ok);
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
        CHECK(f64("0.5", &ok) == 0.5 && ok);
    setlocale(LC_NUMERIC, "C");
}

static void test_strings(void)
{
    static const char text[] =
        "{\"a\\n\":\"\\u0000x\\u00e9\\u20ac\\ud83d\\ude00\",\"b\":\"plain text, longer\"}";
    struct clb_json j;
    struct clb_str k, s;
    struct clb_err err;

    clb_json_open(&j, text, strlen(text), "f");
    CHECK(clb_json_object(&j) && clb_json_key(&j, &k) && clb_str_is(k, "a\n"));
    s = clb_json_string(&j);
    CHECK(clb_str_eq(s, (struct clb_str){ "\0x\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 11 }));
    CHECK(clb_json_key(&j, &k) && clb_str_is(k, "b"));
    s = clb_json_string(&j);
    CHECK(clb_str_is(s, "plain text, longer"));
    CHECK(s.p > text && s.p < text + sizeof text); /* borrowed, not copied */
    CHECK(!clb_json_key(&j, &k));
    CHECK(clb_json_close(&j, &err));
}

static void test_skip_keeps_key(void)
{
    static const char text[] = "{\"k\\t\":{\"\\n\":\"\\n\",\"z\":[1,{\"\\r\":2}]},\"l\":3}";
    struct clb_json j;
    struct clb_str k, raw, k2;
    struct clb_err err;

    clb_json_open(&j, text, strlen(text), "f");
    CHECK(clb_json_object(&j) && clb_json_key(&j, &k));
    CHECK(clb_json_skip(&j, &raw));
    CHECK(clb_str_is(k, "k\t"));
    CHECK(clb_str_is(raw, "{\"\\n\":\"\\n\",\"z\":[1,{\"\\r\":2}]}"));
    CHECK(clb_json_key(&j, &k2) && clb_str_is(k2, "l"));
    CHECK(clb_json_skip(&j, &raw) && clb_str_is(raw, "3"));
    CHECK(!clb_json_key(&j, &k2));
    CHECK(clb_json_close(&j, &err));
}

static void test_depth(void)
{
    enum { N = 100000 };
    char *text = malloc(2 * N + 1);

    memset(text, '[', N);
    memset(text + N, ']', N);
    text[2 * N] = '\0';
    CHECK_STR(verdict(text + N - 128, 256), "");
    CHECK_HAS(verdict(text + N - 129, 258), ": nested deeper than 128");
    CHECK_HAS(verdict(text, 2 * N), "f: byte 128: ");
    free(text);
}

/* Many keys: the table grows, finds a duplicate at any place, and inner objects start empty. */
static void test_many_keys(void)
{
    struct clb_text t = { 0 };

    for (int dup = -1; dup < 5000; dup = dup < 0 ? 0 : dup + 1237) {
        clb_text_clear(&t);
        clb_text_puts(&t, "{");
        for (int i = 0; i < 5000; i++)
            clb_text_printf(&t, "%s\"layers.%d.w\":{\"a\":0,\"b\":1}", i ? "," : "", i);
        if (dup >= 0)
            clb_text_printf(&t, ",\"layer\\u0073.%d.w\":2", dup);
        clb_text_puts(&t, "}");
        if (dup < 0)
            CHECK_STR(verdict(t.p, t.n), "");
        else
            CHECK_HAS(verdict(t.p, t.n), ".w': duplicate key");
    }
    clb_text_free(&t);
}

/* Misuse by the caller is an error too, not undefined behaviour. */
static void test_misuse(void)
{
    struct clb_json j;
    struct clb_str k;
    struct clb_err err;

    clb_json_open(&j, "[1]", 3, "f");
    CHECK(!clb_json_key(&j, &k));
    CHECK(k.n == 0);
    CHECK(!clb_json_close(&j, &err));
    CHECK_EQ(err.code, CLB_FAILED);

    clb_json_open(&j, "{}", 2, "f");
    clb_json_object(&j);
    CHECK(!clb_json_null(&j));
    clb_json_abandon(&j);

    clb_json_open(&j, "{\"a\":1}", 7, "f");
    clb_json_object(&j);
    CHECK(!clb_json_close(&j, &err)); /* left early */
    CHECK_HAS(err.text, "not read to its end");
}

/* Every prefix of a document is refused and nothing reads beyond it (ASan sees it). */
static void test_prefixes(void)
{
    static const char text[] =
        "{\"a\\u00e9\":[1.5e3,\"\\ud83d\\ude00\xf0\x9f\x98\x80\",true,null,{\"b\":-1}]}";

    for (size_t n = 0; n < strlen(text); n++) {
        char *exact = malloc(n ? n : 1);
        memcpy(exact, text, n);
        CHECK(*verdict(exact, n) != '\0');
        free(exact);
    }
    CHECK_STR(says(text), "");
}

static double read_f64(const char *text)
{
    struct clb_json j;
    struct clb_err err;

    clb_json_open(&j, text, strlen(text), "f");
    double v = clb_json_f64(&j);
    return clb_json_close(&j, &err) ? v : NAN;
}

/* Whatever the thread of the caller rounds like. */
static void test_rounding(void)
{
    static const char *const number[] = { "0.1", "-0.1", "1e-310", "16777217.3", "1e23" };

    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        double want = read_f64(number[i]);
        odd_fp_set();
        double got = read_f64(number[i]);
        CHECK(odd_fp_reset());
        CHECK(!memcmp(&want, &got, sizeof got) && got != 0);
    }
}

static void test_no_locale(void)
{
    struct clb_json j;
    struct clb_err err;

    no_locale = true;
    clb_json_open(&j, "1.5", 3, "f");
    no_locale = false;
    CHECK(clb_json_f64(&j) == 0);
    CHECK(!clb_json_close(&j, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "f: the C locale cannot be loaded: ");
}

int main(void)
{
    TEST(test_accepts);
    TEST(test_refuses);
    TEST(test_coordinates);
    TEST(test_integers);
    TEST(test_floats);
    TEST(test_strings);
    TEST(test_skip_keeps_key);
    TEST(test_depth);
    TEST(test_many_keys);
    TEST(test_rounding);
    TEST(test_no_locale);
    TEST(test_misuse);
    TEST(test_prefixes);
    return test_result();
}
