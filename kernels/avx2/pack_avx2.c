/* pack_avx2.c - rows to int8 and float tiles. */
#include "kernels/avx2/pack_avx2.h"

enum { CHUNK = 256 }; /* columns at a time */

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

static void widen_row(float *y, const void *x, enum clb_dtype from, size_t n)
{
    widen(y, x, from, n);
}

/* -- int8 ------------------------------------------------------------------------------------ */

VEC_FN vf round_code(vf x)
{
    const vf end = vf_set1(127.0f);

    return vf_rint(vf_max(vf_min(x, end), vf_neg(end)));
}

/* Adds to the lanes of four sums. */
VEC_FN void add_noise(vf lane[CLB_INT8_TRIES][2], const float *w, uint32_t n, const float *inverse)
{
    const vf by[CLB_INT8_TRIES] = { vf_set1(inverse[0]), vf_set1(inverse[1]), vf_set1(inverse[2]),
                                    vf_set1(inverse[3]) };

    for (uint32_t i = 0; i < n; i += 2 * LANES)
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++)
#pragma GCC unroll 4
            for (int t = 0; t < CLB_INT8_TRIES; t++) {
                vf x = vf_mul(vf_load(w + i + k * LANES), by[t]), d = vf_sub(x, round_code(x));

                lane[t][k] = vf_add(lane[t][k], vf_mul(d, d));
            }
}

static void int8_noise(float noise[CLB_INT8_TRIES], const void *x, enum clb_dtype from, uint32_t n,
                       const float inverse[CLB_INT8_TRIES])
{
    const struct clb_rows m = { x, from, 1, n };
    vf lane[CLB_INT8_TRIES][2];
    float w[CHUNK];

    for (int t = 0; t < CLB_INT8_TRIES; t++)
        lane[t][0] = lane[t][1] = vf_zero();
    for (uint32_t at = 0; at < n; at += CHUNK)
        add_noise(lane, w, widen_part(w, &m, 0, at, CHUNK), inverse);
    for (int t = 0; t < CLB_INT8_TRIES; t++)
        noise[t] = vf_tree(lane[t]);
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

VEC_FN void code_row(uint8_t *code, const float *w, uint32_t n, float scale, struct clb_loss *loss)
{
    const vf by = vf_set1(scale);
    vf signal[2] = { vf_zero(), vf_zero() }, noise[2] = { vf_zero(), vf_zero() };
    double square = (double)scale * (double)scale;

    if (scale == 0) {
        memset(code, 128, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += 32) {
        vf q[4];

        for (uint32_t k = 0; k < 4; k++) {
            vf x = vf_div(vf_load(w + i + k * LANES), by), d;

            q[k] = round_code(x);
            d = vf_sub(x, q[k]);
            signal[k % 2] = vf_add(signal[k % 2], vf_mul(x, x));
            noise[k % 2] = vf_add(noise[k % 2], vf_mul(d, d));
        }
        put_codes(code + i, q);
    }
    loss->signal += (double)vf_tree(signal) * square;
    loss->noise += (double)vf_tree(noise) * square;
}

static void pack_int8(uint8_t *tile, const struct clb_rows *m, const float scale[CLB_TILE],
                      struct clb_loss *loss)
{
    uint8_t code[CLB_TILE][CHUNK];
    float w[CHUNK];

    for (uint32_t at = 0, n = 0; at < m->cols; at += CHUNK, tile += n / 4 * STEP) {
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            n = widen_part(w, m, r, at, CHUNK);
            code_row(code[r], w, n, r < m->n_row ? scale[r] : 0, loss);
        }
        put_steps(tile, code, CHUNK, n / 4);
    }
}

/* -- floats ---------------------------------------------------------------------------------- */

/* Lanes to fp16 or bf16 in the lower half of each lane, and what that is. */
VEC_FN __m256i narrow(vf w, vf *back, enum clb_dtype to)
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

/* 1 in lanes that are not what they were, and have no bits of an exponent in fp16 */
VEC_FN __m256i underflow(vf d, __m256i h)
{
    __m256i exponent = _mm256_and_si256(h, _mm256_set1_epi32(0x7c00));
    __m256i none = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    __m256i lost = _mm256_castps_si256(_mm256_cmp_ps(d, vf_zero(), _CMP_NEQ_UQ));

    return _mm256_srli_epi32(_mm256_and_si256(none, lost), 31);
}

VEC_FN uint32_t sum_lanes(__m256i x)
{
    uint32_t lane[8], sum = 0;

    _mm256_storeu_si256((void *)lane, x);
    for (int k = 0; k < 8; k++)
        sum += lane[k];
    return sum;
}

VEC_FN void narrow_row(uint16_t *h, const float *w, uint32_t n, enum clb_dtype to,
                       struct clb_loss *loss)
{
    vf signal[2] = { vf_zero(), vf_zero() }, noise[2] = { vf_zero(), vf_zero() };
    __m256i small = _mm256_setzero_si256();

    for (uint32_t i = 0; i < n; i += 2 * LANES) {
        __m256i half[2];

        for (uint32_t k = 0; k < 2; k++) {
            vf x = vf_load(w + i + k * LANES), back, d;

            half[k] = narrow(x, &back, to);
            d = vf_sub(x, back);
            signal[k] = vf_add(signal[k], vf_mul(x, x));
            noise[k] = vf_add(noise[k], vf_mul(d, d));
            small = _mm256_add_epi32(small, underflow(d, half[k]));
        }
        half[0] = _mm256_permute4x64_epi64(_mm256_packus_epi32(half[0], half[1]), 0xd8);
        _mm256_storeu_si256((void *)(h + i), half[0]);
    }
    if (to == CLB_F16)
        loss->underflows += sum_lanes(small);
    loss->signal += (double)vf_tree(signal);
    loss->noise += (double)vf_tree(noise);
}

static void pack_16(uint8_t *tile, const struct clb_rows *m, enum clb_dtype to,
                    struct clb_loss *loss)
{
    uint32_t cols = clb_cols_padded(to, m->cols);
    uint16_t h[CLB_TILE][CHUNK];
    float w[CHUNK];

    for (uint32_t at = 0, n = 0; at < m->cols; at += CHUNK, tile += n / 2 * STEP) {
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            n = widen_part(w, m, r, at, CHUNK);
            narrow_row(h[r], w, n, to, loss);
        }
        n = n < cols - at ? n : cols - at;
        put_steps(tile, h, sizeof h[0], n / 2);
    }
}

static void pack_f32(uint8_t *tile, const struct clb_rows *m)
{
    float w[CLB_TILE][CHUNK];

    for (uint32_t at = 0, n; at < m->cols; at += n, tile += (size_t)n * STEP) {
        n = m->cols - at < CHUNK ? m->cols - at : CHUNK;
        for (uint32_t r = 0; r < CLB_TILE; r++)
            widen_part(w[r], m, r, at, CHUNK);
        put_steps(tile, w, sizeof w[0], n);
    }
}

static void pack_floats(uint8_t *tile, const struct clb_rows *m, enum clb_dtype to,
                        struct clb_loss *loss)
{
    if (to == CLB_F32)
        pack_f32(tile, m);
    else
        pack_16(tile, m, to, loss);
}

PLAIN_CODE void clb_fill_pack_avx2(struct clb_pack_kernels *k)
{
    k->largest = largest;
    k->widen = widen_row;
    k->int8_noise = int8_noise;
    k->int8 = pack_int8;
    k->floats = pack_floats;
}
