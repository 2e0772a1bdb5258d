/* A checkpoint folder: its texts are read once, whole, and its unused files are counted. */
#include "lib/import/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/check.h"

static char dir[] = "/tmp/clb-ckpt-XXXXXX";
static struct clb_checkpoint c;
static struct clb_err err;

static const char *path_of(const char *name)
{
    static char path[64];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(path_of(name), "w");

    CHECK(f && fwrite(bytes, 1, n, f) == n);
    CHECK(f && fclose(f) == 0);
}

static void texts_outlive_their_files(void)
{
    static char text[20000];

    memset(text, ' ', sizeof text);
    memcpy(text, "{}", 2);
    write_file("config.json", text, sizeof text);
    CHECK(clb_checkpoint_open(&c, dir, &err));
    CHECK(truncate(path_of("config.json"), 0) == 0);
    CHECK_EQ(c.text[CLB_CKPT_CONFIG].size, sizeof text);
    CHECK(!memcmp(c.text[CLB_CKPT_CONFIG].data, text, sizeof text));
    CHECK(!c.text[CLB_CKPT_TOKENIZER].path);
    clb_checkpoint_close(&c);
}

static void texts_have_a_largest_size(void)
{
    CHECK(truncate(path_of("config.json"), (256 << 20) + 1) == 0);
    CHECK(!clb_checkpoint_open(&c, dir, &err));
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK_HAS(err.text, "config.json: 268435457 bytes, but at most 268435456");
    CHECK_STR(err.file, path_of("config.json"));
    clb_checkpoint_close(&c);
    write_file("config.json", "{}", 2);
}

/* An empty checkpoint is enough for the notes. */
static void unused_files_are_counted(void)
{
    struct clb_text notes = { 0 };
    char name[32];

    write_file("model.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    for (int i = 0; i < 67; i++) {
        snprintf(name, sizeof name, "part-%02d.bin", i);
        write_file(name, "", 0);
    }
    CHECK(clb_checkpoint_open(&c, dir, &err));
    bool ok = clb_checkpoint_open_shards(&c, &notes, &err);
    CHECK_STR(ok ? "" : err.text, "");
    CHECK_HAS(notes.p, "not used: no index names it");
    CHECK_HAS(notes.p, "and 3 more weight files that are not used\n");
    clb_text_free(&notes);
    clb_checkpoint_close(&c);
    for (int i = 0; i < 67; i++) {
        snprintf(name, sizeof name, "part-%02d.bin", i);
        unlink(path_of(name));
    }
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    TEST(texts_outlive_their_files);
    TEST(texts_have_a_largest_size);
    TEST(unused_files_are_counted);
    unlink(path_of("config.json"));
    unlink(path_of("model.safetensors"));
    rmdir(dir);
    return test_result();
}
