/* json_impl.h - what the files of the JSON reader share. Nobody else includes this. */
#ifndef CLB_BASE_JSON_IMPL_H
#define CLB_BASE_JSON_IMPL_H

#include <locale.h>

#include "lib/base/json.h"

/* The keys of one open object: an entry is (hash, offset of the opening quote in the text). Few
 * keys are searched from start to end; more are an open-addressed table. */
struct clb_json_entry {
    uint32_t hash, at;
};
struct clb_json_keys {
    struct clb_json_entry *entry; /* owned; room entries */
    uint32_t n, room;
    uint32_t slots; /* 0: a list of n entries; else a table of this many (a power of two) */
};

struct clb_json_level {
    bool object, first;
    uint32_t key_at; /* of the key read last (its opening quote) */
    uint32_t item;   /* arrays: index of the current item */
    struct clb_json_keys keys;
};

struct clb_json_state {
    struct clb_json_level level[CLB_JSON_DEPTH];
    bool value_due;          /* the next thing is a value */
    bool skipping;           /* inside clb_json_skip: decode aside, the caller's key stays valid */
    uint64_t seed[2];        /* of the key hash: the document cannot know it */
    locale_t c_locale;       /* strtod must not depend on the program around us */
    struct clb_text text[2]; /* decoded strings; [1] while skipping */
};

/* json_text.c: j->at is on the opening quote; afterwards behind the closing one. `decoded` may be
 * NULL when the value is not wanted. */
bool clb_json_scan_string(struct clb_json *j, struct clb_str *decoded);
/* Appends the decoded text of the string at `at`, which was scanned before. */
void clb_json_decode(const struct clb_json *j, size_t at, struct clb_text *out);
bool clb_json_fail_byte(struct clb_json *j, size_t at, const char *expected);

/* json_number.c: passes the number at j->at; *integer (may be NULL): it has no fraction and no
 * exponent. */
bool clb_json_scan_number(struct clb_json *j, bool *integer);

/* json_keys.c: remembers the key whose opening quote is at `at`; fails when the object has it. */
bool clb_json_add_key(struct clb_json *j, size_t at, struct clb_str key);
void clb_json_keys_clear(struct clb_json_keys *k); /* the object was closed */

/* json.c: sets the sticky error. */
bool clb_json_fail_at(struct clb_json *j, enum clb_code code, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
