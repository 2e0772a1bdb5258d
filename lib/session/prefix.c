#include "lib/session/prefix.h"

#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { NONE = CLB_PREFIX_NONE };

struct entry {
    uint64_t hash;
    int32_t parent;       /* an entry, or a root */
    int32_t next;         /* with the same bucket; of a free entry: the next free one */
    int32_t newer, older; /* by last use; NONE at the ends */
    int32_t child;        /* the first of those behind it */
    int32_t left, right;  /* behind the same parent */
    uint32_t block, n;
    int32_t token[CLB_KV_BLOCK]; /* n of them */
};

struct clb_prefix {
    struct clb_kv_pool *pool; /* borrowed */
    struct entry *entry;      /* [n_block] owned */
    int32_t *bucket;          /* [mask + 1] owned; the first entry, or NONE */
    uint64_t mask, seed;
    int32_t free, newest, oldest;
    int32_t first[2]; /* behind the roots */
};

static uint64_t buckets_for(uint32_t n_block)
{
    uint64_t n = 16;

    while (n < n_block)
        n *= 2;
    return n;
}

uint64_t clb_prefix_bytes(uint32_t n_block)
{
    return sizeof(struct clb_prefix) + n_block * (uint64_t)sizeof(struct entry) +
           buckets_for(n_block) * sizeof(int32_t);
}

bool clb_prefix_new(struct clb_prefix **out, struct clb_kv_pool *pool, struct clb_err *err)
{
    uint32_t n = clb_kv_pool_counts(pool).n_block;
    struct clb_prefix *p = clb_new(1, sizeof *p, err);

    *out = NULL;
    if (!p)
        return false;
    p->pool = pool;
    p->mask = buckets_for(n) - 1;
    p->entry = clb_new(n, sizeof *p->entry, err);
    p->bucket = p->entry ? clb_new(p->mask + 1, sizeof *p->bucket, err) : NULL;
    if (!p->bucket) {
        clb_prefix_free(p);
        return false;
    }
    for (uint64_t i = 0; i <= p->mask; i++)
        p->bucket[i] = NONE;
    for (uint32_t i = 0; i < n; i++)
        p->entry[i].next = i + 1 < n ? (int32_t)i + 1 : NONE;
    p->newest = p->oldest = p->first[0] = p->first[1] = NONE;
    /* Who chooses the tokens shall not know which of them fall into one bucket. */
    double now = clb_now();
    memcpy(&p->seed, &now, sizeof now);
    p->seed ^= (uintptr_t)p;
    *out = p;
    return true;
}

void clb_prefix_free(struct clb_prefix *p)
{
    if (!p)
        return;
    clb_free(p->entry);
    clb_free(p->bucket);
    clb_free(p);
}

/* -- find -------------------------------------------------------------------------------------- */

/* The two halves of the product, mixed. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t low = a * b, a1 = a >> 32, b1 = b >> 32, a0 = (uint32_t)a, b0 = (uint32_t)b;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = (uint32_t)middle + a0 * b1;

    return low ^ (a1 * b1 + (middle >> 32) + (other >> 32));
}

static uint64_t hash_of(const struct clb_prefix *p, int32_t parent, const int32_t *token)
{
    uint64_t h = p->seed ^ (uint32_t)parent * UINT64_C(0x9e3779b97f4a7c15);

    for (int i = 0; i < CLB_KV_BLOCK; i += 2) {
        uint64_t two = (uint32_t)token[i] | (uint64_t)(uint32_t)token[i + 1] << 32;
        h = mix(h ^ two, p->seed | 1) + UINT64_C(0xd6e8feb86659fd93);
    }
    return h;
}

int32_t clb_prefix_find(const struct clb_prefix *p, int32_t parent, const int32_t *token)
{
    uint64_t h = hash_of(p, parent, token);
    int32_t i = p->bucket[h & p->mask];

    while (i != NONE && (p->entry[i].hash != h || p->entry[i].parent != parent ||
                         memcmp(p->entry[i].token, token, sizeof p->entry[i].token) != 0))
        i = p->entry[i].next;
    return i;
}

/* Where the list of those behind `parent` begins. */
static int32_t *children(struct clb_prefix *p, int32_t parent)
{
    return parent >= 0 ? &p->entry[parent].child : &p->first[parent == CLB_PREFIX_ROOT_LONG];
}

