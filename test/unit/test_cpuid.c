/* Which kernel levels a machine gets: judged on made-up machines of both architectures, which lack
 * one feature after the other, and on this one. */
#include "kernels/cpu/cpuid.h"
#include "test/check.h"

/* What Linux 6.1 and the processors themselves report, cut to the words that are read. */
static const struct clb_cpu cascade_lake = {
    .arch = CLB_CPU_X86_64,
    .word = { [CLB_CPU_1_ECX] = 0xfffa3203, [CLB_CPU_7_EBX] = 0xd39ffffb,
              [CLB_CPU_7_ECX] = 0x00000818, [CLB_CPU_XCR0] = 0x000002ff },
};
static const struct clb_cpu alder_lake = {
    .arch = CLB_CPU_X86_64,
    .word = { [CLB_CPU_1_ECX] = 0xfffaf38b, [CLB_CPU_7_EBX] = 0x239ca7eb,
              [CLB_CPU_7_ECX] = 0x98c027a4, [CLB_CPU_7_1_EAX] = 0x00400810,
              [CLB_CPU_XCR0] = 0x00000207 },
};
static const struct clb_cpu graviton3 = {
    .arch = CLB_CPU_AARCH64,
    .word = { [CLB_CPU_HWCAP] = 0xdfffffff, [CLB_CPU_HWCAP2] = 0x0001f3ff },
};
static const struct clb_cpu raspberry_pi_4 = {
    .arch = CLB_CPU_AARCH64,
    .word = { [CLB_CPU_HWCAP] = 0x00000887 },
};

/* "" when the machine has the level. */
static const char *lacks(const struct clb_cpu *cpu, enum clb_isa isa)
{
    const char *why = clb_cpu_lacks(cpu, isa);
    return why ? why : "";
}

static const char *without(const struct clb_cpu *cpu, enum clb_cpu_word word, uint32_t bits,
                           enum clb_isa isa)
{
    struct clb_cpu less = *cpu;
    less.word[word] &= ~bits;
    return lacks(&less, isa);
}

static void whole_machines(void)
{
    CHECK_STR(lacks(&cascade_lake, CLB_ISA_SCALAR), "");
    CHECK_STR(lacks(&cascade_lake, CLB_ISA_AVX2), "");
    CHECK_STR(lacks(&cascade_lake, CLB_ISA_AVXVNNI), "the processor lacks AVX-VNNI");
    CHECK_STR(lacks(&cascade_lake, CLB_ISA_AVX512), "");
    CHECK_STR(lacks(&alder_lake, CLB_ISA_AVX2), "");
    CHECK_STR(lacks(&alder_lake, CLB_ISA_AVXVNNI), "");
    CHECK_STR(lacks(&alder_lake, CLB_ISA_AVX512), "the processor lacks AVX-512F");
    CHECK_STR(lacks(&graviton3, CLB_ISA_SCALAR), "");
    CHECK_STR(lacks(&graviton3, CLB_ISA_NEON), "");
    CHECK_STR(lacks(&graviton3, CLB_ISA_I8MM), "");
    CHECK_STR(lacks(&raspberry_pi_4, CLB_ISA_SCALAR), "");
    CHECK_STR(lacks(&raspberry_pi_4, CLB_ISA_NEON),
              "the processor lacks the dot product instructions");
}

static void other_architectures(void)
{
    const struct clb_cpu riscv = { .arch = CLB_CPU_OTHER };

    for (int isa = CLB_ISA_AVX2; isa <= CLB_ISA_AVX512; isa++) {
        CHECK_STR(lacks(&graviton3, (enum clb_isa)isa), "this machine is not x86-64");
        CHECK_STR(lacks(&riscv, (enum clb_isa)isa), "this machine is not x86-64");
    }
    for (int isa = CLB_ISA_NEON; isa <= CLB_ISA_I8MM; isa++) {
        CHECK_STR(lacks(&cascade_lake, (enum clb_isa)isa), "this machine is not aarch64");
        CHECK_STR(lacks(&riscv, (enum clb_isa)isa), "this machine is not aarch64");
    }
    CHECK_STR(lacks(&riscv, CLB_ISA_SCALAR), "");
}

