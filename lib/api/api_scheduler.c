/* A colibri_scheduler is a clb_scheduler. Its callbacks get events of colibri.h, made here of those
 * inside. */
#include <string.h>

#include "lib/api/api.h"
#include "lib/session/scheduler.h"

_Static_assert((int)CLB_ENDING_LENGTH == (int)COLIBRI_FINISH_LENGTH &&
                   (int)CLB_ENDING_EOS == (int)COLIBRI_FINISH_EOS &&
                   (int)CLB_ENDING_CALLBACK == (int)COLIBRI_FINISH_CALLBACK &&
                   (int)CLB_ENDING_CONTEXT == (int)COLIBRI_FINISH_CONTEXT &&
                   (int)CLB_ENDING_STOP == (int)COLIBRI_FINISH_STOP &&
                   (int)CLB_ENDING_CANCELLED == (int)COLIBRI_FINISH_CANCELLED &&
                   (int)CLB_ENDING_FAILED == (int)COLIBRI_FINISH_FAILED,
               "reasons to finish are the same numbers inside and outside");
_Static_assert((int)CLB_MOST_LOGPROBS == (int)COLIBRI_MOST_LOGPROBS &&
                   (int)CLB_MOST_STOPS == (int)COLIBRI_MOST_STOPS &&
                   (int)CLB_MOST_CHOICES == (int)COLIBRI_MOST_CHOICES,
               "limits are the same inside and outside");

static struct clb_scheduler *inside(struct colibri_scheduler *s)
{
    return (struct clb_scheduler *)s;
}

/* -- open and close ---------------------------------------------------------------------------- */

static bool take_options(struct clb_scheduler_options *to, const struct colibri_model *model,
                         const struct colibri_scheduler_options *from, struct clb_err *err)
{
    struct colibri_scheduler_options o;

    if (!clb_api_take(&o, sizeof o, from, "scheduler_options", err))
        return false;
    *to = (struct clb_scheduler_options){
        .batch = { .max_sessions = o.max_sequences,
                   .context = o.context,
                   .prefill_chunk = o.prefill_chunk,
                   .kv_tokens = o.kv_tokens,
                   .experts_per_token = o.experts_per_token,
                   .logit_rows = o.logit_rows,
                   .profile = o.enable_profiling },
        .max_queue = o.max_queue,
        .shared_chunk = o.shared_chunk,
        .profile_every = o.profile_every,
        .no_prefix_cache = o.no_prefix_cache,
        .tokenizer = model->tokenizer,
    };
    return clb_api_kv_dtype(&to->batch, o.kv_dtype, err);
}

int colibri_plan_scheduler(const struct colibri_model *model,
                           const struct colibri_scheduler_options *options,
                           struct colibri_memory_plan *plan)
{
    struct clb_scheduler_options o;
    struct clb_memory_plan p;
    struct clb_err err;

    if (!model || !plan)
        return clb_api_null(!model ? "model" : "plan");
    if (!take_options(&o, model, options, &err) || !clb_scheduler_plan(&p, model->m, &o, &err))
        return clb_api_fail(&err);
    return clb_api_give_plan(plan, &p);
}

int colibri_scheduler_open(struct colibri_scheduler **out, const struct colibri_model *model,
                           const struct colibri_scheduler_options *options)
{
    struct clb_scheduler_options o;
    struct clb_scheduler *s;
    struct clb_err err;

    if (!out)
        return clb_api_null("out");
    *out = NULL;
    if (!model)
        return clb_api_null("model");
    if (!take_options(&o, model, options, &err) || !clb_scheduler_open(&s, model->m, &o, &err))
        return clb_api_fail(&err);
    *out = (struct colibri_scheduler *)s;
    return COLIBRI_OK;
}

void colibri_scheduler_close(struct colibri_scheduler *scheduler)
{
    clb_scheduler_close(inside(scheduler));
}

/* -- events ------------------------------------------------------------------------------------ */

enum { ON_TOKEN, ON_FINISH }; /* in clb_listener.user */

static int on_token(const struct clb_token_event *e)
{
    struct colibri_logprob top[COLIBRI_MOST_LOGPROBS];
    const struct colibri_token_event out = {
        .size = sizeof out,
        .ticket = e->ticket,
        .arg = e->to->arg,
        .choice = e->choice,
        .index = e->index,
        .id = e->id,
        .text = e->text.p,
        .n_text = e->text.n,
        .logprob = e->logprob,
        .top = top,
        .n_top = e->n_top,
    };

    for (uint32_t i = 0; i < e->n_top; i++)
        top[i] = (struct colibri_logprob){ e->top[i].id, e->top[i].logprob };
    return ((colibri_token_event_fn *)e->to->user[ON_TOKEN])(&out);
}

static void on_finish(const struct clb_finish_event *e)
{
    struct colibri_profile profile;
    struct colibri_error error;
    struct colibri_finish_event out = {
        .size = sizeof out,
        .ticket = e->ticket,
        .arg = e->to->arg,
        .choice = e->choice,
        .last = e->last,
        .finish = (int32_t)e->why,
        .text = e->text.p,
        .n_text = e->text.n,
        .prompt_tokens = e->prompt_tokens,
        .new_tokens = e->new_tokens,
        .cached_tokens = e->cached_tokens,
        .n_preempted = e->n_preempted,
        .queue_seconds = e->queue_seconds,
        .prefill_seconds = e->prefill_seconds,
        .decode_seconds = e->decode_seconds,
    };

    if (e->profile) {
        clb_api_profile(&profile, e->profile);
        out.profile = &profile;
    }
    if (e->err) {
        clb_api_error(&error, e->err);
        out.error = &error;
    }
    ((colibri_finish_event_fn *)e->to->user[ON_FINISH])(&out);
}

