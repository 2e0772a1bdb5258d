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
        .device = read_ledger(&model->m->device),
    };
    return clb_api_give(stats, &full, sizeof full, "memory_stats", &err) ? COLIBRI_OK
                                                                         : clb_api_fail(&err);
}

void clb_api_profile(struct colibri_profile *to, const struct clb_profile *from)
{
    *to = (struct colibri_profile){ .size = sizeof *to };
    for (int i = 0; i < CLB_STAGES; i++)
        to->name[i] = clb_stage_name[i];
    memcpy(to->seconds, from->seconds, sizeof to->seconds);
    memcpy(to->bytes, from->bytes, sizeof to->bytes);
    memcpy(to->macs, from->macs, sizeof to->macs);
    memcpy(to->f32_macs, from->f32_macs, sizeof to->f32_macs);
    memcpy(to->alone, from->alone, sizeof to->alone);
    memcpy(to->waited, from->waited, sizeof to->waited);
    to->passes = from->passes;
    to->rows = from->rows;
    to->experts_touched = from->experts_touched;
    to->expert_slots = from->expert_slots;
    to->routes_reused = from->routes_reused;
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
    clb_api_profile(&full, p);
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
