/* test_numa.c - what is decided on machines that are not this one, from copies of what their
 * systems tell; and that the calls to the system do what they should on the first node, which all
 * have. */
#include "lib/base/numa.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/check.h"

static char root[64];

static void put(const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = '\0';
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void put_node(unsigned id, const char *cpus)
{
    char name[100];

    snprintf(name, sizeof name, "/sys/devices/system/node/node%u/cpulist", id);
    put(name, cpus);
}

/* "interleaved over NUMA nodes 0,1", or what it is. */
static const char *decide(enum clb_numa_mode want, const char *cpus)
{
    static char text[200];
    struct clb_cpus allowed;
    struct clb_numa n;

    CHECK(clb_cpus_parse(&allowed, cpus));
    clb_numa_decide(&n, root, want, &allowed);
    clb_numa_describe(&n, text, sizeof text);
    struct clb_cpus use = clb_numa_cpus(&n, &allowed);
    snprintf(text + strlen(text), sizeof text - strlen(text), " cpus %d",
             CPU_COUNT_S(sizeof use.set, use.set));
    clb_numa_done(&n);
    CHECK_EQ(n.mode, CLB_NUMA_OFF);
    return text;
}

static void test_decide(void)
{
    char command[128];

    snprintf(root, sizeof root, "/tmp/clb-numa-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    CHECK_STR(decide(CLB_NUMA_INTERLEAVE, "0-7"), " cpus 8"); /* nothing is known */
    put("/proc/self/status", "Name:\tx\nMems_allowed:\t00000003\nMems_allowed_list:\t0-1\n");
    put("/sys/devices/system/node/has_memory", "0\n");
    put_node(0, "0-7\n");
    CHECK_STR(decide(CLB_NUMA_INTERLEAVE, "0-7"), " cpus 8"); /* one node */
    CHECK_STR(decide(CLB_NUMA_LOCAL, "0-7"), " cpus 8");

    put("/sys/devices/system/node/has_memory", "0-1\n");
    put_node(0, "0-3\n");
    put_node(1, "4-9\n");
    CHECK_STR(decide(CLB_NUMA_AUTO, "0-9"), "interleaved over NUMA nodes 0,1 cpus 10");
    CHECK_STR(decide(CLB_NUMA_INTERLEAVE, "0-9"), "interleaved over NUMA nodes 0,1 cpus 10");
    CHECK_STR(decide(CLB_NUMA_LOCAL, "0-9"), "on NUMA node 1 cpus 6");
    CHECK_STR(decide(CLB_NUMA_OFF, "0-9"), " cpus 10");
    CHECK_STR(decide(CLB_NUMA_LOCAL, "0-5"), "on NUMA node 0 cpus 4"); /* affinity counts */
    CHECK_STR(decide(CLB_NUMA_INTERLEAVE, "0-3"), " cpus 4");          /* keeps to one node */

    /* Two threads of a core are one core. */
    for (unsigned cpu = 4; cpu < 10; cpu++) {
        char name[100], list[20];
        snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
                 cpu);
        snprintf(list, sizeof list, "%u-%u\n", cpu / 2 * 2, cpu / 2 * 2 + 1);
        put(name, list);
    }
    CHECK_STR(decide(CLB_NUMA_LOCAL, "0-9"), "on NUMA node 0 cpus 4");

    put("/proc/self/status", "Mems_allowed_list:\t1\n"); /* a cpuset leaves one node's memory */
    CHECK_STR(decide(CLB_NUMA_AUTO, "0-9"), " cpus 10");
    put("/proc/self/status", "Mems_allowed_list:\t0-1023\n");
    put("/sys/devices/system/node/has_memory", "0-2,5\n");
    put_node(2, "\n"); /* memory without processors: slow */
    put_node(5, "20,24-25\n");
    CHECK_STR(decide(CLB_NUMA_AUTO, "0-30"), "interleaved over NUMA nodes 0,1,5 cpus 31");
    put("/sys/devices/system/node/has_memory", "0-,1\n");
    CHECK_STR(decide(CLB_NUMA_AUTO, "0-30"), " cpus 31");
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_EQ(system(command), 0);
}

static void test_short_text(void)
{
    struct clb_numa_node node[3] = { { .id = 10 }, { .id = 11 }, { .id = 12 } };
    struct clb_numa n = { .mode = CLB_NUMA_INTERLEAVE, .n_node = 3, .node = node };
    char text[32];

    for (size_t size = 1; size <= sizeof text; size++) {
        memset(text, 'x', sizeof text);
        clb_numa_describe(&n, text, size);
        CHECK(memchr(text, 0, size) != NULL);
    }
}

static int policy_of(const void *at)
{
    int mode = -1;

    syscall(SYS_get_mempolicy, &mode, NULL, 0ul, at, at ? (unsigned long)MPOL_F_ADDR : 0ul);
    return mode;
}

/* This machine's first node as the one to keep to. */
static struct clb_numa first_node(struct clb_numa_node *node)
{
    *node = (struct clb_numa_node){ .id = 0 };
    clb_cpus_allowed(&node->cpus);
    return (struct clb_numa){ .mode = CLB_NUMA_LOCAL, .n_node = 1, .node = node };
}

struct joined {
    struct clb_numa numa;
    int policy;
};

static void *join(void *arg)
{
    struct joined *j = arg;

    clb_numa_join(&j->numa, 3, 4);
    j->policy = policy_of(NULL);
    return NULL;
}

static void test_calls(void)
{
    struct clb_numa off = { .mode = CLB_NUMA_OFF };
    struct clb_numa_policy before;
    struct clb_numa_node node;
    struct joined j = { .numa = first_node(&node) };
    pthread_t id;

    if (policy_of(NULL) != MPOL_DEFAULT) {
        printf("# memory policies cannot be asked for, or one was given\n");
        return;
    }
    clb_numa_enter(&off, &before);
    CHECK_EQ(policy_of(NULL), MPOL_DEFAULT);
    clb_numa_leave(&before);
    clb_numa_enter(&j.numa, &before);
    CHECK_EQ(policy_of(NULL), MPOL_PREFERRED);
    clb_numa_leave(&before);
    CHECK_EQ(policy_of(NULL), MPOL_DEFAULT);

    CHECK(!pthread_create(&id, NULL, join, &j) && !pthread_join(id, NULL));
    CHECK_EQ(j.policy, MPOL_PREFERRED);
    CHECK_EQ(policy_of(NULL), MPOL_DEFAULT); /* of others nothing changes */

    char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    clb_numa_place(&off, p, 65536);
    CHECK_EQ(policy_of(p), MPOL_DEFAULT);
    clb_numa_place(&j.numa, p, 65536);
    CHECK_EQ(policy_of(p), MPOL_PREFERRED);
    j.numa.mode = CLB_NUMA_INTERLEAVE;
    clb_numa_place(&j.numa, p, 65536);
    CHECK_EQ(policy_of(p), MPOL_INTERLEAVE);
    munmap(p, 65536);
}

int main(void)
{
    TEST(test_decide);
    TEST(test_short_text);
    TEST(test_calls);
    return test_result();
}
