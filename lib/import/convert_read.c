/* convert_read.c - rows of the model out of tensors of the checkpoint: pieces are read explicitly,
 * put into order and decoded. What a thread holds does not grow with the tensor. */
#include <math.h>
#include <stdio.h>

#include "lib/base/crc.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/import/convert_io.h"
#include "lib/import/decode.h"

enum {
    PIECE = 1 << 18,  /* bytes read at once, unless one tile needs more: a cache should hold it */
    AHEAD = 16 << 20, /* bytes that the kernel reads before they are asked for */
    BAND = 512,       /* rows of a turned matrix at once: a piece of a column is worth a read */
    BLOCK = 16,       /* columns of it that are turned together */
};

/* -- workers --------------------------------------------------------------------------------- */

static size_t value_bytes(enum clb_dtype t)
{
    return t == CLB_MXFP4 ? sizeof(float) : clb_rows_bytes(t, 1, 1);
}

static uint32_t rows_at_once(const struct clb_view *v, size_t bytes)
{
    uint32_t n = clb_rows_padded(v->rows);

    if (!clb_view_is_turned(v)) {
        uint64_t fit = bytes / (v->cols * value_bytes(clb_view_dtype(v))) / CLB_TILE * CLB_TILE;
        return fit < CLB_TILE ? CLB_TILE : fit < n ? (uint32_t)fit : n;
    }
    return n < BAND ? n : BAND;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

void clb_room_add(struct clb_room *room, const struct clb_view *v)
{
    if (!v->t)
        return;
    uint64_t values = (uint64_t)rows_at_once(v, PIECE) * v->cols;

    room->in = larger(room->in, values * value_bytes(clb_view_dtype(v)));
    room->in = larger(room->in, PIECE);
    room->rows = (uint32_t)larger(room->rows, v->rows);
    if (clb_view_is_turned(v))
        room->segment = larger(room->segment, BLOCK * ((BAND - 1) * v->row_step + 1));
    if (v->rows == 1 && v->col_step > 1)
        room->segment = larger(room->segment, (BAND - 1) * v->col_step + 1);
    if (!v->scale)
        return;
    room->raw = larger(room->raw, values);
    room->raw = larger(room->raw, room->segment);
    if (v->block_rows)
        room->scales = larger(room->scales, (v->scale->t->end - v->scale->t->begin) / v->slices /
                                                clb_st_dtype_bytes(v->scale->t->dtype));
}

bool clb_worker_init(struct clb_worker *w, const struct clb_room *room, struct clb_err *err)
{
    w->failed_job = UINT32_MAX;
    w->in_bytes = room->in;
    w->in = clb_new(room->in, 1, err);
    w->raw = clb_new(room->raw, 1, err);
    w->raw_scale = clb_new(room->raw / CLB_TILE + 1, 1, err);
    w->segment = clb_new(room->segment, sizeof(float), err);
    w->block_scale = clb_new(room->scales, sizeof *w->block_scale, err);
    w->scale = clb_new(clb_rows_padded(room->rows), sizeof *w->scale, err);
    return w->in && w->raw && w->raw_scale && w->segment && w->block_scale && w->scale;
}

void clb_worker_done(struct clb_worker *w)
{
    clb_free(w->in);
    clb_free(w->raw);
    clb_free(w->raw_scale);
    clb_free(w->segment);
    clb_free(w->block_scale);
    clb_free(w->scale);
}

/* -- slices ---------------------------------------------------------------------------------- */

static uint64_t slice_bytes(const struct clb_ckpt_tensor *t, uint32_t slices)
{
    return (t->t->end - t->t->begin) / slices;
}

static void report(struct clb_convert_io *io, size_t n)
{
    uint64_t done = atomic_fetch_add_explicit(&io->done, n, memory_order_relaxed) + n;

    if (io->progress)
        io->progress(done);
}

/* Before `n` bytes from `at` are read: the kernel reads further, up to `end`. */
static void look_ahead(const struct clb_mapfile *file, uint64_t at, uint64_t end, uint64_t *wanted)
{
    if (at + AHEAD / 2 < *wanted || *wanted >= end)
        return;
    uint64_t n = end - *wanted;
    n = n < AHEAD / 2 ? n : AHEAD / 2;
    clb_mapfile_want(file, *wanted, n);
    *wanted += n;
}

bool clb_read_slice(struct clb_worker *w, struct clb_convert_io *io, const struct clb_checkpoint *c,
                    const struct clb_ckpt_tensor *t, uint32_t slices, uint32_t slice, uint32_t *crc,
                    struct clb_err *err)
{
    const struct clb_mapfile *file = &c->shard[t->shard].map;
    uint64_t bytes = slice_bytes(t, slices), at = t->t->begin + slice * bytes, end = at + bytes;
    uint64_t wanted = at + AHEAD;

    for (*crc = 0; at < end;) {
        size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;

        look_ahead(file, at, end, &wanted);
        if (!clb_mapfile_read(file, w->in, at, n, err))
            return false;
        *crc = clb_crc32(*crc, w->in, n);
        report(io, n);
        at += n;
    }
    return true;
}

static void announce(const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t,
                     uint32_t slices, uint32_t slice)
{
    uint64_t n = slice_bytes(t, slices);

    clb_mapfile_want(&c->shard[t->shard].map, t->t->begin + slice * n, n < AHEAD ? n : AHEAD);
}

void clb_source_announce(const struct clb_checkpoint *c, const struct clb_view *v)
{
    if (v->counts)
        announce(c, v->t, v->slices, v->slice);
    if (v->scale_counts)
        announce(c, v->scale, v->slices, v->slice);
}

/* -- sources --------------------------------------------------------------------------------- */

static bool refuse_scale(const struct clb_source *s, uint64_t index, float value,
                         struct clb_err *err)
{
    const struct clb_st_tensor *t = s->v->scale->t;
    uint64_t byte = t->begin + index * clb_st_dtype_bytes(t->dtype);
    char what[32];

    snprintf(what, sizeof what, isnan(value) ? "NaN" : "%g", (double)value);
    clb_fail(err, CLB_BAD_INPUT,
             "%s: byte %llu: tensor '%s': element %llu is %s; a scale is finite and above 0",
             s->scale_file->path, (unsigned long long)byte, t->name, (unsigned long long)index,
             what);
    return clb_err_place(err, s->scale_file->path, t->name, byte);
}

/* All scales of the slice of an FP8 tensor. */
static bool load_scales(struct clb_source *s, struct clb_err *err)
{
    const struct clb_st_tensor *t = s->v->scale->t;
    uint32_t width = clb_st_dtype_bytes(t->dtype);
    uint64_t bytes = slice_bytes(s->v->scale, s->v->slices), at = bytes * s->v->slice;
    size_t n = (size_t)(bytes / width), room = s->w->in_bytes / width;
    float *out = s->w->block_scale;

    s->scale_crc = 0;
    for (size_t i = 0; i < n;) {
        size_t some = n - i < room ? n - i : room;

        if (!clb_mapfile_read(s->scale_file, s->w->in, t->begin + at, some * width, err))
            return false;
        s->scale_crc = clb_crc32(s->scale_crc, s->w->in, some * width);
        s->io->kernels->widen(out + i, s->w->in, clb_st_as_dtype(t->dtype), some);
        i += some;
        at += some * width;
    }
    for (size_t i = 0; i < n; i++)
        if (!(out[i] > 0) || isinf(out[i]))
            return refuse_scale(s, bytes / width * s->v->slice + i, out[i], err);
    if (s->v->scale_counts && !s->io->measuring)
        report(s->io, bytes);
    return true;
}

bool clb_source_open(struct clb_source *s, struct clb_worker *w, struct clb_convert_io *io,
                     const struct clb_checkpoint *c, const struct clb_view *v, struct clb_err *err)
{
    const struct clb_ckpt_tensor *t = v->t;
    enum clb_dtype dtype = clb_view_dtype(v);

    *s = (struct clb_source){
        .io = io,
        .w = w,
        .v = v,
        .file = &c->shard[t->shard].map,
        .scale_file = v->scale ? &c->shard[v->scale->shard].map : NULL,
        .dtype = dtype == CLB_MXFP4 ? CLB_F32 : dtype,
        .along = v->counts && !io->measuring && clb_view_is_slice(v),
        .wanted = t->t->begin + v->slice * slice_bytes(t, v->slices) + AHEAD,
    };
    if (v->block_rows && !load_scales(s, err))
        return false;
    if (io->measuring)
        return true;
    if (!v->block_rows && v->scale_counts &&
        !clb_read_slice(w, io, c, v->scale, v->slices, v->slice, &s->scale_crc, err))
        return false;
    return !v->counts || s->along || clb_read_slice(w, io, c, t, v->slices, v->slice, &s->crc, err);
}

uint32_t clb_source_step(const struct clb_source *s)
{
    return rows_at_once(s->v, PIECE);
}

static bool read_stored(struct clb_source *s, uint64_t index, size_t n, void *to,
                        struct clb_err *err)
{
    const struct clb_st_tensor *t = s->v->t->t;
    uint64_t at = t->begin + clb_view_byte(s->v, index);
    size_t bytes = (size_t)clb_view_byte(s->v, n);

    if (clb_view_is_dense(s->v))
        look_ahead(s->file, at, t->begin + (s->v->slice + 1) * slice_bytes(s->v->t, s->v->slices),
                   &s->wanted);
    if (!clb_mapfile_read(s->file, to, at, bytes, err))
        return false;
    if (!s->along)
        return true;
    s->crc = clb_crc32(s->crc, to, bytes);
    report(s->io, bytes);
    return true;
}

static bool read_group_scales(struct clb_source *s, uint64_t index, size_t n, uint8_t *to,
                              struct clb_err *err)
{
    uint64_t group = index / CLB_GROUP;

    if (!clb_mapfile_read(s->scale_file, to, s->v->scale->t->begin + group, n, err))
        return false;
    for (size_t i = 0; i < n; i++)
        if (to[i] == 255)
            return refuse_scale(s, group + i, NAN, err);
    return true;
}

/* n elements that follow each other in the tensor; not of MXFP4. */
static bool read_run(struct clb_source *s, uint64_t index, size_t n, void *out, struct clb_err *err)
{
    const struct clb_view *v = s->v;
    uint64_t elements = slice_bytes(v->t, v->slices); /* FP8: one byte each */
    const struct clb_fp8_scales scales = { s->w->block_scale, v->line, v->block_rows,
                                           v->block_cols };

    if (!v->scale)
        return read_stored(s, index, n, out, err);
    if (!read_stored(s, index, n, s->w->raw, err))
        return false;
    clb_decode_fp8(out, s->w->raw, index - v->slice * elements, n, &scales);
    return true;
}

/* n elements `step` apart, side by side. */
static bool read_spaced(struct clb_source *s, uint64_t index, uint64_t step, size_t n, uint8_t *out,
                        struct clb_err *err)
{
    size_t width = value_bytes(s->dtype);

    for (size_t i = 0; i < n; i += BAND) {
        size_t some = n - i < BAND ? n - i : BAND;

        if (!read_run(s, index + i * step, (size_t)((some - 1) * step + 1), s->w->segment, err))
            return false;
        for (size_t k = 0; k < some; k++)
            memcpy(out + (i + k) * width, s->w->segment + k * step * width, width);
    }
    return true;
}

/* Pieces of `block` columns, `piece` bytes apart, become parts of n rows. A row of the result is
 * written in one go: that is what a cache wants. */
static void turn(uint8_t *out, size_t row_bytes, const uint8_t *from, size_t piece, size_t step,
                 uint32_t n, uint32_t block, size_t width)
{
    for (uint32_t r = 0; r < n; r++, out += row_bytes, from += step * width)
        if (width == 2)
            for (uint32_t c = 0; c < block; c++)
                memcpy(out + 2 * c, from + c * piece, 2);
        else
            for (uint32_t c = 0; c < block; c++)
                memcpy(out + 4 * c, from + c * piece, 4);
}

/* n rows whose elements are far from each other, column by column. */
static bool read_turned(struct clb_source *s, uint32_t row, uint32_t n, uint8_t *out,
                        struct clb_err *err)
{
    const struct clb_view *v = s->v;
    size_t width = value_bytes(s->dtype), run = (size_t)((n - 1) * v->row_step + 1);

    for (uint32_t c = 0; c < v->cols; c += BLOCK) {
        uint32_t block = v->cols - c < BLOCK ? v->cols - c : BLOCK;

        for (uint32_t k = 0; k < block; k++)
            if (!read_run(s, clb_view_index(v, row, c + k), run, s->w->segment + k * run * width,
                          err))
                return false;
        turn(out + c * width, v->cols * width, s->w->segment, run * width, v->row_step, n, block,
             width);
    }
    return true;
}

bool clb_source_codes(struct clb_source *s, uint32_t row, uint32_t n, struct clb_codes *out,
                      struct clb_err *err)
{
    const struct clb_view *v = s->v;
    uint64_t index = clb_view_index(v, row, 0), values = (n - 1) * v->row_step + v->cols;

    *out = (struct clb_codes){ s->w->raw, s->w->raw_scale, (size_t)v->row_step / 2,
                               (size_t)v->row_step / CLB_GROUP };
    return read_stored(s, index, (size_t)values, s->w->raw, err) &&
           read_group_scales(s, index, (size_t)values / CLB_GROUP, s->w->raw_scale, err);
}

static bool decode_codes(struct clb_source *s, uint32_t row, uint32_t n, uint8_t *out,
                         struct clb_err *err)
{
    struct clb_codes from;

    if (!clb_source_codes(s, row, n, &from, err))
        return false;
    for (uint32_t r = 0; r < n; r++)
        clb_decode_mxfp4((float *)(void *)out + (size_t)r * s->v->cols,
                         from.code + r * from.code_step, from.scale + r * from.scale_step,
                         s->v->cols / CLB_GROUP);
    return true;
}

/* Rows of one group. */
static bool read_rows(struct clb_source *s, uint32_t row, uint32_t n, uint8_t *out,
                      struct clb_err *err)
{
    const struct clb_view *v = s->v;
    size_t row_bytes = v->cols * value_bytes(s->dtype);
    bool ok = true;

    if (clb_view_dtype(v) == CLB_MXFP4)
        return decode_codes(s, row, n, out, err);
    if (v->col_step > 1)
        return read_turned(s, row, n, out, err);
    if (v->row_step == v->cols)
        return read_run(s, clb_view_index(v, row, 0), (size_t)n * v->cols, out, err);
    for (uint32_t r = 0; ok && r < n; r++)
        ok = read_run(s, clb_view_index(v, row + r, 0), v->cols, out + r * row_bytes, err);
    return ok;
}

bool clb_source_rows(struct clb_source *s, uint32_t row, uint32_t n, void *out, struct clb_err *err)
{
    size_t row_bytes = s->v->cols * value_bytes(s->dtype);
    uint8_t *to = out;

    if (s->io->measuring)
        report(s->io, clb_view_byte(s->v, (uint64_t)n * s->v->cols));
    while (n > 0) {
        uint32_t left = s->v->group_rows - row % s->v->group_rows, some = n < left ? n : left;

        if (!read_rows(s, row, some, to, err))
            return false;
        to += some * row_bytes;
        row += some;
        n -= some;
    }
    return true;
}

bool clb_source_values(struct clb_source *s, uint64_t first, size_t n, void *out,
                       struct clb_err *err)
{
    uint64_t step = s->v->col_step;

    if (step > 1)
        return read_spaced(s, s->v->first + first * step, step, n, out, err);
    return read_run(s, s->v->first + first, n, out, err);
}

/* -- values that cannot be ------------------------------------------------------------------- */

/* " (row 1, column 17)", as the tensor has them; "" for a vector. */
static void name_place(const struct clb_view *v, uint64_t index, char *buf, size_t n)
{
    uint64_t slice = slice_bytes(v->t, v->slices) * 8 / clb_view_bits(v), in = index % slice;
    char expert[32] = "";

    if (!v->line)
        return;
    if (v->slices > 1)
        snprintf(expert, sizeof expert, "expert %u, ", v->slice);
    snprintf(buf, n, " (%srow %llu, column %llu)", expert, (unsigned long long)(in / v->line),
             (unsigned long long)(in % v->line));
}

bool clb_source_refuse(const struct clb_source *s, const void *x, size_t n, uint64_t before,
                       float limit, struct clb_err *err)
{
    const struct clb_view *v = s->v;
    size_t at = 0;
    float value = NAN;
    char place[96] = "", what[96];

    clb_find_beyond(s->io->kernels, x, s->dtype, n, limit, &at, &value);
    before += at;
    uint64_t index = clb_view_index(v, (uint32_t)(before / v->cols), (uint32_t)(before % v->cols));
    uint64_t byte = v->t->t->begin + clb_view_byte(v, index);

    name_place(v, index, place, sizeof place);
    if (isnan(value))
        snprintf(what, sizeof what, "is NaN");
    else if (isinf(value))
        snprintf(what, sizeof what, "is %sinfinite", value < 0 ? "minus " : "");
    else
        snprintf(what, sizeof what, "is %g, but this type reaches only %g; use bf16 or f32",
                 (double)value, (double)limit);
    clb_fail(err, CLB_BAD_INPUT, "%s: byte %llu: tensor '%s': element %llu%s %s", s->file->path,
             (unsigned long long)byte, v->t->t->name, (unsigned long long)index, place, what);
    return clb_err_place(err, s->file->path, v->t->t->name, byte);
}