/* -- any thread -------------------------------------------------------------------------------- */

static bool take_request(struct clb_ask *to, const struct colibri_request *from,
                         struct clb_err *err)
{
    struct colibri_request r;

    if (!clb_api_take(&r, sizeof r, from, "request", err))
        return false;
    if ((!r.ids && r.n_ids) || (!r.stop && r.n_stop)) {
        const char *name = !r.ids && r.n_ids ? "ids" : "stop";
        clb_fail(err, CLB_USAGE, "'%s' is NULL", name);
        return clb_err_place(err, NULL, name, CLB_NO_OFFSET);
    }
    *to = (struct clb_ask){
        .ids = r.ids,
        .n_ids = r.n_ids,
        .n_choice = r.n_choices,
        .max_new = r.max_new_tokens,
        .positions = r.positions,
        .stop = r.stop,
        .stop_size = r.stop_size,
        .n_stop = r.n_stop,
        .n_logprob = r.n_logprobs,
        .logprobs = r.logprobs,
        .ignore_eos = r.ignore_eos,
        .ids_only = r.ids_only,
        .new_text = r.new_text,
        .prompt_only = r.prompt_only,
        .no_prefix_cache = r.no_prefix_cache,
        .profile = r.profile,
        .to = { .on_token = r.on_token ? on_token : NULL,
                .on_finish = r.on_finish ? on_finish : NULL,
                .on_row = r.on_row,
                .arg = r.arg,
                .user = { [ON_TOKEN] = (void (*)(void))r.on_token,
                          [ON_FINISH] = (void (*)(void))r.on_finish } },
    };
    return clb_api_sampling(&to->sampling, r.sampling, err);
}

int colibri_scheduler_submit(struct colibri_scheduler *scheduler,
                             const struct colibri_request *request, uint64_t *ticket)
{
    struct clb_ask ask;
    struct clb_err err;
    uint64_t ignored;

    if (!scheduler || !request)
        return clb_api_null(!scheduler ? "scheduler" : "request");
    if (!take_request(&ask, request, &err) ||
        !clb_scheduler_submit(inside(scheduler), &ask, ticket ? ticket : &ignored, &err))
        return clb_api_fail(&err);
    return COLIBRI_OK;
}

int colibri_scheduler_cancel(struct colibri_scheduler *scheduler, uint64_t ticket)
{
    if (!scheduler)
        return clb_api_null("scheduler");
    clb_scheduler_cancel(inside(scheduler), ticket);
    return COLIBRI_OK;
}

void colibri_scheduler_wake(struct colibri_scheduler *scheduler)
{
    if (scheduler)
        clb_scheduler_wake(inside(scheduler));
}

int colibri_scheduler_stats(struct colibri_scheduler *scheduler,
                            struct colibri_scheduler_stats *stats)
{
    struct clb_scheduler_counts c;
    struct clb_err err;

    if (!scheduler || !stats)
        return clb_api_null(!scheduler ? "scheduler" : "stats");
    clb_scheduler_counts(inside(scheduler), &c);
    const struct clb_scheduler_shape shape = clb_scheduler_shape(inside(scheduler));
    const struct colibri_scheduler_stats full = {
        .max_sequences = shape.max_sequences,
        .max_queue = shape.max_queue,
        .context = shape.context,
        .kv_dtype = clb_api_kv_word(shape.kv_dtype),
        .waiting = c.waiting,
        .running = c.running,
        .submitted = c.submitted,
        .refused = c.refused,
        .finished = c.finished,
        .cancelled = c.cancelled,
        .failed = c.failed,
        .preempted = c.preempted,
        .prompt_tokens = c.prompt_tokens,
        .cached_tokens = c.cached_tokens,
        .new_tokens = c.new_tokens,
        .passes = c.passes,
        .prompt_rows = c.prompt_rows,
        .new_rows = c.new_rows,
        .prompt_seconds = c.prompt_seconds,
        .new_seconds = c.new_seconds,
        .kv_block_tokens = CLB_KV_BLOCK,
        .kv_block_bytes = shape.block_bytes,
        .kv_blocks = c.kv.n_block,
        .kv_used = c.kv.n_block - c.kv.n_free - c.kv.n_idle,
        .kv_shared = c.kv.n_shared,
        .kv_cached = c.kv.n_idle,
    };
    return clb_api_give(stats, &full, sizeof full, "scheduler_stats", &err) ? COLIBRI_OK
                                                                            : clb_api_fail(&err);
}

int colibri_scheduler_profile(struct colibri_scheduler *scheduler, struct colibri_profile *profile)
{
    struct colibri_profile full;
    struct clb_profile p;
    struct clb_err err;

    if (!scheduler || !profile)
        return clb_api_null(!scheduler ? "scheduler" : "profile");
    clb_scheduler_profile(inside(scheduler), &p);
    clb_api_profile(&full, &p);
    return clb_api_give(profile, &full, sizeof full, "profile", &err) ? COLIBRI_OK
                                                                      : clb_api_fail(&err);
}

/* -- the owner --------------------------------------------------------------------------------- */

int colibri_scheduler_wait(struct colibri_scheduler *scheduler, int32_t milliseconds)
{
    if (!scheduler)
        return clb_api_null("scheduler");
    clb_scheduler_wait(inside(scheduler), milliseconds);
    return COLIBRI_OK;
}

int colibri_scheduler_step(struct colibri_scheduler *scheduler, size_t *n_left)
{
    struct clb_err err;
    size_t ignored;

    if (!scheduler)
        return clb_api_null("scheduler");
    return clb_scheduler_step(inside(scheduler), n_left ? n_left : &ignored, &err)
               ? COLIBRI_OK
               : clb_api_fail(&err);
}
