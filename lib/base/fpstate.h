/* fpstate.h - the floating-point state that results are promised in: round to nearest, subnormal
 * numbers kept, no traps. A thread of an embedding program may have set another; the library enters
 * this one and gives the thread its own back. Arithmetic between the two calls belongs in a
 * function that is not inlined, so that the compiler cannot move it out. */
#ifndef CLB_BASE_FPSTATE_H
#define CLB_BASE_FPSTATE_H

#include <stdint.h>

#if defined(__x86_64__)
struct clb_fp {
    uint32_t sse;
    uint16_t x87; /* the C library looks up the rounding mode here */
};
static inline struct clb_fp clb_fp_enter(void)
{
    struct clb_fp old = { .sse = __builtin_ia32_stmxcsr() };
    uint16_t x87 = 0x037f;

    __asm__ volatile("fnstcw %0" : "=m"(old.x87));
    __asm__ volatile("fldcw %0" : : "m"(x87));
    __builtin_ia32_ldmxcsr(0x1f80); /* nearest, exceptions masked, no FTZ, no DAZ */
    return old;
}
static inline void clb_fp_leave(struct clb_fp old)
{
    __asm__ volatile("fldcw %0" : : "m"(old.x87));
    __builtin_ia32_ldmxcsr(old.sse);
}
#elif defined(__aarch64__)
struct clb_fp {
    uint64_t fpcr;
};
static inline struct clb_fp clb_fp_enter(void)
{
    struct clb_fp old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old.fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}
static inline void clb_fp_leave(struct clb_fp old)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(old.fpcr));
}
#else
#include <fenv.h>

struct clb_fp {
    fenv_t env;
};
static inline struct clb_fp clb_fp_enter(void)
{
    struct clb_fp old;

    fegetenv(&old.env);
    fesetenv(FE_DFL_ENV);
    return old;
}
static inline void clb_fp_leave(struct clb_fp old)
{
    fesetenv(&old.env);
}
#endif

#endif
