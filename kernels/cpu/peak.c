/* peak.c - the table of peak loops of a level, and the loop that all levels share. */
#include "kernels/peak.h"

void clb_peaks_for(struct clb_peaks *p, enum clb_isa isa)
{
    switch (isa) {
#if defined(__x86_64__)
    case CLB_ISA_AVX2:
        clb_peaks_fill_avx2(p);
        break;
    case CLB_ISA_AVXVNNI:
        clb_peaks_fill_avxvnni(p);
        break;
    case CLB_ISA_AVX512:
        clb_peaks_fill_avx512(p);
        break;
#elif defined(__aarch64__)
    case CLB_ISA_NEON:
        clb_peaks_fill_neon(p);
        break;
    case CLB_ISA_I8MM:
        clb_peaks_fill_i8mm(p);
        break;
#endif
    default:
        clb_peaks_fill_scalar(p);
    }
}

uint64_t clb_peak_clock(uint64_t rounds)
{
    uint64_t x = rounds, y = 0x9e3779b97f4a7c15u;

    for (uint64_t round = 0; round < rounds; round++) {
        _Pragma("GCC unroll 64")
        for (int i = 0; i < 64; i++) {
            __asm__ volatile("" : "+r"(y)); /* or the compiler would see that they cancel out */
            x ^= y;
            __asm__ volatile("" : "+r"(x));
        }
    }
    return x;
}
