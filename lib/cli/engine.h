/* engine.h - what programs share that run a model through colibri.h. */
#ifndef CLB_CLI_ENGINE_H
#define CLB_CLI_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/colibri.h"

/* The library's last error, as one of ours. Always false. */
bool clb_engine_fail(struct clb_err *err);

/* --kv-dtype: a word of this CHOICE (NULL: not given) to enum colibri_kv_dtype. */
#define CLB_KV_WORDS "f32|f16|int8"
int32_t clb_engine_kv_dtype(const char *word);
const char *clb_engine_kv_word(int32_t dtype); /* the reverse; not of COLIBRI_KV_DEFAULT */

/* --numa: a word of this CHOICE (NULL: not given) to enum colibri_numa. */
#define CLB_NUMA_WORDS "interleave|local|off"
int32_t clb_engine_numa(const char *word);

/* Token ids in decimal, separated by white space, each below n_vocab. On success *ids [*n] is the
 * caller's, to be given to clb_free; it is NULL when there are none. */
bool clb_engine_parse_ids(int32_t **ids, size_t *n, struct clb_str text, uint32_t n_vocab,
                          struct clb_err *err);

#endif
