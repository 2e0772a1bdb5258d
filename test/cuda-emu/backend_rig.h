/* backend_rig.h - tiny models on the CUDA backend: near the CPU in f32 with the same weights, and
 * the same bits however the work is cut. */
#ifndef TEST_CUDA_EMU_BACKEND_RIG_H
#define TEST_CUDA_EMU_BACKEND_RIG_H

#include "test/unit/engine_rig.h"

#include "emu_control.h"

enum { LENGTH = 72, VOCAB = 99 };

static int32_t ids[RIG_CONTEXT];

/* The same weights in f32, for the CPU to be the reference of other types: it quantises no
 * activations then. */
static inline void widen_matrix(float *tiles, const struct clb_matrix *m)
{
    float row[512];

    for (uint32_t r = 0; r < m->rows; r++) {
        clb_matrix_row(m, r, row);
        for (uint32_t c = 0; c < m->cols; c++)
            tiles[((size_t)(r / 16) * m->cols + c) * 16 + r % 16] = row[c];
    }
}

static inline void widen_file(struct tiny *to, const struct tiny *from)
{
    struct clb_reader a, b;
    struct clb_err err = { 0 };

    CHECK(clb_reader_open_memory(&a, from->bytes, from->n, &err) &&
          clb_reader_open_memory(&b, to->bytes, to->n, &err));
    for (uint32_t i = 0; i < a.n_tensors; i++) {
        struct clb_matrix m = clb_reader_matrix(&a, &a.tensors[i]);
        void *at = to->bytes + b.tensors[i].offset;

        if (a.tensors[i].spec.form == CLB_FORM_MATRIX)
            widen_matrix(at, &m);
    }
    for (uint32_t l = 0; l < a.n_expert_layers; l++)
        for (uint32_t e = 0; e < a.experts[l].count; e++)
            for (int p = 0; p < CLB_PARTS; p++) {
                struct clb_matrix m = clb_expert_matrix(&a, &a.experts[l], (enum clb_part)p,
                                                        a.data + a.experts[l].offset[e]);
                void *at = to->bytes + b.experts[l].offset[e] + b.experts[l].part[p].at;

                widen_matrix(at, &m);
            }
    clb_reader_close(&a);
    clb_reader_close(&b);
}

/* -- runs -------------------------------------------------------------------------------------- */

/* Sequence s begins with the s-th id and is s rows shorter. */
struct cut {
    uint32_t n_seq, length, chunk;
};

static inline float *run(const struct rig_options *o, struct cut cut)
{
    float *out = calloc((size_t)cut.n_seq * LENGTH * VOCAB, sizeof *out);
    struct rig_batch b = { .n_seq = cut.n_seq, .chunk = cut.chunk };
    struct rig_options least = *o; /* every launch opens and closes all memory of the device */
    struct rig g;

    for (uint32_t s = 0; s < cut.n_seq; s++) {
        b.ids[s] = ids + s;
        b.length[s] = cut.length - s;
        b.out[s] = out + (size_t)s * LENGTH * VOCAB;
    }
    least.max_rows = o->max_rows ? o->max_rows : cut.n_seq * LENGTH;
    least.n_block = cut.n_seq * ((LENGTH + CLB_KV_BLOCK - 1) / CLB_KV_BLOCK);
    if (!rig_open(&g, &least))
        CHECK(!"open");
    else
        CHECK(rig_run(&g, &b));
    rig_close(&g);
    return out;
}

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* How far rows are apart, as a share of the largest logit: of nine rows in ten. In a row now and
 * then the rounding of activations makes the router choose another expert. */
static inline double distance(const float *want, const float *got)
{
    double row[LENGTH], size = 0;

    for (int r = 0; r < LENGTH; r++) {
        row[r] = 0;
        for (int i = 0; i < VOCAB; i++) {
            double d = fabs((double)want[r * VOCAB + i] - (double)got[r * VOCAB + i]);
            row[r] = d <= row[r] ? row[r] : d == d ? d : INFINITY;
            size = fmax(size, fabs((double)want[r * VOCAB + i]));
        }
    }
    qsort(row, LENGTH, sizeof *row, by_size);
    return row[LENGTH * 9 / 10] / size;
}

static inline void same_rows(const struct rig_options *o, const float *want, struct cut cut)
{
    float *got = run(o, cut);

    if (memcmp(want, got, (size_t)cut.length * VOCAB * sizeof *got)) {
        printf("# %u sequences, %u rows, %u at a time: other bits\n", cut.n_seq, cut.length,
               cut.chunk);
        CHECK(!"same bits");
    }
    free(got);
}

/* -- where no bits are compared ---------------------------------------------------------------- */

/* A model of one layer with four experts, for whatever opens and runs often. */
static inline void small_arch(struct clb_arch *a)
{
    tiny_arch(a);
    a->n_layer = 1;
    a->n_expert = a->layer_experts[0] = 4;
}
/* Twelve experts in each of two layers, four of them for a row: some fit, some do not. */
static inline void twelve_arch(struct clb_arch *a, uint32_t expert_size)
{
    tiny_arch(a);
    a->n_expert = a->layer_experts[0] = a->layer_experts[1] = 12;
    a->top_k = 4;
    a->expert_size = expert_size;
}
/* Of `a`, on the device; `expert`: the type of the experts, the rest is int8. */
static inline struct rig_options small_options(const struct clb_arch *a, enum clb_dtype expert)
{
    return (struct rig_options){ .model = { .arch = a, .expert = expert, .dense = CLB_INT8 },
                                 .op = clb_backend_device(),
                                 .kv = CLB_KV_F16,
                                 .max_rows = 8,
                                 .n_block = 1 };
}

