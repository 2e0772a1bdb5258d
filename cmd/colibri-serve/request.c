#include "cmd/colibri-serve/request.h"

#include <float.h>
#include <math.h>

#include "cmd/colibri-serve/field.h"

enum { OLD_TOKENS = 16, GENERATE_TOKENS = 256 }; /* when a request does not say how many */

/* -- fields that are more than a number -------------------------------------------------------- */

static bool take_model(void *arg, struct json_object *value, const char *name,
                       struct serve_refusal *no)
{
    const struct serve_reading *r = arg;
    struct clb_str model;

    if (!serve_read_text(value, name, &model, no))
        return false;
    if (model.n == 0 || clb_str_is(model, r->serve->name))
        return true;
    serve_refuse_field(no, name, "'%.*s' does not exist here; '%s' does",
                       model.n > 100 ? 100 : (int)model.n, model.p, r->serve->name);
    no->status = 404;
    no->code = "model_not_found";
    return false;
}

static bool take_prompt(void *arg, struct json_object *value, const char *name,
                        struct serve_refusal *no)
{
    struct serve_reading *r = arg;

    if (r->prompt)
        return serve_refuse_field(no, name, "says the same as '%s'; only one is possible",
                                  r->prompt_name);
    r->prompt = value;
    r->prompt_name = name;
    return true;
}

static bool take_messages(void *arg, struct json_object *value, const char *name,
                          struct serve_refusal *no)
{
    if (!json_object_is_type(value, json_type_array) || json_object_array_length(value) == 0)
        return serve_refuse_field(
            no, name, "is %s; it must be an array of at least one message",
            json_object_is_type(value, json_type_array) ? "empty" : serve_type_of(value));
    ((struct serve_reading *)arg)->messages = value;
    return true;
}

static bool take_tokens(void *arg, struct json_object *value, const char *name,
                        struct serve_refusal *no)
{
    (void)name;
    (void)no;
    ((struct serve_reading *)arg)->tokens = value;
    return true;
}

static bool take_arguments(void *arg, struct json_object *value, const char *name,
                           struct serve_refusal *no)
{
    if (!json_object_is_type(value, json_type_object))
        return serve_refuse_field(no, name, "is %s; it must be an object", serve_type_of(value));
    ((struct serve_reading *)arg)->template_arguments = value;
    return true;
}

static bool add_stop(struct serve_job *job, struct json_object *value, const char *name,
                     struct serve_refusal *no)
{
    struct clb_str text;

    if (!serve_read_text(value, name, &text, no))
        return false;
    if (text.n == 0) /* as other servers do */
        return true;
    if (job->n_stop == SERVE_STOPS)
        return serve_refuse_field(no, name, "is one too many; at most %d", SERVE_STOPS);
    clb_text_add(&job->stop_bytes, text.p, text.n);
    job->stop_size[job->n_stop++] = text.n;
    return !job->stop_bytes.failed || serve_refuse(no, 503, "no_memory", "not enough memory");
}

static bool take_stop(void *arg, struct json_object *value, const char *name,
                      struct serve_refusal *no)
{
    struct serve_job *job = ((struct serve_reading *)arg)->job;
    char item[32];

    if (json_object_is_type(value, json_type_string))
        return add_stop(job, value, name, no);
    if (!json_object_is_type(value, json_type_array))
        return serve_refuse_field(no, name, "is %s; it must be a string or an array of strings",
                                  serve_type_of(value));
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        snprintf(item, sizeof item, "%s[%zu]", name, i);
        if (!add_stop(job, json_object_array_get_idx(value, i), item, no))
            return false;
    }
    return true;
}

static bool take_max_tokens(void *arg, struct json_object *value, const char *name,
                            struct serve_refusal *no)
{
    struct serve_reading *r = arg;
    static const struct serve_field number[] = {
        { "max_new_tokens", SERVE_GENERATE, SERVE_FIELD_COUNT, 0, 1, INT32_MAX, NULL },
        { "max_tokens", SERVE_COMPLETION, SERVE_FIELD_COUNT, 0, 0, INT32_MAX, NULL },
        { "max_tokens", SERVE_CHAT | SERVE_GENERATE, SERVE_FIELD_COUNT, 0, 1, INT32_MAX, NULL },
        { "max_completion_tokens", SERVE_CHAT, SERVE_FIELD_COUNT, 0, 1, INT32_MAX, NULL },
        { NULL, 0, 0, 0, 0, 0, NULL },
    };
    struct json_object *alone = json_object_new_object();
    uint32_t n = 0;

