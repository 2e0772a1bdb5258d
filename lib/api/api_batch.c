#include "lib/api/api.h"

bool clb_api_kv_dtype(struct clb_batch_options *to, int32_t dtype, struct clb_err *err)
{
    switch (dtype) {
    case COLIBRI_KV_DEFAULT:
        to->kv_default = true;
        return true;
    case COLIBRI_KV_F32:
        to->kv_dtype = CLB_KV_F32;
        return true;
    case COLIBRI_KV_F16:
        to->kv_dtype = CLB_KV_F16;
        return true;
    case COLIBRI_KV_INT8:
        to->kv_dtype = CLB_KV_INT8;
        return true;
    default:
        clb_fail(err, CLB_USAGE, "kv_dtype is %d: must be a value of enum colibri_kv_dtype", dtype);
        return clb_err_place(err, NULL, "kv_dtype", CLB_NO_OFFSET);
    }
}

static bool take_options(struct clb_batch_options *to, const struct colibri_batch_options *from,
                         struct clb_err *err)
{
    struct colibri_batch_options o;

    if (!clb_api_take(&o, sizeof o, from, "batch_options", err))
        return false;
    *to = (struct clb_batch_options){
        .max_sessions = o.max_sessions,
        .context = o.context,
        .prefill_chunk = o.prefill_chunk,
        .kv_tokens = o.kv_tokens,
        .experts_per_token = o.experts_per_token,
        .logit_rows = o.logit_rows,
        .profile = o.enable_profiling,
    };
    return clb_api_kv_dtype(to, o.kv_dtype, err);
}

int32_t clb_api_kv_word(enum clb_kv_dtype dtype)
{
    static const int32_t kv[] = { [CLB_KV_F32] = COLIBRI_KV_F32,
                                  [CLB_KV_F16] = COLIBRI_KV_F16,
                                  [CLB_KV_INT8] = COLIBRI_KV_INT8 };

    return kv[dtype];
}

int clb_api_give_plan(struct colibri_memory_plan *to, const struct clb_memory_plan *from)
{
    const struct colibri_memory_plan full = {
        .weights = from->weights,
        .kv_cache = from->kv_cache,
        .activations = from->activations,
        .host_buffers = from->host_buffers,
        .total = from->total,
        .available = from->available,
        .context = from->context,
        .kv_dtype = clb_api_kv_word(from->kv_dtype),
        .locked = from->locked,
        .device = from->device,
        .device_available = from->device_available,
        .device_dense = from->there.dense,
        .device_experts = from->there.experts,
        .device_others = from->there.peer_acts,
        .n_expert_there = from->there.n_there,
        .n_expert_all = from->there.n_expert,
    };
    struct clb_err err;

    return clb_api_give(to, &full, sizeof full, "memory_plan", &err) ? COLIBRI_OK
                                                                     : clb_api_fail(&err);
}

int colibri_plan_batch(const struct colibri_model *model,
                       const struct colibri_batch_options *options,
                       struct colibri_memory_plan *plan)
{
    struct clb_batch_options o;
    struct clb_memory_plan p;
    struct clb_err err;

    if (!model)
        return clb_api_null("model");
    if (!plan)
        return clb_api_null("plan");
    if (!take_options(&o, options, &err) || !clb_batch_plan(&p, model->m, &o, &err))
        return clb_api_fail(&err);
    return clb_api_give_plan(plan, &p);
}

int colibri_batch_open(struct colibri_batch **out, const struct colibri_model *model,
                       const struct colibri_batch_options *options)
{
    struct clb_batch_options o;
    struct clb_batch *b;
    struct clb_err err;

    if (!out)
        return clb_api_null("out");
    *out = NULL;
    if (!model)
        return clb_api_null("model");
    if (!take_options(&o, options, &err) || !clb_batch_open(&b, model->m, &o, &err))
        return clb_api_fail(&err);
    *out = (struct colibri_batch *)b;
    return COLIBRI_OK;
}

void colibri_batch_close(struct colibri_batch *batch)
{
    clb_batch_close((struct clb_batch *)batch);
}

int colibri_batch_step(struct colibri_batch *batch, size_t *n_ready)
{
    struct clb_err err;
    size_t ignored;

    if (!batch)
        return clb_api_null("batch");
    return clb_batch_step((struct clb_batch *)batch, n_ready ? n_ready : &ignored, &err)
               ? COLIBRI_OK
               : clb_api_fail(&err);
}
