/* request.h - from the body of a request to a job that the engine can run. For the desk's thread.
 */
#ifndef CMD_COLIBRI_SERVE_REQUEST_H
#define CMD_COLIBRI_SERVE_REQUEST_H

#include <json-c/json.h>

#include "cmd/colibri-serve/job.h"

/* What the desk knows while it reads a body. */
struct serve_reading {
    const struct serve *serve;
    struct serve_job *job;
    struct json_object *prompt, *messages, *tokens, *effort,
        *template_arguments;           /* borrowed from the body */
    struct json_object *own_arguments; /* owned while messages are read */
    const char *prompt_name;           /* as the client calls it */
    bool max_given, has_tools, no_tool;
};

/* request.c: all fields. */
bool serve_request_read(struct serve_reading *r, struct json_object *body,
                        struct serve_refusal *no);
/* prompt.c: texts, ids or a conversation to job->prompt. */
bool serve_prompt_read(struct serve_reading *r, struct serve_refusal *no);
/* Whether every sequence fits into the context, and all of them into the KV cache. */
bool serve_prompt_fits(struct serve_reading *r, struct serve_refusal *no);
/* tokens.c: /tokenize and /detokenize; job->answer. */
bool serve_tokenize(struct serve_reading *r, struct serve_refusal *no);
bool serve_detokenize(struct serve_reading *r, struct serve_refusal *no);

/* Ids of a JSON array; *ids [*n] is the caller's. */
bool serve_read_ids(const struct serve *s, struct json_object *array, const char *name,
                    int32_t **ids, size_t *n, struct serve_refusal *no);
/* The library's last error: 400 for `field` where the input is at fault, else 500. */
bool serve_library_refuses(struct serve_refusal *no, const char *field);

#endif
