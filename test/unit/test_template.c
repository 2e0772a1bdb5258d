/* Chat templates: snippets against what Jinja makes of them, hostile ones, origins of the text. */
#include <pthread.h>

#include "lib/base/json.h"
#include "lib/base/mapfile.h"
#include "lib/base/mem.h"
#include "lib/chat/template.h"
#include "test/check.h"

/* Renders and says what went wrong, if it did. */
static bool render(const char *source, size_t n, const char *json, struct clb_rendered *out,
                   struct clb_err *err)
{
    const struct clb_render_request q = { .json = { json, strlen(json) },
                                          .json_name = "conversation",
                                          .lenient = true };
    struct clb_template *t = NULL;

    *out = (struct clb_rendered){ 0 };
    bool ok = clb_template_parse(&t, (struct clb_str){ source, n }, "t", err) &&
              clb_template_render(t, &q, out, err);
    clb_template_free(t);
    return ok;
}

static const char hi[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <s> there\"}],"
                         "\"kwargs\":{\"who\":\"me\",\"deep\":{\"a\":[\"x\",\"y\"]}},"
                         "\"vars\":{\"bos_token\":\"<s>\"},\"now\":\"2025-06-15T12:30:45\"}";

/* -- snippets of test/data/chat ---------------------------------------------------------------- */

struct snippet {
    struct clb_text template, request, text, refused;
    bool has_text;
};

static void read_text(struct clb_json *j, struct clb_text *to)
{
    struct clb_str s = clb_json_string(j);

    clb_text_clear(to);
    clb_text_add(to, s.p, s.n);
}

static bool read_snippet(struct snippet *s, const char *line, size_t n)
{
    struct clb_json j;
    struct clb_str key, raw;
    struct clb_err err;

    clb_text_clear(&s->text);
    clb_text_clear(&s->refused);
    clb_text_clear(&s->request);
    clb_text_puts(&s->request, "{\"messages\":[],\"now\":\"2025-06-15T12:30:45\"");
    s->has_text = false;
    clb_json_open(&j, line, n, "snippets.jsonl");
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "template")) {
            read_text(&j, &s->template);
        } else if (clb_str_is(key, "text")) {
            read_text(&j, &s->text);
            s->has_text = true;
        } else if (clb_str_is(key, "refused")) {
            read_text(&j, &s->refused);
        } else if (clb_str_is(key, "kwargs")) {
            clb_json_skip(&j, &raw);
            clb_text_puts(&s->request, ",\"kwargs\":");
            clb_text_add(&s->request, raw.p, raw.n);
        } else {
            clb_json_skip(&j, NULL);
        }
    }
    clb_text_puts(&s->request, "}");
    bool ok = clb_json_close(&j, &err);
    if (!ok)
        printf("# %s\n", err.text);
    return ok;
}

static void check_snippet(const struct snippet *s)
{
    struct clb_rendered r;
    struct clb_err err = { .code = CLB_OK };
    bool ok = render(s->template.p, s->template.n, s->request.p, &r, &err);
    bool right = s->refused.n   ? !ok && strstr(err.text, s->refused.p)
                 : !s->has_text ? !ok
                                : ok && r.text.n == s->text.n &&
                                      !memcmp(r.text.n ? r.text.p : "", s->text.p, r.text.n);

    if (!right) {
        printf("# %s\n# gives '%s', not '%s'\n", s->template.p,
               ok ? r.text.n ? r.text.p : "" : err.text,
               s->refused.n  ? s->refused.p
               : s->has_text ? s->text.p
                             : "an error");
        test_bad = 1;
    }
    clb_rendered_free(&r);
}

static void snippets_are_as_jinja_has_them(void)
{
    struct snippet s = { .has_text = false };
    struct clb_mapfile m;
    struct clb_err err;
    int n = 0;

    CHECK(clb_mapfile_open(&m, "test/data/chat/snippets.jsonl", &err));
    for (const char *p = (const char *)m.data, *end = p + m.size, *stop; p < end; p = stop + 1) {
        stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop)
            break;
        CHECK(read_snippet(&s, p, (size_t)(stop - p)));
        check_snippet(&s);
        n++;
    }
    CHECK(n > 300);
    clb_mapfile_close(&m);
    clb_text_free(&s.template);
    clb_text_free(&s.request);
    clb_text_free(&s.text);
    clb_text_free(&s.refused);
}

