/* Mutations of a colibri.bin whose checksum is made right again, so that validation itself is
 * tested: every value of the header changed in a dozen ways, every region cut or overlapped, then
 * random edits. Open must refuse and say where, or succeed; then every accessor must stay inside
 * the file, which ends at a page that cannot be read. MUTATIONS=N in the environment asks for more
 * random ones. */
#include <ctype.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/format/reader.h"
#include "test/check.h"
#include "test/tiny_model.h"

enum { MAX_VALUES = 4096, HEADER_ROOM = 1 << 16, RANDOM_MUTATIONS = 3000 };

/* A value of the JSON, and the member ("key":value) or array item it is. */
struct value {
    size_t from, to, member;
    char key[64]; /* its own key, or that of the array it is in */
    bool in_array;
};

static struct clb_arch arch;
static struct tiny model;
static char json[HEADER_ROOM]; /* the header without white space */
static size_t json_n, data_at;
static struct value values[MAX_VALUES];
static size_t n_values;
static uint8_t *room, *room_end; /* room_end: the first byte that faults */
static unsigned long opened, refused, too_long;
static volatile double sink;

/* -- the file --------------------------------------------------------------------------------- */

static void setup(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n;

    tiny_arch(&arch);
    arch.layer_experts[0] = 0;
    arch.dense_size = 33;
    arch.shared_size = 20;
    arch.shared_gate = true;
    arch.expert_bias = true;
    arch.q_bias = true;
    arch.window[1] = 16;
    arch.n_expert = arch.layer_experts[1] = 4;
    CHECK(tiny_build(&model, &(struct tiny_options){ .arch = &arch,
                                                     .expert = CLB_INT4,
                                                     .dense = CLB_INT8,
                                                     .embed = CLB_BF16,
                                                     .tokenizer_tables = "0123456789",
                                                     .n_tables = 10 }));
    n = (model.n + page) / page * page;
    room = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    room_end = room + n;
    CHECK(mprotect(room_end, page, PROT_NONE) == 0);
}

/* Removes white space outside strings, which makes room for longer values. */
static void minify(void)
{
    struct clb_reader r;
    struct clb_err err;
    bool inside = false;

    CHECK(clb_reader_open_memory(&r, model.bytes, model.n, &err));
    for (size_t i = 0; i < r.json.n; i++) {
        inside ^= r.json.p[i] == '"';
        if (inside || !isspace((unsigned char)r.json.p[i]))
            json[json_n++] = r.json.p[i];
    }
    data_at = r.tensors[0].offset;
    clb_reader_close(&r);
}

/* Places the file with another header so that it ends at the guard; NULL: it does not fit. */
static uint8_t *place(const char *text, size_t n, size_t file_n)
{
    size_t header = data_at - CLB_PREFIX_BYTES;
    uint8_t *file = room_end - (file_n + 63) / 64 * 64;

    if (n > header || file_n < data_at)
        return NULL;
    memcpy(file, model.bytes, file_n < model.n ? file_n : model.n);
    memset(file + CLB_PREFIX_BYTES, ' ', header);
    memcpy(file + CLB_PREFIX_BYTES, text, n);
    uint32_t crc = clb_crc32(0, file + CLB_PREFIX_BYTES, header);
    memcpy(file + 12, &crc, 4);
    return file;
}

/* -- what an opened file offers --------------------------------------------------------------- */

static void touch(const struct clb_matrix *m)
{
    static float row[4096];

    if (!m->tiles || m->cols > 4096)
        return;
    clb_matrix_row(m, 0, row);
    sink += (double)row[0];
    clb_matrix_row(m, m->rows - 1, row);
    sink += (double)row[m->cols - 1];
    sink += m->tiles[clb_tiles_bytes(m->dtype, m->rows, m->cols) - 1];
    if (m->row_scale)
        sink += (double)m->row_scale[clb_rows_padded(m->rows) - 1];
    if (m->bias)
        sink += (double)m->bias[m->rows - 1];
}

