/* matmul_float_avx512.c - float matrices: two tiles for up to six rows, one for an odd last
 * tile. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"

#define TWO_UP_TO 6
#include "kernels/wide/matmul_float.inc"

PLAIN_CODE void clb_fill_matmul_float_avx512(struct clb_kernels *k)
{
    fill_matmul_float(k);
}
