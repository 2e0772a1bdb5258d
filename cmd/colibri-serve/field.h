/* field.h - members of a JSON object from outside, checked against a table. */
#ifndef CMD_COLIBRI_SERVE_FIELD_H
#define CMD_COLIBRI_SERVE_FIELD_H

#include <json-c/json.h>

#include "cmd/colibri-serve/serve.h"

enum serve_field_kind {
    SERVE_FIELD_BOOL,   /* bool */
    SERVE_FIELD_COUNT,  /* uint32_t within [lo, hi]; below 0: 0 */
    SERVE_FIELD_NUMBER, /* float within [lo, hi] */
    SERVE_FIELD_SEED,   /* uint64_t: any integer of 64 bits */
    SERVE_FIELD_ONLY,   /* a number that must be lo: what it asks for does not exist here */
    SERVE_FIELD_EMPTY,  /* must be "", [], {}, false or "none", for the same reason */
    SERVE_FIELD_TRUE,   /* must be true */
    SERVE_FIELD_ANY,    /* taken, and without effect */
    SERVE_FIELD_TAKE,   /* `take` reads it */
};
typedef bool serve_take_fn(void *arg, struct json_object *value, const char *name,
                           struct serve_refusal *no);
struct serve_field {
    const char *name; /* NULL ends a table */
    unsigned where;   /* set of enum serve_kind in which it may occur */
    enum serve_field_kind kind;
    size_t at; /* where in the destination */
    double lo, hi;
    serve_take_fn *take;
};

/* The text as a JSON object; NULL: refused, as lib/base/json.h does: strict grammar and UTF-8, no
 * member twice, depth at most 128. To be given to json_object_put(). */
struct json_object *serve_parse(struct clb_str text, struct serve_refusal *no);

/* Each member to its place in `to`; null is as if it were absent. A member that the table does not
 * have in `where` is refused. `arg` goes to take functions. */
bool serve_read_fields(const struct serve_field *table, unsigned where, struct json_object *object,
                       void *to, void *arg, struct serve_refusal *no);

bool serve_read_text(struct json_object *value, const char *name, struct clb_str *text,
                     struct serve_refusal *no);
bool serve_read_number(struct json_object *value, const char *name, double lo, double hi,
                       float *number, struct serve_refusal *no);
/* "a string", "an array", ... */
const char *serve_type_of(const struct json_object *value);

#endif
