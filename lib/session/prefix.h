/* prefix.h - KV blocks that may be wanted again, found by the tokens they hold.
 *
 * An entry is one full block: its 64 tokens and the entry of the block before it. Two sequences
 * that reach the same entry have the same tokens from the start, so the chain needs no other proof;
 * the hash only finds candidates. The block at the end of a sequence is kept as well, though it is
 * not full: nothing follows it, and it is copied, not shared. Entries are kept until their block is
 * needed, the least recently used first, and never before those that continue them. Used by one
 * thread at a time. */
#ifndef CLB_SESSION_PREFIX_H
#define CLB_SESSION_PREFIX_H

#include "lib/backend/kv.h"

struct clb_prefix;

/* Where chains begin. Keys that were rotated by other frequencies (clb_kv_seq_rope) are other
 * blocks. */
enum { CLB_PREFIX_NONE = -1, CLB_PREFIX_ROOT = -2, CLB_PREFIX_ROOT_LONG = -3 };

/* As many entries as the pool (borrowed) has blocks. */
bool clb_prefix_new(struct clb_prefix **out, struct clb_kv_pool *pool, struct clb_err *err);
void clb_prefix_free(struct clb_prefix *p); /* before the pool; NULL is fine */
uint64_t clb_prefix_bytes(uint32_t n_block);

/* The entry that continues `parent` with these tokens [64]; CLB_PREFIX_NONE: there is none. */
int32_t clb_prefix_find(const struct clb_prefix *p, int32_t parent, const int32_t *token);
/* Adds a block of n <= 64 tokens: it is kept from now on. There is none yet that has all of them,
 * and a sequence has the block. */
int32_t clb_prefix_add(struct clb_prefix *p, int32_t parent, const int32_t *token, uint32_t n,
                       uint32_t block);
/* The entry behind `parent` that has the most of these n tokens from the first on: *same of them.
 * CLB_PREFIX_NONE with 0: not even the first. */
int32_t clb_prefix_nearest(const struct clb_prefix *p, int32_t parent, const int32_t *token,
                           uint32_t n, uint32_t *same);
uint32_t clb_prefix_block(const struct clb_prefix *p, int32_t entry);
/* The entry and those before it were used now. */
void clb_prefix_touch(struct clb_prefix *p, int32_t entry);
/* Frees the block of the entry that was not used for longest. False: sequences have them all. */
bool clb_prefix_evict(struct clb_prefix *p);

#endif
