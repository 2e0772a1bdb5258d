/* checkpoint.h - a Hugging Face folder: which files it has, and all tensors of its shards.
 *
 * Weights are model.safetensors, or the shards that model.safetensors.index.json names: only those
 * are read, and index and shards must agree in both directions. Symbolic links are followed (hub
 * caches are made of them), names that leave the folder are refused. */
#ifndef CLB_IMPORT_CHECKPOINT_H
#define CLB_IMPORT_CHECKPOINT_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/import/problems.h"
#include "lib/import/safetensors.h"

enum clb_ckpt_text {
    CLB_CKPT_CONFIG,
    CLB_CKPT_GENERATION,
    CLB_CKPT_TOKENIZER,
    CLB_CKPT_TOKENIZER_MODEL, /* only where there is no tokenizer.json, which comes first */
    CLB_CKPT_TIKTOKEN,        /* only where there is neither */
    CLB_CKPT_TOKENIZER_CONFIG,
    CLB_CKPT_CHAT_TEMPLATE,
    CLB_CKPT_INDEX,
    CLB_CKPT_MAP, /* not of the folder: clb_checkpoint_open_map */
    CLB_CKPT_TEXTS
};

/* A tensor and the shard that holds it. */
struct clb_ckpt_tensor {
    const struct clb_st_tensor *t;
    uint32_t shard;
};

/* A file that was read whole. */
struct clb_ckpt_file {
    char *path;    /* owned */
    uint8_t *data; /* [size] owned */
    size_t size;
};

struct clb_checkpoint {
    char *dir;                                 /* owned */
    struct clb_ckpt_file text[CLB_CKPT_TEXTS]; /* path NULL: the folder has no such file */
    struct clb_safetensors *shard;             /* [n_shard] owned */
    char **shard_name;                         /* [n_shard] owned, ascending */
    uint32_t n_shard;
    struct clb_ckpt_tensor *tensor; /* [n_tensor] owned, ascending names, each once */
    uint32_t n_tensor;
    struct clb_problems problems; /* what was wrong, when open or open_shards failed */
};

/* "config.json", ...; of the map the last part of its path. */
const char *clb_checkpoint_text_name(const struct clb_checkpoint *c, int text);

/* The folder and its JSON files. config.json must be there. */
bool clb_checkpoint_open(struct clb_checkpoint *c, const char *dir, struct clb_err *err);
/* The file of --map, wherever it lies; its name must not be that of a file of the checkpoint. */
bool clb_checkpoint_open_map(struct clb_checkpoint *c, const char *path, struct clb_err *err);
/* Headers of all shards. Weight files that are not used are noted. */
bool clb_checkpoint_open_shards(struct clb_checkpoint *c, struct clb_text *notes,
                                struct clb_err *err);
/* The tensor of this name; NULL: there is none. */
const struct clb_ckpt_tensor *clb_checkpoint_find(const struct clb_checkpoint *c, const char *name);
/* The path of the first file of the folder, by name, that ends in `end`, owned by the caller. NULL:
 * there is none (err->code is CLB_OK), or there is no memory. */
char *clb_checkpoint_ending(const struct clb_checkpoint *c, const char *end, struct clb_err *err);
void clb_checkpoint_close(struct clb_checkpoint *c); /* safe on a zeroed struct */

/* Whether path is (by device and inode) one of the folder's entries, or the map. */
bool clb_checkpoint_has(const struct clb_checkpoint *c, const char *path);

#endif
