/* pack_int4_avx2.c - groups of 32 weights to codes of a book (pack_int4_scalar.c is the
 * definition). The search runs on eight rows at a time: a lane of 32 bits is a row and holds two of
 * its weights as whole numbers. */
#include "kernels/avx2/pack_avx2.h"

enum { REFITS = 2, PAIRS = CLB_GROUP / 2 };

/* A book in registers: bins 0 to 15 and -16 to -1. A byte shuffle gives 0 where bit 7 is set. */
struct book {
    __m256i base[2], edge[2], value;
};

VEC_FN __m256i both_halves(const void *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

VEC_FN struct book load_book(const struct clb_int4_book *b)
{
    return (struct book){ { both_halves(b->base), both_halves(b->base + 16) },
                          { both_halves(b->edge), both_halves(b->edge + 16) },
                          both_halves(b->value) };
}

/* Codes of 32 places; bin: -16 to 15, place: 0 to 255 within it. */
VEC_FN __m256i nearest(const struct book *b, __m256i bin, __m256i place)
{
    __m256i below = _mm256_xor_si256(bin, _mm256_set1_epi8((char)0x80));
    __m256i base = _mm256_or_si256(_mm256_shuffle_epi8(b->base[0], bin),
                                   _mm256_shuffle_epi8(b->base[1], below));
    __m256i edge = _mm256_or_si256(_mm256_shuffle_epi8(b->edge[0], bin),
                                   _mm256_shuffle_epi8(b->edge[1], below));
    __m256i passed = _mm256_cmpeq_epi8(_mm256_max_epu8(place, edge), place);

    return _mm256_sub_epi8(base, passed);
}

/* Codes of two vectors of places in 1/32, 16 bits each; within each half the lower eight bytes are
 * those of a. Bins at the ends have no edge, so that places beyond need no cutting. */
VEC_FN __m256i nearest_pair(const struct book *b, __m256i a, __m256i c)
{
    const __m256i split = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    __m256i bin, place;

    a = _mm256_shuffle_epi8(a, split);
    c = _mm256_shuffle_epi8(c, split);
    place = _mm256_unpacklo_epi64(a, c);
    bin = _mm256_unpackhi_epi64(a, c);
    bin = _mm256_max_epi8(bin, _mm256_set1_epi8(-16));
    bin = _mm256_min_epi8(bin, _mm256_set1_epi8(15));
    return nearest(b, bin, place);
}

/* -- the search ------------------------------------------------------------------------------ */

/* Both halves of each lane of factor hold the factor of its row. */
VEC_FN vf fit(const struct book *b, const __m256i w[PAIRS], __m256i factor, vf *explained)
{
    __m256i dot = _mm256_setzero_si256(), square = dot;
    vf sum, scale;

    for (int i = 0; i < PAIRS; i += 2) {
        __m256i a = _mm256_mulhrs_epi16(w[i], factor), c = _mm256_mulhrs_epi16(w[i + 1], factor);
        __m256i v = _mm256_shuffle_epi8(b->value, nearest_pair(b, a, c));

        a = _mm256_srai_epi16(_mm256_unpacklo_epi8(v, v), 8);
        c = _mm256_srai_epi16(_mm256_unpackhi_epi8(v, v), 8);
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(w[i], a));
        square = _mm256_add_epi32(square, _mm256_madd_epi16(a, a));
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(w[i + 1], c));
        square = _mm256_add_epi32(square, _mm256_madd_epi16(c, c));
    }
    sum = _mm256_cvtepi32_ps(dot);
    scale = vf_div(sum, _mm256_cvtepi32_ps(square));
    *explained = vf_mul(sum, scale);
    return scale;
}

VEC_FN void keep_better(vf *best, vf *most, vf scale, vf explained)
{
    vmask better = vf_less(*most, explained);

    *best = vf_select(better, scale, *best);
    *most = vf_select(better, explained, *most);
}

