/* What sequences have in common from their first token is computed once.
 *
 * Full blocks are found in the prefix cache. While a block that a prompt needs next is being
 * computed for another sequence, the prompt waits for it; so a hundred requests with one system
 * prompt compute it once even when they come together. The block in which they part is copied as
 * far as it is the same, from one that runs or from the cache: several answers to one prompt read
 * it once (but for its last token, whose logits each needs), and the next turn of a conversation
 * reads only what is new. */
#include <string.h>

#include "lib/session/scheduler_impl.h"

enum { LEAST_COPIED = 4 }; /* fewer tokens are computed sooner than their block is copied */

static bool leaves_entries(const struct clb_scheduler *s, const struct clb_choice *c)
{
    return s->prefix && !c->request->ask.no_prefix_cache;
}

/* Where logits of all rows are wanted, none can be left out. */
static bool takes_part(const struct clb_scheduler *s, const struct clb_choice *c)
{
    return leaves_entries(s, c) && !c->session->on_rows;
}

static void count_cached(struct clb_scheduler *s, struct clb_choice *c, uint32_t n)
{
    if (c->n_preempted == 0) {
        c->n_cached += n;
        s->count.cached_tokens += n;
    }
}

void clb_scheduler_adopt(struct clb_scheduler *s, struct clb_choice *c)
{
    struct clb_kv_seq *kv = &c->session->kv;
    uint32_t before = kv->length;

    while (takes_part(s, c) && kv->length == c->n_entry * CLB_KV_BLOCK &&
           kv->length + CLB_KV_BLOCK < c->session->n_token) {
        int32_t e = clb_prefix_find(s->prefix, c->parent, c->session->token + kv->length);

        if (e == CLB_PREFIX_NONE)
            break;
        clb_kv_seq_adopt(kv, clb_prefix_block(s->prefix, e));
        c->parent = e;
        c->n_entry++;
    }
    if (kv->length > before) {
        clb_prefix_touch(s->prefix, c->parent);
        count_cached(s, c, kv->length - before);
    }
}

uint32_t clb_scheduler_promised(const struct clb_scheduler *s, const struct clb_choice *c)
{
    const struct clb_session *a = c->session;
    uint32_t most = a->kv.length;

    for (uint32_t i = 0; takes_part(s, c) && i < s->n_running; i++) {
        const struct clb_session *b = s->running[i]->session;
        uint32_t end = a->n_token < b->n_token ? a->n_token : b->n_token, n = 0;

        if (!takes_part(s, s->running[i]) || a->kv.inv_freq != b->kv.inv_freq)
            continue;
        while (n < end && a->token[n] == b->token[n])
            n++;
        most = n > most ? n : most;
    }
    if (most == a->n_token) /* its last token is its own */
        most--;
    return most / CLB_KV_BLOCK;
}

/* One that has, or will have before this one, the tokens that come next. */
static const struct clb_choice *leader(const struct clb_scheduler *s, const struct clb_choice *c,
                                       uint32_t n)
{
    const struct clb_session *a = c->session;
    uint32_t at = a->kv.length;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct clb_choice *o = s->running[i];
        const struct clb_session *b = o->session;

        if (o == c || !takes_part(s, o) || o->parent != c->parent || b->n_token < at + n ||
            b->kv.length < at || (b->kv.length == at && o->order > c->order))
            continue;
        if (memcmp(a->token + at, b->token + at, n * sizeof *a->token) == 0)
            return o;
    }
    return NULL;
}

/* How many of the next n tokens another that runs has computed. */
static uint32_t same_in(const struct clb_choice *o, const struct clb_choice *c, uint32_t n)
{
    const struct clb_session *a = c->session, *b = o->session;
    uint32_t at = a->kv.length, k = 0;

    while (k < n && at + k < b->kv.length && a->token[at + k] == b->token[at + k])
        k++;
    return k;
}

/* The block that has the most of the next n tokens: *same of them, of one that runs or from the
 * cache. */
