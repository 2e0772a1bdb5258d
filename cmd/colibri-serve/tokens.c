#include "cmd/colibri-serve/request.h"

#include "cmd/colibri-serve/field.h"
#include "lib/base/mem.h"

bool serve_tokenize(struct serve_reading *r, struct serve_refusal *no)
{
    struct serve_job *job = r->job;

    if (!serve_prompt_read(r, no))
        return false;
    const struct serve_prompt *p = &job->prompt[0];
    clb_text_puts(&job->answer, "{\"tokens\":[");
    for (size_t i = 0; i < p->n; i++)
        clb_text_printf(&job->answer, "%s%d", i ? "," : "", p->ids[i]);
    clb_text_printf(&job->answer, "],\"count\":%zu,\"max_model_len\":%u}\n", p->n,
                    r->serve->context);
    return true;
}

bool serve_detokenize(struct serve_reading *r, struct serve_refusal *no)
{
    struct serve_job *job = r->job;
    struct colibri_decoder *d = NULL;
    struct clb_text text = { 0 };
    const char *piece;
    int32_t *ids = NULL;
    size_t n_ids, n;

    if (!r->tokens || !json_object_is_type(r->tokens, json_type_array))
        return serve_refuse_field(no, "tokens", "is %s; it must be an array of token ids",
                                  r->tokens ? serve_type_of(r->tokens) : "missing");
    bool ok = serve_read_ids(r->serve, r->tokens, "tokens", &ids, &n_ids, no);
    if (ok && colibri_decoder_open(&d, r->serve->model, false) != COLIBRI_OK)
        ok = serve_library_refuses(no, "tokens");
    for (size_t i = 0; ok && i <= n_ids; i++) {
        int status = i < n_ids ? colibri_decoder_feed(d, ids[i], &piece, &n)
                               : colibri_decoder_flush(d, &piece, &n);
        ok = status == COLIBRI_OK || serve_library_refuses(no, "tokens");
        if (ok)
            clb_text_add(&text, piece, n);
    }
    /* The first is vLLM's name, the second llama.cpp's. */
    clb_text_puts(&job->answer, "{\"prompt\":");
    clb_text_json(&job->answer, text.n ? text.p : "", text.n);
    clb_text_puts(&job->answer, ",\"content\":");
    clb_text_json(&job->answer, text.n ? text.p : "", text.n);
    clb_text_puts(&job->answer, "}\n");
    job->answer.failed |= text.failed;
    clb_text_free(&text);
    colibri_decoder_close(d);
    clb_free(ids);
    return ok;
}
