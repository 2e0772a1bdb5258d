/* What compiling a tiktoken.model accepts and refuses. The files are made here: the bytes have the
 * ranks 0 to 255. */
#include "lib/import/tiktoken.h"
#include "test/unit/token_rig.h"

enum { VOCABULARY = 400 }; /* of the model; the file has 267 ranks */

#define KIMI                  "tokenization_kimi.TikTokenTokenizer"
#define CLASS                 "\"auto_map\":{\"AutoTokenizer\":[\"" KIMI "\",null]}"
#define TOKEN(id, text, more) "\"" #id "\":{\"content\":\"" text "\"" more "}"
#define ADDED(tokens)         "{" CLASS ",\"added_tokens_decoder\":{" tokens "}}"
#define BOS                   TOKEN(267, "[BOS]", ",\"special\":true,\"lstrip\":false")
#define EOS                   TOKEN(268, "[EOS]", ",\"special\":true")
static const char good_config[] = ADDED(BOS "," EOS "," TOKEN(270, "<tool>", ""));

static void put_line(struct clb_text *t, const char *bytes, size_t n, unsigned rank)
{
    static const char letter[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++)
            v = v << 8 | (i + k < n ? (uint8_t)bytes[i + k] : 0u);
        clb_text_printf(t, "%c%c%c%c", letter[v >> 18], letter[v >> 12 & 63],
                        i + 1 < n ? letter[v >> 6 & 63] : '=', i + 2 < n ? letter[v & 63] : '=');
    }
    clb_text_printf(t, " %u\n", rank);
}

/* 256 ab, 257 bc, 258 abc, 259 xyz, 260 aa, 261 aaa, 262 aB, 263 1234, 264 it's, 265 x and U+4E2D,
 * 266 [EOS] */
static void put_vocabulary(struct clb_text *t)
{
    static const char *const token[] = { "ab", "bc",   "abc",  "xyz",     "aa",   "aaa",
                                         "aB", "1234", "it's", "x\u4E2D", "[EOS]" };

    for (unsigned b = 0; b < 256; b++)
        put_line(t, &(char){ (char)b }, 1, b);
    for (unsigned i = 0; i < sizeof token / sizeof *token; i++)
        put_line(t, token[i], strlen(token[i]), 256 + i);
}

static bool open_model(struct token_rig *r, struct clb_str model, const char *config,
                       struct clb_err *err)
{
    struct clb_tiktoken_source s = { .model = model,
                                     .file = "t.model",
                                     .config = { config, config ? strlen(config) : 0 },
                                     .config_file = "config.json",
                                     .vocab_size = VOCABULARY };

    *r = (struct token_rig){ .t = NULL };
    *err = (struct clb_err){ .code = CLB_OK };
    return clb_tiktoken_compile(&r->tables, &s, err) &&
           clb_tokenizer_open(&r->t, r->tables.p, r->tables.n, err);
}

static bool open_good(struct token_rig *r)
{
    struct clb_text m = { 0 };
    struct clb_err err;

    put_vocabulary(&m);
    bool ok = open_model(r, (struct clb_str){ m.p, m.n }, good_config, &err);
    CHECK(ok);
    if (!ok)
        printf("# %s\n", err.text);
    clb_text_free(&m);
    return ok;
}

static void check_ids(const struct clb_tokenizer *t, const char *text, bool special,
                      const char *want)
{
    const struct clb_encode_options o = { .parse_special = special, .add_special = true };

    token_check_ids(t, text, &o, want);
}

static void encoded(void)
{
    static const struct {
        const char *text, *ids;
    } row[] = {
        { "", "" },
        { "abc", "258" },
        { "abcx", "258 120" }, /* ab, then abc */
        { "xbc", "120 257" },  /* the other way to abc is never taken */
        { "xyz", "259" },      /* no two parts of it are tokens: only as a whole word */
        { "xyzx", "120 121 122 120" },
        { "aaaaa", "260 261" },    /* aa, aa, a: the leftmost of equals first */
        { "aB", "97 66" },         /* a word ends before a capital */
        { "1234", "49 50 51 52" }, /* three digits are a word */
        { "it's", "264" },
        { "x\u4E2D", "120 228 184 173" }, /* Han is a word of its own */
        { "\u4E2Dx", "228 184 173 120" },
        { "[EOS]", "91 69 79 83 93" },
    };
    struct token_rig rig;

    if (!open_good(&rig))
        return;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        check_ids(rig.t, row[i].text, false, row[i].ids);
    token_close(&rig);
}

