/* sampling.c - what is asked of the sampler: whether it can be, and how many logits that takes. */
#include "lib/sample/sampler.h"

static bool in_range(float v, float low, float high, const char *name, struct clb_err *err)
{
    if (v >= low && v <= high) /* false for NaN */
        return true;
    clb_fail(err, CLB_USAGE, "%s %g: must be from %g to %g", name, (double)v, (double)low,
             (double)high);
    return clb_err_place(err, NULL, name, CLB_NO_OFFSET);
}

bool clb_sampling_check(const struct clb_sampling *s, struct clb_err *err)
{
    return in_range(s->temperature, 0, 1000, "temperature", err) &&
           in_range(s->top_p, 0, 1, "top_p", err) && in_range(s->min_p, 0, 1, "min_p", err) &&
           in_range(s->repetition_penalty, 0, 1000, "repetition_penalty", err) &&
           in_range(s->presence_penalty, -100, 100, "presence_penalty", err) &&
           in_range(s->frequency_penalty, -100, 100, "frequency_penalty", err);
}

uint32_t clb_sampling_candidates(const struct clb_sampling *s)
{
    bool penalises = (s->repetition_penalty > 0 && s->repetition_penalty != 1) ||
                     s->presence_penalty != 0 || s->frequency_penalty != 0;

    return penalises ? 0 : s->temperature == 0 ? 1 : s->top_k;
}
