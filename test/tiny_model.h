/* tiny_model.h - a deterministic toy model, built in memory through lib/format/writer: two layers,
 * eight experts, random weights of any stored type. Tests that need a model and no checkpoint use
 * it.
 *
 *     struct tiny t;
 *     struct clb_arch a;
 *     tiny_arch(&a);                 change fields as the test needs
 *     tiny_build(&t, &(struct tiny_options){ .arch = &a, .expert = CLB_INT8, ... });
 *     clb_reader_open_memory(&r, t.bytes, t.n, &err);
 *     tiny_free(&t);
 *
 * The same options give the same bytes. Odd sizes on purpose: vocabulary and expert width are no
 * multiples of 16 and 32, so padding is met everywhere. */
#ifndef TEST_TINY_MODEL_H
#define TEST_TINY_MODEL_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/half.h"
#include "lib/format/writer.h"

struct tiny_options {
    const struct clb_arch *arch;
    enum clb_dtype expert, dense, embed;
    uint64_t seed;
    const void *tokenizer_tables; /* a section to be stored, or NULL */
    size_t n_tables;
    const char *chat_template, *chat_tool_use, *chat_variables; /* sections, or NULL */
};

struct tiny {
    uint8_t *bytes; /* owned, page aligned */
    size_t n;
};

static inline void tiny_arch(struct clb_arch *a)
{
    *a = (struct clb_arch){
        .n_layer = 2,
        .hidden_size = 64,
        .vocab_size = 99,
        .max_positions = 512,
        .n_head = 4,
        .n_kv_head = 2,
        .head_dim = 16,
        .value_dim = 16,
        .rope = CLB_ROPE_HALF,
        .rope_dim = 16,
        .norm_eps = 1e-6f,
        .n_expert = 8,
        .top_k = 2,
        .expert_size = 48,
        .topk_normalise = true,
    };
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->layer_experts[l] = a->n_expert;
}

/* Uniform in [-1, 1), a pure function of its arguments. */
static inline float tiny_random(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t z =
        seed * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u + i * 0xbf58476d1ce4e5b9u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)(int32_t)((z ^ z >> 31) >> 32) * 0x1p-31f;
}

/* A matrix to be stored: value (r, c) is random, times `scale`. */
struct tiny_matrix {
    enum clb_dtype dtype;
    uint32_t rows, cols;
    uint64_t seed, stream;
    float scale;
};

static inline float tiny_weight(const struct tiny_matrix *m, uint32_t r, uint32_t c)
{
    if (r >= m->rows || c >= m->cols)
        return 0;
    return m->scale * tiny_random(m->seed, m->stream, (uint64_t)r * m->cols + c);
}

static inline uint8_t tiny_code(const int8_t book[16], float w, float s)
{
    uint8_t best = 0;
    float x = s > 0 ? w / s : 0;

    for (uint8_t i = 1; i < 16; i++)
        if (fabsf((float)book[i] - x) < fabsf((float)book[best] - x))
            best = i;
    return best;
}

/* The largest magnitude of one row, or of one group of 32 inputs of it. */
static inline float tiny_amax(const struct tiny_matrix *m, uint32_t r, uint32_t from, uint32_t n)
{
    float amax = 0;

    for (uint32_t c = from; c < from + n; c++)
        amax = fmaxf(amax, fabsf(tiny_weight(m, r, c)));
    return amax;
}

/* The 4-bit tile of rows r0 .. r0 + 15: scales, then codes. */
static inline void tiny_tile_4bit(uint8_t *tile, const struct tiny_matrix *m, uint32_t r0)
{
    const int8_t *book = m->dtype == CLB_INT4 ? clb_book_int4 : clb_book_mxfp4;
    uint8_t *steps = tile + clb_tile_steps_at(m->dtype, m->cols);
    uint32_t n_group = clb_cols_padded(m->dtype, m->cols) / CLB_GROUP;
    float top = m->dtype == CLB_INT4 ? 127 : 12;

    for (uint32_t g = 0; g < n_group; g++)
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            float s = tiny_amax(m, r0 + r, g * CLB_GROUP, CLB_GROUP) / top;
            if (m->dtype == CLB_INT4) {
                uint16_t h = clb_f32_to_f16(s);
                memcpy(tile + 2 * (g * CLB_TILE + r), &h, 2);
                s = clb_f16_to_f32(h);
            } else {
                uint8_t e = s > 0 ? (uint8_t)(ilogbf(s) + 129) : 0;
                tile[g * CLB_TILE + r] = e;
                s = s > 0 ? clb_e8m0(e) : 0;
            }
            for (uint32_t i = 0; i < CLB_GROUP; i++) {
                uint8_t code = tiny_code(book, tiny_weight(m, r0 + r, g * CLB_GROUP + i), s);
                uint8_t *b = &steps[(g * 4 + i % 16 / 4) * 64 + r * 4 + i % 4];
                *b = (uint8_t)(i < 16 ? (*b & 0xf0) | code : (*b & 0x0f) | code << 4);
            }
        }
}

