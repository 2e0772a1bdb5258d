/* fill_neon.c - the slots that NEON improves: all of them. */
#include "kernels/neon/neon.h"

PLAIN_CODE void clb_kernels_fill_neon(struct clb_kernels *k)
{
    clb_fill_rows_neon(k);
    clb_fill_quantise_neon(k);
    clb_fill_matmul_float_neon(k);
    clb_fill_matmul_int_neon(k);
    clb_fill_attn_neon(k);
}
