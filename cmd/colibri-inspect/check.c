/* check.c - --verify: every byte of the file. */
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/base/clock.h"
#include "lib/cli/report.h"

struct check {
    const struct clb_reader *r;
    const struct inspect_options *o;
    uint64_t done, blocks, damaged;
    struct clb_text list; /* of damaged blocks: one line each, or JSON */
};

static void each(void *arg, const char *what, uint64_t offset, uint64_t size, bool ok)
{
    struct check *c = arg;

    c->blocks++;
    c->done += size;
    clb_progress_at(c->done);
    if (ok)
        return;
    if (c->o->json) {
        clb_text_puts(&c->list, c->damaged ? "," : "");
        clb_text_puts(&c->list, "{\"what\":");
        clb_text_json(&c->list, what, strlen(what));
        clb_text_printf(&c->list, ",\"offset\":%llu,\"size\":%llu}", (unsigned long long)offset,
                        (unsigned long long)size);
    } else {
        clb_text_printf(&c->list, "  %s, %llu bytes at offset %llu\n", what,
                        (unsigned long long)size, (unsigned long long)offset);
    }
    c->damaged++;
}

static void say(const struct check *c, double seconds)
{
    char size[CLB_HUMAN], speed[CLB_HUMAN], name[INSPECT_PATH];

    if (c->o->json) {
        printf("{\"file\":");
        struct clb_text file = { 0 };
        clb_text_json(&file, c->r->path, strlen(c->r->path));
        printf("%s,\"ok\":%s,\"bytes\":%llu,\"blocks\":%llu,\"seconds\":%.6f,\"damaged\":[%s]}\n",
               file.p ? file.p : "null", c->damaged ? "false" : "true",
               (unsigned long long)c->r->size, (unsigned long long)c->blocks, seconds,
               c->list.p ? c->list.p : "");
        clb_text_free(&file);
    } else if (!c->damaged) {
        if (!c->o->quiet)
            printf(
                "%s: ok, %llu blocks, %s, %s/s\n", inspect_name(name, c->r),
                (unsigned long long)c->blocks, clb_human_bytes(size, c->r->size),
                clb_human_bytes(speed, (uint64_t)(seconds > 0 ? (double)c->r->size / seconds : 0)));
    } else if (c->damaged > 1) { /* a single one is what the error says */
        printf("%s: %llu of %llu blocks are damaged:\n%s", inspect_name(name, c->r),
               (unsigned long long)c->damaged, (unsigned long long)c->blocks,
               c->list.p ? c->list.p : "");
    }
}

bool inspect_verify(const struct clb_reader *r, const struct inspect_options *o,
                    struct clb_err *err)
{
    struct check c = { .r = r, .o = o };
    double start = clb_now();

    clb_progress_start("verifying", r->size, o->quiet);
    bool ok = clb_reader_verify(r, each, &c, err);
    clb_progress_done();
    if (ok || c.damaged)
        say(&c, clb_now() - start);
    clb_text_free(&c.list);
    return ok;
}
