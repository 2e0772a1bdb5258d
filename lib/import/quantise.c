#include "lib/import/quantise.h"

#include <float.h>
#include <math.h>

#include "lib/base/fmath.h"
#include "lib/base/half.h"

void clb_loss_add(struct clb_loss *sum, const struct clb_loss *l)
{
    sum->values += l->values;
    sum->signal += l->signal;
    sum->noise += l->noise;
    sum->underflows += l->underflows;
}

double clb_loss_sqnr(const struct clb_loss *l)
{
    return l->noise > 0 ? 10 * clb_log(l->signal / l->noise) / clb_log(10) : INFINITY;
}

float clb_int8_scale(float max_abs)
{
    float s = max_abs / 127.0f;

    return s < FLT_MIN ? 0 : s;
}

float clb_pack_limit(enum clb_dtype t)
{
    if (t == CLB_F16)
        return 65504.0f;
    if (t == CLB_BF16)
        return 0x1.FEp127f;
    return t == CLB_INT4 ? CLB_INT4_LIMIT : FLT_MAX;
}

static const void *element(const void *x, enum clb_dtype from, size_t i)
{
    return (const char *)x + i * clb_rows_bytes(from, 1, 1);
}

bool clb_find_beyond(const struct clb_pack_kernels *k, const void *x, enum clb_dtype from, size_t n,
                     float limit, size_t *at, float *value)
{
    enum { BLOCK = 4096 };
    uint32_t most = clb_f32_bits(limit);

    for (size_t i = 0; i < n; i += BLOCK) {
        size_t some = n - i < BLOCK ? n - i : BLOCK;

        if (k->largest(element(x, from, i), from, some) <= most)
            continue;
        while (k->largest(element(x, from, i), from, 1) <= most)
            i++;
        k->widen(value, element(x, from, i), from, 1);
        *at = i;
        return true;
    }
    return false;
}

float clb_int8_row_scale(const struct clb_pack_kernels *k, const void *x, enum clb_dtype from,
                         uint32_t n)
{
    static const float steps[CLB_INT8_TRIES] = { 127.0f, 127.5f, 128.0f, 128.5f };
    float max = clb_f32_from_bits(k->largest(x, from, n)), best = clb_int8_scale(max);
    float inverse[CLB_INT8_TRIES], noise[CLB_INT8_TRIES], least = FLT_MAX;

    if (best == 0)
        return best;
    for (int i = 0; i < CLB_INT8_TRIES; i++)
        inverse[i] = steps[i] / max;
    k->int8_noise(noise, x, from, n, inverse);
    for (int i = 0; i < CLB_INT8_TRIES; i++) {
        float error = noise[i] / (steps[i] * steps[i]);

        if (error < least && max / steps[i] >= FLT_MIN) {
            least = error;
            best = max / steps[i];
        }
    }
    return best;
}

static bool within_limit(const struct clb_pack *p, const struct clb_rows *m)
{
    uint32_t most = p->kernels->largest(m->x, m->from, (size_t)m->n_row * m->cols);

    return most <= clb_f32_bits(clb_pack_limit(p->dtype));
}

static void pack_int8(const struct clb_pack *p, uint8_t *tile, float *row_scale,
                      const struct clb_rows *m, struct clb_loss *loss)
{
    for (uint32_t r = 0; r < CLB_TILE && !p->given_scale; r++)
        row_scale[r] = r < m->n_row
                           ? clb_int8_row_scale(p->kernels,
                                                element(m->x, m->from, (size_t)r * m->cols),
                                                m->from, m->cols)
                           : 0;
    p->kernels->int8(tile, m, row_scale, loss);
}

bool clb_pack_tile(const struct clb_pack *p, uint8_t *tile, float *row_scale,
                   const struct clb_rows *m, struct clb_loss *loss)
{
    const struct clb_pack_kernels *k = p->kernels;

    if (!within_limit(p, m))
        return false;
    loss->values += (uint64_t)m->n_row * m->cols;
    if (p->dtype == CLB_INT8)
        pack_int8(p, tile, row_scale, m, loss);
    else if (p->dtype == CLB_INT4)
        k->int4(tile, m, p->book, loss);
    else
        k->floats(tile, m, p->dtype, loss);
    return true;
}