/* A word of more than the parts that the pattern's machine could remember one by one. */
static void long_words(void)
{
    char text[4001];
    struct clb_text want = { 0 };
    struct token_rig rig;

    if (!open_good(&rig))
        return;
    for (int i = 0; i < 4000; i++)
        text[i] = i % 2 ? 'y' : 'x';
    text[4000] = 0;
    for (int i = 0; i < 4000; i++)
        clb_text_printf(&want, "%s%d", i ? " " : "", i % 2 ? 121 : 120);
    check_ids(rig.t, text, false, want.p);
    clb_text_free(&want);
    token_close(&rig);
}

static void special(void)
{
    static const int32_t ids[] = { 267, 258, 228, 270, 399, 268 };
    struct clb_text got = { 0 };
    struct clb_err err;
    struct token_rig rig;

    if (!open_good(&rig))
        return;
    check_ids(rig.t, "[BOS]abc<tool>[EOS]", true, "267 258 270 268");
    check_ids(rig.t, "<|reserved_token_269|><|reserved_token_399|>", true, "269 399");
    check_ids(rig.t, "<tool>", false, "60 116 111 111 108 62");
    CHECK_EQ(clb_tokenizer_size(rig.t), VOCABULARY); /* 525 ids, but the model has no more */
    CHECK_EQ(clb_token_find(rig.t, clb_str("<|reserved_token_400|>")), -1);
    CHECK_EQ(clb_token_find(rig.t, clb_str("<|reserved_token_270|>")), -1);
    CHECK_EQ(clb_token_find(rig.t, clb_str("[EOS]")), 268); /* not the rank of this spelling */
    CHECK(clb_decode(rig.t, ids, 6, false, &got, &err));
    CHECK_STR(got.p, "[BOS]abc\uFFFD<tool><|reserved_token_399|>[EOS]");
    clb_text_clear(&got);
    CHECK(clb_decode(rig.t, ids, 6, true, &got, &err));
    CHECK_STR(got.p, "abc\uFFFD<tool><|reserved_token_399|>");
    clb_text_free(&got);
    token_close(&rig);
}

/* Ends of lines, empty lines and the order of the lines make no difference. */
static void spellings(void)
{
    struct clb_text m = { 0 }, other = { 0 };
    struct token_rig rig, same;
    struct clb_err err;

    put_vocabulary(&m);
    CHECK_STR(m.p + m.n - 13, "W0VPU10= 266\n");
    clb_text_puts(&other, "W0VPU10= 266\r\n\n");
    clb_text_add(&other, m.p, m.n - 14); /* nor the last newline */
    CHECK(open_model(&rig, (struct clb_str){ m.p, m.n }, good_config, &err));
    CHECK(open_model(&same, (struct clb_str){ other.p, other.n }, good_config, &err));
    check_ids(same.t, "abcx[EOS]", true, "258 120 268");
    CHECK_EQ(rig.tables.n, same.tables.n);
    token_close(&rig);
    token_close(&same);
    clb_text_free(&m);
    clb_text_free(&other);
}

static void classes(void)
{
    static const char *const name[] = {
        "\"tokenization_moonshot.TikTokenTokenizer\"",
        "[\"owner/name--tokenization_kimi.TikTokenTokenizer\",null]",
    };
    struct clb_text m = { 0 };

    put_vocabulary(&m);
    for (int i = 0; i < 2; i++) {
        struct clb_text config = { 0 };
        struct token_rig rig;
        struct clb_err err;
        clb_text_printf(
            &config, "{\"auto_map\":{\"AutoTokenizer\":%s},\"added_tokens_decoder\":{}}", name[i]);
        CHECK(open_model(&rig, (struct clb_str){ m.p, m.n }, config.p, &err));
        token_close(&rig);
        clb_text_free(&config);
    }
    clb_text_free(&m);
}