/* One stored element of a float or int8 tile; scale is the row's. */
static inline void tiny_put(uint8_t *at, enum clb_dtype t, float w, float scale)
{
    uint16_t h;

    switch (t) {
    case CLB_F32:
        memcpy(at, &w, 4);
        break;
    case CLB_F16:
    case CLB_BF16:
        h = t == CLB_F16 ? clb_f32_to_f16(w) : clb_f32_to_bf16(w);
        memcpy(at, &h, 2);
        break;
    default:
        *at = (uint8_t)(128 + (int)(scale > 0 ? rintf(w / scale) : 0));
    }
}

/* Tiles at `tiles`, int8 row scales at `scales`. */
static inline void tiny_pack(uint8_t *tiles, float *scales, const struct tiny_matrix *m)
{
    uint64_t tile_bytes = clb_tile_bytes(m->dtype, m->cols);
    uint32_t size = m->dtype == CLB_F32 ? 4 : m->dtype == CLB_INT8 ? 1 : 2, per_step = 4 / size;

    for (uint32_t r0 = 0; r0 < clb_rows_padded(m->rows); r0 += CLB_TILE, tiles += tile_bytes) {
        if (m->dtype == CLB_INT4 || m->dtype == CLB_MXFP4) {
            tiny_tile_4bit(tiles, m, r0);
            continue;
        }
        for (uint32_t r = r0; r < r0 + CLB_TILE; r++) {
            float scale = tiny_amax(m, r, 0, m->cols) / 127;
            if (m->dtype == CLB_INT8)
                scales[r] = scale;
            for (uint32_t c = 0; c < clb_cols_padded(m->dtype, m->cols); c++)
                tiny_put(tiles + c / per_step * 64 + (r - r0) * 4 + c % per_step * size, m->dtype,
                         tiny_weight(m, r, c), scale);
        }
    }
}

static inline void tiny_vector(uint8_t *at, const struct clb_tensor *t, const struct tiny_matrix *m)
{
    for (uint32_t c = 0; c < t->spec.cols; c++) {
        float v = m->scale * tiny_random(m->seed, m->stream, c);
        if (t->spec.role == CLB_ROPE_INV_FREQ || t->spec.role == CLB_ROPE_INV_FREQ_LONG)
            v = expf(-9.21f * (float)c / (float)t->spec.cols);
        else if (strstr(t->name, "norm") && !strstr(t->name, "bias"))
            v = 1 + 0.2f * v;
        memcpy(at + 4 * c, &v, 4);
    }
}

static inline void tiny_tensor(uint8_t *file, const struct clb_tensor *t,
                               const struct tiny_options *o, uint32_t i)
{
    struct tiny_matrix m = { t->dtype, t->spec.rows, t->spec.cols, o->seed, i, 0.25f };
    uint8_t *at = file + t->offset;

    if (t->spec.form == CLB_FORM_VECTOR) {
        tiny_vector(at, t, &m);
    } else if (t->spec.form == CLB_FORM_ROWS) {
        uint32_t size = t->dtype == CLB_F32 ? 4 : 2;
        m.scale = 1;
        for (uint64_t k = 0; k < (uint64_t)m.rows * m.cols; k++)
            tiny_put(at + k * size, t->dtype, tiny_random(m.seed, m.stream, k), 0);
    } else {
        m.scale = t->spec.form == CLB_FORM_ROUTER ? 1 : 0.25f;
        tiny_pack(at, (float *)(void *)(file + t->scale_offset), &m);
    }
}

static inline void tiny_expert(uint8_t *block, const struct clb_expert_layer *l,
                               const struct tiny_options *o, uint32_t e)
{
    for (int p = 0; p < CLB_PARTS; p++) {
        const struct clb_expert_part *part = &l->part[p];
        struct tiny_matrix m = { part->dtype,
                                 part->rows,
                                 part->cols,
                                 o->seed,
                                 1000000 + (l->layer * 4096ull + e) * 8 + (unsigned)p,
                                 0.4f };
        tiny_pack(block + part->at, (float *)(void *)(block + part->scale_at), &m);
        for (uint32_t r = 0; part->bias_at && r < part->rows; r++) {
            float b = 0.2f * tiny_random(o->seed, m.stream + 4, r);
            memcpy(block + part->bias_at + 4 * r, &b, 4);
        }
    }
}

