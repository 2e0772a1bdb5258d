/* What compiling a tokenizer.json accepts and refuses: every refusal names the place. */
#include "lib/base/mem.h"
#include "lib/token/tables.h"
#include "test/unit/token_rig.h"

static const char base[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],"
    "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

/* The base with the first `from` replaced by `to`. */
static void edit(struct clb_text *out, const char *from, const char *to)
{
    const char *at = strstr(base, from);

    clb_text_clear(out);
    CHECK(at != NULL);
    clb_text_add(out, base, (size_t)(at - base));
    clb_text_puts(out, to);
    clb_text_puts(out, at + strlen(from));
}

#define ADDED(rest) "\"added_tokens\":[{\"id\":3," rest "}]"
#define FLAGS(special)                                                                             \
    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"                \
    "\"special\":" special

static void refused(void)
{
    static const struct {
        const char *from, *to, *says;
    } row[] = {
        { "\"1.0\"", "\"2.0\"", "byte 11: 'version': version '2.0'" },
        { "\"version\"", "\"surprise\":1,\"version\"",
          "byte 12: 'surprise': the key 'surprise' is not" },
        { "\"truncation\":null", "\"truncation\":{\"max_length\":9}",
          "byte 30: 'truncation' would cut" },
        { "\"padding\":null", "\"padding\":{\"strategy\":{\"Fixed\":9}}",
          "only the strategy BatchLongest" },
        { "\"padding\":null", "\"padding\":{\"pad_to_multiple_of\":8}",
          "'pad_to_multiple_of' is not known" },
        { "\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "the model 'WordPiece' is not supported" },
        { "\"dropout\":null", "\"dropout\":0.1", "dropout is for training" },
        { "\"dropout\":null", "\"dropsy\":true", "the key 'dropsy' is not known" },
        { "\"merges\":[\"a b\"]", "\"merges\":[\"a\"]", "a merge has two pieces with one space" },
        { "\"merges\":[\"a b\"]", "\"merges\":[\"a  b\"]",
          "a merge has two pieces with one space" },
        { "\"merges\":[\"a b\"]", "\"merges\":[\"a c\"]", "'c' is not in the vocabulary" },
        { "\"merges\":[\"a b\"]", "\"merges\":[\"b a\"]", "'ba' is not in the vocabulary" },
        { "\"merges\":[\"a b\"]", "\"merges\":[[\"a\"]]", "a merge has two pieces" },
        { "\"merges\":[\"a b\"]", "\"merges\":[[\"a\",\"b\",\"c\"]]", "a merge has two pieces" },
        { "\"merges\":[\"a b\"]", "\"merges\":[[\"a\",\"b\"],\"a b\"]",
          "lines or pairs, not both" },
        { ",\"merges\":[\"a b\"]", "", "the model has no 'merges'" },
        { "\"a\":0,", "\"a\":1,", "id 1 belongs to 'a' already" },
        { "\"a\":0,", "\"a\":1000,", "id 1000, but the model has a vocabulary of 1000" },
        { "\"a\":0,", "\"a\":-1,", "t.json: vocab: byte 309: 'a': -1 is negative" },
        { "\"a\":0,", "\"a\":0,\"a\":3,", "'model.vocab.a': duplicate key" },
        { "\"a\":0,", "\"\xff\":0,", "UTF-8" },
        { "[\"a b\"]", "[\"a \xc3\"]", "UTF-8" },
        { "\"unk_token\":null", "\"unk_token\":\"<unk>\"",
          "the unk_token '<unk>' is not in the vocab" },
        { "\"added_tokens\":[]", ADDED("\"content\":\"x\""), "an added token has id, content" },
        { "\"added_tokens\":[]", ADDED("\"content\":\"x\",\"odd\":1," FLAGS("true")),
          "'odd' is not known" },
        { "\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}",
          "byte 81: the normalizer 'Precompiled' is not supported" },
        { "\"normalizer\":null", "\"normalizer\":{\"type\":\"Prepend\"}",
          "'Prepend' lacks 'prepend'" },
        { "\"normalizer\":null", "\"normalizer\":{\"prepend\":\"x\"}",
          "this object has no 'type'" },
        { "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\",\"stop\":1}",
          "'NFC' with 'stop' is not understood" },
        { "\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}",
          "the pre-tokenizer 'BertPreTokenizer' is not supported" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "the pattern '(a)\\1'" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "an empty pattern" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},"
          "\"behavior\":\"Sideways\",\"invert\":false}",
          "'Sideways' is none of Removed, Isolated, Contiguous" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":"
          "true}",
          "the decoder must be ByteLevel" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
          "\"add_prefix_space\":false,\"trim_offsets\":true},{\"type\":\"Digits\","
          "\"individual_digits\":true}]}",
          "'Digits' after ByteLevel (byte 138) is not supported" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}",
          "is one character, not 'ab'" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab&&[^b]]\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "a set inside a set" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^a&&[^\\\\p{Han}]]\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "a set inside a set" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[&&[^\\\\p{Han}]]\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "a set inside a set" },
        { "\"post_processor\":null", "\"post_processor\":{\"type\":\"Odd\"}",
          "the post-processor 'Odd' is not supported" },
        { "\"post_processor\":null",
          "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
          "{\"id\":\"z\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}}",
          "the template's 'z' is not in special_tokens" },
        { "\"post_processor\":null",
          "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"pair\":[],"
          "\"special_tokens\":{}}",
          "lacks the text" },
        { "\"post_processor\":null",
          "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
          "{\"id\":\"a\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
          "\"special_tokens\":{\"a\":{\"id\":\"a\",\"ids\":[77],\"tokens\":[\"a\"]}}}",
          "there is no token 77" },
        { "\"decoder\":null", "\"decoder\":{\"type\":\"CTC\"}",
          "the decoder 'CTC' is not supported" },
        { "\"decoder\":null",
          "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
          "\"ByteFallback\"}]}",
          "'ByteFallback' is not supported at this place" },
        { "\"decoder\":null",
          "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
          "\"Strip\","
          "\"content\":\" \",\"start\":0,\"stop\":1}]}",
          "Strip at the end of the text" },
        { "{\"version\"", "{{\"version\"", "byte 1" },
        { "\"merges\":[\"a b\"]}}", "\"merges\":[\"a b\"]}", "t.json" },
    };
    struct clb_text json = { 0 };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct token_rig rig;
        struct clb_err err;
        edit(&json, row[i].from, row[i].to);
        CHECK(!token_open_text(&rig, json.p, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, "t.json");
        CHECK_HAS(err.text, row[i].says);
        token_close(&rig);
    }
    clb_text_free(&json);
}

