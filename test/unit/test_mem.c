#include "lib/base/mem.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/check.h"

static void test_new(void)
{
    struct clb_err err;

    for (size_t n = 0; n < 300; n++) {
        unsigned char *p = clb_new(n, 1, &err);
        CHECK(p && (uintptr_t)p % 64 == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(p[i] == 0);
        memset(p, 0xff, n);
        clb_free(p);
    }
    clb_free(NULL);
}

static void test_absurd(void)
{
    struct clb_err err = { 0 };

    CHECK(!clb_new(SIZE_MAX, 2, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK(!clb_new(SIZE_MAX, 1, &err));
    CHECK(!clb_new(SIZE_MAX - 100, 1, &err));
    CHECK(!clb_new((size_t)1 << 47, 1, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "140737488355328 bytes");
    CHECK(!clb_grow(NULL, SIZE_MAX / 2, 3, &err));
}

static void test_grow(void)
{
    struct clb_err err;
    int *p = NULL;

    for (int n = 1; n <= 5000; n *= 3) {
        p = clb_grow(p, (size_t)n, sizeof *p, &err);
        p[n - 1] = n;
    }
    for (int n = 1; n <= 5000; n *= 3)
        CHECK_EQ(p[n - 1], n);
    CHECK(!clb_grow(p, SIZE_MAX, 2, &err));
    CHECK_EQ(p[0], 1); /* still valid */
    clb_free(p);
    p = clb_new(4, sizeof *p, &err); /* blocks of clb_new can grow too */
    p[3] = 7;
    p = clb_grow(p, 4000, sizeof *p, &err);
    CHECK_EQ(p[3], 7);
    clb_free(p);
}

static void test_arithmetic(void)
{
    uint64_t v;

    CHECK(clb_mul(1u << 31, 2, &v) && v == UINT64_C(1) << 32);
    CHECK(!clb_mul(UINT64_MAX, 2, &v));
    CHECK(!clb_add(UINT64_MAX, 1, &v));
    CHECK(clb_round_up(65, 64, &v) && v == 128);
    CHECK(clb_round_up(64, 64, &v) && v == 64);
    CHECK(!clb_round_up(UINT64_MAX - 5, 64, &v));
}

/* Only meaningful in builds with the guard; in others a child must live. */
static void test_guard(void)
{
    struct clb_err err;
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        clb_alloc_guard_lock();
        clb_alloc_guard_lock();
        clb_alloc_guard_unlock();
        clb_free(clb_new(1, 1, &err));
        clb_alloc_guard_unlock();
        _exit(0);
    }
    waitpid(child, &status, 0);
#ifdef CLB_ALLOC_GUARD
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
    CHECK_EQ(status, 0);
#endif
    clb_alloc_guard_lock();
    clb_alloc_guard_unlock();
    clb_free(clb_new(1, 1, &err)); /* unlocked: fine in every build */
}

int main(void)
{
    TEST(test_new);
    TEST(test_absurd);
    TEST(test_grow);
    TEST(test_arithmetic);
    TEST(test_guard);
    return test_result();
}
