#include "lib/base/pages.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/check.h"
#include "test/unit/smaps.h"

#define MB (UINT64_C(1) << 20)

static void test_blocks(void)
{
    static const uint64_t sizes[] = { 0, 1, 4096, 100000, 2 * MB, 2 * MB + 1, 9 * MB };
    struct clb_err err;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t n = sizes[i];
        uint8_t *p = clb_pages_new(n, i % 2, NULL, "a test", &err);
        CHECK(p != NULL);
        CHECK_EQ((uintptr_t)p % 64, 0);
#ifndef __SANITIZE_ADDRESS__
        CHECK_EQ((uintptr_t)p % (n >= CLB_PAGES_HUGE ? CLB_PAGES_HUGE : 4096), 0);
#endif
        uint64_t zeros = 0;
        for (uint64_t k = 0; k < n; k++)
            zeros += p[k] == 0;
        CHECK_EQ(zeros, n);
        memset(p, 1, n);
        clb_pages_free(p, n, NULL);
    }
    clb_pages_free(NULL, 5, NULL);
}

static void test_no_memory(void)
{
    struct clb_err err;

    CHECK(!clb_pages_new(UINT64_MAX, false, NULL, "a test", &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK(!clb_pages_new(UINT64_C(1) << 60, true, NULL, "a test", &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
}

/* Huge pages are wanted where whole ones fit, and not a byte more is taken than was asked for. */
static void test_huge(void)
{
    uint64_t n = 7 * MB + 4096;
    struct clb_err err;
    uint8_t *p = clb_pages_new(n, true, NULL, "a test", &err);
    uint8_t *plain = clb_pages_new(n, false, NULL, "a test", &err);

    CHECK(p && plain);
#ifndef __SANITIZE_ADDRESS__
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0)
        printf("# this system has no huge pages\n");
    else
        CHECK_HAS(smaps(p, "VmFlags:"), " hg");
    CHECK(!strstr(smaps(p + n - 1, "VmFlags:"), " hg"));
    if (*smaps(plain, "VmFlags:") && strstr(smaps(p, "VmFlags:"), " hg"))
        CHECK_HAS(smaps(plain, "VmFlags:"), " nh"); /* also where every process gets them */
    memset(p, 1, n);
    CHECK(atol(smaps(p, "Rss:")) == 6144);
    CHECK(atol(smaps(p + n - 1, "Rss:")) >= 1028);
    if (atol(smaps(p, "AnonHugePages:")) == 0) /* wishes are not always granted */
        printf("# no huge page was to be had\n");
    clb_pages_huge(plain, CLB_PAGES_HUGE - 1); /* no whole one */
    CHECK(!strstr(smaps(plain, "VmFlags:"), " hg"));
    clb_pages_huge(plain + 4096, CLB_PAGES_HUGE);
    CHECK(!strstr(smaps(plain, "VmFlags:"), " hg"));
#endif
    clb_pages_free(p, n, NULL);
    clb_pages_free(plain, n, NULL);
}

/* In a process without the privilege to lock what it likes. */
static int locked_child(void)
{
    struct rlimit limit = { 65536, 65536 };
    struct clb_residence how = { .lock = true };
    struct clb_err err;

    if ((geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) ||
        setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return 10;
    void *p = clb_pages_new(16384, false, &how, "a test", &err);
    if (!p || how.locked != 16384)
        return 11;
    if (clb_pages_new(MB, false, &how, "the cache", &err) || err.code != CLB_NO_SPACE ||
        !strstr(err.text, "cannot lock 1048576 bytes of the cache in memory") ||
        !strstr(err.text, "may lock 65536 (RLIMIT_MEMLOCK) and has locked 16384") ||
        how.locked != 16384)
        return 12;
    clb_pages_free(p, 16384, &how);
    if (how.locked != 0)
        return 13;
    how.lock = false; /* nothing is locked, and nothing counted */
    p = clb_pages_new(MB, false, &how, "the cache", &err);
    if (!p || how.locked != 0)
        return 14;
    clb_pages_free(p, MB, &how);
    return 0;
}

static void test_lock(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("# sanitizers make mlock do nothing\n");
    return;
#endif
    int status = -1;
    fflush(stdout);
    pid_t child = fork();

    if (child == 0)
        _exit(locked_child());
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

int main(void)
{
    TEST(test_blocks);
    TEST(test_no_memory);
    if (!test_emulated())
        TEST(test_huge);
    TEST(test_lock);
    return test_result();
}