/* -- where the text comes from ----------------------------------------------------------------- */

/* Text and origin: '^' below what the template gave. */
static void check_origin(const char *source, const char *text, const char *origin)
{
    struct clb_rendered r;
    struct clb_err err = { .code = CLB_OK };
    char seen[200] = "";

    if (!render(source, strlen(source), hi, &r, &err)) {
        printf("# %s: %s\n", source, err.text);
        test_bad = 1;
    } else {
        CHECK_STR(r.text.p, text);
        for (size_t i = 0; i < r.origin.n && i < sizeof seen - 1; i++)
            seen[i] = r.origin.p[i] ? '^' : '.';
        CHECK_STR(seen, origin);
        CHECK_EQ(r.origin.n, r.text.n);
    }
    clb_rendered_free(&r);
}

static void text_knows_where_it_comes_from(void)
{
    check_origin("a{{ messages[0].content }}b", "aHi <s> thereb", "^............^");
    check_origin("{{ bos_token + who + '<s>' }}", "<s>me<s>", "^^^..^^^");
    check_origin("{{ bos_token ~ who ~ 1 }}", "<s>me1", "^^^..^");
    check_origin("{{ '<|' + messages[0].role + '|>' }}", "<|user|>", "^^^^^^^^");
    check_origin("{{ ('<' ~ who ~ '>')[1:-1] }}", "me", "..");
    check_origin("{{ ('<' ~ who ~ '>')[:2] }}", "<m", "^.");
    check_origin("{{ ('<' ~ who ~ '>').split('m') | join('-') }}", "<-e>", "^^.^");
    check_origin("{{ who.replace('m', '<s>') }}", "<s>e", "^^^.");
    check_origin("{{ ('<' ~ who) | upper }}", "<ME", "^..");
    check_origin("{{ who | tojson }}", "\"me\"", "....");
    check_origin("{{ deep }}", "{'a': ['x', 'y']}", "^^.^^^^^.^^^^.^^^");
    check_origin("{{ '%s|%s' % (who, bos_token) }}", "me|<s>", "..^^^^");
    check_origin("{{ '<{}>'.format(who) }}", "<me>", "^..^");
    check_origin("{% set x %}<{{ who }}>{% endset %}{{ x }}", "<me>", "^..^");
    check_origin("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(who) }}", "<me>", "^..^");
    check_origin("{{ (who ~ '<s>') | trim('m') }}", "e<s>", ".^^^");
    check_origin("{{ who ~ '\xc3\xa9' | upper }}", "me\xc3\x89", "..^^");
    check_origin("{% for c in who %}{{ c }}-{% endfor %}", "m-e-", ".^.^");
    check_origin("{{ [who, '<s>'] | join(bos_token) }}", "me<s><s>", "..^^^^^^");
}

/* A role that could be part of a special token counts as the template's only if it is a usual one;
 * variables of the request do not count, whatever their name. */
static void text_of_users_is_not_the_templates(void)
{
    static const char odd[] =
        "{\"messages\":[{\"role\":\"endoftext\",\"content\":\"user\"}],"
        "\"kwargs\":{\"bos_token\":\"<x>\"},\"vars\":{\"bos_token\":\"<s>\"}}";
    static const char source[] = "{{ messages[0].role }}{{ messages[0].content }}{{ bos_token }}";
    struct clb_rendered r;
    struct clb_err err;

    CHECK(render(source, strlen(source), odd, &r, &err));
    CHECK_STR(r.text.p, "endoftextuser<x>");
    for (size_t i = 0; i < r.origin.n; i++)
        CHECK_EQ(r.origin.p[i], 0);
    clb_rendered_free(&r);
}

/* -- conversations ----------------------------------------------------------------------------- */

