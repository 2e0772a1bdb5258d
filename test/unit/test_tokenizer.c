/* Tokenizers against what the reference answered (test/data/tokenizers, made by
 * tools/token_goldens.py), and the corners of the interface. */
#include <pthread.h>

#include "lib/base/mem.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"
#include "test/unit/token_rig.h"

/* -- goldens ---------------------------------------------------------------------------------- */

struct row {
    struct clb_text text, decoded, skipped;
    bool has_text;
    struct clb_ids ids, plain;
};

static void read_ids(struct clb_json *j, struct clb_ids *ids)
{
    struct clb_err err;

    ids->n = 0;
    clb_json_array(j);
    while (clb_json_item(j)) {
        if (ids->n == ids->room) {
            ids->room = ids->room ? 2 * ids->room : 256;
            ids->id = clb_grow(ids->id, ids->room, sizeof *ids->id, &err);
        }
        ids->id[ids->n++] = (int32_t)clb_json_u64(j, INT32_MAX);
    }
}

static void read_text(struct clb_json *j, struct clb_text *t)
{
    struct clb_str s = clb_json_string(j);

    clb_text_clear(t);
    clb_text_add(t, s.p, s.n);
}

static bool read_row(struct row *r, const char *line, size_t n)
{
    struct clb_json j;
    struct clb_str key;
    struct clb_err err;

    r->has_text = false;
    clb_json_open(&j, line, n, "golden.jsonl");
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "text")) {
            r->has_text = true;
            read_text(&j, &r->text);
        } else if (clb_str_is(key, "decoded"))
            read_text(&j, &r->decoded);
        else if (clb_str_is(key, "skipped"))
            read_text(&j, &r->skipped);
        else if (clb_str_is(key, "ids"))
            read_ids(&j, &r->ids);
        else
            read_ids(&j, &r->plain);
    }
    return clb_json_close(&j, &err);
}

static void free_row(struct row *r)
{
    clb_text_free(&r->text);
    clb_text_free(&r->decoded);
    clb_text_free(&r->skipped);
    clb_ids_free(&r->ids);
    clb_ids_free(&r->plain);
}

static bool same_ids(const struct clb_ids *a, const struct clb_ids *b)
{
    return a->n == b->n && (a->n == 0 || !memcmp(a->id, b->id, a->n * sizeof *a->id));
}

static bool same_text(const struct clb_text *a, const struct clb_text *b)
{
    return a->n == b->n && (a->n == 0 || !memcmp(a->p, b->p, a->n));
}

static void check_encode(const struct clb_tokenizer *t, const struct row *r, bool add_special,
                         const struct clb_ids *want)
{
    const struct clb_encode_options o = { .parse_special = true, .add_special = add_special };
    struct clb_ids got = { 0 };
    struct clb_err err;

    CHECK(clb_encode(t, r->text.p, r->text.n, &o, &got, &err));
    CHECK(same_ids(&got, want));
    clb_ids_free(&got);
}

/* A stream gives what a decode of all gives, in pieces that are whole characters. */
static void check_stream(const struct clb_tokenizer *t, const struct row *r,
                         const struct clb_text *want)
{
    struct clb_decoder *d;
    struct clb_err err;
    struct clb_str piece;
    struct clb_text got = { 0 };

    CHECK(clb_decoder_open(&d, t, false, &err));
    for (size_t i = 0; i < r->ids.n; i++) {
        clb_alloc_guard_lock();
        CHECK(clb_decoder_feed(d, r->ids.id[i], &piece, &err));
        clb_alloc_guard_unlock();
        CHECK_EQ(clb_utf8_valid(piece.p, piece.n), piece.n);
        clb_text_add(&got, piece.p, piece.n);
    }
    CHECK(clb_decoder_flush(d, &piece, &err));
    clb_text_add(&got, piece.p, piece.n);
    CHECK(same_text(&got, want));
    clb_text_free(&got);
    clb_decoder_close(d);
}

static void check_decode(const struct clb_tokenizer *t, const struct row *r, bool skip,
                         const struct clb_text *want)
{
    struct clb_text got = { 0 };
    struct clb_err err;

    CHECK(clb_decode(t, r->ids.id, r->ids.n, skip, &got, &err));
    CHECK(same_text(&got, want));
    clb_text_free(&got);
}