VEC_FN vf search(const struct clb_int4_book *book, const struct book *b, const __m256i w[PAIRS])
{
    const vf end = vf_set1(32767.0f);
    vf best = vf_zero(), most = vf_set1(-1), explained;

    for (int k = 0; k < CLB_INT4_STARTS; k++) {
        vf scale = fit(b, w, _mm256_set1_epi16(book->start[k]), &explained);

        keep_better(&best, &most, scale, explained);
    }
    for (int k = 0; k < REFITS; k++) {
        vf factor = vf_rint(vf_div(vf_set1(0x1p20f), best)), scale;
        __m256i f = _mm256_cvtps_epi32(vf_max(vf_min(factor, end), vf_neg(end)));

        f = _mm256_or_si256(_mm256_and_si256(f, _mm256_set1_epi32(0xffff)),
                            _mm256_slli_epi32(f, 16));
        scale = fit(b, w, f, &explained);
        keep_better(&best, &most, scale, explained);
    }
    return best;
}

/* The largest of each row: every row's lanes, reduced to one lane a row. */
VEC_FN __m256i largest_of_rows(__m256i r[8])
{
    transpose8(r);
    for (int width = 4; width; width /= 2)
        for (int i = 0; i < width; i++)
            r[i] = _mm256_max_epu32(r[i], r[i + width]);
    return r[0];
}

/* w: [8][32]. The weight of the largest magnitude in each row. Sorted by magnitude, then sign: the
 * sign bit moves to the end, inverted. */
VEC_FN vf extremes(const float *w)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    __m256i r[8];

    for (int k = 0; k < 8; k++) {
        r[k] = _mm256_setzero_si256();
        for (int i = 0; i < CLB_GROUP; i += LANES) {
            __m256i b = _mm256_xor_si256(_mm256_castps_si256(vf_load(w + k * CLB_GROUP + i)), sign);

            b = _mm256_or_si256(_mm256_slli_epi32(b, 1), _mm256_srli_epi32(b, 31));
            r[k] = _mm256_max_epu32(r[k], b);
        }
    }
    r[0] = largest_of_rows(r);
    r[1] = _mm256_andnot_si256(_mm256_slli_epi32(r[0], 31), sign);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_srli_epi32(r[0], 1), r[1]));
}

/* Eight rows as whole numbers; the order of pairs does not matter to sums that are exact. */
VEC_FN void to_whole(__m256i whole[PAIRS], const float *w, const float factor[8])
{
    for (int k = 0; k < 8; k++) {
        vf f = vf_set1(factor[k]);
        __m256i q[4];

        for (int i = 0; i < 4; i++)
            q[i] = _mm256_cvtps_epi32(vf_mul(vf_load(w + k * CLB_GROUP + i * LANES), f));
        whole[k] = _mm256_packs_epi32(q[0], q[1]);
        whole[k + 8] = _mm256_packs_epi32(q[2], q[3]);
    }
    transpose8(whole);
    transpose8(whole + 8);
}

VEC_FN __m128i find_scales(const struct clb_int4_book *book, const struct book *b,
                           const float *w)
{
    const vf end = vf_set1(65504.0f);
    vf extreme = extremes(w), scale;
    vmask small = vf_less(vf_abs(extreme), vf_set1(0x1p-30f));
    __m256i whole[PAIRS];
    float factor[8];

    /* A factor of 0 gives no weights and a scale that is no number, which is not used. */
    vf_store(factor, vf_select(small, vf_zero(), vf_div(vf_set1(16383.0f), extreme)));
    to_whole(whole, w, factor);
    scale = vf_mul(search(book, b, whole), vf_mul(extreme, vf_set1(1 / 16383.0f)));
    scale = vf_max(vf_min(scale, end), vf_neg(end));
    return _mm256_cvtps_ph(vf_select(small, vf_zero(), scale), _MM_FROUND_TO_NEAREST_INT);
}

