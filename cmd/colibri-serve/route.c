/* From a request to whoever answers it. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "cmd/colibri-serve/desk.h"
#include "cmd/colibri-serve/engine_thread.h"
#include "cmd/colibri-serve/http.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { PIECE = 16 << 10, BODIES = 64 << 20, MOST_RETRY = 60 };

struct serve_route {
    const char *method, *path;
    serve_page_fn *page;  /* answers at once, or */
    enum serve_kind kind; /* asks the model */
    bool open;            /* needs no key */
    bool prefix;          /* the path goes on */
};
static const struct serve_route routes[] = {
    { "GET", "/", serve_page_start, 0, true, false },
    { "GET", "/health", serve_page_health, 0, true, false },
    { "GET", "/metrics", serve_page_metrics, 0, false, false },
    { "GET", "/v1/models", serve_page_models, 0, false, false },
    { "GET", "/v1/models/", serve_page_model, 0, false, true },
    { "POST", "/", NULL, SERVE_GENERATE, false, false },
    { "POST", "/generate", NULL, SERVE_GENERATE, false, false },
    { "POST", "/v1/completions", NULL, SERVE_COMPLETION, false, false },
    { "POST", "/v1/chat/completions", NULL, SERVE_CHAT, false, false },
    { "POST", "/tokenize", NULL, SERVE_TOKENIZE, false, false },
    { "POST", "/detokenize", NULL, SERVE_DETOKENIZE, false, false },
};
enum { ROUTES = sizeof routes / sizeof *routes };

/* -- what is known from the header ------------------------------------------------------------- */

static bool is_method(const struct serve_route *r, const char *method)
{
    return !strcmp(r->method, method) || (!strcmp(r->method, "GET") && !strcmp(method, "HEAD"));
}

/* The methods of a path, for Allow. */
static const char *allowed(bool get, bool post)
{
    return get && post ? "GET, HEAD, POST" : post ? "POST" : "GET, HEAD";
}

static bool find_route(struct serve_request *q, const char *path, const char *method)
{
    bool get = false, post = false;

    for (int i = 0; i < ROUTES; i++) {
        const struct serve_route *r = &routes[i];
        if (r->prefix ? strncmp(path, r->path, strlen(r->path)) : strcmp(path, r->path))
            continue;
        get |= !strcmp(r->method, "GET");
        post |= !strcmp(r->method, "POST");
        if (is_method(r, method)) {
            q->route = r;
            return true;
        }
    }
    if (!get && !post)
        return serve_refuse(&q->no, 404, "not_found",
                            "there is nothing at this path; OpenAI's API is under /v1");
    q->allow = allowed(get, post);
    return serve_refuse(&q->no, 405, "method_not_allowed", "%s does not go with this path",
                        q->method);
}

static bool check_key(struct serve_request *q)
{
    if (!q->serve->keys || q->route->open ||
        serve_keys_allow(q->serve->keys, serve_header(q, MHD_HTTP_HEADER_AUTHORIZATION)))
        return true;
    return serve_refuse(&q->no, 401, "invalid_api_key",
                        "the header 'Authorization: Bearer KEY' is missing or its key is unknown");
}

static bool check_drain(struct serve_request *q)
{
    const struct serve_http *h = q->conn->http;

    if (!h->draining || q->route->open)
        return true;
    return h->failed ? serve_refuse(&q->no, 503, "device_lost", "%.500s", h->failure)
                     : serve_refuse(&q->no, 503, "shutting_down", "the server is shutting down");
}

/* A preflight asks whether a page may send its request. */
static bool is_preflight(const struct serve_request *q)
{
    return !strcmp(q->method, "OPTIONS") && q->origin[0];
}

static struct serve_request *begin(struct serve_conn *c, const char *path, const char *method,
                                   const char *version)
{
    struct clb_err err;
    struct serve_request *q = clb_new(1, sizeof *q, &err);

    if (!q)
        return NULL;
    q->serve = c->http->serve;
    q->conn = c;
    q->whole.owner = q->quiet.owner = q;
    q->began = clb_now();
    path = serve_path_of(path);
    snprintf(q->path, sizeof q->path, "%s", path);
    snprintf(q->method, sizeof q->method, "%s", method);
    c->request = q;
    serve_conn_read(c);
    (void)(serve_head_check(q, path, version) && !is_preflight(q) && find_route(q, path, method) &&
           check_key(q) && check_drain(q));
    return q;
}

