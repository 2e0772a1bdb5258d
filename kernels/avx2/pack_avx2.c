/* pack_avx2.c - rows to int8 and float tiles. */
#include "kernels/avx2/pack_avx2.h"

static uint32_t largest(const void *x, enum clb_dtype from, size_t n)
{
    const size_t per = from == CLB_F32 ? 8 : 16;
    const uint32_t mask = from == CLB_F32 ? 0x7fffffff : 0x7fff;
    const __m256i magnitude = _mm256_set1_epi32((int)(mask | (from == CLB_F32 ? 0 : mask << 16)));
    const char *p = x;
    __m256i most = _mm256_setzero_si256();
    uint32_t lane[8], all = 0;
    size_t i = 0;

    for (; i + per <= n; i += per, p += 32) {
        __m256i v = _mm256_and_si256(_mm256_loadu_si256((const void *)p), magnitude);

        most = from == CLB_F32 ? _mm256_max_epi32(most, v) : _mm256_max_epi16(most, v);
    }
    if (from != CLB_F32) /* the larger of each pair */
        most = _mm256_max_epi16(_mm256_and_si256(most, _mm256_set1_epi32(0xffff)),
                                _mm256_srli_epi32(most, 16));
    _mm256_storeu_si256((void *)lane, most);
    for (int k = 0; k < 8; k++)
        all = all > lane[k] ? all : lane[k];
    for (; i < n; i++, p += source_bytes(from)) {
        uint32_t b = 0;

        memcpy(&b, p, source_bytes(from));
        all = all > (b & mask) ? all : b & mask;
    }
    if (from == CLB_F16)
        return clb_f32_bits(clb_f16_to_f32((uint16_t)all));
    return from == CLB_F32 ? all : all << 16;
}

/* 32 whole numbers, within +-127, to bytes with 128 added. */
VEC_FN void put_codes(uint8_t *code, const vf q[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(q[0]), _mm256_cvtps_epi32(q[1]));
    __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(q[2]), _mm256_cvtps_epi32(q[3]));
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);

    _mm256_storeu_si256((void *)code, _mm256_xor_si256(all, _mm256_set1_epi8((char)0x80)));
}

/* A vector to fp16 or bf16 in the lower half of each lane. */
VEC_FN __m256i narrow_lanes(vf w, vf *back, enum clb_dtype to)
{
    __m256i b = _mm256_castps_si256(w);

    if (to == CLB_F16) {
        __m128i h = _mm256_cvtps_ph(w, _MM_FROUND_TO_NEAREST_INT);

        *back = _mm256_cvtph_ps(h);
        return _mm256_cvtepu16_epi32(h);
    }
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    b = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    b = _mm256_srli_epi32(b, 16);
    *back = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    return b;
}

VEC_FN void narrow(uint16_t *h, vf back[VECS], const vf x[VECS], enum clb_dtype to)
{
    __m256i low = narrow_lanes(x[0], &back[0], to), high = narrow_lanes(x[1], &back[1], to);

    low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256((void *)h, low);
}

#include "kernels/wide/pack.inc"

PLAIN_CODE void clb_fill_pack_avx2(struct clb_pack_kernels *k)
{
    fill_pack(k);
    k->largest = largest;
}