/* -- codes ----------------------------------------------------------------------------------- */

/* Codes of a row in order, low 16 and high 16. */
VEC_FN __m256i encode(const struct book *b, const float *w, float scale, struct clb_loss *loss)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    double square = (double)scale * (double)scale;
    vf x[4], signal[2] = { vf_zero(), vf_zero() }, noise[2] = { vf_zero(), vf_zero() };
    __m256i place[4], code, value;

    for (int i = 0; i < 4; i++) {
        x[i] = vf_div(vf_load(w + i * LANES), vf_set1(scale));
        vf p = _mm256_floor_ps(vf_mul(x[i], vf_set1(32)));
        p = vf_max(vf_min(p, vf_set1(4095)), vf_set1(-4096));
        place[i] = _mm256_cvtps_epi32(p);
    }
    code = nearest_pair(b, _mm256_packs_epi32(place[0], place[1]),
                        _mm256_packs_epi32(place[2], place[3]));
    code = _mm256_permutevar8x32_epi32(code, order);
    value = _mm256_shuffle_epi8(b->value, code);
    for (int i = 0; i < 4; i++) {
        int8_t v[CLB_GROUP];
        vf d;

        _mm256_storeu_si256((void *)v, value);
        d = vf_sub(x[i], vf_from_i8(v + i * LANES));
        signal[i % 2] = vf_add(signal[i % 2], vf_mul(x[i], x[i]));
        noise[i % 2] = vf_add(noise[i % 2], vf_mul(d, d));
    }
    loss->signal += (double)vf_tree(signal) * square;
    loss->noise += (double)vf_tree(noise) * square;
    return code;
}

VEC_FN void pack_group(const struct clb_int4_book *book, const struct book *b, uint8_t *step,
                       uint8_t *scales, const float *w, struct clb_loss *loss)
{
    uint16_t scale[CLB_TILE];

    for (int r = 0; r < CLB_TILE; r += 8)
        _mm_storeu_si128((void *)(scale + r), find_scales(book, b, w + r * CLB_GROUP));
    for (uint32_t r = 0; r < CLB_TILE; r++) {
        __m256i code = _mm256_set1_epi8((char)book->zero);
        uint8_t both[16];

        if (scale[r] & 0x7fff)
            code = encode(b, w + r * CLB_GROUP, clb_f16_to_f32(scale[r]), loss);
        else
            clb_int4_lost(w + r * CLB_GROUP, loss);
        scale[r] = scale[r] & 0x7fff ? scale[r] : 0;
        code = _mm256_or_si256(code, _mm256_slli_epi16(_mm256_permute4x64_epi64(code, 0x4e), 4));
        _mm_storeu_si128((void *)both, _mm256_castsi256_si128(code));
        for (uint32_t s = 0; s < 4; s++)
            memcpy(step + s * STEP + 4 * r, both + 4 * s, 4);
    }
    memcpy(scales, scale, sizeof scale);
}

static void pack_int4(uint8_t *tile, const struct clb_rows *m, const struct clb_int4_book *book,
                      struct clb_loss *loss)
{
    uint64_t steps_at = clb_tile_steps_at(CLB_INT4, m->cols);
    uint8_t *step = tile + steps_at;
    const struct book b = load_book(book);

    memset(tile, 0, steps_at);
    for (uint32_t at = 0; at < m->cols; at += CLB_GROUP, step += 4 * STEP, tile += 2 * CLB_TILE) {
        float w[CLB_TILE * CLB_GROUP];

        for (uint32_t r = 0; r < CLB_TILE; r++)
            widen_part(w + r * CLB_GROUP, m, r, at, CLB_GROUP);
        pack_group(book, &b, step, tile, w, loss);
    }
}

PLAIN_CODE void clb_fill_pack_int4_avx2(struct clb_pack_kernels *k)
{
    k->int4 = pack_int4;
}
