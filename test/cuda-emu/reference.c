/* reference.c - see reference.h. */
#include "test/cuda-emu/reference.h"

#include "kernels/cpu/cpu.h"

void reference_choose(const struct clb_arch *a, const float *correction, float *score, uint32_t n,
                      uint32_t top_k, uint32_t *chosen, float *weight)
{
    static float one[CLB_MAX_EXPERTS], two[CLB_MAX_EXPERTS], three[CLB_MAX_EXPERTS];
    static uint32_t group[CLB_MAX_EXPERTS];
    static bool kept[CLB_MAX_EXPERTS];
    struct clb_cpu_choice c = {
        .score = one, .best = two, .group_score = three, .group = group, .kept = kept
    };
    struct clb_kernels k;

    clb_kernels_for(&k, CLB_ISA_SCALAR);
    clb_cpu_choose(&k, a, correction, &c, score, n, top_k, chosen, weight);
}
