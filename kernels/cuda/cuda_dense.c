/* cuda_dense.c - products of dense matrices by cuBLASLt, where that is asked for: of bf16 and fp16
 * ones, and of int8 and int4 ones that are widened to f16. It cannot read tiles: such a matrix is
 * row-major on the device, and then every product with it goes through the library, of one row or
 * of many. For each shape of a matrix one algorithm is chosen, without splits of K, and serves any
 * number of rows: bits must not depend on that.
 *
 * What is widened has its scales in it, and a power of two of the matrix taken out (alpha), so that
 * its largest weight is near the top of f16: nothing overflows, and what is 2^29 times smaller than
 * the largest is still normal. The rounding of a weight to 11 bits is all that is lost. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"

enum { USUAL_ROWS = 64, CHOICES = 8 };
enum { PIECE = 4 << 20 }; /* bytes that are widened at a time */

static bool lt_ok(const struct clb_backend *be, int status, struct clb_err *err, const char *what)
{
    return status == CLB_LT_SUCCESS || clb_fail(err, CLB_DEVICE, "cuBLASLt: %s: %s", what,
                                                be->dense_lib.blas.status_text(status));
}

static int element(enum clb_dtype t)
{
    return t == CLB_F16 ? CLB_LT_R_16F : CLB_LT_R_16BF;
}

/* The library's first choice that adds in one piece. */
static bool choose(struct clb_backend *be, struct clb_cuda_blas_plan *p, void *rows, void *out,
                   struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    struct clb_lt_result r[CHOICES];
    size_t workspace = 0;
    uint32_t none = 0;
    void *pref = NULL;
    int n = 0;

    if (!lt_ok(be, d->blas.pref_create(&pref), err, "a preference"))
        return false;
    bool ok =
        lt_ok(be, d->blas.pref_set(pref, CLB_LT_PREF_MAX_WORKSPACE, &workspace, sizeof workspace),
              err, "a preference") &&
        lt_ok(be, d->blas.pref_set(pref, CLB_LT_PREF_REDUCTION_MASK, &none, sizeof none), err,
              "a preference");
    if (ok && d->blas.heuristic(d->handle, d->desc, p->weights, rows, out, out, pref, CHOICES, r,
                                &n) != CLB_LT_SUCCESS)
        n = 0; /* the kernels of our own take it */
    d->blas.pref_destroy(pref);
    for (int i = 0; i < n; i++) {
        uint32_t split = 0, scheme = 0;

        if (r[i].state != CLB_LT_SUCCESS ||
            d->blas.algo_get(&r[i].algo, CLB_LT_CONFIG_SPLITK, &split, sizeof split, NULL) ||
            d->blas.algo_get(&r[i].algo, CLB_LT_CONFIG_REDUCTION, &scheme, sizeof scheme, NULL) ||
            split > 1 || scheme)
            continue;
        p->algo = r[i].algo;
        d->n_plan++;
        break;
    }
    return ok;
}

/* Layouts of n rows of activations and results. Column-major: a row is a column. */
static bool row_layouts(struct clb_backend *be, const struct clb_cuda_blas_plan *p, uint32_t n,
                        size_t ld_in, size_t ldy, void **rows, void **out, struct clb_err *err)
{
    const struct clb_cuda_blas *b = &be->dense_lib.blas;

    *rows = *out = NULL;
    return lt_ok(be, b->layout_create(rows, element(p->dtype), p->cols, n, (int64_t)ld_in), err,
                 "a layout") &&
           lt_ok(be, b->layout_create(out, CLB_LT_R_32F, p->rows, n, (int64_t)ldy), err,
                 "a layout");
}

static void drop_layouts(struct clb_backend *be, void *rows, void *out)
{
    if (rows)
        be->dense_lib.blas.layout_destroy(rows);
    if (out)
        be->dense_lib.blas.layout_destroy(out);
}

static bool add_plan(struct clb_backend *be, const struct clb_matrix *m, struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    struct clb_cuda_blas_plan *p = &d->plan[d->n_plan];
    uint32_t before = d->n_plan;
    void *rows, *out;

    if (d->n_plan == CLB_CUDA_PLANS)
        return true;
    *p = (struct clb_cuda_blas_plan){ .dtype = m->dtype, .rows = m->rows, .cols = m->cols };
    bool ok =
        lt_ok(be, d->blas.layout_create(&p->weights, element(m->dtype), m->cols, m->rows, m->cols),
              err, "a layout") &&
        row_layouts(be, p, USUAL_ROWS, clb_cuda_ld(m->cols), clb_cuda_ld(m->rows), &rows, &out,
                    err);
    if (ok) {
        ok = choose(be, p, rows, out, err);
        drop_layouts(be, rows, out);
    }
    if (d->n_plan == before && p->weights)
        d->blas.layout_destroy(p->weights);
    return ok;
}

