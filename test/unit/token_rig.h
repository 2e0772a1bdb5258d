/* token_rig.h - tokenizers for tests: compiled from test/data/tokenizers/NAME or from a text. */
#ifndef TEST_TOKEN_RIG_H
#define TEST_TOKEN_RIG_H

#include <stdlib.h>

#include "lib/base/json.h"
#include "lib/base/mapfile.h"
#include "lib/import/hf_tokenizer.h"
#include "lib/import/spm_tokenizer.h"
#include "lib/token/tokenizer.h"
#include "test/check.h"

static const char *const token_names[] = {
    "cl100k_llama3",     "deepseek_v4",    "mistral_v3",    "mixtral_v1",
    "o200k_harmony_40k", "qwen3",          "tekken_24k",    "syn_meta_always",
    "syn_meta_first",    "syn_flags_nfkc", "syn_split_zoo", "syn_bpe_unk",
    "syn_unigram_bytefb",
};
enum { N_TOKEN_NAMES = sizeof token_names / sizeof *token_names };

struct token_rig {
    struct clb_text tables;
    struct clb_tokenizer *t;
};

static inline void token_path(char path[256], const char *name, const char *file)
{
    snprintf(path, 256, "test/data/tokenizers/%s/%s", name, file);
}

/* Says what went wrong. */
static inline bool token_open(struct token_rig *r, const char *name)
{
    char path[256];
    struct clb_mapfile m;
    struct clb_err err = { .code = CLB_OK };

    *r = (struct token_rig){ .t = NULL };
    token_path(path, name, "tokenizer.json");
    bool ok = clb_mapfile_open(&m, path, &err);
    if (ok) {
        ok = clb_hf_tokenizer_compile(&r->tables, (const char *)m.data, m.size, path, UINT32_MAX,
                                      &err) &&
             clb_tokenizer_open(&r->t, r->tables.p, r->tables.n, &err);
        clb_mapfile_close(&m);
    }
    if (!ok)
        printf("# %s\n", err.text);
    return ok;
}

/* NAME/tokenizer.model without a configuration. */
static inline bool token_open_spm(struct token_rig *r, const char *name)
{
    char path[256];
    struct clb_mapfile m;
    struct clb_err err = { .code = CLB_OK };

    *r = (struct token_rig){ .t = NULL };
    token_path(path, name, "tokenizer.model");
    bool ok = clb_mapfile_open(&m, path, &err);
    if (ok) {
        struct clb_spm_source s = { .model = { (const char *)m.data, m.size },
                                    .file = path,
                                    .vocab_size = UINT32_MAX };
        ok = clb_spm_tokenizer_compile(&r->tables, &s, &err) &&
             clb_tokenizer_open(&r->t, r->tables.p, r->tables.n, &err);
        clb_mapfile_close(&m);
    }
    if (!ok)
        printf("# %s\n", err.text);
    return ok;
}

static inline bool token_open_text(struct token_rig *r, const char *json, struct clb_err *err)
{
    *r = (struct token_rig){ .t = NULL };
    *err = (struct clb_err){ .code = CLB_OK };
    return clb_hf_tokenizer_compile(&r->tables, json, strlen(json), "t.json", 1000, err) &&
           clb_tokenizer_open(&r->t, r->tables.p, r->tables.n, err);
}

static inline void token_close(struct token_rig *r)
{
    clb_tokenizer_close(r->t);
    clb_text_free(&r->tables);
}

/* The ids of a text, written with spaces between them. */
static inline void token_check_ids(const struct clb_tokenizer *t, const char *text,
                                   const struct clb_encode_options *o, const char *want)
{
    struct clb_ids ids = { 0 };
    struct clb_text got = { 0 };
    struct clb_err err;

    CHECK(clb_encode(t, text, strlen(text), o, &ids, &err));
    for (size_t i = 0; i < ids.n; i++)
        clb_text_printf(&got, "%s%d", i ? " " : "", (int)ids.id[i]);
    CHECK_STR(got.p ? got.p : "", want);
    clb_text_free(&got);
    clb_ids_free(&ids);
}

#endif
