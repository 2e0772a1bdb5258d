/* family.h - what differs between model families, as data: one file per family in families/ maps
 * the keys of config.json to fields of the descriptor, and tensor names to roles. */
#ifndef CLB_IMPORT_FAMILY_H
#define CLB_IMPORT_FAMILY_H

#include <stddef.h>
#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/import/families/list.h"
#include "lib/import/hf_config.h"
#include "lib/import/quant_config.h"

enum clb_key_kind {
    CLB_KEY_U32,
    CLB_KEY_F32,
    CLB_KEY_BOOL,
    CLB_KEY_ACT, /* the name of an activation function */
};

struct clb_family_key {
    const char *key, *alias; /* alias: other spellings, separated by '|', or NULL */
    enum clb_key_kind kind;
    size_t field;  /* offset in struct clb_arch */
    bool required; /* else the field keeps what start() gave it */
    double lo, hi; /* numbers */
};
#define CLB_KEY_AT(f) offsetof(struct clb_arch, f)

/* What a tensor of the checkpoint is for: an enum clb_role, or one of these. */
enum {
    CLB_FOR_EXPERT = CLB_ROLE_COUNT,                  /* + part: a matrix of an expert */
    CLB_FOR_EXPERT_BIAS = CLB_FOR_EXPERT + CLB_PARTS, /* + part */
    CLB_FOR_NOTHING = CLB_FOR_EXPERT_BIAS + CLB_PARTS,
    CLB_FOR_KV_B, /* MLA: per head, what makes keys and what makes values of a latent */
    /* Rows of several in one tensor, one behind the other: gate, then up; q, k, then v. */
    CLB_FOR_EXPERT_GATE_UP,
    CLB_FOR_EXPERT_GATE_UP_BIAS,
    CLB_FOR_SHARED_GATE_UP,
    CLB_FOR_DENSE_GATE_UP,
    CLB_FOR_QKV,
};

/* How a tensor holds it; 0: [rows][columns] of one matrix, as the model has them. Families say it,
 * nothing is guessed from shapes. Only experts are stacked, only pairs interleaved; kv_b, vectors
 * and the embedding are neither turned nor blocks. */
enum {
    CLB_STACKED = 1,     /* one for each expert of the layer: a dimension in front */
    CLB_TRANSPOSED = 2,  /* [columns][rows] */
    CLB_INTERLEAVED = 4, /* rows of gate and up take turns */
    /* MXFP4: [rows][columns / 32][16] bytes, two codes each, the low one first; the scales
     * [rows][columns / 32] are in a tensor that is named "..._scales" instead of "..._blocks". */
    CLB_BLOCKS = 8,
};

/* '#' stands for a number: the layer first, then the expert; '*' at the end for anything. Ends with
 * pattern NULL. Scales of FP8 blocks ("..._scale_inv") have no line of their own. */
struct clb_family_tensor {
    const char *pattern;
    int target; /* role or CLB_FOR_... */
    unsigned form;
};

struct clb_map;

struct clb_family {
    const char *model_type;
    const struct clb_map *map;  /* --map: this is the user's own architecture; NULL: a known one */
    double default_theta;       /* rope_theta of the reference when config.json has none */
    bool partial_rotary;        /* honours partial_rotary_factor */
    double default_part;        /* partial_rotary_factor without the key; 0: the whole head */
    bool yarn_scales_attention; /* mscale_all_dim scales scores, squared */
    /* the key that counts layers for predicting further tokens, which stand behind the others and
     * are not used; NULL: none */
    const char *further_layers;
    /* A model that does more than text: the object of config.json about its language model, what
     * stands before the names of its tensors, and keys beside the object that are about the rest
     * (ends with NULL); else NULL */
    const char *text_config, *prefix;
    const char *const *beside;
    void (*start)(struct clb_arch *a);   /* fixed properties and defaults */
    const struct clb_family_key *keys;   /* beside those all families share; ends with key NULL */
    const struct clb_family_tensor *mlp; /* clb_family_mlp, or NULL: names of its own */
    const struct clb_family_tensor *tensors; /* beside those all families share; NULL: none */
    /* What a table cannot say; NULL: nothing. Runs after the keys were read. */
    bool (*derive)(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err);
};

