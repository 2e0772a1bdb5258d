#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/base/json.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"

/* What the options say; a JSON record may say otherwise. */
static bool set_defaults(struct run_job *job, const struct run_options *o, struct clb_err *err)
{
    job->max_new = o->max_new;
    job->sampling = (struct colibri_sampling){
        .size = sizeof job->sampling,
        .temperature = o->temperature,
        .top_k = o->top_k,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .repetition_penalty = o->repeat_penalty,
        .seed = o->seed,
    };
    for (uint32_t i = 0; i < o->stop.n; i++)
        if (!run_stops_add(&job->stops, clb_str(o->stop.value[i]), err))
            return false;
    return true;
}

/* -- text -------------------------------------------------------------------------------------- */

static bool too_long(const struct run *r, const char *more, size_t n, struct clb_err *err)
{
    return clb_fail(err, CLB_BAD_INPUT, "the prompt has %s%zu tokens, but the context holds %u%s",
                    more, n, r->plan.context,
                    r->plan.context < r->info.max_positions ? "; --ctx makes it longer" : "");
}

/* A text far too long for the context is not encoded to its end just to say by how much. */
static bool encode(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    const struct run *r = job->run;
    uint32_t flags =
        COLIBRI_ENCODE_UP_TO_ROOM | (r->o.parse_special ? COLIBRI_ENCODE_PARSE_SPECIAL : 0);
    const size_t most = 2 * (size_t)r->plan.context + 65536;
    size_t room = text.n / 2 + 16;

    for (;; room *= 4) { /* most texts need fewer tokens than that */
        room = room < most ? room : most;
        int32_t *ids = clb_grow(job->ids, room, sizeof *ids, err);
        if (!ids)
            return false;
        job->ids = ids;
        int64_t n = colibri_encode(r->model, text.p, text.n, flags, ids, room);
        if (n < 0)
            return clb_engine_fail(err);
        job->n_ids = (size_t)n;
        if (job->n_ids <= room)
            break;
        if (room == most)
            return too_long(r, "more than ", most, err);
    }
    if (job->n_ids > 0)
        return true;
    if (r->info.bos_token < 0)
        return clb_fail(err, CLB_BAD_INPUT,
                        "the prompt is empty, and the model has no token to begin with (BOS)");
    job->ids[job->n_ids++] = r->info.bos_token;
    return true;
}

static bool parse_ids(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    if (!clb_engine_parse_ids(&job->ids, &job->n_ids, text, job->run->info.vocab_size, err))
        return false;
    return job->n_ids > 0 || clb_fail(err, CLB_BAD_INPUT, "no token ids");
}

static bool set_prompt(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    const struct run *r = job->run;

    if (!(r->o.ids ? parse_ids(job, text, err) : encode(job, text, err)))
        return false;
    return job->n_ids <= r->plan.context || too_long(r, "", job->n_ids, err);
}

/* -- JSON records ------------------------------------------------------------------------------ */

static float read_float(struct clb_json *j, double lo, double hi)
{
    double v = clb_json_f64(j);

    if (clb_json_ok(j) && !(v >= lo && v <= hi))
        clb_json_fail(j, "%g is not between %g and %g", v, lo, hi);
    return (float)v;
}

static void read_stop(struct clb_json *j, struct run_stops *stops)
{
    struct clb_str s = clb_json_string(j);
    struct clb_err err;

    if (clb_json_ok(j) && !run_stops_add(stops, s, &err))
        clb_json_fail(j, "%s", err.text);
}

static void read_stops(struct clb_json *j, struct run_stops *stops)
{
    stops->n = 0; /* instead of those of the command line */
    clb_text_clear(&stops->bytes);
    if (clb_json_peek(j) != CLB_JSON_ARRAY) {
        read_stop(j, stops);
        return;
    }
    clb_json_array(j);
    while (clb_json_item(j))
        read_stop(j, stops);
}

