#include "lib/cli/report.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/check.h"

/* Runs fn in a child with stdout on `out` and stderr caught; returns the wait status. */
static int in_child(void (*fn)(void), const char *out, char *said, size_t n)
{
    int fd[2], status;

    fflush(stdout);
    if (pipe(fd) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        int o = open(out, O_WRONLY);
        dup2(o, 1);
        dup2(fd[1], 2);
        close(fd[1]);
        fn();
        _exit(0);
    }
    close(fd[1]);
    ssize_t got = 0, k;
    while ((k = read(fd[0], said + got, n - 1 - (size_t)got)) > 0)
        got += k;
    said[got] = '\0';
    close(fd[0]);
    waitpid(child, &status, 0);
    return status;
}

static void report_hostile(void)
{
    struct clb_err err;

    clb_fail(&err, CLB_BAD_INPUT, "a\nb\x1b[31m\xff\xc2\x9b \xc3\xa9");
    clb_report("p", &err, 0);
    clb_fail_at(&err, CLB_FAILED, "x.c:1", "why");
    clb_report("p", &err, 1);
    clb_report("p", &err, 2);
    clb_warn("p", "%d %s", 3, "things");
}

static void test_report(void)
{
    char said[500];

    CHECK_EQ(in_child(report_hostile, "/dev/null", said, sizeof said), 0);
    CHECK_STR(said, "p: a?b?[31m?? \xc3\xa9\np: why\np: why [x.c:1]\np: 3 things\n");
}

static void test_status(void)
{
    static const int want[] = { 0, 1, 2, 3, 4, 3, 1, 1 };

    for (int c = 0; c < 8; c++)
        CHECK_EQ(clb_exit_status(c), want[c]);
    CHECK_EQ(clb_exit_status(99), 1);
}

static void finish_full(void)
{
    printf("text\n");
    _exit(clb_finish("p", 0));
}

static void finish_good(void)
{
    printf("text\n");
    _exit(clb_finish("p", 3));
}

static void finish_closed(void)
{
    printf("text\n");
    close(1);
    _exit(clb_finish("p", 0));
}

static void finish_pipe(void)
{
    int fd[2];

    signal(SIGPIPE, SIG_IGN); /* as some parents leave it */
    if (pipe(fd) == 0)
        dup2(fd[1], 1);
    close(fd[0]);
    close(fd[1]);
    printf("text\n");
    _exit(clb_finish("p", 0));
}

/* What is lost before the end is known at once, with its cause. */
static void write_full(void)
{
    struct clb_err err;

    if (!clb_stdout_write("a", 1, false, &err) || clb_stdout_write("b", 1, true, &err))
        _exit(0);
    clb_report("p", &err, 0);
    _exit(clb_exit_status(err.code));
}

static void test_finish(void)
{
    char said[500];
    int st = in_child(finish_full, "/dev/full", said, sizeof said);

    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 4);
    CHECK_STR(said, "p: cannot write to standard output: No space left on device\n");
    st = in_child(write_full, "/dev/full", said, sizeof said);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 4);
    CHECK_STR(said, "p: cannot write to standard output: No space left on device\n");
    st = in_child(finish_good, "/dev/null", said, sizeof said);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 3);
    CHECK_STR(said, "");
    st = in_child(finish_closed, "/dev/null", said, sizeof said);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 1);
    CHECK_STR(said, "p: cannot write to standard output: Bad file descriptor\n");
    st = in_child(finish_pipe, "/dev/null", said, sizeof said);
    CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGPIPE);
    CHECK_STR(said, "");
}

static void test_human(void)
{
    char b[CLB_HUMAN];

    CHECK_STR(clb_human_bytes(b, 0), "0 B");
    CHECK_STR(clb_human_bytes(b, 999), "999 B");
    CHECK_STR(clb_human_bytes(b, 1000), "1.0 kB");
    CHECK_STR(clb_human_bytes(b, 1234567), "1.2 MB");
    CHECK_STR(clb_human_bytes(b, 123456789), "123 MB");
    CHECK_STR(clb_human_bytes(b, 999600000), "1.0 GB");
    CHECK_STR(clb_human_bytes(b, UINT64_MAX), "18.4 EB");
    CHECK_STR(clb_human_count(b, 7), "7");
    CHECK_STR(clb_human_count(b, 999), "999");
    CHECK_STR(clb_human_count(b, 1000), "1,000");
    CHECK_STR(clb_human_count(b, 12345678), "12,345,678");
    CHECK_STR(clb_human_seconds(b, 12.3e-6), "12.3 us");
    CHECK_STR(clb_human_seconds(b, 12.34e-3), "12.3 ms");
    CHECK_STR(clb_human_seconds(b, 0.123), "123 ms");
    CHECK_STR(clb_human_seconds(b, 1.234), "1.23 s");
    CHECK_STR(clb_human_seconds(b, 12.34), "12.3 s");
    CHECK_STR(clb_human_seconds(b, 59.99), "1m 00s");
    CHECK_STR(clb_human_seconds(b, 80), "1m 20s");
    CHECK_STR(clb_human_seconds(b, 3725), "1h 02m");
}

static void test_columns(void)
{
    CHECK_EQ(clb_text_columns(""), 0);
    CHECK_EQ(clb_text_columns("abc"), 3);
    CHECK_EQ(clb_text_columns("\xc3\xa9"), 1);
    CHECK_EQ(clb_text_columns("e\xcc\x81"), 1);                 /* combining */
    CHECK_EQ(clb_text_columns("\xe6\xbc\xa2\xe5\xad\x97"), 4);  /* wide */
    CHECK_EQ(clb_text_columns("\xf0\x9f\x98\x80"), 2);
    CHECK_EQ(clb_text_columns("\xff" "a"), 2);
}

int main(void)
{
    TEST(test_report);
    TEST(test_status);
    TEST(test_finish);
    TEST(test_human);
    TEST(test_columns);
    return test_result();
}
