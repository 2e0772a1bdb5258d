/* kv.c - the block pool of the KV cache and the block tables of sequences.
 *
 * The pool takes its memory at once but touches none of it: a page costs memory when its first
 * position is written. Free blocks are bits of a bitmap; the lowest is handed out first, so
 * that short work stays in few pages. */
#include "lib/backend/kv.h"

#include <pthread.h>
#include <string.h>

#include "lib/base/mem.h"

struct clb_kv_pool {
    struct clb_kv_shape shape;
    uint8_t *base; /* [n_block][shape.block_bytes] owned */
    uint32_t n_block, n_free;
    uint32_t hint;      /* no free bit below this word */
    uint64_t *free_bit; /* [(n_block + 63) / 64] owned; 1: free */
    uint32_t *use;      /* [n_block] owned; sequences that have it, and KEPT */
    uint32_t n_idle, n_shared;
    struct clb_kv_where where; /* without a ledger until the memory is there */
    pthread_mutex_t lock;
};

#define KEPT (UINT32_C(1) << 31)

static uint32_t element_bytes(enum clb_kv_dtype t)
{
    return t == CLB_KV_F32 ? 4 : t == CLB_KV_F16 ? 2 : 1;
}

/* [dim][64] or [64][dim] elements, then for int8 one f32 scale per position. */
static bool part_bytes(uint32_t dim, enum clb_kv_dtype t, uint64_t *scale_at, uint64_t *bytes)
{
    uint64_t n;

    if (!clb_mul((uint64_t)dim * CLB_KV_BLOCK, element_bytes(t), &n) || !clb_round_up(n, 64, &n))
        return false;
    *scale_at = t == CLB_KV_INT8 ? n : 0;
    return clb_add(n, t == CLB_KV_INT8 ? CLB_KV_BLOCK * sizeof(float) : 0, bytes);
}

bool clb_kv_shape_init(struct clb_kv_shape *s, const struct clb_arch *a, enum clb_kv_dtype dtype)
{
    bool mla = a->attention == CLB_ATTN_MLA; /* one head: the latent and the rotated key */

    *s = (struct clb_kv_shape){
        .n_layer = a->n_layer,
        .n_kv_head = mla ? 1 : a->n_kv_head,
        .key_dim = mla ? a->kv_lora_rank + a->qk_rope_dim : a->head_dim,
        .value_dim = mla ? a->kv_lora_rank : a->value_dim,
        .dtype = dtype,
    };
    return part_bytes(s->key_dim, dtype, &s->k_scale_at, &s->k_bytes) &&
           part_bytes(s->value_dim, dtype, &s->v_scale_at, &s->v_bytes) &&
           clb_add(s->k_bytes, s->v_bytes, &s->head_bytes) &&
           clb_mul(s->head_bytes, s->n_kv_head, &s->layer_bytes) &&
           clb_mul(s->layer_bytes, s->n_layer, &s->block_bytes);
}

static uint8_t *new_memory(const struct clb_kv_where *w, uint64_t bytes, struct clb_err *err)
{
    if (!w->memory)
        return clb_pages_new(bytes, true, w->residence, "KV cache", err);
    uint8_t *p = w->memory->get(w->memory->arg, bytes, err);
    if (!p)
        clb_fail_in(err, "KV cache");
    return p;
}

bool clb_kv_pool_new(struct clb_kv_pool **out, const struct clb_kv_shape *shape, uint32_t n_block,
                     const struct clb_kv_where *where, struct clb_err *err)
{
    struct clb_kv_pool *p = clb_new(1, sizeof *p, err);
    uint64_t bytes = 0;

    *out = NULL;
    if (!p)
        return false;
    pthread_mutex_init(&p->lock, NULL);
    p->shape = *shape;
    p->where = (struct clb_kv_where){ .residence = where->residence, .memory = where->memory };
    p->n_block = p->n_free = n_block;
    p->free_bit = clb_new(((size_t)n_block + 63) / 64, sizeof *p->free_bit, err);
    p->use = p->free_bit ? clb_new(n_block, sizeof *p->use, err) : NULL;
    if (p->use && !clb_mul(n_block, shape->block_bytes, &bytes))
        clb_fail_nomem(err, UINT64_MAX);
    else if (p->use)
        p->base = new_memory(where, bytes, err);
    if (!p->base) {
        clb_kv_pool_free(p);
        return false;
    }
    for (uint32_t b = 0; b < n_block; b++)
        p->free_bit[b / 64] |= UINT64_C(1) << b % 64;
    p->where.ledger = where->ledger;
    if (where->ledger)
        clb_ledger_add(where->ledger, bytes, bytes);
    *out = p;
    return true;
}

void clb_kv_pool_free(struct clb_kv_pool *p)
{
    if (!p)
        return;
    uint64_t bytes = p->n_block * p->shape.block_bytes;
    if (p->where.ledger)
        clb_ledger_sub(p->where.ledger, bytes, bytes);
    if (p->where.memory)
        p->where.memory->put(p->where.memory->arg, p->base, bytes);
    else
        clb_pages_free(p->base, bytes, p->where.residence);
    clb_free(p->free_bit);
    clb_free(p->use);
    pthread_mutex_destroy(&p->lock);
    clb_free(p);
}

const struct clb_kv_shape *clb_kv_pool_shape(const struct clb_kv_pool *p)
{
    return &p->shape;
}

struct clb_kv_counts clb_kv_pool_counts(const struct clb_kv_pool *p)
{
    struct clb_kv_pool *q = (struct clb_kv_pool *)p; /* the lock is not part of its value */