static void use(const struct clb_reader *r)
{
    struct clb_err err;

    CHECK(clb_arch_check(&r->arch, &err));
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *t = &r->tensors[i];
        const uint8_t *p = clb_reader_data(r, t);
        CHECK((uintptr_t)p % CLB_ALIGN == 0);
        sink += p[0] + p[t->size - 1];
        if (t->spec.form == CLB_FORM_MATRIX || t->spec.form == CLB_FORM_ROUTER) {
            struct clb_matrix m = clb_reader_matrix(r, t);
            touch(&m);
        }
    }
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        for (uint32_t e = 0; e < r->experts[l].count; e++)
            for (int p = 0; p < CLB_PARTS; p++) {
                const struct clb_expert_layer *x = &r->experts[l];
                struct clb_matrix m =
                    clb_expert_matrix(r, x, (enum clb_part)p, r->data + x->offset[e]);
                sink += r->data[x->offset[e] + x->size[e] - 1];
                touch(&m);
            }
    for (uint32_t i = 0; i < r->n_sections; i++)
        sink += r->data[r->sections[i].offset + r->sections[i].size - 1];
    clb_reader_verify(r, NULL, NULL, &err);
}

/* Opens; the message must name `must` (NULL: say anything in quotes). Returns whether it opened. */
static bool try(const char *text, size_t n, size_t file_n, const char *must)
{
    uint8_t *file = place(text, n, file_n);
    struct clb_reader r;
    struct clb_err err = { 0 };

    if (!file) {
        too_long++;
        return false;
    }
    if (clb_reader_open_memory(&r, file, file_n, &err)) {
        opened++;
        use(&r);
        clb_reader_close(&r);
        return true;
    }
    refused++;
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK(strstr(err.text, "memory: "));
    if (must && !strstr(err.text, must)) {
        printf("# '%s' is not in: %s\n", must, err.text);
        test_bad = 1;
    }
    return false;
}

/* -- values of the header --------------------------------------------------------------------- */

static size_t skip_string(size_t at)
{
    for (at++; json[at] != '"'; at++)
        at += json[at] == '\\';
    return at + 1;
}

/* Records the value at `at` and all inside it; returns the place behind it. */
static size_t scan(size_t at, size_t member, const char *key, bool in_array)
{
    struct value *v = &values[n_values++];
    char close = json[at] == '{' ? '}' : ']', inner[64];

    *v = (struct value){ .from = at, .member = member, .in_array = in_array };
    snprintf(v->key, sizeof v->key, "%s", key);
    if (json[at] == '"') {
        at = skip_string(at);
    } else if (json[at] == '{' || json[at] == '[') {
        at++;
        while (json[at] != close) {
            size_t start = at;
            snprintf(inner, sizeof inner, "%s", key);
            if (close == '}') {
                at = skip_string(at);
                snprintf(inner, sizeof inner, "%.*s", (int)(at - start - 2), json + start + 1);
                at++;
            }
            at = scan(at, start, inner, close == ']');
            at += json[at] == ',';
        }
        at++;
    } else {
        while (!strchr(",]}", json[at]))
            at++;
    }
    v->to = at;
    return at;
}

static char edit[2 * HEADER_ROOM];

/* json[0, from) + text + json[to, end) */
static size_t replace(size_t from, size_t to, const char *text)
{
    size_t n = strlen(text);

    memcpy(edit, json, from);
    memcpy(edit + from, text, n);
    memcpy(edit + from + n, json + to, json_n - to);
    return from + n + json_n - to;
}

/* A value of the wrong kind, or beyond every range: refused by the key's name. */
static void must_refuse(const struct value *v, const char *text)
{
    if (try(edit, replace(v->from, v->to, text), model.n, v->key[0] ? v->key : "header")) {
        printf("# '%s' may be %s\n", v->key, text);
        test_bad = 1;
    }
}

static void kinds(void)
{
    static const char *const others[] = {
        "null",  "1.5", "[[]]", "{\"a\":[]}", "-1", "9223372036854775808", "18446744073709551616",
        "1e400", "nan", ""
    };

    for (size_t i = 0; i < n_values; i++) {
        const struct value *v = &values[i];
        char first = json[v->from];
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            /* a negative number in a book is legal, and 1.5 or 0.5 is in a real field */
            bool real = !strcmp(v->key, "norm_eps") || !strcmp(v->key, "int4");
            if (real && (k == 1 || k == 4 || k == 5 || k == 6))
                continue;
            if (first == '{' && k == 3)
                continue; /* an object stays one: `missing` looks at that */
            if (!strcmp(v->key, "eos_token") && !*others[k])
                continue; /* no end token is fine */
            must_refuse(v, others[k]);
        }
        must_refuse(v, first == '"' ? "7" : "\"7\"");
    }
}

