#include "lib/base/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cores.h"
#include "test/check.h"
#include "test/unit/odd_fp.h"

struct job {
    struct clb_pool *pool;
    unsigned hits[16], n_seen;
    atomic_uint next, sum;
    unsigned stage[16], bad;
    int rounding;
    float tiny;
};

static void count(void *arg, unsigned t, unsigned n)
{
    struct job *j = arg;
    uint32_t i;

    j->hits[t]++;
    if (t == 0)
        j->n_seen = n;
    while (clb_take(&j->next, 100, &i))
        atomic_fetch_add(&j->sum, i);
}

static void test_run(void)
{
    struct clb_err err;

    for (unsigned n = 1; n <= 5; n++) {
        struct job j = { 0 };
        CHECK(clb_pool_new(&j.pool, n, &err));
        CHECK_EQ(clb_pool_threads(j.pool), n);
        for (int r = 0; r < 2000; r++) {
            atomic_store(&j.next, 0);
            clb_pool_run(j.pool, count, &j);
        }
        CHECK_EQ(j.sum, 2000 * 4950);
        CHECK_EQ(j.n_seen, n);
        for (unsigned t = 0; t < n; t++)
            CHECK_EQ(j.hits[t], 2000);
        clb_pool_free(j.pool);
    }
    clb_pool_free(NULL);
}

/* Workers that fell asleep wake up again. */
static void test_sleep(void)
{
    struct clb_err err;
    struct job j = { 0 };
    struct timespec nap = { 0, 3000000 };

    CHECK(clb_pool_new(&j.pool, 3, &err));
    for (int r = 0; r < 20; r++) {
        nanosleep(&nap, NULL);
        clb_pool_run(j.pool, count, &j);
    }
    CHECK_EQ(j.hits[2], 20);
    nanosleep(&nap, NULL);
    clb_pool_free(j.pool);
}

static void stages(void *arg, unsigned t, unsigned n)
{
    struct job *j = arg;

    for (unsigned s = 1; s <= 200; s++) {
        j->stage[t] = s;
        clb_pool_barrier(j->pool);
        for (unsigned other = 0; other < n; other++)
            if (j->stage[other] != s)
                atomic_fetch_add(&j->sum, 1);
        clb_pool_barrier(j->pool);
    }
}

static void test_barrier(void)
{
    struct clb_err err;

    for (unsigned n = 1; n <= 4; n++) {
        struct job j = { 0 };
        CHECK(clb_pool_new(&j.pool, n, &err));
        clb_pool_run(j.pool, stages, &j);
        CHECK_EQ(j.sum, 0);
        clb_pool_free(j.pool);
    }
}

/* Between two runs of all threads; its barriers wait for nobody. */
static void test_alone(void)
{
    struct clb_err err;
    struct job j = { 0 };

    CHECK(clb_pool_new(&j.pool, 3, &err));
    clb_pool_run_alone(j.pool, stages, &j);
    CHECK_EQ(j.stage[0], 200);
    CHECK_EQ(j.stage[1], 0);
    clb_pool_run_alone(j.pool, count, &j);
    CHECK_EQ(j.n_seen, 1);
    CHECK_EQ(j.sum, 4950);
    j.sum = 0;
    clb_pool_run(j.pool, stages, &j);
    CHECK_EQ(j.stage[2], 200);
    CHECK_EQ(j.sum, 0);
    clb_pool_free(j.pool);
}

static void late(void *arg, unsigned t, unsigned n)
{
    struct job *j = arg;
    struct timespec nap = { 0, 2000000 };

    (void)n;
    if (t == 1)
        nanosleep(&nap, NULL);
    clb_pool_barrier(j->pool);
}

/* Counts while somebody watches, and only then. */
static void test_watch(void)
{
    struct clb_pool_use use = { 0 };
    struct clb_err err;
    struct job j = { 0 };

    CHECK(clb_pool_new(&j.pool, 3, &err));
    clb_pool_run(j.pool, late, &j);
    clb_pool_watch(j.pool, &use);
    clb_pool_run(j.pool, late, &j);
    clb_pool_run_alone(j.pool, count, &j);
    CHECK_EQ(use.shared, 1);
    CHECK_EQ(use.alone, 1);
    CHECK(use.waited > 0);
    clb_pool_run(j.pool, count, &j);
    CHECK_EQ(use.shared, 2);
    clb_pool_watch(j.pool, NULL);
    clb_pool_run(j.pool, late, &j);
    clb_pool_run_alone(j.pool, count, &j);
    CHECK_EQ(use.shared, 2);
    CHECK_EQ(use.alone, 1);
    clb_pool_free(j.pool);
}

