/* outfile.h - an output file that is either complete or not there.
 *
 * open:    refuses an existing file unless force (that the output is not an input is the caller's
 *          business: clb_same_file); with `size` > 0 the disk must have room: CLB_NO_SPACE with
 *          both numbers. Creates a hidden temporary in the same folder, so that the final rename is
 *          atomic. A temporary of a killed run is removed when its owner is gone.
 * commit:  fsync, rename (without force one that never replaces), fsync of the folder.
 * discard: removes the temporary. Safe on a zeroed struct and after commit.
 *
 * A temporary left open when a signal of doomed.h arrives is removed and the process dies of the
 * signal (ignored ones stay ignored; previous actions are restored after commit). */
#ifndef CLB_CLI_OUTFILE_H
#define CLB_CLI_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct clb_outfile {
    int fd;           /* owned; valid between open and commit */
    const char *path; /* borrowed from the caller */
    char *tmp;        /* owned; NULL when not open */
    bool force;
};

/* A path that is a device (/dev/full, /dev/null) is written directly. */
bool clb_outfile_open(struct clb_outfile *o, const char *path, bool force, uint64_t size,
                      struct clb_err *err);
/* Appends all n bytes. */
bool clb_outfile_write(struct clb_outfile *o, const void *bytes, size_t n, struct clb_err *err);
bool clb_outfile_commit(struct clb_outfile *o, struct clb_err *err);
void clb_outfile_discard(struct clb_outfile *o);

/* Both paths name one file, by whatever name, or would name one if it were made. */
bool clb_same_file(const char *a, const char *b);

/* Writes all n bytes, however often a signal or a full pipe cuts in; `path` is for the message. */
bool clb_write_all(int fd, const void *bytes, size_t n, const char *path, struct clb_err *err);

#endif
