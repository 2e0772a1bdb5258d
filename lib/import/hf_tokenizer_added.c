/* hf_tokenizer_added.c - added tokens, and what the post-processor puts around a text. */
#include <stdio.h>

#include "lib/import/hf_tokenizer_impl.h"

/* -- added tokens ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t flag;
} added_flag[] = {
    { "single_word", CLB_PIECE_SINGLE_WORD }, { "lstrip", CLB_PIECE_LSTRIP },
    { "rstrip", CLB_PIECE_RSTRIP },           { "normalized", CLB_PIECE_NORMALISED },
    { "special", CLB_PIECE_SPECIAL },
};
enum { N_FLAG = sizeof added_flag / sizeof *added_flag, ALL_FIELDS = (1 << (N_FLAG + 2)) - 1 };

/* One object of the list. Bits of `seen`: the flags in their order, id, content. */
static uint32_t read_added(struct hf *h, struct clb_json *j, uint32_t *flags)
{
    struct clb_str key;
    uint32_t seen = 0;

    *flags = 0;
    clb_text_clear(&h->scratch);
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        unsigned i = 0;
        while (i < N_FLAG && !clb_str_is(key, added_flag[i].name))
            i++;
        if (i < N_FLAG) {
            seen |= 1u << i;
            *flags |= clb_json_bool(j) ? added_flag[i].flag : 0;
        } else if (clb_str_is(key, "id")) {
            seen |= 1u << N_FLAG;
            clb_json_u64(j, UINT32_MAX);
        } else if (clb_str_is(key, "content")) {
            seen |= 2u << N_FLAG;
            struct clb_str s = clb_json_string(j);
            clb_text_add(&h->scratch, s.p, s.n);
        } else {
            clb_hf_unknown(j, key);
        }
    }
    return seen;
}

/* What is looked for in the text. A decoder sees the same form. */
static bool set_find(struct hf *h, struct clb_json *j, uint32_t id, struct clb_str name)
{
    struct clb_build_piece *p = &h->b.piece[id];
    struct clb_text normal = { 0 };

    if (!(p->flags & CLB_PIECE_NORMALISED)) {
        p->find = p->content;
        return true;
    }
    clb_build_normalise(&h->b, name, &normal);
    bool same = clb_str_eq((struct clb_str){ normal.p, normal.n }, name);
    if (same)
        p->find = p->content;
    else
        p->find = clb_build_bytes(&h->b, (struct clb_str){ normal.p ? normal.p : "", normal.n });
    bool failed = normal.failed || h->b.bytes.failed;
    clb_text_free(&normal);
    if (failed)
        return clb_fail_nomem(h->err, name.n);
    if (!same && p->flags & CLB_PIECE_MODEL && h->b.head.model_flags & CLB_MODEL_BYTE_LEVEL)
        return clb_json_fail(
            j, "a piece of the vocabulary that the normalizer changes is not supported");
    return true;
}

/* An added token has the id of its content in the vocabulary, else the next free one (*next). The
 * id in the file is what it was when the file was written; the reference does not use it either. */
static bool add_token(struct hf *h, struct clb_json *j, uint32_t *next)
{
    uint32_t id, flags, seen = read_added(h, j, &flags);
    struct clb_str name = { h->scratch.p ? h->scratch.p : "", h->scratch.n };

    if (!clb_json_ok(j))
        return false;
    if (h->scratch.failed)
        return clb_fail_nomem(h->err, name.n);
    if (seen != ALL_FIELDS)
        return clb_json_fail(j, "an added token has id, content, single_word, lstrip, rstrip, "
                                "normalized and special");
    if (!name.n)
        return true; /* the reference passes over it */
    id = clb_build_find(&h->b, name);
    if (id == CLB_NO_ID) {
        id = (*next)++;
        if (!clb_hf_add_piece(h, j, name, id))
            return false;
    } else if (h->b.piece[id].flags & CLB_PIECE_ADDED) {
        return clb_json_fail(j, "added token '%.*s' is there twice", (int)name.n, name.p);
    }
    h->b.piece[id].flags |= flags | CLB_PIECE_ADDED;
    return set_find(h, j, id, name);
}

bool clb_hf_added_tokens(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    uint32_t next = h->n_model;
    bool ok = true;

    clb_hf_open(h, &j, raw);
    clb_json_array(&j);
    while (ok && clb_json_item(&j))
        ok = add_token(h, &j, &next);
    if (ok || !clb_json_ok(&j))
        return clb_json_close(&j, h->err) || clb_hf_in(h, "added_tokens");
    clb_json_abandon(&j);
    return false;
}

/* -- post-processor --------------------------------------------------------------------------- */

/* What one template puts around the text. */
struct around {
    uint32_t id[2][64]; /* before, after */
    uint32_t n[2];
};

static bool add_id(struct hf *h, struct clb_json *j, struct around *a, bool after, uint64_t id)
{
    if (id >= h->b.n_piece || !(h->b.piece[id].flags & CLB_PIECE_EXISTS))
        return clb_json_fail(j, "there is no token %llu", (unsigned long long)id);
    if (a->n[after] == 64)
        return clb_json_fail(j, "more than 64 tokens around a text");
    a->id[after][a->n[after]++] = (uint32_t)id;
    return true;
}

/* Adds the ids of special_tokens[name]. */
static bool special_token(struct hf *h, struct clb_str special, struct clb_str name,
                          struct around *a, bool after)
{
    struct clb_json j;
    struct clb_str key;
    bool found = false;

