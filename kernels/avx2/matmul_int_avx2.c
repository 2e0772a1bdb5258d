/* matmul_int_avx2.c - int8, int4 and mxfp4 matrices. With 16 registers a block is half a tile (one
 * vector of rows) for up to six activation rows; one or two rows take the whole tile. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/dot.h"
#include "kernels/wide/matmul.inc"

#define KEEP_SUMS(f) __asm__ volatile("" : "+m"(f))
#define R 1
#define PASS (T <= 2 ? 2 : 1)

#define KIND int8
#define BODY "kernels/wide/block_int8.inc"
#include "kernels/wide/each_t.inc"
#undef KIND
#undef BODY

#define BODY "kernels/wide/block_4bit.inc"
#define KIND int4
#define DTYPE CLB_INT4
#define SCALES vf_from_f16
#define SCALE_BYTES 2
#define DOT_ADD dot_add
#define DOT_END dot_end
#include "kernels/wide/each_t.inc"
#undef KIND
#undef DTYPE
#undef SCALES
#undef SCALE_BYTES
#undef DOT_ADD
#undef DOT_END

#define KIND mxfp4
#define DTYPE CLB_MXFP4
#define SCALES vf_from_e8m0
#define SCALE_BYTES 1
#define DOT_ADD dot_add_small
#define DOT_END dot_end_small
#include "kernels/wide/each_t.inc"

static const struct blocks blocks_int8 = {
    .one = BLOCK_SERIES(int8, 1), .max_t = 6, .group_bytes = 512
};
static const struct blocks blocks_int4 = {
    .one = BLOCK_SERIES(int4, 1), .max_t = 6, .group_bytes = 256
};
static const struct blocks blocks_mxfp4 = {
    .one = BLOCK_SERIES(mxfp4, 1), .max_t = 6, .group_bytes = 256
};

static void matmul_int8(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_int8);
}

static void matmul_int4(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_int4);
}

static void matmul_mxfp4(const struct clb_matmul *m)
{
    matmul_blocks(m, &blocks_mxfp4);
}

void clb_fill_matmul_int_avx2(struct clb_kernels *k)
{
    k->matmul[CLB_INT8] = matmul_int8;
    k->matmul[CLB_INT4] = matmul_int4;
    k->matmul[CLB_MXFP4] = matmul_mxfp4;
}
