/* Mutations of a safetensors file: bytes, numbers, pieces of the header, its length, the end of the
 * file. Open must refuse and say where, or what it hands out must hold together. MUTATIONS=N in the
 * environment asks for another count. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/import/safetensors.h"
#include "test/check.h"

enum { ROOM = 1 << 14, DATA = 600 };

static const char header[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"a\\u00e9\":\"\"},"
    "\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[10,8],\"data_offsets\":[0,160]},"
    "\"model.layers.0.w1.weight\":{\"dtype\":\"F32\",\"shape\":[4,8],\"data_offsets\":[160,288]},"
    "\"model.layers.0.w2.weight\":{\"shape\":[8,4],\"data_offsets\":[416,480],\"dtype\":\"F16\"},"
    "\"model.layers.0.w3.weight\":{\"dtype\":\"F32\",\"shape\":[4,8],\"data_offsets\":[288,416]},"
    "\"scalar\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[480,488]},"
    "\"empty\":{\"dtype\":\"I8\",\"shape\":[0,7],\"data_offsets\":[488,488]},"
    "\"bytes\":{\"dtype\":\"U8\",\"shape\":[1,1,112],\"data_offsets\":[488,600]}}";

static int fd;
static char path[64];
static uint64_t seed = 7;
static unsigned long opened, refused;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* One file; the length field says `length`. */
static void put(const char *text, size_t n, uint64_t length, size_t data)
{
    static uint8_t file[ROOM + DATA + 100];

    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, text, n);
    memset(file + 8 + n, 0x3c, data);
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(pwrite(fd, file, 8 + n + data, 0) == (ssize_t)(8 + n + data));
}

/* What open promises. */
static void check_open(const struct clb_safetensors *st)
{
    uint64_t at = st->data_at;

    for (uint32_t i = 0; i < st->n_tensor; i++) {
        const struct clb_st_tensor *t = st->order[i];
        uint64_t bytes = clb_st_dtype_bytes(t->dtype);

        CHECK(t >= st->tensor && t < st->tensor + st->n_tensor);
        CHECK(strlen(t->name) > 0 && t->rank <= CLB_ST_RANK);
        for (uint32_t k = 0; k < t->rank; k++)
            bytes *= t->shape[k];
        CHECK_EQ(t->begin, at);
        CHECK_EQ(t->end - t->begin, bytes);
        at = t->end;
    }
    CHECK_EQ(at, st->map.size);
}

static void try_file(void)
{
    struct clb_safetensors st;
    struct clb_err err = { 0 };

    if (clb_safetensors_open(&st, path, &err)) {
        opened++;
        check_open(&st);
    } else {
        refused++;
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK(!strncmp(err.text, path, strlen(path)));
        CHECK_STR(err.file, path);
        CHECK(err.has_offset);
    }
    clb_safetensors_close(&st);
}

static void the_original_opens(void)
{
    struct clb_safetensors st;
    struct clb_err err = { 0 };

    CHECK(fd >= 0);
    put(header, sizeof header - 1, sizeof header - 1, DATA);
    CHECK(clb_safetensors_open(&st, path, &err));
    CHECK_STR(err.text, "");
    CHECK_EQ(st.n_tensor, 7);
    CHECK_STR(st.tensor[2].name, "model.layers.0.w2.weight");
    CHECK_EQ(st.tensor[2].dtype, CLB_ST_F16);
    CHECK_STR(st.order[2]->name, "model.layers.0.w3.weight");
    check_open(&st);
    clb_safetensors_close(&st);
}

static void every_length_of_the_header_and_of_the_file(void)
{
    size_t n = sizeof header - 1;

    for (uint64_t length = 0; length < n + DATA + 20; length++) {
        put(header, n, length, DATA);
        try_file();
    }
    for (int bit = 0; bit < 64; bit++) {
        put(header, n, n ^ UINT64_C(1) << bit, DATA);
        try_file();
    }
    for (size_t data = 0; data < DATA; data += 13) {
        put(header, n, n, data);
        try_file();
    }
    for (off_t cut = 0; cut < (off_t)(8 + n); cut++) {
        put(header, n, n, DATA);
        CHECK(ftruncate(fd, cut) == 0);
        try_file();
    }
}

