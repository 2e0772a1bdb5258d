/* matmul_int_neon.c - quantised matrices by sdot. All sums of a block stay in the 32 registers:
 * up to three rows take a whole tile, up to six half a tile at a time. */
#include "kernels/neon/dot.h"
#include "kernels/neon/neon.h"

#define TWO_UP_TO 0
#define PASS      (T <= 3 ? 4 : 2)
#define INT8_BODY "kernels/neon/block_int8.inc"
#define INT4_BODY "kernels/neon/block_4bit.inc"
#include "kernels/neon/matmul_int.inc"

PLAIN_CODE void clb_fill_matmul_int_neon(struct clb_kernels *k)
{
    fill_matmul_int(k);
}
