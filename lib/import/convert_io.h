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


/* Shared by all threads. */
struct clb_convert_io {
    const struct clb_pack_kernels *kernels;
    struct clb_writers *writers;
    void (*progress)(uint64_t done);
    _Atomic uint64_t done; /* bytes read */
};

/* What one thread works with; sized for the widest matrix of the model. */
struct clb_worker {
    uint8_t *in;
    size_t in_bytes;
    float *scale; /* [rows of the tallest, padded] */
    uint32_t failed_job;
    struct clb_err err; /* of failed_job */
};
bool clb_worker_init(struct clb_worker *w, const struct clb_arch *a, struct clb_err *err);
void clb_worker_done(struct clb_worker *w); /* safe on a zeroed struct */
/* The most that is written in one go: what clb_writers_new must know. */
size_t clb_worker_least(const struct clb_arch *a);

/* A tensor of the checkpoint, read from start to end. */
struct clb_source {
    struct clb_convert_io *io;
    const struct clb_mapfile *file;
    const struct clb_st_tensor *t;
    enum clb_dtype dtype; /* of t */
    uint64_t at;          /* next byte of the file */
    uint64_t wanted;      /* up to here the kernel was told to read ahead */
    uint32_t crc;         /* of what was read */
};
void clb_source_open(struct clb_source *s, struct clb_convert_io *io,
                     const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t);
/* Lets the kernel read the first part of a tensor before anybody asks for it. */
void clb_source_announce(const struct clb_checkpoint *c, const struct clb_ckpt_tensor *t);

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
bool clb_pack_matrix(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                     const struct clb_target *to, struct clb_loss *loss, struct clb_err *err);
/* One half of a latent attention's kv_b_proj [head][nope + value][latent], which is read whole: of
 * each head k_up has the first `nope` rows, turned to [latent][nope], v_up the others as they
 * are. */
struct clb_kv_b {
    uint32_t n_head, nope, value, latent;
    bool keys; /* k_up; else v_up */
};
struct clb_kv_b clb_kv_b_of(const struct clb_arch *a, enum clb_role role);
bool clb_pack_kv_b(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                   const struct clb_target *to, const struct clb_kv_b *shape,
                   struct clb_loss *loss, struct clb_err *err);
/* A vector as f32; rows as they are stored. */
bool clb_copy_vector(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                     struct clb_loss *loss, struct clb_err *err);
bool clb_copy_rows(struct clb_worker *w, struct clb_source *in, struct clb_block *out,
                   struct clb_loss *loss, struct clb_err *err);
/* The largest magnitude (elements that are not finite are left to clb_pack_matrix). */
bool clb_measure(struct clb_worker *w, struct clb_source *in, float *most, struct clb_err *err);
/* For the checksum only. */
bool clb_read_through(struct clb_worker *w, struct clb_source *in, struct clb_err *err);

#endif