/* -- open, close ------------------------------------------------------------------------------- */

bool clb_cuda_dense_open(struct clb_backend *be, bool widen, struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    int transposed = CLB_LT_OP_T;

    if (!clb_cuda_blas_open(&d->blas))
        return clb_fail(err, CLB_UNSUPPORTED,
                        "dense matrices by cuBLASLt: %s; install it, or leave them to the kernels "
                        "of this program",
                        d->blas.lib.reason);
    d->asked = true;
    d->widen = widen;
    int status = d->blas.create(&d->handle);
    if (status != CLB_LT_SUCCESS)
        return clb_fail(err, CLB_DEVICE,
                        "dense matrices by cuBLASLt: it does not start: %s; leave them to the "
                        "kernels of this program",
                        d->blas.status_text(status));
    return lt_ok(be, d->blas.desc_create(&d->desc, CLB_LT_COMPUTE_32F, CLB_LT_R_32F), err,
                 "a product") &&
           lt_ok(be, d->blas.desc_set(d->desc, CLB_LT_DESC_TRANSA, &transposed, sizeof transposed),
                 err, "a product");
}

void clb_cuda_dense_close(struct clb_backend *be)
{
    struct clb_cuda_dense *d = &be->dense_lib;

    for (uint32_t i = 0; i < d->n_plan; i++)
        d->blas.layout_destroy(d->plan[i].weights);
    if (d->desc)
        d->blas.desc_destroy(d->desc);
    if (d->handle)
        d->blas.destroy(d->handle);
    if (d->asked)
        clb_cuda_blas_close(&d->blas);
    clb_free(d->of);
    *d = (struct clb_cuda_dense){ 0 };
}

/* -- which matrices ---------------------------------------------------------------------------- */

/* As rows of the device. */
static enum clb_dtype dtype_there(const struct clb_backend *be, enum clb_dtype t)
{
    bool widened = be->dense_lib.widen && (t == CLB_INT8 || t == CLB_INT4);

    return widened ? CLB_F16 : t;
}

static bool takes(const struct clb_backend *be, const struct clb_matrix *m)
{
    enum clb_dtype t = dtype_there(be, m->dtype);

    return m->tiles && !m->bias && (t == CLB_F16 || t == CLB_BF16) && m->rows >= CLB_TILE &&
           m->rows % 8 == 0 && m->cols % 8 == 0;
}

static struct clb_cuda_blas_plan *find(struct clb_cuda_dense *d, enum clb_dtype t,
                                       const struct clb_matrix *m)
{
    for (uint32_t i = 0; i < d->n_plan; i++)
        if (d->plan[i].dtype == t && d->plan[i].rows == m->rows && d->plan[i].cols == m->cols)
            return &d->plan[i];
    return NULL;
}

/* The library multiplies m, if it can. */
static bool choose_one(struct clb_backend *be, const struct clb_matrix *m, struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    enum clb_dtype t = dtype_there(be, m->dtype);

    if (!takes(be, m))
        return true;
    uint32_t i = clb_cuda_tensor_at(be, m->tiles);
    const struct clb_matrix there = { .dtype = t, .rows = m->rows, .cols = m->cols };
    if (!find(d, t, m) && !add_plan(be, &there, err))
        return false;
    if (i == be->host->reader->n_tensors || !find(d, t, m))
        return true;
    d->of[i] = (struct clb_cuda_by_rows){ find(d, t, m), 1 };
    d->row_bytes += 2ull * m->rows * m->cols;
    d->file_bytes += be->host->reader->tensors[i].size;
    return true;
}

/* Gate and up are multiplied by the same kernels. */
static bool choose_pair(struct clb_backend *be, const struct clb_matrix part[CLB_PARTS],
                        struct clb_err *err)
{
    return !takes(be, &part[CLB_GATE]) || !takes(be, &part[CLB_UP]) ||
           (choose_one(be, &part[CLB_GATE], err) && choose_one(be, &part[CLB_UP], err));
}

static bool choose_layer(struct clb_backend *be, const struct clb_layer *l, struct clb_err *err)
{
    const struct clb_matrix *const m[] = {
        &l->q, &l->k, &l->v, &l->o, &l->q_a, &l->kv_a, &l->shared[CLB_DOWN], &l->dense[CLB_DOWN]
    };

    for (size_t k = 0; k < sizeof m / sizeof *m; k++)
        if (!choose_one(be, m[k], err))
            return false;
    return choose_pair(be, l->shared, err) && choose_pair(be, l->dense, err);
}

