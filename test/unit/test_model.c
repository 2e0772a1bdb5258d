/* The model object: binding, expert store as mapping and as cache, memory limit, plan, turns. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/model/available.h"
#include "lib/model/bind.h"
#include "lib/model/plan.h"
#include "test/check.h"
#include "test/unit/smaps.h"
#include "test/tiny_model.h"

static struct tiny tiny;
static char path[] = "/tmp/colibri-model-XXXXXX";
static struct clb_err err;

static void store_gives_the_blocks_of_the_file(void)
{
    struct clb_reader r = { 0 };
    struct clb_experts *mapped = NULL, *cached = NULL;
    struct clb_ledger ledger = { 0 };
    struct clb_experts_options o = { .verify = true, .ledger = &ledger };
    uint32_t id[2];
    const uint8_t *a[2], *b[2];

    CHECK(clb_reader_open(&r, path, &err));
    uint64_t block = clb_experts_all_bytes(&r) / 16;
    CHECK(clb_experts_new(&mapped, &r, &o, &err));
    CHECK_EQ(ledger.used, 0);
    o.budget = 3 * block + 100;
    CHECK(clb_experts_new(&cached, &r, &o, &err));
    CHECK_EQ(ledger.used, 3 * block);
    CHECK_EQ(clb_experts_max_get(cached), 3);
    CHECK_EQ(clb_experts_max_get(mapped), 16);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t layer = i * 7 % 5 % 2;
        const struct clb_expert_layer *l = clb_reader_experts(&r, layer);
        id[0] = i * 5 % 8;
        id[1] = (id[0] + 1 + i % 7) % 8;
        CHECK(clb_experts_get(mapped, layer, id, 2, a, &err));
        CHECK(clb_experts_get(cached, layer, id, 2, b, &err));
        for (int k = 0; k < 2; k++) {
            CHECK(a[k] == r.data + l->offset[id[k]]);
            CHECK(b[k] != a[k] && !memcmp(a[k], b[k], l->size[id[k]]));
        }
    }
    clb_experts_free(mapped);
    clb_experts_free(cached);
    CHECK_EQ(ledger.used, 0);
    clb_reader_close(&r);
}

/* Flags of the mapping as /proc/self/smaps has them: "rr" reads single pages, "hg" huge ones. */
static void mapping_is_told_its_use(void)
{
    for (int limited = 0; limited < 2; limited++) {
        struct clb_model_options o = { .n_thread = 1, .memory = limited ? 64 << 20 : 0 };
        struct clb_model *m = NULL;

        CHECK(clb_model_open(&m, &(struct clb_model_source){ .path = path }, &o, &err));
        const struct clb_reader *r = &m->reader;
        const uint8_t *rows = clb_reader_data(r, clb_reader_find(r, CLB_EMBED, UINT32_MAX));
        const uint8_t *expert = r->data + r->experts[0].offset[1];
        /* pages in the midst: the first and the last belong to neighbours as well */
        CHECK_HAS(smaps(rows + 4096, "VmFlags:"), " rr");
        CHECK(!strstr(smaps(rows + 4096, "VmFlags:"), " hg"));
        if (strstr(smaps(expert, "VmFlags:"), " hg"))
            CHECK(!limited && strstr(smaps(expert, "VmFlags:"), " rr"));
        else
            CHECK(!strstr(smaps(expert, "VmFlags:"), " rr"));
        clb_model_close(m);
    }
}