/* Every instruction set of a level is asked for. */
static void one_feature_less(void)
{
    static const struct {
        enum clb_isa isa;
        enum clb_cpu_word word;
        uint32_t bit;
        const char *lacking;
    } less[] = {
        { CLB_ISA_AVX2, CLB_CPU_1_ECX, 28, "the processor lacks AVX" },
        { CLB_ISA_AVX2, CLB_CPU_1_ECX, 12, "the processor lacks FMA" },
        { CLB_ISA_AVX2, CLB_CPU_1_ECX, 29, "the processor lacks F16C" },
        { CLB_ISA_AVX2, CLB_CPU_7_EBX, 5, "the processor lacks AVX2" },
        { CLB_ISA_AVX512, CLB_CPU_7_EBX, 5, "the processor lacks AVX2" },
        { CLB_ISA_AVX512, CLB_CPU_1_ECX, 12, "the processor lacks FMA" },
        { CLB_ISA_AVX512, CLB_CPU_7_EBX, 16, "the processor lacks AVX-512F" },
        { CLB_ISA_AVX512, CLB_CPU_7_EBX, 17, "the processor lacks AVX-512DQ" },
        { CLB_ISA_AVX512, CLB_CPU_7_EBX, 30, "the processor lacks AVX-512BW" },
        { CLB_ISA_AVX512, CLB_CPU_7_EBX, 31, "the processor lacks AVX-512VL" },
        { CLB_ISA_AVX512, CLB_CPU_7_ECX, 11, "the processor lacks AVX-512 VNNI" },
    };

    for (size_t i = 0; i < sizeof less / sizeof *less; i++)
        CHECK_STR(without(&cascade_lake, less[i].word, 1u << less[i].bit, less[i].isa),
                  less[i].lacking);
    CHECK_STR(without(&alder_lake, CLB_CPU_7_1_EAX, 1u << 4, CLB_ISA_AVXVNNI),
              "the processor lacks AVX-VNNI");
    CHECK_STR(without(&alder_lake, CLB_CPU_7_EBX, 1u << 5, CLB_ISA_AVXVNNI),
              "the processor lacks AVX2");
    CHECK_STR(without(&graviton3, CLB_CPU_HWCAP, 1u << 1, CLB_ISA_NEON),
              "the processor lacks NEON (Advanced SIMD)");
    CHECK_STR(without(&graviton3, CLB_CPU_HWCAP, 1u << 20, CLB_ISA_NEON),
              "the processor lacks the dot product instructions");
    CHECK_STR(without(&graviton3, CLB_CPU_HWCAP, 1u << 20, CLB_ISA_I8MM),
              "the processor lacks the dot product instructions");
    CHECK_STR(without(&graviton3, CLB_CPU_HWCAP2, 1u << 13, CLB_ISA_I8MM),
              "the processor lacks the int8 matrix instructions");
    CHECK_STR(without(&graviton3, CLB_CPU_HWCAP2, 1u << 13, CLB_ISA_NEON), "");
}

/* The processor has the instructions; the system (or a hypervisor) does not save what they use. */
static void registers_that_are_not_saved(void)
{
    const char *no_avx = "the operating system does not save AVX registers";
    const char *no_avx512 = "the operating system does not save AVX-512 registers";

    for (uint32_t bit = 0; bit < 8; bit++) {
        const char *avx2 = without(&cascade_lake, CLB_CPU_XCR0, 1u << bit, CLB_ISA_AVX2);
        const char *avx512 = without(&cascade_lake, CLB_CPU_XCR0, 1u << bit, CLB_ISA_AVX512);
        bool ymm = bit == 1 || bit == 2, zmm = bit >= 5;
        CHECK_STR(avx2, ymm ? no_avx : "");
        CHECK_STR(avx512, ymm ? no_avx : zmm ? no_avx512 : "");
    }
    CHECK_STR(without(&alder_lake, CLB_CPU_XCR0, ~0u, CLB_ISA_AVXVNNI), no_avx);
    CHECK_STR(without(&cascade_lake, CLB_CPU_XCR0, ~0u, CLB_ISA_SCALAR), "");
}

static void this_machine(void)
{
    struct clb_cpu cpu;

    clb_cpu_ask(&cpu);
#if defined(__x86_64__)
    CHECK_EQ(cpu.arch, CLB_CPU_X86_64);
    CHECK(cpu.word[CLB_CPU_1_ECX] && !cpu.word[CLB_CPU_HWCAP]);
    CHECK(!__builtin_cpu_supports("avx2") == !!clb_cpu_lacks(&cpu, CLB_ISA_AVX2));
    CHECK(!__builtin_cpu_supports("avx512vnni") == !!clb_cpu_lacks(&cpu, CLB_ISA_AVX512));
#elif defined(__aarch64__)
    CHECK_EQ(cpu.arch, CLB_CPU_AARCH64);
    CHECK(cpu.word[CLB_CPU_HWCAP] && !cpu.word[CLB_CPU_1_ECX]);
#endif
    for (int isa = 0; isa < CLB_ISA_COUNT; isa++) {
        const char *why;
        bool have = clb_isa_available((enum clb_isa)isa, &why);
        CHECK_STR(why ? why : "", lacks(&cpu, (enum clb_isa)isa));
        CHECK(have == !why);
    }
}

int main(void)
{
    TEST(whole_machines);
    TEST(other_architectures);
    TEST(one_feature_less);
    TEST(registers_that_are_not_saved);
    TEST(this_machine);
    return test_result();
}
