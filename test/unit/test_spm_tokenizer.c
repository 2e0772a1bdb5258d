/* What compiling a tokenizer.model accepts and refuses. The files are made here: a message is a
 * list of (number << 3 | wire type) and values. */
#include "test/unit/token_rig.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE };

static void put_varint(struct clb_text *t, uint64_t v)
{
    for (; v > 127; v >>= 7)
        clb_text_add(t, &(char){ (char)(v | 128) }, 1);
    clb_text_add(t, &(char){ (char)v }, 1);
}

static void put_number(struct clb_text *t, unsigned field, uint64_t v)
{
    put_varint(t, field << 3);
    put_varint(t, v);
}

static void put_bytes(struct clb_text *t, unsigned field, const void *p, size_t n)
{
    put_varint(t, field << 3 | 2);
    put_varint(t, n);
    clb_text_add(t, p, n);
}

static void put_piece(struct clb_text *t, const char *name, float score, unsigned type)
{
    struct clb_text piece = { 0 };

    put_bytes(&piece, 1, name, strlen(name));
    put_varint(&piece, 2 << 3 | 5);
    clb_text_add(&piece, (const char *)&score, 4);
    put_number(&piece, 3, type);
    put_bytes(t, 1, piece.p, piece.n);
    clb_text_free(&piece);
}

/* kind 1: Unigram, 2: BPE. */
static void put_trainer(struct clb_text *t, unsigned kind, bool byte_fallback)
{
    struct clb_text m = { 0 };

    put_number(&m, 3, kind);
    put_number(&m, 35, byte_fallback);
    put_bytes(t, 2, m.p, m.n);
    clb_text_free(&m);
}

static void put_normalizer(struct clb_text *t, bool dummy, bool remove)
{
    struct clb_text m = { 0 };

    put_number(&m, 3, dummy);
    put_number(&m, 4, remove);
    put_bytes(t, 3, m.p, m.n);
    clb_text_free(&m);
}

/* 0 <unk>, 1 <s>, 2 </s>, 3 a, 4 b, 5 c, 6 ab, 7 abc, 8 U+2581, 9 U+2581 a, 10 "cc" (as `type`) */
static void put_vocabulary(struct clb_text *t, unsigned type)
{
    static const char *const name[] = {
        "a",
        "b",
        "c",
        "ab",
        "abc",
        "\u2581",
        "\u2581"
        "a",
    };

    put_piece(t, "<unk>", 0, UNKNOWN);
    put_piece(t, "<s>", 0, CONTROL);
    put_piece(t, "</s>", 0, CONTROL);
    for (unsigned i = 0; i < sizeof name / sizeof *name; i++)
        put_piece(t, name[i], -1.0f - (float)i, NORMAL);
    put_piece(t, "cc", 0, type);
}

static bool open_model(struct token_rig *r, const struct clb_text *model, const char *config,
                       struct clb_err *err)
{
    struct clb_spm_source s = { .model = { model->p, model->n },
                                .file = "t.model",
                                .config = { config, config ? strlen(config) : 0 },
                                .config_file = "config.json",
                                .vocab_size = 300 };

    *r = (struct token_rig){ .t = NULL };
    *err = (struct clb_err){ .code = CLB_OK };
    return clb_spm_tokenizer_compile(&r->tables, &s, err) &&
           clb_tokenizer_open(&r->t, r->tables.p, r->tables.n, err);
}

static void check_ids(const struct clb_tokenizer *t, const char *text, bool special,
                      const char *want)
{
    const struct clb_encode_options o = { .parse_special = special, .add_special = special };

    token_check_ids(t, text, &o, want);
}

static void check_text(const struct clb_tokenizer *t, const int32_t *id, size_t n, const char *want)
{
    struct clb_text got = { 0 };
    struct clb_err err;

    CHECK(clb_decode(t, id, n, false, &got, &err));
    CHECK_STR(got.p ? got.p : "", want);
    clb_text_free(&got);
}