static void store_keeps_what_was_used_last(void)
{
    struct clb_reader r = { 0 };
    struct clb_experts *s = NULL;
    struct clb_ledger ledger = { 0 };
    const uint8_t *first, *again, *other;
    uint32_t id[] = { 0, 1, 2, 3 };

    CHECK(clb_reader_open(&r, path, &err));
    uint64_t block = clb_experts_all_bytes(&r) / 16;
    const struct clb_experts_options o = { .budget = 3 * block, .ledger = &ledger };
    CHECK(clb_experts_new(&s, &r, &o, &err));
    CHECK(clb_experts_get(s, 0, &id[0], 1, &first, &err));
    CHECK(clb_experts_get(s, 0, &id[1], 1, &other, &err));
    CHECK(clb_experts_get(s, 0, &id[2], 1, &other, &err));
    CHECK(clb_experts_get(s, 0, &id[0], 1, &again, &err));
    CHECK(again == first); /* still there */
    CHECK(clb_experts_get(s, 0, &id[3], 1, &other, &err));
    CHECK(other != first);            /* took the place of 1 */
    const uint32_t pair[] = { 1, 2 }; /* 2 is the oldest now, but wanted: 1 replaces 0 */
    const uint8_t *both[2], *two;
    CHECK(clb_experts_get(s, 0, &id[2], 1, &two, &err));
    CHECK(clb_experts_get(s, 0, &id[0], 1, &again, &err));
    CHECK(clb_experts_get(s, 0, &id[3], 1, &again, &err));
    CHECK(clb_experts_get(s, 0, pair, 2, both, &err));
    CHECK(both[1] == two && both[0] == first);
    CHECK(clb_experts_get(s, 0, &id[3], 1, &again, &err));
    CHECK(again == other);
    CHECK(clb_experts_resize(s, 2 * block, &err));
    CHECK_EQ(ledger.used, 2 * block);
    CHECK(clb_experts_get(s, 0, &id[3], 1, &again, &err));
    CHECK(again == other); /* 2 was the oldest */
    CHECK(clb_experts_resize(s, 100 * block, &err));
    CHECK_EQ(clb_experts_max_get(s), 16);
    for (uint32_t e = 0; e < 32; e++) { /* those that changed their slot among them */
        const struct clb_expert_layer *l = clb_reader_experts(&r, e / 8 % 2);
        uint32_t i = e % 8;
        CHECK(clb_experts_get(s, l->layer, &i, 1, &again, &err));
        CHECK(!memcmp(again, r.data + l->offset[i], l->size[i]));
    }
    CHECK(!clb_experts_resize(s, block, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "needs 2 at a time");
    clb_experts_free(s);
    clb_reader_close(&r);
}

/* A file on disk with one byte changed, or cut. */
static void spoil(const char *copy, uint64_t at)
{
    FILE *f = fopen(copy, "r+b");

    CHECK(f && !fseek(f, (long)at, SEEK_SET));
    int c = fgetc(f);
    CHECK(!fseek(f, (long)at, SEEK_SET) && fputc(c ^ 1, f) != EOF && !fclose(f));
}

static void verify_finds_a_changed_block_on_first_touch(void)
{
    char copy[] = "/tmp/colibri-model-XXXXXX";
    struct clb_model *m = NULL;
    struct clb_reader r = { 0 };
    const uint8_t *block;
    uint32_t id = 5;

    CHECK(tiny_save(&tiny, copy));
    CHECK(clb_reader_open(&r, copy, &err));
    uint64_t expert_at = clb_reader_experts(&r, 1)->offset[id],
             dense_at = clb_reader_find(&r, CLB_O, 1)->offset;
    uint64_t limit = r.size + 3 * 4096;
    clb_reader_close(&r);

    spoil(copy, expert_at + 10);
    for (int cache = 0; cache < 2; cache++) {
        const struct clb_model_options o = { .verify = true,
                                             .n_thread = 1,
                                             .memory = cache ? limit : 0 };
        CHECK(clb_model_open(&m, &(struct clb_model_source){ .path = copy }, &o, &err));
        CHECK(clb_experts_get(m->experts, 0, &id, 1, &block, &err));
        CHECK(!clb_experts_get(m->experts, 1, &id, 1, &block, &err));
        CHECK_EQ(err.code, CLB_BAD_INPUT);
        CHECK_EQ(err.offset, expert_at);
        CHECK_HAS(err.text, "layer 1: expert 5: crc32 is");
        CHECK(!clb_experts_get(m->experts, 1, &id, 1, &block, &err)); /* and again */
        clb_model_close(m);
    }
    spoil(copy, dense_at);
    CHECK(clb_model_open(&m, &(struct clb_model_source){ .path = copy },
                         &(struct clb_model_options){ .n_thread = 1 }, &err));
    clb_model_close(m);
    CHECK(!clb_model_open(&m, &(struct clb_model_source){ .path = copy },
                          &(struct clb_model_options){ .n_thread = 1, .verify = true }, &err));
    CHECK_EQ(err.offset, dense_at);
    CHECK_HAS(err.text, "tensor 'layers.1.o'");
    unlink(copy);
}

static void file_cut_while_in_use_is_an_error_of_the_cache(void)
{
    char copy[] = "/tmp/colibri-model-XXXXXX";
    struct clb_model *m = NULL;
    const uint8_t *block;
    uint32_t id = 7;

    CHECK(tiny_save(&tiny, copy));
    const struct clb_model_options o = { .n_thread = 1, .memory = tiny.n };
    CHECK(clb_model_open(&m, &(struct clb_model_source){ .path = copy }, &o, &err));
    uint64_t at = clb_reader_experts(&m->reader, 1)->offset[id];
    CHECK(!truncate(copy, (off_t)at));
    CHECK(!clb_experts_get(m->experts, 1, &id, 1, &block, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_EQ(err.offset, at);
    CHECK_HAS(err.text, "layer 1: expert 7");
    clb_model_close(m);
    CHECK(!clb_model_open(&m, &(struct clb_model_source){ .path = copy }, &o,
                          &err)); /* and opening it is refused */
    unlink(copy);
}

static void memory_limit_is_kept(void)
{
    struct clb_model *m = NULL;
    const struct clb_model_source from = { .path = path };
    struct clb_memory_plan plan;
    struct clb_run_shape shape = { .acts = { 8, 2, 1, 64, 0, CLB_KV_F32 },
                                   .n_block = 1,
                                   .host_bytes = 1000 };

    CHECK(clb_model_open(&m, &from, &(struct clb_model_options){ .n_thread = 1 }, &err));
    uint64_t dense = m->dense_bytes, least = clb_experts_least_bytes(&m->reader),
             all = clb_experts_all_bytes(&m->reader);
    CHECK_EQ(m->ledger[CLB_POOL_WEIGHTS].used, tiny.n);
    CHECK(clb_plan_run(&plan, m, &shape, &err));
    CHECK_EQ(plan.weights, tiny.n);
    CHECK_EQ(plan.total, tiny.n + clb_plan_run_bytes(&plan));
    CHECK(plan.available > 0);
    clb_model_close(m);

    CHECK(clb_model_open(&m, &from, &(struct clb_model_options){ .n_thread = 1, .memory = 1 << 30 },
                         &err));
    CHECK(clb_plan_run(&plan, m, &shape, &err));
    CHECK_EQ(plan.weights, dense + all);
    CHECK_EQ(m->ledger[CLB_POOL_WEIGHTS].used, dense + all);
    uint64_t run = clb_plan_run_bytes(&plan); /* without slabs */
    clb_model_close(m);

    CHECK(!clb_model_open(&m, &from,
                          &(struct clb_model_options){ .n_thread = 1, .memory = dense + least - 1 },
                          &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "weights need at least");

    CHECK(clb_model_open(
        &m, &from, &(struct clb_model_options){ .n_thread = 1, .memory = dense + least + run },
        &err));
    CHECK(clb_plan_run(&plan, m, &shape, &err));
    CHECK_EQ(plan.weights, dense + least);
    CHECK_EQ(plan.total, plan.available);
    CHECK(clb_model_commit(m, run, 0, &err));
    CHECK(m->ledger[CLB_POOL_WEIGHTS].used <= dense + least);
    CHECK(!clb_model_commit(m, 1, 0, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    clb_model_release(m, run, 0);
    CHECK(clb_model_commit(m, 0, 0, &err)); /* the cache takes the room back */
    CHECK(m->ledger[CLB_POOL_WEIGHTS].used > dense + least);
    clb_model_close(m);
}

static void write_text(const char *root, const char *name, const char *text)
{
    char file[256];

    snprintf(file, sizeof file, "%s%s", root, name);
    for (char *p = file + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(file, 0700);
        *p = '/';
    }
    FILE *f = fopen(file, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static void available_memory_knows_control_groups(void)
{
    char root[] = "/tmp/colibri-root-XXXXXX", command[64];

    CHECK(mkdtemp(root) != NULL);
    CHECK_EQ(clb_memory_available(root), 0);
    write_text(root, "/proc/meminfo", "MemTotal: 100 kB\nMemAvailable:      50 kB\n");
    CHECK_EQ(clb_memory_available(root), 50 * 1024);
    write_text(root, "/proc/self/cgroup", "0::/a/b\n");
    write_text(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_text(root, "/sys/fs/cgroup/a/b/memory.current", "100\n");
    CHECK_EQ(clb_memory_available(root), 50 * 1024);
    write_text(root, "/sys/fs/cgroup/a/memory.max", "40000\n"); /* the one above counts */
    write_text(root, "/sys/fs/cgroup/a/memory.current", "15000\n");
    CHECK_EQ(clb_memory_available(root), 25000);
    write_text(root, "/sys/fs/cgroup/a/memory.stat",
               "anon 7\nactive_file 4000\ninactive_file 6000\n");
    CHECK_EQ(clb_memory_available(root), 35000);
    write_text(root, "/proc/self/cgroup", "3:cpu:/x\n4:hugetlb,memory:/c\n");
    write_text(root, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9000\n");
    write_text(root, "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "12000\n");
    CHECK_EQ(clb_memory_available(root), 0);
    write_text(root, "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "2000\n");
    CHECK_EQ(clb_memory_available(root), 7000);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_EQ(system(command), 0);
}

struct taker {
    struct clb_model *m;
    atomic_int *inside;
    int count;
};

static void *take_turns(void *arg)
{
    struct taker *t = arg;

    for (int i = 0; i < 500; i++) {
        clb_model_take_turn(t->m);
        t->count += atomic_fetch_add(t->inside, 1) == 0;
        sched_yield(); /* whoever wrongly gets in does so now */
        t->count += atomic_fetch_sub(t->inside, 1) == 1;
        clb_model_end_turn(t->m);
    }
    return NULL;
}

static void turns_exclude_each_other(void)
{
    struct clb_model *m = NULL;
    atomic_int inside = 0;
    pthread_t thread[4];
    struct taker taker[4];

    CHECK(clb_model_open(&m, &(struct clb_model_source){ .path = path },
                         &(struct clb_model_options){ .n_thread = 1 }, &err));
    for (int i = 0; i < 4; i++) {
        taker[i] = (struct taker){ m, &inside, 0 };
        CHECK(!pthread_create(&thread[i], NULL, take_turns, &taker[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(taker[i].count, 1000);
    }
    clb_model_close(m);
}

static void binding_finds_every_kind_of_tensor(void)
{
    struct tiny other = { 0 };
    struct clb_arch a;
    struct clb_reader r = { 0 };
    struct clb_weights all = { 0 }, *w = &all;

    tiny_arch(&a);
    a.q_bias = a.k_bias = a.v_bias = a.o_bias = a.sinks = a.output_bias = true;
    a.qk_norm = CLB_QK_NORM_HEAD;
    a.norm = CLB_NORM_LAYER;
    a.router_bias = a.shared_gate = a.expert_bias = true;
    a.shared_size = 32;
    a.dense_size = 80;
    a.layer_experts[0] = 0;
    CHECK(tiny_build(&other, &(struct tiny_options){ .arch = &a }));
    CHECK(clb_reader_open_memory(&r, other.bytes, other.n, &err));
    CHECK(clb_weights_bind(w, &r, &err));
    const struct clb_layer *dense = &w->layer[0], *moe = &w->layer[1];
    CHECK(w->embed && w->final_norm && w->final_norm_bias && w->rope_inv_freq &&
          !w->rope_inv_freq_long);
    CHECK(w->output.tiles && w->output.bias && w->output.rows == a.vocab_size);
    CHECK(moe->q.bias && moe->k.bias && moe->v.bias && moe->o.bias && moe->sinks && moe->q_norm &&
          moe->k_norm);
    CHECK(moe->attn_norm && moe->attn_norm_bias && moe->mlp_norm && moe->mlp_norm_bias &&
          !moe->q_a.tiles);
    CHECK(moe->router.tiles && moe->router.bias && moe->shared_gate.tiles &&
          !moe->router_correction);
    CHECK(moe->shared[CLB_DOWN].rows == a.hidden_size &&
          moe->shared[CLB_GATE].rows == a.shared_size);
    CHECK(moe->experts && moe->n_expert == 8 && moe->top_k == 2 && moe->index == 1 &&
          !moe->dense[0].tiles);
    CHECK(!dense->experts && dense->n_expert == 0 && dense->dense[CLB_UP].rows == a.dense_size &&
          !dense->router.tiles);
    clb_weights_done(w);
    clb_reader_close(&r);
    tiny_free(&other);
}

static void what_cannot_run_is_refused_by_name(void)
{
    struct tiny other = { 0 };
    struct clb_arch a;
    struct clb_model *m = NULL;

    tiny_arch(&a);
    CHECK(!clb_model_open(&m, &(struct clb_model_source){ .path = "/nonexistent/model.bin" },
                          &(struct clb_model_options){ 0 }, &err));
    CHECK_EQ(err.code, CLB_BAD_INPUT);
    CHECK_HAS(err.text, "/nonexistent/model.bin");
    CHECK(!clb_model_open(&m, &(struct clb_model_source){ .path = path },
                          &(struct clb_model_options){ .backend = "abacus" }, &err));
    CHECK_HAS(err.text, "abacus");
    CHECK(!clb_model_open(&m, &(struct clb_model_source){ .path = path },
                          &(struct clb_model_options){ .cpu_level = "z80" }, &err));
    CHECK_HAS(err.text, "z80");
    a.attention = CLB_ATTN_GQA;
    a.linear_attention[1] = true;
    if (tiny_build(&other, &(struct tiny_options){ .arch = &a })) {
        CHECK(!clb_model_open(&m, &(struct clb_model_source){ .bytes = other.bytes, .n = other.n },
                              &(struct clb_model_options){ .n_thread = 1 }, &err));
        CHECK_EQ(err.code, CLB_UNSUPPORTED);
        CHECK_HAS(err.text, "linear_attention");
    }
    tiny_free(&other);
}

int main(void)
{
    struct clb_arch a;

    tiny_arch(&a);
    if (!tiny_build(&tiny,
                    &(struct tiny_options){
                        .arch = &a, .expert = CLB_INT8, .dense = CLB_INT8, .seed = 1 }) ||
        !tiny_save(&tiny, path))
        return 1;
    TEST(store_gives_the_blocks_of_the_file);
    if (!test_emulated())
        TEST(mapping_is_told_its_use);
    TEST(store_keeps_what_was_used_last);
    TEST(verify_finds_a_changed_block_on_first_touch);
    TEST(file_cut_while_in_use_is_an_error_of_the_cache);
    TEST(memory_limit_is_kept);
    TEST(available_memory_knows_control_groups);
    TEST(turns_exclude_each_other);
    TEST(binding_finds_every_kind_of_tensor);
    TEST(what_cannot_run_is_refused_by_name);
    unlink(path);
    tiny_free(&tiny);
    return test_result();
}
