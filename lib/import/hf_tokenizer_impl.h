/* hf_tokenizer_impl.h - what the files that read a tokenizer.json share. Nobody else includes this.
 */
#ifndef CLB_IMPORT_HF_TOKENIZER_IMPL_H
#define CLB_IMPORT_HF_TOKENIZER_IMPL_H

#include "lib/base/json.h"
#include "lib/token/build.h"

/* A thing that the decoder does to every piece on its own. */
struct hf_piece_op {
    bool strip;           /* else replace */
    struct clb_step step; /* CLB_DO_REPLACE */
    uint32_t strip_char, start, stop;
};

struct hf {
    const char *json;
    size_t n;
    const char *file;
    uint32_t vocab_size;
    struct clb_build b;
    uint32_t n_model;         /* entries of the model's vocabulary */
    struct clb_text scratch;  /* strings of the step read last */
    struct hf_piece_op op[8]; /* of the decoder */
    uint32_t n_op;
    uint64_t byte_level_at; /* where the pre-tokeniser ByteLevel stands */
    struct clb_err *err;
};

/* The values of the keys of tokenizer.json; p NULL: absent. */
enum {
    HF_MODEL,
    HF_ADDED,
    HF_NORMALIZER,
    HF_PRE_TOKENIZER,
    HF_POST_PROCESSOR,
    HF_DECODER,
    HF_TRUNCATION,
    HF_PADDING,
    HF_N_PART
};

/* -- hf_tokenizer.c -- */
/* A reader on a part of the document; offsets in messages count from the start of the file. */
void clb_hf_open(const struct hf *h, struct clb_json *j, struct clb_str raw);
/* For a key that is not known: passes a neutral value (null, false, "", [], {}), else complains. */
bool clb_hf_unknown(struct clb_json *j, struct clb_str key);
/* The type of the part at raw is not one that is understood. */
bool clb_hf_refuse(struct hf *h, struct clb_str raw, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "FILE: why" becomes "FILE: part: why"; always false. */
bool clb_hf_in(struct hf *h, const char *part);
bool clb_hf_is_null(struct clb_str raw); /* absent or null */

/* -- hf_tokenizer_fields.c: an object with a "type" and some of the known fields -- */
enum hf_field {
    HF_PREPEND = 1 << 0,
    HF_PATTERN = 1 << 1,
    HF_CONTENT = 1 << 2,
    HF_BEHAVIOR = 1 << 3,
    HF_INVERT = 1 << 4,
    HF_INDIVIDUAL_DIGITS = 1 << 5,
    HF_REPLACEMENT = 1 << 6,
    HF_PREPEND_SCHEME = 1 << 7,
    HF_SPLIT = 1 << 8,
    HF_ADD_PREFIX_SPACE = 1 << 9,
    HF_TRIM_OFFSETS = 1 << 10,
    HF_USE_REGEX = 1 << 11,
    HF_STRIP_LEFT = 1 << 12,
    HF_STRIP_RIGHT = 1 << 13,
    HF_START = 1 << 14,
    HF_STOP = 1 << 15,
    HF_SUFFIX = 1 << 16,
    HF_LIST = 1 << 17,
    HF_STR_REP = 1 << 18,
    HF_SEP = 1 << 19,
    HF_CLS = 1 << 20,
    HF_SINGLE = 1 << 21,
    HF_PAIR = 1 << 22,
    HF_SPECIAL_TOKENS = 1 << 23,
};
struct hf_fields {
    struct clb_str raw;
    char type[32];
    uint32_t given;       /* enum hf_field */
    struct clb_span text; /* prepend, replacement, suffix: in scratch */
    struct clb_span content;
    struct clb_span pattern; /* in scratch */
    bool is_regex;
    struct clb_str pattern_raw;
    enum clb_behavior behavior;
    enum clb_prepend scheme;
    bool never; /* prepend_scheme "never" */
    bool invert, individual_digits, split, add_prefix_space, use_regex, strip_left, strip_right;
    uint32_t start, stop;
    struct clb_str list, single, special_tokens, sep, cls; /* raw */
};
bool clb_hf_read_fields(struct hf *h, struct clb_str raw, struct hf_fields *f);
/* Fields that this type must and may have. */
bool clb_hf_check_fields(struct hf *h, const struct hf_fields *f, uint32_t must, uint32_t may);
struct clb_str clb_hf_string(const struct hf *h, struct clb_span s);
/* Fills find and text of a step from the pattern. */
bool clb_hf_pattern(struct hf *h, const struct hf_fields *f, struct clb_step *step);
/* Calls part(h, raw, depth + 1) for every item of a list. */
bool clb_hf_each(struct hf *h, struct clb_str list, int depth,
                 bool (*part)(struct hf *h, struct clb_str raw, int depth));

/* -- hf_tokenizer_steps.c -- */
bool clb_hf_normalizer(struct hf *h, struct clb_str raw, int depth);
bool clb_hf_pre_tokenizer(struct hf *h, struct clb_str raw, int depth);

/* -- hf_tokenizer_model.c -- */
bool clb_hf_model(struct hf *h, struct clb_str raw);
/* Closes the reader, which may have stopped because of its own error or because of ours in h->err.
 */
bool clb_hf_finish(struct hf *h, struct clb_json *j, bool ok);
/* Makes the piece `id`. */
bool clb_hf_add_piece(struct hf *h, struct clb_json *j, struct clb_str name, uint32_t id);

/* -- hf_tokenizer_unigram.c -- */
bool clb_hf_unigram(struct hf *h, struct clb_str raw);

/* -- hf_tokenizer_added.c -- */
bool clb_hf_added_tokens(struct hf *h, struct clb_str raw);
bool clb_hf_post_processor(struct hf *h, struct clb_str raw, int depth);

/* -- hf_tokenizer_decoder.c -- */
bool clb_hf_decoder(struct hf *h, struct clb_str raw, int depth);
/* After all: the text that each piece decodes to. */
bool clb_hf_texts(struct hf *h);

#endif
