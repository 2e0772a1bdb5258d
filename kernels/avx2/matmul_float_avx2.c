/* matmul_float_avx2.c - float matrices: one tile (two vectors) for up to six rows. A single
 * row takes two tiles at a time, which keeps more additions and more lines of memory in flight. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"

#define TWO_UP_TO 1
#define NEAR_UP_TO 1
#define NEAR 1024
#include "kernels/wide/matmul_float.inc"

PLAIN_CODE void clb_fill_matmul_float_avx2(struct clb_kernels *k)
{
    fill_matmul_float(k);
}
