/* --logits FILE: the rows of the prompts one after the other, though they are computed side by
 * side. The first unfinished prompt writes to the file; those behind it write to files without a
 * name. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/colibri-run/run.h"

bool run_logits_open(struct run *r, struct clb_err *err)
{
    r->logits.row_bytes = (size_t)r->info.vocab_size * sizeof(float);
    return clb_outfile_open(&r->logits.file, r->o.logits, true, 0, err);
}

/* Beside the output, where there must be room anyway. */
static int nameless_file(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 0;
    FILE *f;

    snprintf(folder, sizeof folder, "%.*s", n ? n : 1, n ? path : ".");
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || !(f = tmpfile()))
        return fd;
    fd = fcntl(fileno(f), F_DUPFD_CLOEXEC, 0);
    fclose(f);
    return fd;
}

void run_logits_row(void *arg, size_t position, const float *logits)
{
    struct run_job *job = arg;
    struct run *r = job->run;
    struct run_logits *l = &r->logits;

    (void)position; /* rows come in order */
    if (l->err.code != CLB_OK)
        return;
    if (job == r->head) {
        if (run_logits_turn(job, &l->err))
            clb_outfile_write(&l->file, logits, l->row_bytes, &l->err);
        return;
    }
    if (job->spill < 0 && (job->spill = nameless_file(r->o.logits)) < 0) {
        clb_fail_sys(&l->err, CLB_FAILED, "%s: no temporary file for its rows", r->o.logits);
        return;
    }
    clb_write_all(job->spill, logits, l->row_bytes, r->o.logits, &l->err);
}

bool run_logits_turn(struct run_job *job, struct clb_err *err)
{
    char chunk[1 << 16];
    ssize_t n;

    if (job->spill < 0)
        return true;
    if (lseek(job->spill, 0, SEEK_SET) != 0)
        return clb_fail_sys(err, CLB_FAILED, "%s: its temporary file", job->run->o.logits);
    while ((n = read(job->spill, chunk, sizeof chunk)) > 0)
        if (!clb_outfile_write(&job->run->logits.file, chunk, (size_t)n, err))
            return false;
    close(job->spill);
    job->spill = -1;
    return n == 0 || clb_fail_sys(err, CLB_FAILED, "%s: its temporary file", job->run->o.logits);
}
