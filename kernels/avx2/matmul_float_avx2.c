/* matmul_float_avx2.c - float matrices: one tile (two vectors) for up to six rows. A single row takes
 * two tiles at a time, which keeps more additions in flight. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"
#include "kernels/wide/matmul.inc"

#define BODY "kernels/wide/block_float.inc"
#define R 1
#define KIND f32
#define PER_STEP 1
#define WIDEN vf_from_f32_step
#include "kernels/wide/each_t.inc"
#undef KIND
#undef PER_STEP
#undef WIDEN
#define PER_STEP 2
#define KIND bf16
#define WIDEN vf_from_bf16_pairs
#include "kernels/wide/each_t.inc"
#undef KIND
#undef WIDEN
#define KIND f16
#define WIDEN vf_from_f16_pairs
#include "kernels/wide/each_t.inc"
#undef KIND
#undef WIDEN
#undef PER_STEP
#undef R

#define R 2
#define T 1
#define KIND f32
#define PER_STEP 1
#define WIDEN vf_from_f32_step
#include BODY
#undef KIND
#undef PER_STEP
#undef WIDEN
#define PER_STEP 2
#define KIND bf16
#define WIDEN vf_from_bf16_pairs
#include BODY
#undef KIND
#undef WIDEN
#define KIND f16
#define WIDEN vf_from_f16_pairs
#include BODY

static const struct blocks blocks_f32 = {
    .one = BLOCK_SERIES(f32, 1), .two = { NULL, f32_2x1 }, .max_t = 6, .group_bytes = 512
};
static const struct blocks blocks_bf16 = {
    .one = BLOCK_SERIES(bf16, 1), .two = { NULL, bf16_2x1 }, .max_t = 6, .group_bytes = 512
};
static const struct blocks blocks_f16 = {
    .one = BLOCK_SERIES(f16, 1), .two = { NULL, f16_2x1 }, .max_t = 6, .group_bytes = 512
};

static void matmul_f32(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_f32);
}

static void matmul_bf16(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_bf16);
}

static void matmul_f16(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_f16);
}

void clb_fill_matmul_float_avx2(struct clb_kernels *k)
{
    k->matmul[CLB_F32] = matmul_f32;
    k->matmul[CLB_BF16] = matmul_bf16;
    k->matmul[CLB_F16] = matmul_f16;
}
