/* test_kv.c - shapes, the block pool, and block tables of sequences. */
#include "test/check.h"

#include "lib/backend/kv.h"
#include "lib/base/mem.h"

static struct clb_arch small(void)
{
    return (struct clb_arch){
        .n_layer = 3, .n_head = 4, .n_kv_head = 2, .head_dim = 24, .value_dim = 10
    };
}

static void shapes(void)
{
    struct clb_arch a = small();
    struct clb_kv_shape s;

    CHECK(clb_kv_shape_init(&s, &a, CLB_KV_F32));
    CHECK_EQ(s.k_bytes, 24 * 64 * 4);
    CHECK_EQ(s.v_bytes, 10 * 64 * 4);
    CHECK_EQ(s.head_bytes, 34 * 64 * 4);
    CHECK_EQ(s.layer_bytes, 2 * s.head_bytes);
    CHECK_EQ(s.block_bytes, 3 * s.layer_bytes);
    CHECK(clb_kv_shape_init(&s, &a, CLB_KV_F16));
    CHECK_EQ(s.head_bytes, 34 * 64 * 2);
    CHECK(clb_kv_shape_init(&s, &a, CLB_KV_INT8));
    CHECK_EQ(s.k_scale_at, 24 * 64);
    CHECK_EQ(s.k_bytes, 24 * 64 + 256);
    CHECK_EQ(s.v_scale_at, 10 * 64);
    CHECK_EQ(s.head_bytes, 34 * 64 + 512);
}

static void shape_overflow(void)
{
    struct clb_arch a = small();
    struct clb_kv_shape s;

    a.n_kv_head = a.n_layer = UINT32_MAX;
    CHECK(!clb_kv_shape_init(&s, &a, CLB_KV_F32));
}

static void mla_keeps_one_latent(void)
{
    struct clb_arch a = small();
    struct clb_kv_shape s;

    a.attention = CLB_ATTN_MLA;
    a.kv_lora_rank = 32;
    a.qk_rope_dim = 8;
    CHECK(clb_kv_shape_init(&s, &a, CLB_KV_F32));
    CHECK_EQ(s.n_kv_head, 1);
    CHECK_EQ(s.key_dim, 40);
    CHECK_EQ(s.value_dim, 32);
}

static struct clb_kv_pool *pool_of(uint32_t n, struct clb_ledger *ledger)
{
    struct clb_arch a = small();
    struct clb_kv_shape s;
    struct clb_kv_pool *p;
    struct clb_err err;

    clb_kv_shape_init(&s, &a, CLB_KV_F16);
    return clb_kv_pool_new(&p, &s, n, &(struct clb_kv_where){ .ledger = ledger }, &err) ? p : NULL;
}

static void lowest_block_first(void)
{
    struct clb_ledger ledger = { 0 };
    struct clb_kv_pool *p = pool_of(130, &ledger);
    uint32_t b;

    CHECK_EQ(ledger.used, 130 * clb_kv_pool_shape(p)->block_bytes);
    for (uint32_t i = 0; i < 130; i++) {
        CHECK(clb_kv_pool_take(p, &b));
        CHECK_EQ(b, i);
    }
    CHECK(!clb_kv_pool_take(p, &b));
    CHECK_EQ(clb_kv_pool_available(p), 0);
    clb_kv_pool_give(p, 129);
    clb_kv_pool_give(p, 3);
    CHECK_EQ(clb_kv_pool_available(p), 2);
    CHECK(clb_kv_pool_take(p, &b));
    CHECK_EQ(b, 3);
    CHECK(clb_kv_pool_take(p, &b));
    CHECK_EQ(b, 129);
    clb_kv_pool_free(p);
    CHECK_EQ(ledger.used, 0);
    clb_kv_pool_free(NULL);
}

static void blocks_do_not_overlap(void)
{
    struct clb_kv_pool *p = pool_of(3, NULL);
    uint64_t bytes = clb_kv_pool_shape(p)->block_bytes;

    for (uint32_t b = 0; b < 3; b++) {
        CHECK_EQ(clb_kv_pool_block(p, b)[bytes - 1], 0); /* fresh pages are zero */
        CHECK_EQ((uintptr_t)clb_kv_pool_block(p, b) % 64, 0);
        memset(clb_kv_pool_block(p, b), (int)b + 1, bytes);
    }
    for (uint32_t b = 0; b < 3; b++) {
        CHECK_EQ(clb_kv_pool_block(p, b)[0], b + 1);
        CHECK_EQ(clb_kv_pool_block(p, b)[bytes - 1], b + 1);
    }
    clb_kv_pool_free(p);
}

static void addresses(void)
{
    struct clb_kv_pool *p = pool_of(1, NULL);
    const struct clb_kv_shape *s = clb_kv_pool_shape(p);
    uint8_t *block = clb_kv_pool_block(p, 0);

    CHECK_EQ(clb_kv_k(s, block, 2, 1) - block, 2 * s->layer_bytes + s->head_bytes);
    CHECK_EQ(clb_kv_v(s, block, 2, 1) - clb_kv_k(s, block, 2, 1), s->k_bytes);
    clb_kv_pool_free(p);
}

