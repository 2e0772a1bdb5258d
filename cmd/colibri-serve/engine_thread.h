/* engine_thread.h - the thread that runs the model: it owns the library's scheduler. */
#ifndef CMD_COLIBRI_SERVE_ENGINE_THREAD_H
#define CMD_COLIBRI_SERVE_ENGINE_THREAD_H

#include "cmd/colibri-serve/job.h"

/* Reserves the memory of the model's work and says how much there is in s->context and
 * s->kv_tokens. */
bool serve_engine_open(struct serve_engine **out, struct serve *s, struct clb_err *err);
bool serve_engine_start(struct serve_engine *e, struct clb_err *err);
/* Jobs that are not done are cancelled. NULL is fine. */
void serve_engine_close(struct serve_engine *e);

/* Any thread. The job's ids, parameters and choices are complete; its end comes as mail. False: it
 * was refused and nothing of it runs. */
bool serve_engine_submit(struct serve_engine *e, struct serve_job *job, struct serve_refusal *no);
/* Any thread, also before or during submit: the job ends within one pass. Without an engine it is
 * only marked. */
void serve_engine_cancel(struct serve_engine *e, struct serve_job *job);
struct colibri_scheduler *serve_engine_scheduler(struct serve_engine *e);
const struct colibri_memory_plan *serve_engine_plan(const struct serve_engine *e);

#endif
