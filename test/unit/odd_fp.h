/* odd_fp.h - floating-point states that a thread of an embedding program may be in. */
#ifndef TEST_UNIT_ODD_FP_H
#define TEST_UNIT_ODD_FP_H

#include <fenv.h>

/* Rounds upward; subnormal numbers count as zero where the processor can do that. */
static inline void odd_fp_set(void)
{
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); /* FTZ and DAZ */
#endif
}

/* Back to the usual; whether the state was still the odd one. */
static inline int odd_fp_reset(void)
{
    int kept = fegetround() == FE_UPWARD;

#if defined(__x86_64__)
    kept = kept && (__builtin_ia32_stmxcsr() & 0x8040) == 0x8040;
    __builtin_ia32_ldmxcsr(0x1f80);
#endif
    fesetround(FE_TONEAREST);
    return kept;
}

#endif
