/* matmul_int_avxvnni.c - quantised matrices with the VNNI instructions on 256 bits: one tile
 * for up to six rows. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/dot_vnni.h"

#define TWO_UP_TO    0
#define PASS         (R * VECS)
#define PASS_4BIT    PASS
#define MANY_INT8    MAX_T
#define KEEP_SUMS(f) __asm__ volatile("" : "+m"(f))
#include "kernels/wide/matmul_int.inc"

PLAIN_CODE void clb_kernels_fill_avxvnni(struct clb_kernels *k)
{
    fill_matmul_int(k);
}
