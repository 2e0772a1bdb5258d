/* cuda_dense.c - plain products of bf16 and fp16 matrices by cuBLASLt, where that is asked for. It
 * cannot read tiles: such a matrix is row-major on the device, and then every product with it goes
 * through the library, of one row or of many. For each shape of a matrix one algorithm is chosen,
 * without splits of K, and serves any number of rows: bits must not depend on that. */
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "lib/base/mem.h"

enum { USUAL_ROWS = 64, CHOICES = 8 };

static bool lt_ok(const struct clb_backend *be, int status, struct clb_err *err, const char *what)
{
    return status == CLB_LT_SUCCESS || clb_fail(err, CLB_DEVICE, "cuBLASLt: %s: %s", what,
                                                be->dense_lib.blas.status_text(status));
}

static int element(enum clb_dtype t)
{
    return t == CLB_F16 ? CLB_LT_R_16F : CLB_LT_R_16BF;
}

/* -- which matrices ---------------------------------------------------------------------------- */

static bool takes(const struct clb_matrix *m)
{
    return m->tiles && !m->bias && (m->dtype == CLB_F16 || m->dtype == CLB_BF16) &&
           m->rows >= CLB_TILE && m->rows % 8 == 0 && m->cols % 8 == 0;
}

const struct clb_cuda_blas_plan *clb_cuda_dense_plan(const struct clb_backend *be,
                                                     const struct clb_matrix *m)
{
    const struct clb_cuda_dense *d = &be->dense_lib;

    for (uint32_t i = 0; i < d->n_plan && takes(m); i++)
        if (d->plan[i].dtype == m->dtype && d->plan[i].rows == m->rows &&
            d->plan[i].cols == m->cols)
            return &d->plan[i];
    return NULL;
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

        d->blas.algo_get(&r[i].algo, CLB_LT_CONFIG_SPLITK, &split, sizeof split, NULL);
        d->blas.algo_get(&r[i].algo, CLB_LT_CONFIG_REDUCTION, &scheme, sizeof scheme, NULL);
        if (split > 1 || scheme)
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

/* -- open, upload ------------------------------------------------------------------------------ */

bool clb_cuda_dense_open(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_dense *d = &be->dense_lib;
    int transposed = CLB_LT_OP_T;

    if (!clb_cuda_blas_open(&d->blas))
        return clb_fail(err, CLB_UNSUPPORTED,
                        "dense matrices by cuBLASLt: %s; install it, or leave them to the kernels "
                        "of this program",
                        d->blas.lib.reason);
    d->asked = true;
    return lt_ok(be, d->blas.create(&d->handle), err, "starting") &&
           lt_ok(be, d->blas.desc_create(&d->desc, CLB_LT_COMPUTE_32F, CLB_LT_R_32F), err,
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
    *d = (struct clb_cuda_dense){ 0 };
}

/* Tiles of 16-bit floats to rows, over where the tiles are on the device. */
static bool send_rows(struct clb_backend *be, const struct clb_matrix *m, struct clb_err *err)
{
    uint64_t tile_bytes = clb_tile_bytes(m->dtype, m->cols), row_bytes = 2ull * m->cols;
    uint8_t *to = clb_new(m->rows, row_bytes, err);

    if (!to)
        return false;
    for (uint32_t r = 0; r < m->rows; r++) {
        const uint8_t *from = m->tiles + r / CLB_TILE * tile_bytes + r % CLB_TILE * 4;

        for (uint32_t step = 0; step < m->cols / 2; step++)
            memcpy(to + r * row_bytes + step * 4, from + (size_t)step * 64, 4);
    }
    bool ok = clb_cuda_send(&be->link, (uint8_t *)(uintptr_t)clb_cuda_there(be, m->tiles), to,
                            m->rows * row_bytes, err);
    clb_free(to);
    return ok;
}

static bool send_one(struct clb_backend *be, const struct clb_matrix *m, struct clb_err *err)
{
    if (!takes(m))
        return true;
    if (!clb_cuda_dense_plan(be, m) && !add_plan(be, m, err))
        return false;
    return !clb_cuda_dense_plan(be, m) || send_rows(be, m, err);
}

bool clb_cuda_dense_send(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_weights *w = be->host;

    if (!be->dense_lib.asked)
        return true;
    for (uint32_t i = 0; i < w->arch->n_layer; i++) {
        const struct clb_layer *l = &w->layer[i];
        /* those that clb_cuda_linear multiplies alone */
        const struct clb_matrix *const m[] = {
            &l->q, &l->k, &l->v, &l->o, &l->q_a, &l->kv_a, &l->shared[CLB_DOWN], &l->dense[CLB_DOWN]
        };

        for (size_t k = 0; k < sizeof m / sizeof *m; k++)
            if (!send_one(be, m[k], err))
                return clb_fail_in(err, "layer %u", i);
    }
    return send_one(be, &w->output, err);
}

/* -- a product --------------------------------------------------------------------------------- */

void clb_cuda_dense_run(struct clb_backend *be, struct clb_acts *x,
                        const struct clb_cuda_blas_plan *p, const struct clb_cuda_linear *l)
{
    const struct clb_cuda_blas *b = &be->dense_lib.blas;
    const float one = 1, zero = 0;
    struct clb_err err = { 0 };
    void *rows, *out;
    bool ok = row_layouts(be, p, l->n_row, l->ld_in, l->ldy, &rows, &out, &err);

    if (ok)
        ok =
            lt_ok(be,
                  b->matmul(be->dense_lib.handle, be->dense_lib.desc, &one, l->w->tiles, p->weights,
                            l->in, rows, &zero, l->y, out, l->y, out, &p->algo, NULL, 0, x->stream),
                  &err, "a product");
    drop_layouts(be, rows, out);
    if (!ok && !x->failed.code)
        x->failed = err; /* the stage tells it */
}
