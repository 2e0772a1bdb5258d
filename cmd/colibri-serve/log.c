#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cmd/colibri-serve/serve.h"

static void put_key(struct serve_line *l, const char *key)
{
    if (l->json)
        clb_text_printf(&l->text, "%s\"%s\":", l->text.n ? "," : "{", key);
    else
        clb_text_printf(&l->text, "%s%s=", l->text.n ? " " : "", key);
}

void serve_log_begin(struct serve_line *l, bool json, const char *event)
{
    char stamp[32];
    struct timespec now;
    struct tm utc;

    *l = (struct serve_line){ .json = json };
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + n, sizeof stamp - n, ".%03ldZ", now.tv_nsec / 1000000);
    serve_log_text(l, "time", clb_str(stamp));
    serve_log_text(l, "event", clb_str(event));
}

/* A word stands as it is; anything else is written as a JSON string. */
static bool is_word(struct clb_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] > '~' || s.p[i] == '"' || s.p[i] == '=' || s.p[i] == '\\')
            return false;
    return s.n > 0;
}

void serve_log_text(struct serve_line *l, const char *key, struct clb_str value)
{
    put_key(l, key);
    if (!l->json && is_word(value))
        clb_text_add(&l->text, value.p, value.n);
    else
        clb_text_json(&l->text, value.p, value.n);
}

void serve_log_count(struct serve_line *l, const char *key, uint64_t value)
{
    put_key(l, key);
    clb_text_printf(&l->text, "%llu", (unsigned long long)value);
}

void serve_log_ms(struct serve_line *l, const char *key, double seconds)
{
    put_key(l, key);
    clb_text_printf(&l->text, "%.3f", seconds > 0 ? seconds * 1e3 : 0);
}

void serve_log_end(struct serve_line *l)
{
    clb_text_puts(&l->text, l->json ? "}\n" : "\n");
    /* In one write, so that lines of threads do not mix; who reads them may have gone. */
    for (size_t at = 0; !l->text.failed && at < l->text.n;) {
        ssize_t n = write(2, l->text.p + at, l->text.n - at);
        if (n < 0 && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    clb_text_free(&l->text);
}

void serve_log_say(const struct serve *s, const char *event, const char *key, const char *value)
{
    struct serve_line l;

    serve_log_begin(&l, s->o.json, event);
    serve_log_text(&l, key, clb_str(value));
    serve_log_end(&l);
}
