/* mapfile.h - a file mapped read-only. */
#ifndef CLB_BASE_MAPFILE_H
#define CLB_BASE_MAPFILE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct clb_mapfile {
    const uint8_t *data; /* size bytes, owned; NULL when size is 0 */
    size_t size;
    int fd;     /* owned; -1 when closed */
    char *path; /* owned copy */
};

/* Regular files only (a symbolic link to one is fine). Errors are CLB_BAD_INPUT with path and errno
 * text; a folder, a fifo or a device is named as such. */
bool clb_mapfile_open(struct clb_mapfile *m, const char *path, struct clb_err *err);
void clb_mapfile_close(struct clb_mapfile *m); /* safe on a zeroed struct */
/* Hints for [at, at + n): will be read soon / not again (its pages leave this process). */
void clb_mapfile_want(const struct clb_mapfile *m, uint64_t at, uint64_t n);
void clb_mapfile_drop(const struct clb_mapfile *m, uint64_t at, uint64_t n);
/* Explicit reads that report truncation and I/O errors as ordinary errors (no SIGBUS). */
bool clb_mapfile_read(const struct clb_mapfile *m, void *dst, uint64_t at, size_t n,
                      struct clb_err *err);

#endif