static void read_prompt(struct clb_json *j, struct clb_text *prompt)
{
    struct clb_str s = clb_json_string(j);

    clb_text_add(prompt, s.p, s.n);
}

static void read_member(struct clb_json *j, struct clb_str key, struct run_job *job,
                        struct clb_text *prompt)
{
    struct colibri_sampling *s = &job->sampling;

    if (clb_str_is(key, "prompt"))
        read_prompt(j, prompt);
    else if (clb_str_is(key, "max_new_tokens"))
        job->max_new = (uint32_t)clb_json_u64(j, INT32_MAX);
    else if (clb_str_is(key, "seed"))
        s->seed = clb_json_u64(j, UINT64_MAX);
    else if (clb_str_is(key, "temperature"))
        s->temperature = read_float(j, 0, 100);
    else if (clb_str_is(key, "top_p"))
        s->top_p = read_float(j, 0, 1);
    else if (clb_str_is(key, "min_p"))
        s->min_p = read_float(j, 0, 1);
    else if (clb_str_is(key, "repetition_penalty"))
        s->repetition_penalty = read_float(j, 0.01, 100);
    else if (clb_str_is(key, "top_k"))
        s->top_k = (uint32_t)clb_json_u64(j, INT32_MAX);
    else if (clb_str_is(key, "stop"))
        read_stops(j, &job->stops);
    else
        clb_json_fail(j, "is not known; known are prompt, max_new_tokens, seed, temperature, "
                         "top_k, top_p, min_p, repetition_penalty and stop");
}

/* {"prompt": "...", ...} or "...". */
static bool parse_json(struct run_job *job, struct clb_str record, struct clb_text *prompt,
                       struct clb_err *err)
{
    struct clb_json j;
    struct clb_str key;
    bool has_prompt = true;

    clb_json_open(&j, record.p, record.n, "json");
    if (clb_json_peek(&j) == CLB_JSON_STRING) {
        read_prompt(&j, prompt);
    } else {
        has_prompt = false;
        clb_json_object(&j);
        while (clb_json_key(&j, &key)) {
            has_prompt |= clb_str_is(key, "prompt");
            read_member(&j, key, job, prompt);
        }
    }
    if (!clb_json_close(&j, err))
        return false;
    if (!has_prompt)
        return clb_fail(err, CLB_BAD_INPUT, "'prompt' is missing");
    return !prompt->failed || clb_fail_nomem(err, record.n);
}

/* -- jobs -------------------------------------------------------------------------------------- */

static bool read_record(struct run_job *job, struct clb_str record, struct clb_err *err)
{
    const struct run_options *o = &job->run->o;
    struct clb_text prompt = { 0 };
    bool ok;

    if (!set_defaults(job, o, err))
        return false;
    if (o->mode == RUN_JSONL) {
        ok = parse_json(job, record, &prompt, err) &&
             set_prompt(job, (struct clb_str){ prompt.n ? prompt.p : "", prompt.n }, err);
    } else {
        if (o->mode == RUN_ONE && !o->prompt && record.n && record.p[record.n - 1] == '\n')
            record.n--;
        ok = set_prompt(job, record, err);
    }
    clb_text_free(&prompt);
    return ok;
}

struct run_job *run_job_new(struct run *r, struct clb_str record, struct clb_err *err)
{
    struct run_job *job = clb_new(1, sizeof *job, err);

    if (!job)
        return NULL;
    job->run = r;
    job->number = ++r->n_record;
    job->spill = -1;
    if (!read_record(job, record, &job->err))
        job->finish = RUN_FAILED;
    else
        r->count.prompt_tokens += job->n_ids;
    return job;
}

void run_job_free(struct run_job *job)
{
    if (!job)
        return;
    colibri_session_close(job->session);
    colibri_decoder_close(job->decoder);
    if (job->spill >= 0)
        close(job->spill);
    clb_text_free(&job->stops.bytes);
    clb_text_free(&job->held);
    clb_text_free(&job->out);
    clb_free(job->ids);
    clb_free(job);
}