static void strict(const char *json, const char *wrong)
{
    struct clb_render_request q = { .json = { json, strlen(json) }, .json_name = "conversation" };
    struct clb_template *t = NULL;
    struct clb_rendered r;
    struct clb_err err = { .code = CLB_OK };

    CHECK(clb_template_parse(&t, clb_str("{{ messages | length }}"), "t", &err));
    bool ok = clb_template_render(t, &q, &r, &err);
    if (wrong) {
        CHECK(!ok);
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, wrong);
    } else {
        CHECK(ok);
    }
    clb_rendered_free(&r);
    clb_template_free(t);
}

static void conversations_are_checked(void)
{
    strict("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":null}", NULL);
    strict("{\"messages\":[{\"role\":\"x\"}],\"chat_template_kwargs\":{\"a\":1}}", NULL);
    strict("{}", "'messages' is missing");
    strict("{\"messages\":[]}", "at least one message");
    strict("{\"messages\":\"hi\"}", "at least one message");
    strict("{\"messages\":[\"hi\"]}", "message 1 is not an object");
    strict("{\"messages\":[{\"role\":\"user\"},{\"content\":\"x\"}]}", "message 2 has no 'role'");
    strict("{\"messages\":[{\"role\":null}]}", "message 1 has no 'role'");
    strict("{\"messages\":[{\"role\":5}]}", "'role' that is not a text");
    strict("{\"messages\":[{\"role\":\"user\"}],\"vars\":{}}", "'vars': is not known");
    strict("{\"messages\":[{\"role\":\"user\"}],\"kwargs\":7}", "kwargs");
    strict("{\"messages\":[{\"role\":\"user\",\"n\":99999999999999999999}]}", "64 bits");
    strict("{\"messages\":[{\"role\":\"user\",\"role\":\"x\"}]}", "role");
    strict("[]", "conversation");
    strict("{\"messages\":[{\"role\":\"user\"}]", "ends");
}

/* Lists and dicts can be changed, which transformers forbids. */
static void lists_and_dicts_change(void)
{
    static const char source[] =
        "{% set l = [1] %}{% set d = {'a': 1} %}{% set _ = l.append(2) %}{% set _ = l.extend([3, "
        "4]) %}"
        "{% set _ = l.insert(0, 0) %}{{ l.pop() }}{{ l.pop(0) }}{{ l }}{% set _ = d.update({'b': "
        "l}) %}"
        "{% set _ = d.update(a=5) %}{{ d }}{% set _ = l.reverse() %}{{ d.b.copy() }}";
    struct clb_rendered r;
    struct clb_err err = { .code = CLB_OK };

    CHECK(render(source, strlen(source), hi, &r, &err));
    CHECK_STR(r.text.p ? r.text.p : err.text, "40[1, 2, 3]{'a': 5, 'b': [1, 2, 3]}[3, 2, 1]");
    clb_rendered_free(&r);
}

