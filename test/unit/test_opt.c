#include "lib/cli/opt.h"

#include <stdlib.h>

#include "test/check.h"

static struct {
    bool json;
    int verbose;
    const char *name, *kind, *file;
    struct clb_opt_list stop;
    uint32_t n;
    float temp;
    uint64_t memory, seed;
    struct clb_opt_uints batch;
} a;

static const struct clb_opt opts[] = {
    { CLB_OPT_GROUP, 0, "What", NULL, NULL, NULL, 0, 0, false },
    { CLB_OPT_FLAG, 'j', "json", NULL, "print JSON", &a.json, 0, 0, false },
    { CLB_OPT_COUNT, 'v', "verbose", NULL, "say more", &a.verbose, 0, 0, false },
    { CLB_OPT_STRING, 's', "name", "NAME", "a name", &a.name, 0, 0, false },
    { CLB_OPT_FILE, 'o', "out", "FILE", "a file", &a.file, 0, 0, false },
    { CLB_OPT_LIST, 0, "stop", "TEXT", "stop at TEXT", &a.stop, 0, 0, false },
    { CLB_OPT_UINT, 'n', "count", "N", "how many", &a.n, 1, 4294967295.0, false },
    { CLB_OPT_U64, 0, "seed", "N", "any number", &a.seed, 0, 0, false },
    { CLB_OPT_FLOAT, 0, "temp", "T", "temperature", &a.temp, 0, 100, false },
    { CLB_OPT_SIZE, 0, "memory", "SIZE", "most memory", &a.memory, 0, 0, false },
    { CLB_OPT_CHOICE, 0, "kind", "int8|int4|f32", "which", &a.kind, 0, 0, false },
    { CLB_OPT_UINTS, 0, "batch", "N,N", "sizes", &a.batch, 1, 64, false },
    { CLB_OPT_FLAG, 0, "secret", NULL, "for tests", &a.json, 0, 0, true },
    { .kind = CLB_OPT_END },
};
static const struct clb_program self = { "colibri-test", "[options] FILE...", "Tests the table.",
                                         opts, "example: colibri-test x" };

/* Parses a line cut at spaces; the message ("" when fine). *operand may be NULL. */
static const char *parse(const char *line, char ***operands, int *n)
{
    static struct clb_err err;
    static char text[400], *argv[40];
    int argc = 1, first;

    memset(&a, 0, sizeof a);
    err = (struct clb_err){ 0 };
    snprintf(text, sizeof text, "%s", line);
    argv[0] = text;
    for (char *save, *s = strtok_r(text, " ", &save); s; s = strtok_r(NULL, " ", &save))
        argv[argc++] = s;
    argv[argc] = NULL;
    bool ok = clb_opt_parse(&self, argc, argv, &first, &err);
    if (operands) {
        *operands = argv + first;
        *n = argc - first;
    }
    CHECK_EQ(ok, err.code == CLB_OK);
    if (!ok)
        CHECK_EQ(err.code, CLB_USAGE);
    return err.text;
}

static void test_forms(void)
{
    char **rest;
    int n;

    CHECK_STR(
        parse("one -jvn5 --name=x two --temp 0.5 -vs y --stop a --stop=b - -- -z --q", &rest, &n),
        "");
    CHECK(a.json && a.verbose == 2 && a.n == 5 && a.temp == 0.5f);
    CHECK_STR(a.name, "y");
    CHECK_EQ(a.stop.n, 2);
    CHECK_STR(a.stop.value[1], "b");
    CHECK_EQ(n, 5);
    CHECK_STR(rest[0], "one");
    CHECK_STR(rest[2], "-");
    CHECK_STR(rest[4], "--q");
    CHECK_STR(parse("--kind int4 --batch 1,4,64 --memory 1.5G", NULL, NULL), "");
    CHECK_STR(a.kind, "int4");
    CHECK(a.batch.n == 3 && a.batch.value[2] == 64);
    CHECK(a.memory == 3u << 29);
    CHECK_STR(parse("--name=", NULL, NULL), "");
    CHECK_STR(a.name, "");
}

