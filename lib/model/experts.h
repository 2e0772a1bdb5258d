/* experts.h - the expert store: where the weights of an expert lie in memory when it is needed.
 * With enough memory that is the mapping; with a memory budget it is a cache filled by explicit
 * large reads, and the rest of the engine cannot tell. Not thread safe: the model's lock covers it.
 */
#ifndef CLB_MODEL_EXPERTS_H
#define CLB_MODEL_EXPERTS_H

#include <stdint.h>

#include "lib/base/ahead.h"
#include "lib/base/slab.h"
#include "lib/format/reader.h"

struct clb_experts;

struct clb_experts_options {
    /* 0: the mapping itself, which is told how it will be read. Else a cache: at most so many bytes
     * of expert blocks are held (never less than one layer's top_k blocks: CLB_NO_SPACE says what
     * is needed). */
    uint64_t budget;
    bool verify; /* checksums on first touch */
    /* Borrowed; each may be NULL but the ledger. */
    struct clb_ledger *ledger;
    struct clb_residence *residence; /* of a cache */
    struct clb_ahead *ahead;         /* of the mapping: reads what is not in memory */
    bool again; /* the system will run short of memory: what was read once may be gone */
};
bool clb_experts_new(struct clb_experts **out, const struct clb_reader *r,
                     const struct clb_experts_options *o, struct clb_err *err);
void clb_experts_free(struct clb_experts *s);
/* Changes the budget of a cache; what is held stays as far as it fits, least recently used blocks
 * go first. On failure the cache holds fewer blocks than asked for, but is usable. Nothing happens
 * when there is no cache. */
bool clb_experts_resize(struct clb_experts *s, uint64_t budget, struct clb_err *err);
/* Bytes that a cache holds now. */
uint64_t clb_experts_held_bytes(const struct clb_experts *s);
uint64_t clb_experts_pinned_bytes(const struct clb_experts *s); /* of them, registered */
/* From now on each block of a cache is registered with a device for as long as the cache has it;
 * pins NULL: no block is any more. False: one could not be registered, so none is. A block that
 * joins later and cannot be is not an error: copies from it take another way. Nothing happens when
 * there is no cache. */
struct clb_experts_pins {
    bool (*pin)(void *arg, const void *at, uint64_t bytes, struct clb_err *err);
    void (*unpin)(void *arg, const void *at);
    void *arg;
};
bool clb_experts_pin(struct clb_experts *s, const struct clb_experts_pins *pins,
                     struct clb_err *err);
/* The most experts one get may ask for. */
uint32_t clb_experts_max_get(const struct clb_experts *s);
/* Bytes that the cache of a file takes: at least, and to hold every expert. */
uint64_t clb_experts_least_bytes(const struct clb_reader *r);
uint64_t clb_experts_all_bytes(const struct clb_reader *r);
/* Between those two: what a cache with this budget will hold, whole experts. */
uint64_t clb_experts_fit_bytes(const struct clb_reader *r, uint64_t budget);
/* block[i] = where expert id[i] of the layer lies; valid until the next get. */
bool clb_experts_get(struct clb_experts *s, uint32_t layer, const uint32_t *id, uint32_t n,
                     const uint8_t **block, struct clb_err *err);
void clb_experts_prefetch(struct clb_experts *s, uint32_t layer, const uint32_t *id, uint32_t n);

#endif