    clb_hf_open(h, &j, special);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (!clb_str_eq(key, name)) {
            clb_json_skip(&j, NULL);
            continue;
        }
        clb_json_object(&j);
        while (clb_json_key(&j, &key)) {
            if (!clb_str_is(key, "ids")) {
                clb_json_skip(&j, NULL);
                continue;
            }
            found = true;
            clb_json_array(&j);
            while (clb_json_item(&j))
                add_id(h, &j, a, after, clb_json_u64(&j, UINT32_MAX));
        }
    }
    if (!clb_json_close(&j, h->err))
        return false;
    return found || clb_hf_refuse(h, special, "the template's '%.*s' is not in special_tokens",
                                  (int)name.n, name.p);
}

/* {"SpecialToken": {"id": name, "type_id": 0}} or {"Sequence": {"id": "A", "type_id": 0}} */
static bool template_item(struct hf *h, struct clb_json *j, struct clb_str special,
                          struct around *a, bool *after)
{
    struct clb_str key;
    bool sequence = false, ok = true;

    clb_text_clear(&h->scratch);
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        sequence = clb_str_is(key, "Sequence");
        if (!sequence && !clb_str_is(key, "SpecialToken"))
            clb_json_fail(j, "a template has SpecialToken and Sequence, not '%.*s'", (int)key.n,
                          key.p);
        clb_json_object(j);
        while (clb_json_key(j, &key)) {
            if (clb_str_is(key, "id")) {
                struct clb_str s = clb_json_string(j);
                clb_text_add(&h->scratch, s.p, s.n);
            } else {
                clb_json_skip(j, NULL);
            }
        }
    }
    if (!clb_json_ok(j))
        return false;
    struct clb_str name = { h->scratch.p ? h->scratch.p : "", h->scratch.n };
    if (!sequence)
        return special_token(h, special, name, a, *after);
    if (!clb_str_is(name, "A") || *after)
        ok = clb_json_fail(j, "the template for one text has the sequence A once, and no other");
    *after = true;
    return ok;
}

/* Puts a around what is there already. */
static bool wrap(struct hf *h, const struct hf_fields *f, const struct around *a)
{
    struct clb_tables_head *head = &h->b.head;

    if (head->n_before + a->n[0] > 64 || head->n_after + a->n[1] > 64)
        return clb_hf_refuse(h, f->raw, "more than 64 tokens around a text");
    memmove(h->b.before + a->n[0], h->b.before, head->n_before * sizeof *h->b.before);
    memcpy(h->b.before, a->id[0], a->n[0] * sizeof *h->b.before);
    memcpy(h->b.after + head->n_after, a->id[1], a->n[1] * sizeof *h->b.after);
    head->n_before += a->n[0];
    head->n_after += a->n[1];
    return true;
}

static bool template(struct hf *h, const struct hf_fields *f)
{
    struct clb_json j;
    struct around a = { .n = { 0, 0 } };
    bool after = false, ok = true;

    clb_hf_open(h, &j, f->single);
    clb_json_array(&j);
    while (ok && clb_json_item(&j))
        ok = template_item(h, &j, f->special_tokens, &a, &after);
    if (ok && clb_json_ok(&j) && !after)
        return clb_json_abandon(&j),
               clb_hf_refuse(h, f->single, "the template for one text lacks the text");
    if (!ok && clb_json_ok(&j))
        return clb_json_abandon(&j), false;
    return clb_json_close(&j, h->err) && wrap(h, f, &a);
}

/* ["</s>", 2] */
static bool named_id(struct hf *h, struct clb_str raw, struct around *a, bool after)
{
    struct clb_json j;

    clb_hf_open(h, &j, raw);
    clb_json_array(&j);
    if (clb_json_item(&j))
        clb_json_string(&j);
    if (clb_json_item(&j))
        add_id(h, &j, a, after, clb_json_u64(&j, UINT32_MAX));
    if (clb_json_item(&j))
        clb_json_fail(&j, "expected a token and its id");
    return clb_json_close(&j, h->err);
}

bool clb_hf_post_processor(struct hf *h, struct clb_str raw, int depth)
{
    struct hf_fields f;
    struct around a = { .n = { 0, 0 } };

    if (!clb_hf_read_fields(h, raw, &f))
        return false;
    if (!strcmp(f.type, "Sequence"))
        return clb_hf_check_fields(h, &f, HF_LIST, 0) &&
               clb_hf_each(h, f.list, depth, clb_hf_post_processor);
    if (!strcmp(f.type, "ByteLevel")) /* trims offsets, which nobody asks for */
        return clb_hf_check_fields(h, &f, HF_ADD_PREFIX_SPACE | HF_TRIM_OFFSETS, HF_USE_REGEX);
    if (!strcmp(f.type, "TemplateProcessing"))
        return clb_hf_check_fields(h, &f, HF_SINGLE | HF_SPECIAL_TOKENS, HF_PAIR) &&
               template(h, &f);
    if (!strcmp(f.type, "RobertaProcessing") || !strcmp(f.type, "BertProcessing"))
        return clb_hf_check_fields(h, &f, HF_SEP | HF_CLS, HF_ADD_PREFIX_SPACE | HF_TRIM_OFFSETS) &&
               named_id(h, f.cls, &a, false) && named_id(h, f.sep, &a, true) && wrap(h, &f, &a);
    return clb_hf_refuse(h, raw, "the post-processor '%s' is not supported", f.type);
}
