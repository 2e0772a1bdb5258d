/* tables.h - the layout of the section `tokenizer.tables`, and the view the tokenizer has of it.
 *
 *   +---------------+ 0
 *   | struct clb_tables_head    magic, counts, scalars, where the sections lie
 *   +---------------+ each section starts on a multiple of 64
 *   | PIECE_AT      | u32[n_piece + 1]      piece id is PIECE[at[id] .. at[id + 1]), the bytes that
 *   | PIECE         | u8[]                  the vocabulary has
 *   | TEXT_AT, TEXT | the same for what a piece decodes to. In byte-level vocabularies words are
 *   |               | compared with this text (it is the "key"), in others with the piece itself
 *   | FLAGS         | u16[n_piece]          CLB_PIECE_*
 *   | KEYS          | {tag, id + 1}[2^k]    open-addressed table, key -> id; 0 is empty
 *   | MERGES        | {left, right, rank, id}[2^k]  the same for pairs; left == ~0 is empty
 *   | NODES, EDGES  | {first edge, edges, id}[], {node << 8 | byte}[] sorted by byte: two tries of
 *   |               | added tokens, with Unigram also one of all pieces
 *   | SINGLE        | u32[256]              id of the one-byte key, or ~0
 *   | BYTES         | u32[256]              id of the piece <0xNN>, or ~0
 *   | TEMPLATE      | u32[]                 ids before the text, ids behind it
 *   | STEPS         | struct clb_step[]     normaliser, then pre-tokeniser
 *   | STRINGS       | u8[]                  texts that steps refer to, valid UTF-8
 *   | PROGRAMS      | u32[]                 compiled patterns, maps of characters
 *   | SCORES        | f64[n_piece + 1]      Unigram: of the pieces, and of an unknown character;
 *   |               |                       else empty
 *   +---------------+
 *
 * Numbers are little endian; gaps are zero; the same vocabulary gives the same bytes. Opening
 * checks the head, the extent of every section, the steps and their strings. The big arrays are not
 * read at open: their entries are checked when they are used. */
#ifndef CLB_TOKEN_TABLES_H
#define CLB_TOKEN_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/token/tokenizer.h"

#define CLB_TABLES_MAGIC "CLBTOKEN"
enum { CLB_TABLES_VERSION = 1 };
#define CLB_NO_ID UINT32_MAX

enum clb_section { /* clang-format off */
    CLB_PIECE_AT, CLB_PIECE, CLB_TEXT_AT, CLB_TEXT, CLB_FLAGS, CLB_KEYS, CLB_MERGES, CLB_NODES,
    CLB_EDGES, CLB_SINGLE, CLB_BYTES, CLB_TEMPLATE, CLB_STEPS, CLB_STRINGS, CLB_PROGRAMS,
    CLB_SCORES, CLB_N_SECTION,
}; /* clang-format on */

enum clb_piece_flags {
    CLB_PIECE_EXISTS = 1 << 0, /* ids may have holes */
    CLB_PIECE_MODEL = 1 << 1,  /* in the model's vocabulary (an added token may be there only) */
    CLB_PIECE_WHOLE = 1 << 2,  /* merging its own key gives just this id: no need to merge */
    CLB_PIECE_BYTE = 1 << 3,   /* <0xNN>, and the decoder has ByteFallback */
    CLB_PIECE_SPECIAL = 1 << 4,
    CLB_PIECE_ADDED = 1 << 5,
    CLB_PIECE_LSTRIP = 1 << 6, /* takes the white space before it along */
    CLB_PIECE_RSTRIP = 1 << 7,
    CLB_PIECE_SINGLE_WORD = 1 << 8,
    CLB_PIECE_NORMALISED = 1 << 9, /* is looked for after the normaliser */
    CLB_PIECE_SKIP = 1 << 10,      /* left out when special tokens are skipped */
};

enum clb_model_kind { CLB_MODEL_BPE = 1, CLB_MODEL_UNIGRAM };

enum clb_model_flags {
    CLB_MODEL_BYTE_LEVEL = 1 << 0, /* words are compared as bytes; keys are TEXT */
    CLB_MODEL_BYTE_FALLBACK = 1 << 1,
    CLB_MODEL_FUSE_UNK = 1 << 2,
    CLB_MODEL_IGNORE_MERGES = 1 << 3,     /* a word that is a key needs no merging */
    CLB_MODEL_SPECIAL_REACHABLE = 1 << 4, /* merging text can give a special token */
    CLB_MODEL_CUT = 1 << 5,               /* nothing merges over the place before `cut` */
    CLB_MODEL_SPM = 1 << 6, /* from a tokenizer.model. Unigram: sums of scores are f32, an unknown
                             * run is not looked up, and the tokens of the second trie are pieces
                             * like others: only the normaliser looks for them */
};

