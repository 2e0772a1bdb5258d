/* Writer and reader of colibri.bin: what goes in comes out, and every changed byte is found. */
#include "lib/format/reader.h"

#include <unistd.h>

#include "test/check.h"
#include "test/tiny_model.h"

static struct clb_arch a;
static struct clb_reader r;
static struct clb_err err;

static void build(struct tiny *t, enum clb_dtype expert, enum clb_dtype dense)
{
    tiny_arch(&a);
    a.layer_experts[0] = 0;
    a.dense_size = 40;
    a.shared_size = 24;
    a.expert_bias = true;
    CHECK(tiny_build(t, &(struct tiny_options){ .arch = &a,
                                                .expert = expert,
                                                .dense = dense,
                                                .embed = CLB_BF16,
                                                .seed = 7,
                                                .tokenizer_tables = "some tables",
                                                .n_tables = 11 }));
}

/* Weights of the toy model are known functions: what the reader finds must be them. */
static void check_matrix(const struct clb_matrix *m, const struct tiny_matrix *want,
                         float tolerance)
{
    float row[64];

    CHECK_EQ(m->rows, want->rows);
    CHECK_EQ(m->cols, want->cols);
    for (uint32_t i = 0; i < m->rows; i++) {
        clb_matrix_row(m, i, row);
        for (uint32_t c = 0; c < m->cols; c++)
            if (!(fabsf(row[c] - tiny_weight(want, i, c)) <= tolerance)) {
                printf("# row %u column %u: %g, not %g\n", i, c, (double)row[c],
                       (double)tiny_weight(want, i, c));
                test_bad = 1;
                return;
            }
    }
}

static void values_of(enum clb_dtype t, float tolerance)
{
    struct tiny tiny;

    build(&tiny, t, t);
    CHECK(clb_reader_open_memory(&r, tiny.bytes, tiny.n, &err));
    for (uint32_t i = 0; i < r.n_tensors; i++) {
        const struct clb_tensor *x = &r.tensors[i];
        struct clb_matrix m = clb_reader_matrix(&r, x);
        if (x->spec.form == CLB_FORM_MATRIX)
            check_matrix(&m, &(struct tiny_matrix){ t, x->spec.rows, x->spec.cols, 7, i, 0.25f },
                         tolerance * 0.25f);
    }
    const struct clb_expert_layer *l = clb_reader_experts(&r, 1);
    CHECK(l && !clb_reader_experts(&r, 0));
    for (uint32_t e = 0; l && e < l->count; e++)
        for (int p = 0; p < CLB_PARTS; p++) {
            struct clb_matrix m = clb_expert_matrix(&r, l, (enum clb_part)p, r.data + l->offset[e]);
            uint64_t stream = 1000000 + (4096ull + e) * 8 + (unsigned)p;
            check_matrix(&m, &(struct tiny_matrix){ t, m.rows, m.cols, 7, stream, 0.4f },
                         tolerance * 0.4f);
            CHECK(m.bias && m.bias[3] == 0.2f * tiny_random(7, stream + 4, 3));
        }
    CHECK(clb_reader_verify(&r, NULL, NULL, &err));
    clb_reader_close(&r);
    tiny_free(&tiny);
}

static void values_f32(void)
{
    values_of(CLB_F32, 0);
}
static void values_bf16(void)
{
    values_of(CLB_BF16, 0x1p-8f);
}
static void values_fp16(void)
{
    values_of(CLB_F16, 0x1p-11f);
}
static void values_int8(void)
{
    values_of(CLB_INT8, 0.51f / 127);
}
static void values_int4(void)
{
    values_of(CLB_INT4, 24.0f / 127);
}
static void values_mxfp4(void)
{
    values_of(CLB_MXFP4, 2.0f / 6);
}

static void contents(void)
{
    struct tiny t;

    build(&t, CLB_INT4, CLB_INT8);
    CHECK(clb_reader_open_memory(&r, t.bytes, t.n, &err));
    CHECK(!memcmp(&r.arch, &a, sizeof a));
    CHECK_STR(r.converter, "tiny_model.h");
    CHECK_STR(r.scale, "row");
    CHECK_EQ(r.generation.bos_token, -1);
    CHECK_EQ(r.generation.n_eos, 1);
    CHECK_EQ(r.generation.eos_token[0], 98);
    CHECK(isnan(r.generation.temperature));
    CHECK_EQ(r.generation.top_k, -1);
    CHECK(!memcmp(r.code_int4, clb_book_int4, 16));
    CHECK(r.json.p[0] == '{' && r.json.p[r.json.n - 1] == '}');
    const struct clb_section *s = clb_reader_section(&r, "tokenizer.tables");
    CHECK(s && s->size == 11 && !memcmp(r.data + s->offset, "some tables", 11));
    CHECK(!clb_reader_section(&r, "chat_template"));
    CHECK(clb_reader_find(&r, CLB_OUTPUT, UINT32_MAX));
    CHECK(!clb_reader_find(&r, CLB_SINKS, 0));
    CHECK(!clb_reader_matrix(&r, NULL).tiles);
    CHECK(clb_reader_matrix(&r, clb_reader_find(&r, CLB_Q, 1)).row_scale);
    clb_reader_close(&r);
    clb_reader_close(&r);
    tiny_free(&t);
}

