#include "lib/import/spm_tokenizer.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/spm_tokenizer_impl.h"

bool clb_spm_fail(const struct spm *s, const char *fmt, ...)
{
    char why[384];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_fail(s->err, CLB_BAD_INPUT, "%s: %s", s->source->file, why);
    return clb_err_place(s->err, s->source->file, NULL, CLB_NO_OFFSET);
}

/* The one step of the normaliser, with the map of characters as it is in the file. */
static bool add_normaliser(struct spm *s)
{
    struct clb_step *step = &s->b.step[s->b.head.n_normalise++];
    uint32_t map = 0;

    *step = (struct clb_step){ .op = CLB_DO_SPM };
    step->arg = (s->dummy_prefix ? CLB_SPM_DUMMY : 0u) | (s->remove_extra ? CLB_SPM_REMOVE : 0u) |
                (s->escape ? CLB_SPM_ESCAPE : 0u) | (s->suffix ? CLB_SPM_SUFFIX : 0u);
    if (!s->charsmap.n)
        return true;
    memcpy(&map, s->charsmap.p, 4);
    step->text = (struct clb_span){ (uint32_t)(s->b.programs.n / 4), map / 4 };
    clb_text_add(&s->b.programs, s->charsmap.p + 4, map);
    step->with = clb_build_string(
        &s->b, (struct clb_str){ s->charsmap.p + 4 + map, s->charsmap.n - 4 - map });
    return (!s->b.programs.failed && !s->b.strings.failed) || clb_fail_nomem(s->err, s->charsmap.n);
}

static void set_head(struct spm *s)
{
    struct clb_tables_head *h = &s->b.head;

    h->model = s->kind == SPM_UNIGRAM ? CLB_MODEL_UNIGRAM : CLB_MODEL_BPE;
    h->model_flags =
        CLB_MODEL_SPM | CLB_MODEL_FUSE_UNK | (s->byte_fallback ? CLB_MODEL_BYTE_FALLBACK : 0u);
    h->decoder_flags = CLB_DECODE_FALLBACK | CLB_DECODE_LENIENT;
    if (s->dummy_prefix || s->remove_extra)
        h->decoder_flags |= CLB_DECODE_LEAD;
    if (s->remove_extra)
        h->decoder_flags |= CLB_DECODE_LEADS;
    h->mark = clb_build_string(&s->b, clb_str("\xe2\x96\x81"));
    h->unk = CLB_NO_ID;
}

bool clb_spm_tokenizer_compile(struct clb_text *out, const struct clb_spm_source *source,
                               struct clb_err *err)
{
    struct spm s = { .source = source,
                     .err = err,
                     /* what the format says if a field is absent */
                     .kind = SPM_UNIGRAM,
                     .bos = 1,
                     .eos = 2,
                     .unk_surface = clb_str(" \xe2\x81\x87 "),
                     .dummy_prefix = true,
                     .remove_extra = true,
                     .escape = true };
    bool ok = clb_spm_read(&s);

    if (ok) {
        set_head(&s);
        ok = add_normaliser(&s) && clb_spm_pieces(&s) && clb_spm_config(&s);
    }
    if (ok && !clb_build_write(&s.b, out, err))
        ok = clb_fail_in(err, "%s", source->file);
    clb_build_free(&s.b);
    clb_free(s.piece);
    return ok;
}
