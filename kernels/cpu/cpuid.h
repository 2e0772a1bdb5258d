/* cpuid.h - what a machine says about itself, and which kernel levels follow from it. Asking and
 * judging are apart, so that tests can judge machines they do not run on. */
#ifndef CLB_KERNELS_CPU_CPUID_H
#define CLB_KERNELS_CPU_CPUID_H

#include "kernels/kernels.h"

enum clb_cpu_arch { CLB_CPU_OTHER, CLB_CPU_X86_64, CLB_CPU_AARCH64 };

/* Words of feature bits; those of another architecture are 0. */
enum clb_cpu_word {
    CLB_CPU_1_ECX, /* cpuid leaf 1; _7 leaf 7, _7_1 its subleaf 1 */
    CLB_CPU_7_EBX,
    CLB_CPU_7_ECX,
    CLB_CPU_7_1_EAX,
    CLB_CPU_XCR0, /* register state that the operating system saves (XGETBV) */
    CLB_CPU_HWCAP, /* what Linux found and allows (getauxval AT_HWCAP, AT_HWCAP2) */
    CLB_CPU_HWCAP2,
    CLB_CPU_WORDS,
};

struct clb_cpu {
    enum clb_cpu_arch arch;
    uint32_t word[CLB_CPU_WORDS];
};

/* This machine. */
void clb_cpu_ask(struct clb_cpu *cpu);
/* NULL: this machine and its operating system support the level; else what lacks. */
const char *clb_cpu_lacks(const struct clb_cpu *cpu, enum clb_isa isa);

#endif
