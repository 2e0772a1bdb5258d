/* desk.h - the thread that reads bodies (JSON, chat template, tokenizer) and writes long answers.
 * One after the other, so that the memory that large bodies need is bounded, and the loop never
 * waits. */
#ifndef CMD_COLIBRI_SERVE_DESK_H
#define CMD_COLIBRI_SERVE_DESK_H

#include "cmd/colibri-serve/job.h"

bool serve_desk_open(struct serve_desk **out, struct serve *s, struct clb_err *err);
/* Jobs in its queue are dropped. NULL is fine. */
void serve_desk_close(struct serve_desk *d);
/* Takes a reference. The job comes back as mail when it is refused or its answer needs no model;
 * else the engine has it. */
void serve_desk_put(struct serve_desk *d, struct serve_job *job);

#endif