    pthread_mutex_lock(&q->lock);
    struct clb_kv_counts n = {
        .n_block = p->n_block, .n_free = p->n_free, .n_idle = p->n_idle, .n_shared = p->n_shared
    };
    pthread_mutex_unlock(&q->lock);
    return n;
}

uint32_t clb_kv_pool_available(const struct clb_kv_pool *p)
{
    return clb_kv_pool_counts(p).n_free;
}

/* The caller holds the lock. */
static bool take_lowest(struct clb_kv_pool *p, uint32_t *block)
{
    if (!p->n_free)
        return false;
    while (!p->free_bit[p->hint])
        p->hint++;
    unsigned bit = (unsigned)__builtin_ctzll(p->free_bit[p->hint]);
    p->free_bit[p->hint] &= ~(UINT64_C(1) << bit);
    p->n_free--;
    *block = p->hint * 64 + bit;
    p->use[*block] = 1;
    return true;
}

/* Likewise. */
static void set_free(struct clb_kv_pool *p, uint32_t block)
{
    p->free_bit[block / 64] |= UINT64_C(1) << block % 64;
    p->n_free++;
    if (block / 64 < p->hint)
        p->hint = block / 64;
}

bool clb_kv_pool_take(struct clb_kv_pool *p, uint32_t *block)
{
    pthread_mutex_lock(&p->lock);
    bool ok = take_lowest(p, block);
    pthread_mutex_unlock(&p->lock);
    return ok;
}

void clb_kv_pool_give(struct clb_kv_pool *p, uint32_t block)
{
    pthread_mutex_lock(&p->lock);
    uint32_t use = --p->use[block];
    p->n_shared -= (use & ~KEPT) == 1;
    p->n_idle += use == KEPT;
    if (use == 0)
        set_free(p, block);
    pthread_mutex_unlock(&p->lock);
}

void clb_kv_pool_share(struct clb_kv_pool *p, uint32_t block)
{
    pthread_mutex_lock(&p->lock);
    uint32_t use = p->use[block]++;
    p->n_shared += (use & ~KEPT) == 1;
    p->n_idle -= use == KEPT;
    pthread_mutex_unlock(&p->lock);
}

void clb_kv_pool_keep(struct clb_kv_pool *p, uint32_t block)
{
    pthread_mutex_lock(&p->lock);
    p->use[block] |= KEPT;
    pthread_mutex_unlock(&p->lock);
}

void clb_kv_pool_drop(struct clb_kv_pool *p, uint32_t block)
{
    pthread_mutex_lock(&p->lock);
    p->use[block] &= ~KEPT;
    if (p->use[block] == 0) {
        p->n_idle--;
        set_free(p, block);
    }
    pthread_mutex_unlock(&p->lock);
}

bool clb_kv_pool_is_idle(const struct clb_kv_pool *p, uint32_t block)
{
    struct clb_kv_pool *q = (struct clb_kv_pool *)p;

    pthread_mutex_lock(&q->lock);
    bool idle = p->use[block] == KEPT;
    pthread_mutex_unlock(&q->lock);
    return idle;
}

uint8_t *clb_kv_pool_block(const struct clb_kv_pool *p, uint32_t block)
{
    return p->base + block * p->shape.block_bytes;
}

bool clb_kv_pool_copy(struct clb_kv_pool *p, uint32_t to, uint32_t from, struct clb_err *err)
{
    const struct clb_memory *m = p->where.memory;
    uint8_t *at = clb_kv_pool_block(p, to);

    if (m)
        return m->copy(m->arg, at, clb_kv_pool_block(p, from), p->shape.block_bytes, err);
    memcpy(at, clb_kv_pool_block(p, from), p->shape.block_bytes);
    return true;
}

static uint32_t blocks_for(uint32_t length)
{
    return length / CLB_KV_BLOCK + (length % CLB_KV_BLOCK != 0);
}

bool clb_kv_seq_reserve(struct clb_kv_seq *s, uint32_t length, struct clb_err *err)
{
    uint32_t want = blocks_for(length), had = s->n_block;

    if (want > s->n_block_max)
        return clb_fail(err, CLB_USAGE, "%u positions do not fit: the sequence was opened for %llu",
                        length, (unsigned long long)s->n_block_max * CLB_KV_BLOCK);
    while (s->n_block < want && clb_kv_pool_take(s->pool, &s->block[s->n_block]))
        s->n_block++;
    if (s->n_block >= want)
        return true;

    uint32_t found = s->n_block - had;
    while (s->n_block > had)
        clb_kv_pool_give(s->pool, s->block[--s->n_block]);
    return clb_fail(err, CLB_NO_SPACE,
                    "the KV cache is full: %u more blocks of %d positions are needed, %u are free",
                    want - had, CLB_KV_BLOCK, found);
}

void clb_kv_seq_replace(struct clb_kv_seq *s, uint32_t i, uint32_t block)
{
    clb_kv_pool_share(s->pool, block);
    clb_kv_pool_give(s->pool, s->block[i]);
    s->block[i] = block;
}

void clb_kv_seq_adopt(struct clb_kv_seq *s, uint32_t block)
{
    uint32_t i = s->length / CLB_KV_BLOCK;

    if (i < s->n_block) {
        clb_kv_seq_replace(s, i, block);
    } else {
        clb_kv_pool_share(s->pool, block);
        s->block[s->n_block++] = block;
    }
    s->length += CLB_KV_BLOCK;
}

void clb_kv_seq_truncate(struct clb_kv_seq *s, uint32_t length)
{
    if (length < s->length)
        s->length = length;
    while (s->n_block > blocks_for(length))
        clb_kv_pool_give(s->pool, s->block[--s->n_block]);
}
