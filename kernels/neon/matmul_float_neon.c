/* matmul_float_neon.c - float matrices: one tile (two vectors) for up to six rows. A single
 * row takes two tiles at a time, which keeps more additions in flight. */
#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"

#define TWO_UP_TO 1
#include "kernels/wide/matmul_float.inc"

PLAIN_CODE void clb_fill_matmul_float_neon(struct clb_kernels *k)
{
    fill_matmul_float(k);
}
