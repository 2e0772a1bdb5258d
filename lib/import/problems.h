/* problems.h - a report that lists everything that is wrong at once, and notes for people.
 *
 * Lines hold names from files of other people: control characters are replaced. */
#ifndef CLB_IMPORT_PROBLEMS_H
#define CLB_IMPORT_PROBLEMS_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

/* A limit only so that a hostile config.json cannot ask for millions. */
enum { CLB_PROBLEMS_SHOWN = 1000 };

struct clb_problems {
    struct clb_text text; /* owned: the first lines, each ended by a newline */
    uint32_t n;           /* all of them */
};

void clb_problem(struct clb_problems *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* True when there are none. One becomes the message itself; several become "where: 5 problems" and
 * stay in `text`, which then ends in "and N more" if not all are there. */
bool clb_problems_none(struct clb_problems *p, const char *where, struct clb_err *err);
void clb_problems_free(struct clb_problems *p);

/* Appends one line without control characters. */
void clb_note(struct clb_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