/* One pass of the first sequence: n of its rows from `at` on, 8 at most in all; logits of the last
 * one. */
static inline bool try_pass(struct rig *g, uint32_t at, uint32_t n, float *out, struct clb_err *err)
{
    static const uint32_t position[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, sequence[8];
    const uint32_t last = n - 1;
    const struct clb_pass p = { .n_row = n,
                                .token = ids + at,
                                .position = position + at,
                                .sequence = sequence,
                                .seq = g->seqs,
                                .n_seq = 1,
                                .logit_row = &last,
                                .n_logit = 1 };

    return clb_kv_seq_reserve(&g->seq[0], at + n, err) &&
           clb_forward(&g->engine, g->x, &p, out, NULL, err);
}

/* Opens, runs `rows` rows (8 at most) of one sequence, `chunk` in a pass, closes. False: it says
 * why not. */
static inline bool try_all(const struct rig_options *o, uint32_t rows, uint32_t chunk,
                           char why[512])
{
    static float out[VOCAB];
    struct clb_err err = { 0 };
    struct rig g;
    bool ok = rig_try_open(&g, o, &err);

    for (uint32_t i = 0; ok && i < rows; i += chunk)
        ok = try_pass(&g, i, chunk, out, &err);
    snprintf(why, 512, "%s", ok ? "" : err.text);
    rig_close(&g);
    return ok;
}

/* The same while the n-th call from now of that name fails: it says that, and gives all back. True
 * if it has failed; else there are fewer calls. */
static inline bool fails_at(const struct rig_options *o, uint32_t rows, uint32_t chunk,
                            const char *call, int n)
{
    char why[512];

    emu_fail(call, n, cudaErrorIllegalAddress);
    bool failed = !try_all(o, rows, chunk, why);
    emu_fail(call, 0, cudaSuccess);
    CHECK_EQ(emu_leaks(), 0);
    if (failed && !strstr(why, cudaGetErrorString(cudaErrorIllegalAddress))) {
        printf("# %s, call %d: %s\n", call, n, why);
        CHECK(!"the cause is told");
    }
    return failed;
}

/* The last test of a program. */
static inline void nothing_leaks(void)
{
    CHECK_EQ(emu_leaks(), 0);
}

/* -- against the CPU --------------------------------------------------------------------------- */

/* Against the CPU with the same weights, in f32, and with a KV cache of type cpu_kv; and against
 * itself. */
struct rig_kv {
    enum clb_kv_dtype cuda, cpu;
};
static inline void check_kv(const char *what, const struct clb_arch *a, enum clb_dtype t,
                            struct rig_kv kv, double bound)
{
    static const char *const names[] = { "f32", "f16", "int8" };
    struct tiny_options make = { .arch = a, .seed = 3, .expert = t, .dense = t };
    struct tiny file, wide;
    struct rig_options o = { .file = &wide, .n_thread = 1, .kv = kv.cpu };
    const struct cut whole = { 1, LENGTH, LENGTH };

    CHECK(tiny_build(&file, &make));
    make.expert = make.dense = CLB_F32;
    CHECK(tiny_build(&wide, &make));
    widen_file(&wide, &file);
    float *cpu = run(&o, whole);
    o = (struct rig_options){ .file = &file, .op = clb_backend_device(), .kv = kv.cuda };
    float *cuda = run(&o, whole);
    double d = distance(cpu, cuda);
    printf("# %s, %s, cache %s: %.2g of the largest logit\n", what, clb_dtype_name(t),
           names[kv.cuda], d);
    CHECK(d <= bound);
    same_rows(&o, cuda, (struct cut){ 1, 5, 1 });
    same_rows(&o, cuda, (struct cut){ 2, 41, 17 });
    free(cpu);
    free(cuda);
    tiny_free(&file);
    tiny_free(&wide);
}

static inline void check_model(const char *what, const struct clb_arch *a, enum clb_dtype t,
                               double bound)
{
    check_kv(what, a, t, (struct rig_kv){ CLB_KV_F16, CLB_KV_F32 }, bound);
}

/* Without the n-th wait for an event of a run: whether some order of late streams gives other bits
 * than `want`. */
static inline bool misses_wait(const struct rig_options *o, struct cut cut, int n,
                               const float *want)
{
    bool found = false;

    for (uint64_t seed = 1; !found && seed < 30; seed++) {
        emu_streams_late(true, seed);
        emu_forget_wait(n);
        float *got = run(o, cut);
        found = memcmp(got, want, (size_t)cut.length * VOCAB * sizeof *got) != 0;
        free(got);
        emu_streams_late(false, 0);
    }
    emu_forget_wait(0);
    return found;
}

/* 16-bit activations: 11 bits in f16, 8 in bf16. */
static const double rig_bound[CLB_DTYPE_COUNT] = {
    [CLB_F32] = 2e-3,  [CLB_F16] = 1e-2,  [CLB_BF16] = 4e-2,
    [CLB_INT8] = 1e-2, [CLB_INT4] = 1e-2, [CLB_MXFP4] = 4e-2,
};

#endif
