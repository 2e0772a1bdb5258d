#include "lib/api/api.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/session/infer.h"

/* In hundredths of a millisecond, so that the printed total is the sum of the printed stages. */
static unsigned long long hundredths(const struct clb_profile *p, enum clb_stage stage)
{
    return (unsigned long long)(p->seconds[stage] * 1e5 + 0.5);
}

/* One write, so that lines of several threads stay whole. */
static void print_profile(const struct clb_profile *p)
{
    unsigned long long gate = hundredths(p, CLB_STAGE_GATE),
                       scatter = hundredths(p, CLB_STAGE_SCATTER),
                       experts = hundredths(p, CLB_STAGE_EXPERTS),
                       gather = hundredths(p, CLB_STAGE_GATHER),
                       total = gate + scatter + experts + gather;

    fprintf(
        stderr,
        "[PROFILING] Gate: %llu.%02llums | Scatter: %llu.%02llums | ExpertCompute: %llu.%02llums | "
        "Gather: %llu.%02llums | Total: %llu.%02llums\n",
        gate / 100, gate % 100, scatter / 100, scatter % 100, experts / 100, experts % 100,
        gather / 100, gather % 100, total / 100, total % 100);
}

static bool check_config(const struct colibri_config *c, struct clb_err *err)
{
    if (c->top_k < 0) {
        clb_fail(err, CLB_USAGE, "top_k is %" PRId32 ": experts per token, or 0 for the model's",
                 c->top_k);
        return clb_err_place(err, NULL, "top_k", CLB_NO_OFFSET);
    }
    if (c->stream_id < 0) {
        clb_fail(err, CLB_USAGE, "stream_id is %" PRId32 ": must not be negative", c->stream_id);
        return clb_err_place(err, NULL, "stream_id", CLB_NO_OFFSET);
    }
    return true;
}

int colibri_infer(const struct colibri_model *model, const int32_t *input_ids, float *output_logits,
                  size_t batch_size, size_t seq_len, const struct colibri_config *config)
{
    const struct colibri_config c = config ? *config : (struct colibri_config){ 0 };
    struct clb_profile profile = { 0 };
    struct clb_err err;

    if (!model)
        return clb_api_null("model");
    if (!input_ids)
        return clb_api_null("input_ids");
    if (!output_logits)
        return clb_api_null("output_logits");
    const struct clb_infer_job job = {
        .ids = input_ids,
        .logits = output_logits,
        .batch = batch_size,
        .length = seq_len,
        .top_k = (uint32_t)c.top_k,
    };
    if (!check_config(&c, &err) ||
        !clb_infer(model->m, &job, c.enable_profiling ? &profile : NULL, &err))
        return clb_api_fail(&err);
    if (c.enable_profiling)
        print_profile(&profile);
    return COLIBRI_OK;
}
