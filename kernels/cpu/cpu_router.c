/* cpu_router.c - from the router's logits to the experts of a row and their weights, for every kind
 * of router. Order and names follow the reference implementations of the families. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "lib/base/fmath.h"

/* The k largest of score[0..n), largest first, ties to the lowest id: a sorted list of k, into
 * which a better score is inserted. id and best have room for k. */
static void select_top(uint32_t *id, float *best, const float *score, uint32_t n, uint32_t k)
{
    uint32_t have = 0;

    for (uint32_t e = 0; e < n; e++) {
        if (have == k && !(score[e] > best[k - 1]))
            continue;
        uint32_t i = have < k ? have++ : k - 1;
        for (; i > 0 && score[e] > best[i - 1]; i--) {
            best[i] = best[i - 1];
            id[i] = id[i - 1];
        }
        best[i] = score[e];
        id[i] = e;
    }
}

/* w /= sum of w, in rank order. The sum is at least `least` (Ernie's moe_norm_min; else what keeps
 * weights that all vanished from becoming NaN, as the references do). */
static void normalise(float *w, uint32_t k, float least)
{
    float sum = w[0];

    for (uint32_t i = 1; i < k; i++)
        sum += w[i];
    sum = sum < least ? least : sum;
    for (uint32_t i = 0; i < k; i++)
        w[i] /= sum;
}

/* -- groups of experts ------------------------------------------------------------------------- */

/* What a group is worth: its best score (DeepSeek-V2), or the sum of its best two (V3). */
static float group_score(enum clb_group_score kind, const float *score, uint32_t n)
{
    uint32_t id[2], k = n < 2 ? n : 2;
    float best[2] = { 0 };

    select_top(id, best, score, n, k);
    return kind == CLB_GROUP_MAX || k == 1 ? best[0] : best[0] + best[1];
}

/* Scores outside the best groups can not be chosen. */
static void keep_best_groups(const struct clb_arch *a, struct clb_cpu_choice *c, float *score,
                             uint32_t n)
{
    uint32_t size = n / a->n_group;

    for (uint32_t g = 0; g < a->n_group; g++)
        c->group_score[g] = group_score(a->group_score, score + g * size, size);
    select_top(c->group, c->best, c->group_score, a->n_group, a->top_groups);
    memset(c->kept, 0, a->n_group * sizeof *c->kept);
    for (uint32_t i = 0; i < a->top_groups; i++)
        c->kept[c->group[i]] = true;
    for (uint32_t g = 0; g < a->n_group; g++)
        if (!c->kept[g])
            for (uint32_t e = 0; e < size; e++)
                score[g * size + e] = -INFINITY;
}

/* -- PhiMoE ------------------------------------------------------------------------------------ */

/* The weight of the best of score[0..n): its softmax among the experts that are no further from it
 * than 2 * jitter, measured against the larger of |score| and the best (SparseMixer's inference,
 * arXiv:2310.00811, as in the published model). Those further away are masked in out. */
static uint32_t best_of_near(const struct clb_kernels *k, const float *score, float *out,
                             uint32_t n, float jitter, float *weight)
{
    uint32_t best = 0;

    for (uint32_t e = 1; e < n; e++)
        if (score[e] > score[best])
            best = e;
    for (uint32_t e = 0; e < n; e++) {
        float magnitude = fabsf(score[e]);
        float factor = magnitude > score[best] ? magnitude : score[best];

        out[e] = (score[best] - score[e]) / factor > 2 * jitter ? -INFINITY : score[e];
    }
    k->softmax(out, n);
    *weight = out[best];
    return best;
}

/* The second is found as the first, once the first is gone. */
static void sparsemixer(const struct clb_kernels *k, float jitter, float *score, float *scratch,
                        uint32_t n, uint32_t top_k, uint32_t *chosen, float *weight)
{
    for (uint32_t i = 0; i < top_k; i++) {
        chosen[i] = best_of_near(k, score, scratch, n, jitter, &weight[i]);
        score[chosen[i]] = -INFINITY;
    }
}

/* -- all kinds --------------------------------------------------------------------------------- */

/* Weighs by the scores, chooses by the scores with correction and groups. */
static void by_score(const struct clb_kernels *k, const struct clb_arch *a, const float *correction,
                     struct clb_cpu_choice *c, float *score, uint32_t n, uint32_t top_k,
                     uint32_t *chosen, float *weight)
{
    float *choice = score;

    if (a->router == CLB_ROUTER_SOFTMAX_TOPK)
        k->softmax(score, n);
    for (uint32_t e = 0; e < n && a->router == CLB_ROUTER_SIGMOID; e++)
        score[e] = clb_sigmoidf(score[e]);
    if (correction || a->n_group > 1) {
        choice = memcpy(c->score, score, n * sizeof *score);
        if (correction)
            k->add(choice, correction, n);
        if (a->n_group > 1)
            keep_best_groups(a, c, choice, n);
    }
    select_top(chosen, c->best, choice, n, top_k);
    for (uint32_t i = 0; i < top_k; i++)
        weight[i] = score[chosen[i]];
    if (a->router == CLB_ROUTER_TOPK_SOFTMAX)
        k->softmax(weight, top_k);
    else if (a->topk_normalise)
        normalise(weight, top_k, a->topk_normalise_min > 0 ? a->topk_normalise_min : 1e-20f);
}

void clb_cpu_choose(const struct clb_kernels *k, const struct clb_arch *a, const float *correction,
                    struct clb_cpu_choice *c, float *score, uint32_t n, uint32_t top_k,
                    uint32_t *chosen, float *weight)
{
    if (a->router_clip > 0)
        k->clip(score, a->router_clip, n);
    if (a->router == CLB_ROUTER_SPARSEMIXER)
        sparsemixer(k, a->router_jitter, score, c->score, n, top_k, chosen, weight);
    else
        by_score(k, a, correction, c, score, n, top_k, chosen, weight);
    if (a->routed_scale > 0 && a->routed_scale != 1)
        k->scale(weight, a->routed_scale, top_k);
}
