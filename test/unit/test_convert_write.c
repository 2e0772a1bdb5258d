/* Pieces reach the file whatever their place and size, from several threads, and a write that fails
 * is told to everybody. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/import/convert_write.h"
#include "test/check.h"

enum { THREADS = 3, SIZE = 3000000 };

static struct clb_writers *writers;
static struct clb_err err;

static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)(at * 2654435761u >> 13);
}

/* Thread t writes every THREADS-th stretch of an odd length. */
static void *fill(void *arg)
{
    enum { STRETCH = 70001 };
    struct clb_err mine = { 0 };

    for (uint64_t at = STRETCH * (uint64_t)(uintptr_t)arg; at < SIZE; at += THREADS * STRETCH) {
        struct clb_piece *p = clb_writers_take(writers, &mine);

        if (!p)
            return NULL;
        p->at = at;
        for (; p->n < STRETCH && p->at + p->n < SIZE; p->n++)
            p->bytes[p->n] = byte_at(p->at + p->n);
        clb_writers_give(writers, p);
    }
    return NULL;
}

static bool write_all(int fd)
{
    pthread_t id[THREADS];
    bool ok;

    CHECK(clb_writers_new(&writers, fd, THREADS, 70001, &err));
    for (uintptr_t t = 0; t < THREADS; t++)
        pthread_create(&id[t], NULL, fill, (void *)t);
    for (int t = 0; t < THREADS; t++)
        pthread_join(id[t], NULL);
    ok = clb_writers_wait(writers, &err);
    clb_writers_free(writers);
    return ok;
}

static void check_file(int fd)
{
    uint8_t *bytes = calloc(SIZE + 1, 1);

    CHECK(write_all(fd));
    CHECK_EQ(pread(fd, bytes, SIZE + 1, 0), SIZE);
    for (uint64_t i = 0; i < SIZE; i++)
        if (bytes[i] != byte_at(i)) {
            CHECK_EQ(bytes[i], byte_at(i));
            break;
        }
    free(bytes);
}

static int disk_file(void)
{
    char path[] = "/var/tmp/clb-write-XXXXXX";
    int fd = mkostemp(path, 0), again = open(path, O_RDWR);

    unlink(path);
    close(fd);
    return again;
}

static void a_file_on_disk_and_one_in_memory(void)
{
    int disk = disk_file(), memory = memfd_create("pieces", 0);

    CHECK(disk >= 0 && memory >= 0);
    check_file(disk);
    check_file(memory);
    close(disk);
    close(memory);
}

/* Whole pages at whole pages are what direct writes are for; the rest of the file stays. */
static void whole_pages_and_a_rest(void)
{
    int fd = disk_file();
    uint8_t got[3 * 4096] = { 0 };

    CHECK_EQ(pwrite(fd, "before", 6, 4090), 6);
    CHECK_EQ(pwrite(fd, "behind", 6, 8292), 6);
    CHECK(clb_writers_new(&writers, fd, 1, 5000, &err));
    struct clb_piece *p = clb_writers_take(writers, &err);
    CHECK(p && p->room >= 5000 + 4096 && (uintptr_t)p->bytes % 4096 == 0);
    memset(p->bytes, 'x', 4196);
    p->at = 4096;
    p->n = 4196;
    clb_writers_give(writers, p);
    CHECK(clb_writers_wait(writers, &err));
    clb_writers_free(writers);
    CHECK_EQ(pread(fd, got, sizeof got, 0), 8298);
    CHECK(!memcmp(got + 4090, "beforexxx", 9) && !memcmp(got + 8289, "xxxbehind", 9));
    close(fd);
}

static void a_failure_is_told(void)
{
    int full = open("/dev/full", O_WRONLY);

    err = (struct clb_err){ 0 };
    CHECK(!write_all(full));
    CHECK(err.code == CLB_NO_SPACE);
    CHECK_HAS(err.text, "cannot write at byte ");
    close(full);
    err = (struct clb_err){ 0 };
    CHECK(!write_all(-1));
    CHECK_HAS(err.text, "Bad file descriptor");
}

int main(void)
{
    TEST(a_file_on_disk_and_one_in_memory);
    TEST(whole_pages_and_a_rest);
    TEST(a_failure_is_told);
    return test_result();
}
