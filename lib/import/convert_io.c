#include "lib/import/convert_io.h"

#include <float.h>

#include "lib/base/crc.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/format/arch.h"
#include "lib/import/decode.h"

enum {
    COPIED = 1 << 14,   /* bytes of a vector at once */
    STEP = 64,          /* bytes of a step in a tile */
    LARGEST_SAFE = 252, /* e8m0: 12 * 2^(252 - 128) is finite */
};

size_t clb_worker_least(const struct clb_arch *a)
{
    uint32_t cols = a->hidden_size > a->expert_size ? a->hidden_size : a->expert_size;
    struct clb_tensor_spec s;

    for (uint32_t i = 0; clb_arch_tensor(a, i, &s); i++)
        cols = cols > s.cols ? cols : s.cols;
    return clb_tile_bytes(CLB_F32, cols) + 2 * COPIED;
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

/* Packs n rows from w->in on, the first of them row `row` of the matrix. */
static bool pack_rows(const struct clb_source *in, struct clb_block *out,
                      const struct clb_target *to, uint32_t row, uint32_t n, struct clb_loss *loss,
                      struct clb_err *err)
{
    struct clb_pack pack = { in->io->kernels, to->dtype, to->shared, to->book };
    size_t tile_bytes = clb_tile_bytes(to->dtype, to->cols);
    size_t row_bytes = clb_rows_bytes(in->dtype, 1, to->cols);

    for (uint32_t r = 0; r < n; r += CLB_TILE) {
        uint32_t k = n - r < CLB_TILE ? n - r : CLB_TILE;
        struct clb_rows m = { in->w->in + r * row_bytes, in->dtype, k, to->cols };
        uint8_t *tile = clb_block_room(out, tile_bytes, err);

        if (!tile)
            return false;
        if (!clb_pack_tile(&pack, tile, in->w->scale + row + r, &m, loss))
            return clb_source_refuse(in, m.x, (size_t)k * to->cols, (uint64_t)(row + r) * to->cols,
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

/* One row of MXFP4 into its lane of a tile. A scale so large that a code overflows is refused. */
static bool lay_codes(const struct clb_source *in, uint8_t *tile, uint32_t row, const uint8_t *code,
                      const uint8_t *scale, struct clb_err *err)
{
    uint32_t lane = row % CLB_TILE, n_group = in->v->cols / CLB_GROUP;
    uint8_t *step = tile + clb_tile_steps_at(CLB_MXFP4, in->v->cols) + (size_t)lane * 4;

    for (uint32_t g = 0; g < n_group; g++, code += CLB_GROUP / 2, step += 4 * STEP) {
        float value[CLB_GROUP];

        if (scale[g] > LARGEST_SAFE) {
            clb_decode_mxfp4(value, code, scale + g, 1);
            if (in->io->kernels->largest(value, CLB_F32, CLB_GROUP) > clb_f32_bits(FLT_MAX))
                return clb_source_refuse(in, value, CLB_GROUP,
                                         (uint64_t)row * in->v->cols + g * CLB_GROUP, FLT_MAX, err);
        }
        tile[g * CLB_TILE + lane] = scale[g];
        clb_mxfp4_steps(step, STEP, code);
    }
    return true;
}

/* MXFP4 stays what it is, in the order of tiles. */
static bool move_mxfp4(struct clb_source *in, struct clb_block *out, const struct clb_target *to,
                       struct clb_loss *loss, struct clb_err *err)
{
    size_t tile_bytes = clb_tile_bytes(CLB_MXFP4, to->cols);

    for (uint32_t row = 0; row < to->rows; row += CLB_TILE) {
        uint32_t n = to->rows - row < CLB_TILE ? to->rows - row : CLB_TILE;
        uint8_t *tile = clb_block_room(out, tile_bytes, err);
        struct clb_codes from;

        if (!tile || !clb_source_codes(in, row, n, &from, err))
            return false;
        memset(tile, 0, n < CLB_TILE ? tile_bytes : clb_tile_steps_at(CLB_MXFP4, to->cols));
        for (uint32_t r = 0; r < n; r++)
            if (!lay_codes(in, tile, row + r, from.code + r * from.code_step,
                           from.scale + r * from.scale_step, err))
                return false;
        clb_block_add(out, tile_bytes);
    }
    loss->values += (uint64_t)to->rows * to->cols;
    return true;
}

bool clb_pack_matrix(struct clb_source *in, struct clb_block *out, const struct clb_target *to,
                     struct clb_loss *loss, struct clb_err *err)
{
    uint32_t step = clb_source_step(in);

    if (to->dtype == CLB_MXFP4)
        return move_mxfp4(in, out, to, loss, err);
    start_scales(in->w, to);
    for (uint32_t row = 0; row < to->rows; row += step) {
        uint32_t n = to->rows - row < step ? to->rows - row : step;

        if (!clb_source_rows(in, row, n, in->w->in, err) ||
            !pack_rows(in, out, to, row, n, loss, err))
            return false;
    }
    return write_scales(in->w, out, to, err);
}

static bool copy(struct clb_source *in, struct clb_block *out, bool as_f32, struct clb_loss *loss,
                 struct clb_err *err)
{
    const struct clb_pack_kernels *k = in->io->kernels;
    size_t bytes = clb_rows_bytes(in->dtype, 1, 1);
    uint64_t all = (uint64_t)in->v->rows * in->v->cols;

    for (uint64_t at = 0; at < all;) {
        size_t n = all - at < COPIED / bytes ? (size_t)(all - at) : COPIED / bytes;
        size_t size = n * (as_f32 ? sizeof(float) : bytes);
        void *room = clb_block_room(out, size, err);

        if (!room || !clb_source_values(in, at, n, in->w->in, err))
            return false;
        if (k->largest(in->w->in, in->dtype, n) > clb_f32_bits(FLT_MAX))
            return clb_source_refuse(in, in->w->in, n, at, FLT_MAX, err);
        if (as_f32)
            k->widen(room, in->w->in, in->dtype, n);
        else
            memcpy(room, in->w->in, size);
        clb_block_add(out, size);
        loss->values += n;
        at += n;
    }
    return true;
}

bool clb_copy_vector(struct clb_source *in, struct clb_block *out, struct clb_loss *loss,
                     struct clb_err *err)
{
    return copy(in, out, true, loss, err);
}

bool clb_copy_rows(struct clb_source *in, struct clb_block *out, struct clb_loss *loss,
                   struct clb_err *err)
{
    return copy(in, out, false, loss, err);
}

bool clb_measure(struct clb_source *in, float *most, struct clb_err *err)
{
    uint32_t bits = clb_f32_bits(*most), step = clb_source_step(in);

    for (uint32_t row = 0; row < in->v->rows; row += step) {
        uint32_t n = in->v->rows - row < step ? in->v->rows - row : step, m;

        if (!clb_source_rows(in, row, n, in->w->in, err))
            return false;
        m = in->io->kernels->largest(in->w->in, in->dtype, (size_t)n * in->v->cols);
        bits = m > bits && m <= clb_f32_bits(FLT_MAX) ? m : bits;
    }
    *most = clb_f32_from_bits(bits);
    return true;
}
