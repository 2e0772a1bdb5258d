/* Models that open but are not what anybody made: fields of the descriptor with other values of
 * their range, weights of random bytes (NaN, infinity, wrong scales). A run may be refused and its
 * numbers may mean nothing, but it must not crash or read outside the file, which ends at a page
 * that cannot be read. */
#include <sys/mman.h>
#include <unistd.h>

#include "lib/colibri.h"
#include "test/check.h"
#include "test/tiny_model.h"

enum { SEQ = 5, DATA_MUTATIONS = 40 };

static struct clb_arch arch;
static struct tiny model;
static uint8_t *file; /* model.n bytes, then a page that faults */
static size_t data_at;
static int ran, refused;

static void setup(enum clb_dtype expert, enum clb_dtype dense)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n;
    uint8_t *room;
    uint64_t length;

    tiny_arch(&arch);
    arch.layer_experts[0] = 0;
    arch.dense_size = 33;
    arch.shared_size = 20;
    arch.shared_gate = true;
    arch.window[1] = 3;
    arch.clip_qkv = 2;
    arch.routed_scale = 1.5f;
    CHECK(tiny_build(&model,
                     &(struct tiny_options){
                         .arch = &arch, .expert = expert, .dense = dense, .embed = CLB_F32 }));
    memcpy(&length, model.bytes + 16, 8);
    data_at = 24 + (size_t)length;
    n = (model.n + page) / page * page;
    room = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mprotect(room + n, page, PROT_NONE) == 0);
    file = room + n - model.n;
    memcpy(file, model.bytes, model.n);
}

static void fix_header(void)
{
    uint32_t crc = clb_crc32(0, file + 24, data_at - 24);

    memcpy(file + 12, &crc, 4);
}

/* Loads and computes a few tokens; true when it ran to its end. */
static bool run(void)
{
    const int32_t ids[2 * SEQ] = { 1, 98, 0, 7, 5, 3, 3, 3, 97, 2 };
    struct colibri_load_options o = { .size = sizeof o, .threads = 1 };
    struct colibri_model *m = colibri_load_model_from_memory(file, model.n, &o, NULL);
    static float logits[2 * SEQ * 99];
    bool ok = m && colibri_infer(m, ids, logits, 2, SEQ, NULL) == COLIBRI_OK;

    colibri_unload_model(m);
    ran += ok;
    refused += !ok;
    return ok;
}

/* Replaces `from` in the header, where spaces follow for what is longer. */
static bool replace(const char *from, const char *to)
{
    char *text = (char *)file + 24, *end = text + data_at - 24, *at;
    size_t n = strlen(from), m = strlen(to);

    memcpy(file, model.bytes, model.n);
    at = memmem(text, (size_t)(end - text), from, n);
    CHECK(at != NULL);
    if (!at)
        return false;
    CHECK(m <= n || end[-(long)(m - n)] == ' ');
    memmove(at + m, at + n, (size_t)(end - at) - (m > n ? m : n));
    memcpy(at, to, m);
    if (m < n)
        memset(end - (n - m), ' ', n - m);
    fix_header();
    return true;
}

static void fields(void)
{
    /* Additions to the descriptor; those that are refused are so by name, the others run. */
    static const char *const more[] = {
        "\"act\":\"relu\",",         "\"act\":\"gelu\",",
        "\"act\":\"gelu_tanh\",",    "\"router\":\"topk_softmax\",",
        "\"logit_softcap\":1e-30,",  "\"logit_softcap\":3e38,",
        "\"embedding_scale\":3e38,", "\"residual_scale\":1e-38,",
        "\"logit_scale\":3e38,",     "\"attn_scale\":3e38,",
        "\"attn_softcap\":1e-38,",   "\"rope_scale\":3e38,",
        "\"router_clip\":1e-38,",    "\"tied_embeddings\":true,",
        "\"layer_top_k\":[0,1],",
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char text[80];
        snprintf(text, sizeof text, "{%s\"n_layer\":2", more[i]);
        CHECK(replace("{\"n_layer\":2", text) && run());
    }
    static const char *const other[][2] = {
        { "\"window\":[0,3]", "\"window\":[1,1]" },
        { "\"window\":[0,3]", "\"window\":1073741824" },
        { "\"clip_qkv\":2.0", "\"clip_qkv\":1e-45" },
        { "\"rope_dim\":16", "\"rope_dim\":15" },
        { "\"rope\":\"half\"", "\"rope\":\"interleaved\"" },
        { "\"norm_eps\":1e-06", "\"norm_eps\":1e-45" },
        { "\"norm_eps\":1e-06", "\"norm_eps\":3e38" },
        { "\"routed_scale\":1.5", "\"routed_scale\":3e38" },
        { "\"topk_normalise\":true", "\"topk_normalise\":false" },
        { "\"n_kv_head\":2", "\"n_kv_head\":4" },
        { "\"n_head\":4", "\"n_head\":2" },
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (replace(other[i][0], other[i][1]))
            run();
    /* top_k stands twice: in the header and in the descriptor. */
    for (int k = 1; k <= 8; k++) {
        char text[40];
        snprintf(text, sizeof text, "\"top_k\":%d,\n", k);
        CHECK(replace("\"top_k\":2,\n", text));
        char *at = memmem(file, data_at, "\"top_k\":2,\"layer_experts\"", 10);
        CHECK(at != NULL);
        if (at)
            at[8] = (char)('0' + k);
        fix_header();
        CHECK(run());
    }
    CHECK(ran > 15);
    CHECK(refused > 2);
}

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) * n >> 32);
}

/* Weights of any bytes: runs of random ones, of 0xff (NaN), and single bits. */
static void data(void)
{
    for (int i = 0; i < DATA_MUTATIONS; i++) {
        memcpy(file, model.bytes, model.n);
        for (uint32_t k = below(8) + 1; k > 0; k--) {
            size_t at = data_at + below((uint32_t)(model.n - data_at));
            size_t n = below(4) ? below(4096) : 1;
            uint32_t how = below(3);
            for (; n > 0 && at < model.n; n--, at++)
                file[at] = how == 0 ? 0xff : how == 1 ? (uint8_t)below(256) : file[at] ^ 0x40;
        }
        CHECK(run());
    }
}

static void all_of(enum clb_dtype expert, enum clb_dtype dense)
{
    setup(expert, dense);
    ran = refused = 0;
    CHECK(run());
    fields();
    data();
    tiny_free(&model);
}

static void f32(void)
{
    all_of(CLB_F32, CLB_F32);
}

static void int8(void)
{
    all_of(CLB_INT8, CLB_INT8);
}

static void int4(void)
{
    all_of(CLB_INT4, CLB_INT8);
}

static void fp16_mxfp4(void)
{
    all_of(CLB_MXFP4, CLB_F16);
}

int main(void)
{
    TEST(f32);
    TEST(int8);
    TEST(int4);
    TEST(fp16_mxfp4);
    return test_result();
}