static uint32_t nearest(const struct clb_scheduler *s, const struct clb_choice *c, uint32_t n,
                        uint32_t *same)
{
    int32_t e = clb_prefix_nearest(s->prefix, c->parent, c->session->token + c->session->kv.length,
                                   n, same);
    uint32_t block = e == CLB_PREFIX_NONE ? 0 : clb_prefix_block(s->prefix, e);

    for (uint32_t i = 0; i < s->n_running && *same < n; i++) {
        const struct clb_choice *o = s->running[i];
        uint32_t k =
            o != c && o->parent == c->parent && leaves_entries(s, o) ? same_in(o, c, n) : 0;

        if (k > *same) {
            *same = k;
            block = o->session->kv.block[c->n_entry];
        }
    }
    return block;
}

/* Copies the part of a block that is there. False: the choice gave its place back. */
static bool copy_part(struct clb_scheduler *s, struct clb_choice *c, uint32_t n)
{
    struct clb_kv_seq *kv = &c->session->kv;
    struct clb_kv_pool *pool = kv->pool;
    uint32_t same;

    nearest(s, c, n, &same);
    if (same < LEAST_COPIED)
        return true;
    if (!clb_scheduler_reserve(s, c, kv->length + n))
        return false;
    uint32_t from = nearest(s, c, n, &same); /* it may have gone to make room */
    if (same < LEAST_COPIED)
        return true;
    struct clb_err err = { 0 };
    if (!clb_kv_pool_copy(pool, kv->block[c->n_entry], from, &err))
        return true; /* computed, then; a device that failed says so in the pass */
    kv->length += same;
    count_cached(s, c, same);
    return true;
}

bool clb_scheduler_must_wait(struct clb_scheduler *s, struct clb_choice *c)
{
    const struct clb_kv_seq *kv = &c->session->kv;
    uint32_t left = c->session->n_token - kv->length;
    uint32_t n = left > CLB_KV_BLOCK ? CLB_KV_BLOCK : left - 1;

    if (!takes_part(s, c) || n < LEAST_COPIED || kv->length != c->n_entry * CLB_KV_BLOCK)
        return false;
    const struct clb_choice *o = leader(s, c, n);
    if (o && o->session->kv.length < kv->length + n)
        return true;
    return !copy_part(s, c, n);
}

void clb_scheduler_register(struct clb_scheduler *s, struct clb_choice *c)
{
    struct clb_kv_seq *kv = &c->session->kv;

    while (leaves_entries(s, c) && c->n_entry < kv->length / CLB_KV_BLOCK) {
        const int32_t *token = c->session->token + c->n_entry * CLB_KV_BLOCK;
        int32_t e = clb_prefix_find(s->prefix, c->parent, token);

        if (e == CLB_PREFIX_NONE)
            e = clb_prefix_add(s->prefix, c->parent, token, CLB_KV_BLOCK, kv->block[c->n_entry]);
        else if (clb_prefix_block(s->prefix, e) != kv->block[c->n_entry])
            clb_kv_seq_replace(kv, c->n_entry, clb_prefix_block(s->prefix, e));
        c->parent = e;
        c->n_entry++;
        clb_prefix_touch(s->prefix, e);
    }
}

void clb_scheduler_register_end(struct clb_scheduler *s, struct clb_choice *c)
{
    const struct clb_kv_seq *kv = &c->session->kv;
    const int32_t *token = c->session->token + c->n_entry * CLB_KV_BLOCK;
    uint32_t n = kv->length - c->n_entry * CLB_KV_BLOCK, same;

    if (!leaves_entries(s, c) || n == 0 || n >= CLB_KV_BLOCK)
        return;
    int32_t e = clb_prefix_nearest(s->prefix, c->parent, token, n, &same);
    if (same < n)
        e = clb_prefix_add(s->prefix, c->parent, token, n, kv->block[c->n_entry]);
    clb_prefix_touch(s->prefix, e);
}
