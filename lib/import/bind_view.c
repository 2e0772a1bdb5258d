/* bind_view.c - how a tensor of the checkpoint holds what it is for: its shape, its type, its
 * scales, and where each element of the model's matrices is. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/bind_impl.h"

/* -- scales ---------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);

    return n > k && !strcmp(name + n - k, end);
}

/* The tensor whose name has one end instead of another; NULL: there is none. */
static const struct clb_ckpt_tensor *sibling(const struct clb_checkpoint *c, const char *name,
                                             const char *end, const char *other)
{
    char buf[512];

    if (!ends_with(name, end) && *end)
        return NULL;
    if ((size_t)snprintf(buf, sizeof buf, "%.*s%s", (int)(strlen(name) - strlen(end)), name,
                         other) >= sizeof buf)
        return NULL;
    return clb_checkpoint_find(c, buf);
}

static const char of_fp8[] = "_scale_inv", blocks[] = "_blocks", scales[] = "_scales";

bool clb_bind_is_scale(const struct clb_binder *x, const struct clb_ckpt_tensor *t)
{
    const struct clb_ckpt_tensor *of = sibling(x->ckpt, t->t->name, of_fp8, "");
    uint32_t number[2];

    if (of)
        return of->t->dtype == CLB_ST_F8_E4M3;
    of = sibling(x->ckpt, t->t->name, scales, blocks);
    if (!of)
        return false;
    const struct clb_family_tensor *line = clb_family_match(x->family, of->t->name, number);
    return line && line->form & CLB_BLOCKS;
}

/* -- shapes ---------------------------------------------------------------------------------- */

struct shape {
    uint64_t n[CLB_ST_RANK];
    uint32_t rank;
};

static void put(struct shape *s, uint64_t n)
{
    s->n[s->rank++] = n;
}

static bool same_shape(const struct clb_st_tensor *t, const struct shape *s)
{
    return t->rank == s->rank && !memcmp(t->shape, s->n, s->rank * sizeof *s->n);
}

static bool has_shape(const struct clb_binder *x, const struct clb_ckpt_tensor *t,
                      const struct shape *want)
{
    char found[CLB_ST_SHAPE_TEXT], expected[CLB_ST_SHAPE_TEXT];

    if (same_shape(t->t, want))
        return true;
    clb_problem(x->problems, "tensor '%s' has shape %s, but %s is expected", t->t->name,
                clb_st_shape_text(found, t->t->shape, t->t->rank),
                clb_st_shape_text(expected, want->n, want->rank));
    return false;
}

static bool is_float(const struct clb_ckpt_tensor *t)
{
    enum clb_st_dtype d = t->t->dtype;

    return d == CLB_ST_F32 || d == CLB_ST_F16 || d == CLB_ST_BF16;
}

static uint64_t all_rows(const struct clb_claim *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->n; i++)
        n += c->rows[i];
    return n;
}

/* -- types ----------------------------------------------------------------------------------- */

static uint64_t blocks_of(uint64_t n, uint32_t block)
{
    return (n + block - 1) / block;
}

/* F8_E4M3: the scales are there and have the shape of the blocks. Fills them in. */
static bool take_fp8(const struct clb_binder *x, const struct clb_claim *c, struct clb_view *v)
{
    const struct clb_quant *q = &x->extra->quant;
    const struct clb_st_tensor *t = c->t->t;
    struct shape want = { .rank = 0 };

    if (q->method != CLB_QUANT_FP8) {
        clb_problem(x->problems,
                    "tensor '%s' is stored as F8_E4M3, but config.json has no "
                    "'quantization_config' with 'quant_method' fp8",
                    t->name);
        return false;
    }
    v->scale = sibling(x->ckpt, t->name, "", of_fp8);
    v->block_rows = q->block_rows;
    v->block_cols = q->block_cols;
    if (!v->scale) {
        clb_problem(x->problems, "tensor '%s%s' is missing: '%s' is stored as F8_E4M3", t->name,
                    of_fp8, t->name);
        return false;
    }
    if (c->stacked)
        put(&want, c->slices);
    put(&want, blocks_of(t->shape[t->rank - 2], q->block_rows));
    put(&want, blocks_of(t->shape[t->rank - 1], q->block_cols));
    if (!is_float(v->scale)) {
        clb_problem(x->problems, "tensor '%s' is stored as %s, but F32, F16 or BF16 is expected",
                    v->scale->t->name, clb_st_dtype_name(v->scale->t->dtype));
        return false;
    }
    return has_shape(x, v->scale, &want);
}

