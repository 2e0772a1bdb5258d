/* tokenizer.h - text to token ids and back, from the compiled section `tokenizer.tables`.
 *
 * The tables are mapped, not parsed; every index in them is bounds-checked on use (or once at
 * open), so a hostile file cannot make a read outside the section. Thread safe: a tokenizer is
 * immutable. lib/token/tables.h draws the layout; lib/import/hf_tokenizer.c compiles it from a
 * tokenizer.json. */
#ifndef CLB_TOKEN_TOKENIZER_H
#define CLB_TOKEN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

struct clb_tokenizer;

/* `tables` stay borrowed and must outlive it. */
bool clb_tokenizer_open(struct clb_tokenizer **out, const void *tables, size_t n,
                        struct clb_err *err);
void clb_tokenizer_close(struct clb_tokenizer *t);

struct clb_ids {
    int32_t *id; /* owned */
    size_t n, room;
};
void clb_ids_free(struct clb_ids *ids);

struct clb_encode_options {
    bool parse_special; /* special tokens in the text become ids; else they are encoded as text */
    bool add_special;   /* BOS/EOS as the post-processor says */
    /* NULL, or a byte for each of the text, which is UTF-8: special tokens are found only where all
     * of theirs are not 0, whatever parse_special says. Elsewhere they are text. */
    const uint8_t *origin;
    size_t most; /* ids; where there would be more it stops behind one more. 0: any number */
};
/* Appends to ids. Text that is not UTF-8: each bad byte becomes U+FFFD, as the reference does with
 * errors="replace". */
bool clb_encode(const struct clb_tokenizer *t, const char *text, size_t n,
                const struct clb_encode_options *o, struct clb_ids *ids, struct clb_err *err);

uint32_t clb_tokenizer_size(const struct clb_tokenizer *t);
struct clb_str clb_token_bytes(const struct clb_tokenizer *t,
                               int32_t id); /* as the vocabulary has it */
bool clb_token_special(const struct clb_tokenizer *t, int32_t id);
/* -1: none. Of two tokens of one spelling the one that is found in text. */
int32_t clb_token_find(const struct clb_tokenizer *t, struct clb_str content);

/* Streaming decoder: the concatenation of everything it gives is the
 * reference's decode of all ids (where that is prefix-stable, see clb_decode); a UTF-8 character is
 * never split. After a flush it starts afresh. */
struct clb_decoder;
bool clb_decoder_open(struct clb_decoder **out, const struct clb_tokenizer *t, bool skip_special,
                      struct clb_err *err);
void clb_decoder_close(struct clb_decoder *d);
size_t clb_decoder_most(const struct clb_tokenizer *t); /* bytes that one call can give */
/* Text that became certain; borrowed until the next call. Does not allocate once warm (buffers are
 * reserved at open). */
bool clb_decoder_feed(struct clb_decoder *d, int32_t id, struct clb_str *text, struct clb_err *err);
bool clb_decoder_flush(struct clb_decoder *d, struct clb_str *text, struct clb_err *err);

/* Appends the text of all ids at once. Differs from the streamed text only where a run of byte
 * pieces (<0xNN>) is not UTF-8 as a whole: the reference then gives U+FFFD for every byte of it,
 * also for characters that a stream has printed already. */
bool clb_decode(const struct clb_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                struct clb_text *out, struct clb_err *err);

#endif
