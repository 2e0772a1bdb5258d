#include "lib/import/convert_io.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "lib/base/crc.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/format/arch.h"

enum {
    PIECE = 1 << 18,  /* bytes read at once, unless one tile needs more: a cache should hold it */
    AHEAD = 16 << 20, /* bytes that the kernel reads before they are asked for */
    COPIED = 1 << 14, /* bytes of a vector at once */
};

/* -- workers --------------------------------------------------------------------------------- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The most rows and columns of any matrix. */
static void largest_shape(const struct clb_arch *a, uint32_t *rows, uint32_t *cols)
{
    struct clb_tensor_spec s;

    *rows = *cols = larger(a->hidden_size, a->expert_size);
    for (uint32_t i = 0; clb_arch_tensor(a, i, &s); i++) {
        *cols = larger(*cols, s.cols);
        *rows = larger(*rows, s.rows);
    }
}

size_t clb_worker_least(const struct clb_arch *a)
{
    uint32_t rows, cols;

    largest_shape(a, &rows, &cols);
    return clb_tile_bytes(CLB_F32, cols) + 2 * COPIED;
}

bool clb_worker_init(struct clb_worker *w, const struct clb_arch *a, struct clb_err *err)
{
    uint32_t rows, cols;

    largest_shape(a, &rows, &cols);
    uint64_t tile = (uint64_t)cols * CLB_TILE * sizeof(float);
    w->failed_job = UINT32_MAX;
    w->in_bytes = tile > PIECE ? tile : PIECE;
    w->in = clb_new(w->in_bytes, 1, err);
    w->scale = clb_new(clb_rows_padded(rows), sizeof *w->scale, err);
    return w->in && w->scale;
}

void clb_worker_done(struct clb_worker *w)
{
    clb_free(w->in);
    clb_free(w->scale);
}

/* -- in -------------------------------------------------------------------------------------- */

void clb_source_open(struct clb_source *s, struct clb_convert_io *io,
                     const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t)
{
    *s = (struct clb_source){
        .io = io,
        .file = &c->shard[t->shard].map,
        .t = t->t,
        .dtype = clb_st_as_dtype(t->t->dtype),
        .at = t->t->begin,
        .wanted = t->t->begin + AHEAD,
    };
}

void clb_source_announce(const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t)
{
    uint64_t n = t->t->end - t->t->begin;

    clb_mapfile_want(&c->shard[t->shard].map, t->t->begin, n < AHEAD ? n : AHEAD);
}

/* A large tensor is announced further while it is read. */
static void look_ahead(struct clb_source *s)
{
    if (s->at + AHEAD / 2 < s->wanted || s->wanted >= s->t->end)
        return;
    uint64_t n = s->t->end - s->wanted;
    n = n < AHEAD / 2 ? n : AHEAD / 2;
    clb_mapfile_want(s->file, s->wanted, n);
    s->wanted += n;
}

static bool read_bytes(struct clb_source *s, void *to, size_t n, struct clb_err *err)
{
    uint64_t done;

    look_ahead(s);
    if (!clb_mapfile_read(s->file, to, s->at, n, err))
        return false;
    s->crc = clb_crc32(s->crc, to, n);
    s->at += n;
    done = atomic_fetch_add_explicit(&s->io->done, n, memory_order_relaxed) + n;
    if (s->io->progress)
        s->io->progress(done);
    return true;
}

/* element: index in the tensor; cols: of a row, 0 for a vector. */
static bool refuse_value(const struct clb_source *s, uint64_t element, uint32_t cols, float v,
                         float limit, struct clb_err *err)
{
    uint64_t byte = s->t->begin + element * clb_st_dtype_bytes(s->t->dtype);
    char place[64] = "", what[96];

    if (cols)
        snprintf(place, sizeof place, " (row %llu, column %llu)",
                 (unsigned long long)(element / cols), (unsigned long long)(element % cols));
    if (isnan(v))
        snprintf(what, sizeof what, "is NaN");
    else if (isinf(v))
        snprintf(what, sizeof what, "is %sinfinite", v < 0 ? "minus " : "");
    else
        snprintf(what, sizeof what, "is %g, but this type reaches only %g; use bf16 or f32",
                 (double)v, (double)limit);
    clb_fail(err, CLB_BAD_INPUT, "%s: byte %llu: tensor '%s': element %llu%s %s", s->file->path,
             (unsigned long long)byte, s->t->name, (unsigned long long)element, place, what);
    return clb_err_place(err, s->file->path, s->t->name, byte);
}

/* Says which of n elements from `first` is not finite or beyond the limit: there is one. */
static bool refuse(const struct clb_source *s, const void *x, size_t n, uint64_t first,
                   uint32_t cols, float limit, struct clb_err *err)
{
    size_t at = 0;
    float value = NAN;

    clb_find_beyond(s->io->kernels, x, s->dtype, n, limit, &at, &value);
    return refuse_value(s, first + at, cols, value, limit, err);
}

