#include "lib/base/err.h"

#include <errno.h>
#include <string.h>

#include "test/check.h"

static void test_where_and_why(void)
{
    struct clb_err err = { .field = "old", .has_offset = true };

    CHECK(!clb_fail(&err, CLB_BAD_INPUT, "%u rows, but %u are expected", 3u, 4u));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_STR(err.field, "");
    CHECK(!err.has_offset && !err.sys);
    CHECK_HAS(err.site, "test_err.c:");
    CHECK(!clb_fail_in(&err, "layer %u", 7u));
    CHECK(!clb_fail_in(&err, "m.bin"));
    CHECK_STR(err.text, "m.bin: layer 7: 3 rows, but 4 are expected");
    CHECK(!clb_err_place(&err, "m.bin", "gate", 96));
    CHECK(!clb_err_place(&err, NULL, NULL, CLB_NO_OFFSET));
    CHECK_STR(err.file, "m.bin");
    CHECK_STR(err.field, "gate");
    CHECK(err.has_offset && err.offset == 96);
}

static void test_its_own_text(void)
{
    struct clb_err err;

    clb_fail(&err, CLB_USAGE, "why");
    clb_fail(&err, CLB_FAILED, "because of '%s'", err.text);
    CHECK_STR(err.text, "because of 'why'");
}

static void test_system(void)
{
    struct clb_err err;

    errno = EACCES;
    CHECK(!clb_fail_sys(&err, CLB_FAILED, "%s: cannot be opened", "a"));
    CHECK_STR(err.text, "a: cannot be opened: Permission denied");
    CHECK(err.code == CLB_FAILED && err.sys == EACCES);
    errno = ENOSPC;
    clb_fail_sys(&err, CLB_FAILED, "b");
    CHECK_EQ(err.code, CLB_NO_SPACE);
    errno = ENOMEM;
    clb_fail_sys(&err, CLB_BAD_INPUT, "b");
    CHECK_EQ(err.code, CLB_NO_SPACE);
}

/* A path can be longer than a message: its end and the cause stay. */
static void test_long(void)
{
    char path[4097];
    struct clb_err err;

    memset(path, 'x', sizeof path - 1);
    memcpy(path, "/start/", 7);
    memcpy(path + sizeof path - 6, "/last", 6);
    errno = ENOENT;
    clb_fail_sys(&err, CLB_BAD_INPUT, "%s: cannot be opened", path);
    CHECK_EQ(strlen(err.text), sizeof err.text - 1);
    CHECK(!strncmp(err.text, "/start/", 7));
    CHECK_HAS(err.text, "...");
    CHECK_HAS(err.text, "x/last: cannot be opened: No such file or directory");
    clb_err_place(&err, path, NULL, CLB_NO_OFFSET);
    CHECK_EQ(strlen(err.file), sizeof err.file - 1);
    CHECK(!strncmp(err.file, "/start/", 7));
    CHECK_HAS(err.file, "x/last");
    clb_fail(&err, CLB_BAD_INPUT, "too many rows");
    clb_fail_in(&err, "%s", path);
    CHECK(!strncmp(err.text, "/start/", 7));
    CHECK_HAS(err.text, "x/last: too many rows");
}

int main(void)
{
    TEST(test_where_and_why);
    TEST(test_its_own_text);
    TEST(test_system);
    TEST(test_long);
    return test_result();
}