/* MXFP4: bytes, and one for each 32 inputs. */
static bool take_mxfp4(const struct clb_binder *x, const struct clb_claim *c, struct clb_view *v)
{
    const struct clb_st_tensor *t = c->t->t;
    struct shape want = { .rank = 0 };

    v->scale = sibling(x->ckpt, t->name, blocks, scales);
    if (x->extra->quant.method != CLB_QUANT_MXFP4) {
        clb_problem(x->problems,
                    "tensor '%s' holds MXFP4 blocks, but config.json has no "
                    "'quantization_config' with 'quant_method' mxfp4",
                    t->name);
        return false;
    }
    if (!v->scale) {
        clb_problem(x->problems, "tensor '%s' has no tensor of scales, '..._scales'", t->name);
        return false;
    }
    if (c->stacked)
        put(&want, c->slices);
    put(&want, all_rows(c));
    put(&want, c->cols / CLB_GROUP);
    if (t->dtype != CLB_ST_U8 || v->scale->t->dtype != CLB_ST_U8) {
        clb_problem(x->problems, "tensor '%s' is stored as %s and '%s' as %s, but U8 is expected",
                    t->name, clb_st_dtype_name(t->dtype), v->scale->t->name,
                    clb_st_dtype_name(v->scale->t->dtype));
        return false;
    }
    return has_shape(x, v->scale, &want);
}

/* fits: the shape is the expected one, so that scales can be asked for theirs. */
static bool take_type(const struct clb_binder *x, const struct clb_claim *c, bool fits,
                      struct clb_view *v)
{
    bool matrix = c->kind == CLB_CLAIM_MATRIX || c->kind == CLB_CLAIM_KV_B;

    if (c->form & CLB_BLOCKS)
        return fits && take_mxfp4(x, c, v);
    if (matrix && c->t->t->dtype == CLB_ST_F8_E4M3)
        return fits && take_fp8(x, c, v);
    if (is_float(c->t))
        return true;
    clb_problem(x->problems, "tensor '%s' is stored as %s, but F32, F16 or BF16 is expected",
                c->t->t->name, clb_st_dtype_name(c->t->t->dtype));
    return false;
}

/* -- views ----------------------------------------------------------------------------------- */

static bool check_shape(const struct clb_binder *x, const struct clb_claim *c)
{
    const struct clb_st_tensor *t = c->t->t;
    uint64_t rows = all_rows(c);
    struct shape want = { .rank = 0 };

    if (c->stacked)
        put(&want, c->slices);
    if (c->kind == CLB_CLAIM_VECTOR) {
        put(&want, rows);
        if (!c->stacked && t->rank == 2 && t->shape[0] == 1 && t->shape[1] == rows)
            return true; /* a vector may be published as a row */
        return has_shape(x, c->t, &want);
    }
    put(&want, c->form & CLB_TRANSPOSED ? c->cols : rows);
    put(&want, c->form & CLB_TRANSPOSED ? rows : c->cols);
    if (c->form & CLB_BLOCKS) {
        if (c->cols % CLB_GROUP) {
            clb_problem(x->problems, "tensor '%s': %u inputs are no multiple of %d", t->name,
                        c->cols, CLB_GROUP);
            return false;
        }
        want.n[want.rank - 1] = c->cols / CLB_GROUP;
        put(&want, CLB_GROUP / 2);
    }
    return has_shape(x, c->t, &want);
}

/* k_up: of each head the first rows, turned; v_up: of each head the others. */
static void view_kv_b(const struct clb_arch *a, const struct clb_claim *c,
                      const struct clb_view *common)
{
    uint32_t nope = a->qk_nope_dim, value = a->value_dim, latent = a->kv_lora_rank;
    struct clb_view *k = c->view[0], *v = c->view[1];

    *k = *v = *common;
    k->group_step = v->group_step = (uint64_t)(nope + value) * latent;
    k->line = v->line = latent;
    k->rows = a->n_head * latent;
    k->cols = nope;
    k->group_rows = latent;
    k->row_step = 1;
    k->col_step = latent;
    v->rows = a->n_head * value;
    v->cols = latent;
    v->group_rows = value;
    v->row_step = latent;
    v->col_step = 1;
    v->first = (uint64_t)nope * latent;
}

