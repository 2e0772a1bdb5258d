/* cpu_attn_mix.c - scores, softmax and weighted values, block by block of the KV cache. Query heads
 * that share a KV head, of several rows, meet a block together. Blocks fold in ascending order,
 * whoever computed them; blocks without a valid key are left out, which changes nothing. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "lib/base/fmath.h"

enum { RUN = 4 };       /* blocks of an item before a thread looks for another */
#define BUSY (1u << 31) /* a thread has the item */

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    uint32_t heads, per_group; /* query heads of an item at most; items of a group of rows */
    uint32_t n_item;
    /* very few items: most queries of one, blocks of the longest, blocks computed between barriers
     */
    uint32_t queries, longest, window;
    atomic_uint next;
};

/* Queries that go through blocks first .. last together: `n_head` heads of each row. */
struct item {
    struct clb_cpu_group rows;
    uint32_t kv_head, head, n_head;
    uint32_t first, last;
};

static uint32_t lowest_key(const struct job *j, uint32_t position)
{
    return clb_arch_first_key(j->x->a, j->l->index, position);
}

static struct item item_at(const struct job *j, uint32_t i)
{
    const struct clb_arch *a = j->x->a;
    const uint32_t *position = j->x->p->position;
    struct item it = { .rows = j->x->group[i / j->per_group] };
    uint32_t share = a->n_head / j->x->n_kv_head;  /* query heads of a KV head */
    uint32_t cut = j->per_group / j->x->n_kv_head; /* items of a KV head */
    uint32_t within = i % j->per_group % cut * j->heads;

    it.kv_head = i % j->per_group / cut;
    it.head = it.kv_head * share + within;
    it.n_head = share - within < j->heads ? share - within : j->heads;
    it.first = lowest_key(j, position[it.rows.row]) / CLB_KV_BLOCK;
    it.last = position[it.rows.row + it.rows.n - 1] / CLB_KV_BLOCK;
    return it;
}

/* The keys of a block that a row sees: [*from, *to); false when there are none. */
static bool visible(const struct job *j, uint32_t row, uint32_t block, uint32_t *from, uint32_t *to)
{
    uint32_t position = j->x->p->position[row], start = block * CLB_KV_BLOCK;
    uint32_t low = lowest_key(j, position);

    if (position < start || low >= start + CLB_KV_BLOCK)
        return false;
    *from = low > start ? low - start : 0;
    *to = position - start < CLB_KV_BLOCK ? position - start + 1 : CLB_KV_BLOCK;
    return true;
}

static float *total_o(const struct clb_acts *x, uint32_t row, uint32_t head)
{
    return x->mixed + row * x->ld_mixed + (size_t)head * x->value_dim;
}

/* Where m and l of an item's queries lie, row by row. */
static size_t totals_at(const struct job *j, const struct item *it)
{
    return (size_t)it->rows.row * j->x->a->n_head + (size_t)it->head * it->rows.n;
}

/* Keys of one KV head in a block of an item's sequence; values follow. */
static const uint8_t *keys(const struct job *j, const struct item *it, uint32_t block)
{
    const struct clb_kv_seq *s = j->x->p->seq[j->x->p->sequence[it->rows.row]];

    return clb_kv_k(clb_kv_pool_shape(s->pool), clb_kv_pool_block(s->pool, s->block[block]),
                    j->l->index, it->kv_head);
}

/* Queries that see a block, to `out`; or, when `out` is NULL, folded into the totals. The thread
 * reads block `next` after this one; beyond the item's last there is none. */
