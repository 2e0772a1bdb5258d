#include "lib/base/slab.h"

#include "lib/base/pool.h"
#include "test/check.h"

enum { K = 1024 };

static void test_classes(void)
{
    struct clb_slab_options opt = { .class_bytes = { 4096, 8192, 16384 } };

    CHECK_EQ(clb_slab_cost(&opt, 1), 4096);
    CHECK_EQ(clb_slab_cost(&opt, 4096), 4096);
    CHECK_EQ(clb_slab_cost(&opt, 4097), 8192);
    CHECK_EQ(clb_slab_cost(&opt, 16385), 20480); /* on its own, whole pages */
    opt.disabled = true;
    CHECK_EQ(clb_slab_cost(&opt, 1), 1);
    CHECK_EQ(clb_slab_cost(&(struct clb_slab_options){ 0 }, 1), 128 * K);
    CHECK_EQ(clb_slab_cost(&(struct clb_slab_options){ 0 }, 600 * K), 2048 * K);
}

static void test_reuse(void)
{
    struct clb_ledger l = { 0 };
    struct clb_slab *s;
    struct clb_err err;

    CHECK(clb_slab_new(&s, &(struct clb_slab_options){ 0 }, &l, &err));
    char *a = clb_slab_get(s, 1000, &err), *b = clb_slab_get(s, 300 * K, &err);
    CHECK(a && b && (uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    CHECK(a[0] == 0 && a[128 * K - 1] == 0);
    CHECK_EQ(l.used, 1000 + 300 * K);
    CHECK_EQ(l.reserved, 640 * K);
    clb_slab_put(s, a, 1000);
    CHECK_EQ(l.used, 300 * K);
    CHECK_EQ(l.reserved, 640 * K); /* kept */
    CHECK(clb_slab_get(s, 128 * K, &err) == a);
    CHECK_EQ(l.reserved, 640 * K);
    CHECK_EQ(l.peak, 428 * K);
    char *big = clb_slab_get(s, 3 * K * K, &err);
    CHECK_EQ(l.reserved, 640 * K + 3 * K * K);
    clb_slab_put(s, big, 3 * K * K);
    CHECK_EQ(l.reserved, 640 * K); /* large ones go back at once */
    clb_slab_put(s, NULL, 5);
    clb_slab_put(s, a, 128 * K);
    clb_slab_put(s, b, 300 * K);
    clb_slab_free(s);
    CHECK_EQ(l.used, 0);
    CHECK_EQ(l.reserved, 0);
    CHECK_EQ(l.reserved_peak, 640 * K + 3 * K * K);
    clb_slab_free(NULL);
}

static void test_limit(void)
{
    struct clb_slab_options opt = { .limit = 256 * K };
    struct clb_ledger l = { 0 };
    struct clb_slab *s;
    struct clb_err err;

    CHECK(clb_slab_new(&s, &opt, &l, &err));
    void *a = clb_slab_get(s, 1, &err), *b = clb_slab_get(s, 1, &err);
    CHECK(a && b);
    CHECK(!clb_slab_get(s, 1, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "need 131072 bytes more, but 262144 of 262144");
    CHECK(!clb_slab_get(s, SIZE_MAX, &err));
    clb_slab_put(s, a, 1);
    clb_slab_put(s, b, 1);
    CHECK(!clb_slab_get(s, 300 * K, &err)); /* a 512 KB slab */
    opt.limit = 0;
    clb_slab_free(s);
    CHECK_EQ(l.reserved, 0);

    opt = (struct clb_slab_options){ .class_bytes = { 4096, 8192, 16384 }, .limit = 8192 };
    CHECK(clb_slab_new(&s, &opt, &l, &err));
    a = clb_slab_get(s, 1, &err);
    clb_slab_put(s, a, 1);
    CHECK((a = clb_slab_get(s, 8192, &err)) != NULL); /* idle slabs make room */
    CHECK_EQ(l.reserved, 8192);
    clb_slab_put(s, a, 8192);
    clb_slab_free(s);
}

static void test_disabled(void)
{
    struct clb_slab_options opt = { .disabled = true };
    struct clb_ledger l = { 0 };
    struct clb_slab *s;
    struct clb_err err;

    CHECK(clb_slab_new(&s, &opt, &l, &err));
    char *a = clb_slab_get(s, 100, &err);
    CHECK_EQ(l.reserved, 100);
    a[99] = 1;
    clb_slab_put(s, a, 100);
    CHECK_EQ(l.reserved, 0);
    clb_slab_free(s);
}

static void test_bad_classes(void)
{
    struct clb_ledger l = { 0 };
    struct clb_slab *s;
    struct clb_err err;

    CHECK(!clb_slab_new(&s, &(struct clb_slab_options){ .class_bytes = { 8192, 4096, 16384 } }, &l,
                        &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK(!clb_slab_new(&s, &(struct clb_slab_options){ .class_bytes = { 100, 4096, 8192 } }, &l,
                        &err));
    CHECK(!clb_slab_new(&s, &(struct clb_slab_options){ .class_bytes = { 0, 4096, 8192 } }, &l,
                        &err));
}

static void hammer(void *arg, unsigned t, unsigned n)
{
    struct clb_slab *s = arg;
    struct clb_err err;
    void *held[8] = { 0 };
    size_t size[8] = { 0 };
    uint32_t x = t * 77 + n;

    for (int i = 0; i < 4000; i++) {
        unsigned k = (x = x * 1664525u + 1013904223u) >> 29;
        clb_slab_put(s, held[k], size[k]);
        size[k] = (x >> 8) % 20000 + 1;
        held[k] = clb_slab_get(s, size[k], &err);
        memset(held[k], (int)k, size[k]);
    }
    for (unsigned k = 0; k < 8; k++)
        clb_slab_put(s, held[k], size[k]);
}

static void test_threads(void)
{
    struct clb_slab_options opt = { .class_bytes = { 4096, 8192, 16384 } };
    struct clb_ledger l = { 0 };
    struct clb_slab *s;
    struct clb_pool *p;
    struct clb_err err;

    CHECK(clb_slab_new(&s, &opt, &l, &err));
    CHECK(clb_pool_new(&p, 4, &err));
    clb_pool_run(p, hammer, s);
    CHECK_EQ(l.used, 0);
    CHECK(l.peak <= l.reserved_peak && l.reserved <= l.reserved_peak && l.peak > 0);
    clb_slab_free(s);
    CHECK_EQ(l.reserved, 0);
    clb_pool_free(p);
}

int main(void)
{
    TEST(test_classes);
    TEST(test_reuse);
    TEST(test_limit);
    TEST(test_disabled);
    TEST(test_bad_classes);
    TEST(test_threads);
    return test_result();
}