static void kinds(void)
{
    static const struct {
        unsigned kind;
        const char *text, *ids;
    } row[] = {
        /* BPE: the best score merges first, so "ab" before "▁a" */
        { 2, "abc", "8 7" },
        { 2, "a  c", "9 8 5" },
        { 2, "axyb", "9 0 4" }, /* a run of unknown characters is one */
        { 2, "cccb", "8 10 5 4" },
        { 2, "<s>c", "8 0 5" }, /* no special token from text */
        /* Unigram: the best sum, ▁ + abc = -6 - 5 against ▁a + b + c = -7 - 2 - 3 */
        { 1, "abc", "8 7" },
        { 1, "axyb", "9 0 4" },
        { 1, "cccb", "8 5 10 4" }, /* of equal sums the piece that starts first is the last one */
        { 1, "", "" },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct clb_text m = { 0 };
        struct token_rig rig;
        struct clb_err err;
        put_vocabulary(&m, DEFINED);
        put_trainer(&m, row[i].kind, false);
        CHECK(open_model(&rig, &m, NULL, &err));
        check_ids(rig.t, row[i].text, false, row[i].ids);
        token_close(&rig);
        clb_text_free(&m);
    }
}

/* <s> in front unless the configuration says otherwise; control pieces are found when asked for. */
static void borders(void)
{
    static const struct {
        const char *config, *text, *ids;
    } row[] = {
        { NULL, "a", "1 9" },
        { "{}", "a", "1 9" },
        { "{\"add_bos_token\":false}", "a", "9" },
        { "{\"add_eos_token\":true,\"add_bos_token\":null}", "a", "1 9 2" },
        { "{\"bos_token\":{\"content\":\"</s>\"}}", "a", "2 9" },
        { "{\"bos_token\":\"ab\"}", "a", "6 9" },
        { NULL, "a</s>b<s>", "1 9 2 4 1" }, /* the space of the start is put there only */
        { "{\"added_tokens_decoder\":{\"11\":{\"content\":\"<x>\",\"lstrip\":true,\"rstrip\":false,"
          "\"single_word\":false,\"special\":true,\"normalized\":false},\"1\":{\"content\":\"<s>\"}"
          "}}",
          "a <x>b", "1 9 11 4" },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct clb_text m = { 0 };
        struct token_rig rig;
        struct clb_err err;
        put_vocabulary(&m, NORMAL);
        put_trainer(&m, 2, false);
        bool ok = open_model(&rig, &m, row[i].config, &err);
        CHECK(ok);
        if (ok)
            check_ids(rig.t, row[i].text, true, row[i].ids);
        token_close(&rig);
        clb_text_free(&m);
    }
}

/* What a decoder leaves out at the start depends on what the normaliser puts there. */
static void decoded(void)
{
    static const int32_t ids[] = { 1, 8, 9, 5, 0, 9, 2 };
    static const struct {
        bool dummy, remove;
        const char *text;
    } row[] = {
        { true, false, " ac \u2047  a" },
        { false, true, "ac \u2047  a" },
        { true, true, "ac \u2047  a" },
        { false, false, "  ac \u2047  a" },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct clb_text m = { 0 };
        struct token_rig rig;
        struct clb_err err;
        put_vocabulary(&m, NORMAL);
        put_normalizer(&m, row[i].dummy, row[i].remove);
        CHECK(open_model(&rig, &m, NULL, &err));
        check_text(rig.t, ids, sizeof ids / sizeof *ids, row[i].text);
        check_ids(rig.t, " a  b ", false,
                  row[i].remove  ? row[i].dummy ? "9 8 4" : "3 8 4"
                  : row[i].dummy ? "8 9 8 8 4 8"
                                 : "9 8 8 4 8");
        token_close(&rig);
        clb_text_free(&m);
    }
}

/* A byte that is not UTF-8 spoils only itself. */
static void bytes(void)
{
    static const int32_t ids[] = { 1, 12 + 0xff, 12 + 0xc3, 12 + 0xa9, 12 + 0xe4, 12 + 0xb8, 4 };
    struct clb_text m = { 0 };
    struct token_rig rig;
    struct clb_err err;

    put_vocabulary(&m, UNUSED);
    put_piece(&m, "x", -3, NORMAL);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        put_piece(&m, name, 0, BYTE);
    }
    put_trainer(&m, 1, true);
    CHECK(open_model(&rig, &m, NULL, &err));
    check_ids(rig.t, "a\u00E9b", false, "9 207 181 4");
    check_ids(rig.t, "cc", false, "8 5 5"); /* a piece that is not used */
    check_text(rig.t, ids, sizeof ids / sizeof *ids, "\uFFFD\u00E9\uFFFD\uFFFDb");
    token_close(&rig);
    clb_text_free(&m);
}

