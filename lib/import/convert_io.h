/* convert_io.h - streams of a conversion: tensors of the checkpoint read piece by piece and
 * checked, blocks of the output made piece by piece, both checksummed on the way. */
#ifndef CLB_IMPORT_CONVERT_IO_H
#define CLB_IMPORT_CONVERT_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/format/arch.h"
#include "lib/import/checkpoint.h"
#include "lib/import/convert_write.h"
#include "lib/import/quantise.h"
#include "lib/import/view.h"

/* Shared by all threads. */
struct clb_convert_io {
    const struct clb_pack_kernels *kernels;
    struct clb_writers *writers;
    void (*progress)(uint64_t done);
    bool measuring;        /* the pass before: nothing counts for checksums */
    _Atomic uint64_t done; /* bytes read */
};

/* What one thread works with: room for the views that it will read. */
struct clb_room {
    size_t in, raw, segment, scales; /* bytes, bytes, elements, elements */
    uint32_t rows;                   /* of the tallest matrix */
};
void clb_room_add(struct clb_room *room, const struct clb_view *v);

struct clb_worker {
    uint8_t *in; /* [in_bytes] rows as they are packed */
    size_t in_bytes;
    uint8_t *raw;       /* codes before they are decoded */
    uint8_t *raw_scale; /* of MXFP4 codes */
    uint8_t *segment;   /* pieces of columns */
    float *block_scale; /* of an FP8 tensor */
    float *scale;       /* [rows, padded] of int8 */
    uint32_t failed_job;
    struct clb_err err; /* of failed_job */
};
bool clb_worker_init(struct clb_worker *w, const struct clb_room *room, struct clb_err *err);
void clb_worker_done(struct clb_worker *w); /* safe on a zeroed struct */
/* The most that is written in one go: what clb_writers_new must know. */
size_t clb_worker_least(const struct clb_arch *a);

/* A view of a tensor of the checkpoint, read row by row. Checksums are those of the slice and of
 * the slice of its scales, complete when all rows were read; only where the view counts. */
struct clb_source {
    struct clb_convert_io *io;
    struct clb_worker *w;
    const struct clb_view *v;
    const struct clb_mapfile *file, *scale_file;
    enum clb_dtype dtype; /* of the rows: f32, fp16 or bf16 */
    bool along;           /* the checksum grows while rows are read */
    uint64_t wanted;      /* up to this byte the kernel was told to read ahead */
    uint32_t crc, scale_crc;
};
bool clb_source_open(struct clb_source *s, struct clb_worker *w, struct clb_convert_io *io,
                     const struct clb_checkpoint *c, const struct clb_view *v, struct clb_err *err);
/* Lets the kernel read the first part of a slice before anybody asks for it. */
void clb_source_announce(const struct clb_checkpoint *c, const struct clb_view *v);
/* How many rows to read at once: a multiple of the rows of a tile; room for them is in w->in. */
uint32_t clb_source_step(const struct clb_source *s);
/* n rows, decoded, side by side. Values are not checked. */
bool clb_source_rows(struct clb_source *s, uint32_t row, uint32_t n, void *out,
                     struct clb_err *err);
/* n elements of a vector, or of a matrix without gaps, from the first-th on. */
bool clb_source_values(struct clb_source *s, uint64_t first, size_t n, void *out,
                       struct clb_err *err);
/* n rows of MXFP4 as they are: [cols / 2] codes, [cols / 32] scales; steps from row to row in
 * bytes. Valid until the next read. */
struct clb_codes {
    const uint8_t *code, *scale;
    size_t code_step, scale_step;
};
bool clb_source_codes(struct clb_source *s, uint32_t row, uint32_t n, struct clb_codes *out,
                      struct clb_err *err);
/* Says which of the n values behind the first `before` is not finite or beyond the limit: there is
 * one. False. */
bool clb_source_refuse(const struct clb_source *s, const void *x, size_t n, uint64_t before,
                       float limit, struct clb_err *err);
/* A slice from start to end, for its checksum only. */
bool clb_read_slice(struct clb_worker *w, struct clb_convert_io *io, const struct clb_checkpoint *c,
                    const struct clb_ckpt_tensor *t, uint32_t slices, uint32_t slice, uint32_t *crc,
                    struct clb_err *err);

/* A block of the output, written from start to end. */
struct clb_block {
    struct clb_convert_io *io;
    uint64_t at; /* next byte of the file */
    uint32_t crc;
    struct clb_piece *piece; /* being filled; NULL: none */
};
/* Room for the next n bytes (at most clb_worker_least), to be filled before clb_block_add; NULL on
 * failure. */
void *clb_block_room(struct clb_block *b, size_t n, struct clb_err *err);
void clb_block_add(struct clb_block *b, size_t n);
bool clb_block_write(struct clb_block *b, const void *bytes, size_t n, struct clb_err *err);
bool clb_block_pad(struct clb_block *b, uint64_t until, struct clb_err *err); /* with zeros */
/* Sends off what was added; also after a failure. */
void clb_block_end(struct clb_block *b);

/* What a matrix becomes. */
struct clb_target {
    enum clb_dtype dtype;
    uint32_t rows, cols;
    uint64_t scale_at; /* in the file; int8 only */
    bool shared;       /* int8: all rows have `scale` */
    float scale;
    const struct clb_int4_book *book;
};
/* Every element is checked: NaN, infinity, or a value that the type cannot hold fails with file,
 * byte, tensor, row and column. */
bool clb_pack_matrix(struct clb_source *in, struct clb_block *out, const struct clb_target *to,
                     struct clb_loss *loss, struct clb_err *err);
/* A vector as f32; rows as they are stored. */
bool clb_copy_vector(struct clb_source *in, struct clb_block *out, struct clb_loss *loss,
                     struct clb_err *err);
bool clb_copy_rows(struct clb_source *in, struct clb_block *out, struct clb_loss *loss,
                   struct clb_err *err);
/* The largest magnitude (elements that are not finite are left to clb_pack_matrix). */
bool clb_measure(struct clb_source *in, float *most, struct clb_err *err);

#endif
