/* convert_write.h - the way of a conversion's output to the disk: threads that compute fill pieces,
 * writers write them, so that nobody who could compute waits for a disk.
 *
 * Whole pages are written past the page cache where the file system can (a model may be larger
 * than memory, and copying it there costs more than making it); everything else through it. */
#ifndef CLB_IMPORT_CONVERT_WRITE_H
#define CLB_IMPORT_CONVERT_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct clb_writers;

struct clb_piece {
    uint8_t *bytes; /* [room] page aligned, owned by the writers */
    size_t room, n; /* n: filled */
    uint64_t at;    /* where in the file its first byte goes */
    struct clb_piece *next;
};

/* fd: borrowed. A piece has room for `least` bytes and a page. n_thread: how many threads will hold
 * one piece each. */
bool clb_writers_new(struct clb_writers **out, int fd, unsigned n_thread, size_t least,
                     struct clb_err *err);
void clb_writers_free(struct clb_writers *w); /* NULL is fine; pieces not yet written are dropped */

/* An empty piece, when there is one; NULL when writing has failed. */
struct clb_piece *clb_writers_take(struct clb_writers *w, struct clb_err *err);
/* To be written, if it holds anything, and then empty again. */
void clb_writers_give(struct clb_writers *w, struct clb_piece *piece);
/* Waits until all that was given is written; false when something could not be. */
bool clb_writers_wait(struct clb_writers *w, struct clb_err *err);

#endif
