/* matmul_int_avx2.c - quantised matrices. One row takes two tiles at a time, which keeps more lines
 * of memory on their way (of int8 in block_row.inc, with fewer instructions); two to four rows take
 * a tile, whose two vectors share what is loaded of an activation, and more rows are taken four at
 * a time. Of five and six rows alone each half of a tile makes sums of its own, since 16 registers
 * do not hold more: that reads the tile only once. 4-bit weights take half a tile from three rows
 * on, and many rows share a panel of weights. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/dot.h"

#define TWO_UP_TO    1
#define INT8_ROW     "kernels/avx2/block_row.inc"
#define MANY_INT8    4
#define PASS         (T == 1 ? R * VECS : T <= 4 ? VECS : 1)
#define PASS_4BIT    (T == 1 ? R * VECS : T == 2 ? VECS : 1)
#define NEAR_UP_TO   6
#define NEAR         (T == 1 ? 1024 : T == 2 ? 2048 : 4096)
#define NEAR_4BIT    (T <= 2 ? 2048 : 4096)
#define KEEP_SUMS(f) __asm__ volatile("" : "+m"(f))
#include "kernels/wide/matmul_int.inc"

#include "kernels/avx2/panel.inc"

PLAIN_CODE void clb_fill_matmul_int_avx2(struct clb_kernels *k)
{
    fill_matmul_int(k);
    k->matmul[CLB_INT8] = panel_int8;
    k->matmul[CLB_INT4] = panel_int4;
}
