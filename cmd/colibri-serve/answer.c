/* What has become of a job, as JSON. Its lock is held, or it is done. */
#include <inttypes.h>
#include <math.h>

#include "cmd/colibri-serve/http.h"
#include "cmd/colibri-serve/piece.h"

const char *serve_finish_word(enum serve_finish finish)
{
    static const char *const word[] = {
        [SERVE_UNFINISHED] = "unfinished",
        [SERVE_STOP] = "stop",
        [SERVE_LENGTH] = "length",
        [SERVE_FAILED] = "failed",
    };

    return word[finish];
}

uint64_t serve_prompt_tokens(const struct serve_job *job)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < job->n_prompt; i++)
        n += job->prompt[i].n;
    return n;
}

uint64_t serve_new_tokens(const struct serve_job *job)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < job->n_choice; i++)
        n += job->choice[i].n_new;
    return n;
}

void serve_answer_head(struct clb_text *t, const struct serve_job *job, const char *object)
{
    clb_text_printf(t, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                    job->kind == SERVE_CHAT ? "chatcmpl" : "cmpl", job->id, object, job->created);
    clb_text_json(t, job->serve->name, strlen(job->serve->name));
    clb_text_puts(t, ",\"system_fingerprint\":\"colibri-" CLB_VERSION "\"");
}

void serve_answer_usage(struct clb_text *t, const struct serve_job *job)
{
    uint64_t old = serve_prompt_tokens(job), new = serve_new_tokens(job);

    clb_text_printf(t,
                    "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                    ",\"total_tokens\":%" PRIu64
                    ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
                    old, new, old + new, job->cached_tokens < old ? job->cached_tokens : old);
}

/* -- logprobs ---------------------------------------------------------------------------------- */

/* JSON has no infinity; this is what OpenAI's API says in its place. */
static void put_logprob(struct clb_text *t, float p)
{
    clb_text_f32(t, isfinite(p) ? p : -9999.0f);
}

/* {"token":…,"logprob":…,"bytes":[…]; the caller closes it. */
static void put_token(struct clb_text *t, struct serve_pieces *pieces, struct colibri_logprob p)
{
    struct clb_str s = serve_piece(pieces, p.id);

    clb_text_puts(t, "{\"token\":");
    clb_text_json(t, s.p, s.n);
    clb_text_puts(t, ",\"logprob\":");
    put_logprob(t, p.logprob);
    clb_text_puts(t, ",\"bytes\":[");
    for (size_t i = 0; i < s.n; i++)
        clb_text_printf(t, "%s%u", i ? "," : "", (unsigned char)s.p[i]);
    clb_text_puts(t, "]");
}

static void chat_logprobs(struct clb_text *t, struct serve_pieces *pieces,
                          const struct serve_job *job, const struct serve_choice *c, uint32_t from,
                          uint32_t to)
{
    clb_text_puts(t, "{\"content\":[");
    for (uint32_t i = from; i < to; i++) {
        const struct serve_token *token = serve_job_token(job, c, i);
        clb_text_puts(t, i > from ? "," : "");
        put_token(t, pieces, token->chosen);
        clb_text_puts(t, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < token->n_top; k++) {
            clb_text_puts(t, k ? "," : "");
            put_token(t, pieces, token->top[k]);
            clb_text_puts(t, "}");
        }
        clb_text_puts(t, "]}");
    }
    clb_text_puts(t, "],\"refusal\":null}");
}

/* Two ids may have the same text; a name must not occur twice, so the likelier one has it. */
static void top_by_text(struct clb_text *t, struct serve_pieces *pieces,
                        const struct serve_token *token)
{
    struct clb_text names = { 0 }; /* one behind the other */
    size_t end[SERVE_TOP];

    clb_text_puts(t, "{");
    for (uint32_t k = 0; k < token->n_top; k++) {
        struct clb_str s = serve_piece(pieces, token->top[k].id);
        bool seen = false;
        for (uint32_t j = 0; j < k && !seen; j++) {
            size_t start = j ? end[j - 1] : 0;
            seen = clb_str_eq((struct clb_str){ names.p + start, end[j] - start }, s);
        }
        clb_text_add(&names, s.p, s.n);
        end[k] = names.n;
        if (seen)
            continue;
        clb_text_puts(t, k ? "," : "");
        clb_text_json(t, s.p, s.n);
        clb_text_puts(t, ":");
        put_logprob(t, token->top[k].logprob);
    }
    clb_text_puts(t, "}");
    t->failed |= names.failed;
    clb_text_free(&names);
}

/* The tokens of a text: those of the prompt where it is echoed, then the new ones. */
struct told {
    const struct serve_job *job;
    const struct serve_prompt *prompt;
    const struct serve_choice *choice;
    uint32_t n_old; /* of the prompt */
};

static const struct serve_token *told_token(const struct told *t, uint32_t i)
{
    return i < t->n_old ? serve_job_scored(t->job, t->prompt, i)
                        : serve_job_token(t->job, t->choice, i - t->n_old);
}

static void put_numbers(struct clb_text *t, const struct told *all, uint32_t from, uint32_t to)
{
    clb_text_puts(t, "],\"token_logprobs\":[");
    for (uint32_t i = from; i < to; i++) {
        clb_text_puts(t, i > from ? "," : "");
        if (i == 0 && all->n_old) /* nothing stands before it */
            clb_text_puts(t, "null");
        else
            put_logprob(t, told_token(all, i)->chosen.logprob);
    }
}