/* Each byte of the file, one bit flipped: open refuses, or verify finds it. */
static void every_byte(void)
{
    struct tiny t;
    size_t missed = 0, opened = 0;

    build(&t, CLB_INT4, CLB_INT8);
    for (size_t i = 0; i < t.n; i++) {
        t.bytes[i] ^= (uint8_t)(1u << i % 8);
        if (clb_reader_open_memory(&r, t.bytes, t.n, &err)) {
            opened++;
            missed += clb_reader_verify(&r, NULL, NULL, &err);
            clb_reader_close(&r);
        }
        t.bytes[i] ^= (uint8_t)(1u << i % 8);
        i += i < 4096 ? 0 : 120; /* odd stride: all of the header, a sample of the data */
    }
    CHECK_EQ(missed, 0);
    CHECK(opened > t.n / 200);
    tiny_free(&t);
}

/* Kernels rely on the values of the book of mxfp4; that of int4 is the file's own. */
static void one_book_of_mxfp4(void)
{
    static const struct {
        const char *was, *is;
    } edit[] = { { "8,12,0,", "8,11,0," }, { "0,1,2,", "1,0,2," }, { "-8,-12]", "8,-127]" } };

    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        struct tiny t;

        build(&t, CLB_MXFP4, CLB_INT8);
        CHECK(clb_reader_open_memory(&r, t.bytes, t.n, &err));
        size_t at = CLB_PREFIX_BYTES, n = r.tensors[0].offset - at;
        clb_reader_close(&r);
        char *book = memmem(t.bytes + at, n, "\"mxfp4\":[", 9);
        char *part = book ? memmem(book, 60, edit[i].was, strlen(edit[i].was)) : NULL;
        CHECK(part);
        if (part) {
            memcpy(part, edit[i].is, strlen(edit[i].is));
            uint32_t crc = clb_crc32(0, t.bytes + at, n);
            memcpy(t.bytes + 12, &crc, sizeof crc);
            CHECK(!clb_reader_open_memory(&r, t.bytes, t.n, &err));
            CHECK_EQ(err.code, CLB_BAD_INPUT);
            CHECK_HAS(err.text, "'code.mxfp4' is not the one book that mxfp4 has");
            CHECK_STR(err.field, "code.mxfp4");
        }
        tiny_free(&t);
    }
}

struct seen {
    int blocks, bad;
    uint64_t offset;
};

static void see(void *arg, const char *what, uint64_t offset, uint64_t size, bool ok)
{
    struct seen *s = arg;

    s->blocks++;
    if (!ok) {
        s->bad++;
        s->offset = offset;
    }
    CHECK(*what && size);
}

static void verify_reports(void)
{
    struct tiny t;
    struct seen s = { 0 };

    build(&t, CLB_F32, CLB_F32);
    CHECK(clb_reader_open_memory(&r, t.bytes, t.n, &err));
    uint64_t at = r.experts[0].offset[5];
    t.bytes[at + 100] ^= 1;
    CHECK(!clb_reader_verify(&r, see, &s, &err));
    CHECK_EQ(s.blocks, r.n_tensors + 8 + 1);
    CHECK_EQ(s.bad, 1);
    CHECK_EQ(s.offset, at);
    CHECK_HAS(err.text, "layer 1 expert 5");
    CHECK_EQ(err.offset, at);
    clb_reader_close(&r);
    tiny_free(&t);
}