static void numbers(void)
{
    unsigned long before = refused, tried = 0;
    char text[32];

    for (size_t i = 0; i < n_values; i++) {
        const struct value *v = &values[i];
        if (!isdigit((unsigned char)json[v->from]))
            continue;
        unsigned long long x = strtoull(json + v->from, NULL, 10);
        const unsigned long long other[] = { x + 1,     x ? x - 1 : 7, 0,
                                             2 * x,     x + 64,        x + 4096,
                                             x / 2,     UINT32_MAX,    1ull << 32,
                                             INT64_MAX, INT64_MAX - 63 };
        for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
            if (other[k] == x)
                continue;
            snprintf(text, sizeof text, "%llu", other[k]);
            tried++;
            try(edit, replace(v->from, v->to, text), model.n, NULL);
        }
    }
    /* Few numbers can change unseen: checksums, sizes of sources, end tokens, some of the
     * descriptor's. */
    CHECK(refused - before > tried * 3 / 5);
}

static void missing_and_twice(void)
{
    /* Optional ones, and descriptor fields whose absence is a legal other model of the same shape.
     */
    static const char *const optional[] = {
        "converter", "scale",          "generation", "source",   "ignored_keys",
        "eos_token", "topk_normalise", "window",     "sections", "tokenizer.tables",
        NULL
    };
    for (size_t i = 1; i < n_values; i++) {
        const struct value *v = &values[i];
        bool last = json[v->to] != ',', free = false;
        size_t n = replace(last ? v->member - (json[v->member - 1] == ',') : v->member,
                           last ? v->to : v->to + 1, "");
        for (int k = 0; optional[k]; k++)
            free |= !strcmp(v->key, optional[k]);
        bool ok = try(edit, n, model.n, NULL);
        CHECK(!ok || free);
        /* the same member twice */
        char twice[1 << 13];
        if (2 * (v->to - v->member) + 2 > sizeof twice || v->in_array)
            continue;
        snprintf(twice, sizeof twice, "%.*s,%.*s", (int)(v->to - v->member), json + v->member,
                 (int)(v->to - v->member), json + v->member);
        CHECK(!try(edit, replace(v->member, v->to, twice), model.n, v->key));
    }
}

static void unknown_keys(void)
{
    for (size_t i = 0; i < n_values; i++) {
        if (json[values[i].from] != '{')
            continue;
        bool arch_object = !strcmp(values[i].key, "architecture");
        bool fixed = arch_object || !strcmp(values[i].key, "tensors") ||
                     !strcmp(values[i].key, "sections") || !strcmp(values[i].key, "parts");
        const char *comma = json[values[i].from + 1] == '}' ? "" : ",";
        char text[64];
        snprintf(text, sizeof text, "{\"warp_drive\":[1,{\"x\":null}]%s", comma);
        bool ok = try(edit, replace(values[i].from, values[i].from + 1, text), model.n, NULL);
        CHECK(ok == !fixed);
    }
}

/* Every place set to every other place of the file. */
static void overlaps(void)
{
    char text[32];
    int same = 0;

    for (size_t i = 0; i < n_values; i++) {
        if (strcmp(values[i].key, "offset") || json[values[i].from] == '[')
            continue;
        for (size_t k = 0; k < n_values; k++) {
            if (strcmp(values[k].key, "offset") || json[values[k].from] == '[')
                continue;
            snprintf(text, sizeof text, "%.*s", (int)(values[k].to - values[k].from),
                     json + values[k].from);
            same += try(edit, replace(values[i].from, values[i].to, text), model.n, "offset");
        }
    }
    int n = 0;
    for (size_t i = 0; i < n_values; i++)
        n += !strcmp(values[i].key, "offset") && json[values[i].from] != '[';
    CHECK_EQ(same, n); /* only where nothing changed */
}