static void describe(struct clb_backend *be)
{
    const struct clb_cuda_dense *d = &be->dense_lib;
    size_t n = strlen(be->text);

    snprintf(be->text + n, sizeof be->text - n,
             "; cuBLASLt %d.%d.%d has %.1f MB of dense matrices%s", d->blas.lib.major,
             d->blas.lib.minor, d->blas.lib.patch, (double)d->row_bytes / 1e6,
             d->row_bytes > d->file_bytes ? " in f16" : "");
    n = strlen(be->text);
    if (d->row_bytes > d->file_bytes)
        snprintf(be->text + n, sizeof be->text - n, ", %.1f MB in the file",
                 (double)d->file_bytes / 1e6);
}

bool clb_cuda_dense_choose(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    const struct clb_weights *w = be->host;

    if (!d->asked)
        return true;
    d->of = clb_new(w->reader->n_tensors, sizeof *d->of, err);
    if (!d->of)
        return false;
    for (uint32_t i = 0; i < w->arch->n_layer; i++)
        if (!choose_layer(be, &w->layer[i], err))
            return clb_fail_in(err, "layer %u", i);
    if (!choose_one(be, &w->output, err))
        return false;
    describe(be);
    return true;
}

const struct clb_cuda_by_rows *clb_cuda_dense_of(const struct clb_backend *be,
                                                 const struct clb_matrix *m)
{
    const struct clb_cuda_dense *d = &be->dense_lib;

    if (!d->of || !m->tiles)
        return NULL;
    uint32_t i = clb_cuda_tensor_there(be, m->tiles);
    return i < be->host->reader->n_tensors && d->of[i].plan ? &d->of[i] : NULL;
}

/* -- upload ------------------------------------------------------------------------------------ */

/* The power of two to take out: int8 only, since int4 in f16 is what our own kernels multiply. */
static int exponent_of(const struct clb_matrix *m)
{
    float most = 0;
    int e;

    for (uint32_t r = 0; m->dtype == CLB_INT8 && r < m->rows; r++)
        most = fmaxf(most, fabsf(m->row_scale[r]) * 127);
    frexpf(most, &e);
    return most == 0 ? 0 : e - 15 < -100 ? -100 : e - 15; /* below 2^15, half of f16's range */
}

static void widen_row(uint16_t *to, float *row, const struct clb_matrix *m, uint32_t r,
                      float factor)
{
    clb_matrix_row(m, r, row);
    for (uint32_t c = 0; c < m->cols; c++)
        to[c] = m->dtype == CLB_BF16 ? clb_f32_to_bf16(row[c]) : clb_f32_to_f16(row[c] * factor);
}

bool clb_cuda_dense_send(struct clb_backend *be, uint32_t i, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;
    const struct clb_matrix m = clb_reader_matrix(r, &r->tensors[i]);
    const uint64_t row_bytes = 2ull * m.cols;
    uint32_t n = (uint32_t)(PIECE / row_bytes + 1);
    int e = exponent_of(&m);
    uint16_t *piece = clb_new(n, row_bytes, err);
    float *row = clb_new(m.cols, sizeof *row, err);
    bool ok = piece && row;

    be->dense_lib.of[i].alpha = ldexpf(1, e);
    for (uint32_t at = 0; ok && at < m.rows; at += n) {
        n = m.rows - at < n ? m.rows - at : n;
        for (uint32_t k = 0; k < n; k++)
            widen_row(piece + (size_t)k * m.cols, row, &m, at + k, ldexpf(1, -e));
        ok = clb_cuda_send(&be->link, be->dense + be->tensor_at[i] + at * row_bytes, piece,
                           n * row_bytes, err);
    }
    clb_free(piece);
    clb_free(row);
    return ok;
}

/* -- a product --------------------------------------------------------------------------------- */

void clb_cuda_dense_run(struct clb_backend *be, struct clb_acts *x,
                        const struct clb_cuda_by_rows *r, const struct clb_cuda_linear *l)
{
    const struct clb_cuda_blas *b = &be->dense_lib.blas;
    const struct clb_cuda_blas_plan *p = r->plan;
    const float zero = 0;
    struct clb_err err = { 0 };
    void *rows, *out;
    bool ok = row_layouts(be, p, l->n_row, l->ld_in, l->ldy, &rows, &out, &err);

    if (ok)
        ok = lt_ok(be,
                   b->matmul(be->dense_lib.handle, be->dense_lib.desc, &r->alpha, l->w->tiles,
                             p->weights, l->in, rows, &zero, l->y, out, l->y, out, &p->algo, NULL,
                             0, x->stream),
                   &err, "a product");
    drop_layouts(be, rows, out);
    if (!ok && !x->failed.code)
        x->failed = err; /* the stage tells it */
}