static void fp_look(void *arg, unsigned t, unsigned n)
{
    struct job *j = arg;
    volatile float small = 1e-38f, one = 1, bit = 0x1p-30f;

    (void)n;
    j->hits[t] = (unsigned)(one + bit == 1 && -one - bit == -1) + 2u * (small * 0.1f != 0);
}

static void test_floating_point(void)
{
    struct clb_err err;
    struct job j = { 0 };

    odd_fp_set();
    CHECK(clb_pool_new(&j.pool, 3, &err)); /* workers inherit the caller's state */
    clb_pool_run(j.pool, fp_look, &j);
    CHECK_EQ(fegetround(), FE_UPWARD); /* restored */
    clb_pool_run_alone(j.pool, fp_look, &j);
    CHECK_EQ(j.hits[0], 3);
    CHECK(odd_fp_reset());
    for (unsigned t = 0; t < 3; t++)
        CHECK_EQ(j.hits[t], 3);
    clb_pool_free(j.pool);
}

static void test_refuses(void)
{
    struct clb_pool *p;
    struct clb_err err;

    CHECK(!clb_pool_new(&p, 0, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK(!clb_pool_new(&p, 5000, &err));
    CHECK(p == NULL);
}

static void test_share(void)
{
    for (uint32_t n = 0; n < 50; n++)
        for (unsigned threads = 1; threads < 7; threads++) {
            uint32_t at = 0, a, b;
            for (unsigned t = 0; t < threads; t++) {
                clb_share(n, t, threads, &a, &b);
                CHECK_EQ(a, at);
                CHECK(b >= a);
                at = b;
            }
            CHECK_EQ(at, n);
        }
}

static char root[64];

static void put(const char *name, const char *text)
{
    char path[500];

    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = '\0';
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void test_quota(void)
{
    char command[128];

    snprintf(root, sizeof root, "/tmp/clb-cgroup-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    CHECK(clb_cores_quota(root) == 0);
    put("/proc/self/cgroup", "0::/a/b\n");
    CHECK(clb_cores_quota(root) == 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    CHECK(clb_cores_quota(root) == 0);
    put("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"); /* a group above limits it */
    CHECK(clb_cores_quota(root) == 1.5);
    put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    CHECK(clb_cores_quota(root) == 0.5);
    put("/proc/self/cgroup", "9:cpuset:/x\n4:cpu,cpuacct:/docker/1\n0::/none\n");
    CHECK(clb_cores_quota(root) == 0);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    CHECK(clb_cores_quota(root) == 0);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n");
    CHECK(clb_cores_quota(root) == 2.5);
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n"); /* at the root, as seen inside a container */
    CHECK(clb_cores_quota(root) == 1);
    char deep[200], name[400]; /* folders of any length */
    snprintf(deep, sizeof deep, "%s/%0*d", root, 120, 0);
    snprintf(name, sizeof name, "%s/proc/self/cgroup", deep + strlen(root));
    put(name, "0::/\n");
    snprintf(name, sizeof name, "%s/sys/fs/cgroup/cpu.max", deep + strlen(root));
    put(name, "25000 100000\n");
    CHECK(clb_cores_quota(deep) == 0.25);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_EQ(system(command), 0);
}

static void test_cpu_lists(void)
{
    static const char *const bad[] = { "x",  "1-",   "-1",  "3-2",      "1,,2",
                                       "1,", "5000", "1 2", "0-9999999" };
    struct clb_cpus c;

    CHECK(clb_cpus_parse(&c, ""));
    CHECK_EQ(CPU_COUNT_S(sizeof c.set, c.set), 0);
    CHECK(clb_cpus_parse(&c, "0-2,8,1030-1031,4095"));
    CHECK_EQ(CPU_COUNT_S(sizeof c.set, c.set), 7);
    CHECK(clb_cpus_has(&c, 0) && clb_cpus_has(&c, 8) && clb_cpus_has(&c, 1031));
    CHECK(clb_cpus_has(&c, 4095) && !clb_cpus_has(&c, 3) && !clb_cpus_has(&c, 4096));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!clb_cpus_parse(&c, bad[i]));
        CHECK_EQ(CPU_COUNT_S(sizeof c.set, c.set), 0);
    }
}

static unsigned threads_on(const char *cpus, const char *want_why)
{
    struct clb_cpus c;
    char why[100];

    CHECK(clb_cpus_parse(&c, cpus));
    unsigned n = clb_cores_threads(root, &c, why, sizeof why);
    CHECK_STR(why, want_why);
    return n;
}

/* Eight processors, two threads a core, numbered as most machines do: 0-3 and 4-7. */
static void test_threads(void)
{
    char command[128];

    snprintf(root, sizeof root, "/tmp/clb-cores-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    CHECK_EQ(threads_on("0-7", "8 cores, affinity 8, no quota"), 8); /* nothing is known */
    for (int cpu = 0; cpu < 8; cpu++) {
        char name[100], list[20];
        snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        snprintf(list, sizeof list, "%d,%d\n", cpu % 4, cpu % 4 + 4);
        put(name, list);
    }
    CHECK_EQ(threads_on("0-7", "4 cores, affinity 8, no quota"), 4);
    CHECK_EQ(threads_on("0,4", "1 cores, affinity 2, no quota"), 1);
    CHECK_EQ(threads_on("4-7", "4 cores, affinity 4, no quota"), 4); /* lone second threads */
    CHECK_EQ(threads_on("1,5,7", "2 cores, affinity 3, no quota"), 2);
    CHECK_EQ(threads_on("", "0 cores, affinity 0, no quota"), 1);
    put("/sys/devices/system/cpu/cpu7/topology/thread_siblings_list", "3,junk\n");
    CHECK_EQ(threads_on("0-7", "5 cores, affinity 8, no quota"), 5);
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    CHECK_EQ(threads_on("0-6", "4 cores, affinity 7, quota 2.5"), 3);
    CHECK_EQ(threads_on("0,1", "2 cores, affinity 2, quota 2.5"), 2);
    put("/sys/fs/cgroup/a/cpu.max", "20000 100000\n");
    CHECK_EQ(threads_on("0-6", "4 cores, affinity 7, quota 0.2"), 1);
    put("/proc/self/cgroup", "3:cpu,cpuacct:/b\n");
    put("/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "300000\n");
    put("/sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
    CHECK_EQ(threads_on("0-6", "4 cores, affinity 7, quota 3"), 3);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_EQ(system(command), 0);
}

static void deep(void *arg, unsigned t, unsigned n)
{
    volatile char stack[100 << 10];

    for (size_t i = 0; i < sizeof stack; i += 4096)
        stack[i] = (char)t;
    ((struct job *)arg)->hits[t] = stack[0] == (char)t ? n : 0;
}

/* As under 'ulimit -s 64', which is where threads have their stack from. */
static void test_small_stack(void)
{
    struct job j = { 0 };
    pthread_attr_t attr, before;
    struct clb_err err;
    const size_t least = (size_t)PTHREAD_STACK_MIN, size = least > 64 << 10 ? least : 64 << 10;

    CHECK(!pthread_getattr_default_np(&before) && !pthread_attr_init(&attr));
    CHECK(!pthread_attr_setstacksize(&attr, size) && !pthread_setattr_default_np(&attr));
    CHECK(clb_pool_new(&j.pool, 2, &err));
    clb_pool_run(j.pool, deep, &j);
    CHECK_EQ(j.hits[1], 2);
    clb_pool_free(j.pool);
    CHECK(!pthread_setattr_default_np(&before));
    pthread_attr_destroy(&attr);
    pthread_attr_destroy(&before);
}

static void test_default(void)
{
    char why[100];

    unsigned n = clb_pool_default_threads(why, sizeof why);
    CHECK(n >= 1 && n <= (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
    CHECK_HAS(why, " cores, affinity ");
    CHECK_EQ(clb_pool_default_threads(NULL, 0), n);
}

int main(void)
{
    TEST(test_run);
    TEST(test_sleep);
    TEST(test_barrier);
    TEST(test_alone);
    TEST(test_watch);
    TEST(test_floating_point);
    TEST(test_refuses);
    TEST(test_share);
    TEST(test_quota);
    TEST(test_cpu_lists);
    TEST(test_threads);
    TEST(test_small_stack);
    TEST(test_default);
    return test_result();
}
