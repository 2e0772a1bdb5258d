/* build.h - writes `tokenizer.tables` from a vocabulary that an importer collected. */
#ifndef CLB_TOKEN_BUILD_H
#define CLB_TOKEN_BUILD_H

#include "lib/token/tables.h"

#define CLB_BUILD_BUDGET (1u << 24) /* steps of patterns on one piece */

/* A piece as an importer knows it; the spans are in clb_build.bytes. */
struct clb_build_piece {
    struct clb_span content; /* as the vocabulary has it */
    struct clb_span text;    /* what it decodes to; with CLB_MODEL_BYTE_LEVEL also its key */
    struct clb_span
        find;       /* CLB_PIECE_ADDED: what is looked for in the text, normalised if it is to be */
    uint32_t flags; /* CLB_PIECE_*; WHOLE is found by clb_build_write */
};

struct clb_build_merge {
    uint32_t left, right, id;
    uint32_t rank; /* the lowest is done first; of equals the leftmost */
};

/* Names -> ids. */
struct clb_build_index {
    uint32_t *slot; /* id + 1, 0: empty */
    uint32_t slots, n;
};

struct clb_build {
    struct clb_tables_head head;   /* scalars; counts and sections are filled by clb_build_write */
    struct clb_text bytes;         /* of the pieces; owned, as everything here */
    struct clb_build_piece *piece; /* [n_piece] */
    uint32_t n_piece;
    struct clb_build_index index;
    struct clb_build_merge *merge; /* [n_merge]; of two of one pair the later one counts */
    uint32_t n_merge, merge_room;
    double *score; /* [n_score], Unigram: of the first pieces; of others it is 0 */
    uint32_t n_score;
    double unknown_score;                    /* of a character without a piece */
    struct clb_step step[2 * CLB_MAX_STEPS]; /* head.n_normalise, then head.n_split */
    struct clb_text strings, programs;
    uint32_t before[64], after[64]; /* head.n_before, head.n_after */
    uint32_t byte_id[256];
};

void clb_build_free(struct clb_build *b);
/* Makes the piece `id`, which is not there yet; ids between may stay without one. */
bool clb_build_add(struct clb_build *b, struct clb_str name, uint32_t id, struct clb_err *err);
uint32_t clb_build_find(const struct clb_build *b, struct clb_str name); /* CLB_NO_ID: none */
struct clb_str clb_build_name(const struct clb_build *b, uint32_t id);   /* its content */
bool clb_build_add_merge(struct clb_build *b, struct clb_build_merge m, struct clb_err *err);
/* byte_id[b]: the piece <0xNN>. */
void clb_build_find_bytes(struct clb_build *b);
/* The text that a span of the strings holds; a new span with a copy of s. */
struct clb_span clb_build_string(struct clb_build *b, struct clb_str s);
struct clb_span clb_build_bytes(struct clb_build *b, struct clb_str s);
/* Appends what the normaliser makes of s. */
void clb_build_normalise(const struct clb_build *b, struct clb_str s, struct clb_text *out);
/* out: an empty text, filled with the section. */
bool clb_build_write(struct clb_build *b, struct clb_text *out, struct clb_err *err);

/* Byte-level spelling: every byte has a printable character. Appends the bytes that s spells; false
 * if a character is not one of the 256. */
bool clb_byte_level_read(struct clb_str s, struct clb_text *out);
/* Appends the spelling of the bytes s. */
void clb_byte_level_write(struct clb_str s, struct clb_text *out);

#endif