/* Bytes that are not UTF-8 as a whole are the one thing in which a stream may differ. */
static bool has_replacement(const struct clb_text *t)
{
    return t->n >= 3 && memmem(t->p, t->n, "\xef\xbf\xbd", 3);
}

static void check_row(const struct clb_tokenizer *t, const struct row *r)
{
    if (r->has_text) {
        check_encode(t, r, true, &r->ids);
        check_encode(t, r, false, &r->plain);
    }
    check_decode(t, r, false, &r->decoded);
    check_decode(t, r, true, &r->skipped);
    if (!has_replacement(&r->decoded))
        check_stream(t, r, &r->decoded);
}

/* SentencePiece knows control pieces only by their ids, and puts nothing around a text. */
static void check_spm_row(const struct clb_tokenizer *t, const struct row *r)
{
    const struct clb_encode_options o = { .parse_special = false };
    struct clb_ids got = { 0 };
    struct clb_err err;

    if (r->has_text) {
        CHECK(clb_encode(t, r->text.p, r->text.n, &o, &got, &err));
        CHECK(same_ids(&got, &r->plain));
    }
    check_decode(t, r, false, &r->decoded);
    check_stream(t, r, &r->decoded);
    clb_ids_free(&got);
}

static void check_golden(const char *name, bool spm)
{
    char path[256];
    struct token_rig rig;
    struct clb_mapfile m;
    struct clb_err err;
    struct row r = { .has_text = false };
    unsigned rows = 0;

    CHECK(spm ? token_open_spm(&rig, name) : token_open(&rig, name));
    token_path(path, name, spm ? "spm_golden.jsonl" : "golden.jsonl");
    CHECK(clb_mapfile_open(&m, path, &err));
    const char *p = (const char *)m.data, *end = p + m.size;
    for (const char *line_end; p < end && rig.t; p = line_end + 1, rows++) {
        line_end = memchr(p, '\n', (size_t)(end - p));
        CHECK(read_row(&r, p, (size_t)(line_end - p)));
        if (spm)
            check_spm_row(rig.t, &r);
        else
            check_row(rig.t, &r);
        if (test_bad) {
            printf("# %s: line %u differs\n", path, rows + 1);
            break;
        }
    }
    CHECK(rows > 100);
    clb_mapfile_close(&m);
    free_row(&r);
    token_close(&rig);
}

static void goldens(void)
{
    for (int i = 0; i < N_TOKEN_NAMES; i++)
        check_golden(token_names[i], false);
    check_golden("syn_unigram_bytefb", true);
    check_golden("syn_spm_bpe", true);
}

/* -- text ------------------------------------------------------------------------------------- */

static void text_that_is_not_utf8(void)
{
    static const char *const pair[][2] = {
        /* as Python's bytes.decode(errors="replace") has it */
        { "a\xff"
          "b",
          "a\uFFFDb" },
        { "\xe4\xb8", "\uFFFD" },
        { "\xe4\xb8x", "\uFFFDx" },
        { "\xf0\x9f\x98", "\uFFFD" },
        { "\xf0\x9f\x98\xf0\x9f\x98\x80", "\uFFFD\U0001F600" },
        { "\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD" },           /* a surrogate */
        { "\xc0\x80", "\uFFFD\uFFFD" },                     /* overlong */
        { "\xf5\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD" }, /* too large */
        { "\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD" },
        { "\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD" },
    };

    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        struct clb_text t = { 0 };
        clb_utf8_repair(clb_str(pair[i][0]), &t);
        CHECK_STR(t.p, pair[i][1]);
        clb_text_free(&t);
    }
}

