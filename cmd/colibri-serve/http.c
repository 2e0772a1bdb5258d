#include "cmd/colibri-serve/http.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmd/colibri-serve/engine_thread.h"
#include "cmd/colibri-serve/gate.h"
#include "cmd/colibri-serve/listen.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { EVENTS = 64, MOST_WAIT_MS = 1000, HALF_SECONDS = 1, MOST_PEEK = 64 << 10 };

/* -- timers ------------------------------------------------------------------------------------ */

void serve_timer_stop(struct serve_timer *t)
{
    struct serve_timers *l = t->list;

    if (!l)
        return;
    *(t->prev ? &t->prev->next : &l->head) = t->next;
    *(t->next ? &t->next->prev : &l->tail) = t->prev;
    t->list = NULL;
}

void serve_timer_start(struct serve_timers *list, struct serve_timer *t)
{
    serve_timer_stop(t);
    t->since = clb_now();
    t->list = list;
    t->prev = list->tail;
    t->next = NULL;
    *(list->tail ? &list->tail->next : &list->head) = t;
    list->tail = t;
}

/* -- connections ------------------------------------------------------------------------------- */

void serve_conn_watch(struct serve_conn *c, bool watch)
{
    struct epoll_event e = { .events = EPOLLRDHUP, .data.ptr = c };

    if (watch != c->watched &&
        epoll_ctl(c->http->epoll, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, c->fd, &e) == 0)
        c->watched = watch;
}

/* A client that sends no more has what it sent read, and then nothing is waited for. */
static void wait_for(struct serve_conn *c, struct serve_timers *list)
{
    serve_timer_start(c->half ? &c->http->half : list, &c->timer);
}

void serve_conn_idle(struct serve_conn *c)
{
    wait_for(c, &c->http->idle);
}

void serve_conn_read(struct serve_conn *c)
{
    wait_for(c, &c->http->reading);
}

/* The client closed its side, or all. An answer that is being made is not wanted any more; what it
 * sent before is read first. libmicrohttpd does not notice an end that comes with the last bytes.
 */
static void on_half(struct serve_conn *c)
{
    c->half = true;
    serve_conn_watch(c, false);
    if (c->request && c->request->job)
        serve_conn_end(c);
    else if (c->timer.list == &c->http->idle || c->timer.list == &c->http->reading)
        serve_timer_start(&c->http->half, &c->timer);
}

void serve_conn_suspend(struct serve_conn *c)
{
    c->suspended = true;
    MHD_suspend_connection(c->mhd);
}

void serve_conn_resume(struct serve_conn *c)
{
    if (c->suspended)
        MHD_resume_connection(c->mhd);
    c->suspended = false;
}

void serve_conn_end(struct serve_conn *c)
{
    c->gone = true;
    serve_conn_watch(c, false);
    shutdown(c->fd, SHUT_RDWR);
    if (c->request && c->request->job)
        serve_engine_cancel(c->http->serve->engine, c->request->job);
    serve_conn_resume(c);
}

static void log_connection(const struct serve_http *h, const char *event,
                           const struct serve_conn *c)
{
    if (h->serve->o.common.verbose && !h->serve->o.common.quiet)
        serve_log_say(h->serve, event, "client", c->client);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct serve_http *h = arg;
    struct serve_conn *c = *context;
    struct clb_err err;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (!c)
            return;
        log_connection(h, "disconnect", c);
        serve_timer_stop(&c->timer);
        clb_free(c);
        h->n_conn--;
        return;
    }
    *context = c = clb_new(1, sizeof *c, &err);
    if (!c) /* its first request will find nothing and be closed */
        return;
    c->http = h;
    c->mhd = mhd;
    c->timer.owner = c;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    serve_listen_name(c->fd, c->client, sizeof c->client);
    h->n_conn++;
    log_connection(h, "connect", c);
    serve_conn_watch(c, true);
    serve_conn_idle(c);
}

/* -- mail -------------------------------------------------------------------------------------- */

static void wake(struct serve_http *h)
{
    if (eventfd_write(h->mail, 1) != 0 && errno != EAGAIN)
        serve_log_say(h->serve, "error", "what", "the loop cannot be woken");
}

void serve_http_mail(struct serve_http *h, struct serve_job *job)
{
    bool first;

    pthread_mutex_lock(&h->lock);
    bool add = !job->mailed;
    first = add && !h->first_mail;
    if (add) {
        job->mailed = true;
        job->next_mail = NULL;
        *(h->last_mail ? &h->last_mail->next_mail : &h->first_mail) = serve_job_take(job);
        h->last_mail = job;
    }
    pthread_mutex_unlock(&h->lock);
    if (first)
        wake(h);
}

void serve_http_fail(struct serve_http *h, const char *why)
{
    pthread_mutex_lock(&h->lock);
    bool first = !h->failure[0];
    if (first)
        snprintf(h->failure, sizeof h->failure, "%s", why);
    pthread_mutex_unlock(&h->lock);
    if (first)
        wake(h);
}