#define CLB_FAMILY_DECLARE(name) extern const struct clb_family clb_family_##name;
CLB_FAMILIES(CLB_FAMILY_DECLARE)
#undef CLB_FAMILY_DECLARE

/* Tensors with the same name in all families. */
extern const struct clb_family_tensor clb_family_common[];
/* Router, experts, shared experts and dense MLPs by the names that most families give them. */
extern const struct clb_family_tensor clb_family_mlp[];

struct clb_family_options {
    struct clb_ignore *ignore; /* [n_ignore] keys that the user accepts; their states are filled */
    uint32_t n_ignore;
    float router_clip;
    const struct clb_map *map; /* NULL: config.json says which family it is */
};

/* What convert needs beside the descriptor. */
struct clb_family_extra {
    float inv_freq[CLB_MAX_ROPE / 2], inv_freq_long[CLB_MAX_ROPE / 2]; /* [a->rope_dim / 2] */
    uint32_t n_further;                                                /* layers not used */
    struct clb_quant quant;
};

/* Recognises the family and fills the descriptor and what is beside it. Every key of config.json is
 * accounted for; those that are not are in `problems`. */
bool clb_family_read(const struct clb_family **family, struct clb_arch *a,
                     struct clb_family_extra *extra, struct clb_settings *config,
                     const struct clb_family_options *o, struct clb_problems *problems,
                     struct clb_text *notes, struct clb_err *err);

/* What a tensor of this name is for; NULL when the family has no such name. number[0] is the layer,
 * number[1] the expert (UINT32_MAX where the pattern has none). */
const struct clb_family_tensor *clb_family_match(const struct clb_family *f, const char *name,
                                                 uint32_t number[2]);
/* The first line of this target, and the name that its tensor must have; NULL when the family has
 * none. */
const struct clb_family_tensor *clb_family_name(const struct clb_family *f, int target,
                                                uint32_t layer, uint32_t expert, char *buf,
                                                size_t n);

/* -- words for derive functions (family_help.c) ------------------------------------------------ */

/* The key is absent, or its text is among words ("a|b"); else the model is refused. */
bool clb_family_word(struct clb_settings *c, const char *key, const char *words,
                     struct clb_err *err);
/* The key is absent or has this value. */
bool clb_family_number(struct clb_settings *c, const char *key, uint32_t value,
                       struct clb_err *err);
bool clb_family_flag(struct clb_settings *c, const char *key, bool value, struct clb_err *err);
/* The keys, up to a NULL, are there: the reference's defaults for them are not neutral. */
bool clb_family_must(struct clb_settings *c, const char *const *keys, struct clb_err *err);
/* Layers before that number have no experts. */
bool clb_family_first_dense(struct clb_settings *c, const char *key, struct clb_arch *a,
                            struct clb_err *err);
/* Qwen: a layer is sparse when its number, counted from 1, is a multiple of decoder_sparse_step,
 * and mlp_only_layers does not list it. */
bool clb_family_sparse_step(struct clb_settings *c, struct clb_arch *a, struct clb_err *err);
/* dense_size is forgotten when no layer is dense. */
void clb_family_dense_size(struct clb_arch *a);
/* n_group and topk_group: with one group there is nothing to choose. */
bool clb_family_groups(struct clb_settings *c, struct clb_arch *a, enum clb_group_score score,
                       struct clb_err *err);
/* DeepSeek's names of the widths of multi-head latent attention. */
bool clb_family_mla(struct clb_settings *c, struct clb_arch *a, struct clb_err *err);
/* `count` shared experts side by side are one that is count times as wide. */
bool clb_family_shared(struct clb_settings *c, const char *count, struct clb_arch *a,
                       struct clb_err *err);
/* layer_types: sliding[l] of each layer. False in *found: the key is absent. */
bool clb_family_layer_types(struct clb_settings *c, const struct clb_arch *a, bool *sliding,
                            bool *found, struct clb_err *err);
/* A number, or a list with one for each layer: value[n_layer]. Absent: values stay. */
bool clb_family_per_layer(struct clb_settings *c, const char *key, const struct clb_arch *a,
                          uint32_t lo, uint32_t hi, uint32_t *value, struct clb_err *err);

#endif
