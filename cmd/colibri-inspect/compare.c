/* compare.c - values of two models, dequantised. One thread compares one matrix, so sums do not
 * depend on the number of threads. */
#include "cmd/colibri-inspect/compare.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/cli/report.h"

/* -- a file as a side ------------------------------------------------------------------------- */

static bool file_get(const void *model, const struct compare_item *item, struct compare_rows *out)
{
    const struct clb_reader *r = model;

    if (item->expert != UINT32_MAX) {
        const struct clb_expert_layer *x = clb_reader_experts(r, item->spec.layer);
        if (!x || item->expert >= x->count)
            return false;
        struct clb_matrix m =
            clb_expert_matrix(r, x, item->part, r->data + x->offset[item->expert]);

        if (item->bias && !m.bias)
            return false;
        if (item->bias)
            m = (struct clb_matrix){
                .dtype = CLB_F32, .rows = 1, .cols = m.rows, .tiles = (const uint8_t *)m.bias
            };
        *out = (struct compare_rows){ .tiled = !item->bias, .m = m };
    } else {
        const struct clb_tensor *t = clb_reader_find(r, item->spec.role, item->spec.layer);
        if (!t)
            return false;
        *out = (struct compare_rows){ .tiled = t->spec.form == CLB_FORM_MATRIX ||
                                               t->spec.form == CLB_FORM_ROUTER,
                                      .m = clb_reader_matrix(r, t) };
    }
    out->dtype = clb_dtype_name(out->m.dtype);
    out->rows = out->m.rows;
    out->cols = out->m.cols;
    return true;
}

static bool file_row(struct compare_rows *rows, uint32_t row, float *out, struct clb_err *err)
{
    const struct clb_matrix *m = &rows->m;
    const uint8_t *p;
    uint16_t h;

    (void)err;
    if (rows->tiled) {
        clb_matrix_row(m, row, out);
        return true;
    }
    p = m->tiles + clb_rows_bytes(m->dtype, row, m->cols);
    if (m->dtype == CLB_F32) {
        memcpy(out, p, sizeof(float) * m->cols);
        return true;
    }
    for (uint32_t c = 0; c < m->cols; c++) {
        memcpy(&h, p + 2 * (size_t)c, 2);
        out[c] = m->dtype == CLB_BF16 ? clb_bf16_to_f32(h) : clb_f16_to_f32(h);
    }
    return true;
}

struct compare_side compare_file(const struct clb_reader *r)
{
    return (struct compare_side){ .model = r, .get = file_get, .row = file_row };
}

/* -- one matrix ------------------------------------------------------------------------------- */

/* How far rounding to b's type can take a value; INFINITY where that has no simple bound. An int8
 * row's scale may clip its largest weights by 1.5 codes (clb_int8_row_scale). */
static double rounding(const struct compare_rows *b, uint32_t row, double a)
{
    double scale;

    switch (b->m.dtype) {
    case CLB_F32:
        return 0;
    case CLB_BF16:
        return fabs(a) / 256 + (double)FLT_MIN;
    case CLB_F16:
        return fabs(a) / 2048 + 0x1p-25;
    case CLB_INT8:
        scale = (double)b->m.row_scale[row];
        return (fabs(a) > 127 * scale ? 1.501 : 0.501) * scale + 128 * (double)FLT_MIN;
    default:
        return INFINITY;
    }
}

static void compare_row(struct compare_result *x, const struct compare_rows *b, uint32_t row,
                        const float *va, const float *vb)
{
    for (uint32_t c = 0; c < b->cols; c++) {
        double d = fabs((double)va[c] - (double)vb[c]);
        x->signal += (double)va[c] * (double)va[c];
        if (d == 0 || (isnan(va[c]) && isnan(vb[c])))
            continue;
        x->noise += d * d;
        x->beyond += !(d <= rounding(b, row, (double)va[c]));
        if (!(d <= x->most)) { /* NaN counts as the largest */
            x->most = isnan(d) ? INFINITY : d;
            x->row = row;
            x->col = c;
        }
    }
}

struct work {
    const struct compare_side *a, *b;
    const struct compare_item *item;
    struct compare_result *result;
    uint32_t n, cols;
    float *row; /* [threads][2][cols] */
    atomic_uint next;
    _Atomic uint64_t done;
    pthread_mutex_t lock;
    struct clb_err *err;
    atomic_bool failed;
};

static bool compare_values(const struct work *w, struct compare_rows *a, struct compare_rows *b,
                           struct compare_result *x, float *va, float *vb, struct clb_err *err)
{
    bool ok = true;

    x->dtype[1] = b->dtype;
    x->shape = a->rows != b->rows || a->cols != b->cols;
    for (uint32_t r = 0; ok && !x->shape && r < a->rows; r++) {
        ok = w->a->row(a, r, va, err) && w->b->row(b, r, vb, err);
        if (ok)
            compare_row(x, b, r, va, vb);
    }
    if (w->b->done)
        w->b->done(b);
    return ok;
}

static bool compare_one(struct work *w, uint32_t i, float *va, float *vb, struct clb_err *err)
{
    struct compare_result *x = &w->result[i];
    struct compare_rows a, b;
    bool ok = true;

    *x = (struct compare_result){ .dtype = { "", "" } };
    if (!w->a->get(w->a->model, &w->item[i], &a))
        return true;
    x->dtype[0] = a.dtype;
    x->missing = !w->b->get(w->b->model, &w->item[i], &b);
    if (!x->missing)
        ok = compare_values(w, &a, &b, x, va, vb, err);
    if (w->a->done)
        w->a->done(&a);
    clb_progress_at(atomic_fetch_add(&w->done, (uint64_t)a.rows * a.cols) +
                    (uint64_t)a.rows * a.cols);
    return ok;
}

