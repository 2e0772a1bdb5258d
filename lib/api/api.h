/* api.h - what the files behind lib/colibri.h share. A colibri_batch is a clb_batch, a
 * colibri_session a clb_session and a colibri_decoder a clb_decoder under its public name; only the
 * model has a struct of its own. */
#ifndef CLB_API_API_H
#define CLB_API_API_H

#include "lib/colibri.h"
#include "lib/model/model.h"
#include "lib/session/batch.h"
#include "lib/token/tokenizer.h"

/* Chat templates, once they were asked for. The pointer keeps what frees it out of programs that
 * never ask. */
struct clb_chat {
    void (*free)(struct clb_chat *c);
    struct clb_template *usual, *with_tools; /* with_tools: NULL if there is no other */
    struct clb_text vars;
};

struct colibri_model {
    struct clb_model *m;             /* owned */
    struct clb_tokenizer *tokenizer; /* owned; NULL: the file has none */
    _Atomic(struct clb_chat *) chat; /* owned */
};

/* Remembers the failure for colibri_last_error(); returns its status. */
int clb_api_fail(const struct clb_err *err);
/* "'name' is NULL" */
int clb_api_null(const char *name);
void clb_api_error(struct colibri_error *to, const struct clb_err *err);

/* A struct that begins with its size, from the caller: `known` bytes are filled, what the caller's
 * does not have is zero. NULL is all zero. CLB_USAGE when bytes that this version does not know are
 * set. */
bool clb_api_take(void *to, size_t known, const void *from, const char *name, struct clb_err *err);
/* The reverse: as much of `from` as the caller's struct has room for; the rest of it is zeroed, its
 * size kept. */
bool clb_api_give(void *to, const void *from, size_t known, const char *name, struct clb_err *err);

/* Public structs from and to those inside. */
struct clb_profile;
struct clb_sampling;
bool clb_api_sampling(struct clb_sampling *to, const struct colibri_sampling *from,
                      struct clb_err *err);
bool clb_api_kv_dtype(struct clb_batch_options *to, int32_t dtype, struct clb_err *err);
int32_t clb_api_kv_word(enum clb_kv_dtype dtype);
/* `ops`: this backend instead of the one that options name; or NULL. On failure NULL, and the
 * failure is remembered. */
struct colibri_model *clb_api_load(const struct clb_model_source *from,
                                   const struct colibri_load_options *options,
                                   const struct clb_backend_ops *ops, struct colibri_error *error);
int clb_api_give_plan(struct colibri_memory_plan *to, const struct clb_memory_plan *from);
void clb_api_profile(struct colibri_profile *to, const struct clb_profile *from);

#endif