static void normal_forms(void)
{
    static const struct {
        enum clb_form form;
        const char *from, *to;
    } row[] = {
        { CLB_NFC, "e\u0301 A\u030A \u212B", "\u00E9 \u00C5 \u00C5" },
        { CLB_NFC, "a\u0345\u0301", "\u00E1\u0345" }, /* marks are put in order first */
        { CLB_NFC, "\u1100\u1161\u11A8 \uAC00\u11A8", "\uAC01 \uAC01" },
        { CLB_NFC, "\u0958", "\u0915\u093C" }, /* never composed again */
        { CLB_NFC, "\u0344", "\u0308\u0301" },
        { CLB_NFD, "\u00E9\uAC01", "e\u0301\u1100\u1161\u11A8" },
        { CLB_NFKC, "\uFB01\u2460\u3000x", "fi1 x" },
        { CLB_NFKD, "\u1E9B\u0323", "s\u0323\u0307" },
        { CLB_NFC, "\u0301\u0301", "\u0301\u0301" },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct clb_text t = { 0 };
        clb_normalise(clb_str(row[i].from), row[i].form, &t);
        CHECK_STR(t.p, row[i].to);
        CHECK(!clb_is_normal(clb_str(row[i].from), row[i].form) || !strcmp(row[i].from, row[i].to));
        clb_text_free(&t);
    }
    struct clb_text t = { 0 };
    clb_lower_case(clb_str("\u0130\u00C4Z\u03A3"), &t);
    CHECK_STR(t.p, "i\u0307\u00E4z\u03C3");
    clb_text_free(&t);
}

static void encode_text(const struct clb_tokenizer *t, const char *text, bool parse,
                        struct clb_ids *ids)
{
    const struct clb_encode_options o = { .parse_special = parse };
    struct clb_err err;

    ids->n = 0;
    CHECK(clb_encode(t, text, strlen(text), &o, ids, &err));
}

static bool has_special(const struct clb_tokenizer *t, const struct clb_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (clb_token_special(t, ids->id[i]))
            return true;
    return false;
}

/* Text of a user never becomes a special token, not even where merging would make one; with
 * parse_special it does. */
static void special_tokens(void)
{
    struct clb_ids ids = { 0 };

    for (int i = 0; i < N_TOKEN_NAMES; i++) {
        struct token_rig rig;
        CHECK(token_open(&rig, token_names[i]));
        for (int32_t id = 0; rig.t && id < (int32_t)clb_tokenizer_size(rig.t); id++) {
            char text[256];
            struct clb_str s = clb_token_bytes(rig.t, id);
            if (!clb_token_special(rig.t, id))
                continue;
            snprintf(text, sizeof text, "a %.*s b%.*s", (int)s.n, s.p, (int)s.n, s.p);
            CHECK_EQ(clb_token_find(rig.t, s), id);
            encode_text(rig.t, text, false, &ids);
            CHECK(!has_special(rig.t, &ids));
            encode_text(rig.t, text, true, &ids);
            CHECK(has_special(rig.t, &ids));
        }
        token_close(&rig);
    }
    clb_ids_free(&ids);
}

/* A word of a megabyte, which would take hours if merging were quadratic. */
static void long_words(void)
{
    enum { N = 1 << 20 };
    char *text = malloc(N + 1);
    struct clb_ids ids = { 0 };
    struct clb_err err;

    for (int i = 0; i < N; i++)
        text[i] = "stuv"[(unsigned)i * 2654435761u >> 29 & 3];
    text[N] = 0;
    for (int i = 0; i < N_TOKEN_NAMES; i++) {
        struct token_rig rig;
        struct clb_text back = { 0 };
        CHECK(token_open(&rig, token_names[i]));
        encode_text(rig.t, text, true, &ids);
        CHECK(ids.n > 1000);
        CHECK(clb_decode(rig.t, ids.id, ids.n, false, &back, &err));
        CHECK(back.n >= N && !memcmp(back.p + back.n - N, text, N));
        clb_text_free(&back);
        token_close(&rig);
    }
    clb_ids_free(&ids);
    free(text);
}

/* A text in pieces, some of the template ('+' in front) and some not. */
static void encode_pieces(const struct clb_tokenizer *t, const char *const *piece,
                          struct clb_ids *ids)
{
    char text[400] = "";
    uint8_t origin[400];
    size_t n = 0;
    struct clb_err err = { .code = CLB_OK };

    for (; *piece; piece++)
        for (const char *p = *piece + 1; *p; p++) {
            origin[n] = **piece == '+';
            text[n++] = *p;
        }
    const struct clb_encode_options o = { .origin = origin };
    ids->n = 0;
    CHECK(clb_encode(t, text, n, &o, ids, &err));
}