/* The good file with `from` replaced by `to`; from NULL: `to` alone. */
static void edit(struct clb_text *m, const char *from, const char *to)
{
    struct clb_text good = { 0 };

    clb_text_clear(m);
    put_vocabulary(&good);
    const char *at = from ? strstr(good.p, from) : NULL;
    CHECK(!from || at);
    if (!from || at) {
        clb_text_add(m, good.p, from ? (size_t)(at - good.p) : 0);
        clb_text_puts(m, to);
        if (from)
            clb_text_puts(m, at + strlen(from));
    }
    clb_text_free(&good);
}

static void refused(void)
{
    static const struct {
        const char *from, *to, *says;
    } row[] = {
        { NULL, "", "t.model: has no tokens" },
        { NULL, "\n\n", "t.model: has no tokens" },
        { "YWI= 256\n", "YWI=\n", "line 257: a token in base64, a space and its rank" },
        { "YWI= 256\n", "YWI=\t256\n", "line 257: a token in base64, a space and its rank" },
        { "YWI= 256\n", " 256\n", "line 257: '' is no base64" },
        { "YWI= 256\n", "YWI 256\n", "line 257: 'YWI' is no base64" },
        { "YWI= 256\n", "YW*= 256\n", "line 257: 'YW*=' is no base64" },
        { "YWI= 256\n", "Y=I= 256\n", "line 257: 'Y=I=' is no base64" },
        { "YWI= 256\n", "Y=== 256\n", "line 257: 'Y===' is no base64" },
        { "YWI= 256\n", "YWJ= 256\n", "line 257: 'YWJ=' is no base64" }, /* two bits too many */
        { "YWI= 256\n", "YWI= \n", "line 257: '' is no rank" },
        { "YWI= 256\n", "YWI= -1\n", "line 257: '-1' is no rank" },
        { "YWI= 256\n", "YWI= 0256\n", "line 257: '0256' is no rank" },
        { "YWI= 256\n", "YWI=  256\n", "line 257: ' 256' is no rank" },
        { "YWI= 256\n", "YWI= 256 \n", "line 257: '256 ' is no rank" },
        { "YWI= 256\n", "YWI= 4294967552\n", "line 257: '4294967552' is no rank" },
        { "YWI= 256\n", "YWI= 267\n", "line 257: rank 267, but there are only 267 tokens" },
        { "YWI= 256\n", "YWI= 255\n", "line 257: rank 255 is there twice" },
        { "YWI= 256\n", "", "line 266: rank 266, but there are only 266 tokens" },
        { "YmM= 257\n", "YWI= 257\n", "line 258: the token has rank 256 already" },
        { "QQ== 65\n", "QUFB 65\n", "there is no token for the byte 0x41" },
    };
    struct clb_text m = { 0 };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct token_rig rig;
        struct clb_err err;
        edit(&m, row[i].from, row[i].to);
        CHECK(!open_model(&rig, (struct clb_str){ m.p, m.n }, good_config, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, "t.model");
        CHECK_HAS(err.text, row[i].says);
        token_close(&rig);
    }
    clb_text_free(&m);
}

static void too_large(void)
{
    char text[1025];
    struct clb_text m = { 0 };
    struct token_rig rig;
    struct clb_err err;

    memset(text, 'a', sizeof text);
    put_vocabulary(&m);
    put_line(&m, text, 1025, 267);
    CHECK(!open_model(&rig, (struct clb_str){ m.p, m.n }, "{" CLASS "}", &err));
    CHECK_HAS(err.text, "t.model: line 268: a token of 1025 bytes, but 1024 are supported");
    token_close(&rig);
    for (int i = 268; i <= VOCABULARY; i++)
        put_line(&m, "q", 1, 0);
    CHECK(!open_model(&rig, (struct clb_str){ m.p, m.n }, "{" CLASS "}", &err));
    CHECK_HAS(err.text, "t.model: 401 tokens, but the model has a vocabulary of 400");
    token_close(&rig);
    clb_text_free(&m);
}

