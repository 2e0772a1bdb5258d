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

static uint32_t hash_of(const uint64_t seed[2], struct clb_str s)
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

/* Whether the string at `at` decodes to `key`. Equal hashes are nearly always equal keys, so this
 * runs once, before the error. */
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

/* Moves all entries to a table of `slots`. */
static bool rehash(struct clb_json_keys *k, uint32_t slots, struct clb_err *err)
{
    struct clb_json_entry *to = clb_new(slots, sizeof *to, err);
    uint32_t old = k->slots ? k->slots : k->n;

    if (!to)
        return false;
    for (uint32_t i = 0; i < old; i++)
        if (k->entry[i].at)
            put(to, slots, k->entry[i]);
    clb_free(k->entry);
    k->entry = to;
    k->slots = k->room = slots;
    return true;
}

static bool make_room(struct clb_json_keys *k, struct clb_err *err)
{
    if (k->slots == 0 && k->n < LIST_KEYS) {
        if (k->n < k->room)
            return true;
        k->entry = clb_new(LIST_KEYS, sizeof *k->entry, err);
        k->room = k->entry ? LIST_KEYS : 0;
        return k->entry != NULL;
    }
    if (k->slots == 0)
        return rehash(k, 4 * LIST_KEYS, err);
    if (k->n < k->slots / 4 * 3)
        return true;
    return rehash(k, k->slots * 2, err); /* the text is under 4 GB: no overflow */
}

bool clb_json_add_key(struct clb_json *j, size_t at, struct clb_str key)
{
    struct clb_json_keys *k = &j->state->level[j->depth - 1].keys;
    struct clb_json_entry e = { hash_of(j->state->seed, key), (uint32_t)at };
    struct clb_err err;

    if (!make_room(k, &err))
        return clb_json_fail_at(j, err.code, at, "%s", err.text);
    if (k->slots == 0) {
        for (uint32_t i = 0; i < k->n; i++)
            if (k->entry[i].hash == e.hash && same_key(j, k->entry[i].at, key))
                return clb_json_fail_at(j, CLB_BAD_INPUT, at, "duplicate key");
        k->entry[k->n++] = e;
        return true;
    }
    uint32_t i = e.hash & (k->slots - 1);
    for (; k->entry[i].at; i = (i + 1) & (k->slots - 1))
        if (k->entry[i].hash == e.hash && same_key(j, k->entry[i].at, key))
            return clb_json_fail_at(j, CLB_BAD_INPUT, at, "duplicate key");
    k->entry[i] = e;
    k->n++;
    return true;
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