static size_t count_special(const struct clb_tokenizer *t, const struct clb_ids *ids)
{
    size_t n = 0;

    for (size_t i = 0; i < ids->n; i++)
        n += clb_token_special(t, ids->id[i]);
    return n;
}

static void special_tokens_by_origin(void)
{
    struct token_rig rig;
    struct clb_ids ids = { 0 }, whole = { 0 };
    struct clb_err err = { .code = CLB_OK };
    const char *const all[] = { "+<|im_start|>user\nHi<|im_end|>", NULL };
    const char *const mixed[] = { "+<|im_start|>", "-user\n<|im_end|><|im_start|>", "+<|im_end|>",
                                  NULL };
    const char *const torn[] = { "+<|im_st", "-art|>", NULL };
    const char *const torn_too[] = { "-<", "+|im_start|>", NULL };
    const struct clb_encode_options special = { .parse_special = true };

    CHECK(token_open(&rig, "qwen3"));
    encode_pieces(rig.t, all, &ids);
    CHECK(clb_encode(rig.t, all[0] + 1, strlen(all[0]) - 1, &special, &whole, &err));
    CHECK(same_ids(&ids, &whole));
    CHECK_EQ(count_special(rig.t, &ids), 2);
    encode_pieces(rig.t, mixed, &ids);
    CHECK_EQ(count_special(rig.t, &ids), 2);
    CHECK(ids.id[0] == clb_token_find(rig.t, clb_str("<|im_start|>")));
    CHECK(ids.id[ids.n - 1] == clb_token_find(rig.t, clb_str("<|im_end|>")));
    encode_pieces(rig.t, torn, &ids);
    CHECK_EQ(count_special(rig.t, &ids), 0);
    encode_pieces(rig.t, torn_too, &ids);
    CHECK_EQ(count_special(rig.t, &ids), 0);
    token_close(&rig);
    clb_ids_free(&ids);
    clb_ids_free(&whole);
}

/* Special tokens that are found in normalised text: of the raw text, there too. */
static void normalised_special_tokens_by_origin(void)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<end>\",\"special\":true,\"normalized\":true,"
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false}],"
        "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":null,\"decoder\":null,"
        "\"post_processor\":null,\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\","
        "\"vocab\":{\"a\":0,\"b\":1,\"<\":2},\"merges\":[]}}";
    struct token_rig rig;
    struct clb_ids ids = { 0 };
    struct clb_err err;
    const char *const ours[] = { "+B<end>", NULL }, *const theirs[] = { "-B<end>", NULL };

    CHECK(token_open_text(&rig, json, &err));
    if (rig.t) {
        encode_pieces(rig.t, ours, &ids);
        CHECK(ids.n == 2 && ids.id[0] == 1 && ids.id[1] == 3);
        encode_pieces(rig.t, theirs, &ids);
        CHECK_EQ(count_special(rig.t, &ids), 0);
    } else {
        printf("# %s\n", err.text);
    }
    token_close(&rig);
    clb_ids_free(&ids);
}

/* `n` lines of five words that are hardly ever the same. */
static void write_lines(struct clb_text *t, unsigned n)
{
    uint32_t state = 1;

    clb_text_clear(t);
    for (unsigned i = 0; i < 5 * n; i++) {
        char word[8];
        for (int k = 0; k < 6; k++) {
            state = state * 1664525 + 1013904223;
            word[k] = "abcdeinorstuz"[(state >> 16) % 13];
        }
        word[6] = i % 5 == 4 ? '\n' : ' ';
        clb_text_add(t, word, 7);
    }
}

/* Are the ids of the lines together those of one after the other? */
static bool line_by_line(const struct clb_tokenizer *t, unsigned n)
{
    enum { LINE = 35 };
    struct clb_text text = { 0 };
    struct clb_ids all = { 0 }, line = { 0 };
    size_t at = 0;
    bool ok = true;

    write_lines(&text, n);
    encode_text(t, text.p, true, &all);
    for (unsigned i = 0; ok && i < n; i++, at += line.n) {
        char one[LINE + 1] = "";
        memcpy(one, text.p + i * LINE, LINE);
        encode_text(t, one, true, &line);
        ok = at + line.n <= all.n && !memcmp(all.id + at, line.id, line.n * sizeof *line.id);
    }
    ok = ok && at == all.n;
    clb_text_free(&text);
    clb_ids_free(&all);
    clb_ids_free(&line);
    return ok;
}

