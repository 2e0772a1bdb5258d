#include "lib/base/slab.h"

#include <pthread.h>

#include "lib/base/mem.h"

enum { PAGE = 4096 };

static const size_t default_classes[CLB_SLAB_CLASSES] = { 128 << 10, 512 << 10, 2 << 20 };

struct idle { /* lies in the slab itself */
    struct idle *next;
};

struct clb_slab {
    struct clb_slab_options opt;
    struct clb_ledger *ledger; /* borrowed */
    pthread_mutex_t lock;      /* of what follows */
    uint64_t reserved;         /* of this allocator; the ledger may serve several */
    struct idle *idle[CLB_SLAB_CLASSES];
};

/* -- ledger ---------------------------------------------------------------------------------- */

static void raise_peak(_Atomic uint64_t *peak, uint64_t now)
{
    uint64_t before = atomic_load(peak);

    while (before < now && !atomic_compare_exchange_weak(peak, &before, now))
        ;
}

void clb_ledger_add(struct clb_ledger *l, uint64_t used, uint64_t reserved)
{
    raise_peak(&l->reserved_peak, atomic_fetch_add(&l->reserved, reserved) + reserved);
    raise_peak(&l->peak, atomic_fetch_add(&l->used, used) + used);
}

void clb_ledger_sub(struct clb_ledger *l, uint64_t used, uint64_t reserved)
{
    atomic_fetch_sub(&l->used, used);
    atomic_fetch_sub(&l->reserved, reserved);
}

/* -- slabs ----------------------------------------------------------------------------------- */

static const size_t *classes(const struct clb_slab_options *opt)
{
    return opt->class_bytes[CLB_SLAB_CLASSES - 1] ? opt->class_bytes : default_classes;
}

/* The smallest class that holds the request; CLB_SLAB_CLASSES: it lives on its own. */
static unsigned class_of(const struct clb_slab_options *opt, size_t bytes)
{
    unsigned c = 0;

    while (c < CLB_SLAB_CLASSES && classes(opt)[c] < bytes)
        c++;
    return opt->disabled ? CLB_SLAB_CLASSES : c;
}

uint64_t clb_slab_cost(const struct clb_slab_options *opt, size_t bytes)
{
    unsigned c = class_of(opt, bytes);
    uint64_t cost;

    if (opt->disabled)
        return bytes;
    if (c < CLB_SLAB_CLASSES)
        return classes(opt)[c];
    return clb_round_up(bytes, PAGE, &cost) ? cost : UINT64_MAX;
}

bool clb_slab_new(struct clb_slab **out, const struct clb_slab_options *opt,
                  struct clb_ledger *ledger, struct clb_err *err)
{
    const size_t *c = classes(opt);

    *out = NULL;
    for (unsigned i = 0; i < CLB_SLAB_CLASSES; i++)
        if (c[i] == 0 || c[i] % PAGE || (i && c[i] <= c[i - 1]))
            return clb_fail(err, CLB_USAGE,
                            "slab sizes %zu, %zu, %zu: they must ascend and be "
                            "multiples of %d",
                            c[0], c[1], c[2], PAGE);
    struct clb_slab *s = clb_new(1, sizeof *s, err);
    if (!s)
        return false;
    s->opt = *opt;
    s->ledger = ledger;
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return true;
}

/* Gives the slabs that nobody uses back to the system. */
static void release_idle(struct clb_slab *s)
{
    for (unsigned c = 0; c < CLB_SLAB_CLASSES; c++)
        for (struct idle *i; (i = s->idle[c]);) {
            s->idle[c] = i->next;
            s->reserved -= classes(&s->opt)[c];
            clb_ledger_sub(s->ledger, 0, classes(&s->opt)[c]);
            clb_pages_free(i, classes(&s->opt)[c], s->opt.residence);
        }
}

void clb_slab_free(struct clb_slab *s)
{
    if (!s)
        return;
    release_idle(s);
    pthread_mutex_destroy(&s->lock);
    clb_free(s);
}

/* Counts `cost` more bytes, unless that is over the limit. */
static bool reserve(struct clb_slab *s, uint64_t cost, struct clb_err *err)
{
    uint64_t total;
    bool fits = clb_add(s->reserved, cost, &total);

    if (s->opt.limit && (!fits || total > s->opt.limit)) {
        release_idle(s);
        fits = clb_add(s->reserved, cost, &total) && total <= s->opt.limit;
    }
    if (!fits)
        return clb_fail(err, CLB_NO_SPACE,
                        "activations need %llu bytes more, but %llu of %llu are in use",
                        (unsigned long long)cost, (unsigned long long)s->reserved,
                        (unsigned long long)s->opt.limit);
    s->reserved = total;
    return true;
}

void *clb_slab_get(struct clb_slab *s, size_t bytes, struct clb_err *err)
{
    unsigned c = class_of(&s->opt, bytes);
    uint64_t cost = clb_slab_cost(&s->opt, bytes);
    void *block = NULL;

    pthread_mutex_lock(&s->lock);
    if (c < CLB_SLAB_CLASSES && s->idle[c]) {
        block = s->idle[c];
        s->idle[c] = s->idle[c]->next;
        clb_ledger_add(s->ledger, bytes, 0);
    } else if (reserve(s, cost, err)) {
        bool lock = s->opt.residence && s->opt.residence->lock; /* touches all of it */
        if ((block = clb_pages_new(cost, lock, s->opt.residence, "activations", err)))
            clb_ledger_add(s->ledger, bytes, cost);
        else
            s->reserved -= cost;
    }
    pthread_mutex_unlock(&s->lock);
    return block;
}

void clb_slab_put(struct clb_slab *s, void *block, size_t bytes)
{
    unsigned c = class_of(&s->opt, bytes);

    if (!block)
        return;
    pthread_mutex_lock(&s->lock);
    if (c < CLB_SLAB_CLASSES) {
        struct idle *i = block;
        i->next = s->idle[c];
        s->idle[c] = i;
        clb_ledger_sub(s->ledger, bytes, 0);
    } else {
        uint64_t cost = clb_slab_cost(&s->opt, bytes);
        s->reserved -= cost;
        clb_ledger_sub(s->ledger, bytes, cost);
        clb_pages_free(block, cost, s->opt.residence);
    }
    pthread_mutex_unlock(&s->lock);
}
