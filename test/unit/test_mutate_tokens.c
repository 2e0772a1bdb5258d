/* Random bytes of tokenizer tables are changed. Opening must refuse, or encode and decode must end
 * without a read outside of the tables, which stop at a page that cannot be read. MUTATIONS=N in
 * the environment asks for more. */
#include <sys/mman.h>
#include <unistd.h>

#include "test/unit/token_rig.h"

enum { MUTATIONS = 9000 };

static uint64_t state = 1;
static unsigned long opened;

static uint32_t rnd(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static const char *const texts[] = {
    "Once upon a time, there was a <s>[INST] <lstrip>  <single> can't DON'T 1234567",
    "e\u0301 \u4E16\u754C \U0001F600\U0001F600   \n\n\tx\u2581y \xff\xfe z",
    "<|endoftext|> abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc",
};

static void use(const struct clb_tokenizer *t)
{
    struct clb_ids ids = { 0 };
    struct clb_text text = { 0 };
    struct clb_err err = { .code = CLB_OK };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct clb_encode_options o = { .parse_special = i & 1, .add_special = true };
        if (!clb_encode(t, texts[i], strlen(texts[i]), &o, &ids, &err))
            CHECK(err.code != CLB_OK);
    }
    for (int i = 0; i < 50; i++) {
        int32_t id = (int32_t)rnd(clb_tokenizer_size(t) + 2) - 1;
        if (!clb_decode(t, &id, 1, i & 1, &text, &err))
            CHECK(err.code != CLB_OK);
    }
    clb_decode(t, ids.id, ids.n, false, &text, &err);
    clb_token_find(t, clb_str("<s>"));
    clb_text_free(&text);
    clb_ids_free(&ids);
}

static void mutate(const struct token_rig *rig, uint8_t *copy, size_t n)
{
    struct clb_tokenizer *t;
    struct clb_err err;
    uint32_t changes = 1 + rnd(4);
    /* half of the changes in the head and the sections of the steps, which are small */
    uint32_t at[4];

    for (uint32_t i = 0; i < changes; i++) {
        at[i] = rnd(2) ? rnd(400) : rnd((uint32_t)n);
        copy[at[i]] = rnd(2) ? (uint8_t)rnd(256) : (uint8_t)(copy[at[i]] + rnd(3) - 1);
    }
    if (clb_tokenizer_open(&t, copy, n, &err)) {
        opened++;
        use(t);
        clb_tokenizer_close(t);
    } else {
        CHECK(err.code == CLB_BAD_INPUT || err.code == CLB_NO_SPACE);
    }
    for (uint32_t i = 0; i < changes; i++)
        copy[at[i]] = (uint8_t)rig->tables.p[at[i]];
}

static void changed_tables(void)
{
    const char *more = getenv("MUTATIONS");
    unsigned long count = more ? strtoul(more, NULL, 10) : MUTATIONS;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    opened = 0;
    for (int i = 0; i < N_TOKEN_NAMES + 2; i++) { /* the last two from a tokenizer.model */
        struct token_rig rig;
        CHECK(i < N_TOKEN_NAMES ? token_open(&rig, token_names[i])
                                : token_open_spm(&rig, i == N_TOKEN_NAMES ? "syn_spm_bpe"
                                                                          : "syn_unigram_bytefb"));
        size_t n = rig.tables.n & ~(size_t)7, room = (n + page - 1) / page * page;
        uint8_t *map =
            mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(map != MAP_FAILED && !mprotect(map + room, page, PROT_NONE));
        memcpy(map + room - n, rig.tables.p, n);
        for (unsigned long k = 0; k < count / (N_TOKEN_NAMES + 2); k++)
            mutate(&rig, map + room - n, n);
        munmap(map, room + page);
        token_close(&rig);
    }
    CHECK(opened > count / 10);
    printf("# %lu of %lu opened\n", opened, count);
}

/* -- the file they are made from ----------------------------------------------------------------
 */

static const char source[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":{\"strategy\":\"BatchLongest\"},"
    "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":true,"
    "\"rstrip\":true,\"normalized\":true,\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"
    "\"Replace\",\"pattern\":{\"Regex\":\"[^a-c\\\\p{Lu}]{2,}|(?i:xk)*+y\"},\"content\":\"a\"},{"
    "\"type\":"
    "\"Prepend\",\"prepend\":\"b\"},{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}]"
    "},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"(?:\\\\s|b(?=a)|(?>c+)){1,3}$\"},\"behavior\":\"MergedWithNext\",\"invert\":false}"
    ",{"
    "\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Metaspace\",\"replacement\":\"c\","
    "\"prepend_scheme\":\"first\",\"split\":true}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\","
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{"
    "\"<s>\":{\"id\":\"<s>\",\"ids\":[9],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"c\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"u\",\"fuse_unk\":true,"
    "\"byte_fallback\":true,\"ignore_merges\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"c\":3,"
    "\"cab\":4,\"<0xE4>\":5,\"<0xB8>\":6,\"u\":7,\"bb\":8},"
    "\"merges\":[\"a b\",\"c ab\",\"b b\"]}}";

/* Exact memory, so that a read behind the text is found. */
static void mutate_source(void)
{
    static const char likely[] = "{}[]\",:\\()?*+|$^0129abpLu ";
    size_t n = sizeof source - 1;
    char *copy = malloc(n);
    struct clb_text tables = { 0 };
    struct clb_tokenizer *t;
    struct clb_err err;

    memcpy(copy, source, n);
    for (uint32_t i = 0, changes = rnd(4); i < changes; i++) {
        uint32_t at = rnd((uint32_t)n);
        copy[at] = rnd(4) ? likely[rnd(sizeof likely - 1)] : (char)rnd(256);
    }
    if (!clb_hf_tokenizer_compile(&tables, copy, n, "t.json", 64, &err)) {
        CHECK_EQ(err.code, CLB_BAD_INPUT);
    } else if (clb_tokenizer_open(&t, tables.p, tables.n, &err)) {
        opened++;
        use(t);
        clb_tokenizer_close(t);
    } else {
        CHECK(!"compiled tables open");
    }
    clb_text_free(&tables);
    free(copy);
}

static void changed_source(void)
{
    const char *more = getenv("MUTATIONS");
    unsigned long count = more ? strtoul(more, NULL, 10) : MUTATIONS;

    opened = 0;
    for (unsigned long k = 0; k < count; k++)
        mutate_source();
    CHECK(opened > count / 10);
    printf("# %lu of %lu compiled\n", opened, count);
}

int main(void)
{
    TEST(changed_source);
    TEST(changed_tables);
    return test_result();
}