static void test_refuses(void)
{
    static const struct {
        const char *line, *why;
    } bad[] = {
        { "--zzz", "unknown option '--zzz'" },
        { "--tepm=1", "unknown option '--tepm'; did you mean '--temp'?" },
        { "--temperature 1", "unknown option '--temperature'; did you mean '--temp'?" },
        { "--verb", "unknown option '--verb'; did you mean '--verbose'?" },
        { "--secre", "unknown option '--secre'" }, /* hidden ones are not proposed */
        { "-x", "unknown option '-x'" },
        { "-jx", "unknown option '-x'" },
        { "--json=1", "--json takes no value" },
        { "--name", "--name needs a value (NAME)" },
        { "-n", "-n needs a value (N)" },
        { "-n 0", "--count: '0' is not a whole number from 1 to 4294967295" },
        { "-n 4294967296", "--count: '4294967296' is not a whole number from 1 to 4294967295" },
        { "-n -1", "--count: '-1' is not a whole number from 1 to 4294967295" },
        { "--seed 18446744073709551615", "" },
        { "--seed 18446744073709551616",
          "--seed: '18446744073709551616' is not a whole number from 0 to 18446744073709551615" },
        { "--seed -1", "--seed: '-1' is not a whole number from 0 to 18446744073709551615" },
        { "-n 1x", "--count: '1x' is not a whole number from 1 to 4294967295" },
        { "-n 99999999999999999999",
          "--count: '99999999999999999999' is not a whole number from 1 to 4294967295" },
        { "--temp nan", "--temp: 'nan' is not a number from 0 to 100" },
        { "--temp 0x1", "--temp: '0x1' is not a number from 0 to 100" },
        { "--temp 101", "--temp: '101' is not a number from 0 to 100" },
        { "--temp 1e", "--temp: '1e' is not a number from 0 to 100" },
        { "--memory 0", "--memory: '0' is not a size such as 512M or 1.5G" },
        { "--out=", "--out: the name of a file is empty" },
        { "--memory 5X", "--memory: '5X' is not a size such as 512M or 1.5G" },
        { "--kind int", "--kind: 'int' is not one of int8|int4|f32" },
        { "--kind=", "--kind: '' is not one of int8|int4|f32" },
        { "--batch 1,,2",
          "--batch: '1,,2' is not a list of whole numbers (1,2,3), each from 1 to 64" },
        { "--batch 1,65",
          "--batch: '1,65' is not a list of whole numbers (1,2,3), each from 1 to 64" },
        { "--batch 1,2,",
          "--batch: '1,2,' is not a list of whole numbers (1,2,3), each from 1 to 64" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_STR(parse(bad[i].line, NULL, NULL), bad[i].why);
}

static void test_empty_operand(void)
{
    char name[] = "test", one[] = "one", empty[] = "", *argv[] = { name, one, empty, NULL };
    struct clb_err err;
    int first;

    CHECK(clb_opt_parse(&self, 2, argv, &first, &err));
    CHECK(!clb_opt_parse(&self, 3, argv, &first, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_STR(err.text, "the name of a file is empty");
}

static void test_sizes(void)
{
    uint64_t v;

    CHECK(clb_parse_size("0", &v) && v == 0);
    CHECK(clb_parse_size("123", &v) && v == 123);
    CHECK(clb_parse_size("8k", &v) && v == 8192);
    CHECK(clb_parse_size("16T", &v) && v == UINT64_C(16) << 40);
    CHECK(clb_parse_size("18446744073709551615", &v) && v == UINT64_MAX);
    CHECK(clb_parse_size("0.5M", &v) && v == 1 << 19);
    static const char *const bad[] = { "",
                                       "G",
                                       "-1",
                                       "1GB",
                                       "1 G",
                                       "8 ",
                                       "1.2.3",
                                       "18446744073709551616",
                                       "17000000T",
                                       "9e9",
                                       ".5G",
                                       "99999999999999.9T" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(!clb_parse_size(bad[i], &v));
}

static void test_help(void)
{
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    clb_opt_help(&self, f);
    fclose(f);
    CHECK(!strncmp(text, "usage: colibri-test [options] FILE...\nTests the table.\n", 53));
    CHECK_HAS(text, "\nWhat:\n  -j, --json                print JSON\n");
    CHECK_HAS(text, "      --kind int8|int4|f32  which\n");
    CHECK_HAS(text, "example: colibri-test x\n");
    CHECK(!strstr(text, "secret"));
    free(text);

    f = open_memstream(&text, &n);
    clb_opt_completions(&self, f);
    fclose(f);
    CHECK(!strncmp(text, "--json\n--verbose\n--name=\n", 25));
    CHECK(!strstr(text, "secret") && !strstr(text, "What"));
    free(text);
}

/* Long explanations are wrapped at 80 columns, under themselves. */
static void test_wrap(void)
{
    static const struct clb_opt one[] = {
        { CLB_OPT_FLAG, 0, "x", NULL,
          "words words words words words words words words words words words words words words "
          "words",
          &a.json, 0, 0, false },
        { .kind = CLB_OPT_END },
    };
    struct clb_program p = { "p", "", "Sum.", one, NULL };
    char *text, *line, *save;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    clb_opt_help(&p, f);
    fclose(f);
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        CHECK(strlen(line) <= 80);
        if (line[0] == ' ' && line[6] == ' ')
            CHECK(!strncmp(line, "           words", 16));
    }
    free(text);
}

int main(void)
{
    TEST(test_forms);
    TEST(test_refuses);
    TEST(test_empty_operand);
    TEST(test_sizes);
    TEST(test_help);
    TEST(test_wrap);
    return test_result();
}