static void compare_thread(void *arg, unsigned thread, unsigned n_thread)
{
    struct work *w = arg;
    float *va = w->row + (size_t)thread * 2 * w->cols, *vb = va + w->cols;
    struct clb_err err;
    uint32_t i;

    (void)n_thread;
    while (clb_take(&w->next, w->n, &i) && !w->failed) {
        if (compare_one(w, i, va, vb, &err))
            continue;
        pthread_mutex_lock(&w->lock);
        if (!w->failed)
            *w->err = err;
        w->failed = true;
        pthread_mutex_unlock(&w->lock);
    }
}

bool compare_all(const struct compare_side *a, const struct compare_side *b,
                 const struct compare_item *item, uint32_t n, struct compare_result *result,
                 bool quiet, struct clb_err *err)
{
    struct work w = {
        .a = a, .b = b, .item = item, .result = result, .n = n, .cols = 1, .err = err
    };
    unsigned n_thread = clb_pool_default_threads(NULL, 0);
    struct clb_pool *pool = NULL;
    uint64_t total = 0;
    bool ok = false;

    pthread_mutex_init(&w.lock, NULL);
    for (uint32_t i = 0; i < n; i++) {
        w.cols = item[i].spec.cols > w.cols ? item[i].spec.cols : w.cols;
        total += (uint64_t)item[i].spec.rows * item[i].spec.cols;
    }
    w.row = clb_new((size_t)n_thread * 2, w.cols * sizeof *w.row, err);
    if (!w.row || !clb_pool_new(&pool, n_thread, err))
        goto done;
    clb_progress_start("comparing", total, quiet);
    clb_pool_run(pool, compare_thread, &w);
    clb_progress_done();
    ok = !w.failed;
done:
    clb_pool_free(pool);
    clb_free(w.row);
    pthread_mutex_destroy(&w.lock);
    return ok;
}

/* -- what there is to compare ----------------------------------------------------------------- */

static struct compare_item part_item(const struct clb_expert_layer *x, uint32_t expert,
                                     enum clb_part part, bool bias)
{
    const struct clb_expert_part *p = &x->part[part];

    return (struct compare_item){ .spec = { .form = bias ? CLB_FORM_VECTOR : CLB_FORM_MATRIX,
                                            .layer = x->layer,
                                            .rows = bias ? 1 : p->rows,
                                            .cols = bias ? p->rows : p->cols },
                                  .expert = expert,
                                  .part = part,
                                  .bias = bias };
}

bool compare_items(const struct clb_reader *r, struct compare_item **item, uint32_t *n,
                   struct clb_err *err)
{
    uint32_t total = r->n_tensors;
    struct compare_item *x;

    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        total += r->experts[l].count * CLB_PARTS * (r->arch.expert_bias ? 2 : 1);
    *n = total;
    *item = x = clb_new(total, sizeof *x, err);
    if (!x)
        return false;
    for (uint32_t i = 0; i < r->n_tensors; i++)
        *x++ =
            (struct compare_item){ .spec = r->tensors[i].spec, .index = i, .expert = UINT32_MAX };
    for (uint32_t l = 0; l < r->n_expert_layers; l++) /* one part after the other: lines are runs */
        for (int p = 0; p < CLB_PARTS; p++)
            for (int bias = 0; bias < (r->arch.expert_bias ? 2 : 1); bias++)
                for (uint32_t e = 0; e < r->experts[l].count; e++)
                    *x++ = part_item(&r->experts[l], e, (enum clb_part)p, bias);
    return true;
}

/* -- lines ------------------------------------------------------------------------------------ */

double compare_sqnr(const struct compare_result *r)
{
    return r->noise > 0 ? 10 * log10(r->signal / r->noise) : INFINITY;
}

bool compare_differs(const struct compare_result *r)
{
    return r->missing || r->shape || r->most > 0;
}

static bool same_line(const struct compare_item *a, const struct compare_item *b)
{
    return a->expert != UINT32_MAX && b->expert != UINT32_MAX && a->spec.layer == b->spec.layer &&
           a->part == b->part && a->bias == b->bias;
}

static void add_to_line(struct compare_line *line, const struct compare_item *item,
                        const struct compare_result *x)
{
    struct compare_result *all = &line->all;
    double signal = all->signal + x->signal, noise = all->noise + x->noise;
    uint64_t beyond = all->beyond + x->beyond;
    bool missing = all->missing || x->missing, shape = all->shape || x->shape;

    if (!line->count || x->most > all->most) {
        *all = *x;
        line->expert = item->expert;
    }
    all->signal = signal;
    all->noise = noise;
    all->beyond = beyond;
    all->missing = missing;
    all->shape = shape;
    line->count++;
    line->differ += compare_differs(x);
}

bool compare_lines(const struct compare_item *item, const struct compare_result *result, uint32_t n,
                   struct compare_line **line, uint32_t *n_line, struct clb_err *err)
{
    struct compare_line *x = clb_new(n, sizeof *x, err);

    *line = x;
    *n_line = 0;
    for (uint32_t i = 0; x && i < n; i++) {
        if (!i || !same_line(&item[i - 1], &item[i])) {
            x = &(*line)[(*n_line)++];
            if (item[i].expert == UINT32_MAX)
                clb_spec_name(&item[i].spec, x->name);
            else
                snprintf(x->name, sizeof x->name, "layers.%u.experts.%s%s", item[i].spec.layer,
                         clb_part_name[item[i].part], item[i].bias ? "_bias" : "");
        }
        add_to_line(x, &item[i], &result[i]);
    }
    return *line != NULL;
}