static inline void tiny_section(struct tiny *t, struct clb_write_plan *p, const char *name,
                                const void *bytes)
{
    const struct clb_section *s = clb_plan_section(p, name);

    if (s) {
        memcpy(t->bytes + s->offset, bytes, s->size);
        clb_plan_section_crc(p, name, clb_crc32(0, t->bytes + s->offset, s->size));
    }
}

static inline void tiny_blocks(struct tiny *t, struct clb_write_plan *p,
                               const struct tiny_options *o)
{
    for (uint32_t i = 0; i < clb_arch_tensor_count(o->arch); i++) {
        const struct clb_tensor *x = clb_plan_tensor(p, i);
        tiny_tensor(t->bytes, x, o, i);
        clb_plan_tensor_crc(p, i, clb_crc32(0, t->bytes + x->offset, x->size));
    }
    for (uint32_t l = 0; l < o->arch->n_layer; l++) {
        const struct clb_expert_layer *x = clb_plan_experts(p, l);
        for (uint32_t e = 0; x && e < x->count; e++) {
            tiny_expert(t->bytes + x->offset[e], x, o, e);
            clb_plan_expert_crc(p, l, e, clb_crc32(0, t->bytes + x->offset[e], x->size[e]));
        }
    }
    tiny_section(t, p, "tokenizer.tables", o->tokenizer_tables);
    tiny_section(t, p, "chat_template", o->chat_template);
    tiny_section(t, p, "chat_template.tool_use", o->chat_tool_use);
    tiny_section(t, p, "chat_variables", o->chat_variables);
}

static inline void tiny_free(struct tiny *t)
{
    free(t->bytes);
    *t = (struct tiny){ 0 };
}

/* False (with the reason on stdout) when the writer refuses. */
static inline bool tiny_build(struct tiny *t, const struct tiny_options *o)
{
    struct clb_generation generation = {
        .bos_token = -1,
        .eos_token = { 98 },
        .n_eos = 1,
        .temperature = NAN,
        .top_p = NAN,
        .min_p = NAN,
        .repetition_penalty = NAN,
        .top_k = -1,
    };
    struct clb_plan_options po = {
        .arch = o->arch,
        .generation = &generation,
        .converter = "tiny_model.h",
        .scale = "row",
        .expert_dtype = o->expert,
        .dense_dtype = o->dense,
        .embed_dtype = o->embed,
    };
    struct clb_write_plan *p = NULL;
    struct clb_text header = { 0 };
    struct clb_err err = { 0 };
    bool ok = false;

    *t = (struct tiny){ 0 };
    const char *const chat[] = { o->chat_template, o->chat_tool_use, o->chat_variables };
    static const char *const chat_name[] = { "chat_template", "chat_template.tool_use",
                                             "chat_variables" };
    uint32_t n = 0;
    if (o->tokenizer_tables) {
        po.section[n].name = "tokenizer.tables";
        po.section[n++].size = o->n_tables;
    }
    for (int i = 0; i < 3; i++)
        if (chat[i]) {
            po.section[n].name = chat_name[i];
            po.section[n++].size = strlen(chat[i]);
        }
    if (!clb_plan_new(&p, &po, &err))
        goto done;
    t->n = clb_plan_file_size(p);
    t->bytes = aligned_alloc(CLB_PAGE, (t->n + CLB_PAGE - 1) / CLB_PAGE * CLB_PAGE);
    memset(t->bytes, 0, t->n);
    tiny_blocks(t, p, o);
    if (!clb_plan_header(p, &header, &err))
        goto done;
    memcpy(t->bytes, header.p, header.n);
    ok = true;
done:
    if (!ok)
        printf("# tiny_build: %s\n", err.text);
    clb_text_free(&header);
    clb_plan_free(p);
    return ok;
}

/* Writes it to a new file whose name replaces the XXXXXX of `path`. */
static inline bool tiny_save(const struct tiny *t, char *path)
{
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool ok = f && fwrite(t->bytes, 1, t->n, f) == t->n;

    return f && fclose(f) == 0 && ok;
}

#endif
