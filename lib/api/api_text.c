#include "lib/api/api.h"

#include <inttypes.h>
#include <string.h>

/* NULL (and the failure is remembered) without one. */
static const struct clb_tokenizer *tokenizer_of(const struct colibri_model *model)
{
    struct clb_err err;

    if (!model) {
        clb_api_null("model");
        return NULL;
    }
    if (!model->tokenizer) {
        clb_fail(&err, CLB_USAGE, "%s: the model has no tokenizer; use token ids",
                 model->m->reader.path);
        clb_err_place(&err, model->m->reader.path, "tokenizer.tables", CLB_NO_OFFSET);
        clb_api_fail(&err);
    }
    return model->tokenizer;
}

int64_t colibri_encode(const struct colibri_model *model, const char *text, size_t n,
                       uint32_t flags, int32_t *ids, size_t room)
{
    const struct clb_tokenizer *t = tokenizer_of(model);
    const struct clb_encode_options o = {
        .parse_special = flags & COLIBRI_ENCODE_PARSE_SPECIAL,
        .add_special = !(flags & COLIBRI_ENCODE_NO_BOS),
        .most = !(flags & COLIBRI_ENCODE_UP_TO_ROOM) ? 0 : room ? room : 1,
    };
    struct clb_ids all = { 0 };
    struct clb_err err;
    int64_t count = -1;

    if (!t)
        return -1;
    if ((!text && n > 0) || (!ids && room > 0)) {
        clb_api_null(ids || room == 0 ? "text" : "ids");
        return -1;
    }
    if (flags & ~(uint32_t)(COLIBRI_ENCODE_PARSE_SPECIAL | COLIBRI_ENCODE_NO_BOS |
                            COLIBRI_ENCODE_UP_TO_ROOM)) {
        clb_fail(&err, CLB_USAGE, "flags are 0x%" PRIx32 ": an unknown bit is set", flags);
        clb_api_fail(&err);
    } else if (clb_encode(t, text, n, &o, &all, &err)) {
        size_t copied = all.n < room ? all.n : room;

        if (copied > 0)
            memcpy(ids, all.id, copied * sizeof *ids);
        count = (int64_t)(o.most && all.n > room ? room + 1 : all.n);
    } else {
        clb_api_fail(&err);
    }
    clb_ids_free(&all);
    return count;
}

const char *colibri_token_bytes(const struct colibri_model *model, int32_t id, size_t *n)
{
    const struct clb_tokenizer *t = tokenizer_of(model);
    struct clb_str bytes = { "", 0 };

    if (t && id >= 0 && (uint32_t)id < clb_tokenizer_size(t))
        bytes = clb_token_bytes(t, id);
    if (n)
        *n = bytes.n;
    return !t ? NULL : bytes.n > 0 ? bytes.p : "";
}

bool colibri_token_is_special(const struct colibri_model *model, int32_t id)
{
    const struct clb_tokenizer *t = tokenizer_of(model);

    return t && id >= 0 && (uint32_t)id < clb_tokenizer_size(t) && clb_token_special(t, id);
}

int colibri_decoder_open(struct colibri_decoder **out, const struct colibri_model *model,
                         bool skip_special)
{
    struct clb_decoder *d;
    struct clb_err err;

    if (!out)
        return clb_api_null("out");
    *out = NULL;
    const struct clb_tokenizer *t = tokenizer_of(model);
    if (!t)
        return colibri_last_error_info()->code;
    if (!clb_decoder_open(&d, t, skip_special, &err))
        return clb_api_fail(&err);
    *out = (struct colibri_decoder *)d;
    return COLIBRI_OK;
}

/* What a decoder call gave, to the caller. */
static int hand_over(bool ok, const struct clb_str *got, const struct clb_err *err,
                     const char **text, size_t *n)
{
    *text = ok && got->n > 0 ? got->p : "";
    *n = ok ? got->n : 0;
    return ok ? COLIBRI_OK : clb_api_fail(err);
}

int colibri_decoder_feed(struct colibri_decoder *decoder, int32_t id, const char **text, size_t *n)
{
    struct clb_str got = { 0 };
    struct clb_err err;

    if (!decoder || !text || !n)
        return clb_api_null(!decoder ? "decoder" : !text ? "text" : "n");
    return hand_over(clb_decoder_feed((struct clb_decoder *)decoder, id, &got, &err), &got, &err,
                     text, n);
}

int colibri_decoder_flush(struct colibri_decoder *decoder, const char **text, size_t *n)
{
    struct clb_str got = { 0 };
    struct clb_err err;

    if (!decoder || !text || !n)
        return clb_api_null(!decoder ? "decoder" : !text ? "text" : "n");
    return hand_over(clb_decoder_flush((struct clb_decoder *)decoder, &got, &err), &got, &err, text,
                     n);
}

void colibri_decoder_close(struct colibri_decoder *decoder)
{
    clb_decoder_close((struct clb_decoder *)decoder);
}
