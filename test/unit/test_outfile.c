#include "lib/cli/outfile.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cli/doomed.h"
#include "test/check.h"

static char dir[64], path[100];

static int entries(void)
{
    int n = -2; /* . and .. */
    DIR *d = opendir(dir);

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void content(char *buf, size_t n)
{
    int fd = open(path, O_RDONLY);
    ssize_t got = read(fd, buf, n - 1);

    buf[got > 0 ? got : 0] = '\0';
    close(fd);
}

static bool write_out(const char *text, bool force, struct clb_err *err)
{
    struct clb_outfile o;

    if (!clb_outfile_open(&o, path, force, 0, err))
        return false;
    if (!clb_outfile_write(&o, text, strlen(text), err)) {
        clb_outfile_discard(&o);
        return false;
    }
    return clb_outfile_commit(&o, err);
}

static void test_commit(void)
{
    struct clb_outfile o = { 0 };
    struct clb_err err;
    struct stat st;
    char buf[20];

    clb_outfile_discard(&o); /* zeroed */
    CHECK(fcntl(0, F_GETFD) >= 0);
    umask(027);
    CHECK(write_out("one", false, &err));
    content(buf, sizeof buf);
    CHECK_STR(buf, "one");
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0640);
    CHECK(!write_out("two", false, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "/out: exists; use -f to replace it");
    CHECK(write_out("two", true, &err));
    content(buf, sizeof buf);
    CHECK_STR(buf, "two");
    CHECK_EQ(entries(), 1);
    unlink(path);
}

static void test_write_fails(void)
{
    struct clb_outfile o;
    struct clb_err err;

    CHECK(!clb_write_all(-1, "x", 1, "somewhere", &err));
    CHECK_EQ(err.code, CLB_FAILED);
    CHECK_HAS(err.text, "somewhere: cannot be written: Bad file descriptor");
    CHECK(clb_write_all(-1, "x", 0, "nothing", &err));
    CHECK(clb_outfile_open(&o, "/dev/full", true, 0, &err));
    CHECK(!clb_outfile_write(&o, "x", 1, &err));
    CHECK_HAS(err.text, "/dev/full: cannot be written: No space left");
    clb_outfile_discard(&o);
}

static void test_discard(void)
{
    struct clb_outfile o;
    struct clb_err err;

    CHECK(clb_outfile_open(&o, path, false, 0, &err));
    CHECK_EQ(entries(), 1);
    CHECK(access(path, F_OK) != 0);
    clb_outfile_discard(&o);
    clb_outfile_discard(&o);
    CHECK_EQ(entries(), 0);
}

/* Somebody makes the file while we write ours. */
static void test_race(void)
{
    struct clb_outfile o;
    struct clb_err err;
    char buf[20];

    CHECK(clb_outfile_open(&o, path, false, 0, &err));
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK_EQ(write(fd, "theirs", 6), 6);
    close(fd);
    CHECK(!clb_outfile_commit(&o, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    content(buf, sizeof buf);
    CHECK_STR(buf, "theirs");
    CHECK_EQ(entries(), 1);
    unlink(path);
}

static int child_dies_of(int sig, bool ignored)
{
    int status, fd[2];
    char byte;

    fflush(stdout);
    if (pipe(fd) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        struct clb_outfile o;
        struct clb_err err;
        signal(sig, ignored ? SIG_IGN : SIG_DFL);
        clb_outfile_open(&o, path, false, 0, &err);
        if (write(fd[1], "x", 1) != 1)
            _exit(9);
        if (ignored) {
            raise(sig);
            _exit(clb_outfile_commit(&o, &err) ? 0 : 1);
        }
        for (;;)
            pause();
    }
    if (read(fd[0], &byte, 1) != 1)
        return -1;
    close(fd[0]);
    close(fd[1]);
    if (!ignored)
        kill(child, sig);
    waitpid(child, &status, 0);
    return status;
}

static void test_signals(void)
{
    static const int sigs[] = { SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                                SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ };

    setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        int status = child_dies_of(sigs[i], false);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == sigs[i]);
        CHECK_EQ(entries(), 0);
    }
    CHECK_EQ(child_dies_of(SIGHUP, true), 0); /* nohup */
    CHECK_EQ(entries(), 1);
    unlink(path);
}

/* By whatever name; also when none of them is there yet. */
static void test_same_file(void)
{
    char other[120], in_new[120];
    struct clb_err err;

    snprintf(other, sizeof other, "%s/./out", dir);
    snprintf(in_new, sizeof in_new, "%s/new/out", dir);
    CHECK(clb_same_file(path, other));
    CHECK(!clb_same_file(path, in_new));
    CHECK(!clb_same_file(in_new, in_new)); /* no folder: it cannot be made */
    CHECK(write_out("x", false, &err));
    CHECK(clb_same_file(path, other));
    CHECK(!clb_same_file(path, in_new));
    unlink(other);
    CHECK(symlink("/dev/null", other) == 0);
    CHECK(!clb_same_file(path, "/dev/null"));
    unlink(other);
}

/* kill -9 leaves the temporary; the next run removes it, but not one that is in use. */
static void test_stale(void)
{
    struct clb_outfile o;
    struct clb_err err;

    int status = child_dies_of(SIGKILL, false);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(entries(), 1);
    CHECK(clb_outfile_open(&o, path, false, 0, &err));
    CHECK_EQ(entries(), 1); /* ours */
    struct clb_outfile second;
    CHECK(clb_outfile_open(&second, path, false, 0, &err));
    CHECK_EQ(entries(), 2); /* both live */
    clb_outfile_discard(&second);
    CHECK(clb_outfile_commit(&o, &err));
    CHECK_EQ(entries(), 1);
    unlink(path);
}

static void on_signal(int sig)
{
    (void)sig;
}

static void test_actions_restored(void)
{
    struct clb_outfile a, b;
    struct clb_err err;
    struct sigaction now;

    signal(SIGINT, on_signal);
    CHECK(clb_outfile_open(&a, path, false, 0, &err));
    CHECK(clb_outfile_open(&b, path, false, 0, &err));
    clb_outfile_discard(&a);
    sigaction(SIGINT, NULL, &now);
    CHECK(now.sa_handler != on_signal); /* b is still open */
    clb_outfile_discard(&b);
    sigaction(SIGINT, NULL, &now);
    CHECK(now.sa_handler == on_signal);
    signal(SIGINT, SIG_DFL);
}

static void test_refuses(void)
{
    struct clb_outfile o;
    struct clb_err err;
    char text[400];

    CHECK(!clb_outfile_open(&o, dir, true, 0, &err));
    CHECK_HAS(err.text, ": is a folder");
    clb_outfile_discard(&o);
    CHECK(!clb_outfile_open(&o, "/nowhere/at/all", false, 0, &err));
    CHECK_EQ(err.code, CLB_FAILED);
    CHECK_HAS(err.text, "/nowhere/at/all: cannot be created: No such file");
    snprintf(text, sizeof text, "%s/%0*d", dir, 300, 0);
    CHECK(!clb_outfile_open(&o, text, true, 0, &err));
    CHECK_EQ(err.code, CLB_FAILED);
    CHECK_HAS(err.text, ": cannot be created: File name too long");
    CHECK(!clb_outfile_open(&o, path, false, UINT64_C(1) << 62, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "needs 4.6 EB (4611686018427387904 bytes)");
    CHECK_EQ(entries(), 0);
}

static void test_device(void)
{
    struct clb_outfile o;
    struct clb_err err;

    CHECK(clb_outfile_open(&o, "/dev/null", false, 1 << 20, &err));
    CHECK_EQ(write(o.fd, "x", 1), 1);
    CHECK(clb_outfile_commit(&o, &err));
    CHECK(clb_outfile_open(&o, "/dev/full", false, 0, &err));
    CHECK(write(o.fd, "x", 1) < 0);
    clb_outfile_discard(&o);
    CHECK(access("/dev/full", F_OK) == 0);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/clb-out-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/out", dir);
    TEST(test_commit);
    TEST(test_write_fails);
    TEST(test_discard);
    TEST(test_race);
    TEST(test_signals);
    TEST(test_same_file);
    TEST(test_stale);
    TEST(test_actions_restored);
    TEST(test_refuses);
    TEST(test_device);
    rmdir(dir);
    return test_result();
}