static void tile(const struct job *j, const struct item *it, uint32_t block, uint32_t next,
                 const struct clb_cpu_partial *out)
{
    const struct clb_acts *x = j->x;
    const struct clb_kv_shape *shape =
        clb_kv_pool_shape(x->p->seq[x->p->sequence[it->rows.row]]->pool);
    const uint8_t *k = keys(j, it, block), *v = k + shape->k_bytes;
    const float *q[CLB_CPU_QUERIES];
    float *o[CLB_CPU_QUERIES];
    uint8_t first[CLB_CPU_QUERIES], last[CLB_CPU_QUERIES];
    uint32_t n = 0, from, to, skipped = 0; /* rows that see it are neighbours */

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++) {
        if (!visible(j, r, block, &from, &to)) {
            skipped += n == 0 ? it->n_head : 0;
            continue;
        }
        for (uint32_t h = 0; h < it->n_head; h++, n++) {
            q[n] = x->query + r * x->ld_query + (size_t)(it->head + h) * shape->key_dim;
            o[n] = out ? out->o + n * x->ld_value : total_o(x, r, it->head + h);
            first[n] = (uint8_t)from;
            last[n] = (uint8_t)to;
        }
    }
    struct clb_attn_tile t = {
        .n_query = n,
        .key_dim = shape->key_dim,
        .value_dim = shape->value_dim,
        .q = q,
        .k = k,
        .v = v,
        .k_scale = (const float *)(const void *)(k + shape->k_scale_at),
        .v_scale = (const float *)(const void *)(v + shape->v_scale_at),
        .first = first,
        .last = last,
        .scale = clb_arch_attn_scale(x->a),
        .softcap = x->a->attn_softcap,
        .o = o,
        .m = out ? out->m : x->total_m + totals_at(j, it) + skipped,
        .l = out ? out->l : x->total_l + totals_at(j, it) + skipped,
        .fold = !out,
        .next = next <= it->last ? keys(j, it, next) : NULL,
        .next_bytes = shape->head_bytes,
    };
    if (n)
        j->be->k.attn_tile[shape->dtype](&t);
}

static void start(const struct job *j, const struct item *it)
{
    const struct clb_acts *x = j->x;
    size_t at = totals_at(j, it);

    for (uint32_t i = 0; i < it->rows.n * it->n_head; i++) {
        x->total_m[at + i] = -INFINITY;
        x->total_l[at + i] = 0;
    }
    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = it->head; h < it->head + it->n_head; h++)
            memset(total_o(x, r, h), 0, x->value_dim * sizeof(float));
}

static void fold(const struct job *j, const struct item *it, uint32_t block,
                 const struct clb_cpu_partial *part)
{
    const struct clb_acts *x = j->x;
    size_t at = totals_at(j, it);
    uint32_t n = 0, from, to;

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++) {
        bool sees = visible(j, r, block, &from, &to);

        for (uint32_t h = 0; h < it->n_head; h++, at++) {
            if (!sees)
                continue;
            j->be->k.attn_fold(&x->total_m[at], &x->total_l[at], total_o(x, r, it->head + h),
                               part->m[n], part->l[n], part->o + n * x->ld_value, x->value_dim);
            n++;
        }
    }
}

/* What divides the weighted values: the sum of exp(score - m). A sink is one more score, without a
 * value. */
static float share_of_values(const struct job *j, uint32_t head, float m, float l)
{
    if (!j->l->sinks)
        return 1 / l;
    float sink = j->l->sinks[head], most = m > sink ? m : sink;
    float old = clb_expf(m - most);

    return old / fmaf(l, old, clb_expf(sink - most));
}

static void finish(const struct job *j, const struct item *it)
{
    const struct clb_acts *x = j->x;
    size_t at = totals_at(j, it);

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = it->head; h < it->head + it->n_head; h++, at++)
            j->be->k.scale(total_o(x, r, h), share_of_values(j, h, x->total_m[at], x->total_l[at]),
                           x->value_dim);
}

/* Many items: each is one thread's, the longest (latest) first. */
static void whole_items(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    uint32_t i;

    (void)thread;
    (void)n_thread;
    while (clb_take(&j->next, j->n_item, &i)) {
        struct item it = item_at(j, j->n_item - 1 - i);

        start(j, &it);
        for (uint32_t b = it.first; b <= it.last; b++)
            tile(j, &it, b, b + 1, NULL);
        finish(j, &it);
    }
}

/* The item with the most blocks left that no thread has; returns how many, 0: none. */
static uint32_t most_left(const struct job *j, uint32_t *item)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < j->n_item; i++) {
        uint32_t left = atomic_load_explicit(&j->x->left[i], memory_order_relaxed);
        if (left > most && !(left & BUSY)) {
            most = left;
            *item = i;
        }
    }
    return most;
}

static uint32_t take_item(const struct job *j, uint32_t *item)
{
    uint32_t left;

    while ((left = most_left(j, item)) > 0)
        if (atomic_compare_exchange_weak_explicit(&j->x->left[*item], &left, left | BUSY,
                                                  memory_order_acquire, memory_order_relaxed))
            break;
    return left;
}

/* Few items, but enough for all threads: a thread leaves its item for one that is farther behind,
 * so that they end together. */