enum clb_decoder_flags {
    CLB_DECODE_BYTES = 1 << 0,    /* texts are bytes: invalid UTF-8 becomes U+FFFD at the end */
    CLB_DECODE_FALLBACK = 1 << 1, /* runs of <0xNN> become characters */
    CLB_DECODE_JOIN = 1 << 2,     /* a space between pieces */
    CLB_DECODE_FIRST = 1 << 3,    /* `mark` is a space, in the first piece nothing */
    CLB_DECODE_SUFFIX = 1 << 4,   /* `mark` is a space, in the last piece nothing */
    CLB_DECODE_LENIENT = 1 << 5,  /* FALLBACK: a byte that is not UTF-8 spoils only itself */
    CLB_DECODE_LEAD = 1 << 6,     /* the first piece loses a `mark` at its start */
    CLB_DECODE_LEADS = 1 << 7,    /* LEAD: so do those behind it until there is text */
};

struct clb_span {
    uint32_t at, n; /* in STRINGS */
};

/* Steps of the normaliser (CLB_DO_*: text in, text out) and of the pre-tokeniser (also CLB_SPLIT).
 */
enum clb_step_op {
    CLB_DO_NFC = 1,
    CLB_DO_NFD,
    CLB_DO_NFKC,
    CLB_DO_NFKD,
    CLB_DO_LOWER,
    CLB_DO_STRIP,   /* arg: 1 left, 2 right, 3 both */
    CLB_DO_REPLACE, /* what `find` and `text` find becomes `with` */
    CLB_DO_PREPEND, /* `with` before text that is not empty; arg: enum clb_prepend */
    CLB_SPLIT,      /* arg: enum clb_behavior | CLB_INVERT */
    CLB_DO_SPM,     /* SentencePiece's normaliser; arg: CLB_SPM_*, text: words of PROGRAMS, the map
                     * (spm_normal.c), n 0: none; with: what it maps to, texts that a NUL ends */
    CLB_N_OP,
};
enum clb_spm {
    CLB_SPM_DUMMY = 1 << 0,  /* a space before the text */
    CLB_SPM_REMOVE = 1 << 1, /* no spaces at the start, at the end, nor two in a row */
    CLB_SPM_ESCAPE = 1 << 2, /* spaces become U+2581 */
    CLB_SPM_SUFFIX = 1 << 3, /* the space of DUMMY stands behind the text */
};
enum clb_prepend { CLB_PREPEND_ALWAYS, CLB_PREPEND_MISSING, CLB_PREPEND_MISSING_FIRST };
enum clb_behavior {
    CLB_REMOVED,
    CLB_ISOLATED,
    CLB_CONTIGUOUS,
    CLB_MERGED_PREVIOUS,
    CLB_MERGED_NEXT
};
#define CLB_INVERT 0x100u

/* How a pattern is found. Those from CLB_FIND_GPT2 on are code of ours (pattern.c). */
enum clb_find {
    CLB_FIND_NONE,
    CLB_FIND_TEXT,    /* the string `text`, not empty */
    CLB_FIND_PROGRAM, /* `text` is words of PROGRAMS */
    CLB_FIND_NUMERIC, /* one number character, as Digits has it */
    CLB_FIND_GPT2,
    CLB_FIND_CL100K,
    CLB_FIND_QWEN2,
    CLB_FIND_O200K,
    CLB_FIND_TEKKEN,
    CLB_FIND_DEEPSEEK3,
    CLB_FIND_NUMBERS3,
    CLB_FIND_CJK,
    CLB_N_FIND,
};

struct clb_step {
    uint32_t op; /* enum clb_step_op */
    uint32_t arg;
    uint32_t find; /* enum clb_find */
    struct clb_span text, with;
    uint32_t reserved; /* 0 */
};
enum { CLB_MAX_STEPS = 32, CLB_MAX_AFFIX = 64 };
/* No entry of a hash table lies farther from where its hash points. Texts that people write stay
 * far below it; those made to collide are refused. */
enum { CLB_MAX_PROBE = 1024 };

struct clb_key_slot {
    uint32_t tag, id1; /* high half of the hash; id + 1, 0: empty */
};
struct clb_merge_slot {
    uint32_t left, right, rank, id;
};
struct clb_trie_node {
    uint32_t edge, n_edge, id; /* id: the token that ends here, or CLB_NO_ID */
};

