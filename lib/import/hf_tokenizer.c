#include "lib/import/hf_tokenizer.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/hf_tokenizer_impl.h"

void clb_hf_open(const struct hf *h, struct clb_json *j, struct clb_str raw)
{
    clb_json_open(j, raw.p, raw.n, h->file);
    j->base = (uint64_t)(raw.p - h->json);
}

bool clb_hf_is_null(struct clb_str raw)
{
    return !raw.p || clb_str_is(raw, "null");
}

bool clb_hf_refuse(struct hf *h, struct clb_str raw, const char *fmt, ...)
{
    uint64_t at = (uint64_t)(raw.p - h->json);
    char why[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_fail(h->err, CLB_BAD_INPUT, "%s: byte %llu: %s", h->file, (unsigned long long)at, why);
    return clb_err_place(h->err, h->file, NULL, at);
}

bool clb_hf_in(struct hf *h, const char *part)
{
    char rest[sizeof h->err->text];
    size_t n = strlen(h->file);

    if (strncmp(h->err->text, h->file, n) || strncmp(h->err->text + n, ": ", 2))
        return clb_fail_in(h->err, "%s", part);
    memcpy(rest, h->err->text, sizeof rest);
    snprintf(h->err->text + n, sizeof h->err->text - n, ": %s%s", part, rest + n);
    return false;
}

bool clb_hf_unknown(struct clb_json *j, struct clb_str key)
{
    char name[80];
    struct clb_str raw;
    bool neutral = false;

    snprintf(name, sizeof name, "%.*s", (int)key.n, key.p);
    switch (clb_json_peek(j)) {
    case CLB_JSON_NULL:
        return clb_json_null(j);
    case CLB_JSON_BOOL:
        neutral = !clb_json_bool(j);
        break;
    case CLB_JSON_STRING:
        neutral = !clb_json_string(j).n;
        break;
    default:
        if (!clb_json_skip(j, &raw))
            return false;
        neutral = raw.n >= 2 && (raw.p[0] == '[' || raw.p[0] == '{') &&
                  strspn(raw.p + 1, " \t\r\n") >= raw.n - 2;
    }
    if (!clb_json_ok(j))
        return false;
    return neutral || clb_json_fail(j, "the key '%s' is not known and may change the result", name);
}

/* -- the document ----------------------------------------------------------------------------- */

static const char *const part_name[HF_N_PART] = {
    "model",          "added_tokens", "normalizer", "pre_tokenizer",
    "post_processor", "decoder",      "truncation", "padding",
};

static bool read_parts(struct hf *h, struct clb_str part[HF_N_PART])
{
    struct clb_json j;
    struct clb_str key;

    clb_json_open(&j, h->json, h->n, h->file);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        int i = 0;
        while (i < HF_N_PART && !clb_str_is(key, part_name[i]))
            i++;
        if (i < HF_N_PART) {
            clb_json_skip(&j, &part[i]);
        } else if (clb_str_is(key, "version")) {
            struct clb_str version = clb_json_string(&j);
            if (clb_json_ok(&j) && !clb_str_is(version, "1.0"))
                clb_json_fail(&j, "version '%.*s', but only 1.0 is known", (int)version.n,
                              version.p);
        } else {
            clb_hf_unknown(&j, key);
        }
    }
    if (!clb_json_close(&j, h->err))
        return false;
    if (clb_hf_is_null(part[HF_MODEL]))
        return clb_fail(h->err, CLB_BAD_INPUT, "%s: has no 'model'", h->file);
    return true;
}

/* Padding of a single text to the longest of its batch is no padding. */
static bool padding(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    struct clb_str key;

    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "strategy")) {
            bool batch = clb_json_peek(&j) == CLB_JSON_STRING &&
                         clb_str_is(clb_json_string(&j), "BatchLongest");
            if (!batch)
                clb_json_fail(&j, "only the strategy BatchLongest is supported");
        } else if (clb_str_is(key, "pad_to_multiple_of")) {
            clb_hf_unknown(&j, key);
        } else {
            clb_json_skip(&j, NULL);
        }
    }
    return clb_json_close(&j, h->err) || clb_hf_in(h, "padding");
}

static bool extras(struct hf *h, const struct clb_str part[HF_N_PART])
{
    if (!clb_hf_is_null(part[HF_TRUNCATION]))
        return clb_hf_refuse(h, part[HF_TRUNCATION],
                             "'truncation' would cut every text: set it to null in the file");
    return clb_hf_is_null(part[HF_PADDING]) || padding(h, part[HF_PADDING]);
}

/* In the order of what needs what: the vocabulary, then what names its pieces. */
static bool compile(struct hf *h, const struct clb_str part[HF_N_PART])
{
    struct clb_tables_head *head = &h->b.head;

    head->unk = CLB_NO_ID;
    h->byte_level_at = CLB_NO_OFFSET;
    if (!extras(h, part) ||
        !(clb_hf_is_null(part[HF_NORMALIZER]) || clb_hf_normalizer(h, part[HF_NORMALIZER], 0)) ||
        !(clb_hf_is_null(part[HF_PRE_TOKENIZER]) ||
          clb_hf_pre_tokenizer(h, part[HF_PRE_TOKENIZER], 0)))
        return false;
    if (clb_hf_is_null(part[HF_DECODER]))
        head->decoder_flags |= CLB_DECODE_JOIN;
    else if (!clb_hf_decoder(h, part[HF_DECODER], 0))
        return false;
    return clb_hf_model(h, part[HF_MODEL]) &&
           (clb_hf_is_null(part[HF_ADDED]) || clb_hf_added_tokens(h, part[HF_ADDED])) &&
           (clb_hf_is_null(part[HF_POST_PROCESSOR]) ||
            clb_hf_post_processor(h, part[HF_POST_PROCESSOR], 0)) &&
           clb_hf_texts(h);
}

bool clb_hf_tokenizer_compile(struct clb_text *out, const char *json, size_t n, const char *file,
                              uint32_t vocab_size, struct clb_err *err)
{
    struct hf h = { .json = json, .n = n, .file = file, .vocab_size = vocab_size, .err = err };
    struct clb_str part[HF_N_PART] = { 0 };
    bool ok = read_parts(&h, part) && compile(&h, part);

    if (ok && !clb_build_write(&h.b, out, err))
        ok = clb_fail_in(err, "%s", file);
    clb_build_free(&h.b);
    clb_text_free(&h.scratch);
    return ok;
}
