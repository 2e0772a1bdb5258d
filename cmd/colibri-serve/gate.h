/* gate.h - connections until their first header is there.
 *
 * libmicrohttpd answers what it cannot parse by itself, with pages of HTML, and sometimes not at
 * all. So the first header of a connection is looked at before it gets the connection: who speaks
 * something else (TLS, most often) is told so at once. Bytes stay in the socket meanwhile. */
#ifndef CMD_COLIBRI_SERVE_GATE_H
#define CMD_COLIBRI_SERVE_GATE_H

#include <sys/socket.h>

#include "cmd/colibri-serve/http.h"

struct serve_fresh {
    struct serve_watched watched; /* first */
    struct serve_http *http;
    int fd;
    struct serve_timer timer;
    struct sockaddr_storage address;
    socklen_t n_address;
};

/* What is to be said about the first n bytes: 0 nothing; 1 more must come; else a status, with a
 * reason. `limit`: of the header. */
unsigned serve_gate_judge(const char *head, size_t n, size_t limit, const char **why);

/* Takes the socket over. */
void serve_gate_enter(struct serve_http *h, int fd, const struct sockaddr_storage *address,
                      socklen_t n_address);
/* There are more bytes, or with `ended` there will be none. */
void serve_gate_look(struct serve_fresh *f, bool ended);
/* Closes it; `f` is gone. */
void serve_gate_close(struct serve_fresh *f);

#endif
