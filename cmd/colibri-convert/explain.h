/* explain.h - --explain: what was understood of a checkpoint. */
#ifndef COLIBRI_CONVERT_EXPLAIN_H
#define COLIBRI_CONVERT_EXPLAIN_H

#include <stdbool.h>

#include "lib/import/convert.h"

/* Prints what became of each key of config.json, and the descriptor that follows from them, to
 * stdout; nothing when the plan failed before that was known. False: no memory. */
bool convert_explain(const struct clb_conversion *c);

#endif