static void raised_text_is_given_whole(void)
{
    struct clb_rendered r;
    struct clb_err err;
    char source[2000] = "{{ raise_exception('", long_text[1500];

    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    strncat(source, long_text, sizeof source - strlen(source) - 1);
    strncat(source, "') }}", sizeof source - strlen(source) - 1);
    CHECK(!render(source, strlen(source), hi, &r, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_STR(r.raised.p, long_text);
    CHECK_HAS(err.text, "t: line 1, column 4: ");
    clb_rendered_free(&r);
}

/* -- hostile ----------------------------------------------------------------------------------- */

static void fails(const char *source, const char *why)
{
    struct clb_rendered r;
    struct clb_err err = { .code = CLB_OK };

    CHECK(!render(source, strlen(source), hi, &r, &err));
    CHECK_HAS(err.text, why);
    clb_rendered_free(&r);
}

static void repeated(char *to, size_t room, const char *before, const char *part, int times,
                     const char *after)
{
    size_t n = (size_t)snprintf(to, room, "%s", before);

    for (int i = 0; i < times; i++)
        n += (size_t)snprintf(to + n, room - n, "%s", part);
    snprintf(to + n, room - n, "%s", after);
}

static void *hostile(void *arg)
{
    static char source[200000];

    (void)arg;
    fails("{% macro m(x) %}{{ m(x) if x else m([x]) }}{% endmacro %}{{ m('') }}", "recursing");
    fails("{% macro m() %}{% for a in [1] %}{% if a %}{% call n() %}{% endcall %}{% endif %}{% "
          "endfor %}"
          "{% endmacro %}{% macro n() %}{{ caller() }}{% set q %}{{ m() | upper }}{% endset %}"
          "{% endmacro %}{{ m() }}",
          "recursing");
    fails("{% set l = [] %}{% set x = l.append(l) %}{{ l }}", "levels deep");
    fails("{% set l = [] %}{% set x = l.append(l) %}{{ l | tojson }}", "levels deep");
    fails("{% set l = [] %}{% set m = [] %}{% set x = [l.append(l), m.append(m)] %}{{ l == m }}",
          "levels deep");
    fails("{% set ns = namespace(x=()) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}{% "
          "endfor %}"
          "{{ {ns.x: 1} }}",
          "unhashable");
    fails("{{ 'x' * 99999999999 }}", "steps");
    fails("{{ [1] * 99999999999 }}", "steps");
    fails("{{ ('x' * 100000).split('') }}", "empty separator");
    fails("{{ 'x'.ljust(99999999999) }}", "steps");
    fails("{{ range(100001) }}", "100000");
    fails("{{ range(0, 9223372036854775807, 1) }}", "100000");
    fails("{{ 2 ** 64 }}", "64 bits");
    fails("{{ 9223372036854775807 + 1 }}", "64 bits");
    fails("{{ -9223372036854775807 - 2 }}", "64 bits");
    fails("{{ (-9223372036854775807 - 1) // -1 }}", "64 bits");
    fails("{{ (-9223372036854775807 - 1) | abs }}", "64 bits");
    fails("{{ 1 // 0 }}", "zero");
    fails("{{ 1.5 % 0 }}", "zero");
    fails("{% for a in range(99999) %}{% for b in range(9) %}{% set x = [a] * 99 %}{% endfor %}"
          "{% endfor %}",
          "MB of memory");
    repeated(source, sizeof source, "{{ ", "(", 5000, "1");
    fails(source, "levels deep");
    repeated(source, sizeof source, "{{ ", "(", 60, "1");
    fails(source, "levels deep");
    repeated(source, sizeof source, "{{ ", "not ", 5000, "1 }}");
    fails(source, "levels deep");
    repeated(source, sizeof source, "{{ ", "-", 5000, "1 }}");
    fails(source, "levels deep");
    repeated(source, sizeof source, "", "{% if 1 %}", 5000, "");
    fails(source, "levels deep");
    repeated(source, sizeof source, "{{ x", ".y", 5000, " }}");
    fails(source, "recursing");
    repeated(source, sizeof source, "{{ 1", " + 1", 5000, " and not }}");
    fails(source, "expression");
    repeated(source, sizeof source, "{{ 1 if 1 else ", "1 if 1 else ", 5000, "1 }}");
    fails(source, "levels deep");
    return NULL;
}

/* Sanitizers need room of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SMALL_STACK = 1 << 20 };
#elif defined(__aarch64__)
enum { SMALL_STACK = 128 << 10 }; /* the least that there is */
#else
enum { SMALL_STACK = 64 << 10 };
#endif

/* The library promises that a call needs less than 64 KB of stack. */
static void hostile_templates_on_a_small_stack(void)
{
    pthread_attr_t attr;
    pthread_t thread;

    CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstacksize(&attr, SMALL_STACK));
    CHECK(!pthread_create(&thread, &attr, hostile, NULL));
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

/* Every prefix of a template is refused or rendered, never more. */
static void templates_that_are_cut(void)
{
    static const char source[] =
        "{%- macro m(a, b=1) -%}{{ a ~ b }}{%- endmacro %}{# c #}{% raw %}{{ }}{% endraw %}"
        "{% for k, v in {'x': [1, 2.5], \"y\": none}.items() if v is not none %}{{ m(k, b=v[::-1]) "
        "}}"
        "{% else %}-{% endfor %}{% set ns = namespace(i=0) %}{% set ns.i = ns.i + 1 %}"
        "{{ 'a' if ns.i > 0 and not false else messages | selectattr('role', 'equalto', 'user') | "
        "list }}"
        "{% call m(1) %}{% endcall %}{% filter upper %}x{% endfilter %}{% with q = 1 %}{{ q }}{% "
        "endwith %}";
    struct clb_rendered r;
    struct clb_err err;

    for (size_t n = 0; n < sizeof source; n++) {
        /* A copy of that size, so that a read behind it is seen. */
        char *copy = clb_new(n, 1, &err);
        memcpy(copy, source, n);
        if (!render(copy, n, hi, &r, &err))
            CHECK(err.code == CLB_BAD_INPUT || err.code == CLB_UNSUPPORTED);
        clb_rendered_free(&r);
        clb_free(copy);
    }
}

static uint32_t rng = 12345;
static uint32_t rnd(uint32_t n)
{
    rng = rng * 1664525 + 1013904223;
    return (rng >> 8) % n;
}

/* Words of the language in any order. */
static void templates_at_random(void)
{
    static const char *const word[] = {
        "{{ ",   " }}",     "{% ",    " %}",      "{%- ",    " -%}",  "{#",        "#}",
        "if ",   "else",    "elif ",  "endif",    "for ",    "in ",   "x",         "endfor",
        "set ",  "=",       "endset", "macro ",   "(",       ")",     "endmacro",  "[",
        "]",     "{",       "}",      ":",        ",",       ".",     "|",         "~",
        "+",     "-",       "*",      "/",        "//",      "%",     "**",        "'a'",
        "\"b\"", "1",       "2.5",    "join",     "map",     "is ",   "not ",      "defined",
        "and ",  "or ",     "loop",   "messages", "role",    "first", "items",     "tojson",
        "call ", "endcall", "raw ",   "endraw",   "break",   "range", "namespace", "ns",
        "a",     "\n",      "none",   "split",    "filter ", "upper",
    };
    struct clb_rendered r;
    struct clb_err err;

    for (int i = 0; i < 20000; i++) {
        char source[400] = "";
        size_t n = 0;
        for (uint32_t k = rnd(24); k > 0; k--)
            n += (size_t)snprintf(source + n, sizeof source - n, "%s",
                                  word[rnd(sizeof word / sizeof *word)]);
        if (!render(source, n, hi, &r, &err))
            CHECK(err.code == CLB_BAD_INPUT || err.code == CLB_UNSUPPORTED);
        clb_rendered_free(&r);
    }
}

/* -- one template, many threads ---------------------------------------------------------------- */

static void *render_often(void *arg)
{
    const struct clb_render_request q = { .json = { hi, sizeof hi - 1 },
                                          .json_name = "conversation",
                                          .lenient = true };
    struct clb_rendered r;
    struct clb_err err;

    for (int i = 0; i < 200; i++) {
        bool ok = clb_template_render(arg, &q, &r, &err) &&
                  !strcmp(r.text.p, "0Hi <s> there1Hi <s> there");
        clb_rendered_free(&r);
        if (!ok)
            return NULL;
    }
    return arg;
}

static void threads_share_a_template(void)
{
    struct clb_template *t = NULL;
    struct clb_err err;
    pthread_t thread[4];
    void *done;

    CHECK(clb_template_parse(
        &t,
        clb_str("{% set ns = namespace() %}{% for i in [0, 1] %}{% set ns.x = i %}{{ ns.x }}"
                "{{ messages[0].content }}{% endfor %}"),
        "t", &err));
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&thread[i], NULL, render_often, t));
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &done);
        CHECK(done == t);
    }
    clb_template_free(t);
}

int main(void)
{
    TEST(snippets_are_as_jinja_has_them);
    TEST(text_knows_where_it_comes_from);
    TEST(text_of_users_is_not_the_templates);
    TEST(conversations_are_checked);
    TEST(lists_and_dicts_change);
    TEST(raised_text_is_given_whole);
    TEST(hostile_templates_on_a_small_stack);
    TEST(templates_that_are_cut);
    TEST(templates_at_random);
    TEST(threads_share_a_template);
    return test_result();
}
