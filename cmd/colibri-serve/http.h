/* http.h - sockets, connections and requests; all of it is the loop's thread, but for
 * serve_http_mail().
 *
 * libmicrohttpd parses and writes HTTP without threads of its own: its epoll descriptor is one of
 * those that the loop waits for. A request that waits for the model is suspended; meanwhile the
 * loop watches its socket, so that a client that goes away is noticed at once. */
#ifndef CMD_COLIBRI_SERVE_HTTP_H
#define CMD_COLIBRI_SERVE_HTTP_H

#include <microhttpd.h>

#include "cmd/colibri-serve/job.h"

/* Members of a list all have the same time to live, so the oldest stands in front. */
struct serve_timer {
    struct serve_timer *prev, *next;
    struct serve_timers *list; /* NULL: runs in none */
    double since;
    void *owner;
};
struct serve_timers {
    struct serve_timer *head, *tail;
    double limit; /* seconds; 0: for ever */
};
void serve_timer_start(struct serve_timers *list, struct serve_timer *t);
void serve_timer_stop(struct serve_timer *t);

/* What the loop finds in an event of a socket. */
struct serve_watched {
    bool fresh; /* a serve_fresh (gate.h), else a serve_conn */
};

struct serve_conn {
    struct serve_watched event; /* first */
    struct serve_http *http;
    struct MHD_Connection *mhd;
    int fd;
    bool suspended, watched;
    bool half;                /* the client sends no more */
    bool gone;                /* the client is, or was sent away */
    struct serve_timer timer; /* idle, reading or writing */
    struct serve_request *request;
    char client[64];
};

struct serve_cursor {
    size_t text;       /* of a choice: what has been sent */
    uint32_t token;    /* the first that has not been sent */
    size_t characters; /* of the tokens before it */
    bool echoed, began, ended;
};

struct serve_route;
struct serve_request {
    struct serve *serve;
    struct serve_conn *conn;
    const struct serve_route *route; /* NULL: unknown */
    char path[1024], method[16];     /* cut */
    char origin[256];                /* allowed to read the answer; "": not said */
    struct clb_text body;
    size_t n_body;           /* bytes of it, also when the job has it */
    struct serve_refusal no; /* known before the model was asked */
    struct serve_job *job;
    struct serve_timer whole; /* from the arrival of a job to its answer */
    struct serve_timer quiet; /* since something was given of it */
    bool ping;                /* the client is to hear that it goes on */
    double began;
    unsigned status; /* of the answer; 0: none yet */
    /* The answer, or of a stream the part that is to be sent. */
    const char *type;
    struct clb_text out;
    size_t sent;
    bool streams, ended, secure_page;
    bool close;                  /* the connection, behind the answer */
    const char *allow;           /* methods of the path; NULL: not said */
    struct serve_cursor *cursor; /* owned: of each choice */
    uint64_t bytes;
};

struct serve_http {
    struct serve *serve;
    struct MHD_Daemon *daemon;
    int epoll, listener, signals, mail;
    uint16_t port;
    struct serve_timers fresh, idle, reading, half, writing, whole, quiet;
    uint32_t n_fresh, n_conn, max_conn;
    char *peek; /* [n_peek] scratch of the gate */
    size_t n_peek;
    uint32_t n_job;           /* requests that wait for the model */
    uint64_t body_bytes;      /* of bodies of requests that are not finished */
    double last_end, between; /* of jobs: clb_now(), seconds; for Retry-After */
    bool draining, signalled, cancelled;
    bool failed; /* the loop has seen `failure` */
    double drain_since;
    pthread_mutex_t lock; /* of the mailbox and what is in it */
    struct serve_job *first_mail, *last_mail;
    char failure[512]; /* why the server ends; "": it does not */
};

bool serve_http_open(struct serve_http **out, struct serve *s, struct clb_err *err);
/* Until a signal ended it and the last request has its answer; false as well after
 * serve_http_fail(), when that is so. */
bool serve_http_run(struct serve_http *h, struct clb_err *err);
void serve_http_close(struct serve_http *h);
/* There is news of a job. Any thread. */
void serve_http_mail(struct serve_http *h, struct serve_job *job);
/* Nothing can be answered any more. The loop knows before it sees mail that is sent later. Any
 * thread. */
void serve_http_fail(struct serve_http *h, const char *why);

/* The loop's: suspends until news, or resumes. */
void serve_conn_suspend(struct serve_conn *c);
void serve_conn_resume(struct serve_conn *c);
/* Ends the connection whatever it does. */
void serve_conn_end(struct serve_conn *c);
/* Reports the end of what the client sends from now on, or no more. */
void serve_conn_watch(struct serve_conn *c, bool watch);
/* What it waits for, and so how long: the next request; the rest of one. */
void serve_conn_idle(struct serve_conn *c);
void serve_conn_read(struct serve_conn *c);

/* -- route.c: what libmicrohttpd calls --------------------------------------------------------- */

enum MHD_Result serve_on_request(void *http, struct MHD_Connection *mhd, const char *path,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n, void **request);
void serve_on_completed(void *http, struct MHD_Connection *mhd, void **request,
                        enum MHD_RequestTerminationCode why);
/* Its job is not waited for any more; the client gets this refusal instead. */
void serve_request_cancel(struct serve_request *q, unsigned status, const char *code,
                          const char *why);

/* If it is a stream that waits for news: its client gets a comment in the place of some, so that
 * neither it nor a proxy takes a long prompt for a dead server. */
void serve_request_ping(struct serve_request *q);

/* -- head.c ------------------------------------------------------------------------------------ */

/* NULL: there is none. */
const char *serve_header(const struct serve_request *q, const char *name);
/* "http://host/path", as clients of proxies say it, is the path, too. */
const char *serve_path_of(const char *url);
/* Form, origin and size; q->no and q->close. */
bool serve_head_check(struct serve_request *q, const char *path, const char *version);

/* -- answer.c, stream.c: what has become of a job ---------------------------------------------- */

void serve_answer(struct clb_text *t, const struct serve_job *job); /* the whole */
/* Appends to q->out what is new, and sets q->ended behind the end. */
void serve_stream(struct serve_request *q);
/* ,"logprobs":… of the tokens of choice i that have not been told, or null; `at` moves. Those of an
 * echoed prompt come first, or alone. */
void serve_answer_logprobs(struct clb_text *t, const struct serve_job *job, uint32_t i,
                           struct serve_cursor *at, bool only_prompt);
const char *serve_finish_word(enum serve_finish finish);
uint64_t serve_prompt_tokens(const struct serve_job *job);
uint64_t serve_new_tokens(const struct serve_job *job);
/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":… */
void serve_answer_head(struct clb_text *t, const struct serve_job *job, const char *object);
void serve_answer_usage(struct clb_text *t, const struct serve_job *job);

/* -- pages.c: what needs no model -------------------------------------------------------------- */

typedef void serve_page_fn(struct serve_request *q);
serve_page_fn serve_page_start, serve_page_models, serve_page_model, serve_page_health,
    serve_page_metrics;

/* -- metrics.c --------------------------------------------------------------------------------- */

bool serve_metrics_new(struct serve_metrics **out, struct clb_err *err);
void serve_metrics_free(struct serve_metrics *m);
/* A finished request; all from the loop. */
void serve_metrics_count(struct serve_metrics *m, const struct serve_request *q);
/* One that did not become a request. */
void serve_metrics_status(struct serve_metrics *m, unsigned status);
void serve_metrics_print(struct clb_text *t, const struct serve *s);

#endif
