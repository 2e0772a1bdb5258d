/* cpuid.c - which kernel levels this machine can run: the processor must have the instructions, and
 * the operating system must save the registers they use. On x86-64 both are asked of the processor
 * (CPUID, XGETBV); on aarch64 Linux answers for both (HWCAP). */
#include "kernels/cpu/cpuid.h"

#include <string.h>

static const struct level {
    const char *name;
    enum clb_cpu_arch arch; /* CLB_CPU_OTHER: any */
    enum clb_isa base;      /* the level that it contains, or itself */
} levels[CLB_ISA_COUNT] = {
    [CLB_ISA_SCALAR] = { "scalar", CLB_CPU_OTHER, CLB_ISA_SCALAR },
    [CLB_ISA_AVX2] = { "avx2", CLB_CPU_X86_64, CLB_ISA_AVX2 },
    [CLB_ISA_AVXVNNI] = { "avxvnni", CLB_CPU_X86_64, CLB_ISA_AVX2 },
    [CLB_ISA_AVX512] = { "avx512", CLB_CPU_X86_64, CLB_ISA_AVX2 },
    [CLB_ISA_NEON] = { "neon", CLB_CPU_AARCH64, CLB_ISA_NEON },
    [CLB_ISA_I8MM] = { "i8mm", CLB_CPU_AARCH64, CLB_ISA_NEON },
};

static const struct feature {
    enum clb_isa isa; /* the level that needs it */
    enum clb_cpu_word word;
    uint32_t bits; /* all of them */
    const char *lacking;
} features[] = {
    { CLB_ISA_AVX2, CLB_CPU_1_ECX, 1u << 28, "the processor lacks AVX" },
    { CLB_ISA_AVX2, CLB_CPU_1_ECX, 1u << 12, "the processor lacks FMA" },
    { CLB_ISA_AVX2, CLB_CPU_1_ECX, 1u << 29, "the processor lacks F16C" },
    { CLB_ISA_AVX2, CLB_CPU_7_EBX, 1u << 5, "the processor lacks AVX2" },
    { CLB_ISA_AVX2, CLB_CPU_XCR0, 0x06, "the operating system does not save AVX registers" },
    { CLB_ISA_AVXVNNI, CLB_CPU_7_1_EAX, 1u << 4, "the processor lacks AVX-VNNI" },
    { CLB_ISA_AVX512, CLB_CPU_7_EBX, 1u << 16, "the processor lacks AVX-512F" },
    { CLB_ISA_AVX512, CLB_CPU_7_EBX, 1u << 17, "the processor lacks AVX-512DQ" },
    { CLB_ISA_AVX512, CLB_CPU_7_EBX, 1u << 30, "the processor lacks AVX-512BW" },
    { CLB_ISA_AVX512, CLB_CPU_7_EBX, 1u << 31, "the processor lacks AVX-512VL" },
    { CLB_ISA_AVX512, CLB_CPU_7_ECX, 1u << 11, "the processor lacks AVX-512 VNNI" },
    { CLB_ISA_AVX512, CLB_CPU_XCR0, 0xe6, "the operating system does not save AVX-512 registers" },
    { CLB_ISA_NEON, CLB_CPU_HWCAP, 1u << 1, "the processor lacks NEON (Advanced SIMD)" },
    { CLB_ISA_NEON, CLB_CPU_HWCAP, 1u << 20, "the processor lacks the dot product instructions" },
    { CLB_ISA_I8MM, CLB_CPU_HWCAP2, 1u << 13, "the processor lacks the int8 matrix instructions" },
};

#if defined(__x86_64__)

#include <cpuid.h>

void clb_cpu_ask(struct clb_cpu *cpu)
{
    uint32_t *w = cpu->word, max_subleaf, other[3];

    memset(cpu, 0, sizeof *cpu);
    cpu->arch = CLB_CPU_X86_64;
    __get_cpuid(1, &other[0], &other[1], &w[CLB_CPU_1_ECX], &other[2]);
    if (__get_cpuid_count(7, 0, &max_subleaf, &w[CLB_CPU_7_EBX], &w[CLB_CPU_7_ECX], &other[0]) &&
        max_subleaf >= 1)
        __get_cpuid_count(7, 1, &w[CLB_CPU_7_1_EAX], &other[0], &other[1], &other[2]);
    if (w[CLB_CPU_1_ECX] >> 27 & 1) /* OSXSAVE: there is an xgetbv */
        __asm__ volatile("xgetbv" : "=a"(w[CLB_CPU_XCR0]), "=d"(other[0]) : "c"(0));
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

void clb_cpu_ask(struct clb_cpu *cpu)
{
    memset(cpu, 0, sizeof *cpu);
    cpu->arch = CLB_CPU_AARCH64;
    cpu->word[CLB_CPU_HWCAP] = (uint32_t)getauxval(AT_HWCAP);
    cpu->word[CLB_CPU_HWCAP2] = (uint32_t)getauxval(AT_HWCAP2);
}

#else

void clb_cpu_ask(struct clb_cpu *cpu)
{
    memset(cpu, 0, sizeof *cpu);
}

#endif

const char *clb_cpu_lacks(const struct clb_cpu *cpu, enum clb_isa isa)
{
    const struct level *l = &levels[isa];

    if (l->arch != CLB_CPU_OTHER && l->arch != cpu->arch)
        return l->arch == CLB_CPU_X86_64 ? "this machine is not x86-64"
                                         : "this machine is not aarch64";
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const struct feature *f = &features[i];
        if ((f->isa == isa || f->isa == l->base) && (cpu->word[f->word] & f->bits) != f->bits)
            return f->lacking;
    }
    return NULL;
}

const char *clb_isa_name(enum clb_isa isa)
{
    return levels[isa].name;
}

bool clb_isa_parse(const char *name, enum clb_isa *out)
{
    for (int i = 0; i < CLB_ISA_COUNT; i++)
        if (!strcmp(name, levels[i].name)) {
            *out = (enum clb_isa)i;
            return true;
        }
    return false;
}

bool clb_isa_available(enum clb_isa isa, const char **why)
{
    struct clb_cpu cpu;

    clb_cpu_ask(&cpu);
    *why = clb_cpu_lacks(&cpu, isa);
    return !*why;
}

enum clb_isa clb_isa_best(void)
{
    struct clb_cpu cpu;
    enum clb_isa isa = CLB_ISA_COUNT - 1;

    clb_cpu_ask(&cpu);
    while (clb_cpu_lacks(&cpu, isa))
        isa--;
    return isa;
}

bool clb_isa_choose(const char *name, enum clb_isa *isa, struct clb_err *err)
{
    const char *why;

    if (!name) {
        *isa = clb_isa_best();
        return true;
    }
    if (!clb_isa_parse(name, isa))
        return clb_fail(err, CLB_USAGE,
                        "there is no CPU level '%s'; levels are 'scalar', on x86-64 'avx2', "
                        "'avxvnni' and 'avx512', on aarch64 'neon' and 'i8mm'",
                        name);
    if (!clb_isa_available(*isa, &why))
        return clb_fail(err, CLB_UNSUPPORTED, "CPU level '%s': %s", name, why);
    return true;
}
