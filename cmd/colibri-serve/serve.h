/* serve.h - what the files of colibri-serve share.
 *
 *     socket --gate, http--> request --head, route--> job --desk--> ids --engine--> tokens
 *                                                      ^                              |
 *     socket <------ http -- answer, stream <----------+------- text of choices <-----+
 *
 * Three threads. The loop (http.c) owns sockets, connections and requests; it parses nothing that
 * can be long. The desk (desk.c) turns a body into a job: JSON, template, tokens. The engine
 * (engine_thread.c) runs the passes and appends text to the job. A job is shared by reference
 * count; who has news of one puts it into the loop's mailbox. */
#ifndef CMD_COLIBRI_SERVE_SERVE_H
#define CMD_COLIBRI_SERVE_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/cli/engine.h"
#include "lib/cli/opt.h"
#include "lib/colibri.h"

#define SERVE_NAME "colibri-serve"

struct serve_options {
    const char *model, *host, *key_file, *name, *kv_dtype, *cpu, *numa;
    struct clb_where where;
    uint32_t port, max_queue, max_concurrent, max_connections;
    uint32_t idle_timeout, read_timeout, write_timeout, request_timeout, drain_timeout,
        ping; /* s */
    uint32_t context, threads, experts_per_token, profile_every, prefill_chunk;
    uint64_t body_limit, header_limit, kv_tokens, memory;
    struct clb_opt_list origins;
    bool mlock, verify, json;
    struct clb_common common;
};
/* options.c. -1: go on; else the exit status. */
int serve_parse_options(struct serve_options *o, int argc, char **argv);

struct serve_metrics;
struct serve_keys;
struct serve_desk;
struct serve_engine;
struct serve_http;

struct serve {
    struct serve_options o;
    struct colibri_model *model;
    struct colibri_model_info info;
    const char *name;        /* what clients call the model */
    int64_t created;         /* seconds since 1970 */
    uint32_t context;        /* longest sequence */
    uint64_t kv_tokens;      /* positions that all sequences share */
    double started;          /* clb_now() */
    struct serve_keys *keys; /* NULL: everybody may ask */
    struct serve_metrics *metrics;
    struct serve_engine *engine;
    struct serve_desk *desk;
    struct serve_http *http;
    bool stdout_failed; /* that is the message of the end */
};

/* What the server says no with: an HTTP status and an error in OpenAI's shape. `param` is the field
 * at fault, "" when there is none; retry_after is in seconds, 0: not said. */
struct serve_refusal {
    unsigned status;         /* 0: none */
    const char *type, *code; /* static; code may be NULL */
    unsigned retry_after;
    char param[64], text[512];
};
/* Both return false. The first is a 400 that names a field. */
bool serve_refuse_field(struct serve_refusal *no, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool serve_refuse(struct serve_refusal *no, unsigned status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* {"message","type","param","code"} */
void serve_refusal_json(struct clb_text *t, const struct serve_refusal *no);

/* -- log.c: a line per event on stderr, `key=value` or with --json an object ------------------- */

struct serve_line {
    struct clb_text text;
    bool json;
};
void serve_log_begin(struct serve_line *l, bool json, const char *event);
void serve_log_text(struct serve_line *l, const char *key, struct clb_str value);
void serve_log_count(struct serve_line *l, const char *key, uint64_t value);
void serve_log_ms(struct serve_line *l, const char *key, double seconds);
void serve_log_end(struct serve_line *l); /* writes it at once */
/* One event with one text. */
void serve_log_say(const struct serve *s, const char *event, const char *key, const char *value);

/* -- keys.c: who may ask ----------------------------------------------------------------------- */

/* A key a line; empty lines and those that begin with '#' do not count. */
bool serve_keys_load(struct serve_keys **out, const char *path, struct clb_err *err);
void serve_keys_free(struct serve_keys *k);
/* Whether `header`, the value of Authorization, is "Bearer KEY" of one of them. Takes the same time
 * whichever key it is not. NULL is no key. */
bool serve_keys_allow(const struct serve_keys *k, const char *header);

/* -- random.c ---------------------------------------------------------------------------------- */

enum { SERVE_ID = 24 };
void serve_random_id(char id[static SERVE_ID + 1]); /* hexadecimal */
uint64_t serve_random_seed(void);

#endif
