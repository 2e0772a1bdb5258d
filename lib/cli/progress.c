/* The one progress line of the process. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/cli/progress_impl.h"
#include "lib/cli/report.h"

enum { BAR = 20, LINE = 200 };

static struct {
    pthread_mutex_t lock;
    atomic_bool active, shown;
    const char *what, *unit; /* unit NULL: bytes */
    uint64_t total;
    double start, drawn;
} line = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void start(const char *what, uint64_t total, const char *unit, bool quiet)
{
    const char *term = getenv("TERM");

    pthread_mutex_lock(&line.lock);
    line.what = what;
    line.unit = unit;
    line.total = total;
    line.start = clb_now();
    line.drawn = line.start + 0.8; /* the first line comes after 1 s */
    atomic_store(&line.active, !quiet && isatty(2) && term && strcmp(term, "dumb"));
    pthread_mutex_unlock(&line.lock);
}

void clb_progress_start(const char *what, uint64_t total, bool quiet)
{
    start(what, total, NULL, quiet);
}

void clb_progress_start_count(const char *what, uint64_t total, const char *unit, bool quiet)
{
    start(what, total, unit, quiet);
}

static void amount(char *buf, size_t n, uint64_t done, double rate)
{
    char a[CLB_HUMAN], b[CLB_HUMAN], r[CLB_HUMAN];

    if (line.unit && !line.total) {
        snprintf(buf, n, "  %s %s  %.*f/s", clb_human_count(a, done), line.unit, rate < 10, rate);
        return;
    }
    if (line.unit) {
        snprintf(buf, n, "  %s of %s %s  %.*f/s", clb_human_count(a, done),
                 clb_human_count(b, line.total), line.unit, rate < 10, rate);
        return;
    }
    clb_human_bytes(r, rate < 1e18 ? (uint64_t)rate : 0);
    if (line.total)
        snprintf(buf, n, "  %s of %s  %s/s", clb_human_bytes(a, done),
                 clb_human_bytes(b, line.total), r);
    else
        snprintf(buf, n, "  %s  %s/s", clb_human_bytes(a, done), r);
}

/* "converting  [#####.....]  42 %  1.2 of 2.9 GB  310 MB/s  5 s left", cut to the terminal. */
static void draw(uint64_t done, double now)
{
    char text[LINE], bar[BAR + 1], numbers[96], end[128], left[CLB_HUMAN];
    double part = line.total ? (double)done / (double)line.total : 0, spent = now - line.start;
    int width = clb_term_width(stderr);

    if (part > 1)
        part = 1;
    amount(numbers, sizeof numbers, done, (double)done / spent);
    if (line.total) {
        snprintf(end, sizeof end, " %3d %%%s  %s left", (int)(part * 100), numbers,
                 part > 0 ? clb_human_seconds(left, spent / part - spent) : "?");
        int cells =
            width - (int)strlen(line.what) - (int)strlen(end) - 5; /* the bar takes what is left */
        cells = cells < 0 ? 0 : cells > BAR ? BAR : cells;
        for (int i = 0; i < cells; i++)
            bar[i] = i < (int)(part * cells) ? '#' : '.';
        bar[cells] = '\0';
        snprintf(text, sizeof text, "%s  [%s]%s", line.what, bar, end);
    } else {
        snprintf(text, sizeof text, "%s%s", line.what, numbers);
    }
    fprintf(stderr, "\r%.*s\033[K", width > 1 ? width - 1 : 1, text);
    fflush(stderr);
    atomic_store(&line.shown, true);
}

void clb_progress_at(uint64_t done)
{
    if (!atomic_load_explicit(&line.active, memory_order_relaxed))
        return;
    double now = clb_now();
    if (pthread_mutex_trylock(&line.lock) != 0)
        return; /* another thread is drawing */
    if (now - line.drawn >= 0.2) {
        line.drawn = now;
        draw(done, now);
    }
    pthread_mutex_unlock(&line.lock);
}

void clb_progress_erase(void)
{
    if (!atomic_exchange(&line.shown, false))
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void clb_progress_done(void)
{
    pthread_mutex_lock(&line.lock);
    atomic_store(&line.active, false);
    clb_progress_erase();
    pthread_mutex_unlock(&line.lock);
}
