#include "lib/import/convert.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/import/convert_impl.h"
#include "lib/import/hf_tokenizer.h"
#include "lib/import/map.h"
#include "lib/import/spm_tokenizer.h"
#include "lib/import/tiktoken.h"

/* The one type that holds all of them without loss. */
static enum clb_dtype common(enum clb_dtype a, enum clb_dtype b)
{
    return a == b || b == CLB_DTYPE_COUNT ? a : a == CLB_DTYPE_COUNT ? b : CLB_F32;
}

static void choose_dtypes(struct clb_conversion *c)
{
    enum clb_dtype experts = CLB_DTYPE_COUNT, dense = CLB_DTYPE_COUNT;
    struct clb_tensor_spec s;

    for (uint32_t i = 0; i < c->bind.n_expert_part; i++)
        experts = common(experts, clb_view_dtype(&c->bind.expert[i]));
    for (uint32_t i = 0; clb_arch_tensor(&c->arch, i, &s); i++) {
        if (s.form == CLB_FORM_MATRIX)
            dense = common(dense, clb_view_dtype(&c->bind.dense[i]));
        if (s.role == CLB_EMBED)
            c->embed_dtype = clb_view_dtype(&c->bind.dense[i]);
    }
    c->expert_dtype = c->o.source_dtype ? experts : c->o.dtype;
    c->dense_dtype = c->o.dense_dtype_set     ? c->o.dense_dtype
                     : c->o.source_dtype      ? dense
                     : c->o.dtype == CLB_INT4 ? CLB_INT8
                                              : c->o.dtype;
}

static bool list_sources(struct clb_conversion *c, struct clb_err *err)
{
    c->sources = clb_new(CLB_CKPT_TEXTS + c->ckpt.n_shard, sizeof *c->sources, err);
    if (!c->sources)
        return false;
    for (int i = 0; i < CLB_CKPT_TEXTS; i++)
        if (c->ckpt.text[i].path) {
            struct clb_source_file *s = &c->sources[c->n_sources++];

            s->file = (char *)(uintptr_t)clb_checkpoint_text_name(&c->ckpt, i);
            s->size = c->ckpt.text[i].size;
        }
    c->n_texts = c->n_sources;
    for (uint32_t i = 0; i < c->ckpt.n_shard; i++) {
        struct clb_source_file *s = &c->sources[c->n_sources++];

        s->file = c->ckpt.shard_name[i];
        s->size = c->ckpt.shard[i].map.size;
    }
    return true;
}

static int by_name(const void *pa, const void *pb)
{
    const struct clb_ignore *a = pa, *b = pb;

    return strcmp(a->name, b->name);
}

/* Sorted, so that the order of the options does not change the file. */
static bool accept_keys(struct clb_conversion *c, struct clb_err *err)
{
    c->ignore = clb_new(c->o.n_ignore, sizeof *c->ignore, err);
    if (!c->ignore)
        return false;
    for (uint32_t i = 0; i < c->o.n_ignore; i++)
        c->ignore[i].name = c->o.ignore_key[i];
    qsort(c->ignore, c->o.n_ignore, sizeof *c->ignore, by_name);
    return true;
}

/* What was accepted and indeed had to be; each name once. */
static bool list_ignored(struct clb_conversion *c, struct clb_err *err)
{
    static const char *const why[] = {
        [CLB_KEY_UNKNOWN] = "config.json has no such key",
        [CLB_KEY_USED] = "is understood and cannot be ignored",
        [CLB_KEY_IRRELEVANT] = "is known to change nothing; leave the option out",
    };

    c->ignored = clb_new(c->o.n_ignore, sizeof *c->ignored, err);
    if (!c->ignored)
        return false;
    for (uint32_t i = 0; i < c->o.n_ignore; i++) {
        const struct clb_ignore *k = &c->ignore[i];

        if (k->state != CLB_KEY_IGNORED && !c->o.ignore_surplus)
            return clb_fail(err, CLB_USAGE, "--ignore-key %s: %s", k->name, why[k->state]);
        if (k->state == CLB_KEY_IGNORED && (i == 0 || strcmp(k->name, k[-1].name)))
            c->ignored[c->n_ignored++] = k->name;
    }
    return true;
}

