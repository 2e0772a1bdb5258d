#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/base/json.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"

/* -- stop texts -------------------------------------------------------------------------------- */

static bool add_stop(struct run_stops *s, struct clb_str text, struct clb_err *err)
{
    if (text.n == 0)
        return clb_fail(err, CLB_USAGE, "a stop text is empty");
    if (s->n == CLB_OPT_MANY)
        return clb_fail(err, CLB_USAGE, "more than %d stop texts", CLB_OPT_MANY);
    clb_text_add(&s->bytes, text.p, text.n);
    if (s->bytes.failed)
        return clb_fail_nomem(err, text.n);
    s->end[s->n++] = s->bytes.n;
    return true;
}

size_t run_stops_list(const struct run_stops *s, const char *text[CLB_OPT_MANY],
                      size_t size[CLB_OPT_MANY])
{
    size_t start = 0;

    for (size_t i = 0; i < s->n; i++) {
        text[i] = s->bytes.p + start;
        size[i] = s->end[i] - start;
        start = s->end[i];
    }
    return s->n;
}

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
        if (!add_stop(&job->stops, clb_str(o->stop.value[i]), err))
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
bool run_job_encode(struct run_job *job, struct clb_str text, bool conversation,
                    struct clb_err *err)
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
        int64_t n = conversation ? colibri_chat_encode(r->model, text.p, text.n, ids, room)
                                 : colibri_encode(r->model, text.p, text.n, flags, ids, room);
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

/* The text, which with --chat is what the user says. */
static bool encode(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    const struct run_options *o = &job->run->o;
    struct clb_text json = { 0 };

    if (!o->chat)
        return run_job_encode(job, text, false, err);
    run_chat_begin(o, &json);
    run_chat_user(&json, text);
    clb_text_puts(&json, "]}");
    bool ok = !json.failed || clb_fail_nomem(err, text.n);
    ok = ok && run_job_encode(job, (struct clb_str){ json.p, json.n }, true, err);
    clb_text_free(&json);
    return ok;
}

static bool fits(const struct run_job *job, struct clb_err *err)
{
    return job->n_ids <= job->run->plan.context || too_long(job->run, "", job->n_ids, err);
}

static bool set_prompt(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    return (job->run->o.ids ? parse_ids : encode)(job, text, err) && fits(job, err);
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

    if (clb_json_ok(j) && !add_stop(stops, s, &err))
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

/* What a record of JSON asks. */
struct record {
    struct clb_text prompt, chat; /* chat: members of a conversation, "{" in front */
    bool has_prompt, has_messages;
};

static void read_prompt(struct clb_json *j, struct record *r)
{
    struct clb_str s = clb_json_string(j);

    clb_text_add(&r->prompt, s.p, s.n);
    r->has_prompt = true;
}

/* Members of a conversation go to the library as they are. */
static bool read_chat_member(struct clb_json *j, struct clb_str key, struct record *r)
{
    static const char *const name[] = { "messages", "tools", "documents", "add_generation_prompt",
                                        "chat_template_kwargs" };
    struct clb_str raw;

    for (int i = 0; i < 5; i++)
        if (clb_str_is(key, name[i])) {
            r->has_messages |= i == 0;
            clb_text_printf(&r->chat, "%s\"%s\":", r->chat.n ? "," : "{", name[i]);
            if (clb_json_skip(j, &raw))
                clb_text_add(&r->chat, raw.p, raw.n);
            return true;
        }
    return false;
}

static void read_member(struct clb_json *j, struct clb_str key, struct run_job *job,
                        struct record *r)
{
    struct colibri_sampling *s = &job->sampling;
    bool chat = job->run->o.chat;

    if (chat && read_chat_member(j, key, r))
        return;
    if (clb_str_is(key, "prompt"))
        read_prompt(j, r);
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
        clb_json_fail(j,
                      "is not known%s; known are %sprompt, max_new_tokens, seed, temperature, "
                      "top_k, top_p, min_p, repetition_penalty and stop",
                      chat || !clb_str_is(key, "messages") ? "" : " without --chat",
                      chat ? "messages, tools, documents, chat_template_kwargs, " : "");
}

/* {"prompt": "...", ...} or "..."; with --chat also {"messages": [...], ...}. */
static bool parse_json(struct run_job *job, struct clb_str text, struct record *r,
                       struct clb_err *err)
{
    struct clb_json j;
    struct clb_str key;

    clb_json_open(&j, text.p, text.n, "json");
    if (clb_json_peek(&j) == CLB_JSON_STRING) {
        read_prompt(&j, r);
    } else {
        clb_json_object(&j);
        while (clb_json_key(&j, &key))
            read_member(&j, key, job, r);
    }
    if (!clb_json_close(&j, err))
        return false;
    if (r->has_prompt == r->has_messages)
        return clb_fail(err, CLB_BAD_INPUT,
                        r->has_prompt      ? "'prompt' and 'messages' exclude each other"
                        : job->run->o.chat ? "'messages' is missing"
                                           : "'prompt' is missing");
    if (r->chat.n && r->has_prompt)
        return clb_fail(err, CLB_BAD_INPUT, "a 'prompt' has no tools, documents and the like");
    clb_text_puts(&r->chat, "}");
    return (!r->prompt.failed && !r->chat.failed) || clb_fail_nomem(err, text.n);
}

static bool read_json(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    struct record r = { .has_prompt = false };
    bool ok = parse_json(job, text, &r, err);

    if (ok && r.has_messages)
        ok = run_job_encode(job, (struct clb_str){ r.chat.p, r.chat.n }, true, err) &&
             fits(job, err);
    else if (ok)
        ok = set_prompt(job, (struct clb_str){ r.prompt.n ? r.prompt.p : "", r.prompt.n }, err);
    clb_text_free(&r.prompt);
    clb_text_free(&r.chat);
    return ok;
}

/* -- jobs -------------------------------------------------------------------------------------- */

static bool read_record(struct run_job *job, struct clb_str record, struct clb_err *err)
{
    const struct run_options *o = &job->run->o;

    if (o->mode == RUN_JSONL)
        return read_json(job, record, err);
    if (o->mode == RUN_ONE && !o->prompt && record.n && record.p[record.n - 1] == '\n')
        record.n--;
    return set_prompt(job, record, err);
}

struct run_job *run_job_blank(struct run *r, struct clb_err *err)
{
    struct run_job *job = clb_new(1, sizeof *job, err);

    if (!job)
        return NULL;
    job->run = r;
    job->number = ++r->n_record;
    job->spill = -1;
    if (set_defaults(job, &r->o, err))
        return job;
    run_job_free(job);
    return NULL;
}

struct run_job *run_job_new(struct run *r, struct clb_str record, struct clb_err *err)
{
    struct run_job *job = run_job_blank(r, err);

    if (!job)
        return NULL;
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
    if (job->spill >= 0)
        close(job->spill);
    clb_text_free(&job->stops.bytes);
    clb_text_free(&job->out);
    clb_text_free(&job->all);
    clb_free(job->ids);
    clb_free(job);
}
