#include "lib/token/tables.h"

#include "lib/base/mem.h"
#include "lib/token/program.h"
#include "lib/token/spm_normal.h"
#include "lib/token/utf8.h"

uint64_t clb_key_hash(const char *s, size_t n)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t h = n * k, w;

    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * k;
        h ^= h >> 29;
    }
    w = 0;
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)(uint8_t)s[i] << 8 * i;
    h = (h ^ w) * k;
    h ^= h >> 32;
    return h * k;
}

static struct clb_str slice(const uint32_t *at, const char *bytes, uint64_t size, uint32_t i)
{
    uint32_t from = at[i], to = at[i + 1];

    if (from > to || to > size)
        return (struct clb_str){ "", 0 };
    return (struct clb_str){ bytes + from, to - from };
}

struct clb_str clb_piece_content(const struct clb_tokenizer *t, uint32_t id)
{
    if (id >= t->head->n_piece)
        return (struct clb_str){ "", 0 };
    return slice(t->piece_at, t->piece, t->head->section[CLB_PIECE].size, id);
}

struct clb_str clb_piece_text(const struct clb_tokenizer *t, uint32_t id)
{
    if (id >= t->head->n_piece)
        return (struct clb_str){ "", 0 };
    return slice(t->text_at, t->text, t->head->section[CLB_TEXT].size, id);
}

struct clb_str clb_piece_key(const struct clb_tokenizer *t, uint32_t id)
{
    if (t->head->model_flags & CLB_MODEL_BYTE_LEVEL)
        return clb_piece_text(t, id);
    return clb_piece_content(t, id);
}

uint32_t clb_key_find(const struct clb_tokenizer *t, const char *s, size_t n)
{
    if (n == 1)
        return t->single[(uint8_t)*s];
    if (n > t->head->max_key)
        return CLB_NO_ID;
    uint64_t h = clb_key_hash(s, n);
    uint32_t at = (uint32_t)h, tag = (uint32_t)(h >> 32);
    for (uint32_t i = 0; i < t->head->key_probe; i++, at++) {
        const struct clb_key_slot *k = &t->keys[at & t->key_mask];
        if (!k->id1)
            break;
        if (k->tag != tag)
            continue;
        struct clb_str key = clb_piece_key(t, k->id1 - 1);
        if (key.n == n && !memcmp(key.p, s, n))
            return k->id1 - 1;
    }
    return CLB_NO_ID;
}

uint32_t clb_trie_longest(const struct clb_tokenizer *t, uint32_t root, const char *p,
                          const char *end, const char **stop)
{
    uint32_t node = root, id = CLB_NO_ID;

    while (p < end && (node = clb_trie_walk(t, node, (uint8_t)*p)) != CLB_NO_ID) {
        p++;
        if (t->nodes[node].id != CLB_NO_ID) {
            id = t->nodes[node].id;
            *stop = p;
        }
    }
    return id;
}

/* -- open ------------------------------------------------------------------------------------- */

static const char *const section_name[CLB_N_SECTION] = {
    "PIECE_AT", "PIECE",  "TEXT_AT", "TEXT",     "FLAGS", "KEYS",    "MERGES",   "NODES",
    "EDGES",    "SINGLE", "BYTES",   "TEMPLATE", "STEPS", "STRINGS", "PROGRAMS", "SCORES",
};

/* Section s lies inside, aligned, and has `count` entries of `entry` bytes; count UINT64_MAX: any.
 */
static bool check_section(const struct clb_tables_head *h, size_t n, enum clb_section s,
                          uint64_t count, size_t entry, struct clb_err *err)
{
    uint64_t at = h->section[s].at, size = h->section[s].size, end;

    if (at % 64 || !clb_add(at, size, &end) || end > n || (size && at < sizeof *h))
        return clb_fail(
            err, CLB_BAD_INPUT,
            "section %s at %llu with %llu bytes does not lie in the %zu bytes of the tables",
            section_name[s], (unsigned long long)at, (unsigned long long)size, n);
    if (count == UINT64_MAX ? size % entry != 0 : size != count * entry)
        return clb_fail(err, CLB_BAD_INPUT,
                        "section %s has %llu bytes, which does not fit its entries",
                        section_name[s], (unsigned long long)size);
    return true;
}

static bool check_table(const struct clb_tables_head *h, enum clb_section s, size_t entry,
                        uint32_t probe, uint32_t *mask, struct clb_err *err)
{
    uint64_t slots = h->section[s].size / entry;

    if (!slots || slots > 1u << 31 || slots & (slots - 1) || probe > slots || probe > CLB_MAX_PROBE)
        return clb_fail(err, CLB_BAD_INPUT,
                        "section %s has %llu slots and a longest search of %u: expected a power of "
                        "two and at most %d",
                        section_name[s], (unsigned long long)slots, probe, CLB_MAX_PROBE);
    *mask = (uint32_t)slots - 1;
    return true;
}