    json_object_object_add(alone, name, json_object_get(value));
    bool ok = serve_read_fields(number, r->job->kind, alone, &n, NULL, no);
    json_object_put(alone);
    if (ok && r->max_given && n != r->job->p.max_tokens)
        return serve_refuse_field(no, name, "is %u, but another field says %u", n,
                                  r->job->p.max_tokens);
    r->job->p.max_tokens = n;
    r->max_given = true;
    return ok;
}

/* Tools are for the model to call, and its calls are not read out of its answer. With "none" it may
 * not call any, and has its say. */
static bool take_tools(void *arg, struct json_object *value, const char *name,
                       struct serve_refusal *no)
{
    if (!json_object_is_type(value, json_type_array))
        return serve_refuse_field(no, name, "is %s; it must be an array", serve_type_of(value));
    ((struct serve_reading *)arg)->has_tools = json_object_array_length(value) > 0;
    return true;
}

static bool take_tool_choice(void *arg, struct json_object *value, const char *name,
                             struct serve_refusal *no)
{
    const char *word =
        json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";

    ((struct serve_reading *)arg)->no_tool = !strcmp(word, "none");
    return !strcmp(word, "none") || !strcmp(word, "auto") ||
           serve_refuse_field(no, name,
                              "only \"none\" and \"auto\" are supported: tool calls are "
                              "not read out of answers");
}

static bool take_modalities(void *arg, struct json_object *value, const char *name,
                            struct serve_refusal *no)
{
    bool ok = json_object_is_type(value, json_type_array);

    (void)arg;
    for (size_t i = 0; ok && i < json_object_array_length(value); i++) {
        struct json_object *item = json_object_array_get_idx(value, i);
        ok = json_object_is_type(item, json_type_string) &&
             !strcmp(json_object_get_string(item), "text");
    }
    return ok || serve_refuse_field(no, name, "only [\"text\"] is supported");
}

/* What gpt-oss and others take from their template's arguments. */
static bool take_effort(void *arg, struct json_object *value, const char *name,
                        struct serve_refusal *no)
{
    if (!json_object_is_type(value, json_type_string))
        return serve_refuse_field(no, name, "is %s; it must be a string", serve_type_of(value));
    ((struct serve_reading *)arg)->effort = value;
    return true;
}

/* A number in /v1/completions, true or false in /v1/chat/completions. */
static bool take_logprobs(void *arg, struct json_object *value, const char *name,
                          struct serve_refusal *no)
{
    struct serve_reading *r = arg;
    struct serve_params *p = &r->job->p;
    float n;

    if (r->job->kind == SERVE_CHAT) {
        if (!json_object_is_type(value, json_type_boolean))
            return serve_refuse_field(no, name, "is %s; it must be true or false",
                                      serve_type_of(value));
        p->logprobs = json_object_get_boolean(value);
        return true;
    }
    if (json_object_is_type(value, json_type_boolean) && !json_object_get_boolean(value))
        return true;
    if (!serve_read_number(value, name, 0, SERVE_TOP, &n, no))
        return false;
    if (n != floorf(n))
        return serve_refuse_field(no, name, "is %g; it must be a whole number", (double)n);
    p->logprobs = true;
    p->top_logprobs = (uint32_t)n;
    return true;
}

static bool take_stream_options(void *arg, struct json_object *value, const char *name,
                                struct serve_refusal *no)
{
    static const struct serve_field inside[] = {
        { "include_usage", SERVE_COMPLETION | SERVE_CHAT, SERVE_FIELD_BOOL,
          offsetof(struct serve_params, include_usage), 0, 0, NULL },
        { "include_obfuscation", SERVE_COMPLETION | SERVE_CHAT, SERVE_FIELD_EMPTY, 0, 0, 0, NULL },
        { NULL, 0, 0, 0, 0, 0, NULL },
    };
    struct serve_job *job = ((struct serve_reading *)arg)->job;

    if (!json_object_is_type(value, json_type_object))
        return serve_refuse_field(no, name, "is %s; it must be an object", serve_type_of(value));
    return serve_read_fields(inside, job->kind, value, &job->p, NULL, no);
}

/* Only {"type":"text"}: anything else would promise a grammar that nobody keeps. */
static bool take_format(void *arg, struct json_object *value, const char *name,
                        struct serve_refusal *no)
{
    struct json_object *type = NULL;

    (void)arg;
    if (!json_object_is_type(value, json_type_object))
        return serve_refuse_field(no, name, "is %s; it must be an object", serve_type_of(value));
    json_object_object_get_ex(value, "type", &type);
    if (json_object_is_type(type, json_type_string) &&
        !strcmp(json_object_get_string(type), "text"))
        return true;
    return serve_refuse_field(no, name,
                              "only {\"type\":\"text\"} is supported; answers are not "
                              "forced into a grammar or schema");
}