struct clb_tables_head {
    char magic[8];
    uint32_t version, model, model_flags, decoder_flags;
    uint32_t n_piece, unk;           /* unk: CLB_NO_ID if there is none */
    uint32_t key_probe, merge_probe; /* no search looks at more slots than this */
    uint32_t max_key, max_text;      /* bytes of the longest key; of the longest piece or text */
    uint32_t trie_root[2];           /* NODES index: raw text, normalised text; CLB_NO_ID: none */
    uint32_t n_normalise, n_split;   /* steps */
    uint32_t n_before, n_after;      /* ids of the template */
    uint32_t strip; /* decoder: at most so many `strip_char` at the start are dropped */
    uint32_t strip_char;
    struct clb_span mark;                     /* decoder: see CLB_DECODE_FIRST, _SUFFIX */
    struct clb_span word_prefix, word_suffix; /* continuing_subword_prefix, end_of_word_suffix */
    struct clb_span cut;
    uint32_t piece_root; /* NODES index of the trie of all pieces; 0: none */
    uint32_t reserved;   /* 0 */
    struct {
        uint64_t at, size;
    } section[CLB_N_SECTION];
};
_Static_assert(sizeof(struct clb_tables_head) == 120 + 16 * CLB_N_SECTION, "head layout");
_Static_assert(sizeof(struct clb_step) == 32, "step layout");

/* The view. All pointers are into the borrowed section. */
struct clb_tokenizer {
    const struct clb_tables_head *head;
    const uint32_t *piece_at, *text_at;
    const char *piece, *text;
    const uint16_t *flags;
    const struct clb_key_slot *keys;
    uint32_t key_mask;
    const struct clb_merge_slot *merges;
    uint32_t merge_mask;
    const struct clb_trie_node *nodes;
    uint32_t n_node;
    const uint32_t *edges;
    uint32_t n_edge;
    const uint32_t *single, *bytes, *template;
    const struct clb_step *normalise, *split;
    const char *strings;
    const uint32_t *programs;
    const double *scores;
};

/* Checks everything that is checked at open and fills the view. */
bool clb_tables_open(struct clb_tokenizer *t, const void *tables, size_t n, struct clb_err *err);

static inline struct clb_str clb_tables_string(const struct clb_tokenizer *t, struct clb_span s)
{
    return (struct clb_str){ t->strings + s.at, s.n };
}
/* "" if there is none. */
struct clb_str clb_piece_content(const struct clb_tokenizer *t, uint32_t id);
struct clb_str clb_piece_text(const struct clb_tokenizer *t, uint32_t id);
/* What words are compared with. */
struct clb_str clb_piece_key(const struct clb_tokenizer *t, uint32_t id);
static inline unsigned clb_piece_flags(const struct clb_tokenizer *t, uint32_t id)
{
    return id < t->head->n_piece ? t->flags[id] : 0;
}

uint64_t clb_key_hash(const char *s, size_t n);
static inline uint32_t clb_pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 15);
}

/* The node behind the edge of byte b of a node that exists, or CLB_NO_ID. */
static inline uint32_t clb_trie_walk(const struct clb_tokenizer *t, uint32_t node, uint8_t b)
{
    uint32_t low = t->nodes[node].edge, n = t->nodes[node].n_edge;

    if (low > t->n_edge || n > t->n_edge - low)
        return CLB_NO_ID;
    while (n) {
        uint32_t half = n / 2, edge = t->edges[low + half];
        if ((edge & 255) == b)
            return edge >> 8 < t->n_node ? edge >> 8 : CLB_NO_ID;
        if ((edge & 255) < b) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return CLB_NO_ID;
}
/* The longest token of the trie that starts at p: its id, or CLB_NO_ID; *stop: behind it. */
uint32_t clb_trie_longest(const struct clb_tokenizer *t, uint32_t root, const char *p,
                          const char *end, const char **stop);

/* The id of the model's piece with this key, or CLB_NO_ID. */
uint32_t clb_key_find(const struct clb_tokenizer *t, const char *s, size_t n);
/* The merge of a pair, or NULL. */
static inline const struct clb_merge_slot *clb_merge_find(const struct clb_tokenizer *t,
                                                          uint32_t left, uint32_t right)
{
    uint32_t at = clb_pair_hash(left, right);

    for (uint32_t i = 0; i < t->head->merge_probe; i++, at++) {
        const struct clb_merge_slot *m = &t->merges[at & t->merge_mask];
        if (m->left == left && m->right == right)
            return m;
        if (m->left == CLB_NO_ID)
            return NULL;
    }
    return NULL;
}

#endif
