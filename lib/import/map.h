/* map.h - an architecture of the user's own (colibri-convert --map FILE): JSON that says which key
 * of config.json is which field of the descriptor, which fields are fixed, and which tensor is
 * what. colibri-map(5) has the schema. A map is a family that is made at run time. */
#ifndef CLB_IMPORT_MAP_H
#define CLB_IMPORT_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"
#include "lib/format/arch.h"
#include "lib/import/family.h"
#include "lib/import/hf_config.h"

/* Reads and checks a map: everything that is wrong whatever the checkpoint is fails here, with
 * file, byte and field. text and file stay borrowed. */
bool clb_map_open(struct clb_map **out, const char *text, size_t n, const char *file,
                  struct clb_err *err);
void clb_map_close(struct clb_map *m); /* NULL is a no-op */

const struct clb_family *clb_map_family(const struct clb_map *m); /* lives as long as m */
/* Whether the map speaks of the descriptor's field at this offset. */
bool clb_map_gives(const struct clb_map *m, size_t field);
/* "map: nothing gives ...": a key that config.json lacks and that no entry replaces. */
bool clb_map_lacks(const struct clb_map *m, const char *key, struct clb_err *err);

/* Fills the fields that the map gives, from itself and from config.json; keys that it speaks of are
 * accounted for, and are found under no other name afterwards. */
bool clb_map_fields(const struct clb_map *m, struct clb_settings *config, struct clb_arch *a,
                    struct clb_err *err);
/* What follows when sizes are known: which layers have experts, the width of shared ones; fields
 * that must not be left to a default. */
bool clb_map_derive(const struct clb_map *m, struct clb_settings *config, struct clb_arch *a,
                    struct clb_err *err);

#endif