/* -- the table --------------------------------------------------------------------------------- */

#define AT(member) offsetof(struct serve_params, member)
#define BOOL(name, where, member)                                                                  \
    {                                                                                              \
        name, where, SERVE_FIELD_BOOL, AT(member), 0, 0, NULL                                      \
    }
#define COUNT(name, where, member, lo, hi)                                                         \
    {                                                                                              \
        name, where, SERVE_FIELD_COUNT, AT(member), lo, hi, NULL                                   \
    }
#define NUMBER(name, where, member, lo, hi)                                                        \
    {                                                                                              \
        name, where, SERVE_FIELD_NUMBER, AT(member), lo, hi, NULL                                  \
    }
#define TAKE(name, where, fn)                                                                      \
    {                                                                                              \
        name, where, SERVE_FIELD_TAKE, 0, 0, 0, fn                                                 \
    }
#define ONLY(name, where, value)                                                                   \
    {                                                                                              \
        name, where, SERVE_FIELD_ONLY, 0, value, 0, NULL                                           \
    }
#define EMPTY(name, where)                                                                         \
    {                                                                                              \
        name, where, SERVE_FIELD_EMPTY, 0, 0, 0, NULL                                              \
    }
#define TRUE(name, where)                                                                          \
    {                                                                                              \
        name, where, SERVE_FIELD_TRUE, 0, 0, 0, NULL                                               \
    }
#define ANY(name, where)                                                                           \
    {                                                                                              \
        name, where, SERVE_FIELD_ANY, 0, 0, 0, NULL                                                \
    }

enum {
    OPENAI = SERVE_COMPLETION | SERVE_CHAT,
    TEXT = OPENAI | SERVE_GENERATE,
    EVERY = TEXT | SERVE_TOKENIZE | SERVE_DETOKENIZE,
};

static const struct serve_field fields[] = {
    TAKE("model", EVERY, take_model),
    TAKE("prompt", SERVE_COMPLETION | SERVE_GENERATE | SERVE_TOKENIZE, take_prompt),
    TAKE("content", SERVE_TOKENIZE, take_prompt),
    TAKE("messages", SERVE_CHAT | SERVE_TOKENIZE, take_messages),
    TAKE("chat_template_kwargs", SERVE_CHAT | SERVE_TOKENIZE, take_arguments),
    TAKE("tokens", SERVE_DETOKENIZE, take_tokens),
    TAKE("max_new_tokens", SERVE_GENERATE, take_max_tokens),
    TAKE("max_tokens", TEXT, take_max_tokens),
    TAKE("max_completion_tokens", SERVE_CHAT, take_max_tokens),
    COUNT("n", OPENAI, n, 1, SERVE_CHOICES),
    NUMBER("temperature", TEXT, temperature, 0, 100),
    NUMBER("top_p", TEXT, top_p, 0, 1),
    NUMBER("min_p", TEXT, min_p, 0, 1),
    COUNT("top_k", TEXT, top_k, -1, INT32_MAX),
    NUMBER("repetition_penalty", TEXT, repetition_penalty, 0.01, 100),
    NUMBER("presence_penalty", TEXT, presence_penalty, -2, 2),
    NUMBER("frequency_penalty", TEXT, frequency_penalty, -2, 2),
    { "seed", TEXT, SERVE_FIELD_SEED, AT(seed), 0, 0, NULL },
    TAKE("stop", TEXT, take_stop),
    BOOL("ignore_eos", TEXT, ignore_eos),
    BOOL("stream", OPENAI, stream),
    TAKE("stream_options", OPENAI, take_stream_options),
    TAKE("logprobs", OPENAI, take_logprobs),
    COUNT("top_logprobs", SERVE_CHAT, top_logprobs, 0, SERVE_TOP),
    BOOL("echo", SERVE_COMPLETION, echo),
    BOOL("parse_special", SERVE_COMPLETION | SERVE_GENERATE | SERVE_TOKENIZE, parse_special),
    BOOL("add_special_tokens", SERVE_COMPLETION | SERVE_TOKENIZE, add_special),
    BOOL("add_special", SERVE_TOKENIZE, add_special),
    TAKE("response_format", OPENAI, take_format),
    TAKE("tools", SERVE_CHAT, take_tools),
    TAKE("tool_choice", SERVE_CHAT, take_tool_choice),
    TAKE("modalities", SERVE_CHAT, take_modalities),
    TAKE("reasoning_effort", SERVE_CHAT, take_effort),
    ONLY("best_of", SERVE_COMPLETION, 1),
    EMPTY("logit_bias", OPENAI),
    EMPTY("suffix", SERVE_COMPLETION),
    EMPTY("functions", SERVE_CHAT),
    EMPTY("function_call", SERVE_CHAT),
    EMPTY("audio", SERVE_CHAT),
    EMPTY("prediction", SERVE_CHAT),
    EMPTY("web_search_options", SERVE_CHAT),
    /* About the service and its bills, not about the answer. */
    ANY("user", OPENAI),
    ANY("metadata", OPENAI),
    ANY("parallel_tool_calls", SERVE_CHAT),
    ANY("prompt_cache_key", OPENAI),
    ANY("prompt_cache_retention", OPENAI),
    ANY("safety_identifier", OPENAI),
    ANY("service_tier", OPENAI),
    ANY("store", OPENAI),
    ANY("verbosity", SERVE_CHAT),
    /* What clients of vLLM and llama.cpp send, as long as it says what is so anyway. */
    NUMBER("repeat_penalty", TEXT, repetition_penalty, 0.01, 100),
    TRUE("skip_special_tokens", TEXT),
    TRUE("spaces_between_special_tokens", TEXT),
    TRUE("add_generation_prompt", SERVE_CHAT),
    EMPTY("continue_final_message", SERVE_CHAT),
    EMPTY("include_stop_str_in_output", TEXT),
    EMPTY("stop_token_ids", TEXT),
    EMPTY("use_beam_search", TEXT),
    EMPTY("guided_json", TEXT),
    EMPTY("guided_regex", TEXT),
    EMPTY("guided_choice", TEXT),
    EMPTY("guided_grammar", TEXT),
    EMPTY("grammar", TEXT),
    EMPTY("json_schema", TEXT),
    ONLY("min_tokens", TEXT, 0),
    ONLY("mirostat", TEXT, 0),
    ONLY("length_penalty", TEXT, 1),
    ONLY("typical_p", TEXT, 1),
    ANY("cache_prompt", TEXT),
    ANY("id_slot", TEXT),
    ANY("priority", TEXT),
    ANY("request_id", TEXT),
    { NULL, 0, 0, 0, 0, 0, NULL },
};