int32_t clb_prefix_nearest(const struct clb_prefix *p, int32_t parent, const int32_t *token,
                           uint32_t n, uint32_t *same)
{
    int32_t best = NONE;

    *same = 0;
    for (int32_t i = *children((struct clb_prefix *)p, parent); i != NONE; i = p->entry[i].right) {
        const struct entry *e = &p->entry[i];
        uint32_t k = 0;

        while (k < n && k < e->n && e->token[k] == token[k])
            k++;
        if (k > *same) {
            *same = k;
            best = i;
        }
    }
    return best;
}

uint32_t clb_prefix_block(const struct clb_prefix *p, int32_t entry)
{
    return p->entry[entry].block;
}

/* -- the order of use -------------------------------------------------------------------------- */

static void unlink_use(struct clb_prefix *p, int32_t i)
{
    const struct entry *e = &p->entry[i];

    *(e->newer != NONE ? &p->entry[e->newer].older : &p->newest) = e->older;
    *(e->older != NONE ? &p->entry[e->older].newer : &p->oldest) = e->newer;
}

static void link_newest(struct clb_prefix *p, int32_t i)
{
    p->entry[i].older = p->newest;
    p->entry[i].newer = NONE;
    *(p->newest != NONE ? &p->entry[p->newest].newer : &p->oldest) = i;
    p->newest = i;
}

void clb_prefix_touch(struct clb_prefix *p, int32_t entry)
{
    for (int32_t i = entry; i >= 0; i = p->entry[i].parent) {
        unlink_use(p, i);
        link_newest(p, i);
    }
}

/* -- add and evict ----------------------------------------------------------------------------- */

static void link_child(struct clb_prefix *p, int32_t i)
{
    int32_t *first = children(p, p->entry[i].parent);

    p->entry[i].left = NONE;
    p->entry[i].right = *first;
    if (*first != NONE)
        p->entry[*first].left = i;
    *first = i;
}

static void unlink_child(struct clb_prefix *p, int32_t i)
{
    const struct entry *e = &p->entry[i];

    *(e->left != NONE ? &p->entry[e->left].right : children(p, e->parent)) = e->right;
    if (e->right != NONE)
        p->entry[e->right].left = e->left;
}

int32_t clb_prefix_add(struct clb_prefix *p, int32_t parent, const int32_t *token, uint32_t n,
                       uint32_t block)
{
    int32_t i = p->free; /* every entry has a block of its own: there are enough */
    struct entry *e = &p->entry[i];

    p->free = e->next;
    e->parent = parent;
    e->child = NONE;
    e->block = block;
    e->n = n;
    memcpy(e->token, token, n * sizeof *token);
    if (n == CLB_KV_BLOCK) {
        e->hash = hash_of(p, parent, token);
        e->next = p->bucket[e->hash & p->mask];
        p->bucket[e->hash & p->mask] = i;
    }
    link_child(p, i);
    link_newest(p, i);
    clb_kv_pool_keep(p->pool, block);
    return i;
}

static void drop(struct clb_prefix *p, int32_t i)
{
    struct entry *e = &p->entry[i];

    if (e->n == CLB_KV_BLOCK) {
        int32_t *at = &p->bucket[e->hash & p->mask];
        while (*at != i)
            at = &p->entry[*at].next;
        *at = e->next;
    }
    unlink_child(p, i);
    unlink_use(p, i);
    clb_kv_pool_drop(p->pool, e->block);
    e->next = p->free;
    p->free = i;
}

/* Entries are older than those before them (clb_prefix_touch), and who has the block of an entry
 * has those before it as well: so the oldest that nobody has is one that nothing continues. Were
 * it not, its successors would hang on whatever takes its place. */
bool clb_prefix_evict(struct clb_prefix *p)
{
    for (int32_t i = p->oldest; i != NONE; i = p->entry[i].newer)
        if (p->entry[i].child == NONE && clb_kv_pool_is_idle(p->pool, p->entry[i].block)) {
            drop(p, i);
            return true;
        }
    return false;
}
