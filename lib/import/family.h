/* family.h - what differs between model families, as data: one file per family in families/ maps
 * the keys of config.json to fields of the descriptor, and tensor names to roles. */
#ifndef CLB_IMPORT_FAMILY_H
#define CLB_IMPORT_FAMILY_H

#include <stddef.h>
#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/import/hf_config.h"

enum clb_key_kind {
    CLB_KEY_U32,
    CLB_KEY_F32,
    CLB_KEY_BOOL,
    CLB_KEY_ACT, /* the name of an activation function */
};

struct clb_family_key {
    const char *key, *alias; /* alias: another spelling of the key, or NULL */
    enum clb_key_kind kind;
    size_t field;  /* offset in struct clb_arch */
    bool required; /* else the field keeps what start() gave it */
    double lo, hi; /* numbers */
};
#define CLB_KEY_AT(f) offsetof(struct clb_arch, f)

/* What a tensor of the checkpoint is for: an enum clb_role, a part of an expert, or nothing. */
enum { CLB_FOR_EXPERT = CLB_ROLE_COUNT, CLB_FOR_NOTHING = CLB_FOR_EXPERT + CLB_PARTS };

/* '#' stands for a number: the layer first, then the expert. Ends with pattern NULL. */
struct clb_family_tensor {
    const char *pattern;
    int target; /* role, CLB_FOR_EXPERT + part, or CLB_FOR_NOTHING */
};

struct clb_family {
    const char *model_type;
    double default_theta;              /* rope_theta of the reference when config.json has none */
    void (*start)(struct clb_arch *a); /* fixed properties and defaults */
    const struct clb_family_key *keys; /* beside those all families share; ends with key NULL */
    const struct clb_family_tensor *tensors; /* beside those all families share */
    /* What a table cannot say; NULL: nothing. Runs after the keys were read. */
    bool (*derive)(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err);
};

extern const struct clb_family clb_family_mixtral, clb_family_olmoe, clb_family_qwen3_moe;

/* Tensors with the same name in all families. */
extern const struct clb_family_tensor clb_family_common[];

struct clb_family_options {
    struct clb_ignore *ignore; /* [n_ignore] keys that the user accepts; their states are filled */
    uint32_t n_ignore;
    float router_clip;
};

/* Recognises the family and fills the descriptor and the inverse frequencies [a->rope_dim / 2]
 * (room for CLB_MAX_ROPE / 2). Every key of config.json is accounted for; those that are not are in
 * `problems`. */
bool clb_family_read(const struct clb_family **family, struct clb_arch *a, float *inv_freq,
                     struct clb_settings *config, const struct clb_family_options *o,
                     struct clb_problems *problems, struct clb_text *notes, struct clb_err *err);

/* What a tensor of this name is for; false when the family has no such name. number[0] is the
 * layer, number[1] the expert (UINT32_MAX where the pattern has none). */
bool clb_family_match(const struct clb_family *f, const char *name, int *target,
                      uint32_t number[2]);
/* The name that a tensor of this target must have; false when the family has none. */
bool clb_family_name(const struct clb_family *f, int target, uint32_t layer, uint32_t expert,
                     char *buf, size_t n);

#endif