/* What is not said: greedy for the plain call, as in colibri-run. Clients of the others expect what
 * their API documents, or what the publisher of the model recommends. */
static void set_defaults(struct serve_reading *r)
{
    const struct colibri_model_info *i = &r->serve->info;
    struct serve_params *p = &r->job->p;

    *p = (struct serve_params){ .n = 1, .top_p = 1, .add_special = true };
    if (r->job->kind == SERVE_GENERATE)
        return;
    p->temperature = isfinite(i->temperature) ? i->temperature : 1;
    p->top_p = isfinite(i->top_p) && i->top_p > 0 ? i->top_p : 1;
    p->min_p = isfinite(i->min_p) ? i->min_p : 0;
    p->top_k = i->top_k > 0 ? (uint32_t)i->top_k : 0;
    p->repetition_penalty = isfinite(i->repetition_penalty) ? i->repetition_penalty : 0;
    p->seed = serve_random_seed();
}

/* What one field alone cannot say. */
static bool check_together(struct serve_reading *r, struct serve_refusal *no)
{
    struct serve_params *p = &r->job->p;

    if (p->include_usage && !p->stream)
        return serve_refuse_field(no, "stream_options", "belongs to \"stream\": true");
    if (r->job->kind == SERVE_CHAT && p->top_logprobs && !p->logprobs)
        return serve_refuse_field(no, "top_logprobs", "belongs to \"logprobs\": true");
    if (r->has_tools && !r->no_tool)
        return serve_refuse_field(no, "tools",
                                  "is not supported: tool calls are not read out of answers; "
                                  "leave it out or say \"tool_choice\": \"none\"");
    if (p->top_p == 0) /* none but the likeliest; the library's 0 is off */
        p->top_p = FLT_MIN;
    if (!r->max_given)
        p->max_tokens = r->job->kind == SERVE_COMPLETION ? OLD_TOKENS
                        : r->job->kind == SERVE_GENERATE ? GENERATE_TOKENS
                                                         : r->serve->context;
    return true;
}

bool serve_request_read(struct serve_reading *r, struct json_object *body, struct serve_refusal *no)
{
    set_defaults(r);
    return serve_read_fields(fields, r->job->kind, body, &r->job->p, r, no) &&
           check_together(r, no);
}
