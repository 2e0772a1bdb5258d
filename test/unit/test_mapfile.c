#include "lib/base/mapfile.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/check.h"

static char dir[64];

static const char *path_of(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, size_t n)
{
    FILE *f = fopen(path_of(name), "w");

    for (size_t i = 0; i < n; i++)
        fputc((int)(i * 31 % 251), f);
    fclose(f);
}

static void test_map(void)
{
    struct clb_mapfile m;
    struct clb_err err;
    uint8_t part[100];

    write_file("a", 10000);
    CHECK(clb_mapfile_open(&m, path_of("a"), &err));
    CHECK_EQ(m.size, 10000);
    CHECK_EQ(m.data[9999], 9999 * 31 % 251);
    clb_mapfile_want(&m, 100, 50);
    clb_mapfile_want(&m, 20000, 50);
    CHECK(clb_mapfile_read(&m, part, 9900, 100, &err));
    CHECK_EQ(part[99], 9999 * 31 % 251);
    CHECK(!clb_mapfile_read(&m, part, 9950, 100, &err));
    CHECK_HAS(err.text, "byte 10000: the file ends here, but 50 more");
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK(!clb_mapfile_read(&m, part, UINT64_MAX - 10, 100, &err));
    CHECK(!truncate(path_of("a"), 5000)); /* cut while mapped: an ordinary error */
    CHECK(!clb_mapfile_read(&m, part, 6000, 100, &err));
    CHECK_HAS(err.text, "byte 6000");
    clb_mapfile_close(&m);
    clb_mapfile_close(&m);
}

static void test_empty_and_zeroed(void)
{
    struct clb_mapfile m = { 0 };
    struct clb_err err;

    clb_mapfile_close(&m); /* must not close descriptor 0 */
    CHECK(fcntl(0, F_GETFD) >= 0);
    write_file("empty", 0);
    CHECK(clb_mapfile_open(&m, path_of("empty"), &err));
    CHECK(m.data == NULL && m.size == 0);
    clb_mapfile_want(&m, 0, 1);
    clb_mapfile_close(&m);
}

static void test_refuses(void)
{
    struct clb_mapfile m;
    struct clb_err err;

    CHECK(!clb_mapfile_open(&m, path_of("none"), &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "/none: cannot be opened: No such file or directory");
    CHECK(!clb_mapfile_open(&m, dir, &err));
    CHECK_HAS(err.text, ": is a folder, not a file");
    CHECK(!mkfifo(path_of("pipe"), 0600));
    CHECK(!clb_mapfile_open(&m, path_of("pipe"), &err));
    CHECK_HAS(err.text, ": is a pipe, not a file");
    CHECK(!clb_mapfile_open(&m, "/dev/null", &err));
    CHECK_HAS(err.text, "/dev/null: is a device, not a file");
    write_file("b", 10);
    CHECK(!symlink("b", path_of("link")));
    CHECK(clb_mapfile_open(&m, path_of("link"), &err)); /* hub caches are made of links */
    clb_mapfile_close(&m);
}

/* Uses are hints: what a file holds does not depend on them. */
static void test_use(void)
{
    static const enum clb_map_use uses[] = { CLB_MAP_STREAM, CLB_MAP_STREAM_WITHIN, CLB_MAP_BLOCKS,
                                             CLB_MAP_LOOKUP };
    size_t n = ((size_t)5 << 20) + 100;
    struct clb_mapfile m;
    struct clb_err err;

    write_file("large", n);
    CHECK(clb_mapfile_open(&m, path_of("large"), &err));
    CHECK_EQ((uintptr_t)m.data % ((uintptr_t)2 << 20), 0);
    for (size_t u = 0; u < sizeof uses / sizeof *uses; u++) {
        clb_mapfile_use(&m, 5000, n, uses[u]);
        CHECK(!clb_mapfile_use(&m, n, 1, uses[u])); /* behind the end */
        CHECK(!clb_mapfile_use(&m, 5, UINT64_MAX, uses[u]));
        CHECK(m.data[0] == 0 && m.data[n - 1] == (n - 1) * 31 % 251);
    }
    CHECK(!clb_mapfile_use(&m, 5000, 2 << 20, CLB_MAP_STREAM_WITHIN)); /* no whole huge page */
    clb_mapfile_close(&m);
    unlink(path_of("large"));
}

int main(void)
{
    static const char *const names[] = { "a", "empty", "pipe", "b", "link" };

    snprintf(dir, sizeof dir, "/tmp/clb-map-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    TEST(test_map);
    TEST(test_empty_and_zeroed);
    TEST(test_refuses);
    TEST(test_use);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
    rmdir(dir);
    return test_result();
}
