/* hf_tokenizer_steps.c - normalizer and pre_tokenizer to steps. */
#include <stdio.h>

#include "lib/import/hf_tokenizer_impl.h"
#include "lib/token/utf8.h"

/* A new step of the normaliser or, when split is true, of the pre-tokeniser. */
static struct clb_step *new_step(struct hf *h, const struct hf_fields *f, bool split,
                                 enum clb_step_op op)
{
    struct clb_tables_head *head = &h->b.head;
    uint32_t *n = split ? &head->n_split : &head->n_normalise;

    if (*n == CLB_MAX_STEPS) {
        clb_hf_refuse(h, f->raw, "more than %d steps", CLB_MAX_STEPS);
        return NULL;
    }
    ++*n;
    struct clb_step *step = &h->b.step[head->n_normalise + head->n_split - 1];
    *step = (struct clb_step){ .op = op };
    return step;
}

static bool replace(struct hf *h, const struct hf_fields *f, bool split)
{
    struct clb_step *step = new_step(h, f, split, CLB_DO_REPLACE);

    if (!step || !clb_hf_pattern(h, f, step))
        return false;
    step->with = clb_build_string(&h->b, clb_hf_string(h, f->content));
    return true;
}

static bool prepend(struct hf *h, const struct hf_fields *f, bool split, struct clb_str with,
                    enum clb_prepend when)
{
    struct clb_step *step = new_step(h, f, split, CLB_DO_PREPEND);

    if (!step)
        return false;
    step->arg = when;
    step->with = clb_build_string(&h->b, with);
    return true;
}

bool clb_hf_normalizer(struct hf *h, struct clb_str raw, int depth)
{
    static const struct {
        const char *type;
        enum clb_step_op op;
    } plain[] = {
        { "NFC", CLB_DO_NFC },   { "NFD", CLB_DO_NFD },         { "NFKC", CLB_DO_NFKC },
        { "NFKD", CLB_DO_NFKD }, { "Lowercase", CLB_DO_LOWER },
    };
    struct hf_fields f;

    if (!clb_hf_read_fields(h, raw, &f))
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(f.type, plain[i].type))
            return clb_hf_check_fields(h, &f, 0, 0) && new_step(h, &f, false, plain[i].op);
    if (!strcmp(f.type, "Sequence"))
        return clb_hf_check_fields(h, &f, HF_LIST, 0) &&
               clb_hf_each(h, f.list, depth, clb_hf_normalizer);
    if (!strcmp(f.type, "Prepend"))
        return clb_hf_check_fields(h, &f, HF_PREPEND, 0) &&
               prepend(h, &f, false, clb_hf_string(h, f.text), CLB_PREPEND_ALWAYS);
    if (!strcmp(f.type, "Replace"))
        return clb_hf_check_fields(h, &f, HF_PATTERN | HF_CONTENT, 0) && replace(h, &f, false);
    if (!strcmp(f.type, "Strip")) {
        if (!clb_hf_check_fields(h, &f, HF_STRIP_LEFT | HF_STRIP_RIGHT, 0))
            return false;
        struct clb_step *step = new_step(h, &f, false, CLB_DO_STRIP);
        if (step)
            step->arg = (f.strip_left ? 1u : 0) | (f.strip_right ? 2u : 0);
        return step;
    }
    return clb_hf_refuse(h, raw, "the normalizer '%s' is not supported", f.type);
}

/* -- pre-tokeniser ---------------------------------------------------------------------------- */

static bool split(struct hf *h, const struct hf_fields *f, enum clb_find find,
                  enum clb_behavior behavior)
{
    struct clb_step *step = new_step(h, f, true, CLB_SPLIT);

    if (!step)
        return false;
    step->find = find;
    step->arg = behavior | (f->invert ? CLB_INVERT : 0);
    return find != CLB_FIND_NONE || clb_hf_pattern(h, f, step);
}

