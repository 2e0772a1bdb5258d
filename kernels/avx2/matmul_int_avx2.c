/* matmul_int_avx2.c - quantised matrices. With 16 registers a pass takes half a tile (one
 * vector of rows) for up to six activation rows; one or two rows take the whole tile. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/dot.h"

#define TWO_UP_TO    0
#define PASS         (T <= 2 ? 2 : 1)
#define KEEP_SUMS(f) __asm__ volatile("" : "+m"(f))
#include "kernels/wide/matmul_int.inc"

PLAIN_CODE void clb_fill_matmul_int_avx2(struct clb_kernels *k)
{
    fill_matmul_int(k);
}
