/* matmul_int_avx512.c - quantised matrices: two tiles for up to six rows, one for an odd last
 * tile. All sums stay in the 32 registers. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/dot.h"

#define TWO_UP_TO    6
#define PASS         (R * VECS)
#define PASS_4BIT    PASS
#define MANY_INT8    MAX_T
#define KEEP_SUMS(f) (void)(f)
#include "kernels/wide/matmul_int.inc"

PLAIN_CODE void clb_fill_matmul_int_avx512(struct clb_kernels *k)
{
    fill_matmul_int(k);
}
