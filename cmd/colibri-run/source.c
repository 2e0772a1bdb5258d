#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/base/mem.h"

enum { CHUNK = 1 << 16, MOST_RECORD = 1 << 30 }; /* bytes */

bool run_source_open(struct run_source *s, const struct run_options *o, struct clb_err *err)
{
    *s = (struct run_source){ .fd = 0, .delimiter = '\n' };
    if (o->mode == RUN_ONE)
        s->delimiter = -1;
    if (o->mode == RUN_NULL)
        s->delimiter = 0;
    if (o->prompt) {
        s->fd = -1;
        s->ended = true;
        clb_text_puts(&s->buffer, o->prompt);
    }
    return !s->buffer.failed || clb_fail_nomem(err, strlen(o->prompt));
}

void run_source_close(struct run_source *s)
{
    clb_text_free(&s->buffer);
}

/* Waiting here and not in read() also serves an input that somebody made non-blocking. */
static bool readable(int fd, bool wait)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return wait ? run_wait_readable(fd) : poll(&p, 1, 0) > 0;
}

/* Reads once. RUN_RECORD: there are new bytes, or the end was reached. */
static enum run_got read_more(struct run_source *s, bool wait, struct clb_err *err)
{
    char chunk[CHUNK];

    if (!readable(s->fd, wait))
        return RUN_NOTHING_YET;
    if (s->at > 0) { /* what was given out is no longer needed */
        memmove(s->buffer.p, s->buffer.p + s->at, s->buffer.n - s->at);
        s->buffer.n -= s->at;
        s->searched -= s->at;
        s->at = 0;
    }
    ssize_t n = read(s->fd, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return RUN_NOTHING_YET;
    if (n < 0) {
        clb_fail_sys(err, CLB_BAD_INPUT, "<stdin>: cannot be read");
        return RUN_READ_FAILED;
    }
    if (s->buffer.n + (size_t)n > MOST_RECORD) { /* /dev/zero, say: before all memory is gone */
        clb_fail(err, CLB_BAD_INPUT, "<stdin>: a prompt is longer than 1 GiB");
        return RUN_READ_FAILED;
    }
    s->ended = n == 0;
    clb_text_add(&s->buffer, chunk, (size_t)n);
    if (s->buffer.failed) {
        clb_fail_nomem(err, s->buffer.n + (size_t)n);
        return RUN_READ_FAILED;
    }
    return RUN_RECORD;
}

/* A record that ends in a delimiter, or the rest of the input. */
static bool take(struct run_source *s, struct clb_str *record)
{
    const char *start = s->buffer.p + s->at, *end = NULL;

    if (s->delimiter >= 0 && s->buffer.n > s->searched)
        end = memchr(s->buffer.p + s->searched, s->delimiter, s->buffer.n - s->searched);
    if (end) {
        *record = (struct clb_str){ start, (size_t)(end - start) };
        s->at = s->searched = (size_t)(end - s->buffer.p) + 1;
        return true;
    }
    s->searched = s->buffer.n;
    if (!s->ended || s->given || (s->delimiter >= 0 && s->at == s->buffer.n))
        return false;
    *record = (struct clb_str){ s->buffer.n ? start : "", s->buffer.n - s->at };
    s->at = s->buffer.n;
    s->given = true;
    return true;
}

enum run_got run_source_next(struct run_source *s, bool wait, struct clb_str *record,
                             struct clb_err *err)
{
    for (;;) {
        if (take(s, record))
            return RUN_RECORD;
        if (s->ended)
            return RUN_END;
        enum run_got got = read_more(s, wait, err);
        if (got != RUN_RECORD)
            return got;
    }
}

static uint64_t count_in(const char *p, size_t n, int delimiter)
{
    uint64_t count = 0;

    for (const char *end = p + n; p < end && (p = memchr(p, delimiter, (size_t)(end - p))); p++)
        count++;
    return count;
}

uint64_t run_source_count(const struct run_source *s)
{
    char chunk[CHUNK], last = (char)s->delimiter;
    struct stat st;
    uint64_t count = 0;
    off_t at = s->fd < 0 ? -1 : lseek(s->fd, 0, SEEK_CUR);

    if (s->delimiter < 0)
        return 1;
    if (s->fd < 0) {
        bool open_end = s->buffer.n && s->buffer.p[s->buffer.n - 1] != s->delimiter;
        return s->buffer.n ? count_in(s->buffer.p, s->buffer.n, s->delimiter) + open_end : 0;
    }
    if (at < 0 || fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    for (ssize_t n; (n = pread(s->fd, chunk, sizeof chunk, at)) > 0; at += n) {
        count += count_in(chunk, (size_t)n, s->delimiter);
        last = chunk[n - 1];
    }
    return count + (last != (char)s->delimiter);
}
