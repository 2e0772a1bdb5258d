/* cpu_attn_mix.c - scores, softmax and weighted values, block by block of the KV cache. Query heads
 * that share a KV head, of several rows, meet a block together. Blocks fold in ascending order,
 * whoever computed them; blocks without a valid key are left out, which changes nothing. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "lib/base/fmath.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    uint32_t heads, per_group; /* query heads of an item at most; items of a group of rows */
    uint32_t n_item;
    /* few items: most queries of one, blocks of the longest, blocks computed between barriers */
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

static void tile(const struct job *j, const struct item *it, uint32_t block,
                 const struct clb_cpu_partial *out)
{
    const struct clb_acts *x = j->x;
    const struct clb_kv_seq *s = x->p->seq[x->p->sequence[it->rows.row]];
    const struct clb_kv_shape *shape = clb_kv_pool_shape(s->pool);
    uint8_t *bytes = clb_kv_pool_block(s->pool, s->block[block]);
    const uint8_t *k = clb_kv_k(shape, bytes, j->l->index, it->kv_head), *v = k + shape->k_bytes;
    const float *q[CLB_CPU_QUERIES];
    float *o[CLB_CPU_QUERIES];
    uint8_t first[CLB_CPU_QUERIES], last[CLB_CPU_QUERIES];
    uint32_t n = 0, from, to;

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = 0; h < it->n_head && visible(j, r, block, &from, &to); h++, n++) {
            q[n] = x->query + r * x->ld_query + (size_t)(it->head + h) * shape->key_dim;
            o[n] = out->o + n * x->ld_value;
            first[n] = (uint8_t)from;
            last[n] = (uint8_t)to;
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
        .m = out->m,
        .l = out->l,
    };
    if (n)
        j->be->k.attn_tile[shape->dtype](&t);
}

static float *total_o(const struct clb_acts *x, uint32_t row, uint32_t head)
{
    return x->mixed + row * x->ld_mixed + (size_t)head * x->value_dim;
}

static void start(const struct job *j, const struct item *it)
{
    const struct clb_acts *x = j->x;

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = it->head; h < it->head + it->n_head; h++) {
            x->total_m[r * x->a->n_head + h] = -INFINITY;
            x->total_l[r * x->a->n_head + h] = 0;
            memset(total_o(x, r, h), 0, x->value_dim * sizeof(float));
        }
}

static void fold(const struct job *j, const struct item *it, uint32_t block,
                 const struct clb_cpu_partial *part)
{
    const struct clb_acts *x = j->x;
    uint32_t n = 0, from, to;

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = 0; h < it->n_head && visible(j, r, block, &from, &to); h++, n++) {
            uint32_t at = r * x->a->n_head + it->head + h;

            j->be->k.attn_fold(&x->total_m[at], &x->total_l[at], total_o(x, r, it->head + h),
                               part->m[n], part->l[n], part->o + n * x->ld_value, x->value_dim);
        }
}

/* What divides the weighted values: the sum of exp(score - m). A sink is one more score, without a
 * value. */
static float share_of_values(const struct job *j, uint32_t row, uint32_t head)
{
    const struct clb_acts *x = j->x;
    float m = x->total_m[row * x->a->n_head + head], l = x->total_l[row * x->a->n_head + head];

    if (!j->l->sinks)
        return 1 / l;
    float sink = j->l->sinks[head], most = m > sink ? m : sink;
    float old = clb_expf(m - most);

    return old / fmaf(l, old, clb_expf(sink - most));
}

static void finish(const struct job *j, const struct item *it)
{
    const struct clb_acts *x = j->x;

    for (uint32_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
        for (uint32_t h = it->head; h < it->head + it->n_head; h++)
            j->be->k.scale(total_o(x, r, h), share_of_values(j, r, h), x->value_dim);
}

/* Many items: each is one thread's, the longest (latest) first. */
static void whole_items(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_cpu_partial *part = &j->x->block[thread];
    uint32_t i;

    (void)n_thread;
    while (clb_take(&j->next, j->n_item, &i)) {
        struct item it = item_at(j, j->n_item - 1 - i);

        start(j, &it);
        for (uint32_t b = it.first; b <= it.last; b++) {
            tile(j, &it, b, part);
            fold(j, &it, b, part);
        }
        finish(j, &it);
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
            tile(j, &it, b, &part);
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

/* Few items over a long context: blocks are shared out, their results wait, one thread folds. */
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

static bool few_items(struct job *j)
{
    unsigned n_thread = j->x->n_thread;
    uint32_t rows = 1;

    if (n_thread == 1 || j->n_item >= 4 * n_thread)
        return false;
    for (uint32_t i = 0; i < j->n_item; i++) {
        struct item it = item_at(j, i);

        rows = it.rows.n > rows ? it.rows.n : rows;
        j->longest = it.last - it.first + 1 > j->longest ? it.last - it.first + 1 : j->longest;
    }
    j->queries = rows * j->heads;
    j->window = j->x->n_partial / (j->n_item * j->queries);
    return j->longest > 1;
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
    clb_cpu_run(be, cost(&j), few_items(&j) ? shared_items : whole_items, &j);
    return true;
}
