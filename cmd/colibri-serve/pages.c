#include <inttypes.h>
#include <stdio.h>

#include "cmd/colibri-serve/http.h"
#include "cmd/colibri-serve/page.h"
#include "lib/base/clock.h"

void serve_page_start(struct serve_request *q)
{
    q->type = "text/html; charset=utf-8";
    q->secure_page = true;
    for (int i = 0; serve_page[i]; i++)
        clb_text_puts(&q->out, serve_page[i]);
}

void serve_page_health(struct serve_request *q)
{
    const struct serve_http *h = q->conn->http;

    q->status = h->draining ? 503 : 200;
    clb_text_printf(&q->out, "{\"status\":\"%s\"",
                    h->failed     ? "device_lost"
                    : h->draining ? "draining"
                                  : "ok");
    if (h->failed) {
        clb_text_puts(&q->out, ",\"reason\":");
        clb_text_json(&q->out, h->failure, strlen(h->failure));
    }
    clb_text_puts(&q->out, "}\n");
}

static void put_model(struct clb_text *t, const struct serve *s)
{
    clb_text_puts(t, "{\"id\":");
    clb_text_json(t, s->name, strlen(s->name));
    clb_text_printf(t,
                    ",\"object\":\"model\",\"created\":%" PRId64
                    ",\"owned_by\":\"colibri\",\"max_model_len\":%u,\"vocab_size\":%u,"
                    "\"experts\":%u,\"experts_per_token\":%u,\"parameters\":%" PRIu64
                    ",\"active_parameters\":%" PRIu64 ",\"chat\":%s}",
                    s->created, s->context, s->info.vocab_size, s->info.n_expert,
                    s->info.experts_per_token, s->info.parameters, s->info.active_parameters,
                    s->info.has_chat_template ? "true" : "false");
}

void serve_page_models(struct serve_request *q)
{
    clb_text_puts(&q->out, "{\"object\":\"list\",\"data\":[");
    put_model(&q->out, q->serve);
    clb_text_puts(&q->out, "]}\n");
}

/* Whether a part of a path, which may have %41 for A, is the text. */
static bool path_is(const char *path, const char *text)
{
    unsigned code;
    int n;

    for (; *path && *text; text++)
        if (path[0] == '%' && sscanf(path + 1, "%2x%n", &code, &n) == 1 && n == 2) {
            if (code != (unsigned char)*text)
                return false;
            path += 3;
        } else if (*path++ != *text) {
            return false;
        }
    return !*path && !*text;
}

void serve_page_model(struct serve_request *q)
{
    if (!path_is(q->path + strlen("/v1/models/"), q->serve->name)) {
        serve_refuse(&q->no, 404, "model_not_found", "the model does not exist here; '%.200s' does",
                     q->serve->name);
        snprintf(q->no.param, sizeof q->no.param, "model");
        return;
    }
    put_model(&q->out, q->serve);
    clb_text_puts(&q->out, "\n");
}

void serve_page_metrics(struct serve_request *q)
{
    q->type = "text/plain; version=0.0.4; charset=utf-8";
    serve_metrics_print(&q->out, q->serve);
}