/* -- the body ---------------------------------------------------------------------------------- */

/* What will be refused anyway is read and dropped, so that the client is there for the answer. */
static void take_body(struct serve_request *q, const char *bytes, size_t n)
{
    struct serve_http *h = q->conn->http;
    uint64_t limit = q->serve->o.body_limit;

    if (q->no.status || !q->route || q->route->page)
        return;
    if (q->body.n + n > limit)
        serve_refuse(&q->no, 413, "body_too_large", "the body is longer than --body-limit, %llu",
                     (unsigned long long)limit);
    else if (h->body_bytes + n > (limit > BODIES ? limit : BODIES))
        serve_refuse(&q->no, 503, "busy", "too many large requests at once");
    else
        clb_text_add(&q->body, bytes, n);
    if (q->body.failed)
        serve_refuse(&q->no, 503, "no_memory", "not enough memory for the body");
    if (!q->no.status) {
        h->body_bytes += n;
        q->n_body += n;
    }
}

/* -- answers ----------------------------------------------------------------------------------- */

/* What a page may send and see. Whatever headers it wants to send: its origin was allowed. */
static void set_origin_headers(struct serve_request *q, struct MHD_Response *r)
{
    const char *wanted = serve_header(q, "Access-Control-Request-Headers");

    MHD_add_response_header(r, "Access-Control-Allow-Origin", q->origin);
    MHD_add_response_header(r, "Vary", "Origin, Access-Control-Request-Headers");
    if (is_preflight(q)) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                wanted ? wanted : "Authorization, Content-Type");
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    } else {
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    }
}

