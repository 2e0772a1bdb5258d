/* reference.c - see reference.h. */
#include "test/cuda-emu/reference.h"

#include <math.h>
#include <string.h>

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

/* As the value of one head, in position 0 of the first block. */
float reference_codes(const float *x, uint32_t n, int8_t *code)
{
    const struct clb_arch a = { .n_layer = 1, .n_kv_head = 1, .head_dim = 1, .value_dim = n };
    const float key = 0;
    const uint32_t zero = 0;
    struct clb_kv_shape shape;
    uint32_t block = 0;
    struct clb_kv_seq seq = { .block = &block, .n_block = 1 };
    struct clb_kv_seq *seqs[] = { &seq };
    const struct clb_pass p = { .n_row = 1, .position = &zero, .sequence = &zero, .seq = seqs };
    const struct clb_acts acts = {
        .p = &p, .n_kv_head = 1, .k = (float *)&key, .ld_k = 1, .v = (float *)x, .ld_v = n
    };
    struct clb_backend be = { 0 };
    struct clb_err err;
    float scale;

    clb_kernels_for(&be.k, CLB_ISA_SCALAR);
    if (!clb_kv_shape_init(&shape, &a, CLB_KV_INT8) ||
        !clb_kv_pool_new(&seq.pool, &shape, 1, &(struct clb_kv_where){ 0 }, &err))
        return NAN;
    clb_cpu_append(&be, &acts, 0, 0, 1);
    const uint8_t *v = clb_kv_v(&shape, clb_kv_pool_block(seq.pool, 0), 0, 0);
    memcpy(code, v, n);
    memcpy(&scale, v + shape.v_scale_at, sizeof scale);
    clb_kv_pool_free(seq.pool);
    return scale;
}
