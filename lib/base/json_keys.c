/* Duplicate keys are refused, so every open object remembers its keys: 8 bytes an entry, in a table
 * that is at most three quarters full. The hash is SipHash-1-3 under a seed of this reader, so that
 * no document can be written that makes all keys collide; on equal hashes the bytes decide. */
#include "lib/base/json_impl.h"
#include "lib/base/mem.h"

enum { LIST_KEYS = 8 }; /* up to here a list is faster */

static inline uint64_t rotl(uint64_t x, int r)
{
    return x << r | x >> (64 - r);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
    v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

static uint32_t sip_hash(const uint64_t seed[2], struct clb_str s)
{
    uint64_t v[4] = { seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du,
                      seed[0] ^ 0x6c7967656e657261u, seed[1] ^ 0x7465646279746573u };
    uint64_t m;
    size_t i = 0;

    for (; i + 8 <= s.n; i += 8) {
        memcpy(&m, s.p + i, 8);
        v[3] ^= m;
        sip_round(v);
        v[0] ^= m;
    }
    m = (uint64_t)s.n << 56;
    for (int shift = 0; i < s.n; i++, shift += 8)
        m |= (uint64_t)(unsigned char)s.p[i] << shift;
    v[3] ^= m;
    sip_round(v);
    v[0] ^= m;
    v[2] ^= 0xff;
    for (int r = 0; r < 3; r++)
        sip_round(v);
    return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

/* Whether the string at `at` decodes to `key`. Runs only when the hashes are equal. */
static bool same_key(struct clb_json *j, size_t at, struct clb_str key)
{
    struct clb_text other = { 0 };

    clb_json_decode(j, at, &other);
    if (other.failed) /* sticks, and hides the complaint that the answer leads to */
        return !clb_json_fail_at(j, CLB_NO_SPACE, at, "out of memory");
    bool same = clb_str_eq((struct clb_str){ other.p, other.n }, key);
    clb_text_free(&other);
    return same;
}

static void put(struct clb_json_entry *table, uint32_t slots, struct clb_json_entry e)
{
    uint32_t i = e.hash & (slots - 1);

    while (table[i].at) /* 0 is no key's offset: a brace stands before every key */
        i = (i + 1) & (slots - 1);
    table[i] = e;
}

/* Tells most short lists of keys apart at the price of one load; a table gets the real hash. */
static uint32_t tag_of(struct clb_str key)
{
    uint32_t last = 0;

    if (key.n >= 4)
        memcpy(&last, key.p + key.n - 4, 4);
    else if (key.n)
        last = (unsigned char)key.p[key.n - 1];
    return last ^ (uint32_t)key.n << 24;
}

/* Moves a list to a table: only now its keys are hashed. */
static bool make_table(struct clb_json *j, struct clb_json_keys *k, size_t at)
{
    struct clb_json_entry *to = clb_new(4 * LIST_KEYS, sizeof *to, &j->fault);
    struct clb_text text = { 0 };

    if (!to)
        return false;
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t old = k->entry[i].at;
        clb_text_clear(&text);
        clb_json_decode(j, old, &text);
        uint32_t hash = sip_hash(j->state->seed, (struct clb_str){ text.p, text.n });
        put(to, 4 * LIST_KEYS, (struct clb_json_entry){ hash, old });
    }
    bool ok = !text.failed || clb_json_fail_at(j, CLB_NO_SPACE, at, "out of memory");
    clb_text_free(&text);
    clb_free(k->entry);
    k->entry = to;
    k->slots = k->room = 4 * LIST_KEYS;
    return ok;
}

static bool grow_table(struct clb_json *j, struct clb_json_keys *k)
{
    uint32_t slots = k->slots * 2; /* the text is under 4 GB: no overflow */
    struct clb_json_entry *to = clb_new(slots, sizeof *to, &j->fault);

    if (!to)
        return false;
    for (uint32_t i = 0; i < k->slots; i++)
        if (k->entry[i].at)
            put(to, slots, k->entry[i]);
    clb_free(k->entry);
    k->entry = to;
    k->slots = k->room = slots;
    return true;
}

static bool add_to_list(struct clb_json *j, struct clb_json_keys *k, size_t at, struct clb_str key)
{
    struct clb_json_entry e = { tag_of(key), (uint32_t)at };

    if (k->room == 0) {
        if (!(k->entry = clb_new(LIST_KEYS, sizeof *k->entry, &j->fault)))
            return false;
        k->room = LIST_KEYS;
    }
    for (uint32_t i = 0; i < k->n; i++)
        if (k->entry[i].hash == e.hash && same_key(j, k->entry[i].at, key))
            return clb_json_fail_at(j, CLB_BAD_INPUT, at, "duplicate key");
    k->entry[k->n++] = e;
    return true;
}

static bool add_to_table(struct clb_json *j, struct clb_json_keys *k, size_t at, struct clb_str key)
{
    struct clb_json_entry e = { sip_hash(j->state->seed, key), (uint32_t)at };
    uint32_t i = e.hash & (k->slots - 1);

    for (; k->entry[i].at; i = (i + 1) & (k->slots - 1))
        if (k->entry[i].hash == e.hash && same_key(j, k->entry[i].at, key))
            return clb_json_fail_at(j, CLB_BAD_INPUT, at, "duplicate key");
    k->entry[i] = e;
    k->n++;
    return k->n < k->slots / 4 * 3 || grow_table(j, k);
}

bool clb_json_add_key(struct clb_json *j, size_t at, struct clb_str key)
{
    struct clb_json_keys *k = &j->state->level[j->depth - 1].keys;

    if (k->slots == 0 && k->n < LIST_KEYS)
        return add_to_list(j, k, at, key);
    if (k->slots == 0 && !make_table(j, k, at))
        return false;
    return add_to_table(j, k, at, key);
}

void clb_json_keys_clear(struct clb_json_keys *k)
{
    if (k->slots) {
        clb_free(k->entry);
        k->entry = NULL;
        k->room = 0;
    }
    k->n = k->slots = 0;
}
