/* spm_tokenizer_impl.h - what the files that read a tokenizer.model share. Nobody else includes
 * this. */
#ifndef CLB_IMPORT_SPM_TOKENIZER_IMPL_H
#define CLB_IMPORT_SPM_TOKENIZER_IMPL_H

#include "lib/import/proto.h"
#include "lib/import/spm_tokenizer.h"
#include "lib/token/build.h"

enum spm_type { /* of a piece, as the file numbers them */
                SPM_NORMAL = 1,
                SPM_UNKNOWN,
                SPM_CONTROL,
                SPM_USER_DEFINED,
                SPM_UNUSED,
                SPM_BYTE
};
enum spm_kind { SPM_UNIGRAM = 1, SPM_BPE };

struct spm_piece {
    struct clb_str name; /* borrowed from the file */
    float score;
    enum spm_type type;
};

struct spm {
    const struct clb_spm_source *source;
    struct spm_piece *piece; /* owned */
    uint32_t n_piece, room;
    /* trainer_spec */
    uint64_t kind; /* enum spm_kind */
    bool byte_fallback, suffix;
    struct clb_str unk_surface;
    int32_t bos, eos;
    /* normalizer_spec */
    struct clb_str charsmap;
    bool dummy_prefix, remove_extra, escape;
    struct clb_build b;
    struct clb_err *err;
};

/* -- spm_model.c: the file -- */
/* Reads what the file says into s, and checks it. */
bool clb_spm_read(struct spm *s);

/* -- spm_pieces.c: pieces, scores, merges -- */
bool clb_spm_pieces(struct spm *s);

/* -- spm_config.c: tokenizer_config.json -- */
/* Added tokens, and what stands around a text. */
bool clb_spm_config(struct spm *s);

/* Always false: "FILE: why". */
bool clb_spm_fail(const struct spm *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
