/* quantise_avx2.c - one row of activations to a record. The bound of +-127 needs no clamp: x times
 * the rounded 127 / amax stays below 127.5. */
#include <math.h>

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"
#include "kernels/wide/block.h"
#include "lib/base/half.h"

VEC_FN int32_t largest_int(__m256i x)
{
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtsi128_si32(h);
}

VEC_FN int32_t sum_bytes(__m256i a)
{
    __m256i one = _mm256_set1_epi8(1);
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(one, a), _mm256_set1_epi16(1));
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtsi128_si32(h);
}

/* 32 values of four vectors, in order, as signed bytes */
VEC_FN __m256i pack_bytes(const __m256i q[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

VEC_FN void quantise_group(int8_t *a, struct clb_group_info *info, const vf x[CLB_GROUP / LANES])
{
    __m256i q[4], bits = _mm256_setzero_si256();

    /* As integers, magnitudes sort like floats, infinity and NaN last. */
    UNROLL
    for (int i = 0; i < 4; i++)
        bits = _mm256_max_epi32(bits, _mm256_castps_si256(vf_abs(x[i])));
    uint32_t most = (uint32_t)largest_int(bits);
    float amax = clb_f32_from_bits(most), inverse = 127.0f / amax;
    bool finite = most < 0x7f800000u;

    if (!finite || !(inverse < INFINITY)) {
        _mm256_storeu_si256((__m256i *)(void *)a, _mm256_setzero_si256());
        info->scale = finite ? 0.0f : NAN;
        info->minus128sum = 0;
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(vf_mul(x[i], vf_set1(inverse)));
    __m256i packed = pack_bytes(q);
    _mm256_storeu_si256((__m256i *)(void *)a, packed);
    info->scale = amax / 127.0f;
    info->minus128sum = -128 * sum_bytes(packed);
}

#include "kernels/wide/quantise.inc"

PLAIN_CODE void clb_fill_quantise_avx2(struct clb_kernels *k)
{
    k->quantise = quantise;
}