static void reserve_is_all_or_nothing(void)
{
    struct clb_kv_pool *p = pool_of(5, NULL);
    uint32_t ta[4], tb[4];
    struct clb_kv_seq a = { .pool = p, .block = ta, .n_block_max = 4 };
    struct clb_kv_seq b = { .pool = p, .block = tb, .n_block_max = 4 };
    struct clb_err err;

    CHECK(clb_kv_seq_reserve(&a, 0, &err));
    CHECK_EQ(a.n_block, 0);
    CHECK(clb_kv_seq_reserve(&a, 64, &err));
    CHECK_EQ(a.n_block, 1);
    CHECK(clb_kv_seq_reserve(&b, 65, &err));
    CHECK_EQ(b.n_block, 2);
    CHECK(!clb_kv_seq_reserve(&a, 256, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_HAS(err.text, "3 more blocks of 64 positions are needed, 2 are free");
    CHECK_EQ(a.n_block, 1);
    CHECK_EQ(clb_kv_pool_available(p), 2);
    CHECK(!clb_kv_seq_reserve(&a, 257, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "257 positions do not fit: the sequence was opened for 256");
    clb_kv_pool_free(p);
}

static void truncate_gives_back(void)
{
    struct clb_kv_pool *p = pool_of(4, NULL);
    uint32_t table[4];
    struct clb_kv_seq s = { .pool = p, .block = table, .n_block_max = 4 };
    struct clb_err err;

    CHECK(clb_kv_seq_reserve(&s, 200, &err));
    s.length = 200;
    clb_kv_seq_truncate(&s, 129);
    CHECK_EQ(s.length, 129);
    CHECK_EQ(s.n_block, 3);
    clb_kv_seq_truncate(&s, 128);
    CHECK_EQ(s.n_block, 2);
    clb_kv_seq_truncate(&s, 500);
    CHECK_EQ(s.length, 128);
    CHECK_EQ(s.n_block, 2);
    clb_kv_seq_truncate(&s, 0);
    CHECK_EQ(s.length, 0);
    CHECK_EQ(clb_kv_pool_available(p), 4);
    clb_kv_pool_free(p);
}

static void too_large_is_refused(void)
{
    struct clb_kv_shape s = { .block_bytes = UINT64_C(1) << 40 };
    struct clb_kv_pool *p;
    struct clb_err err;

    CHECK(!clb_kv_pool_new(&p, &s, UINT32_MAX, &(struct clb_kv_where){ 0 }, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK(!p);
}

static void blocks_are_shared_and_kept(void)
{
    struct clb_kv_pool *p = pool_of(4, NULL);
    uint32_t table[2][4];
    struct clb_kv_seq a = { .pool = p, .block = table[0], .n_block_max = 4 };
    struct clb_kv_seq b = { .pool = p, .block = table[1], .n_block_max = 4 };
    struct clb_err err;

    CHECK(clb_kv_seq_reserve(&a, 100, &err));
    a.length = 64;
    clb_kv_pool_keep(p, table[0][0]);
    clb_kv_seq_adopt(&b, table[0][0]);
    CHECK(b.length == 64 && b.n_block == 1 && table[1][0] == table[0][0]);
    struct clb_kv_counts n = clb_kv_pool_counts(p);
    CHECK(n.n_block == 4 && n.n_free == 2 && n.n_idle == 0 && n.n_shared == 1);
    clb_kv_seq_truncate(&a, 0); /* b still has it */
    n = clb_kv_pool_counts(p);
    CHECK(n.n_free == 3 && n.n_idle == 0 && n.n_shared == 0);
    CHECK(!clb_kv_pool_is_idle(p, table[1][0]));
    CHECK(clb_kv_seq_reserve(&b, 128, &err));
    clb_kv_pool_share(p, table[1][0]);
    clb_kv_seq_replace(&b, 1, table[1][0]); /* twice in one table: counted twice */
    n = clb_kv_pool_counts(p);
    CHECK(n.n_free == 3 && n.n_shared == 1);
    clb_kv_pool_give(p, table[1][0]);
    clb_kv_seq_truncate(&b, 0);
    n = clb_kv_pool_counts(p);
    CHECK(n.n_free == 3 && n.n_idle == 1 && n.n_shared == 0);
    CHECK(clb_kv_pool_is_idle(p, table[1][0]));
    clb_kv_pool_share(p, table[1][0]);
    CHECK_EQ(clb_kv_pool_counts(p).n_idle, 0);
    clb_kv_pool_drop(p, table[1][0]); /* a sequence has it: it is not free yet */
    CHECK_EQ(clb_kv_pool_counts(p).n_free, 3);
    clb_kv_pool_give(p, table[1][0]);
    CHECK_EQ(clb_kv_pool_counts(p).n_free, 4);
    clb_kv_pool_free(p);
}

int main(void)
{
    TEST(shapes);
    TEST(shape_overflow);
    TEST(mla_keeps_one_latent);
    TEST(lowest_block_first);
    TEST(blocks_do_not_overlap);
    TEST(addresses);
    TEST(reserve_is_all_or_nothing);
    TEST(truncate_gives_back);
    TEST(too_large_is_refused);
    TEST(blocks_are_shared_and_kept);
    return test_result();
}
