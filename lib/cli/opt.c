#include "lib/cli/opt.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cli/report.h"
#include "lib/colibri.h"

/* -- numbers --------------------------------------------------------------------------------- */

bool clb_parse_uint(const char *text, uint64_t lo, uint64_t hi, uint64_t *out)
{
    size_t n = strspn(text, "0123456789");

    if (n == 0 || text[n])
        return false;
    errno = 0;
    unsigned long long v = strtoull(text, NULL, 10);
    if (errno || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

/* Plain decimal notation only: strtod alone would take "nan", "0x10" and leading space. */
static bool parse_float(const char *text, double lo, double hi, double *out)
{
    char *end;

    if (strspn(text, "0123456789.eE+-") != strlen(text))
        return false;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

bool clb_parse_size(const char *text, uint64_t *out)
{
    static const char suffix[] = "KMGT";
    size_t n = strspn(text, "0123456789."), digits = strspn(text, "0123456789");
    uint64_t unit = 1, whole;
    char number[40];

    if (digits == 0 || n >= sizeof number)
        return false;
    if (text[n]) {
        const char *s = strchr(suffix, text[n] & ~0x20);
        if (!s || !*s || text[n + 1])
            return false;
        unit = UINT64_C(1) << (10 * (s - suffix + 1));
    }
    memcpy(number, text, n);
    number[n] = '\0';
    if (digits == n) { /* exact */
        if (!clb_parse_uint(number, 0, UINT64_MAX / unit, &whole))
            return false;
        *out = whole * unit;
        return true;
    }
    char *end;
    double v = strtod(number, &end) * (double)unit;
    if (*end || v >= 0x1p63)
        return false;
    *out = (uint64_t)v;
    return true;
}

/* -- the table ------------------------------------------------------------------------------- */

static bool is_option(const struct clb_opt *o)
{
    return o->kind != CLB_OPT_GROUP;
}

static const struct clb_opt *find_long(const struct clb_opt *o, const char *s, size_t n)
{
    for (; o->kind != CLB_OPT_END; o++)
        if (is_option(o) && strlen(o->name) == n && !strncmp(o->name, s, n))
            return o;
    return NULL;
}

static const struct clb_opt *find_letter(const struct clb_opt *o, char c)
{
    for (; o->kind != CLB_OPT_END; o++)
        if (is_option(o) && o->letter == c)
            return o;
    return NULL;
}

/* Letters to change, add or drop to get from a to b; both are short. */
static unsigned distance(const char *a, size_t na, const char *b)
{
    unsigned row[40];
    size_t nb = strlen(b);

    if (na >= 40 || nb >= 40)
        return 99;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

/* "--verb" and "--temperature" for --verbose and --temp. */
static bool begins_like(const char *arg, size_t n, const char *name)
{
    size_t both = n < strlen(name) ? n : strlen(name);

    return both >= 2 && !strncmp(arg, name, both);
}

static bool fail_unknown(const struct clb_program *p, const char *arg, size_t n,
                         struct clb_err *err)
{
    const struct clb_opt *near = NULL;
    unsigned best = 3; /* two letters wrong are a slip, three are another word */

    for (const struct clb_opt *o = p->opts; o->kind != CLB_OPT_END; o++) {
        unsigned d = is_option(o) && !o->hidden ? distance(arg, n, o->name) : 99;
        if (d < 99 && begins_like(arg, n, o->name))
            d = 0;
        if (d < best && d < strlen(o->name)) {
            best = d;
            near = o;
        }
    }
    if (near)
        return clb_fail(err, CLB_USAGE, "unknown option '--%.*s'; did you mean '--%s'?", (int)n,
                        arg, near->name);
    return clb_fail(err, CLB_USAGE, "unknown option '--%.*s'", (int)n, arg);
}

/* -- values ---------------------------------------------------------------------------------- */

static bool fail_range(const struct clb_opt *o, const char *value, const char *what,
                       struct clb_err *err)
{
    return clb_fail(err, CLB_USAGE, "--%s: '%s' is not %s from %.10g to %.10g", o->name, value,
                    what, o->lo, o->hi);
}

static bool store_uints(const struct clb_opt *o, const char *value, struct clb_err *err)
{
    struct clb_opt_uints list = { .n = 0 };
    const char *s = value;

    for (;; s++) {
        char word[24];
        uint64_t v;
        size_t n = strcspn(s, ",");
        if (list.n == CLB_OPT_MANY)
            return clb_fail(err, CLB_USAGE, "--%s: more than %d numbers", o->name, CLB_OPT_MANY);
        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : 0, s);
        if (!clb_parse_uint(word, (uint64_t)o->lo, (uint64_t)o->hi, &v))
            return fail_range(o, value, "a list of whole numbers (1,2,3), each", err);
        list.value[list.n++] = (uint32_t)v;
        s += n;
        if (!*s)
            break;
    }
    *(struct clb_opt_uints *)o->dst = list;
    return true;
}

static bool store_list(const struct clb_opt *o, const char *value, struct clb_err *err)
{
    struct clb_opt_list *list = o->dst;

    if (list->n == CLB_OPT_MANY)
        return clb_fail(err, CLB_USAGE, "--%s: given more than %d times", o->name, CLB_OPT_MANY);
    list->value[list->n++] = value;
    return true;
}

/* The words of a CHOICE are written "a|b|c" in `arg`; what is stored points into that text's own
 * copy, which is the value itself. */
static bool store_choice(const struct clb_opt *o, const char *value, struct clb_err *err)
{
    size_t n = strlen(value);

    for (const char *s = o->arg; n; s++) {
        size_t w = strcspn(s, "|");
        if (w == n && !strncmp(s, value, n)) {
            *(const char **)o->dst = value;
            return true;
        }
        s += w;
        if (!*s)
            break;
    }
    return clb_fail(err, CLB_USAGE, "--%s: '%s' is not one of %s", o->name, value, o->arg);
}

static bool store(const struct clb_opt *o, const char *value, struct clb_err *err)
{
    uint64_t u;
    double d;

    switch (o->kind) {
    case CLB_OPT_FLAG:
        *(bool *)o->dst = true;
        return true;
    case CLB_OPT_COUNT:
        ++*(int *)o->dst;
        return true;
    case CLB_OPT_FILE:
        if (!*value)
            return clb_fail(err, CLB_USAGE, "--%s: the name of a file is empty", o->name);
        *(const char **)o->dst = value;
        return true;
    case CLB_OPT_STRING:
        *(const char **)o->dst = value;
        return true;
    case CLB_OPT_LIST:
        return store_list(o, value, err);
    case CLB_OPT_UINT:
        if (!clb_parse_uint(value, (uint64_t)o->lo, (uint64_t)o->hi, &u))
            return fail_range(o, value, "a whole number", err);
        *(uint32_t *)o->dst = (uint32_t)u;
        return true;
    case CLB_OPT_U64:
        if (!clb_parse_uint(value, 0, UINT64_MAX, &u))
            return clb_fail(err, CLB_USAGE, "--%s: '%s' is not a whole number from 0 to %llu",
                            o->name, value, (unsigned long long)UINT64_MAX);
        *(uint64_t *)o->dst = u;
        return true;
    case CLB_OPT_FLOAT:
        if (!parse_float(value, o->lo, o->hi, &d))
            return fail_range(o, value, "a number", err);
        *(float *)o->dst = (float)d;
        return true;
    case CLB_OPT_SIZE:
        if (!clb_parse_size(value, &u) || u == 0)
            return clb_fail(err, CLB_USAGE, "--%s: '%s' is not a size such as 512M or 1.5G",
                            o->name, value);
        *(uint64_t *)o->dst = u;
        return true;
    case CLB_OPT_CHOICE:
        return store_choice(o, value, err);
    case CLB_OPT_UINTS:
        return store_uints(o, value, err);
    case CLB_OPT_END:
    case CLB_OPT_GROUP:
        break;
    }
    return clb_fail(err, CLB_USAGE, "--%s cannot be set", o->name);
}

/* -- the command line ------------------------------------------------------------------------ */

/* A value that may be left out: the next word is it only when it is a number. */
static bool optional_value(const struct clb_opt *o, int argc, char **argv, int *i,
                           struct clb_err *err)
{
    double d;
    char inside[24];

    if (*i + 1 < argc && parse_float(argv[*i + 1], -HUGE_VAL, HUGE_VAL, &d))
        return store(o, argv[++*i], err);
    snprintf(inside, sizeof inside, "%.*s", (int)strcspn(o->arg + 1, "]"), o->arg + 1);
    return store(o, inside, err);
}

static bool long_option(const struct clb_program *p, int argc, char **argv, int *i,
                        struct clb_err *err)
{
    const char *s = argv[*i] + 2, *eq = strchr(s, '=');
    size_t n = eq ? (size_t)(eq - s) : strlen(s);
    const struct clb_opt *o = find_long(p->opts, s, n);

    if (!o)
        return fail_unknown(p, s, n, err);
    if (!o->arg)
        return eq ? clb_fail(err, CLB_USAGE, "--%s takes no value", o->name) : store(o, NULL, err);
    if (eq)
        return store(o, eq + 1, err);
    if (o->arg[0] == '[')
        return optional_value(o, argc, argv, i, err);
    if (*i + 1 >= argc)
        return clb_fail(err, CLB_USAGE, "--%s needs a value (%s)", o->name, o->arg);
    return store(o, argv[++*i], err);
}

static bool letter_options(const struct clb_program *p, int argc, char **argv, int *i,
                           struct clb_err *err)
{
    for (const char *s = argv[*i] + 1; *s; s++) {
        const struct clb_opt *o = find_letter(p->opts, *s);
        if (!o)
            return clb_fail(err, CLB_USAGE, "unknown option '-%c'", *s);
        if (!o->arg) {
            if (!store(o, NULL, err))
                return false;
            continue;
        }
        if (s[1])
            return store(o, s + 1, err); /* -t8 */
        if (*i + 1 >= argc)
            return clb_fail(err, CLB_USAGE, "-%c needs a value (%s)", *s, o->arg);
        return store(o, argv[++*i], err); /* -t 8 */
    }
    return true;
}

bool clb_opt_parse(const struct clb_program *p, int argc, char **argv, int *operand,
                   struct clb_err *err)
{
    char **rest = calloc((size_t)argc + 1, sizeof *rest);
    int n_rest = 0;
    bool ok = rest || clb_fail_nomem(err, (size_t)argc * sizeof *rest);

    for (int i = 1; ok && i < argc; i++) {
        if (!strcmp(argv[i], "--")) {
            while (++i < argc)
                rest[n_rest++] = argv[i];
        } else if (argv[i][0] != '-' || !argv[i][1]) { /* "-" is stdin, an operand */
            rest[n_rest++] = argv[i];
        } else if (argv[i][1] == '-') {
            ok = long_option(p, argc, argv, &i, err);
        } else {
            ok = letter_options(p, argc, argv, &i, err);
        }
    }
    for (int i = 0; ok && i < n_rest; i++)
        ok = *rest[i] || clb_fail(err, CLB_USAGE, "the name of a file is empty");
    *operand = argc - n_rest;
    if (ok && n_rest)
        memcpy(argv + *operand, rest, (size_t)n_rest * sizeof *rest);
    free(rest);
    return ok;
}

/* A descriptor that was closed by the caller would be given to the next file opened, and text
 * meant for people would end up in a model. Reading or writing the stand-in fails or is empty. */
static void fill_standard_files(void)
{
    static const int mode[] = { O_RDONLY, O_RDONLY, O_WRONLY };

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", mode[fd]) != fd)
            _exit(1);
}

/* Programs that run a model also say what they could run it on. */
static void print_version(const struct clb_program *p)
{
    char devices[1024] = "";

    for (const struct clb_opt *o = p->opts; o->kind != CLB_OPT_END; o++)
        if (o->kind != CLB_OPT_GROUP && !strcmp(o->name, "backend"))
            colibri_describe_devices(devices, sizeof devices);
    printf("%s %s\n", p->name, CLB_VERSION);
    if (*devices)
        printf("%s\n", devices);
}

int clb_opt_start(const struct clb_program *p, const struct clb_common *c, int argc, char **argv,
                  int *operand)
{
    struct clb_err err;

    fill_standard_files();
    signal(SIGXFSZ, SIG_IGN);
    if (!clb_opt_parse(p, argc, argv, operand, &err))
        return clb_refuse(p->name, &err, c->verbose);
    if (c->help)
        clb_opt_help(p, stdout);
    else if (c->version)
        print_version(p);
    else if (c->completions)
        clb_opt_completions(p, stdout);
    else
        return -1;
    return clb_finish(p->name, 0);
}
