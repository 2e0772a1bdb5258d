/* fill_avx512.c - the slots that AVX-512 improves. quantise stays as AVX2 has it: a group is
 * 32 values. */
#include "kernels/avx512/avx512.h"

PLAIN_CODE void clb_kernels_fill_avx512(struct clb_kernels *k)
{
    clb_fill_rows_avx512(k);
    clb_fill_attn_avx512(k);
    clb_fill_matmul_float_avx512(k);
    clb_fill_matmul_int_avx512(k);
}