static void refused_configurations(void)
{
    static const char *const row[][2] = {
        { NULL, "t.model: a tiktoken vocabulary does not say how text is split, and there is no "
                "tokenizer_config.json to name its class; put a tokenizer.json beside it, or take "
                "it out of the folder to use token ids only" },
        { "{}", "t.model: a tiktoken vocabulary does not say how text is split, and "
                "tokenizer_config.json names no class; put" },
        { "{\"tokenizer_class\":\"QWenTokenizer\"}", "the class 'QWenTokenizer' is not known" },
        { "{\"tokenizer_class\":\"TikTokenTokenizer\"}",
          "the class 'TikTokenTokenizer' is not known" }, /* many have this name */
        { "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.Other\",null]}}",
          "the class 'tokenization_kimi.Other' is not known" },
        { "{\"auto_map\":{\"AutoTokenizer\":[]}}", "names no class" },
        { "{\"auto_map\":{\"AutoTokenizer\":7}}", "config.json: " },
        { "{" CLASS "}", "config.json: has no added_tokens_decoder" },
        { ADDED(TOKEN(x, "<q>", "")), "'x' is no token id" },
        { ADDED(TOKEN(5, "<q>", "")),
          "added token 5, but that is a rank of t.model, which has 267" },
        { ADDED(TOKEN(525, "<q>", "")), "added token 525, but behind the 267 ranks of t.model are "
                                        "258 ids" },
        { ADDED(TOKEN(400, "<q>", "")), "added token 400, but the model has a vocabulary of 400" },
        { ADDED(TOKEN(267, "", "")), "added token 267 has no content" },
        { ADDED(TOKEN(267, "<q>", ",\"lstrip\":true")), "lstrip, rstrip and single_word are not" },
        { ADDED(TOKEN(267, "<q>", "") "," TOKEN(268, "<q>", "")),
          "'<q>' would be token 267 and token 268" },
        { ADDED(TOKEN(267, "<|reserved_token_268|>", "")),
          "'<|reserved_token_268|>' would be token 267 and token 268" },
        { "{", "config.json" },
    };
    struct clb_text m = { 0 };

    put_vocabulary(&m);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct token_rig rig;
        struct clb_err err;
        CHECK(!open_model(&rig, (struct clb_str){ m.p, m.n }, row[i][0], &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_HAS(err.text, row[i][1]);
        token_close(&rig);
    }
    clb_text_free(&m);
}

/* Whatever the bytes are, it ends, and never reads outside of them. */
static void changed_files(void)
{
    struct clb_text m = { 0 };
    uint64_t state = 1;
    unsigned opened = 0;

    put_vocabulary(&m);
    for (int i = 0; i < 2000; i++) {
        struct token_rig rig;
        struct clb_err err;
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t n = i % 2 ? m.n : (size_t)(state >> 33) % m.n;
        char *exact = malloc(n + 1);
        memcpy(exact, m.p, n);
        exact = realloc(exact, n ? n : 1);
        if (i % 2)
            exact[(state >> 40) % n] = (char)(state >> 33);
        if (open_model(&rig, (struct clb_str){ exact, n }, good_config, &err)) {
            check_ids(rig.t, "", true, "");
            opened++;
        } else {
            CHECK_EQ(err.code, CLB_BAD_INPUT);
        }
        token_close(&rig);
        free(exact);
    }
    CHECK(opened > 0);
    clb_text_free(&m);
}

int main(void)
{
    TEST(encoded);
    TEST(long_words);
    TEST(special);
    TEST(spellings);
    TEST(classes);
    TEST(refused);
    TEST(too_large);
    TEST(refused_configurations);
    TEST(changed_files);
    return test_result();
}
