/* matmul_int_i8mm.c - quantised matrices by the int8 matrix instructions. All sums of a block stay
 * in the 32 registers: one or two rows take a whole tile, up to six half a tile at a time. */
#include "kernels/neon/mm.h"
#include "kernels/neon/neon.h"

#define TWO_UP_TO 0
#define PASS      (T <= 2 ? 4 : 2)
#define PAIRS     ((T + 1) / 2)
#define INT8_BODY "kernels/neon/block_int8_mm.inc"
#define INT4_BODY "kernels/neon/block_4bit_mm.inc"
#include "kernels/neon/matmul_int.inc"

PLAIN_CODE void clb_kernels_fill_i8mm(struct clb_kernels *k)
{
    fill_matmul_int(k);
}