static void items_in_turns(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    uint32_t i = 0, other = 0, left;

    (void)thread;
    (void)n_thread;
    while ((left = take_item(j, &i)) > 0) {
        struct item it = item_at(j, i);

        if (left == it.last - it.first + 1)
            start(j, &it);
        do {
            for (uint32_t b = 0; b < RUN && left > 0; b++, left--)
                tile(j, &it, it.last + 1 - left, it.last + 2 - left, NULL);
        } while (left > 0 && most_left(j, &other) <= left + 2 * RUN);
        if (left == 0)
            finish(j, &it);
        atomic_store_explicit(&j->x->left[i], left, memory_order_release);
    }
}

static struct clb_cpu_partial partial_at(const struct job *j, uint32_t unit)
{
    const struct clb_acts *x = j->x;
    size_t query = (size_t)unit * j->queries;

    return (struct clb_cpu_partial){
        .o = x->partial.o + query * x->ld_value,
        .m = x->partial.m + query,
        .l = x->partial.l + query,
    };
}

/* The blocks of a window of items: unit u is block u % window of item u / window. */
static void tile_window(const struct job *j, uint32_t from, unsigned thread, unsigned n_thread)
{
    for (uint32_t u = thread; u < j->n_item * j->window; u += n_thread) {
        struct item it = item_at(j, u / j->window);
        struct clb_cpu_partial part = partial_at(j, u);
        uint32_t b = it.first + from + u % j->window;

        if (b <= it.last)
            tile(j, &it, b, b + n_thread, &part);
    }
}

static void fold_window(const struct job *j, uint32_t from, unsigned thread, unsigned n_thread)
{
    for (uint32_t i = thread; i < j->n_item; i += n_thread) {
        struct item it = item_at(j, i);

        if (!from)
            start(j, &it);
        for (uint32_t u = 0; u < j->window && it.first + from + u <= it.last; u++) {
            struct clb_cpu_partial part = partial_at(j, i * j->window + u);
            fold(j, &it, it.first + from + u, &part);
        }
        if (from + j->window >= j->longest)
            finish(j, &it);
    }
}

/* Fewer items than threads: blocks are shared out, their results wait, one thread folds. */
static void shared_items(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;

    for (uint32_t from = 0; from < j->longest; from += j->window) {
        tile_window(j, from, thread, n_thread);
        clb_pool_barrier(j->be->pool);
        fold_window(j, from, thread, n_thread);
        clb_pool_barrier(j->be->pool);
    }
}

/* A query and a key, as clb_cpu_run counts: 4 per multiply-accumulate. */
static uint64_t cost(const struct job *j)
{
    uint64_t pairs = 0;

    for (uint32_t i = 0; i < j->n_item; i += j->per_group) {
        struct item it = item_at(j, i);
        pairs += (it.last - it.first + 1ull) * CLB_KV_BLOCK * it.rows.n;
    }
    return pairs * j->x->a->n_head * (j->x->key_dim + j->x->value_dim) * 4;
}

/* How the items at hand are shared out. */
static clb_pool_fn *way_of(struct job *j)
{
    unsigned n_thread = j->x->n_thread;
    uint32_t rows = 1;

    if (n_thread == 1 || j->n_item >= CLB_CPU_FEW_ITEMS * n_thread)
        return whole_items;
    for (uint32_t i = 0; i < j->n_item; i++) {
        struct item it = item_at(j, i);
        uint32_t n = it.last - it.first + 1;

        atomic_init(&j->x->left[i], n);
        rows = it.rows.n > rows ? it.rows.n : rows;
        j->longest = n > j->longest ? n : j->longest;
    }
    if (j->n_item >= n_thread || j->longest == 1)
        return items_in_turns;
    j->queries = rows * j->heads;
    j->window = j->x->n_partial / (j->n_item * j->queries);
    return shared_items;
}

bool clb_cpu_attn_mix(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      struct clb_err *err)
{
    const struct clb_arch *a = x->a;
    uint32_t share = a->n_head / x->n_kv_head;
    struct job j = { .be = be, .x = x, .l = l };

    (void)err;
    j.heads = share < CLB_CPU_QUERIES ? share : CLB_CPU_QUERIES;
    j.per_group = x->n_kv_head * ((share + j.heads - 1) / j.heads);
    j.n_item = x->n_group * j.per_group;
    atomic_init(&j.next, 0);
    clb_cpu_run(be, cost(&j), way_of(&j), &j);
    return true;
}