/* The bytes become characters in the reference; here words are compared as bytes. */
static bool byte_level(struct hf *h, const struct hf_fields *f)
{
    h->byte_level_at = (uint64_t)(f->raw.p - h->json);
    h->b.head.model_flags |= CLB_MODEL_BYTE_LEVEL;
    if (f->add_prefix_space && !prepend(h, f, true, clb_str(" "), CLB_PREPEND_MISSING))
        return false;
    return !f->use_regex || split(h, f, CLB_FIND_GPT2, CLB_ISOLATED);
}

/* Spaces become the replacement, one is put in front, and words start at it. */
static bool metaspace(struct hf *h, const struct hf_fields *f)
{
    struct clb_str mark = clb_hf_string(h, f->text);

    if (f->given & HF_ADD_PREFIX_SPACE && !f->add_prefix_space && !f->never)
        return clb_hf_refuse(h, f->raw,
                             "add_prefix_space is false, which contradicts prepend_scheme");
    if (!mark.n || clb_utf8_step(mark.p, mark.n) != (int)mark.n)
        return clb_hf_refuse(h, f->raw, "the replacement of Metaspace is one character, not '%.*s'",
                             (int)mark.n, mark.p);
    struct clb_step *step = new_step(h, f, true, CLB_DO_REPLACE);
    if (!step)
        return false;
    step->find = CLB_FIND_TEXT;
    step->text = clb_build_string(&h->b, clb_str(" "));
    step->with = clb_build_string(&h->b, mark);
    if (!f->never &&
        !prepend(h, f, true, mark, f->given & HF_PREPEND_SCHEME ? f->scheme : CLB_PREPEND_MISSING))
        return false;
    if (!f->split)
        return true;
    step = new_step(h, f, true, CLB_SPLIT);
    if (!step)
        return false;
    step->arg = CLB_MERGED_NEXT;
    step->find = CLB_FIND_TEXT;
    step->text = clb_build_string(&h->b, mark);
    return true;
}

bool clb_hf_pre_tokenizer(struct hf *h, struct clb_str raw, int depth)
{
    struct hf_fields f;

    if (!clb_hf_read_fields(h, raw, &f))
        return false;
    if (!strcmp(f.type, "Sequence"))
        return clb_hf_check_fields(h, &f, HF_LIST, 0) &&
               clb_hf_each(h, f.list, depth, clb_hf_pre_tokenizer);
    if (h->byte_level_at != CLB_NO_OFFSET)
        return clb_hf_refuse(h, raw,
                             "the pre-tokenizer '%s' after ByteLevel (byte %llu) is not supported",
                             f.type, (unsigned long long)h->byte_level_at);
    if (!strcmp(f.type, "Split"))
        return clb_hf_check_fields(h, &f, HF_PATTERN | HF_BEHAVIOR | HF_INVERT, 0) &&
               split(h, &f, CLB_FIND_NONE, f.behavior);
    if (!strcmp(f.type, "Digits"))
        return clb_hf_check_fields(h, &f, HF_INDIVIDUAL_DIGITS, 0) &&
               split(h, &f, CLB_FIND_NUMERIC, f.individual_digits ? CLB_ISOLATED : CLB_CONTIGUOUS);
    if (!strcmp(f.type, "ByteLevel"))
        return clb_hf_check_fields(h, &f, HF_ADD_PREFIX_SPACE | HF_TRIM_OFFSETS, HF_USE_REGEX) &&
               byte_level(h, &f);
    if (!strcmp(f.type, "Metaspace"))
        return clb_hf_check_fields(h, &f, HF_REPLACEMENT,
                                   HF_PREPEND_SCHEME | HF_SPLIT | HF_ADD_PREFIX_SPACE |
                                       HF_STR_REP) &&
               metaspace(h, &f);
    return clb_hf_refuse(h, raw, "the pre-tokenizer '%s' is not supported", f.type);
}
