/* listen.h - the listening socket, and connections before libmicrohttpd has them. */
#ifndef CMD_COLIBRI_SERVE_LISTEN_H
#define CMD_COLIBRI_SERVE_LISTEN_H

#include "cmd/colibri-serve/http.h"

/* Raises the limit of files to the hard one and says how many connections there can be: `wanted`,
 * or as many as files are left; never more than those. */
uint32_t serve_listen_limit(uint32_t wanted);
/* Listens on --host and --port; h->listener and h->port. */
bool serve_listen_open(struct serve_http *h, struct clb_err *err);
/* Takes all connections that wait; who is too many gets 503. */
void serve_listen_accept(struct serve_http *h);
/* Writes an error to a socket on which nothing was written yet, as far as it takes it at once. */
void serve_listen_refuse(int fd, unsigned status, const char *code, const char *why);
/* "127.0.0.1:1234", "[::1]:1234" of the other end. */
void serve_listen_name(int fd, char *name, size_t room);

#endif