static void check_ids(const struct clb_tokenizer *t, const char *text, bool special,
                      const char *want)
{
    const struct clb_encode_options o = { .parse_special = true, .add_special = special };

    token_check_ids(t, text, &o, want);
}

static void accepted(void)
{
    static const struct {
        const char *from, *to, *text, *ids;
    } row[] = {
        { "\"version\"", "\"version\"", "abba", "2 1 0" },
        { "[\"a b\"]", "[[\"a\",\"b\"]]", "abba", "2 1 0" },
        { "[\"a b\"]", "[\"#version: 0.2\",\"a b\"]", "abba", "2 1 0" },
        { "\"dropout\":null", "\"dropout\":0.0", "abba", "2 1 0" },
        /* merges that lead back to where they began, which no word ever meets */
        { "\"a\":0,\"b\":1,\"ab\":2},\"merges\":[",
          "\"a\":0,\"b\":1,\"ab\":2,\"\":3},\"merges\":[\" a\",\"a \",\" \",", "abba", "2 1 0" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b+$\"},"
          "\"behavior\":\"Removed\",\"invert\":false}",
          "abbabb", "2 1 0" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a?b+\"},"
          "\"behavior\":\"Removed\",\"invert\":false}",
          "abbaabba", "0 0" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":"
          "\"[\\\\p{Lo}b&&[^\\\\p{Han}]]+\"},\"behavior\":\"Removed\",\"invert\":true}",
          "a\u4E2D\u3042bab\u4E2D", "1 1" },
        { "\"type\":\"BPE\",", "", "abba", "2 1 0" },
        { "\"version\"", "\"surprise\":[ ],\"version\"", "abba", "2 1 0" },
        { "\"padding\":null", "\"padding\":{\"strategy\":\"BatchLongest\",\"pad_id\":0}", "ab",
          "2" },
        { "\"added_tokens\":[]", ADDED("\"content\":\"ba\"," FLAGS("true")), "abba", "2 3" },
        { "\"added_tokens\":[]", ADDED("\"content\":\"\"," FLAGS("true")), "abba", "2 1 0" },
        { "\"unk_token\":null", "\"unk_token\":\"a\"", "xxa", "0 0 0" },
        { "\"fuse_unk\":false", "\"unk_token\":\"a\",\"fuse_unk\":true", "xxa", "0 0" },
        { "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "AB", "2" },
        { "\"normalizer\":null",
          "\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " ab\n",
          "2" },
        { "\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},"
          "\"behavior\":\"Isolated\",\"invert\":false}",
          "abba", "0 1 1 0" },
        { "\"post_processor\":null",
          "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"BertProcessing\","
          "\"sep\":[\"a\",0],\"cls\":[\"b\",1]},{\"type\":\"RobertaProcessing\",\"sep\":[\"b\",1],"
          "\"cls\":[\"ab\",2],\"trim_offsets\":true,\"add_prefix_space\":true}]}",
          "a", "2 1 0 0 1" },
    };
    struct clb_text json = { 0 };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct token_rig rig;
        struct clb_err err;
        edit(&json, row[i].from, row[i].to);
        if (strstr(row[i].to, "\"unk_token\":\"a\",")) { /* or the key would be there twice */
            char *twice = strstr(json.p, "\"unk_token\":null,");
            memset(twice, ' ', strlen("\"unk_token\":null,"));
        }
        bool ok = token_open_text(&rig, json.p, &err);
        CHECK(ok);
        if (ok)
            check_ids(rig.t, row[i].text, true, row[i].ids);
        else
            printf("# %s\n", err.text);
        token_close(&rig);
    }
    clb_text_free(&json);
}