static void from_disk(void)
{
    char path[] = "/tmp/colibri-reader-XXXXXX";
    struct tiny t;

    build(&t, CLB_INT8, CLB_INT8);
    CHECK(tiny_save(&t, path));
    CHECK(clb_reader_open(&r, path, &err));
    CHECK(clb_reader_verify(&r, NULL, NULL, &err));
    /* Cut while open: an error, not a signal. */
    CHECK(truncate(path, (off_t)t.n - 5000) == 0);
    CHECK(!clb_reader_verify(&r, NULL, NULL, &err));
    CHECK_HAS(err.text, path);
    clb_reader_close(&r);
    CHECK(!clb_reader_open(&r, path, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "cut short");
    CHECK_STR(err.file, path);
    unlink(path);
    CHECK(!clb_reader_open(&r, path, &err));
    CHECK_HAS(err.text, path);
    tiny_free(&t);
}

static void refuse(const char *bytes, size_t n, const char *part)
{
    static _Alignas(64) char room[4096];

    memset(room, 0, sizeof room);
    memcpy(room, bytes, n);
    CHECK(!clb_reader_open_memory(&r, room, n, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, part);
}

static void other_files(void)
{
    refuse("", 0, "empty");
    refuse("version https://git-lfs.github.com/spec/v1", 42, "git lfs pull");
    refuse("<!DOCTYPE html>", 15, "web page");
    refuse("GGUF\3\0\0\0", 8, "GGUF");
    refuse("\2\0\0\0\0\0\0\0{}aaaa", 14, "safetensors");
    refuse("PK\3\4aaaaaa", 10, "zip");
    refuse("\177ELF", 4, "program");
    refuse("hello", 5, "not a colibri model");
    refuse("COLIBRI\0\1\0\0\0", 12, "cut short");
    refuse("COLIBRI\0\2\0\0\0aaaabbbbbbbb", 24, "newer");
    refuse("COLIBRI\0\0\0\0\0aaaabbbbbbbb", 24, "format 0");
    refuse("COLIBRI\0\1\0\0\0aaaa\0\0\0\0\0\0\0\0", 24, "header length 0");
    refuse("COLIBRI\0\1\0\0\0aaaa\377\377\377\377\377\377\377\377", 24,
           "header length 18446744073709551615");
}

static void misaligned(void)
{
    static _Alignas(64) char room[128];

    CHECK(!clb_reader_open_memory(&r, room + 8, 64, &err));
    CHECK_EQ(err.code, CLB_USAGE);
}

/* A header of a large model: 60 layers, 256 experts. It stays small and its length is known
 * beforehand. */
static void large_plan(void)
{
    struct clb_generation g = { .bos_token = -1, .top_k = -1 };
    struct clb_plan_options o = { .generation = &g,
                                  .converter = "test",
                                  .expert_dtype = CLB_INT4,
                                  .dense_dtype = CLB_INT8,
                                  .embed_dtype = CLB_BF16,
                                  .arch = &a };
    struct clb_write_plan *p;
    struct clb_text header = { 0 };

    tiny_arch(&a);
    a.n_layer = 60, a.hidden_size = 7168, a.n_expert = 256, a.expert_size = 2048,
    a.vocab_size = 129280;
    for (uint32_t l = 0; l < 60; l++)
        a.layer_experts[l] = 256;
    CHECK(clb_plan_new(&p, &o, &err));
    CHECK(clb_plan_file_size(p) > 300000000000u);
    CHECK(!clb_plan_header(p, &header, &err)); /* no checksum was given */
    for (uint32_t i = 0; clb_plan_tensor(p, i); i++)
        clb_plan_tensor_crc(p, i, UINT32_MAX);
    for (uint32_t l = 0; l < 60; l++)
        for (uint32_t e = 0; e < 256; e++)
            clb_plan_expert_crc(p, l, e, e & 1 ? UINT32_MAX : 0);
    CHECK(clb_plan_header(p, &header, &err));
    CHECK(header.n % CLB_PAGE == 0 && header.n < 2000000);
    CHECK_EQ(clb_plan_tensor(p, 0)->offset, header.n);
    clb_text_free(&header);
    clb_plan_free(p);
}

static void plan_refuses(void)
{
    struct clb_generation g = { .bos_token = -1, .top_k = -1 };
    struct clb_plan_options o = { .generation = &g,
                                  .converter = "test",
                                  .expert_dtype = CLB_INT8,
                                  .dense_dtype = CLB_INT8,
                                  .embed_dtype = CLB_INT8,
                                  .arch = &a };
    struct clb_write_plan *p;

    tiny_arch(&a);
    CHECK(!clb_plan_new(&p, &o, &err));
    CHECK_HAS(err.text, "embedding");
    o.embed_dtype = CLB_F32;
    a.top_k = 0;
    CHECK(!clb_plan_new(&p, &o, &err));
    CHECK_HAS(err.text, "top_k");
    a.top_k = 1;
    o.section[0].name = "chat_template";
    CHECK(!clb_plan_new(&p, &o, &err));
    CHECK_HAS(err.text, "chat_template");
    CHECK(!p);
}

int main(void)
{
    TEST(values_f32);
    TEST(values_bf16);
    TEST(values_fp16);
    TEST(values_int8);
    TEST(values_int4);
    TEST(values_mxfp4);
    TEST(one_book_of_mxfp4);
    TEST(contents);
    TEST(every_byte);
    TEST(verify_reports);
    TEST(from_disk);
    TEST(other_files);
    TEST(misaligned);
    TEST(large_plan);
    TEST(plan_refuses);
    return test_result();
}
