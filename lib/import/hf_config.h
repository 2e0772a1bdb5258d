/* hf_config.h - a JSON object of settings, where every key must be accounted for.
 *
 * A key is used when somebody asks for it; it is known to be irrelevant by its name; or it was
 * accepted with --ignore-key. Any other key that could change something (its value is not null,
 * false, "", [] or {}) refuses the model: a setting that is not understood must not be dropped. */
#ifndef CLB_IMPORT_HF_CONFIG_H
#define CLB_IMPORT_HF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/json.h"
#include "lib/base/str.h"
#include "lib/import/problems.h"

enum clb_key_state { CLB_KEY_UNKNOWN, CLB_KEY_USED, CLB_KEY_IRRELEVANT, CLB_KEY_IGNORED };
extern const char *const clb_key_state_name[]; /* "unknown", "used", "irrelevant", "ignored" */

struct clb_setting {
    const char *key;    /* terminated; owned by the object */
    const char *as;     /* the name by which it is asked for: the key, unless a map renames it; "":
                           by none; borrowed */
    struct clb_str raw; /* the value as written, borrowed from the text */
    enum clb_json_type type;
    size_t at; /* byte offset of the value */
    enum clb_key_state state;
    bool told;     /* that it is not known is among the problems */
    uint32_t skip; /* of the key, in front of `as` where that is its end */
};

struct clb_settings {
    const char *file;            /* borrowed; for messages */
    char prefix[64];             /* "rope_scaling." for a nested object, else "" */
    struct clb_setting *setting; /* [n] owned, in the order of the text */
    uint32_t n;
    struct clb_text keys; /* owned */
    bool accounted;       /* every key has its state: clb_settings_check_rest was called */
};

/* text stays borrowed. Duplicate keys, bad JSON: refused by the reader. */
bool clb_settings_read(struct clb_settings *s, const char *text, size_t n, const char *file,
                       struct clb_err *err);
/* The object that is the value of a key of `parent`; empty when it is absent or null. */
bool clb_settings_nested(struct clb_settings *s, struct clb_settings *parent, const char *key,
                         struct clb_err *err);
/* The keys of an object that is the value of setting i become settings "key.inner", behind the
 * others; the object itself counts as used. Pointers to settings become invalid. */
bool clb_settings_flatten(struct clb_settings *s, uint32_t i, struct clb_err *err);
/* Likewise, but the keys are asked for by their names in the object; keys outside with the same
 * names by none. */
bool clb_settings_lift(struct clb_settings *s, uint32_t i, struct clb_err *err);
/* What became of the keys of `inner`, the object that is the value of `key`, for display: they are
 * settings as if flattened, asked for by no name. Without memory nothing happens. */
void clb_settings_adopt(struct clb_settings *s, const char *key, const struct clb_settings *inner);
void clb_settings_free(struct clb_settings *s); /* safe on a zeroed struct */

/* Marks the key as used. NULL when it is absent or null. */
struct clb_setting *clb_setting_find(struct clb_settings *s, const char *key);
/* Does not mark it. NULL when it is absent. */
const struct clb_setting *clb_setting_peek(const struct clb_settings *s, const char *key);
/* The family knows the key, and that it changes nothing. */
void clb_setting_no_effect(struct clb_settings *s, const char *key);
/* Getters leave *out as it is when the key is absent or null; a value of another type or out of
 * range fails with file, byte and key. */
bool clb_setting_u32(struct clb_settings *s, const char *key, uint32_t lo, uint32_t hi,
                     uint32_t *out, struct clb_err *err);
bool clb_setting_f64(struct clb_settings *s, const char *key, double lo, double hi, double *out,
                     struct clb_err *err);
bool clb_setting_bool(struct clb_settings *s, const char *key, bool *out, struct clb_err *err);
/* Fills buf (size n) with a text without NUL; longer ones are refused. */
bool clb_setting_text(struct clb_settings *s, const char *key, char *buf, size_t n,
                      struct clb_err *err);
/* A list of numbers up to hi, or one number, at most `room` of them; *count stays when absent or
 * null. */
bool clb_setting_list(struct clb_settings *s, const char *key, uint32_t hi, uint32_t *list,
                      uint32_t room, uint32_t *count, struct clb_err *err);

/* A list of numbers from lo to hi, at most `room`; *count stays when absent or null. */
bool clb_setting_reals(struct clb_settings *s, const char *key, double lo, double hi, double *list,
                       uint32_t room, uint32_t *count, struct clb_err *err);
/* A list of texts, each without NUL and shorter than 32 bytes; likewise. */
bool clb_setting_texts(struct clb_settings *s, const char *key, char (*list)[32], uint32_t room,
                       uint32_t *count, struct clb_err *err);
/* A list of true and false; likewise. */
bool clb_setting_flags(struct clb_settings *s, const char *key, bool *list, uint32_t room,
                       uint32_t *count, struct clb_err *err);

/* "config.json: byte 12: 'key': why" with CLB_BAD_INPUT; returns false. */
bool clb_setting_fail(const struct clb_settings *s, const struct clb_setting *e,
                      struct clb_err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "config.json: 'key' is missing" */
bool clb_setting_missing(const struct clb_settings *s, const char *key, struct clb_err *err);

/* A name that the user accepts, with the prefix of its object ("rope_scaling.x"). */
struct clb_ignore {
    const char *name;         /* borrowed */
    enum clb_key_state state; /* what check_rest made of it; UNKNOWN: there is no such key */
};

/* Accounts for the keys that nobody asked for: a problem for each that could matter and is not
 * among ignore[n_ignore]. Names that the object has get their state. */
void clb_settings_check_rest(struct clb_settings *s, struct clb_ignore *ignore, uint32_t n_ignore,
                             struct clb_problems *problems);

#endif