/* The members of "model" from the vocabulary on are known to be the last. */
static void open_model_tail(struct token_rig *rig, const char *pre_tokenizer, const char *tail)
{
    struct clb_text json = { 0 };
    struct clb_err err;

    clb_text_printf(&json, "{\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\",%s}}", pre_tokenizer,
                    tail);
    CHECK(token_open_text(rig, json.p, &err));
    clb_text_free(&json);
}

/* A pattern that would try for ever on some text: an error, soon. */
static void endless_pattern(void)
{
    const struct clb_encode_options o = { .add_special = false };
    struct clb_ids ids = { 0 };
    struct clb_err err;
    struct token_rig rig;

    open_model_tail(&rig,
                    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|aa|a)+c\"},\"behavior\":"
                    "\"Isolated\",\"invert\":false}",
                    "\"vocab\":{\"a\":0},\"merges\":[]");
    CHECK(clb_encode(rig.t, "aaaac", 5, &o, &ids, &err));
    CHECK(!clb_encode(rig.t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 56, &o,
                      &ids, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "takes too many steps on this text");
    CHECK_EQ(ids.n, 4); /* of the text before */
    clb_ids_free(&ids);
    token_close(&rig);
}

/* Replacements that multiply each other: an error before the text is huge. */
static void endless_growth(void)
{
    static const char step[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}";
    const struct clb_encode_options o = { .add_special = false };
    struct clb_text json = { 0 };
    struct clb_ids ids = { 0 };
    struct clb_err err;
    struct token_rig rig;

    clb_text_printf(
        &json,
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s,%s,%s,%s]},\"model\":"
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        step, step, step, step);
    CHECK(token_open_text(&rig, json.p, &err));
    clb_text_free(&json);
    CHECK(clb_encode(rig.t, "b", 1, &o, &ids, &err));
    CHECK(!clb_encode(rig.t, "aaaaa", 5, &o, &ids, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "makes too much of 5 bytes of text");
    clb_ids_free(&ids);
    token_close(&rig);
}

