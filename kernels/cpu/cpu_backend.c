/* cpu_backend.c - the CPU backend: threads and leaf kernels behind the contract of backend.h. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/base/numa.h"

/* 40 us of one core. Threads need a few to meet when the machine is idle, and much longer when it
 * is busy with other work. */
enum { SHORT = 2000000 };

void clb_cpu_run(const struct clb_backend *be, uint64_t cost, clb_pool_fn *fn, void *arg)
{
    if (cost < SHORT)
        clb_pool_run_alone(be->pool, fn, arg);
    else
        clb_pool_run(be->pool, fn, arg);
}

static void cpu_close(struct clb_backend *be)
{
    if (!be)
        return;
    clb_pool_free(be->pool);
    clb_free(be);
}

/* How many threads, and why. */
static unsigned choose_threads(const struct clb_backend_options *o, char *why, size_t n)
{
    struct clb_cpus allowed;

    if (o->n_thread) {
        snprintf(why, n, "as asked for");
        return o->n_thread;
    }
    if (!o->numa || o->numa->mode != CLB_NUMA_LOCAL || !clb_cpus_allowed(&allowed))
        return clb_pool_default_threads(why, n);
    allowed = clb_numa_cpus(o->numa, &allowed);
    return clb_cores_threads("", &allowed, why, n);
}

static bool cpu_open(struct clb_backend **out, const struct clb_backend_options *o,
                     struct clb_err *err)
{
    char why[96], numa[96] = "";
    unsigned n_thread = choose_threads(o, why, sizeof why);
    enum clb_isa isa;
    struct clb_backend *be;

    *out = NULL;
    if (!clb_isa_choose(o->cpu_level, &isa, err))
        return false;
    be = clb_new(1, sizeof *be, err);
    if (!be)
        return false;
    if (!clb_pool_new_on(&be->pool, n_thread, o->numa, err)) {
        cpu_close(be);
        return false;
    }
    clb_kernels_for(&be->k, isa);
    be->slab = o->slab;
    be->no_routing_cache = o->no_routing_cache;
    if (o->numa)
        clb_numa_describe(o->numa, numa, sizeof numa);
    snprintf(be->text, sizeof be->text, "%s, %u thread%s (%s)%s%s", be->k.name, n_thread,
             n_thread == 1 ? "" : "s", why, *numa ? ", " : "", numa);
    *out = be;
    return true;
}

static const char *cpu_describe(const struct clb_backend *be)
{
    return be->text;
}

static const char *cpu_level(const struct clb_backend *be)
{
    return be->k.name;
}

static unsigned cpu_threads(const struct clb_backend *be)
{
    return clb_pool_threads(be->pool);
}

static void cpu_watch(struct clb_backend *be, struct clb_pool_use *use)
{
    clb_pool_watch(be->pool, use);
}

const struct clb_backend_ops clb_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .level = cpu_level,
    .threads = cpu_threads,
    .watch = cpu_watch,
    .acts_bytes = clb_cpu_acts_bytes,
    .acts_new = clb_cpu_acts_new,
    .acts_free = clb_cpu_acts_free,
    .begin = clb_cpu_begin,
    .embed = clb_cpu_embed,
    .attn_project = clb_cpu_attn_project,
    .attn_mix = clb_cpu_attn_mix,
    .attn_output = clb_cpu_attn_output,
    .moe_gate = clb_cpu_moe_gate,
    .moe_scatter = clb_cpu_moe_scatter,
    .moe_experts = clb_cpu_moe_experts,
    .moe_gather = clb_cpu_moe_gather,
    .mlp = clb_cpu_mlp,
    .logits = clb_cpu_logits,
};