/* The i-th of the matrices of slice e. */
static struct clb_view view_of(const struct clb_claim *c, const struct clb_view *common, uint32_t i,
                               uint32_t e)
{
    uint64_t all = all_rows(c), before = 0;
    bool turned = c->form & CLB_TRANSPOSED, takes_turns = c->form & CLB_INTERLEAVED;
    struct clb_view v = *common;

    for (uint32_t k = 0; k < i; k++)
        before += c->rows[k];
    v.slice = e;
    v.line = (uint32_t)(turned ? all : c->cols);
    v.row_step = (turned ? 1 : c->cols) * (uint64_t)(takes_turns ? c->n : 1);
    v.col_step = turned ? all : 1;
    v.first = e * all * c->cols + (takes_turns ? i : before) * (turned ? 1 : c->cols);
    v.rows = v.group_rows = c->rows[i];
    v.cols = c->cols;
    if (c->kind == CLB_CLAIM_VECTOR) { /* lies there as a column, is read as a row */
        v.cols = v.rows;
        v.rows = v.group_rows = 1;
        v.col_step = v.row_step;
        v.row_step = v.cols;
        v.line = 0;
    }
    return v;
}

void clb_bind_views(const struct clb_binder *x, const struct clb_claim *c)
{
    struct clb_view common = { .t = c->t, .slices = c->slices };
    bool fits = check_shape(x, c);

    for (uint32_t i = 0; i < c->n; i++) /* not missing, whatever is wrong with it */
        for (uint32_t e = 0; e < c->slices; e++)
            c->view[i][e * CLB_PARTS].t = c->t;
    if (!take_type(x, c, fits, &common) || !fits)
        return;
    if (c->kind == CLB_CLAIM_KV_B) {
        view_kv_b(x->arch, c, &common);
        return;
    }
    for (uint32_t i = 0; i < c->n; i++)
        for (uint32_t e = 0; e < c->slices; e++)
            c->view[i][e * CLB_PARTS] = view_of(c, &common, i, e);
}

/* -- who reads what for the checksum --------------------------------------------------------- */

struct counter {
    const struct clb_binding *b;
    const struct clb_checkpoint *c;
    bool *seen; /* [slices] */
};

static bool first_to_see(const struct counter *k, const struct clb_ckpt_tensor *t, uint32_t slice)
{
    bool *seen = &k->seen[k->b->slice_at[t - k->c->tensor] + slice], first = !*seen;

    *seen = true;
    return first;
}

static void count(const struct counter *k, struct clb_view *v)
{
    if (!v->t)
        return;
    v->counts = first_to_see(k, v->t, v->slice);
    v->scale_counts = v->scale && first_to_see(k, v->scale, v->slice);
}

static void note_slices(struct clb_binding *b, const struct clb_checkpoint *c,
                        const struct clb_view *v)
{
    if (!v->t)
        return;
    b->slice_at[v->t - c->tensor + 1] = v->slices;
    if (v->scale)
        b->slice_at[v->scale - c->tensor + 1] = v->slices;
}

bool clb_bind_count(struct clb_binding *b, const struct clb_checkpoint *c, struct clb_err *err)
{
    struct counter k = { b, c, NULL };
    uint64_t n = 0;

    for (uint32_t i = 1; i <= c->n_tensor; i++)
        b->slice_at[i] = 1;
    for (uint32_t i = 0; i < b->n_dense; i++)
        note_slices(b, c, &b->dense[i]);
    for (uint32_t i = 0; i < b->n_expert_part; i++) {
        note_slices(b, c, &b->expert[i]);
        if (b->bias)
            note_slices(b, c, &b->bias[i]);
    }
    for (uint32_t i = 1; i <= c->n_tensor; i++)
        n += b->slice_at[i];
    if (n > INT32_MAX)
        return clb_fail(err, CLB_UNSUPPORTED, "%s: too many tensors", c->dir);
    for (uint32_t i = 1; i <= c->n_tensor; i++)
        b->slice_at[i] += b->slice_at[i - 1];
    if (!(k.seen = clb_new(n, sizeof *k.seen, err)))
        return false;
    for (uint32_t i = 0; i < b->n_dense; i++)
        count(&k, &b->dense[i]);
    for (uint32_t i = 0; i < b->n_expert_part; i++) {
        count(&k, &b->expert[i]);
        if (b->bias)
            count(&k, &b->bias[i]);
    }
    clb_free(k.seen);
    return true;
}
