/* kv.h - how keys and values of a sequence are stored: blocks of 64 positions, counted from
 * position 0, from one pool reserved in advance. A block holds 64 positions of every layer:
 *
 *   per layer, per KV head:   K transposed [key_dim][64], then V [64][value_dim], each 64-byte
 *                             aligned; int8 adds f32 scales [64] behind K and behind V, one per
 *                             position
 *
 * Layout lives here so that session code can size it and backends can address it. A backend with
 * memory of its own has another one (struct clb_device_ops): then only sizes are known here. */
#ifndef CLB_BACKEND_KV_H
#define CLB_BACKEND_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/backend/kv_dtype.h"
#include "lib/backend/memory.h"
#include "lib/base/err.h"
#include "lib/base/slab.h"
#include "lib/format/arch.h"

enum { CLB_KV_BLOCK = 64 };

struct clb_kv_shape {
    uint32_t n_layer, n_kv_head, key_dim, value_dim;
    enum clb_kv_dtype dtype;
    /* derived, all in bytes, multiples of 64 */
    uint64_t k_bytes, v_bytes;       /* of one head of one layer, scales included */
    uint64_t k_scale_at, v_scale_at; /* inside the K / V part; int8 only */
    uint64_t head_bytes, layer_bytes, block_bytes;
};
/* False when a size overflows. */
bool clb_kv_shape_init(struct clb_kv_shape *s, const struct clb_arch *a, enum clb_kv_dtype dtype);

/* Whose memory it is; all borrowed, each may be NULL. */
struct clb_kv_where {
    struct clb_ledger *ledger;
    struct clb_residence *residence;
    const struct clb_memory *memory; /* of the backend; NULL: of the host */
};

/* The pool: `n_block` blocks reserved at once (the one allocation, on huge pages), handed out and
 * taken back. Thread safe. Blocks are handed out lowest index first, zeroed pages come from the
 * system untouched.
 *
 * A block can belong to several sequences whose first tokens are the same, and it can be kept for
 * sequences to come when none has it: whoever shares a block does not write to it. It is free again
 * when no sequence has it and nobody keeps it. */
struct clb_kv_pool;
bool clb_kv_pool_new(struct clb_kv_pool **out, const struct clb_kv_shape *shape, uint32_t n_block,
                     const struct clb_kv_where *where, struct clb_err *err);
void clb_kv_pool_free(struct clb_kv_pool *p);
const struct clb_kv_shape *clb_kv_pool_shape(const struct clb_kv_pool *p);
uint32_t clb_kv_pool_available(const struct clb_kv_pool *p);
bool clb_kv_pool_take(struct clb_kv_pool *p, uint32_t *block); /* false: none left */
void clb_kv_pool_give(struct clb_kv_pool *p, uint32_t block);  /* by one of its sequences */
void clb_kv_pool_share(struct clb_kv_pool *p, uint32_t block); /* one more sequence has it */
void clb_kv_pool_keep(struct clb_kv_pool *p, uint32_t block);  /* at most once, until dropped */
void clb_kv_pool_drop(struct clb_kv_pool *p, uint32_t block);
bool clb_kv_pool_is_idle(const struct clb_kv_pool *p, uint32_t block); /* only kept */

struct clb_kv_counts {
    uint32_t n_block, n_free;
    uint32_t n_idle;   /* kept, but no sequence has them */
    uint32_t n_shared; /* more than one sequence has them */
};
struct clb_kv_counts clb_kv_pool_counts(const struct clb_kv_pool *p);
/* Where a block lies; the host may touch it only if the pool is in host memory. */
uint8_t *clb_kv_pool_block(const struct clb_kv_pool *p, uint32_t block);
/* Block `to` holds what `from` holds. */
bool clb_kv_pool_copy(struct clb_kv_pool *p, uint32_t to, uint32_t from, struct clb_err *err);

/* One sequence: block i holds positions 64 i .. 64 i + 63. */
struct clb_kv_seq {
    struct clb_kv_pool *pool; /* borrowed */
    uint32_t *block;          /* [n_block_max] owned by the session */
    uint32_t n_block, n_block_max;
    uint32_t length;       /* positions that are filled */
    float rope_scale;      /* chosen once per session from its declared context (longrope) */
    const float *inv_freq; /* [rope_dim / 2] likewise; borrowed from the model */
};
/* Takes blocks until `length` positions fit; all or nothing. */
bool clb_kv_seq_reserve(struct clb_kv_seq *s, uint32_t length, struct clb_err *err);
/* Block i becomes `block`, which holds the same and is shared with whoever has it. */
void clb_kv_seq_replace(struct clb_kv_seq *s, uint32_t i, uint32_t block);
/* The block at the end of the sequence, whose length is a multiple of 64, becomes `block` (shared
 * with whoever has it), all 64 positions of which are filled. */
void clb_kv_seq_adopt(struct clb_kv_seq *s, uint32_t block);
/* Gives back every block beyond `length` positions and sets the length (only downwards). */
void clb_kv_seq_truncate(struct clb_kv_seq *s, uint32_t length);

/* Addresses inside a block. */
static inline uint8_t *clb_kv_k(const struct clb_kv_shape *s, uint8_t *block, uint32_t layer,
                                uint32_t head)
{
    return block + layer * s->layer_bytes + head * s->head_bytes;
}
static inline uint8_t *clb_kv_v(const struct clb_kv_shape *s, uint8_t *block, uint32_t layer,
                                uint32_t head)
{
    return clb_kv_k(s, block, layer, head) + s->k_bytes;
}

#endif
