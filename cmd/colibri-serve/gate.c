#include "cmd/colibri-serve/gate.h"

#include <ctype.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cmd/colibri-serve/listen.h"
#include "lib/base/mem.h"

/* More arguments of a path, cookies or fields than that are nothing that a client of ours sends. */
enum { PASS = 0, WAIT = 1, MOST_PARTS = 200, MOST_FIELDS = 400, DIGITS = 19 };

static const char not_http[] = "this is not HTTP/1.1";

/* -- the first header -------------------------------------------------------------------------- */

/* The bytes before a line end at or behind `from`; NULL: there is none yet. */
static const char *line_end(const char *from, const char *end, struct clb_str *line)
{
    const char *lf = memchr(from, '\n', (size_t)(end - from));

    if (!lf)
        return NULL;
    size_t n = (size_t)(lf - from);
    *line = (struct clb_str){ from, n - (n > 0 && from[n - 1] == '\r') };
    return lf + 1;
}

static unsigned refuse(unsigned status, const char **why, const char *text)
{
    *why = text;
    return status;
}

static size_t count(struct clb_str s, char c)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += s.p[i] == c;
    return n;
}

/* "GET /path HTTP/1.1" */
static unsigned judge_request(struct clb_str line, const char **why)
{
    const char *target = memchr(line.p, ' ', line.n), *last = memrchr(line.p, ' ', line.n);

    if (!target || target == line.p || target + 1 >= last)
        return refuse(400, why, not_http);
    struct clb_str version = { last + 1, (size_t)(line.p + line.n - last - 1) };
    if (version.n != 8 || memcmp(version.p, "HTTP/", 5) || version.p[6] != '.')
        return refuse(400, why, not_http);
    if (version.p[5] != '1' || !isdigit((unsigned char)version.p[7]))
        return refuse(505, why, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    if (count(line, '&') > MOST_PARTS)
        return refuse(414, why, "the path has too many arguments");
    return PASS;
}

static bool is_field(struct clb_str line, const char *name)
{
    size_t n = strlen(name);

    return line.n > n && !strncasecmp(line.p, name, n) && line.p[n] == ':';
}

static unsigned judge_length(struct clb_str line, const char **why)
{
    const char *p = line.p + sizeof "Content-Length", *end = line.p + line.n;

    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    for (const char *c = p; c < end; c++)
        if (!isdigit((unsigned char)*c))
            return refuse(400, why, "Content-Length is not a number");
    if (p == end)
        return refuse(400, why, "Content-Length is not a number");
    return end - p > DIGITS ? refuse(413, why, "Content-Length is more than a body can have")
                            : PASS;
}

static unsigned judge_field(struct clb_str line, const char **why)
{
    if (memchr(line.p, '\0', line.n))
        return refuse(400, why, "the header has a byte 0");
    if (line.p[0] == ' ' || line.p[0] == '\t')
        return refuse(400, why, "a line of the header begins with a space");
    if (!memchr(line.p, ':', line.n))
        return refuse(400, why, "a line of the header has no colon");
    if (is_field(line, "Content-Length"))
        return judge_length(line, why);
    if (is_field(line, "Cookie") && count(line, ';') > MOST_PARTS)
        return refuse(431, why, "too many cookies");
    return PASS;
}

/* Whether bytes that are not a line yet may become one of a request. */
static bool may_be_request(const char *p, const char *end)
{
    while (p < end && (isalnum((unsigned char)*p) || *p == '-' || *p == '_'))
        p++;
    return p == end || *p == ' ';
}

unsigned serve_gate_judge(const char *head, size_t n, size_t limit, const char **why)
{
    const char *p = head, *end = head + n;
    struct clb_str line;

    while (p < end && (*p == '\r' || *p == '\n'))
        p++;
    if (p < end && *p == 0x16)
        return refuse(400, why,
                      "this is TLS, but here is plain HTTP: the address begins with http://");
    if (!may_be_request(p, end))
        return refuse(400, why, not_http);
    p = line_end(p, end, &line);
    if (!p && n > limit)
        return refuse(414, why, "the path is longer than --header-limit");
    unsigned status = p ? judge_request(line, why) : PASS, n_field = 0;
    while (p && status == PASS && (p = line_end(p, end, &line)) && line.n > 0) {
        status = judge_field(line, why);
        if (status == PASS && ++n_field > MOST_FIELDS)
            status = refuse(431, why, "the header has too many fields");
    }
    if (status != PASS || p)
        return status;
    return n > limit ? refuse(431, why, "the header is longer than --header-limit") : WAIT;
}

/* -- connections ------------------------------------------------------------------------------- */

static void say_no(struct serve_fresh *f, unsigned status, const char *why)
{
    const struct serve *s = f->http->serve;
    char client[64];
    struct serve_line l;

    serve_listen_refuse(f->fd, status, "bad_request", why);
    serve_metrics_status(s->metrics, status);
    if (s->o.common.quiet)
        return;
    serve_listen_name(f->fd, client, sizeof client);
    serve_log_begin(&l, s->o.json, "request");
    serve_log_text(&l, "client", clb_str(client));
    serve_log_count(&l, "status", status);
    serve_log_text(&l, "error", clb_str(why));
    serve_log_end(&l);
}

static void forget(struct serve_fresh *f)
{
    serve_timer_stop(&f->timer);
    f->http->n_fresh--;
    clb_free(f);
}

void serve_gate_close(struct serve_fresh *f)
{
    close(f->fd);
    forget(f);
}

static void hand_over(struct serve_fresh *f)
{
    struct serve_http *h = f->http;

    epoll_ctl(h->epoll, EPOLL_CTL_DEL, f->fd, NULL);
    if (MHD_add_connection(h->daemon, f->fd, (struct sockaddr *)&f->address, f->n_address) !=
        MHD_YES)
        serve_log_say(h->serve, "error", "what", "a connection could not be taken");
    forget(f);
}

void serve_gate_look(struct serve_fresh *f, bool ended)
{
    struct serve_http *h = f->http;
    const char *why = NULL;
    ssize_t n = recv(f->fd, h->peek, h->n_peek, MSG_PEEK | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    unsigned status =
        n > 0 ? serve_gate_judge(h->peek, (size_t)n, h->serve->o.header_limit, &why) : WAIT;
    if (status == PASS || (status == WAIT && n == (ssize_t)h->n_peek)) { /* long, but it may be */
        hand_over(f);
    } else if (status != WAIT) {
        say_no(f, status, why);
        serve_gate_close(f);
    } else if (n <= 0 || ended) {
        serve_gate_close(f);
    }
}

void serve_gate_enter(struct serve_http *h, int fd, const struct sockaddr_storage *address,
                      socklen_t n_address)
{
    struct clb_err err;
    struct serve_fresh *f = clb_new(1, sizeof *f, &err);
    struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = f };

    if (!f) {
        close(fd);
        return;
    }
    *f = (struct serve_fresh){ .watched = { .fresh = true },
                               .http = h,
                               .fd = fd,
                               .timer = { .owner = f },
                               .address = *address,
                               .n_address = n_address };
    h->n_fresh++;
    serve_timer_start(&h->fresh, &f->timer);
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        serve_gate_close(f);
}
