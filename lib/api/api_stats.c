#include "lib/api/api.h"

#include <string.h>

_Static_assert((int)CLB_STAGES == (int)COLIBRI_STAGES,
               "every stage has its place in struct colibri_profile");

static struct colibri_pool_stats read_ledger(const struct clb_ledger *l)
{
    return (struct colibri_pool_stats){
        .used = atomic_load(&l->used),
        .peak = atomic_load(&l->peak),
        .reserved = atomic_load(&l->reserved),
        .reserved_peak = atomic_load(&l->reserved_peak),
    };
}

int colibri_memory_stats(const struct colibri_model *model, struct colibri_memory_stats *stats)
{
    struct clb_err err;

    if (!model)
        return clb_api_null("model");
    if (!stats)
        return clb_api_null("stats");
    const struct colibri_memory_stats full = {
        .weights = read_ledger(&model->m->ledger[CLB_POOL_WEIGHTS]),
        .activations = read_ledger(&model->m->ledger[CLB_POOL_ACTIVATIONS]),
        .host = read_ledger(&model->m->ledger[CLB_POOL_HOST]),
        .locked = atomic_load(&model->m->residence.locked),
    };
    return clb_api_give(stats, &full, sizeof full, "memory_stats", &err) ? COLIBRI_OK
                                                                         : clb_api_fail(&err);
}

int colibri_batch_profile(const struct colibri_batch *batch, struct colibri_profile *profile,
                          uint64_t *expert_rows)
{
    const struct clb_batch *b = (const struct clb_batch *)batch;
    struct colibri_profile full = { 0 };
    struct clb_err err;

    if (!batch)
        return clb_api_null("batch");
    if (!profile)
        return clb_api_null("profile");
    const struct clb_profile *p = clb_batch_profile(b);
    if (!p) {
        clb_fail(&err, CLB_USAGE, "the batch was opened without enable_profiling");
        return clb_api_fail(&err);
    }
    for (int i = 0; i < CLB_STAGES; i++)
        full.name[i] = clb_stage_name[i];
    memcpy(full.seconds, p->seconds, sizeof full.seconds);
    memcpy(full.bytes, p->bytes, sizeof full.bytes);
    memcpy(full.macs, p->macs, sizeof full.macs);
    memcpy(full.f32_macs, p->f32_macs, sizeof full.f32_macs);
    memcpy(full.alone, p->alone, sizeof full.alone);
    memcpy(full.waited, p->waited, sizeof full.waited);
    full.passes = p->passes;
    full.rows = p->rows;
    full.experts_touched = p->experts_touched;
    full.expert_slots = p->expert_slots;
    full.routes_reused = p->routes_reused;
    if (expert_rows) {
        const struct clb_arch *a = &clb_batch_model(b)->reader.arch;
        memcpy(expert_rows, p->expert_rows, (size_t)a->n_layer * a->n_expert * sizeof *expert_rows);
    }
    return clb_api_give(profile, &full, sizeof full, "profile", &err) ? COLIBRI_OK
                                                                      : clb_api_fail(&err);
}

void colibri_batch_profile_reset(struct colibri_batch *batch)
{
    if (batch)
        clb_batch_profile_reset((struct clb_batch *)batch);
}
