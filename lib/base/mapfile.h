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
/* A hint: [at, at + n) will be read soon. */
void clb_mapfile_want(const struct clb_mapfile *m, uint64_t at, uint64_t n);
/* How [at, at + n) will be used from now on. False: this system does not know such a use, or the
 * range is too small for it.
 *   STREAM         from the first byte to the last; what is not in memory is read 2 MB at a time,
 *                  and mapped as a huge page where system and file system have them (the mapping
 *                  is aligned for that)
 *   STREAM_WITHIN  the same for whole huge pages of the range; nothing around it is mapped along
 *   BLOCKS         in runs of some MB that do not follow each other: like STREAM, but nothing more
 *                  is read ahead
 *   LOOKUP         here and there: nothing is read ahead or mapped along */
enum clb_map_use { CLB_MAP_STREAM, CLB_MAP_STREAM_WITHIN, CLB_MAP_BLOCKS, CLB_MAP_LOOKUP };
bool clb_mapfile_use(const struct clb_mapfile *m, uint64_t at, uint64_t n, enum clb_map_use use);
/* Explicit reads that report truncation and I/O errors as ordinary errors (no SIGBUS). */
bool clb_mapfile_read(const struct clb_mapfile *m, void *dst, uint64_t at, size_t n,
                      struct clb_err *err);

#endif