static struct serve_job *next_mail(struct serve_http *h)
{
    pthread_mutex_lock(&h->lock);
    struct serve_job *job = h->first_mail;
    if (job) {
        h->first_mail = job->next_mail;
        if (!h->first_mail)
            h->last_mail = NULL;
        job->mailed = false;
    }
    pthread_mutex_unlock(&h->lock);
    return job;
}

static void take_mail(struct serve_http *h)
{
    for (struct serve_job *job; (job = next_mail(h));) {
        if (job->request)
            serve_conn_resume(job->request->conn);
        serve_job_drop(job);
    }
}

/* -- time -------------------------------------------------------------------------------------- */

static void sooner(const struct serve_timers *l, double now, double *wait)
{
    if (!l->head || l->limit <= 0)
        return;
    double left = l->head->since + l->limit - now;
    if (left < *wait)
        *wait = left > 0 ? left : 0;
}

static int wait_ms(struct serve_http *h)
{
    MHD_UNSIGNED_LONG_LONG daemon;
    double now = clb_now(), wait = MOST_WAIT_MS / 1e3;

    sooner(&h->fresh, now, &wait);
    sooner(&h->idle, now, &wait);
    sooner(&h->reading, now, &wait);
    sooner(&h->half, now, &wait);
    sooner(&h->writing, now, &wait);
    sooner(&h->whole, now, &wait);
    sooner(&h->quiet, now, &wait);
    if (MHD_get_timeout(h->daemon, &daemon) == MHD_YES && (double)daemon < wait * 1e3)
        return (int)daemon;
    return (int)(wait * 1e3 + 0.999);
}

static struct serve_timer *expired(struct serve_timers *l, double now)
{
    return l->head && l->limit > 0 && l->head->since + l->limit <= now ? l->head : NULL;
}

static void expire(struct serve_http *h)
{
    double now = clb_now();
    struct serve_timer *t;

    while ((t = expired(&h->fresh, now)))
        serve_gate_close(t->owner);
    while ((t = expired(&h->idle, now)) || (t = expired(&h->half, now))) {
        serve_timer_stop(t);
        serve_conn_end(t->owner);
    }
    while ((t = expired(&h->reading, now))) {
        struct serve_conn *c = t->owner;
        serve_timer_stop(t);
        serve_listen_refuse(c->fd, 408, "timeout",
                            "the request did not arrive within --read-timeout");
        serve_conn_end(c);
    }
    while ((t = expired(&h->writing, now))) {
        serve_timer_stop(t);
        serve_conn_end(t->owner);
    }
    while ((t = expired(&h->whole, now))) {
        serve_timer_stop(t);
        serve_request_cancel(t->owner, 504, "timeout", "no answer within --request-timeout");
    }
    while ((t = expired(&h->quiet, now))) {
        serve_timer_start(&h->quiet, t);
        serve_request_ping(t->owner);
    }
}

/* -- the end ----------------------------------------------------------------------------------- */

static void drain(struct serve_http *h)
{
    struct serve_line l;

    if (h->draining)
        return;
    h->draining = true;
    h->drain_since = clb_now();
    close(h->listener);
    h->listener = -1;
    if (h->serve->o.common.quiet)
        return;
    serve_log_begin(&l, h->serve->o.json, "drain");
    serve_log_count(&l, "requests", h->n_job);
    serve_log_end(&l);
}

/* Answers that are being written, and those that say no, still go out. */
static void take_failure(struct serve_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool failed = h->failure[0];
    pthread_mutex_unlock(&h->lock);
    if (!failed || h->failed)
        return;
    h->failed = true;
    serve_log_say(h->serve, "device_lost", "what", h->failure);
    drain(h);
}

static void take_end(struct serve_http *h, int sig)
{
    if (h->signalled) { /* the second one: at once, and as one who does not catch it */
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, sig);
        signal(sig, SIG_DFL);
        raise(sig);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        pause();
    }
    h->signalled = true;
    drain(h);
}

static void reload_keys(struct serve *s)
{
    struct serve_keys *keys;
    struct clb_err err;

    if (!s->o.key_file) {
        serve_log_say(s, "reload", "what", "nothing: there is no --api-key-file");
    } else if (serve_keys_load(&keys, s->o.key_file, &err)) {
        serve_keys_free(s->keys);
        s->keys = keys;
        serve_log_say(s, "reload", "keys", s->o.key_file);
    } else {
        serve_log_say(s, "error", "what", err.text); /* the old ones stay */
    }
}

static void take_signals(struct serve_http *h)
{
    struct signalfd_siginfo info;

    while (read(h->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP)
            reload_keys(h->serve);
        else
            take_end(h, (int)info.ssi_signo);
    }
}