const struct clb_ckpt_file *clb_tokenizer_file(const struct clb_conversion *c)
{
    const struct clb_ckpt_file *text = c->ckpt.text;

    if (text[CLB_CKPT_TOKENIZER].path)
        return &text[CLB_CKPT_TOKENIZER];
    return &text[text[CLB_CKPT_TIKTOKEN].path ? CLB_CKPT_TIKTOKEN : CLB_CKPT_TOKENIZER_MODEL];
}

static bool compile_tokenizer(struct clb_conversion *c, struct clb_err *err)
{
    const struct clb_ckpt_file *m = clb_tokenizer_file(c),
                               *config = &c->ckpt.text[CLB_CKPT_TOKENIZER_CONFIG];
    const struct clb_spm_source spm = {
        .model = { (const char *)m->data, m->size },
        .file = m->path,
        .config = { (const char *)config->data, config->size },
        .config_file = config->path,
        .vocab_size = c->arch.vocab_size,
    };
    const struct clb_tiktoken_source tik = { spm.model, spm.file, spm.config, spm.config_file,
                                             spm.vocab_size };

    if (m == &c->ckpt.text[CLB_CKPT_TIKTOKEN])
        return clb_tiktoken_compile(&c->tables, &tik, err);
    if (m == &c->ckpt.text[CLB_CKPT_TOKENIZER_MODEL])
        return clb_spm_tokenizer_compile(&c->tables, &spm, err);
    return clb_hf_tokenizer_compile(&c->tables, (const char *)m->data, m->size, m->path,
                                    c->arch.vocab_size, err);
}

/* A vocabulary that is there and is not read would be missed too late. */
static bool no_tokenizer(struct clb_conversion *c, struct clb_err *err)
{
    char *path = clb_checkpoint_ending(&c->ckpt, ".tiktoken", err);

    if (path)
        clb_tiktoken_refuse(path, "of such files only the tiktoken.model of some classes is known",
                            err);
    else if (err->code == CLB_OK)
        clb_note(&c->notes, "no tokenizer.json, tokenizer.model or tiktoken.model: the model takes "
                            "and gives token ids only");
    clb_free(path);
    return err->code == CLB_OK;
}

static bool read_tokenizer(struct clb_conversion *c, struct clb_err *err)
{
    if (!clb_read_chat(c, err))
        return false;
    if (clb_tokenizer_file(c)->path)
        return compile_tokenizer(c, err) && clb_add_tokenizer_end(c, err);
    return no_tokenizer(c, err);
}

static bool make_plan(struct clb_conversion *c, struct clb_err *err)
{
    static const char *const scales[] = { "row", "expert", "tensor" };
    struct clb_plan_options p = {
        .arch = &c->arch,
        .generation = &c->generation,
        .converter = c->o.command,
        .expert_dtype = c->expert_dtype,
        .dense_dtype = c->dense_dtype,
        .embed_dtype = c->embed_dtype,
        .sources = c->sources,
        .n_sources = c->n_sources,
        .ignored_keys = c->ignored,
        .n_ignored = c->n_ignored,
        .scale = scales[c->o.scale],
    };
    uint32_t n = 0;

    if (c->tables.n) {
        p.section[n].name = "tokenizer.source";
        p.section[n++].size = clb_tokenizer_file(c)->size;
        p.section[n].name = "tokenizer.tables";
        p.section[n++].size = c->tables.n;
    }
    const struct {
        const char *name;
        const struct clb_text *text;
    } chat[] = { { "chat_template", &c->chat_template },
                 { "chat_template.tool_use", &c->chat_tool_use },
                 { "chat_variables", &c->chat_variables } };
    for (int i = 0; i < 3; i++)
        if (chat[i].text->n) {
            p.section[n].name = chat[i].name;
            p.section[n++].size = chat[i].text->n;
        }
    return clb_plan_new(&c->plan, &p, err);
}