static void put_tops(struct clb_text *t, struct serve_pieces *pieces, const struct told *all,
                     uint32_t from, uint32_t to)
{
    clb_text_puts(t, "],\"top_logprobs\":");
    if (!all->job->p.top_logprobs) {
        clb_text_puts(t, "null");
        return;
    }
    clb_text_puts(t, "[");
    for (uint32_t i = from; i < to; i++) {
        clb_text_puts(t, i > from ? "," : "");
        if (i == 0 && all->n_old)
            clb_text_puts(t, "null");
        else
            top_by_text(t, pieces, told_token(all, i));
    }
    clb_text_puts(t, "]");
}

/* Where the tokens are in the text, in characters: special ones are not in it, and it does not
 * begin with the space that its first token may have. */
static void put_offsets(struct clb_text *t, const struct told *all, struct serve_cursor *at,
                        uint32_t from, uint32_t to)
{
    const struct clb_text *echo = &all->prompt->text;
    struct serve_pieces plain;
    bool ok = serve_pieces_open(&plain, all->job->serve->model, true);

    clb_text_puts(t, ",\"text_offset\":[");
    for (uint32_t i = from; ok && i < to; i++) {
        int32_t id = told_token(all, i)->chosen.id;
        struct clb_str s = serve_piece(&plain, id);
        bool less = at->characters == 0 && i < all->n_old && s.n && s.p[0] == ' ' && echo->n &&
                    echo->p[0] != ' ';
        clb_text_printf(t, "%s%zu", i > from ? "," : "", at->characters);
        at->characters += serve_piece_characters(&plain, id) - less;
    }
    clb_text_puts(t, "]");
    t->failed |= !ok;
    serve_pieces_close(&plain);
}

/* Tokens from..to-1 of all. */
static void old_logprobs(struct clb_text *t, struct serve_pieces *pieces, const struct told *all,
                         struct serve_cursor *at, uint32_t from, uint32_t to)
{
    clb_text_puts(t, "{\"tokens\":[");
    for (uint32_t i = from; i < to; i++) {
        struct clb_str s = serve_piece(pieces, told_token(all, i)->chosen.id);
        clb_text_puts(t, i > from ? "," : "");
        clb_text_json(t, s.p, s.n);
    }
    put_numbers(t, all, from, to);
    put_tops(t, pieces, all, from, to);
    put_offsets(t, all, at, from, to);
    clb_text_puts(t, "}");
}

void serve_answer_logprobs(struct clb_text *t, const struct serve_job *job, uint32_t i,
                           struct serve_cursor *at, bool only_prompt)
{
    const struct serve_choice *c = &job->choice[i];
    const struct serve_prompt *p = &job->prompt[i / job->p.n];
    struct told all = { job, p, c, p->scores ? (uint32_t)p->n : 0 };
    struct serve_pieces pieces;

    clb_text_puts(t, ",\"logprobs\":");
    if (!job->p.logprobs) {
        clb_text_puts(t, "null");
        return;
    }
    uint32_t from = at->echoed ? all.n_old + at->token : 0;
    uint32_t to = all.n_old + (only_prompt ? 0 : c->n_token);
    if (!serve_pieces_open(&pieces, job->serve->model, false))
        t->failed = true;
    else if (job->kind == SERVE_CHAT)
        chat_logprobs(t, &pieces, job, c, from, to);
    else
        old_logprobs(t, &pieces, &all, at, from, to);
    at->token = to - all.n_old;
    at->echoed = true;
    serve_pieces_close(&pieces);
}

/* -- whole answers ----------------------------------------------------------------------------- */

static void put_choice(struct clb_text *t, const struct serve_job *job, uint32_t i)
{
    const struct serve_choice *c = &job->choice[i];
    const struct serve_prompt *p = &job->prompt[i / job->p.n];
    struct clb_text text = { 0 };

    if (job->p.echo)
        clb_text_add(&text, p->text.p, p->text.n);
    clb_text_add(&text, c->text.p, c->text.n);
    t->failed |= text.failed;
    clb_text_printf(t, "%s{\"index\":%u,", i ? "," : "", i);
    clb_text_puts(t, job->kind == SERVE_CHAT ? "\"message\":{\"role\":\"assistant\",\"content\":"
                                             : "\"text\":");
    clb_text_json(t, text.n ? text.p : "", text.n);
    if (job->kind == SERVE_CHAT)
        clb_text_puts(t, ",\"refusal\":null}");
    clb_text_free(&text);
    serve_answer_logprobs(t, job, i, &(struct serve_cursor){ 0 }, false);
    clb_text_printf(t, ",\"finish_reason\":\"%s\"}", serve_finish_word(c->finish));
}

static void put_generated(struct clb_text *t, const struct serve_job *job)
{
    const struct serve_choice *c = &job->choice[0];

    clb_text_puts(t, "{\"status\":\"success\",\"output\":");
    clb_text_json(t, c->text.n ? c->text.p : "", c->text.n);
    clb_text_printf(t,
                    ",\"finish_reason\":\"%s\",\"prompt_tokens\":%zu,\"completion_tokens\":%u}\n",
                    serve_finish_word(c->finish), job->prompt[0].n, c->n_new);
}

void serve_answer(struct clb_text *t, const struct serve_job *job)
{
    if (job->kind == SERVE_GENERATE) {
        put_generated(t, job);
        return;
    }
    serve_answer_head(t, job, job->kind == SERVE_CHAT ? "chat.completion" : "text_completion");
    clb_text_puts(t, ",\"choices\":[");
    for (uint32_t i = 0; i < job->n_choice; i++)
        put_choice(t, job, i);
    clb_text_puts(t, "],");
    serve_answer_usage(t, job);
    clb_text_puts(t, "}\n");
}
