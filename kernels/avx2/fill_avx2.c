/* fill_avx2.c - the slots that AVX2 improves: all of them. */
#include "kernels/avx2/avx2.h"

PLAIN_CODE void clb_kernels_fill_avx2(struct clb_kernels *k)
{
    clb_fill_rows_avx2(k);
    clb_fill_quantise_avx2(k);
    clb_fill_matmul_float_avx2(k);
    clb_fill_matmul_int_avx2(k);
    clb_fill_attn_avx2(k);
}