static void cuts(void)
{
    struct clb_reader r;
    struct clb_err err;

    for (size_t n = data_at; n < model.n; n += n % 64 ? 63 : 1)
        CHECK(!try(json, json_n, n, "cut short"));
    CHECK(try(json, json_n, model.n, NULL));
    /* inside the header and the prefix; the checksum cannot be made right then */
    for (size_t n = 0; n < data_at; n += n < 64 ? 1 : 61) {
        uint8_t *file = room_end - (n + 63) / 64 * 64;
        memcpy(file, model.bytes, n);
        CHECK(!clb_reader_open_memory(&r, file, n, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
    }
}

static void longer(void)
{
    static _Alignas(64) uint8_t file[1 << 20];
    struct clb_reader r;
    struct clb_err err;

    CHECK(model.n + 64 < sizeof file);
    memcpy(file, model.bytes, model.n);
    for (size_t more = 1; more <= 64; more++) {
        CHECK(!clb_reader_open_memory(&r, file, model.n + more, &err));
        CHECK_HAS(err.text, "last block");
    }
}

static void prefix(void)
{
    struct clb_reader r;
    struct clb_err err;
    uint64_t length;

    for (int bit = 0; bit < 8 * CLB_PREFIX_BYTES; bit++) {
        uint8_t *file = place(json, json_n, model.n);
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!clb_reader_open_memory(&r, file, model.n, &err));
    }
    const uint64_t lengths[] = { 0,
                                 1,
                                 data_at,
                                 data_at - 25,
                                 data_at - 23,
                                 data_at + 4096 - 24,
                                 model.n,
                                 model.n - 24,
                                 UINT64_MAX,
                                 UINT64_MAX - 23,
                                 INT64_MAX,
                                 4096 - 24 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t *file = place(json, json_n, model.n);
        length = lengths[i];
        memcpy(file + 16, &length, 8);
        if (length <= model.n - CLB_PREFIX_BYTES) { /* with a checksum that fits the wrong length */
            uint32_t crc = clb_crc32(0, file + CLB_PREFIX_BYTES, length);
            memcpy(file + 12, &crc, 4);
        }
        CHECK(length == data_at - CLB_PREFIX_BYTES ||
              !clb_reader_open_memory(&r, file, model.n, &err));
    }
}

/* -- random edits ----------------------------------------------------------------------------- */

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) * n >> 32);
}

static size_t random_edit(size_t n)
{
    const struct value *v = &values[below((uint32_t)n_values)],
                       *w = &values[below((uint32_t)n_values)];
    size_t at = below((uint32_t)n);

    switch (below(4)) {
    case 0: /* a byte */
        edit[at] = (char)below(256);
        return n;
    case 1: /* a digit */
        for (size_t i = at; i < n; i++)
            if (isdigit((unsigned char)edit[i])) {
                edit[i] = (char)('0' + below(10));
                break;
            }
        return n;
    case 2: { /* a hole */
        size_t len = below(20);
        if (at + len > n)
            return n;
        memmove(edit + at, edit + at + len, n - at - len);
        return n - len;
    }
    default: /* a value in the place of another (of the original text) */
        if (v->to - v->from > 2000 || n > json_n)
            return n;
        char text[2048];
        snprintf(text, sizeof text, "%.*s", (int)(v->to - v->from), json + v->from);
        return replace(w->from, w->to, text);
    }
}

static void random_mutations(void)
{
    const char *more = getenv("MUTATIONS"), *full = getenv("COLIBRI_TEST_FULL");
    unsigned long n_mutations = more ? strtoul(more, NULL, 10) : RANDOM_MUTATIONS;

    n_mutations *= full && *full == '1' ? 30 : 1;

    for (unsigned long i = 0; i < n_mutations; i++) {
        size_t n = replace(0, 0, "");
        for (uint32_t k = below(3) + 1; k > 0; k--)
            n = random_edit(n);
        try(edit, n, model.n, NULL);
    }
}

int main(void)
{
    setup();
    minify();
    scan(0, 0, "", false);
    TEST(kinds);
    TEST(numbers);
    TEST(missing_and_twice);
    TEST(unknown_keys);
    TEST(overlaps);
    TEST(cuts);
    TEST(longer);
    TEST(prefix);
    TEST(random_mutations);
    printf("# %zu values, %lu files opened, %lu refused, %lu headers too long to try\n", n_values,
           opened, refused, too_long);
    tiny_free(&model);
    return test_result();
}
