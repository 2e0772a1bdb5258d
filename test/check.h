/* check.h - the few words that unit tests need. A test file has one main that calls TEST(name) for
 * each function and returns test_result(). Output is TAP. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_count, test_failed, test_bad;

#define CHECK(cond)                                                                        \
    do {                                                                                   \
        if (!(cond)) {                                                                     \
            printf("# %s:%d: failed: %s\n", __FILE__, __LINE__, #cond);                    \
            test_bad = 1;                                                                  \
        }                                                                                  \
    } while (0)
#define CHECK_EQ(got, want)                                                                \
    do {                                                                                   \
        long long g_ = (long long)(got), w_ = (long long)(want);                           \
        if (g_ != w_) {                                                                    \
            printf("# %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, g_, w_);   \
            test_bad = 1;                                                                  \
        }                                                                                  \
    } while (0)
#define CHECK_STR(got, want)                                                               \
    do {                                                                                   \
        const char *g_ = (got), *w_ = (want);                                              \
        if (strcmp(g_, w_)) {                                                              \
            printf("# %s:%d: %s is '%s', not '%s'\n", __FILE__, __LINE__, #got, g_, w_);   \
            test_bad = 1;                                                                  \
        }                                                                                  \
    } while (0)
/* The text contains the part. */
#define CHECK_HAS(text, part)                                                              \
    do {                                                                                   \
        if (!strstr((text), (part))) {                                                     \
            printf("# %s:%d: '%s' lacks '%s'\n", __FILE__, __LINE__, (text), (part));      \
            test_bad = 1;                                                                  \
        }                                                                                  \
    } while (0)
#define TEST(fn)                                                                           \
    do {                                                                                   \
        test_bad = 0;                                                                      \
        fn();                                                                              \
        printf("%s %d %s\n", test_bad ? "not ok" : "ok", ++test_count, #fn);               \
        test_failed += test_bad;                                                           \
    } while (0)

/* In qemu, which takes what a program advises about its memory for granted (test/qemu.sh). */
static inline int test_emulated(void)
{
    return getenv("COLIBRI_TEST_EMULATED") != NULL;
}

static inline int test_result(void)
{
    printf("1..%d\n", test_count);
    return test_failed != 0;
}

#endif
