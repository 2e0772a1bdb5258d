#include "lib/session/request.h"

#include <inttypes.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

static bool wrong(struct clb_err *err, const char *field)
{
    return clb_err_place(err, NULL, field, CLB_NO_OFFSET);
}

static bool check_ids(const struct clb_ask *a, const struct clb_request_room *room,
                      struct clb_err *err)
{
    if (a->n_ids == 0)
        clb_fail(err, CLB_USAGE, "the prompt is empty");
    else if (a->n_ids > room->context)
        clb_fail(err, CLB_USAGE, "the prompt has %zu tokens, but the context holds %u", a->n_ids,
                 room->context);
    else
        for (size_t i = 0; i < a->n_ids; i++)
            if (a->ids[i] < 0 || (uint32_t)a->ids[i] >= room->n_vocab) {
                clb_fail(err, CLB_USAGE,
                         "token %zu: id %" PRId32 " is not below the vocabulary size %u", i,
                         a->ids[i], room->n_vocab);
                return wrong(err, "ids");
            }
    return (a->n_ids > 0 && a->n_ids <= room->context) || wrong(err, "ids");
}

/* Positions that are computed when all of the answer is made: its last token's is not. */
static uint64_t most_positions(const struct clb_ask *a, uint32_t limit)
{
    uint64_t all = a->prompt_only    ? a->n_ids
                   : a->max_new == 0 ? limit
                                     : a->n_ids + (uint64_t)a->max_new - 1;

    return all < limit ? all : limit;
}

static bool set_limit(struct clb_request *r, const struct clb_request_room *room,
                      struct clb_err *err)
{
    const struct clb_ask *a = &r->ask;
    uint64_t all = a->n_ids + (uint64_t)a->max_new;

    if (a->positions > room->context || (a->positions && a->positions < a->n_ids)) {
        clb_fail(err, CLB_USAGE, "%u positions: the prompt has %zu tokens, the context holds %u",
                 a->positions, a->n_ids, room->context);
        return wrong(err, "positions");
    }
    if (a->prompt_only)
        all = a->n_ids;
    else if (a->max_new == 0)
        all = room->context;
    r->limit = a->positions ? a->positions : all < room->context ? (uint32_t)all : room->context;
    uint64_t need = most_positions(a, r->limit);
    if (need <= room->kv_positions)
        return true;
    clb_fail(err, CLB_NO_SPACE,
             "%zu tokens and an answer of %" PRIu64 " need %" PRIu64
             " KV positions, but there are %" PRIu64 " in all",
             a->n_ids, need - a->n_ids + 1, need, room->kv_positions);
    return wrong(err, "max_new_tokens");
}

static bool check(const struct clb_ask *a, const struct clb_request_room *room, struct clb_err *err)
{
    if (!check_ids(a, room, err) || !clb_sampling_check(&a->sampling, err))
        return false;
    if (a->n_choice > CLB_MOST_CHOICES) {
        clb_fail(err, CLB_USAGE, "%u choices: at most %d are possible", a->n_choice,
                 CLB_MOST_CHOICES);
        return wrong(err, "n_choices");
    }
    if (a->n_logprob > CLB_MOST_LOGPROBS) {
        clb_fail(err, CLB_USAGE, "%u likeliest tokens: at most %d are possible", a->n_logprob,
                 CLB_MOST_LOGPROBS);
        return wrong(err, "n_logprobs");
    }
    if (!a->ids_only && !room->tokenizer) {
        clb_fail(err, CLB_USAGE, "the model has no tokenizer: only ids_only works");
        return wrong(err, "ids_only");
    }
    if (a->ids_only && a->n_stop) {
        clb_fail(err, CLB_USAGE, "without text there are no stop texts");
        return wrong(err, "stop");
    }
    return true;
}

static bool open_choice(struct clb_choice *c, struct clb_request *r,
                        const struct clb_request_room *room, struct clb_err *err)
{
    const struct clb_ask *a = &r->ask;

    c->request = r;
    if (a->profile && !(c->profile = clb_new(1, sizeof *c->profile, err)))
        return false;
    return clb_stream_open(&c->stream, a->ids_only ? NULL : room->tokenizer, &r->stops, a->ids,
                           a->new_text ? 0 : a->n_ids, err);
}

static bool fill(struct clb_request *r, const struct clb_ask *ask,
                 const struct clb_request_room *room, struct clb_err *err)
{
    struct clb_ask *a = &r->ask;
    int32_t *ids = clb_new(a->n_ids, sizeof *ids, err);

    a->ids = ids;
    if (!ids)
        return false;
    memcpy(ids, ask->ids, a->n_ids * sizeof *ids);
    if (!clb_stops_init(&r->stops, ask->stop, ask->stop_size, ask->n_stop, err))
        return wrong(err, "stop");
    if (!set_limit(r, room, err))
        return false;
    for (uint32_t i = 0; i < a->n_choice; i++) {
        r->choice[i].index = i;
        if (!open_choice(&r->choice[i], r, room, err))
            return false;
    }
    return true;
}

bool clb_request_new(struct clb_request **out, const struct clb_ask *ask,
                     const struct clb_request_room *room, struct clb_err *err)
{
    uint32_t n = ask->n_choice ? ask->n_choice : 1;
    struct clb_request *r;

    *out = NULL;
    if (!check(ask, room, err))
        return false;
    r = clb_new(1, sizeof *r + n * sizeof *r->choice, err);
    if (!r)
        return false;
    r->ask = *ask;
    r->ask.n_choice = r->n_wait = r->n_unfinished = n;
    r->ask.stop = NULL;
    r->ask.stop_size = NULL;
    r->submitted = clb_now();
    if (!fill(r, ask, room, err)) {
        clb_request_free(r);
        return false;
    }
    *out = r;
    return true;
}

void clb_request_free(struct clb_request *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->ask.n_choice; i++) {
        clb_stream_close(&r->choice[i].stream);
        clb_free(r->choice[i].saved);
        clb_free(r->choice[i].profile);
    }
    clb_stops_done(&r->stops);
    clb_free((int32_t *)r->ask.ids);
    clb_free(r);
}