/* Of a model that is otherwise good. */
enum fault { /* clang-format off */
    NO_PIECES, NO_UNKNOWN, TWO_UNKNOWN, TWICE, BAD_TYPE, NAN_SCORE, EMPTY_PIECE, NOT_UTF8,
    BYTE_UNASKED, BYTES_MISSING, WORD_MODEL, UNUSED_BPE, ONE_CONTROL, NO_CHARACTER, LONG_PIECE,
    SHORT_MAP, MAP_TEXT, DENORMALIZER, PIECE_FIELD, MODEL_FIELD, NORMALIZER_FIELD, TOO_MANY,
    N_FAULT,
}; /* clang-format on */

static void put_map(struct clb_text *t, unsigned message, const char *map, size_t n)
{
    struct clb_text m = { 0 };

    put_bytes(&m, 2, map, n);
    put_bytes(t, message, m.p, m.n);
    clb_text_free(&m);
}

static void put_fault(struct clb_text *m, enum fault f)
{
    char text[1100];

    switch (f) {
    case TWO_UNKNOWN:
        put_piece(m, "<u>", 0, UNKNOWN);
        break;
    case TWICE:
        put_piece(m, "ab", 0, NORMAL);
        break;
    case BAD_TYPE:
        put_piece(m, "q", 0, 7);
        break;
    case NAN_SCORE:
        put_piece(m, "q", (float)strtod("nan", NULL), NORMAL);
        break;
    case EMPTY_PIECE:
        put_piece(m, "", 0, NORMAL);
        break;
    case NOT_UTF8:
        put_piece(m, "\xff", 0, NORMAL);
        break;
    case BYTE_UNASKED:
        put_piece(m, "<0x00>", 0, BYTE);
        break;
    case BYTES_MISSING:
        put_piece(m, "<0x00>", 0, BYTE);
        put_trainer(m, 2, true);
        break;
    case WORD_MODEL:
        put_trainer(m, 3, false);
        break;
    case UNUSED_BPE:
        put_piece(m, "q", 0, UNUSED);
        break;
    case ONE_CONTROL:
        put_piece(m, "q", 0, CONTROL);
        break;
    case NO_CHARACTER:
        put_piece(m, "aq", 0, NORMAL);
        break;
    case LONG_PIECE:
        memset(text, 'a', sizeof text);
        text[sizeof text - 1] = 0;
        put_piece(m, text, 0, NORMAL);
        break;
    case SHORT_MAP:
        put_map(m, 3, "\4\0\0\0abc", 7);
        break;
    case MAP_TEXT:
        put_map(m, 3, "\4\0\0\0abcd\xff", 9);
        break;
    case DENORMALIZER:
        put_map(m, 5, "\4\0\0\0abcd", 8);
        break;
    case PIECE_FIELD:
        put_bytes(m, 1, "\x20\1", 2);
        break;
    case MODEL_FIELD:
        put_bytes(m, 6, "", 0);
        break;
    case NORMALIZER_FIELD:
        put_bytes(m, 3, "\x38\1", 2);
        break;
    case TOO_MANY:
        for (int i = 0; i < 300; i++) {
            snprintf(text, sizeof text, "<c%d>", i);
            put_piece(m, text, 0, CONTROL);
        }
        break;
    default:
        break;
    }
}

