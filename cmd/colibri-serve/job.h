/* job.h - a job is what one request asks of the model, and what has become of it.
 *
 * Made by the loop, filled by the desk, run by the engine; each holds a reference while it has to
 * do with it. Parameters and prompts are written by the desk before the engine sees the job and do
 * not change afterwards. `lock` guards what the engine adds: text and tokens of choices, and state.
 */
#ifndef CMD_COLIBRI_SERVE_JOB_H
#define CMD_COLIBRI_SERVE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "cmd/colibri-serve/serve.h"

enum serve_kind {
    SERVE_GENERATE = 1, /* POST / and /generate */
    SERVE_COMPLETION = 2,
    SERVE_CHAT = 4,
    SERVE_TOKENIZE = 8,
    SERVE_DETOKENIZE = 16,
};

enum serve_finish { SERVE_UNFINISHED, SERVE_STOP, SERVE_LENGTH, SERVE_FAILED };

/* Most alternatives of a token that logprobs give, choices of a request, and stop texts. */
enum { SERVE_TOP = 20, SERVE_CHOICES = 128, SERVE_STOPS = 32 };

/* A token of an answer or an echoed prompt, kept when logprobs are wanted. */
struct serve_token {
    size_t at; /* bytes of certain text before it */
    struct colibri_logprob chosen;
    uint32_t n_top;
    struct colibri_logprob top[]; /* likeliest first; p.top_logprobs of them fit */
};

struct serve_prompt {
    struct serve_job *job;
    uint32_t number;
    int32_t *ids; /* owned */
    size_t n;
    struct clb_text text;  /* for echo */
    unsigned char *scores; /* owned: serve_token of each id when echo comes with logprobs */
    size_t n_scored;       /* guarded by the job's lock; the first one has no probability */
    uint64_t ticket;       /* the scheduler's; valid when it was submitted */
};

struct serve_choice { /* guarded by the job's lock */
    struct clb_text text;
    unsigned char *tokens; /* owned: serve_token_size() bytes each */
    uint32_t n_token, token_room;
    uint32_t n_new; /* tokens generated */
    enum serve_finish finish;
};

struct serve_params {
    bool stream, include_usage, echo, ignore_eos, logprobs, parse_special, add_special;
    uint32_t n, max_tokens, top_logprobs, top_k;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
};

struct serve_times {
    double arrived, first, finished; /* clb_now(); 0: not yet */
    double queue;                    /* seconds until the last choice had its place */
};

struct serve_job {
    struct serve *serve;
    atomic_uint references;
    atomic_bool cancelled; /* nobody waits for it any more */
    enum serve_kind kind;
    char id[SERVE_ID + 1];
    int64_t created;
    struct clb_text body; /* of the request; the desk lets it go */
    struct serve_params p;
    struct clb_text stop_bytes; /* stop texts one behind the other */
    size_t stop_size[SERVE_STOPS], n_stop;
    struct serve_prompt *prompt;
    struct serve_choice *choice; /* n of prompt 0, then n of prompt 1 ... */
    uint32_t n_prompt, n_choice;
    struct clb_text answer; /* as the desk wrote it: of TOKENIZE and DETOKENIZE, or with logprobs */
    bool writes;            /* the desk has it to write the answer */

    pthread_mutex_t tickets; /* guards the next */
    uint32_t n_submitted;    /* the first so many prompts have a ticket */

    pthread_mutex_t lock;
    bool prepared; /* the desk has read it */
    bool done;
    bool answered;           /* the desk has written the answer */
    struct serve_refusal no; /* why there is no answer; valid when done */
    struct serve_times time;
    uint32_t n_open; /* choices without an end */
    uint64_t cached_tokens;

    /* The mailbox's. */
    struct serve_job *next_mail;
    bool mailed;
    struct serve_job *next;        /* the desk's, in whose queue it stands */
    struct serve_request *request; /* the loop's; NULL when the request is gone */
};

/* NULL: no memory. One reference. */
struct serve_job *serve_job_new(struct serve *s, enum serve_kind kind);
struct serve_job *serve_job_take(struct serve_job *job);
void serve_job_drop(struct serve_job *job);
/* Makes choices from prompts and p.n. False: no memory. */
bool serve_job_choose(struct serve_job *job);
/* Room for another token of a choice; NULL: no memory. `lock` is held. */
struct serve_token *serve_job_add_token(struct serve_job *job, struct serve_choice *c);
/* The same of a prompt: makes room for all of its tokens; token i of it. */
bool serve_job_score(struct serve_job *job, struct serve_prompt *p);
struct serve_token *serve_job_scored(const struct serve_job *job, const struct serve_prompt *p,
                                     size_t i);
/* Token i of a choice; `lock` is held or the job is done. */
const struct serve_token *serve_job_token(const struct serve_job *job, const struct serve_choice *c,
                                          uint32_t i);

#endif
