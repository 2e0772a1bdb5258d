/* shard_index.h - model.safetensors.index.json: which tensor is in which file. */
#ifndef CLB_IMPORT_SHARD_INDEX_H
#define CLB_IMPORT_SHARD_INDEX_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

struct clb_index_entry {
    const char *tensor;
    uint32_t file; /* index into `file` */
};

struct clb_shard_index {
    struct clb_index_entry *entry; /* [n_entry] owned, ascending tensor names */
    uint32_t n_entry;
    const char **file; /* [n_file] owned, ascending, each once */
    uint32_t n_file;
    struct clb_text text; /* owned: all names */
};

/* Refuses file names that are not plain names in the folder. At least one entry. */
bool clb_shard_index_read(struct clb_shard_index *ix, const char *json, size_t n, const char *path,
                          struct clb_err *err);
void clb_shard_index_free(struct clb_shard_index *ix); /* safe on a zeroed struct */

#endif
