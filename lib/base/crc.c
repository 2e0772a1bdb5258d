/* crc.c - zlib's crc32 with the instructions that processors have for it; zlib itself does short
 * pieces, and everything on other processors. */
#include "lib/base/crc.h"

#include <stdbool.h>
#include <zlib.h>

#if defined(__x86_64__)

#include <immintrin.h>

/* A polynomial of 128 bits times x^d is congruent to its low half times x^(d+32) plus its high half
 * times x^(d-32), both factors modulo the polynomial of crc32: 64-bit factors (bit-reflected, one
 * place up) keep the product within 128 bits. For d = 512 and d = 128. */
static const uint64_t by_512[2] = { 0x154442bd4, 0x1c6e41596 };
static const uint64_t by_128[2] = { 0x1751997d0, 0x0ccaa009e };

__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i x, __m128i factors,
                                                             __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(x, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, factors, 0x11);

    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* n: a multiple of 64, not 0. Four sums of 128 bits run side by side; what is left in the end is
 * congruent to everything read, so its crc32 is that of all. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t by_folding(uint32_t crc, const uint8_t *p,
                                                                    size_t n)
{
    const __m128i far = _mm_loadu_si128((const __m128i *)(const void *)by_512);
    const __m128i near = _mm_loadu_si128((const __m128i *)(const void *)by_128);
    const __m128i *in = (const __m128i *)(const void *)p;
    __m128i x[4];
    uint8_t rest[16];

    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128(in + i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (in += 4, n -= 64; n > 0; in += 4, n -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = fold(x[i], far, _mm_loadu_si128(in + i));
    for (int i = 1; i < 4; i++)
        x[i] = fold(x[i - 1], near, x[i]);
    _mm_storeu_si128((__m128i *)(void *)rest, x[3]);
    return (uint32_t)crc32_z(~0u, rest, sizeof rest); /* ~0: as if nothing had come before */
}

static bool has_instructions(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

#elif defined(__aarch64__)

#include <arm_acle.h>
#include <asm/hwcap.h>
#include <string.h>
#include <sys/auxv.h>

__attribute__((target("+crc"))) static uint32_t by_folding(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word;

        memcpy(&word, p + i, sizeof word);
        crc = __crc32d(crc, word);
    }
    return ~crc;
}

static bool has_instructions(void)
{
    return getauxval(AT_HWCAP) & HWCAP_CRC32;
}

#else

static uint32_t by_folding(uint32_t crc, const uint8_t *p, size_t n)
{
    return (uint32_t)crc32_z(crc, p, n);
}

static bool has_instructions(void)
{
    return false;
}

#endif

uint32_t clb_crc32(uint32_t crc, const void *bytes, size_t n)
{
    size_t fast = n / 64 * 64;
    const uint8_t *p = bytes;

    if (!fast || !has_instructions())
        return (uint32_t)crc32_z(crc, p, n);
    crc = by_folding(crc, p, fast);
    return (uint32_t)crc32_z(crc, p + fast, n - fast);
}

uint32_t clb_crc32_combine(uint32_t a, uint32_t b, uint64_t b_bytes)
{
    return (uint32_t)crc32_combine(a, b, (z_off_t)b_bytes);
}