static void set_headers(struct serve_request *q, struct MHD_Response *r)
{
    char number[16];

    if (q->status != 204)
        MHD_add_response_header(r, "Content-Type", q->type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (q->job)
        MHD_add_response_header(r, "X-Request-Id", q->job->id);
    if (q->streams)
        MHD_add_response_header(r, "Cache-Control", "no-cache");
    if (q->secure_page)
        MHD_add_response_header(r, "Content-Security-Policy",
                                "default-src 'none'; style-src 'unsafe-inline'; "
                                "script-src 'unsafe-inline'; connect-src 'self'; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (q->no.retry_after) {
        snprintf(number, sizeof number, "%u", q->no.retry_after);
        MHD_add_response_header(r, "Retry-After", number);
    }
    if (q->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (q->allow)
        MHD_add_response_header(r, "Allow", q->allow);
    if (q->origin[0])
        set_origin_headers(q, r);
    if (q->close || q->conn->http->draining)
        MHD_add_response_header(r, "Connection", "close");
}

/* The next bytes of the answer. Each call says that the client has taken those before. */
static ssize_t give(void *arg, uint64_t at, char *to, size_t room)
{
    struct serve_request *q = arg;

    (void)at;
    serve_timer_stop(&q->conn->timer);
    if (q->sent == q->out.n && q->streams && !q->ended) {
        clb_text_clear(&q->out);
        q->sent = 0;
        serve_stream(q);
        if (q->out.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (q->out.n == 0 && !q->ended && q->ping)
            clb_text_puts(&q->out, ": it goes on\n\n");
        q->ping = false;
        if (q->out.n == 0 && !q->ended) {
            serve_conn_suspend(q->conn);
            return 0;
        }
        serve_timer_start(&q->conn->http->quiet, &q->quiet);
    }
    size_t n = q->out.n - q->sent;
    if (n == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    n = n < room ? n : room;
    memcpy(to, q->out.p + q->sent, n);
    q->sent += n;
    q->bytes += n;
    serve_timer_start(&q->conn->http->writing, &q->conn->timer);
    return (ssize_t)n;
}

static enum MHD_Result send_answer(struct serve_request *q, unsigned status)
{
    if (q->out.failed)
        return MHD_NO;
    q->status = status;
    if (!q->type)
        q->type = "application/json";
    struct MHD_Response *r = MHD_create_response_from_callback(
        q->streams ? MHD_SIZE_UNKNOWN : q->out.n, PIECE, give, q, NULL);
    if (!r)
        return MHD_NO;
    set_headers(q, r);
    serve_timer_start(&q->conn->http->writing, &q->conn->timer);
    enum MHD_Result ok = MHD_queue_response(q->conn->mhd, status, r);
    MHD_destroy_response(r);
    return ok;
}

/* When those that wait now will have had their turn, by how requests ended lately. */
static unsigned retry_after(const struct serve_http *h)
{
    uint32_t places = h->serve->o.max_concurrent;
    double wait = h->between * (h->n_job > places ? h->n_job - places : 1);

    return wait <= 1 ? 1 : wait >= MOST_RETRY ? MOST_RETRY : (unsigned)(wait + 0.999);
}

static enum MHD_Result send_refusal(struct serve_request *q)
{
    if (q->no.status == 429)
        q->no.retry_after = retry_after(q->conn->http);
    q->streams = false;
    q->type = NULL;
    clb_text_clear(&q->out);
    clb_text_puts(&q->out, q->route && q->route->kind == SERVE_GENERATE
                               ? "{\"status\":\"error\",\"error\":"
                               : "{\"error\":");
    serve_refusal_json(&q->out, &q->no);
    clb_text_puts(&q->out, "}\n");
    return send_answer(q, q->no.status);
}

/* -- jobs -------------------------------------------------------------------------------------- */

static bool start_job(struct serve_request *q)
{
    struct serve_http *h = q->conn->http;
    const struct serve_options *o = &q->serve->o;

    if (h->n_job >= o->max_concurrent + o->max_queue) {
        serve_refuse(&q->no, 429, "queue_full", "%u requests are being answered or wait already",
                     h->n_job);
        return false;
    }
    q->job = serve_job_new(q->serve, q->route->kind);
    if (!q->job)
        return serve_refuse(&q->no, 503, "no_memory", "not enough memory for this request");
    q->job->request = q;
    q->job->body = q->body;
    q->body = (struct clb_text){ 0 };
    if (h->n_job++ == 0)
        h->last_end = q->job->time.arrived;
    serve_timer_start(&h->whole, &q->whole);
    serve_timer_start(&h->quiet, &q->quiet);
    serve_conn_watch(q->conn, true);
    serve_conn_suspend(q->conn);
    serve_desk_put(q->serve->desk, q->job);
    return true;
}

static enum MHD_Result start_stream(struct serve_request *q)
{
    struct clb_err err;

    q->cursor = clb_new(q->job->n_choice, sizeof *q->cursor, &err);
    q->streams = q->cursor != NULL;
    q->type = "text/event-stream; charset=utf-8";
    return q->cursor ? send_answer(q, 200) : MHD_NO;
}

static enum MHD_Result send_whole(struct serve_request *q, bool answered)
{
    struct serve_job *job = q->job;
    bool by_desk = job->kind == SERVE_TOKENIZE || job->kind == SERVE_DETOKENIZE || answered;

    if (!by_desk && job->p.logprobs) {
        if (!job->writes) {
            job->writes = true;
            serve_desk_put(q->serve->desk, job);
        }
        serve_conn_suspend(q->conn);
        return MHD_YES;
    }
    if (!by_desk)
        serve_answer(&q->out, job);
    else
        clb_text_add(&q->out, job->answer.p, job->answer.n);
    q->out.failed |= job->answer.failed;
    return send_answer(q, 200);
}

/* After a resume. */
static enum MHD_Result go_on(struct serve_request *q)
{
    struct serve_job *job = q->job;

    pthread_mutex_lock(&job->lock);
    bool done = job->done, answered = job->answered;
    bool began = job->time.first > 0 || (q->ping && job->prepared);
    if (done && !q->no.status)
        q->no = job->no;
    pthread_mutex_unlock(&job->lock);
    if (q->no.status)
        return send_refusal(q);
    if ((began || done) && job->p.stream) /* the desk wrote p before there was any text */
        return start_stream(q);
    if (done)
        return send_whole(q, answered);
    serve_conn_suspend(q->conn);
    return MHD_YES;
}

void serve_request_ping(struct serve_request *q)
{
    pthread_mutex_lock(&q->job->lock);
    q->ping = q->conn->suspended && q->job->prepared && q->job->p.stream && !q->job->done;
    pthread_mutex_unlock(&q->job->lock);
    if (q->ping)
        serve_conn_resume(q->conn);
}

void serve_request_cancel(struct serve_request *q, unsigned status, const char *code,
                          const char *why)
{
    serve_engine_cancel(q->serve->engine, q->job);
    if (!q->no.status)
        serve_refuse(&q->no, status, code, "%s", why);
    serve_conn_resume(q->conn);
}

/* -- what libmicrohttpd calls ------------------------------------------------------------------ */

static enum MHD_Result complete(struct serve_request *q)
{
    serve_timer_stop(&q->conn->timer);
    if (is_preflight(q) && !q->no.status)
        return send_answer(q, 204);
    if (q->no.status)
        return send_refusal(q);
    if (!q->route->page)
        return start_job(q) ? MHD_YES : send_refusal(q);
    q->status = 200;
    q->route->page(q);
    return q->no.status ? send_refusal(q) : send_answer(q, q->status);
}

enum MHD_Result serve_on_request(void *http, struct MHD_Connection *mhd, const char *path,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n, void **request)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct serve_conn *c = i ? i->socket_context : NULL;
    struct serve_request *q = *request;

    (void)http;
    if (!c || c->gone)
        return MHD_NO;
    if (!q) {
        *request = q = begin(c, path, method, version);
        if (!q)
            return MHD_NO;
        /* Who asks before he sends gets his answer now; so does who cannot be understood. */
        return q->no.status && (q->close || serve_header(q, "Expect")) ? send_refusal(q) : MHD_YES;
    }
    if (*n > 0) {
        take_body(q, upload, *n);
        *n = 0;
        return MHD_YES;
    }
    return q->job ? go_on(q) : complete(q);
}

/* The job's lock is held. */
static void log_tokens(struct serve_line *l, const struct serve_job *job)
{
    serve_log_count(l, "prompt_tokens", serve_prompt_tokens(job));
    serve_log_count(l, "cached_tokens", job->cached_tokens);
    serve_log_count(l, "completion_tokens", serve_new_tokens(job));
    serve_log_ms(l, "queue_ms", job->time.queue);
    if (job->time.first > 0)
        serve_log_ms(l, "first_ms", job->time.first - job->time.arrived);
    serve_log_text(l, "finish", clb_str(serve_finish_word(job->choice[0].finish)));
}

static void log_request(const struct serve_request *q, const char *end)
{
    struct serve_line l;
    struct serve_job *job = q->job;

    serve_log_begin(&l, q->serve->o.json, "request");
    if (job)
        serve_log_text(&l, "id", clb_str(job->id));
    serve_log_text(&l, "client", clb_str(q->conn->client));
    serve_log_text(&l, "method", clb_str(q->method));
    serve_log_text(&l, "path", clb_str(q->path));
    serve_log_count(&l, "status", q->status);
    serve_log_count(&l, "bytes", q->bytes);
    serve_log_ms(&l, "ms", clb_now() - q->began);
    if (job) {
        pthread_mutex_lock(&job->lock);
        if (job->prepared && job->n_choice)
            log_tokens(&l, job);
        pthread_mutex_unlock(&job->lock);
    }
    if (q->no.status)
        serve_log_text(&l, "error", clb_str(q->no.text));
    if (end)
        serve_log_text(&l, "end", clb_str(end));
    serve_log_end(&l);
}

/* Seconds between two ends while there is something to do, the last ones weighing most. */
static void count_end(struct serve_http *h)
{
    double now = clb_now(), d = now - h->last_end;

    h->between = h->between > 0 ? 0.9 * h->between + 0.1 * d : d;
    h->last_end = now;
}

void serve_on_completed(void *http, struct MHD_Connection *mhd, void **request,
                        enum MHD_RequestTerminationCode why)
{
    struct serve_http *h = http;
    struct serve_request *q = *request;

    (void)mhd;
    if (!q)
        return;
    *request = NULL;
    if (q->job) {
        serve_engine_cancel(q->serve->engine, q->job); /* nothing happens when it is done */
        q->job->request = NULL;
        h->n_job--;
        count_end(h);
    }
    serve_metrics_count(q->serve->metrics, q);
    if (!q->serve->o.common.quiet)
        log_request(q, why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? NULL : "cut");
    serve_timer_stop(&q->whole);
    serve_timer_stop(&q->quiet);
    serve_conn_idle(q->conn);
    h->body_bytes -= q->n_body;
    q->conn->request = NULL;
    serve_job_drop(q->job);
    clb_text_free(&q->body);
    clb_text_free(&q->out);
    clb_free(q->cursor);
    clb_free(q);
}
