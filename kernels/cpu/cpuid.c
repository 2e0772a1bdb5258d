/* cpuid.c - which kernel levels this machine can run: the processor must have the instructions, and
 * the operating system must save the registers they use (XGETBV). */
#include <string.h>

#include "kernels/kernels.h"

static const char *const names[CLB_ISA_COUNT] = {
    [CLB_ISA_SCALAR] = "scalar",
    [CLB_ISA_AVX2] = "avx2",
    [CLB_ISA_AVXVNNI] = "avxvnni",
    [CLB_ISA_AVX512] = "avx512",
};

const char *clb_isa_name(enum clb_isa isa)
{
    return names[isa];
}

bool clb_isa_parse(const char *name, enum clb_isa *out)
{
    for (int i = 0; i < CLB_ISA_COUNT; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum clb_isa)i;
            return true;
        }
    return false;
}

#if defined(__x86_64__)

#include <cpuid.h>

/* Registers of cpuid in the order eax, ebx, ecx, edx. */
enum { EAX, EBX, ECX, EDX };

static const struct feature {
    enum clb_isa isa;      /* the level that needs it */
    uint8_t leaf, subleaf; /* where cpuid tells */
    uint8_t reg, bit;
    const char *lacking;
} features[] = {
    { CLB_ISA_AVX2, 1, 0, ECX, 27, "the operating system does not save AVX registers" },
    { CLB_ISA_AVX2, 1, 0, ECX, 28, "the processor lacks AVX" },
    { CLB_ISA_AVX2, 1, 0, ECX, 12, "the processor lacks FMA" },
    { CLB_ISA_AVX2, 1, 0, ECX, 29, "the processor lacks F16C" },
    { CLB_ISA_AVX2, 7, 0, EBX, 5, "the processor lacks AVX2" },
    { CLB_ISA_AVXVNNI, 7, 1, EAX, 4, "the processor lacks AVX-VNNI" },
    { CLB_ISA_AVX512, 7, 0, EBX, 16, "the processor lacks AVX-512F" },
    { CLB_ISA_AVX512, 7, 0, EBX, 17, "the processor lacks AVX-512DQ" },
    { CLB_ISA_AVX512, 7, 0, EBX, 30, "the processor lacks AVX-512BW" },
    { CLB_ISA_AVX512, 7, 0, EBX, 31, "the processor lacks AVX-512VL" },
    { CLB_ISA_AVX512, 7, 0, ECX, 11, "the processor lacks AVX-512 VNNI" },
};

static bool has(const struct feature *f)
{
    unsigned r[4] = { 0 }, max_subleaf = 0;

    if (f->subleaf) {
        unsigned rest[3];
        if (!__get_cpuid_count(f->leaf, 0, &max_subleaf, &rest[0], &rest[1], &rest[2]) ||
            max_subleaf < f->subleaf)
            return false;
    }
    return __get_cpuid_count(f->leaf, f->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) &&
           r[f->reg] >> f->bit & 1;
}

/* Register state that the operating system saves; only after the OSXSAVE bit was seen. */
static uint32_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool clb_isa_available(enum clb_isa isa, const char **why)
{
    const uint32_t ymm = 0x06, zmm = 0xe6;

    *why = NULL;
    /* AVX-VNNI is no part of AVX-512: processors have the one without the other. */
    for (size_t i = 0; i < sizeof features / sizeof *features && !*why; i++) {
        enum clb_isa level = features[i].isa;
        if ((level == isa || (level == CLB_ISA_AVX2 && isa > level)) && !has(&features[i]))
            *why = features[i].lacking;
    }
    if (!*why && isa >= CLB_ISA_AVX2 && (saved_state() & ymm) != ymm)
        *why = "the operating system does not save AVX registers";
    if (!*why && isa >= CLB_ISA_AVX512 && (saved_state() & zmm) != zmm)
        *why = "the operating system does not save AVX-512 registers";
    return !*why;
}

#else

bool clb_isa_available(enum clb_isa isa, const char **why)
{
    *why = isa == CLB_ISA_SCALAR ? NULL : "this program was not built for x86-64";
    return !*why;
}

#endif

enum clb_isa clb_isa_best(void)
{
    const char *why;
    enum clb_isa isa = CLB_ISA_COUNT - 1;

    while (!clb_isa_available(isa, &why))
        isa--;
    return isa;
}
