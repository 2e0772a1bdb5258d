/* report.h - messages for people on stderr, and exit statuses. The only place that maps errors to
 * statuses. */
#ifndef CLB_CLI_REPORT_H
#define CLB_CLI_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/err.h"
#include "lib/base/human.h"

/* "NAME: text", control characters replaced by '?', on stderr; a progress line is erased first. Two
 * times -v adds the site. */
void clb_report(const char *program, const struct clb_err *err, int verbose);
/* The same for what is wrong with a command line: --help is named, too, and the status returned. */
int clb_refuse(const char *program, const struct clb_err *err, int verbose);
/* 0, 1 (FAILED, DEVICE, CANCELLED), 2, 3 (BAD_INPUT, UNSUPPORTED), 4. Takes enum clb_code or
 * COLIBRI_* numbers. */
int clb_exit_status(int code);
/* Writes to stdout, at once with `flush`. A reader that went away kills us with SIGPIPE, as usual;
 * other failures (a full disk) fill err, and then the program ends without clb_finish. A progress
 * line is erased first. */
bool clb_stdout_write(const void *bytes, size_t n, bool flush, struct clb_err *err);
/* Flushes and closes stdout; on failure prints "NAME: cannot write to standard output: ..." and
 * returns the status to exit with (1; 4 when the disk is full), else `status`. Call as the last
 * thing of main. EPIPE dies of SIGPIPE before that. */
int clb_finish(const char *program, int status);
/* Text from outside: invalid UTF-8 and control characters come out as '?'. */
void clb_put_safe(FILE *f, const char *s);
/* Each line of a text, in the same way, behind `before`. */
void clb_put_lines(FILE *f, const char *before, const char *lines);
void clb_warn(const char *program, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Like clb_human_bytes: "3,456", "12.3 ms", "1m 20s". */
const char *clb_human_count(char buf[static CLB_HUMAN], uint64_t n);
const char *clb_human_seconds(char buf[static CLB_HUMAN], double s);

/* Terminal: width of stderr's or stdout's terminal (80 when unknown); colour only on a terminal
 * without NO_COLOR and TERM=dumb. */
int clb_term_width(FILE *f);
bool clb_term_colour(FILE *f);
/* Display columns of a UTF-8 text (wide characters count 2, combining 0; approximate is fine). */
int clb_text_columns(const char *s);

/* Progress: one line on stderr, only on a terminal, after 1 s, at most 5 a second, erased by done
 * and before messages. "converting  [#####.....]  42 %  1.2 of 2.9 GB  310 MB/s  5 s left". total
 * 0: unknown. Thread safe. */
void clb_progress_start(const char *what, uint64_t total, bool quiet);
/* The same for other things than bytes: "running  [##...] 42 %  12 of 30 prompts  3.2/s". */
void clb_progress_start_count(const char *what, uint64_t total, const char *unit, bool quiet);
void clb_progress_at(uint64_t done);
void clb_progress_done(void);

#endif