/* Whether all is done. After --drain-timeout those who still wait are told so. */
static bool drained(struct serve_http *h)
{
    double limit = h->serve->o.drain_timeout;

    if (!h->draining)
        return false;
    if (!h->cancelled && limit > 0 && clb_now() - h->drain_since > limit) {
        h->cancelled = true;
        for (struct serve_timer *t = h->whole.head, *next; t; t = next) {
            next = t->next;
            serve_request_cancel(t->owner, 503, "shutting_down", "the server is shutting down");
        }
    }
    /* Connections without a request need not be waited for; answers must be written. */
    return h->n_job == 0 && !h->writing.head && !h->reading.head;
}

/* -- the loop ---------------------------------------------------------------------------------- */

static void handle(struct serve_http *h, const struct epoll_event *e)
{
    uint64_t count;

    if (e->data.ptr == &h->signals)
        take_signals(h);
    else if (e->data.ptr == &h->listener)
        serve_listen_accept(h);
    else if (e->data.ptr == &h->mail)
        (void)!eventfd_read(h->mail, &count);
    else if (e->data.ptr == &h->daemon)
        return;
    else if (((struct serve_watched *)e->data.ptr)->fresh)
        serve_gate_look(e->data.ptr, e->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
    else
        on_half(e->data.ptr); /* only that is watched for */
}

bool serve_http_run(struct serve_http *h, struct clb_err *err)
{
    struct epoll_event events[EVENTS];

    while (!drained(h)) {
        int n = epoll_wait(h->epoll, events, EVENTS, wait_ms(h));
        if (n < 0 && errno != EINTR)
            return clb_fail_sys(err, CLB_FAILED, "cannot wait for connections");
        for (int i = 0; i < n; i++)
            handle(h, &events[i]);
        take_mail(h);
        take_failure(h);
        expire(h);
        if (MHD_run(h->daemon) != MHD_YES)
            return clb_fail(err, CLB_FAILED, "the HTTP library cannot go on");
    }
    return !h->failed || clb_fail(err, CLB_DEVICE,
                                  "the GPU has failed for good: %s; start the server again",
                                  h->failure);
}

/* -- open and close ---------------------------------------------------------------------------- */

static bool add(struct serve_http *h, int fd, void *who, struct clb_err *err)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = who };

    return (fd >= 0 && epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &e) == 0) ||
           clb_fail_sys(err, CLB_FAILED, "cannot wait for events");
}

/* Paths are compared as they were sent. */
static size_t no_unescape(void *arg, struct MHD_Connection *mhd, char *text)
{
    (void)arg;
    (void)mhd;
    return strlen(text);
}

static bool start_daemon(struct serve_http *h, struct clb_err *err)
{
    const struct serve_options *o = &h->serve->o;
    /* Twice the headers, so that most of what is too long still gets an answer of ours. */
    size_t memory = 2 * o->header_limit + (32 << 10);

    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        serve_on_request, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_NOTIFY_COMPLETED, serve_on_completed, h, MHD_OPTION_UNESCAPE_CALLBACK,
        no_unescape, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->max_conn,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory, MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
        (size_t)4096, MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_END);
    if (!h->daemon)
        return clb_fail(err, CLB_FAILED, "the HTTP library cannot start");
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    return add(h, i ? i->epoll_fd : -1, &h->daemon, err);
}

static int open_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

bool serve_http_open(struct serve_http **out, struct serve *s, struct clb_err *err)
{
    struct serve_http *h = clb_new(1, sizeof *h, err);

    *out = h;
    if (!h)
        return false;
    h->serve = s;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->mail = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    h->signals = open_signals();
    h->listener = -1;
    h->fresh.limit = h->idle.limit = s->o.idle_timeout;
    h->reading.limit = s->o.read_timeout;
    h->half.limit = HALF_SECONDS;
    h->writing.limit = s->o.write_timeout;
    h->whole.limit = s->o.request_timeout;
    h->quiet.limit = s->o.ping;
    pthread_mutex_init(&h->lock, NULL);
    h->max_conn = serve_listen_limit(s->o.max_connections);
    h->n_peek = (size_t)(s->o.header_limit < MOST_PEEK ? s->o.header_limit : MOST_PEEK) + 1;
    h->peek = clb_new(h->n_peek, 1, err);
    if (!h->peek)
        return false;
    return serve_listen_open(h, err) && add(h, h->listener, &h->listener, err) &&
           add(h, h->mail, &h->mail, err) && add(h, h->signals, &h->signals, err) &&
           start_daemon(h, err);
}

void serve_http_close(struct serve_http *h)
{
    if (!h)
        return;
    take_mail(h);
    for (struct serve_timer *t = h->whole.head; t; t = t->next) /* after a failure */
        serve_conn_end(((struct serve_request *)t->owner)->conn);
    while (h->fresh.head)
        serve_gate_close(h->fresh.head->owner);
    if (h->daemon && h->n_job)
        MHD_run(h->daemon);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    int fd[] = { h->epoll, h->mail, h->signals, h->listener };
    for (int i = 0; i < 4; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    pthread_mutex_destroy(&h->lock);
    clb_free(h->peek);
    clb_free(h);
}