/* As many merges as a file may have, all of one pair: the last one counts. */
static void many_merges(void)
{
    enum { N = 200000 };
    struct clb_text tail = { 0 };
    struct token_rig rig;

    clb_text_puts(&tail, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3},\"merges\":[");
    for (int i = 0; i < N; i++)
        clb_text_puts(&tail, "\"a b\",");
    clb_text_puts(&tail, "\"b a\",\"a b\"]");
    open_model_tail(&rig, "null", tail.p);
    check_ids(rig.t, "aba", false, "0 3");
    clb_text_free(&tail);
    token_close(&rig);
}

/* Ends, and in memory that the file's size bounds, whatever the file is. */
static void cut_files(void)
{
    struct clb_text json = { 0 };
    struct clb_err err;
    struct token_rig rig;

    for (size_t n = 0; n + 1 < sizeof base; n++) {
        clb_text_clear(&json);
        clb_text_add(&json, base, n);
        CHECK(!token_open_text(&rig, json.p ? json.p : "", &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        token_close(&rig);
    }
    clb_text_clear(&json);
    for (int i = 0; i < 40; i++)
        clb_text_puts(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 40; i++)
        clb_text_puts(&json, "]}");
    char *deep = json.p;
    json = (struct clb_text){ 0 };
    clb_text_printf(&json, "{\"normalizer\":%s,\"model\":{}}", deep);
    CHECK(!token_open_text(&rig, json.p, &err));
    CHECK_HAS(err.text, "nested more than 8 deep");
    token_close(&rig);
    clb_free(deep);
    clb_text_free(&json);
}

/* The next text of 8 bytes with this lower half of clb_key_hash: the hash run backwards, until what
 * comes out can stand in JSON. */
static void colliding(char text[9], uint64_t *state)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t inverse = 1;

    for (int i = 0; i < 6; i++)
        inverse *= 2 - k * inverse;
    for (bool ok = false; !ok;) {
        uint64_t h = ((*state += 0x2545f4914f6cdd1du) << 32 | 7) * inverse;
        h ^= h >> 32;
        h *= inverse;
        h ^= h >> 29 ^ h >> 58;
        h = h * inverse ^ 8 * k;
        memcpy(text, &h, 8);
        text[8] = '\0';
        ok = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                          "!#$%&'()*+,-./:;<=>?@[]^_`{|}~") == 8;
    }
}

/* A vocabulary that would make hash tables search for ever. */
static void made_to_collide(void)
{
    struct clb_text json = { 0 }, tables = { 0 };
    struct clb_err err;
    uint64_t state = 0;
    char text[9], other[9];

    colliding(text, &state);
    colliding(other, &state);
    CHECK(strcmp(text, other) && (uint32_t)clb_key_hash(text, 8) == 7 &&
          (uint32_t)clb_key_hash(other, 8) == 7);
    clb_text_puts(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 1100; i++) {
        colliding(text, &state);
        clb_text_printf(&json, "%s\"%s\":%d", i ? "," : "", text, i);
    }
    clb_text_puts(&json, "}}}");
    CHECK(!clb_hf_tokenizer_compile(&tables, json.p, json.n, "t.json", 5000, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "names have the same hash");
    clb_text_free(&json);
    clb_text_free(&tables);
}

int main(void)
{
    TEST(made_to_collide);
    TEST(refused);
    TEST(accepted);
    TEST(endless_pattern);
    TEST(endless_growth);
    TEST(many_merges);
    TEST(cut_files);
    return test_result();
}
