/* request.h - what a scheduler is asked: one prompt, one or more answers to it. */
#ifndef CLB_SESSION_REQUEST_H
#define CLB_SESSION_REQUEST_H

#include "lib/forward/forward.h"
#include "lib/session/session.h"
#include "lib/session/stream.h"

enum { CLB_MOST_LOGPROBS = 32, CLB_MOST_CHOICES = 1024 };

/* Why a choice ended: the first four as in generate.h. */
enum clb_ending {
    CLB_ENDING_LENGTH,
    CLB_ENDING_EOS,
    CLB_ENDING_CALLBACK,
    CLB_ENDING_CONTEXT,
    CLB_ENDING_STOP,
    CLB_ENDING_CANCELLED,
    CLB_ENDING_FAILED
};

struct clb_token_event;
struct clb_finish_event;

/* Who is told. `user` is for an interface on top of this one: its own callbacks. */
struct clb_listener {
    int (*on_token)(const struct clb_token_event *e);
    void (*on_finish)(const struct clb_finish_event *e);
    clb_rows_fn *on_row; /* NULL: off */
    void *arg;
    void (*user[2])(void);
};

/* Everything that is pointed to is borrowed until the callback returns. */
struct clb_token_event {
    const struct clb_listener *to;
    uint64_t ticket;
    uint32_t choice, index;
    int32_t id;
    struct clb_str text;
    float logprob; /* NAN: not asked */
    const struct clb_logprob *top;
    uint32_t n_top;
};
struct clb_finish_event {
    const struct clb_listener *to;
    uint64_t ticket;
    uint32_t choice;
    bool last;
    enum clb_ending why;
    struct clb_str text;
    uint32_t prompt_tokens, new_tokens, cached_tokens, n_preempted;
    double queue_seconds, prefill_seconds, decode_seconds;
    const struct clb_profile *profile; /* NULL: not asked */
    const struct clb_err *err;         /* CLB_ENDING_FAILED; else NULL */
};

struct clb_ask {
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    struct clb_sampling sampling; /* choice i draws with seed + i */
    uint32_t n_choice;            /* 0: 1 */
    uint32_t max_new;             /* 0: what the context allows */
    uint32_t positions;           /* that the sequence says it will have; 0: prompt and answer */
    const char *const *stop;
    const size_t *stop_size; /* NULL: they end in NUL */
    size_t n_stop;
    uint32_t n_logprob;
    bool logprobs, ignore_eos, ids_only, new_text, prompt_only, no_prefix_cache, profile;
    struct clb_listener to;
};

/* One answer in the making. */
struct clb_choice {
    struct clb_request *request;
    uint32_t index;
    enum { CLB_CHOICE_WAITS, CLB_CHOICE_RUNS, CLB_CHOICE_DONE } state;
    struct clb_session *session; /* while it runs */
    struct clb_stream stream;
    int32_t *saved; /* owned: tokens behind the prompt, of a choice that gave its place back */
    uint32_t n_saved, n_new;
    uint64_t order;       /* of its start */
    int32_t parent;       /* prefix entry of its last block that has one, or a root */
    uint32_t n_entry;     /* so many blocks from the first have entries */
    uint32_t promised;    /* blocks from the first that it has or that others are computing */
    uint32_t n_row_given; /* rows that on_row has got */
    uint32_t n_cached, n_preempted;
    double started, first_token;
    struct clb_profile *profile; /* owned; NULL: not wanted */
};

struct clb_request {
    struct clb_request *next, *before; /* in a list of the scheduler */
    uint64_t ticket;
    struct clb_ask ask; /* ids are owned; stop is NULL */
    struct clb_stops stops;
    uint32_t limit;                /* most positions */
    uint32_t n_wait, n_unfinished; /* choices */
    bool was_started;
    bool cancelled; /* under the scheduler's lock */
    bool dropped;   /* the same, seen by the owner */
    double submitted;
    struct clb_choice choice[]; /* [ask.n_choice] */
};

/* What a request must fit in. */
struct clb_request_room {
    const struct clb_tokenizer *tokenizer; /* NULL: ids only */
    uint32_t n_vocab, context;
    uint64_t kv_positions;
};
/* Checks and copies. CLB_USAGE or CLB_NO_SPACE with the field at fault. */
bool clb_request_new(struct clb_request **out, const struct clb_ask *ask,
                     const struct clb_request_room *room, struct clb_err *err);
void clb_request_free(struct clb_request *r); /* NULL is fine */

#endif