/* -- out ------------------------------------------------------------------------------------- */

/* The next piece begins with what does not fill a page, so that whole pages stay whole. */
static bool next_piece(struct clb_block *b, struct clb_err *err)
{
    struct clb_convert_io *io = b->io;
    struct clb_piece *full = b->piece, *piece = clb_writers_take(io->writers, err);

    b->piece = piece;
    if (piece) {
        piece->at = b->at;
        piece->n = 0;
    }
    if (!full)
        return piece != NULL;
    if (piece && full->n > (full->at + full->n) % CLB_PAGE) {
        piece->n = (full->at + full->n) % CLB_PAGE;
        piece->at -= piece->n;
        full->n -= piece->n;
        memcpy(piece->bytes, full->bytes + full->n, piece->n);
    }
    clb_writers_give(io->writers, full);
    return piece != NULL;
}

void *clb_block_room(struct clb_block *b, size_t n, struct clb_err *err)
{
    if ((!b->piece || b->piece->room - b->piece->n < n) && !next_piece(b, err))
        return NULL;
    return b->piece->bytes + b->piece->n;
}

void clb_block_add(struct clb_block *b, size_t n)
{
    b->crc = clb_crc32(b->crc, b->piece->bytes + b->piece->n, n);
    b->piece->n += n;
    b->at += n;
}

void clb_block_end(struct clb_block *b)
{
    if (b->piece)
        clb_writers_give(b->io->writers, b->piece);
    b->piece = NULL;
}

/* bytes NULL: zeros */
static bool add_bytes(struct clb_block *b, const uint8_t *bytes, uint64_t n, struct clb_err *err)
{
    enum { SOME = 4096 };

    while (n > 0) {
        size_t some = n < SOME ? (size_t)n : SOME;
        void *room = clb_block_room(b, some, err);

        if (!room)
            return false;
        if (bytes) {
            memcpy(room, bytes, some);
            bytes += some;
        } else {
            memset(room, 0, some);
        }
        clb_block_add(b, some);
        n -= some;
    }
    return true;
}

bool clb_block_write(struct clb_block *b, const void *bytes, size_t n, struct clb_err *err)
{
    return add_bytes(b, bytes, n, err);
}

bool clb_block_pad(struct clb_block *b, uint64_t until, struct clb_err *err)
{
    return add_bytes(b, NULL, until > b->at ? until - b->at : 0, err);
}

/* -- through --------------------------------------------------------------------------------- */

/* Packs n rows from `x` on, the first of them row `row` of the matrix. */
static bool pack_rows(struct clb_worker *w, const struct clb_source *in, struct clb_block *out,
                      const struct clb_target *to, const uint8_t *x, uint32_t row, uint32_t n,
                      struct clb_loss *loss, struct clb_err *err)
{
    struct clb_pack pack = { in->io->kernels, to->dtype, to->shared, to->book };
    size_t tile_bytes = clb_tile_bytes(to->dtype, to->cols);
    size_t row_bytes = clb_rows_bytes(in->dtype, 1, to->cols);

    for (uint32_t r = 0; r < n; r += CLB_TILE) {
        uint32_t k = n - r < CLB_TILE ? n - r : CLB_TILE;
        struct clb_rows m = { x + r * row_bytes, in->dtype, k, to->cols };
        uint8_t *tile = clb_block_room(out, tile_bytes, err);

        if (!tile)
            return false;
        if (!clb_pack_tile(&pack, tile, w->scale + row + r, &m, loss))
            return refuse(in, m.x, (size_t)k * to->cols, (uint64_t)(row + r) * to->cols, to->cols,
                          clb_pack_limit(to->dtype), err);
        clb_block_add(out, tile_bytes);
    }
    return true;
}

/* What int8 rows share, if they do. */
static void start_scales(struct clb_worker *w, const struct clb_target *to)
{
    for (uint32_t r = 0; r < clb_rows_padded(to->rows) && to->scale_at; r++)
        w->scale[r] = r < to->rows ? to->scale : 0;
}

static bool write_scales(const struct clb_worker *w, struct clb_block *out,
                         const struct clb_target *to, struct clb_err *err)
{
    if (!to->scale_at)
        return true;
    return clb_block_pad(out, to->scale_at, err) &&
           clb_block_write(out, w->scale, clb_row_scale_bytes(to->dtype, to->rows), err);
}

bool clb_pack_matrix(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                     const struct clb_target *to, struct clb_loss *loss, struct clb_err *err)
{
    size_t row_bytes = clb_rows_bytes(in->dtype, 1, to->cols);
    uint32_t step = (uint32_t)(w->in_bytes / row_bytes / CLB_TILE * CLB_TILE);

    start_scales(w, to);
    for (uint32_t row = 0; row < to->rows; row += step) {
        uint32_t n = to->rows - row < step ? to->rows - row : step;

        if (!read_bytes(in, w->in, n * row_bytes, err) ||
            !pack_rows(w, in, out, to, w->in, row, n, loss, err))
            return false;
    }
    return write_scales(w, out, to, err);
}

