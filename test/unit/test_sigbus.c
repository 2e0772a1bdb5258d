#include "lib/cli/sigbus.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cli/doomed.h"
#include "test/check.h"

enum { SIZE = 8192 };

static bool find(const void *arg, const void *address, uint64_t *offset, const char **path)
{
    const char *base = arg, *at = address;

    if (at < base || at >= base + SIZE)
        return false;
    *offset = (uint64_t)(at - base);
    *path = "model.bin";
    return true;
}

/* What a child says that reads behind the end of a file that got shorter, while it writes `doomed`
 * (NULL: nothing). */
static int child(bool known, const char *doomed, char *said, size_t n)
{
    char name[] = "/tmp/clb-bus-XXXXXX";
    int fd = mkstemp(name), out[2], status;

    fflush(stdout);
    unlink(name);
    if (ftruncate(fd, SIZE) != 0 || pipe(out) != 0)
        return -1;
    volatile char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        dup2(out[1], 2);
        clb_sigbus_install("p", find, known ? (const void *)map : said);
        if (doomed)
            clb_doom(doomed);
        if (ftruncate(fd, 0) != 0)
            _exit(2);
        _exit(map[5000]);
    }
    close(out[1]);
    ssize_t got = read(out[0], said, n - 1);
    said[got > 0 ? got : 0] = '\0';
    close(out[0]);
    close(fd);
    munmap((void *)(uintptr_t)map, SIZE);
    waitpid(pid, &status, 0);
    return status;
}

static void test_known(void)
{
    char said[20000] = "";
    int status = child(true, NULL, said, sizeof said);
    char *emulator = strstr(said, "qemu: "); /* says as well how its program died */

    if (emulator)
        *emulator = '\0';
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK_STR(
        said,
        "p: model.bin: byte 5000: cannot be read any more: the file was cut or its disk failed\n");
}

static void test_unknown(void)
{
    char said[20000] = "";
    int status = child(false, NULL, said, sizeof said);

    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(!strstr(said, "p: "));
}

static void test_leaves_nothing(void)
{
    char said[20000] = "", name[] = "/tmp/clb-bus-XXXXXX";

    close(mkstemp(name));
    int status = child(true, name, said, sizeof said);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(access(name, F_OK) != 0);
    unlink(name);
}

int main(void)
{
    TEST(test_known);
    TEST(test_unknown);
    TEST(test_leaves_nothing);
    return test_result();
}