/* Words of a long text are remembered, and not mixed up. */
static void remembered_words(void)
{
    unsigned tried = 0;

    for (int i = 0; i < N_TOKEN_NAMES; i++) {
        struct token_rig rig;
        CHECK(token_open(&rig, token_names[i]));
        if (line_by_line(rig.t, 5)) { /* too short to remember anything */
            CHECK(line_by_line(rig.t, 3000));
            tried++;
        }
        token_close(&rig);
    }
    CHECK(tried > 5);
}

/* With a limit encoding gives the same start, and one id more to say that there are more. */
static void up_to_a_number(void)
{
    static const char text[] = "Once upon a time, 12345 t\u00e9l\u00e9 \u4e16\u754c xyzxyz";
    struct clb_encode_options o = { .add_special = true };
    struct clb_err err;

    for (int i = 0; i < N_TOKEN_NAMES; i++) {
        struct token_rig rig;
        struct clb_ids all = { 0 }, some = { 0 };
        CHECK(token_open(&rig, token_names[i]));
        o.most = 0;
        CHECK(clb_encode(rig.t, text, sizeof text - 1, &o, &all, &err));
        for (o.most = 1; o.most < all.n + 2; o.most++) {
            size_t want = o.most < all.n ? o.most + 1 : all.n;
            some.n = 0;
            CHECK(clb_encode(rig.t, text, sizeof text - 1, &o, &some, &err));
            CHECK_EQ(some.n, want);
            CHECK(!memcmp(some.id, all.id, want * sizeof *some.id));
        }
        clb_ids_free(&all);
        clb_ids_free(&some);
        token_close(&rig);
    }
}

/* -- tables ----------------------------------------------------------------------------------- */

static void same_input_same_bytes(void)
{
    struct token_rig a, b;

    CHECK(token_open(&a, "qwen3"));
    CHECK(token_open(&b, "qwen3"));
    CHECK(same_text(&a.tables, &b.tables));
    token_close(&a);
    token_close(&b);
}

static void tables_that_are_cut(void)
{
    struct token_rig rig;
    struct clb_tokenizer *t;
    struct clb_err err;

    CHECK(token_open(&rig, "syn_meta_first"));
    for (size_t n = 0; n < rig.tables.n; n += n < 500 ? 1 : 4099) {
        CHECK(!clb_tokenizer_open(&t, rig.tables.p, n, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK(t == NULL);
    }
    CHECK(!clb_tokenizer_open(&t, rig.tables.p + 1, rig.tables.n - 1, &err));
    token_close(&rig);
}

struct work {
    const struct clb_tokenizer *t;
    struct clb_ids ids;
};

static void *encode_often(void *arg)
{
    struct work *w = arg;
    const struct clb_encode_options o = { .add_special = true };
    struct clb_err err;

    for (int i = 0; i < 20; i++) {
        w->ids.n = 0;
        if (!clb_encode(w->t, "Once upon a time e\u0301 \u4E16\u754C", 26, &o, &w->ids, &err))
            return NULL;
    }
    return arg;
}

static void threads(void)
{
    struct token_rig rig;
    struct work work[4] = { { .t = NULL } };
    pthread_t thread[4];
    void *done;

    CHECK(token_open(&rig, "qwen3"));
    for (int i = 0; i < 4; i++) {
        work[i].t = rig.t;
        CHECK(!pthread_create(&thread[i], NULL, encode_often, &work[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &done);
        CHECK(done && same_ids(&work[i].ids, &work[0].ids));
    }
    for (int i = 0; i < 4; i++)
        clb_ids_free(&work[i].ids);
    token_close(&rig);
}

int main(void)
{
    TEST(goldens);
    TEST(text_that_is_not_utf8);
    TEST(normal_forms);
    TEST(special_tokens);
    TEST(special_tokens_by_origin);
    TEST(normalised_special_tokens_by_origin);
    TEST(long_words);
    TEST(remembered_words);
    TEST(up_to_a_number);
    TEST(same_input_same_bytes);
    TEST(tables_that_are_cut);
    TEST(threads);
    return test_result();
}