struct clb_kv_b clb_kv_b_of(const struct clb_arch *a, enum clb_role role)
{
    return (struct clb_kv_b){ .n_head = a->n_head,
                              .nope = a->qk_nope_dim,
                              .value = a->value_dim,
                              .latent = a->kv_lora_rank,
                              .keys = role == CLB_K_UP };
}

/* Element by element, whatever their width. */
static void arrange_kv_b(uint8_t *to, const uint8_t *from, size_t width, const struct clb_kv_b *s)
{
    size_t row = s->latent * width;

    for (uint32_t h = 0; h < s->n_head; h++) {
        const uint8_t *head = from + (size_t)h * (s->nope + s->value) * row;

        if (!s->keys) {
            memcpy(to + (size_t)h * s->value * row, head + s->nope * row, s->value * row);
            continue;
        }
        for (uint32_t i = 0; i < s->latent; i++)
            for (uint32_t d = 0; d < s->nope; d++, to += width)
                memcpy(to, head + d * row + i * width, width);
    }
}

bool clb_pack_kv_b(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                   const struct clb_target *to, const struct clb_kv_b *shape,
                   struct clb_loss *loss, struct clb_err *err)
{
    size_t width = clb_st_dtype_bytes(in->t->dtype), n = (size_t)(in->t->end - in->t->begin);
    uint8_t *all = clb_new(n, 1, err), *half = clb_new((size_t)to->rows * to->cols, width, err);
    float limit = clb_pack_limit(to->dtype);
    bool ok = all && half && read_bytes(in, all, n, err);

    if (ok && in->io->kernels->largest(all, in->dtype, n / width) > clb_f32_bits(limit))
        ok = refuse(in, all, n / width, 0, shape->latent, limit, err);
    if (ok) {
        arrange_kv_b(half, all, width, shape);
        start_scales(w, to);
        ok = pack_rows(w, in, out, to, half, 0, to->rows, loss, err) &&
             write_scales(w, out, to, err);
    }
    clb_free(all);
    clb_free(half);
    return ok;
}

/* Elements that are left in the tensor, but no more than fit in `room` bytes. */
static size_t next_elements(const struct clb_source *in, size_t room)
{
    uint32_t bytes = clb_st_dtype_bytes(in->t->dtype);
    uint64_t left = in->t->end - in->at;

    return (size_t)(left < room ? left : room) / bytes;
}

static bool copy(struct clb_worker *w, struct clb_source *in, struct clb_block *out, bool as_f32,
                 struct clb_loss *loss, struct clb_err *err)
{
    const struct clb_pack_kernels *k = in->io->kernels;
    uint32_t bytes = clb_st_dtype_bytes(in->t->dtype);
    uint32_t cols = in->t->rank == 2 ? (uint32_t)in->t->shape[1] : 0;

    for (size_t n; (n = next_elements(in, COPIED)) > 0;) {
        uint64_t first = (in->at - in->t->begin) / bytes;
        size_t size = n * (as_f32 ? sizeof(float) : bytes);
        void *room = clb_block_room(out, size, err);

        if (!room || !read_bytes(in, w->in, n * bytes, err))
            return false;
        if (k->largest(w->in, in->dtype, n) > clb_f32_bits(FLT_MAX))
            return refuse(in, w->in, n, first, cols, FLT_MAX, err);
        if (as_f32)
            k->widen(room, w->in, in->dtype, n);
        else
            memcpy(room, w->in, size);
        clb_block_add(out, size);
        loss->values += n;
    }
    return true;
}

bool clb_copy_vector(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                     struct clb_loss *loss, struct clb_err *err)
{
    return copy(w, in, out, true, loss, err);
}

bool clb_copy_rows(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                   struct clb_loss *loss, struct clb_err *err)
{
    return copy(w, in, out, false, loss, err);
}

bool clb_measure(struct clb_worker *w, struct clb_source *in, float *most, struct clb_err *err)
{
    uint32_t bits = clb_f32_bits(*most);

    for (size_t n; (n = next_elements(in, w->in_bytes)) > 0;) {
        uint32_t m;

        if (!read_bytes(in, w->in, n * clb_st_dtype_bytes(in->t->dtype), err))
            return false;
        m = in->io->kernels->largest(w->in, in->dtype, n);
        bits = m > bits && m <= clb_f32_bits(FLT_MAX) ? m : bits;
    }
    *most = clb_f32_from_bits(bits);
    return true;
}

bool clb_read_through(struct clb_worker *w, struct clb_source *in, struct clb_err *err)
{
    while (in->at < in->t->end) {
        uint64_t n = in->t->end - in->at;

        if (!read_bytes(in, w->in, n < w->in_bytes ? (size_t)n : w->in_bytes, err))
            return false;
    }
    return true;
}