/* Nothing is allocated for a header that the format does not allow. */
static void a_header_of_gigabytes(void)
{
    struct clb_safetensors st;
    struct clb_err err = { 0 };
    uint64_t length = UINT64_C(3) << 30;

    put(header, sizeof header - 1, length, DATA);
    CHECK(ftruncate(fd, (off_t)length + 100) == 0);
    CHECK(!clb_safetensors_open(&st, path, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "byte 0: a header length of 3221225472; at most 1000000000 bytes are read");
    CHECK(ftruncate(fd, 0) == 0);
}

/* -- edits of a text of n bytes in room; each returns the new length ----------------------------
 */

static size_t replace(char *text, size_t n, size_t at, size_t gone, const char *with, size_t len)
{
    if (n - gone + len > ROOM)
        return n;
    memmove(text + at + len, text + at + gone, n - at - gone);
    memcpy(text + at, with, len);
    return n - gone + len;
}

static size_t edit_number(char *text, size_t n)
{
    static const char *const numbers[] = { "0",
                                           "-1",
                                           "1",
                                           "8",
                                           "160",
                                           "1e3",
                                           "0.5",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "18446744073709551615",
                                           "4294967296",
                                           "007",
                                           "" };
    size_t at = rnd((uint32_t)n), end;

    while (at < n && !(text[at] >= '0' && text[at] <= '9'))
        at++;
    for (end = at; end < n && text[end] >= '0' && text[end] <= '9';)
        end++;
    const char *with = numbers[rnd(sizeof numbers / sizeof *numbers)];
    return replace(text, n, at, end - at, with, strlen(with));
}

static size_t edit_piece(char *text, size_t n)
{
    static const char *const pieces[] = { "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "\\",
                                          "\\u0000",
                                          "\\ud800",
                                          "\xff",
                                          "null",
                                          "\"dtype\":\"BF16\",",
                                          "\"shape\":[],",
                                          "[[[[",
                                          "__metadata__",
                                          "BF16",
                                          " " };
    size_t at = rnd((uint32_t)n);

    if (rnd(3) == 0) /* remove a few bytes */
        return replace(text, n, at, rnd(n - at < 30 ? (uint32_t)(n - at) + 1 : 30), "", 0);
    if (rnd(3) == 0) { /* repeat a few elsewhere */
        char copy[64];
        size_t from = rnd((uint32_t)n), len = n - from < 64 ? n - from : rnd(64);

        memcpy(copy, text + from, len);
        return replace(text, n, at, 0, copy, len);
    }
    const char *with = pieces[rnd(sizeof pieces / sizeof *pieces)];
    return replace(text, n, at, rnd(2), with, strlen(with));
}

static void random_edits(void)
{
    const char *count = getenv("MUTATIONS");
    unsigned long n_try = count ? strtoul(count, NULL, 10) : 6000;
    static char text[ROOM + 64];

    for (unsigned long i = 0; i < n_try; i++) {
        size_t n = sizeof header - 1;

        memcpy(text, header, n);
        for (uint32_t k = 1 + rnd(3); k > 0 && n > 40; k--) {
            if (rnd(3) == 0)
                text[rnd((uint32_t)n)] = (char)rnd(256);
            else if (rnd(2) == 0)
                n = edit_number(text, n);
            else
                n = edit_piece(text, n);
        }
        put(text, n, rnd(20) ? n : rnd(2000), DATA);
        try_file();
    }
    printf("# %lu opened, %lu refused\n", opened, refused);
    CHECK(opened > 10 &&
          refused > 1000); /* both kinds occur, else the edits are too wild or too tame */
}

static void tells_what_people_have_instead(void)
{
    CHECK_HAS(clb_import_not_the_file("version https://git-lfs.github.com/spec/v1\n", 43),
              "Git LFS");
    CHECK_HAS(clb_import_not_the_file("\r\n <!DOCTYPE HTML>", 18), "HTML");
    CHECK_HAS(clb_import_not_the_file("<html lang=en>", 14), "HTML");
    CHECK(!clb_import_not_the_file("<htm", 4));
    CHECK(!clb_import_not_the_file(NULL, 0));
    CHECK(!clb_import_not_the_file("{\"a\":1}", 7));
}

int main(void)
{
    fd = memfd_create("safetensors", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    TEST(the_original_opens);
    TEST(every_length_of_the_header_and_of_the_file);
    TEST(a_header_of_gigabytes);
    TEST(random_edits);
    TEST(tells_what_people_have_instead);
    close(fd);
    return test_result();
}
