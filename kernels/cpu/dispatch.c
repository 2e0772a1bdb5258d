/* dispatch.c - the tables of kernels of a level: the scalar ones, overwritten folder by folder. */
#include "kernels/kernels.h"
#include "kernels/pack.h"

void clb_kernels_for(struct clb_kernels *k, enum clb_isa isa)
{
    clb_kernels_fill_scalar(k);
#if defined(__x86_64__)
    if (isa == CLB_ISA_AVX2 || isa == CLB_ISA_AVXVNNI || isa == CLB_ISA_AVX512)
        clb_kernels_fill_avx2(k);
    if (isa == CLB_ISA_AVXVNNI) /* machines with AVX-512 need not have it */
        clb_kernels_fill_avxvnni(k);
    if (isa == CLB_ISA_AVX512)
        clb_kernels_fill_avx512(k);
#elif defined(__aarch64__)
    if (isa == CLB_ISA_NEON || isa == CLB_ISA_I8MM)
        clb_kernels_fill_neon(k);
    if (isa == CLB_ISA_I8MM)
        clb_kernels_fill_i8mm(k);
#endif
    k->isa = isa;
    k->name = clb_isa_name(isa);
}

void clb_pack_kernels_for(struct clb_pack_kernels *k, enum clb_isa isa)
{
    clb_fill_pack_scalar(k);
    clb_fill_pack_int4_scalar(k);
#if defined(__x86_64__)
    if (isa >= CLB_ISA_AVX2) {
        clb_fill_pack_avx2(k);
        clb_fill_pack_int4_avx2(k);
    }
#elif defined(__aarch64__)
    if (isa == CLB_ISA_NEON || isa == CLB_ISA_I8MM) {
        clb_fill_pack_neon(k);
        clb_fill_pack_int4_neon(k);
    }
#else
    (void)isa;
#endif
}
