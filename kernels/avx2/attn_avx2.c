/* attn_avx2.c - attention over one KV block. */
#include <math.h>

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"
#include "kernels/wide/block.h"
#include "lib/backend/kv.h"
#include "lib/base/half.h"

#include "kernels/wide/math.inc"
#include "kernels/wide/attn.inc"

#define KIND f32
#define kv_t float
#define KV_LOAD vf_load
#define KV_ONE(x) (x)
#include "kernels/wide/attn_kind.inc"
#define KIND f16
#define kv_t uint16_t
#define KV_LOAD vf_from_f16
#define KV_ONE(x) clb_f16_to_f32(x)
#include "kernels/wide/attn_kind.inc"
#define KIND int8
#define kv_t int8_t
#define KV_LOAD vf_from_i8
#define KV_ONE(x) (x)
#include "kernels/wide/attn_kind.inc"

static void attn_tile_f32(const struct clb_attn_tile *a)
{
    static const struct attn_parts parts = { BLOCK_SERIES(scores, f32), BLOCK_SERIES(values, f32),
                                             false };
    attend(a, &parts);
}

static void attn_tile_f16(const struct clb_attn_tile *a)
{
    static const struct attn_parts parts = { BLOCK_SERIES(scores, f16), BLOCK_SERIES(values, f16),
                                             false };
    attend(a, &parts);
}

static void attn_tile_int8(const struct clb_attn_tile *a)
{
    static const struct attn_parts parts = { BLOCK_SERIES(scores, int8), BLOCK_SERIES(values, int8),
                                             true };
    attend(a, &parts);
}

void clb_fill_attn_avx2(struct clb_kernels *k)
{
    k->attn_tile[CLB_KV_F32] = attn_tile_f32;
    k->attn_tile[CLB_KV_F16] = attn_tile_f16;
    k->attn_tile[CLB_KV_INT8] = attn_tile_int8;
}