static void refused(void)
{
    static const char *const says[N_FAULT] = {
        [NO_PIECES] = "t.model: there are no pieces",
        [NO_UNKNOWN] = "there is no piece for what is unknown",
        [TWO_UNKNOWN] = "pieces 0 and 11 are both for what is unknown",
        [TWICE] = "piece 11: 'ab' is piece 6 already",
        [BAD_TYPE] = "piece 11 has the unknown type",
        [NAN_SCORE] = "piece 11 has the score nan",
        [EMPTY_PIECE] = "piece 11 has no text",
        [NOT_UTF8] = "piece 11 is not UTF-8",
        [BYTE_UNASKED] = "'<0x00>' is said to be a byte, but byte_fallback is off",
        [BYTES_MISSING] = "1 pieces for bytes instead of 256",
        [WORD_MODEL] = "model_type 3 is not supported",
        [UNUSED_BPE] = "'q' is unused, which BPE does not support",
        [ONE_CONTROL] = "the control piece 'q' of one character",
        [NO_CHARACTER] = "piece 11 has the character 'q', which is no piece",
        [LONG_PIECE] = "piece 11 has 1099 bytes",
        [SHORT_MAP] = "precompiled_charsmap: a map of 4 bytes in 7",
        [MAP_TEXT] = "precompiled_charsmap: its texts are not UTF-8",
        [DENORMALIZER] = "a denormalizer with a map",
        [PIECE_FIELD] = "field 4 of a piece is not known",
        [MODEL_FIELD] = "field 6 of a model is not known",
        [NORMALIZER_FIELD] = "field 7 of a normalizer is not known",
        [TOO_MANY] = "piece 300, but the model has a vocabulary of 300",
    };

    for (int f = 0; f < N_FAULT; f++) {
        struct clb_text m = { 0 };
        struct token_rig rig;
        struct clb_err err;
        if (f == NO_UNKNOWN)
            put_piece(&m, "a", 0, NORMAL);
        else if (f != NO_PIECES)
            put_vocabulary(&m, NORMAL);
        put_trainer(&m, 2, false);
        put_fault(&m, (enum fault)f);
        CHECK(!open_model(&rig, &m, NULL, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, "t.model");
        CHECK_HAS(err.text, says[f]);
        token_close(&rig);
        clb_text_free(&m);
    }
}

static void refused_configurations(void)
{
    static const char *const row[][2] = {
        { "{\"bos_token\":\"<q>\"}", "config.json: '<q>' marks a border of the text, but is no" },
        { "{\"added_tokens_decoder\":{\"x\":{}}}", "'x' is no token id" },
        { "{\"added_tokens_decoder\":{\"11\":{}}}", "an added token without content" },
        { "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<q>\"}}}", "vocabulary of 300" },
        { "{\"added_tokens_decoder\":{\"1\":{\"content\":\"<q>\"}}}", "added token 1 is '<q>'" },
        { "{\"added_tokens_decoder\":{\"11\":{\"content\":\"<s>\"}}}", "added token 11 is '<s>'" },
        { "{", "config.json" },
    };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct clb_text m = { 0 };
        struct token_rig rig;
        struct clb_err err;
        put_vocabulary(&m, NORMAL);
        put_trainer(&m, 2, false);
        CHECK(!open_model(&rig, &m, row[i][0], &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, row[i][1]);
        token_close(&rig);
        clb_text_free(&m);
    }
}

/* Whatever the bytes are, it ends, and never reads outside of them. */
static void changed_files(void)
{
    struct clb_text m = { 0 };
    uint64_t state = 1;

    put_vocabulary(&m, DEFINED);
    put_trainer(&m, 1, false);
    put_normalizer(&m, true, true);
    put_map(&m, 3, "\10\0\0\0\1\2\3\4\5\6\7\10ab\0", 15);
    for (int i = 0; i < 20000; i++) {
        struct clb_text copy = { 0 };
        struct token_rig rig;
        struct clb_err err;
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t n = i % 2 ? m.n : (size_t)(state >> 33) % m.n;
        char *exact = malloc(n + 1);
        memcpy(exact, m.p, n);
        if (i % 2)
            exact[(state >> 40) % n] = (char)(state >> 33);
        copy = (struct clb_text){ .p = exact, .n = n };
        if (open_model(&rig, &copy, NULL, &err)) {
            const struct clb_encode_options o = { .add_special = true };
            struct clb_ids ids = { 0 };
            clb_encode(rig.t, "abc  <s>ccab\u00E9", 14, &o, &ids, &err);
            clb_ids_free(&ids);
        } else {
            CHECK_EQ(err.code, CLB_BAD_INPUT);
        }
        token_close(&rig);
        free(exact);
    }
    clb_text_free(&m);
}

int main(void)
{
    TEST(kinds);
    TEST(borders);
    TEST(decoded);
    TEST(bytes);
    TEST(refused);
    TEST(refused_configurations);
    TEST(changed_files);
    return test_result();
}
