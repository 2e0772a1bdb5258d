#include "lib/base/ahead.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/check.h"

#define BYTES ((size_t)11 << 20)

static char path[64];
static int fd;

static void write_file(void)
{
    char *bytes = malloc(BYTES);

    snprintf(path, sizeof path, "/tmp/clb-ahead-XXXXXX");
    fd = mkstemp(path);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (char)(i * 7 + i / 4096);
    CHECK(fd >= 0 && write(fd, bytes, BYTES) == (ssize_t)BYTES);
    free(bytes);
}

/* Makes the system forget the file; false when it cannot (memory is all it has). */
static bool forget(const struct clb_mapfile *m)
{
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return clb_ahead_is_cold(m, 0, m->size);
}

/* A system that is short of memory may take a page away at once: more than one try. */
static bool comes_to_memory(struct clb_ahead *a, const struct clb_mapfile *m)
{
    for (int i = 0; i < 5; i++) {
        clb_ahead_want(a, 100, 5 << 20);
        clb_ahead_want(a, 5 << 20, UINT64_C(1) << 40); /* as far as the file goes */
        clb_ahead_want(a, 0, 100);
        clb_ahead_wait(a);
        if (!clb_ahead_is_cold(m, 0, m->size))
            return true;
    }
    return false;
}

static void test_reads(void)
{
    struct clb_mapfile m;
    struct clb_ahead *a;
    struct clb_err err;
    size_t wrong = 0;

    CHECK(clb_mapfile_open(&m, path, &err));
    CHECK(clb_mapfile_use(&m, 0, m.size, CLB_MAP_BLOCKS) || true);
    bool cold = forget(&m);
    CHECK(clb_ahead_new(&a, &m, NULL, &err));
    clb_ahead_want(a, BYTES, 10);
    clb_ahead_want(a, 0, 0);
    clb_ahead_want(a, 5, UINT64_MAX);
    clb_ahead_want(NULL, 0, 10);
    if (!cold)
        printf("# this file system keeps its files in memory\n");
    CHECK(comes_to_memory(a, &m));
    for (size_t i = 0; i < BYTES; i++)
        wrong += m.data[i] != (uint8_t)(i * 7 + i / 4096);
    CHECK_EQ(wrong, 0);
    clb_ahead_free(a);
    clb_ahead_free(NULL);
    clb_mapfile_close(&m);
}

/* As a user who may only read the file, and whom the system does not tell what is in memory. */
static int other_user(void)
{
    struct clb_mapfile m;
    struct clb_ahead *a;
    struct clb_err err;
    size_t wrong = 0;

    /* opened first: the directory may be closed to others */
    if (!clb_mapfile_open(&m, path, &err) || setresuid(65534, 65534, 65534) != 0)
        return 10;
    clb_mapfile_use(&m, 0, m.size, CLB_MAP_BLOCKS);
    if (!clb_ahead_is_cold(&m, 0, m.size) || !clb_ahead_new(&a, &m, NULL, &err))
        return 11;
    if (!comes_to_memory(a, &m))
        return 12;
    for (size_t i = 0; i < BYTES; i++)
        wrong += m.data[i] != (uint8_t)(i * 7 + i / 4096);
    clb_ahead_free(a);
    clb_mapfile_close(&m);
    return wrong ? 13 : 0;
}

static void test_other_user(void)
{
    struct clb_mapfile m;
    struct clb_err err;
    int status = -1;

    CHECK(clb_mapfile_open(&m, path, &err));
    bool cold = fchmod(fd, 0644) == 0 && forget(&m);
    clb_mapfile_close(&m);
    if (geteuid() != 0 || !cold) {
        printf("# needs root, and a file system that forgets\n");
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(other_user());
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

/* More than fits is forgotten; what is queued when it ends is not read. */
static void test_much(void)
{
    struct clb_mapfile m;
    struct clb_ahead *a;
    struct clb_err err;

    CHECK(clb_mapfile_open(&m, path, &err));
    forget(&m);
    CHECK(clb_ahead_new(&a, &m, NULL, &err));
    for (int i = 0; i < 5000; i++)
        clb_ahead_want(a, (uint64_t)(i % 11) << 20, 1 << 20);
    clb_ahead_free(a);
    clb_mapfile_close(&m);
}

/* A file that gets shorter is for those to find out who need it. */
static void test_cut(void)
{
    struct clb_mapfile m;
    struct clb_ahead *a;
    struct clb_err err;

    CHECK(clb_mapfile_open(&m, path, &err));
    CHECK(clb_ahead_new(&a, &m, NULL, &err));
    CHECK_EQ(ftruncate(fd, 5000), 0);
    clb_ahead_want(a, 0, BYTES);
    clb_ahead_wait(a);
    clb_ahead_free(a);
    clb_mapfile_close(&m);
}

int main(void)
{
    write_file();
    if (!test_emulated())
        TEST(test_reads);
    TEST(test_other_user);
    TEST(test_much);
    TEST(test_cut);
    unlink(path);
    return test_result();
}
