#include "cmd/colibri-serve/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmd/colibri-serve/gate.h"

/* Files that are not connections, and room to refuse those that are too many. */
enum { OTHER_FILES = 64, AT_ONCE = 64, BACKLOG = 4096, MOST_WASTE = 256 };

uint32_t serve_listen_limit(uint32_t wanted)
{
    struct rlimit r;
    uint64_t most = 1024;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
        if (getrlimit(RLIMIT_NOFILE, &r) == 0)
            most = r.rlim_cur == RLIM_INFINITY ? UINT32_MAX : r.rlim_cur;
    }
    most = most > 2 * OTHER_FILES ? most - OTHER_FILES : most / 2;
    if (most > 1000000)
        most = 1000000;
    return wanted && wanted < most ? wanted : (uint32_t)most;
}

void serve_listen_name(int fd, char *name, size_t room)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[INET6_ADDRSTRLEN], port[8];

    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(name, room, "-");
    else
        snprintf(name, room, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static int listen_at(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    int on = 1;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int sys = errno;
    close(fd);
    errno = sys;
    return -1;
}

bool serve_listen_open(struct serve_http *h, struct clb_err *err)
{
    const struct serve_options *o = &h->serve->o;
    const struct addrinfo want = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char port[16], number[16];

    snprintf(port, sizeof port, "%u", o->port);
    int code = getaddrinfo(o->host, port, &want, &found);
    if (code != 0)
        return clb_fail(err, CLB_USAGE, "--host: '%s': %s", o->host, gai_strerror(code));
    for (struct addrinfo *i = found; i && h->listener < 0; i = i->ai_next)
        h->listener = listen_at(i);
    int sys = errno;
    freeaddrinfo(found);
    errno = sys;
    if (h->listener < 0)
        return clb_fail_sys(err, CLB_FAILED, "cannot listen on %s, port %u", o->host, o->port);
    if (getsockname(h->listener, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, number, sizeof number, NI_NUMERICSERV) != 0)
        return clb_fail_sys(err, CLB_FAILED, "cannot tell the port");
    h->port = (uint16_t)strtoul(number, NULL, 10);
    return true;
}

void serve_listen_refuse(int fd, unsigned status, const char *code, const char *why)
{
    struct serve_refusal no;
    struct clb_text body = { 0 }, all = { 0 };
    char waste[4096];

    serve_refuse(&no, status, code, "%s", why);
    clb_text_puts(&body, "{\"error\":");
    serve_refusal_json(&body, &no);
    clb_text_puts(&body, "}\n");
    clb_text_printf(&all,
                    "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                    "%sConnection: close\r\n\r\n%s",
                    status, MHD_get_reason_phrase_for(status), body.n,
                    status == 503 ? "Retry-After: 1\r\n" : "", body.failed ? "" : body.p);
    /* What it has sent must be taken, or closing resets the connection and the answer is lost; but
     * who sends without end is not waited for. */
    for (int i = 0; i < MOST_WASTE && recv(fd, waste, sizeof waste, MSG_DONTWAIT) > 0; i++)
        ;
    if (!all.failed && send(fd, all.p, all.n, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        shutdown(fd, SHUT_WR);
    clb_text_free(&body);
    clb_text_free(&all);
}

void serve_listen_accept(struct serve_http *h)
{
    struct sockaddr_storage a;
    int on = 1;

    for (int i = 0; i < AT_ONCE; i++) { /* the others' turn comes, too */
        socklen_t n = sizeof a;
        int fd = accept4(h->listener, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return; /* none is left, or no file is: then it stays where it is for now */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (h->n_conn + h->n_fresh >= h->max_conn) {
            serve_listen_refuse(fd, 503, "too_many_connections", "too many connections");
            close(fd);
        } else {
            serve_gate_enter(h, fd, &a, n);
        }
    }
}
