/* convert_impl.h - a conversion between its steps: plan (convert.c), run (convert_run.c), report
 * (convert_report.c). Nobody else includes this. */
#ifndef CLB_IMPORT_CONVERT_IMPL_H
#define CLB_IMPORT_CONVERT_IMPL_H

#include "lib/base/json.h"
#include "lib/format/writer.h"
#include "lib/import/bind.h"
#include "lib/import/checkpoint.h"
#include "lib/import/convert.h"
#include "lib/import/family.h"
#include "lib/import/quantise.h"

struct clb_conversion {
    struct clb_convert_options o; /* what it points to is borrowed */
    struct clb_checkpoint ckpt;
    struct clb_settings config;
    struct clb_map *map; /* owned; NULL: none */
    const struct clb_family *family;
    struct clb_arch arch;
    struct clb_family_extra extra;
    struct clb_generation generation;
    struct clb_binding bind;
    enum clb_dtype expert_dtype, dense_dtype, embed_dtype;
    /* Sections; n 0: there is none. */
    struct clb_text tables, chat_template, chat_tool_use, chat_variables;
    struct clb_text notes;
    struct clb_problems problems;
    struct clb_source_file *sources; /* [n_sources] owned array, names borrowed from ckpt */
    uint32_t n_sources, n_texts;     /* the texts come first, then the shards */
    struct clb_ignore *ignore;       /* [o.n_ignore] owned array: what the user accepts, sorted */
    const char **ignored;            /* [n_ignored] owned array: keys that were accepted, sorted */
    uint32_t n_ignored;
    struct clb_write_plan *plan;
    struct clb_pack_kernels kernels;
    struct clb_int4_book book;

    /* filled by run */
    struct clb_loss *dense_loss;  /* [bind.n_dense] */
    struct clb_loss *expert_loss; /* [bind.n_expert_part], in the order of bind.expert */
};

/* convert.c: the file that the tokenizer comes from; path NULL: there is none. */
const struct clb_ckpt_file *clb_tokenizer_file(const struct clb_conversion *c);

/* publish.c, hf_chat.c: what the publisher says about generation and conversations. */
bool clb_read_generation(struct clb_generation *g, const struct clb_checkpoint *c,
                         struct clb_settings *config, uint32_t vocab_size, struct clb_err *err);
/* After the tokenizer was compiled: a note if it is smaller than the model's vocabulary; its end
 * token (tokenizer_config.json) ends a text, too. */
bool clb_add_tokenizer_end(struct clb_conversion *c, struct clb_err *err);
bool clb_read_chat(struct clb_conversion *c, struct clb_err *err); /* fills the sections of c */
/* "text" or {"content": "text"}, or null: appends the text of a token; true: there was one. */
bool clb_read_token_text(struct clb_json *j, struct clb_text *text);

#endif
