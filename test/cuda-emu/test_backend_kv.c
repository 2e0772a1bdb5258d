/* test_backend_kv.c - the CUDA backend on the emulation with each type of KV cache: near the CPU
 * with the same type, the same bits however work is cut, in graphs, and in blocks that were copied.
 */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

static const struct rig_kv wide = { CLB_KV_F32, CLB_KV_F32 }, codes = { CLB_KV_INT8, CLB_KV_INT8 };

/* As shares of the largest logit: f32 from end to end; and codes, some of which are others because
 * what is stored is off by a rounding. */
static void every_architecture(void)
{
    struct clb_arch a;

    rig_mixed_arch(&a);
    check_kv("mixed", &a, CLB_F32, wide, 3e-6);
    check_kv("mixed", &a, CLB_F32, codes, 5e-3);
    rig_latent_arch(&a);
    check_kv("latent", &a, CLB_F32, wide, 3e-6);
    check_kv("latent", &a, CLB_F16, codes, 1e-2);
    rig_biased_arch(&a);
    check_kv("biased", &a, CLB_F32, wide, 3e-6);
    check_kv("biased", &a, CLB_F16, codes, 1e-2);
}

/* Weights that round activations, beside caches that do not. */
static void other_weights(void)
{
    struct clb_arch a;

    tiny_arch(&a);
    check_kv("plain", &a, CLB_INT8, codes, 2e-2);
    check_kv("plain", &a, CLB_BF16, wide, rig_bound[CLB_BF16]);
}

/* -- graphs, copies ---------------------------------------------------------------------------- */

static void decoding_is_one_launch(void)
{
    struct clb_arch a;
    struct tiny file;

    rig_latent_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 8, .expert = CLB_INT8, .dense = CLB_INT8 }));
    for (int kv = CLB_KV_F32; kv <= CLB_KV_INT8; kv++) {
        const struct rig_options o = { .file = &file,
                                       .op = clb_backend_device(),
                                       .kv = (enum clb_kv_dtype)kv,
                                       .max_rows = 64 };
        float *want = run(&o, (struct cut){ 2, 8, 8 });
        uint64_t launched = emu_calls("cudaGraphLaunch");
        same_rows(&o, want, (struct cut){ 2, 8, 1 });
        CHECK_EQ(emu_calls("cudaGraphLaunch") - launched, 6); /* not the first, not the odd last */
        free(want);
    }
    tiny_free(&file);
}

/* Both sequences have 70 positions in common, one computed them and the other got copies of the
 * blocks: the next rows have the same bits. */
static void copied_blocks_are_the_same(enum clb_kv_dtype kv)
{
    static float out[2][LENGTH * VOCAB];
    struct rig_options o = { .op = clb_backend_device(),
                             .kv = kv,
                             .max_rows = 128,
                             .model = { .seed = 4, .expert = CLB_INT8, .dense = CLB_INT8 } };
    struct rig_batch b = { .n_seq = 1,
                           .chunk = LENGTH - 2,
                           .ids = { ids, ids },
                           .length = { LENGTH - 2, LENGTH },
                           .out = { out[0], out[1] } };
    uint32_t done[RIG_SEQS] = { 0 };
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig g;

    tiny_arch(&a);
    o.model.arch = &a;
    if (!rig_open(&g, &o)) {
        CHECK(!"open");
        return;
    }
    CHECK(rig_pass(&g, &b, done));
    CHECK(clb_kv_seq_reserve(&g.seq[1], LENGTH - 2, &err));
    for (uint32_t i = 0; i < g.seq[0].n_block; i++)
        CHECK(clb_kv_pool_copy(g.kv, g.seq[1].block[i], g.seq[0].block[i], &err));
    done[1] = LENGTH - 2;
    b.n_seq = 2;
    b.length[0] = LENGTH;
    CHECK(rig_pass(&g, &b, done));
    CHECK(out[0][(LENGTH - 1) * VOCAB] != 0);
    CHECK(!memcmp(&out[0][(LENGTH - 2) * VOCAB], &out[1][(LENGTH - 2) * VOCAB],
                  2 * VOCAB * sizeof(float)));
    rig_close(&g);
}

static void blocks_can_be_copied(void)
{
    for (int kv = CLB_KV_F32; kv <= CLB_KV_INT8; kv++)
        copied_blocks_are_the_same((enum clb_kv_dtype)kv);
}

/* -- sizes ------------------------------------------------------------------------------------- */

/* Bytes of a block are what a plan counts: those of the layout in cuda_kernels.h. */
static void sizes_are_those_of_the_type(void)
{
    static const uint64_t bytes[] = {
        [CLB_KV_F32] = 64 * 4 * (20 + 18),
        [CLB_KV_F16] = 64 * 2 * (32 + 24),
        [CLB_KV_INT8] = 64 * (32 + 24) + 2 * 256,
    };
    struct clb_arch a = {
        .n_layer = 3, .n_head = 4, .n_kv_head = 2, .head_dim = 18, .value_dim = 18
    };
    struct clb_err err = { 0 };

    for (int kv = CLB_KV_F32; kv <= CLB_KV_INT8; kv++) {
        struct clb_kv_shape s;
        CHECK(clb_backend_device()->device->kv_shape(&s, &a, (enum clb_kv_dtype)kv, &err));
        CHECK_EQ(s.dtype, (enum clb_kv_dtype)kv);
        CHECK_EQ(s.head_bytes, bytes[kv]);
        CHECK_EQ(s.k_bytes + s.v_bytes, bytes[kv]);
        CHECK_EQ(s.block_bytes, bytes[kv] * 3 * 2);
    }
    a.n_layer = a.n_kv_head = UINT32_MAX;
    struct clb_kv_shape s;
    CHECK(!clb_backend_device()->device->kv_shape(&s, &a, CLB_KV_INT8, &err));
    CHECK_HAS(err.text, "larger than memory can be");
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(every_architecture);
    TEST(other_weights);
    TEST(decoding_is_one_launch);
    TEST(blocks_can_be_copied);
    TEST(sizes_are_those_of_the_type);
    TEST(nothing_leaks);
    return test_result();
}
