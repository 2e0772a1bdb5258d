/* map_impl.h - a map between reading (map.c, map_tensors.c) and use (map_apply.c, map_words.c).
 * Nobody else includes this. */
#ifndef CLB_IMPORT_MAP_IMPL_H
#define CLB_IMPORT_MAP_IMPL_H

#include "lib/base/json.h"
#include "lib/import/map.h"

/* A value as it stands in the map; text.p NULL: there is none. */
struct clb_map_raw {
    struct clb_str text; /* borrowed */
    size_t at;           /* byte offset */
};

/* What a field becomes. A key with several fields has an entry for each. */
struct clb_map_entry {
    char *key;                 /* owned: of config.json, "a.b" inside an object; NULL: fixed */
    char *field;               /* owned: a field or another word; NULL: the key means nothing */
    struct clb_map_raw value;  /* fixed */
    struct clb_map_raw values; /* an object: what each value of the key means */
    struct clb_map_raw absent; /* taken when the key is absent or null */
    struct clb_map_raw equals; /* the key's only value */
};

struct clb_map {
    struct clb_family family; /* its pointers are owned by the map */
    const char *file;         /* borrowed */
    char *name;               /* owned */
    struct clb_map_entry *entry; /* [n_entry] owned */
    uint32_t n_entry, entry_room;
    struct clb_family_tensor *tensor; /* [n_tensor + 1] owned, with its patterns */
    uint32_t n_tensor, tensor_room;
};

enum { CLB_MAP_MOST = 512 }; /* entries, and tensors */

/* map_tensors.c: the object "tensors". */
bool clb_map_read_tensors(struct clb_map *m, struct clb_json *j, struct clb_err *err);
/* Words that are no field of the descriptor. */
enum clb_map_word {
    CLB_MAP_FIELD, /* a field of the descriptor */
    CLB_MAP_NO_WORD,
    CLB_MAP_COMPUTED,  /* a field that convert computes */
    CLB_MAP_PUBLISHED, /* a key of config.json under its published name */
    CLB_MAP_THETA,
    CLB_MAP_YARN_SCALES, /* fixed only */
    CLB_MAP_MOE_LAYERS,
    CLB_MAP_DENSE_LAYERS,
    CLB_MAP_FIRST_DENSE,
    CLB_MAP_MOE_INTERVAL,
    CLB_MAP_SHARED_EXPERTS,
};
enum clb_map_word clb_map_word_of(struct clb_str name);
/* map_apply.c: the value that an entry gives, as JSON; "" for none (absent, and that is allowed).
 * *place is where it stands: in the map (*own) or in config.json. */
bool clb_map_value(const struct clb_map *m, const struct clb_map_entry *e,
                   const struct clb_settings *c, bool list_wanted, struct clb_text *out,
                   size_t *place, bool *own, struct clb_err *err);

#endif
