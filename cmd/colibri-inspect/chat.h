/* chat.h - colibri-inspect --render-chat: a chat template on lines of JSON.
 *
 * `path` is a colibri.bin with a chat template, or a template. Each line of `in` is a conversation
 * and is answered by one line on stdout, flushed at once; empty lines are passed over. What a
 * template or a conversation does wrong is an answer; a line that is not an object of that kind
 * ends it with an error that names the line. */
#ifndef CLB_INSPECT_CHAT_H
#define CLB_INSPECT_CHAT_H

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/err.h"

/* {"messages": [...], "tools": ..., "add_generation_prompt": true, "kwargs": {...}, "vars": {...},
 * "now": "2025-06-15T12:30:45"} -> {"text": "..."} or {"error": "..."} */
bool inspect_render_chat(const char *path, FILE *in, struct clb_err *err);

#endif