static bool read_config(struct clb_conversion *c, struct clb_err *err)
{
    const struct clb_ckpt_file *m = &c->ckpt.text[CLB_CKPT_CONFIG];
    struct clb_family_options o = {
        .ignore = c->ignore,
        .n_ignore = c->o.n_ignore,
        .router_clip = c->o.clip_gate_softmax,
        .map = c->map,
    };

    return clb_settings_read(&c->config, (const char *)m->data, m->size, m->path, err) &&
           clb_family_read(&c->family, &c->arch, &c->extra, &c->config, &o, &c->problems, &c->notes,
                           err) &&
           clb_read_generation(&c->generation, &c->ckpt, &c->config, c->arch.vocab_size, err);
}

static bool read_map(struct clb_conversion *c, struct clb_err *err)
{
    const struct clb_ckpt_file *f = &c->ckpt.text[CLB_CKPT_MAP];

    return !c->o.map || (clb_checkpoint_open_map(&c->ckpt, c->o.map, err) &&
                         clb_map_open(&c->map, (const char *)f->data, f->size, f->path, err));
}

static bool choose_kernels(struct clb_conversion *c, struct clb_err *err)
{
    enum clb_isa isa;

    if (!clb_isa_choose(c->o.cpu_level, &isa, err))
        return false;
    clb_pack_kernels_for(&c->kernels, isa);
    return true;
}

static bool plan(struct clb_conversion *c, struct clb_err *err)
{
    if (!choose_kernels(c, err) || !clb_checkpoint_open(&c->ckpt, c->o.source_dir, err) ||
        !read_map(c, err) || !accept_keys(c, err) || !read_config(c, err) ||
        !list_ignored(c, err) ||
        !clb_checkpoint_open_shards(&c->ckpt, &c->notes, err) ||
        !clb_bind(&c->bind, c->family, &c->arch, &c->extra, &c->ckpt, &c->problems, &c->notes,
                  err) ||
        !read_tokenizer(c, err) || !list_sources(c, err))
        return false;
    choose_dtypes(c);
    clb_int4_book_init(&c->book, clb_book_int4);
    if (!make_plan(c, err))
        return false;
    return !c->notes.failed || clb_fail_nomem(err, c->notes.n);
}

bool clb_convert_plan(struct clb_conversion **out, const struct clb_convert_options *o,
                      struct clb_err *err)
{
    struct clb_conversion *c = *out = clb_new(1, sizeof *c, err);

    if (!c)
        return false;
    c->o = *o;
    return plan(c, err);
}

void clb_convert_free(struct clb_conversion *c)
{
    if (!c)
        return;
    clb_plan_free(c->plan);
    clb_bind_free(&c->bind);
    clb_settings_free(&c->config);
    clb_map_close(c->map);
    clb_checkpoint_close(&c->ckpt);
    clb_text_free(&c->tables);
    clb_text_free(&c->chat_template);
    clb_text_free(&c->chat_tool_use);
    clb_text_free(&c->chat_variables);
    clb_text_free(&c->notes);
    clb_problems_free(&c->problems);
    clb_free(c->sources);
    clb_free(c->ignore);
    clb_free(c->ignored);
    clb_free(c->dense_loss);
    clb_free(c->expert_loss);
    clb_free(c);
}

const char *clb_convert_problems(const struct clb_conversion *c)
{
    const char *ours = c ? c->problems.text.p : NULL;

    if (ours && *ours)
        return ours;
    return c && c->ckpt.problems.text.p ? c->ckpt.problems.text.p : "";
}

const char *clb_convert_notes(const struct clb_conversion *c)
{
    return c->notes.p ? c->notes.p : "";
}

uint64_t clb_convert_size(const struct clb_conversion *c)
{
    return clb_plan_file_size(c->plan);
}

uint64_t clb_convert_work(const struct clb_conversion *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->ckpt.n_tensor; i++)
        n += c->ckpt.tensor[i].t->end - c->ckpt.tensor[i].t->begin;
    if (c->o.scale != CLB_SCALE_ROW && c->expert_dtype == CLB_INT8)
        for (uint32_t i = 0; i < c->bind.n_expert_part; i++)
            n += clb_view_bytes(&c->bind.expert[i]);
    return n;
}

bool clb_convert_is_source(const struct clb_conversion *c, const char *path)
{
    return clb_checkpoint_has(&c->ckpt, path);
}
