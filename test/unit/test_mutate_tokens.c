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

    for (int i = 0; i < N_TOKEN_NAMES; i++) {
        struct token_rig rig;
        CHECK(token_open(&rig, token_names[i]));
        size_t n = rig.tables.n & ~(size_t)7, room = (n + page - 1) / page * page;
        uint8_t *map =
            mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(map != MAP_FAILED && !mprotect(map + room, page, PROT_NONE));
        memcpy(map + room - n, rig.tables.p, n);
        for (unsigned long k = 0; k < count / N_TOKEN_NAMES; k++)
            mutate(&rig, map + room - n, n);
        munmap(map, room + page);
        token_close(&rig);
    }
    CHECK(opened > count / 10);
    printf("# %lu of %lu opened\n", opened, count);
}

int main(void)
{
    TEST(changed_tables);
    return test_result();
}
