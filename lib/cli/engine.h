/* engine.h - what programs share that run a model through colibri.h. */
#ifndef CLB_CLI_ENGINE_H
#define CLB_CLI_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/colibri.h"

/* The library's last error, as one of ours: where it is about a member that a GPU's option has set,
 * it names the option. Always false. */
bool clb_engine_fail(struct clb_err *err);

/* --kv-dtype: a word of this CHOICE (NULL: not given) to enum colibri_kv_dtype. */
#define CLB_KV_WORDS "f32|f16|int8"
int32_t clb_engine_kv_dtype(const char *word);
const char *clb_engine_kv_word(int32_t dtype); /* the reverse; not of COLIBRI_KV_DEFAULT */

/* --backend, --device, --gpu-memory, --gpu-experts, --gpu-dense, --attention. */
struct clb_where {
    const char *backend, *device, *gpu_dense, *gpu_experts, *attention;
    uint64_t gpu_memory;
    bool uploading; /* a progress line is there */
};
/* clang-format off */
#define CLB_OPT_WHERE(w)                                                                           \
    { CLB_OPT_CHOICE, 0, "backend", "auto|cpu|cuda", "default: a GPU, if there is one",            \
      &(w)->backend, 0, 0, false },                                                                \
    { CLB_OPT_STRING, 0, "device", "N", "which GPU, or several: 0,2-3 (default: 0)", &(w)->device, \
      0, 0, false },                                                                               \
    { CLB_OPT_SIZE, 0, "gpu-memory", "SIZE", "at most SIZE of each (default: what is free)",       \
      &(w)->gpu_memory, 0, 0, false },                                                             \
    { CLB_OPT_CHOICE, 0, "gpu-experts", "copy|cpu|auto", "that do not fit there (default: copy)",  \
      &(w)->gpu_experts, 0, 0, false },                                                            \
    { CLB_OPT_CHOICE, 0, "gpu-dense", "own|cublas|f16", "matrices beside experts (default: own)",  \
      &(w)->gpu_dense, 0, 0, false },                                                              \
    { CLB_OPT_CHOICE, 0, "attention", "own|cudnn", "of prompts; cudnn: bits vary with batches",    \
      &(w)->attention, 0, 0, false }
/* clang-format on */
/* One of them was given. */
bool clb_engine_names_where(const struct clb_where *w);
/* Options of a GPU do not go with --backend cpu. */
bool clb_engine_where(struct colibri_load_options *o, const struct clb_where *w,
                      struct clb_err *err);
/* For -v, where a model is on the CPU: why "auto" took no GPU, and which options have no effect
 * therefore; "" when there is nothing to say. Returns text. */
enum { CLB_CPU_NOTE = 700 };
const char *clb_engine_cpu_note(char text[CLB_CPU_NOTE], const struct clb_where *w,
                                const struct colibri_model_info *info);
/* The same as a warning, where a GPU is there and its options were given, but "auto" took the CPU.
 * For those who do not show the note. */
void clb_engine_warn_cpu(const char *program, const struct clb_where *w,
                         const struct colibri_model_info *info);
/* Copying weights to a GPU draws a progress line; w is borrowed as long as the model is open. */
void clb_engine_show_upload(struct colibri_load_options *o, struct clb_where *w);

/* --numa: a word of this CHOICE (NULL: not given) to enum colibri_numa. */
#define CLB_NUMA_WORDS "interleave|local|off"
int32_t clb_engine_numa(const char *word);

/* Token ids in decimal, separated by white space, each below n_vocab. On success *ids [*n] is the
 * caller's, to be given to clb_free; it is NULL when there are none. */
bool clb_engine_parse_ids(int32_t **ids, size_t *n, struct clb_str text, uint32_t n_vocab,
                          struct clb_err *err);

#endif