static bool check_span(const struct clb_tokenizer *t, struct clb_span s, struct clb_err *err)
{
    uint64_t size = t->head->section[CLB_STRINGS].size;

    if (s.at > size || s.n > size - s.at)
        return clb_fail(err, CLB_BAD_INPUT,
                        "a string at %u with %u bytes lies outside of section STRINGS", s.at, s.n);
    if (clb_utf8_valid(t->strings + s.at, s.n) != s.n)
        return clb_fail(err, CLB_BAD_INPUT, "the string at %u of section STRINGS is not UTF-8",
                        s.at);
    return true;
}

static bool check_step(const struct clb_tokenizer *t, const struct clb_step *s, bool split,
                       struct clb_err *err)
{
    static const struct {
        bool find;
        uint32_t max_arg;
    } rule[CLB_N_OP] = {
        [CLB_DO_STRIP] = { false, 3 },
        [CLB_DO_REPLACE] = { true, 0 },
        [CLB_DO_PREPEND] = { false, CLB_PREPEND_MISSING_FIRST },
        [CLB_SPLIT] = { true, CLB_INVERT | CLB_MERGED_NEXT },
        [CLB_DO_SPM] = { false, 15 },
    };

    if (s->op == 0 || s->op >= CLB_N_OP || (s->op == CLB_SPLIT && !split))
        return clb_fail(err, CLB_BAD_INPUT, "step with the unknown operation %u", s->op);
    if (s->arg > rule[s->op].max_arg || (s->op == CLB_SPLIT && (s->arg & 0xff) > CLB_MERGED_NEXT) ||
        s->find >= CLB_N_FIND || (s->find != CLB_FIND_NONE) != rule[s->op].find)
        return clb_fail(err, CLB_BAD_INPUT,
                        "step with operation %u has the argument %u and the pattern %u", s->op,
                        s->arg, s->find);
    if (s->find == CLB_FIND_TEXT && !s->text.n)
        return clb_fail(err, CLB_BAD_INPUT, "step that looks for an empty string");
    if (s->op == CLB_DO_SPM)
        return clb_spm_check(t, s, err) && check_span(t, s->with, err);
    if (s->find == CLB_FIND_PROGRAM)
        return clb_program_check(t, s->text, err) && check_span(t, s->with, err);
    return check_span(t, s->text, err) && check_span(t, s->with, err);
}

static bool check_steps(const struct clb_tokenizer *t, struct clb_err *err)
{
    const struct clb_tables_head *h = t->head;

    for (uint32_t i = 0; i < h->n_normalise + h->n_split; i++)
        if (!check_step(t, t->normalise + i, i >= h->n_normalise, err))
            return false;
    return true;
}

static bool check_scalars(const struct clb_tokenizer *t, struct clb_err *err)
{
    const struct clb_tables_head *h = t->head;
    const struct clb_span span[] = { h->mark, h->word_prefix, h->word_suffix, h->cut };

    for (size_t i = 0; i < sizeof span / sizeof *span; i++)
        if (!check_span(t, span[i], err))
            return false;
    if (h->word_prefix.n > CLB_MAX_AFFIX || h->word_suffix.n > CLB_MAX_AFFIX ||
        h->cut.n > CLB_MAX_AFFIX || (h->model_flags & CLB_MODEL_CUT && !h->cut.n))
        return clb_fail(err, CLB_BAD_INPUT, "word prefix, suffix and cut of %u, %u and %u bytes",
                        h->word_prefix.n, h->word_suffix.n, h->cut.n);
    if (h->max_text > h->section[CLB_TEXT].size && h->max_text > h->section[CLB_PIECE].size)
        return clb_fail(err, CLB_BAD_INPUT,
                        "the longest piece has %u bytes, all together have %llu", h->max_text,
                        (unsigned long long)h->section[CLB_PIECE].size);
    if (h->unk != CLB_NO_ID && h->unk >= h->n_piece)
        return clb_fail(err, CLB_BAD_INPUT, "the unknown token %u is not one of %u pieces", h->unk,
                        h->n_piece);
    for (int i = 0; i < 2; i++)
        if (h->trie_root[i] != CLB_NO_ID && h->trie_root[i] >= t->n_node)
            return clb_fail(err, CLB_BAD_INPUT, "the root %u of a trie is not one of %u nodes",
                            h->trie_root[i], t->n_node);
    if (h->model == CLB_MODEL_UNIGRAM ? !h->piece_root || h->piece_root >= t->n_node
                                      : h->piece_root != 0)
        return clb_fail(err, CLB_BAD_INPUT, "the root %u of the pieces is not one of %u nodes",
                        h->piece_root, t->n_node);
    for (uint32_t i = 0; i < h->n_before + h->n_after; i++)
        if (t->template[i] >= h->n_piece)
            return clb_fail(err, CLB_BAD_INPUT, "the template names token %u of %u", t->template[i],
                            h -> n_piece);
    return true;
}

