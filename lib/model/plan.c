#include "lib/model/plan.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/model/available.h"

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Under a limit: dense weights, and the cache that fits beside `run` bytes more. */
static uint64_t weight_bytes(const struct clb_model *m, uint64_t run)
{
    if (!clb_model_has_cache(m))
        return m->reader.size;
    uint64_t other = m->dense_bytes + m->committed + run;
    uint64_t cache = m->limit > other ? m->limit - other : 0;
    return m->dense_bytes + clb_experts_fit_bytes(&m->reader, cache);
}

/* What depends on all the rest. */
static bool add_up(struct clb_memory_plan *p, const struct clb_model *m, struct clb_err *err)
{
    p->weights = weight_bytes(m, clb_plan_host_bytes(p));
    if (!clb_add(p->weights, clb_plan_run_bytes(p), &p->total))
        return clb_fail_nomem(err, clb_plan_run_bytes(p));
    p->locked = m->residence.lock ? p->total - p->host_buffers - p->device : 0;
    return true;
}

/* f32 for float experts, f16 for quantised ones; on a device f32 only for f32. */
static enum clb_kv_dtype kv_default(const struct clb_model *m, const struct clb_backend_ops *op)
{
    enum clb_dtype t = m->reader.experts[0].part[CLB_GATE].dtype;

    return (op->device ? t == CLB_F32 : clb_dtype_is_float(t)) ? CLB_KV_F32 : CLB_KV_F16;
}

/* With the turn. */
static bool plan_on(struct clb_memory_plan *p, struct clb_model *m,
                    const struct clb_backend_ops *op, const struct clb_backend *be,
                    const struct clb_run_shape *s, struct clb_err *err)
{
    const struct clb_arch *a = &m->reader.arch;
    struct clb_acts_shape acts = s->acts;
    struct clb_kv_shape kv;
    uint64_t run, system = clb_memory_available("");

    acts.kv_dtype = s->kv_default ? kv_default(m, op) : acts.kv_dtype;
    *p = (struct clb_memory_plan){ .host_buffers = s->host_bytes,
                                   .context = acts.max_context,
                                   .kv_dtype = acts.kv_dtype,
                                   .n_block = s->n_block,
                                   .op = op };
    p->activations = clb_slab_cost(&m->slab_options, op->acts_bytes(be, a, &acts));
    if (!clb_model_kv_shape(m, op, &kv, acts.kv_dtype, err))
        return false;
    if (!clb_mul(kv.block_bytes, s->n_block, &p->kv_cache) ||
        (op->device &&
         !clb_add(p->host_buffers, op->device->acts_host_bytes(be, a, &acts), &p->host_buffers)) ||
        !clb_add(p->kv_cache, p->activations, &run) || !clb_add(run, p->host_buffers, &run))
        return clb_fail(err, CLB_USAGE,
                        "a KV cache of %" PRIu64 " positions is larger than memory can be",
                        (uint64_t)s->n_block * CLB_KV_BLOCK);
    if (op->device) {
        p->device = p->kv_cache + p->activations;
        p->device_available = clb_model_device_left(m);
        p->device_limit = m->device_limit;
        if (!op->device->plan(be, &acts, m->committed_device + p->device, &p->there, err) &&
            p->device <= p->device_available) /* else that is said first */
            return false;
    }
    p->available = m->limit ? m->limit - least_of(m->committed, m->limit) : system;
    if (m->limit && system)
        p->available = least_of(p->available, system);
    return add_up(p, m, err);
}

/* `advice`: what helps, too. */
static bool device_lacks(const struct clb_memory_plan *p, const char *advice, struct clb_err *err)
{
    bool limited = p->device_limit > 0;

    if (p->device <= p->device_available)
        return false;
    clb_fail(err, CLB_NO_SPACE,
             "needs %" PRIu64 " bytes on the device beside the weights (KV cache %" PRIu64
             ", activations %" PRIu64 "), but %" PRIu64
             " are left there%s; a shorter context needs less%s%s",
             p->device, p->kv_cache, p->activations, p->device_available,
             limited ? " under the limit of GPU memory" : "",
             limited ? ", a higher limit leaves more" : "", advice);
    clb_err_place(err, NULL, limited ? "gpu_memory" : NULL, CLB_NO_OFFSET);
    return true;
}

bool clb_plan_run(struct clb_memory_plan *p, struct clb_model *m, const struct clb_run_shape *s,
                  struct clb_err *err)
{
    struct clb_memory_plan other;
    struct clb_err why = { 0 };

    clb_model_take_turn(m);
    bool ok = plan_on(p, m, m->op, m->be, s, &why);
    if (m->may_change && (!ok || device_lacks(p, "", &why)) &&
        plan_on(&other, m, &clb_backend_cpu, m->cpu, s, err)) {
        *p = other;
        snprintf(p->why_cpu, sizeof p->why_cpu, "%s", why.text);
        ok = true;
    }
    clb_model_end_turn(m);
    if (!ok)
        *err = why;
    return ok;
}

bool clb_plan_add_host(struct clb_memory_plan *p, struct clb_model *m, uint64_t bytes,
                       struct clb_err *err)
{
    uint64_t run;

    if (!clb_add(clb_plan_run_bytes(p), bytes, &run))
        return clb_fail_nomem(err, bytes);
    p->host_buffers += bytes;
    clb_model_take_turn(m);
    bool ok = add_up(p, m, err);
    clb_model_end_turn(m);
    return ok;
}

uint64_t clb_plan_run_bytes(const struct clb_memory_plan *p)
{
    return p->kv_cache + p->activations + p->host_buffers;
}

uint64_t clb_plan_host_bytes(const struct clb_memory_plan *p)
{
    return clb_plan_run_bytes(p) - p->device;
}

bool clb_plan_check(const struct clb_memory_plan *p, struct clb_err *err)
{
    if (device_lacks(p, ", or use the backend 'cpu'", err))
        return false;
    if (p->available == 0 || clb_plan_host_bytes(p) <= p->available)
        return true;
    if (p->device)
        return clb_fail(err, CLB_NO_SPACE,
                        "needs %" PRIu64 " bytes of the host beside the weights (logits and other "
                        "buffers of passes, tokens of each context), but %" PRIu64
                        " are available; a shorter context and fewer sequences need less",
                        clb_plan_host_bytes(p), p->available);
    return clb_fail(
        err, CLB_NO_SPACE,
        "needs %" PRIu64 " bytes beside the weights (KV cache %" PRIu64 ", activations %" PRIu64
        ", host buffers %" PRIu64 "), but %" PRIu64 " are available; a shorter context needs less",
        clb_plan_host_bytes(p), p->kv_cache, p->activations, p->host_buffers, p->available);
}
