#include "lib/import/convert_io.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/format/arch.h"

enum { PIECE = 1 << 20 }; /* bytes read or written at once, unless one tile needs more */

/* -- workers --------------------------------------------------------------------------------- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

bool clb_worker_init(struct clb_worker *w, const struct clb_arch *a, struct clb_err *err)
{
    uint32_t cols = larger(a->hidden_size, a->expert_size), rows = cols;
    struct clb_tensor_spec s;

    for (uint32_t i = 0; clb_arch_tensor(a, i, &s); i++) {
        cols = larger(cols, s.cols);
        rows = larger(rows, s.rows);
    }
    uint64_t tile = (uint64_t)clb_pack_stride(cols) * CLB_TILE * sizeof(float);
    w->failed_job = UINT32_MAX;
    w->in_bytes = w->out_bytes = tile > PIECE ? tile : PIECE;
    w->in = clb_new(w->in_bytes, 1, err);
    w->out = clb_new(w->out_bytes, 1, err);
    w->rows = clb_new(tile, 1, err);
    w->scale = clb_new(clb_rows_padded(rows), sizeof *w->scale, err);
    return w->in && w->out && w->rows && w->scale;
}

void clb_worker_done(struct clb_worker *w)
{
    clb_free(w->in);
    clb_free(w->out);
    clb_free(w->rows);
    clb_free(w->scale);
}

/* -- in -------------------------------------------------------------------------------------- */

void clb_source_open(struct clb_source *s, struct clb_convert_io *io,
                     const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t)
{
    *s = (struct clb_source){
        .io = io, .file = &c->shard[t->shard].map, .t = t->t, .at = t->t->begin
    };
}

static bool read_bytes(struct clb_source *s, void *to, size_t n, struct clb_err *err)
{
    uint64_t done;

    if (!clb_mapfile_read(s->file, to, s->at, n, err))
        return false;
    s->crc = clb_crc32(s->crc, to, n);
    s->at += n;
    done = atomic_fetch_add_explicit(&s->io->done, n, memory_order_relaxed) + n;
    if (s->io->progress)
        s->io->progress(done);
    return true;
}

