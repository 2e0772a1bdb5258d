/* What the header of a request says, before its body is looked at.
 *
 * A proxy in front may read a header in another way than we do, and then the two disagree about
 * where a request ends: what is not plain is refused, and the connection closed. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "cmd/colibri-serve/http.h"

/* A longer body is not waited for only to refuse it. */
enum { MOST_DROPPED = 1 << 30 };

const char *serve_header(const struct serve_request *q, const char *name)
{
    return MHD_lookup_connection_value(q->conn->mhd, MHD_HEADER_KIND, name);
}

const char *serve_path_of(const char *url)
{
    size_t scheme = !strncasecmp(url, "http://", 7) ? 7 : !strncasecmp(url, "https://", 8) ? 8 : 0;

    if (scheme == 0)
        return url;
    const char *path = strchr(url + scheme, '/');
    return path ? path : "/";
}

/* -- form -------------------------------------------------------------------------------------- */

struct fields {
    unsigned host, length, coding;
    const char *wrong; /* a name or value that no header has */
};

static bool is_name(struct clb_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!isalnum((unsigned char)s.p[i]) && !(s.p[i] && strchr("!#$%&'*+-.^_`|~", s.p[i])))
            return false;
    return s.n > 0;
}

static bool is_value(struct clb_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (((unsigned char)s.p[i] < ' ' && s.p[i] != '\t') || s.p[i] == 0x7f)
            return false;
    return true;
}

static enum MHD_Result look_at(void *arg, enum MHD_ValueKind kind, const char *name, size_t n_name,
                               const char *value, size_t n_value)
{
    struct fields *f = arg;

    (void)kind;
    if (!is_name((struct clb_str){ name, n_name }))
        f->wrong = "the header has a name with a byte that no name has";
    else if (!is_value((struct clb_str){ value ? value : "", n_value }))
        f->wrong = "the header has a value with a control character";
    f->host += !strcasecmp(name, "Host");
    f->length += !strcasecmp(name, "Content-Length");
    f->coding += !strcasecmp(name, "Transfer-Encoding");
    return MHD_YES;
}

static const char *what_is_wrong(const struct serve_request *q, bool old)
{
    struct fields f = { 0 };

    MHD_get_connection_values_n(q->conn->mhd, MHD_HEADER_KIND, look_at, &f);
    return f.wrong                    ? f.wrong
           : f.length > 1             ? "there is more than one Content-Length"
           : f.length > 0 && f.coding ? "there are both Content-Length and Transfer-Encoding"
           : f.coding > 1             ? "there is more than one Transfer-Encoding"
           : f.coding > 0 && old      ? "HTTP/1.0 has no Transfer-Encoding"
           : f.host > 1               ? "there is more than one Host"
           : f.host == 0 && !old      ? "there is no Host"
                                      : NULL;
}

static bool check_form(struct serve_request *q, const char *version)
{
    const char *wrong = what_is_wrong(q, !strcmp(version, MHD_HTTP_VERSION_1_0));
    const char *coding = serve_header(q, MHD_HTTP_HEADER_TRANSFER_ENCODING),
               *content = serve_header(q, MHD_HTTP_HEADER_CONTENT_ENCODING);

    q->close = true;
    if (wrong)
        return serve_refuse(&q->no, 400, "bad_header", "%s", wrong);
    if (coding && strcasecmp(coding, "chunked")) /* the end of the body cannot be found */
        return serve_refuse(&q->no, 501, "unknown_encoding",
                            "Transfer-Encoding: '%.100s' is not supported; only 'chunked' is",
                            coding);
    q->close = false;
    if (content && strcasecmp(content, "identity"))
        return serve_refuse(&q->no, 415, "unknown_encoding",
                            "Content-Encoding: '%.100s' is not supported", content);
    return true;
}

/* -- who and how much -------------------------------------------------------------------------- */

/* An address, or localhost: a name could be made to lead here by whoever owns it. */
static bool is_address(const char *host)
{
    size_t name = strcspn(host, ":");

    return host[0] == '[' || (name == 9 && !strncasecmp(host, "localhost", 9)) ||
           strspn(host, "0123456789.") == name;
}

/* A page of another site must not ask unless it was allowed to: browsers send its origin along. */
static bool check_origin(struct serve_request *q)
{
    const char *origin = serve_header(q, "Origin"), *host = serve_header(q, "Host");
    const struct clb_opt_list *allowed = &q->serve->o.origins;

    if (!origin)
        return true;
    const char *name = strstr(origin, "://");
    bool own = name && host && !strcasecmp(name + 3, host) && is_address(host);
    for (uint32_t i = 0; i < allowed->n; i++)
        own |= !strcmp(allowed->value[i], "*") || !strcasecmp(allowed->value[i], origin);
    if (!own || strlen(origin) >= sizeof q->origin)
        return serve_refuse(&q->no, 403, "origin",
                            "pages of this origin may not ask; see --allow-origin");
    snprintf(q->origin, sizeof q->origin, "%s", origin);
    return true;
}

static bool check_size(struct serve_request *q, const char *path)
{
    const struct serve_options *o = &q->serve->o;
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(q->conn->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *length = serve_header(q, MHD_HTTP_HEADER_CONTENT_LENGTH);

    if (strlen(path) > o->header_limit / 2)
        return serve_refuse(&q->no, 414, "uri_too_long", "the path has %zu bytes", strlen(path));
    if (i && i->header_size > o->header_limit)
        return serve_refuse(&q->no, 431, "header_too_large",
                            "the header has %zu bytes; --header-limit is %llu", i->header_size,
                            (unsigned long long)o->header_limit);
    if (strcmp(q->method, "POST"))
        return true;
    if (!length && !serve_header(q, MHD_HTTP_HEADER_TRANSFER_ENCODING))
        return serve_refuse(&q->no, 411, "length_required",
                            "there is neither Content-Length nor Transfer-Encoding");
    uint64_t bytes = length ? strtoull(length, NULL, 10) : 0;
    q->close = bytes > MOST_DROPPED;
    if (bytes > o->body_limit)
        return serve_refuse(&q->no, 413, "body_too_large",
                            "the body has %.20s bytes; --body-limit is %llu", length,
                            (unsigned long long)o->body_limit);
    return true;
}

bool serve_head_check(struct serve_request *q, const char *path, const char *version)
{
    return check_form(q, version) && check_origin(q) && check_size(q, path);
}
