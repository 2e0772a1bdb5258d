/* run.h - what the files of colibri-run share.
 *
 *     source --records--> job (prompt.c) --request--> schedule --events--> output
 *
 * A record is one prompt: all of the input, or a line, or what lies between two NULs. It becomes a
 * job, which waits in a list in input order, is a request of the library's scheduler, and is
 * written when its turn comes. */
#ifndef CMD_COLIBRI_RUN_RUN_H
#define CMD_COLIBRI_RUN_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/cli/engine.h"
#include "lib/cli/opt.h"
#include "lib/cli/outfile.h"
#include "lib/colibri.h"

#define RUN_NAME "colibri-run"

enum run_mode { RUN_ONE, RUN_LINES, RUN_NULL, RUN_JSONL };

struct run_options {
    const char *model, *prompt, *system, *logits, *kv_dtype, *cpu, *numa;
    struct clb_where where;
    float temperature, top_p, min_p, repeat_penalty;
    uint32_t max_new, top_k, context, experts_per_token, threads, batch, prefill_chunk;
    uint64_t memory, seed;
    struct clb_opt_list stop;
    bool chat, lines, null, jsonl, ids, parse_special, profile, stats, json, verify;
    bool no_routing_cache;
    bool mlock;
    struct clb_common common;
    enum run_mode mode;
};

/* options.c. -1: go on; else the exit status. */
int run_parse_options(struct run_options *o, int argc, char **argv);

/* -- source.c: records of the input ------------------------------------------------------------ */

enum run_got { RUN_RECORD, RUN_NOTHING_YET, RUN_END, RUN_READ_FAILED };

struct run_source {
    int fd;                 /* borrowed; -1: the text of -p */
    int delimiter;          /* '\n' or 0; -1: all of it is one record */
    struct clb_text buffer; /* read, not yet given out */
    size_t at;              /* start of the next record in it */
    size_t searched;        /* no delimiter before this */
    bool ended, given;      /* given: the one record was */
};

bool run_source_open(struct run_source *s, const struct run_options *o, struct clb_err *err);
void run_source_close(struct run_source *s);
/* The next record, borrowed until the next call. With `wait` false it does not block. A call that a
 * signal interrupts returns RUN_NOTHING_YET. */
enum run_got run_source_next(struct run_source *s, bool wait, struct clb_str *record,
                             struct clb_err *err);
/* How many records there are; 0 when that cannot be known (a pipe). */
uint64_t run_source_count(const struct run_source *s);

/* -- prompt.c: a record becomes a job ---------------------------------------------------------- */

struct run_stops { /* texts that end an answer */
    struct clb_text bytes;            /* owned: the texts one behind the other */
    size_t end[CLB_OPT_MANY], n;      /* where each ends */
};
/* Fills both arrays, for a request; borrowed. Returns how many there are. */
size_t run_stops_list(const struct run_stops *s, const char *text[CLB_OPT_MANY],
                      size_t size[CLB_OPT_MANY]);

enum run_finish { RUN_UNFINISHED, RUN_STOP, RUN_LENGTH, RUN_FAILED };

struct run_job {
    struct run_job *next; /* in input order */
    struct run *run;
    uint64_t number;      /* of the record, from 1 */
    int32_t *ids;         /* owned; the prompt */
    size_t n_ids;
    struct colibri_sampling sampling;
    uint32_t max_new;
    struct run_stops stops;
    bool running;               /* it is with the scheduler */
    uint64_t ticket;
    struct clb_text out;        /* to be written */
    uint32_t n_new, cached;     /* new tokens; tokens of the prompt that were known already */
    double queue_seconds, prefill_seconds, decode_seconds;
    enum run_finish finish;
    bool turn;           /* of a conversation: the next one needs its answer */
    struct clb_text all; /* the answer */
    struct clb_err err; /* of RUN_FAILED */
    int spill;          /* logits of a job whose turn has not come; -1: none */
};

/* With what the options say, but no prompt. */
struct run_job *run_job_blank(struct run *r, struct clb_err *err);
/* Its prompt: a text, or a conversation as JSON. */
bool run_job_encode(struct run_job *job, struct clb_str text, bool conversation,
                    struct clb_err *err);
/* NULL only without memory (err is filled). A bad record is a finished job with its err. */
struct run_job *run_job_new(struct run *r, struct clb_str record, struct clb_err *err);
void run_job_free(struct run_job *job);

/* -- logits.c: --logits FILE ------------------------------------------------------------------- */

struct run_logits {
    struct clb_outfile file;
    struct clb_err err; /* of a write inside the library's callback */
    size_t row_bytes;
};
bool run_logits_open(struct run *r, struct clb_err *err);
void run_logits_row(void *job, size_t position, const float *logits); /* a colibri_rows_fn */
bool run_logits_turn(struct run_job *job, struct clb_err *err); /* its rows may go to the file */

/* -- schedule.c -------------------------------------------------------------------------------- */

struct run_counts {
    uint64_t prompt_tokens, new_tokens;
    double started, ready; /* clb_now() */
};

struct run {
    struct run_options o;
    struct colibri_model *model;
    struct colibri_model_info info;
    struct colibri_scheduler *scheduler;
    struct colibri_memory_plan plan;
    struct run_source source;
    struct run_job *head, *tail; /* not yet written */
    uint32_t n_active, n_session; /* with the scheduler; places it has */
    size_t n_waiting;             /* in the list, those that compute too */
    uint64_t n_record, n_failed, n_done;
    bool streams;       /* stdout is for someone who waits */
    bool stdout_failed; /* the message is in err */
    bool open_line;     /* what was written does not end in a newline */
    bool failed;        /* in a callback of the scheduler: err says why */
    struct clb_err err;
    struct run_logits logits;
    struct run_counts count;
    struct colibri_profile profile; /* at the last step */
};

/* Until this job has its answer, or Ctrl-C. */
bool run_one(struct run *r, struct run_job *job, struct clb_err *err);
/* Until all records are answered, a failure that is not one record's, or Ctrl-C. */
bool run_schedule(struct run *r, struct clb_err *err);

/* -- output.c ---------------------------------------------------------------------------------- */

bool run_take_token(struct run_job *job, const struct colibri_token_event *e, struct clb_err *err);
bool run_take_text(struct run_job *job, struct clb_str text, struct clb_err *err);
bool run_stream(struct run_job *job, struct clb_err *err); /* writes job->out now */
bool run_write_job(struct run_job *job, struct clb_err *err); /* a finished one, or its failure */

bool run_newline(struct run *r, struct clb_err *err);

/* -- chat.c ------------------------------------------------------------------------------------ */

/* A conversation as JSON in the making; "]}" ends it. */
void run_chat_begin(const struct run_options *o, struct clb_text *t); /* --system */
void run_chat_user(struct clb_text *t, struct clb_str text);
bool run_chat_check(const struct run *r, struct clb_err *err); /* the model has a template */
bool run_chat_from_terminal(const struct run *r);
bool run_talk(struct run *r, struct clb_err *err); /* turns from a terminal, until Ctrl-D */

/* -- stats.c ----------------------------------------------------------------------------------- */

void run_print_setup(const struct run *r);   /* -v */
void run_print_step(struct run *r);          /* --profile: one line */
bool run_print_profile(const struct run *r); /* --profile: the table */
bool run_print_stats(const struct run *r, struct clb_err *err);

/* -- interrupt.c ------------------------------------------------------------------------------- */

void run_catch_interrupt(void); /* the first SIGINT is noted, the second does what it did before */
bool run_interrupted(void);
bool run_wait_readable(int fd); /* false after an interrupt */
void run_die_of_interrupt(void);

#endif