static void widen(enum clb_st_dtype t, float *y, const void *x, size_t n)
{
    if (t == CLB_ST_BF16)
        clb_widen_bf16(y, x, n);
    else if (t == CLB_ST_F16)
        clb_widen_f16(y, x, n);
    else
        memcpy(y, x, n * sizeof *y);
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

/* -- out ------------------------------------------------------------------------------------- */

/* Lets the disk begin now and then: else a machine with much memory would keep gigabytes until the
 * final fsync, which then waits for all of it. */
static void count_written(struct clb_convert_io *io, size_t n)
{
    enum { EVERY = 1 << 26 };
    uint64_t before = atomic_fetch_add_explicit(&io->written, n, memory_order_relaxed);

    if (before / EVERY != (before + n) / EVERY)
        sync_file_range(io->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

bool clb_block_write(struct clb_block *b, const void *bytes, size_t n, struct clb_err *err)
{
    const uint8_t *p = bytes;
    size_t all = n;

    b->crc = clb_crc32(b->crc, bytes, n);
    while (n > 0) {
        ssize_t put = pwrite(b->io->fd, p, n, (off_t)b->at);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return clb_fail_sys(err, CLB_FAILED, "cannot write at byte %llu",
                                (unsigned long long)b->at);
        if (put == 0)
            return clb_fail(err, CLB_FAILED, "cannot write at byte %llu: nothing is taken",
                            (unsigned long long)b->at);
        p += put;
        b->at += (uint64_t)put;
        n -= (size_t)put;
    }
    count_written(b->io, all);
    return true;
}

bool clb_block_pad(struct clb_block *b, uint64_t until, struct clb_err *err)
{
    static const uint8_t zero[4096];

    while (b->at < until) {
        uint64_t n = until - b->at;

        if (!clb_block_write(b, zero, n < sizeof zero ? (size_t)n : sizeof zero, err))
            return false;
    }
    return true;
}

/* -- through --------------------------------------------------------------------------------- */

/* Widens rows [row, row + n) of a piece into w->rows with zeros around them, and checks them. */
static bool fill_rows(struct clb_worker *w, const struct clb_source *in, const uint8_t *from,
                      uint32_t row, uint32_t n, const struct clb_target *to, struct clb_err *err)
{
    uint32_t stride = clb_pack_stride(to->cols), bytes = clb_st_dtype_bytes(in->t->dtype);
    float limit = clb_pack_limit(to->dtype);

    for (uint32_t r = 0; r < CLB_TILE; r++) {
        float *x = w->rows + (size_t)r * stride;
        uint32_t cols = r < n ? to->cols : 0;
        size_t bad;

        widen(in->t->dtype, x, from + (size_t)r * to->cols * bytes, cols);
        memset(x + cols, 0, (stride - cols) * sizeof *x);
        if (clb_find_beyond(x, cols, limit, &bad))
            return refuse_value(in, (uint64_t)(row + r) * to->cols + bad, to->cols, x[bad], limit,
                                err);
    }
    return true;
}

/* Tiles that fit in both buffers; at least one does. */
static uint32_t tiles_at_once(const struct clb_worker *w, const struct clb_source *in,
                              const struct clb_target *to)
{
    uint64_t row = (uint64_t)to->cols * clb_st_dtype_bytes(in->t->dtype);
    uint64_t by_in = w->in_bytes / (row * CLB_TILE);
    uint64_t by_out = w->out_bytes / clb_tile_bytes(to->dtype, to->cols);

    return (uint32_t)(by_in < by_out ? by_in : by_out);
}

bool clb_pack_matrix(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                     const struct clb_target *to, struct clb_loss *loss, struct clb_err *err)
{
    struct clb_pack pack = { to->dtype, to->cols, to->shared, to->nearest };
    uint64_t tile_bytes = clb_tile_bytes(to->dtype, to->cols);
    uint32_t step = tiles_at_once(w, in, to) * CLB_TILE;
    size_t row_bytes = (size_t)to->cols * clb_st_dtype_bytes(in->t->dtype);

    for (uint32_t r = 0; r < clb_rows_padded(to->rows) && to->scale_at; r++)
        w->scale[r] = r < to->rows ? to->scale : 0;
    for (uint32_t row = 0; row < to->rows; row += step) {
        uint32_t n = to->rows - row < step ? to->rows - row : step, tile = 0;

        if (!read_bytes(in, w->in, n * row_bytes, err))
            return false;
        for (uint32_t r = 0; r < n; r += CLB_TILE, tile++) {
            uint32_t k = n - r < CLB_TILE ? n - r : CLB_TILE;

            if (!fill_rows(w, in, w->in + r * row_bytes, row + r, k, to, err))
                return false;
            clb_pack_tile(&pack, w->out + tile * tile_bytes, w->scale + row + r, w->rows, k, loss);
        }
        if (!clb_block_write(out, w->out, tile * tile_bytes, err))
            return false;
    }
    if (!to->scale_at)
        return true;
    return clb_block_pad(out, to->scale_at, err) &&
           clb_block_write(out, w->scale, clb_row_scale_bytes(to->dtype, to->rows), err);
}

/* Reads the next elements into w->in and widens them into w->out. *n is 0 at the end. */
static bool next_values(struct clb_worker *w, struct clb_source *in, size_t *n, struct clb_err *err)
{
    uint32_t bytes = clb_st_dtype_bytes(in->t->dtype);
    size_t room = w->out_bytes / sizeof(float);
    uint64_t left = (in->t->end - in->at) / bytes;

    *n = left < room ? (size_t)left : room;
    if (!*n)
        return true;
    if (!read_bytes(in, w->in, *n * bytes, err))
        return false;
    widen(in->t->dtype, (float *)(void *)w->out, w->in, *n);
    return true;
}

/* Checks the values that next_values gave, and counts them as kept exactly. */
static bool check_values(struct clb_worker *w, struct clb_source *in, size_t n,
                         struct clb_loss *loss, struct clb_err *err)
{
    const float *x = (const float *)(const void *)w->out;
    uint32_t cols = in->t->rank == 2 ? (uint32_t)in->t->shape[1] : 0;
    uint64_t first = (in->at - in->t->begin) / clb_st_dtype_bytes(in->t->dtype) - n;
    size_t bad;

    loss->values += n;
    if (!clb_find_beyond(x, n, FLT_MAX, &bad))
        return true;
    return refuse_value(in, first + bad, cols, x[bad], FLT_MAX, err);
}

static bool copy(struct clb_worker *w, struct clb_source *in, struct clb_block *out, bool as_f32,
                 struct clb_loss *loss, struct clb_err *err)
{
    uint32_t bytes = clb_st_dtype_bytes(in->t->dtype);
    size_t n;

    for (;;) {
        if (!next_values(w, in, &n, err))
            return false;
        if (!n)
            return true;
        if (!check_values(w, in, n, loss, err) ||
            !clb_block_write(out, as_f32 ? w->out : w->in, n * (as_f32 ? sizeof(float) : bytes),
                             err))
            return false;
    }
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
    size_t n;

    for (;;) {
        float m;

        if (!next_values(w, in, &n, err))
            return false;
        if (!n)
            return true;
        m = clb_max_abs((const float *)(const void *)w->out, n);
        *most = *most > m ? *most : m;
    }
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
