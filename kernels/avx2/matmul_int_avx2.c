/* matmul_int_avx2.c - quantised matrices. With 16 registers a pass takes half a tile (one
 * vector of rows) for up to six activation rows; two rows take the whole tile, and one row two of
 * them, which keeps more lines of memory on their way. Many rows share a panel of weights. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/dot.h"

#define TWO_UP_TO    1
#define PASS         (T == 1 ? R * VECS : T == 2 ? VECS : 1)
#define NEAR_UP_TO   1
#define KEEP_SUMS(f) __asm__ volatile("" : "+m"(f))
#include "kernels/wide/matmul_int.inc"

#include "kernels/avx2/panel.inc"

PLAIN_CODE void clb_fill_matmul_int_avx2(struct clb_kernels *k)
{
    fill_matmul_int(k);
    k->matmul[CLB_INT8] = panel_int8;
    k->matmul[CLB_INT4] = panel_int4;
}
