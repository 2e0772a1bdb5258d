#include "lib/import/quantise_int4.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/half.h"
#include "lib/import/quantise.h"

enum { LANES = 8, TRIES = 9 };

void clb_nearest_init(struct clb_nearest *n, const int8_t book[16])
{
    n->lowest = n->highest = book[0];
    n->zero = 0;
    for (uint8_t c = 0; c < 16; c++) {
        n->lowest = book[c] < n->lowest ? book[c] : n->lowest;
        n->highest = book[c] > n->highest ? book[c] : n->highest;
        if (abs(book[c]) < abs(book[n->zero]))
            n->zero = c;
    }
    for (int i = 0; i < CLB_NEAREST_SIZE; i++) {
        double x = (i - CLB_NEAREST_ORIGIN + 0.5) / 2; /* any number with this floor(2x) */
        uint8_t best = 0;

        for (uint8_t c = 1; c < 16; c++)
            if (fabs(x - book[c]) < fabs(x - book[best]))
                best = c;
        n->code[i] = best;
        n->value[i] = (float)book[best];
    }
}

/* With the codes nearest for `scale`: the scale that fits these codes best, and how much of the
 * signal it explains (the squared error is the signal less this). Three loops, so that compilers
 * use vectors. */
static float refit(const struct clb_nearest *n, const float *w, float scale, float *explained)
{
    float inverse = 2 / scale, v[CLB_GROUP], dot[LANES] = { 0 }, square[LANES] = { 0 };
    int32_t at[CLB_GROUP];

    for (int i = 0; i < CLB_GROUP; i++) {
        int32_t t = (int32_t)(w[i] * inverse + (float)CLB_NEAREST_ORIGIN);

        t = t < 0 ? 0 : t;
        at[i] = t < CLB_NEAREST_SIZE ? t : CLB_NEAREST_SIZE - 1;
    }
    for (int i = 0; i < CLB_GROUP; i++)
        v[i] = n->value[at[i]];
    for (int i = 0; i < CLB_GROUP; i += LANES)
        for (int k = 0; k < LANES; k++) {
            dot[k] += w[i + k] * v[i + k];
            square[k] += v[i + k] * v[i + k];
        }
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) {
            dot[k] += dot[k + half];
            square[k] += square[k + half];
        }
    *explained = square[0] > 0 ? dot[0] * (dot[0] / square[0]) : 0;
    return square[0] > 0 ? dot[0] / square[0] : 0;
}

/* Codes for the scale as stored; the squared error. */
static double encode(const struct clb_nearest *n, uint8_t *code, const float *w, uint16_t stored)
{
    double scale = (double)clb_f16_to_f32(stored), error = 0;

    for (int i = 0; i < CLB_GROUP; i++) {
        double t = 2 * (double)w[i] / scale;
        int k = (int)(t < -300 ? -300 : t > 300 ? 300 : t);

        k -= (double)k > t; /* towards minus infinity */
        code[i] = n->code[k + CLB_NEAREST_ORIGIN];
        t = (double)w[i] - scale * (double)n->value[k + CLB_NEAREST_ORIGIN];
        error += t * t;
    }
    return error;
}

/* Tries scales that put the largest weight at, below and beyond either end of the book. */
static float search(const struct clb_nearest *n, const float *w, float extreme)
{
    float best = 0, most = -1;

    for (int side = 0; side < 2; side++) {
        float end = side ? (float)n->highest : (float)n->lowest;

        for (int k = 0; k < TRIES; k++) {
            float explained,
                s = refit(n, w, extreme / (end * (0.80f + 0.05f * (float)k)), &explained);

            if (explained > most) {
                most = explained;
                best = s;
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        float explained, s = refit(n, w, best, &explained);

        if (!(explained > most))
            break;
        most = explained;
        best = s;
    }
    return best;
}

uint16_t clb_int4_group(const struct clb_nearest *n, uint8_t code[CLB_GROUP],
                        const float w[CLB_GROUP], struct clb_loss *loss)
{
    float extreme = 0;
    double signal = 0;
    uint16_t scale;

    for (int i = 0; i < CLB_GROUP; i++) {
        extreme = fabsf(w[i]) > fabsf(extreme) ? w[i] : extreme;
        signal += (double)w[i] * (double)w[i];
    }
    scale = extreme != 0 ? clb_f32_to_f16(search(n, w, extreme)) : 0;
    loss->signal += signal;
    if ((scale & 0x7fff) != 0) {
        loss->noise += encode(n, code, w, scale);
        return scale;
    }
    memset(code, n->zero, CLB_GROUP);
    loss->noise += signal;
    return 0;
}