static bool check_head(const struct clb_tables_head *h, size_t n, struct clb_err *err)
{
    if (n < sizeof *h || memcmp(h->magic, CLB_TABLES_MAGIC, sizeof h->magic))
        return clb_fail(err, CLB_BAD_INPUT, "these %zu bytes are not tokenizer tables", n);
    if (h->version != CLB_TABLES_VERSION)
        return clb_fail(
            err, CLB_BAD_INPUT,
            "tokenizer tables of version %u: this build reads version %d; convert again",
            h->version, CLB_TABLES_VERSION);
    if ((h->model != CLB_MODEL_BPE && h->model != CLB_MODEL_UNIGRAM) || h->reserved)
        return clb_fail(err, CLB_BAD_INPUT, "tokenizer model %u is not known to this build",
                        h->model);
    if (h->n_piece > INT32_MAX || h->n_normalise > CLB_MAX_STEPS || h->n_split > CLB_MAX_STEPS ||
        h->n_before > 1024 || h->n_after > 1024)
        return clb_fail(err, CLB_BAD_INPUT, "%u pieces, %u + %u steps, %u + %u ids around the text",
                        h->n_piece, h->n_normalise, h->n_split, h->n_before, h->n_after);
    return true;
}

static bool check_sections(const struct clb_tables_head *h, size_t n, struct clb_err *err)
{
    const struct {
        enum clb_section s;
        uint64_t count;
        size_t entry;
    } want[] = {
        { CLB_PIECE_AT, (uint64_t)h->n_piece + 1, 4 },
        { CLB_PIECE, UINT64_MAX, 1 },
        { CLB_TEXT_AT, (uint64_t)h->n_piece + 1, 4 },
        { CLB_TEXT, UINT64_MAX, 1 },
        { CLB_FLAGS, h->n_piece, 2 },
        { CLB_KEYS, UINT64_MAX, sizeof(struct clb_key_slot) },
        { CLB_MERGES, UINT64_MAX, sizeof(struct clb_merge_slot) },
        { CLB_NODES, UINT64_MAX, sizeof(struct clb_trie_node) },
        { CLB_EDGES, UINT64_MAX, 4 },
        { CLB_SINGLE, 256, 4 },
        { CLB_BYTES, 256, 4 },
        { CLB_TEMPLATE, h->n_before + h->n_after, 4 },
        { CLB_STEPS, h->n_normalise + h->n_split, sizeof(struct clb_step) },
        { CLB_STRINGS, UINT64_MAX, 1 },
        { CLB_PROGRAMS, UINT64_MAX, 4 },
        { CLB_SCORES, h->model == CLB_MODEL_UNIGRAM ? (uint64_t)h->n_piece + 1 : 0, 8 },
    };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (!check_section(h, n, want[i].s, want[i].count, want[i].entry, err))
            return false;
    return true;
}

bool clb_tables_open(struct clb_tokenizer *t, const void *tables, size_t n, struct clb_err *err)
{
    const struct clb_tables_head *h = tables;
    const char *base = tables;

    if ((uintptr_t)tables % 8)
        return clb_fail(err, CLB_BAD_INPUT, "tokenizer tables must lie on a multiple of 8 bytes");
    if (!check_head(h, n, err) || !check_sections(h, n, err))
        return false;
    *t = (struct clb_tokenizer){
        .head = h,
        .piece_at = (const void *)(base + h->section[CLB_PIECE_AT].at),
        .piece = base + h->section[CLB_PIECE].at,
        .text_at = (const void *)(base + h->section[CLB_TEXT_AT].at),
        .text = base + h->section[CLB_TEXT].at,
        .flags = (const void *)(base + h->section[CLB_FLAGS].at),
        .keys = (const void *)(base + h->section[CLB_KEYS].at),
        .merges = (const void *)(base + h->section[CLB_MERGES].at),
        .nodes = (const void *)(base + h->section[CLB_NODES].at),
        .n_node = (uint32_t)(h->section[CLB_NODES].size / sizeof(struct clb_trie_node)),
        .edges = (const void *)(base + h->section[CLB_EDGES].at),
        .n_edge = (uint32_t)(h->section[CLB_EDGES].size / 4),
        .single = (const void *)(base + h->section[CLB_SINGLE].at),
        .bytes = (const void *)(base + h->section[CLB_BYTES].at),
        .template = (const void *)(base + h->section[CLB_TEMPLATE].at),
        .normalise = (const void *)(base + h->section[CLB_STEPS].at),
        .strings = base + h->section[CLB_STRINGS].at,
        .programs = (const void *)(base + h->section[CLB_PROGRAMS].at),
        .scores = (const void *)(base + h->section[CLB_SCORES].at),
    };
    t->split = t->normalise + h->n_normalise;
    return check_table(h, CLB_KEYS, sizeof *t->keys, h->key_probe, &t->key_mask, err) &&
           check_table(h, CLB_MERGES, sizeof *t->merges, h->merge_probe, &t->merge_mask, err) &&
           check_scalars(t, err) && check_steps(t, err);
}
