/* spm_config.c - what tokenizer_config.json adds to a SentencePiece model: tokens, and whether the
 * start and the end of a text are marked. */
#include "lib/base/json.h"
#include "lib/import/spm_tokenizer_impl.h"

struct config {
    struct clb_text bos, eos; /* contents of the tokens */
    bool has_bos, has_eos, add_bos, add_eos;
};

/* An added token as the configuration has it. */
struct token {
    struct clb_text content;
    uint32_t flags;
};

static const struct {
    const char *name;
    uint32_t flag;
} token_flag[] = {
    { "single_word", CLB_PIECE_SINGLE_WORD },
    { "lstrip", CLB_PIECE_LSTRIP },
    { "rstrip", CLB_PIECE_RSTRIP },
    { "special", CLB_PIECE_SPECIAL | CLB_PIECE_SKIP },
};
enum { N_FLAG = sizeof token_flag / sizeof *token_flag };

/* "text" or {"content": "text", flags}. */
static void read_token(struct clb_json *j, struct token *t)
{
    struct clb_str key, s;

    clb_text_clear(&t->content);
    t->flags = 0;
    if (clb_json_peek(j) == CLB_JSON_STRING) {
        s = clb_json_string(j);
        clb_text_add(&t->content, s.p, s.n);
        return;
    }
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        unsigned i = 0;
        while (i < N_FLAG && !clb_str_is(key, token_flag[i].name))
            i++;
        if (i < N_FLAG) {
            t->flags |= clb_json_bool(j) ? token_flag[i].flag : 0;
        } else if (clb_str_is(key, "content")) {
            s = clb_json_string(j);
            clb_text_add(&t->content, s.p, s.n);
        } else {
            clb_json_skip(j, NULL);
        }
    }
}

/* A token of the model only gets flags; others are made. */
static bool add_token(struct spm *s, struct clb_json *j, uint32_t id, const struct token *t)
{
    struct clb_str name = { t->content.p, t->content.n };

    if (!name.n)
        return clb_json_fail(j, "an added token without content");
    if (id >= s->source->vocab_size)
        return clb_json_fail(j, "id %u, but the model has a vocabulary of %u", id,
                             s->source->vocab_size);
    bool there = id < s->b.n_piece && s->b.piece[id].flags & CLB_PIECE_EXISTS;
    uint32_t other = clb_build_find(&s->b, name);
    if (there ? other != id : other != CLB_NO_ID)
        return clb_json_fail(j, "added token %u is '%.*s', but %s has that elsewhere or not at all",
                             id, (int)(name.n < 80 ? name.n : 80), name.p, s->source->file);
    if (!there && !clb_build_add(&s->b, name, id, s->err))
        return false;
    struct clb_build_piece *p = &s->b.piece[id];
    if (!there)
        p->text = p->find = p->content;
    if (t->flags & CLB_PIECE_SPECIAL || !there)
        p->flags &= ~(uint32_t)CLB_PIECE_NORMALISED;
    p->flags |= t->flags | CLB_PIECE_ADDED;
    return true;
}

static bool added_tokens(struct spm *s, struct clb_json *j)
{
    struct token t = { .flags = 0 };
    struct clb_str key;
    bool ok = true;

    clb_json_object(j);
    while (ok && clb_json_key(j, &key)) {
        uint32_t id;

        ok = clb_json_number_key(j, key, "token id", &id);
        read_token(j, &t);
        ok = ok && clb_json_ok(j) &&
             (t.content.failed ? clb_fail_nomem(s->err, t.content.n) : add_token(s, j, id, &t));
    }
    clb_text_free(&t.content);
    return ok;
}

static void read_named(struct clb_json *j, struct clb_text *content, bool *has)
{
    struct token t = { .flags = 0 };

    if (clb_json_peek(j) == CLB_JSON_NULL) {
        clb_json_null(j);
        return;
    }
    read_token(j, &t);
    clb_text_clear(content);
    clb_text_add(content, t.content.p ? t.content.p : "", t.content.n);
    content->failed |= t.content.failed;
    clb_text_free(&t.content);
    *has = true;
}

static void read_bool(struct clb_json *j, bool *to)
{
    if (clb_json_peek(j) == CLB_JSON_NULL)
        clb_json_null(j);
    else
        *to = clb_json_bool(j);
}

static bool read_config(struct spm *s, struct config *c)
{
    struct clb_json j;
    struct clb_str key;
    bool ok = true;

    clb_json_open(&j, s->source->config.p, s->source->config.n, s->source->config_file);
    clb_json_object(&j);
    while (ok && clb_json_key(&j, &key)) {
        if (clb_str_is(key, "add_bos_token"))
            read_bool(&j, &c->add_bos);
        else if (clb_str_is(key, "add_eos_token"))
            read_bool(&j, &c->add_eos);
        else if (clb_str_is(key, "bos_token"))
            read_named(&j, &c->bos, &c->has_bos);
        else if (clb_str_is(key, "eos_token"))
            read_named(&j, &c->eos, &c->has_eos);
        else if (clb_str_is(key, "added_tokens_decoder"))
            ok = added_tokens(s, &j);
        else
            clb_json_skip(&j, NULL);
    }
    if (ok || !clb_json_ok(&j))
        return clb_json_close(&j, s->err);
    clb_json_abandon(&j);
    return false;
}

/* The token that marks a border: the one that the configuration names, else that of the model;
 * CLB_NO_ID if it has none. */
static bool find_border(struct spm *s, const struct clb_text *named, bool has, int32_t own,
                        uint32_t *id)
{
    struct clb_str name = { named->p ? named->p : "", named->n };

    *id = CLB_NO_ID;
    if (!has) {
        if (own >= 0 && (uint32_t)own < s->n_piece && s->piece[own].type == SPM_CONTROL)
            *id = (uint32_t)own;
        return true;
    }
    *id = clb_build_find(&s->b, name);
    if (*id != CLB_NO_ID)
        return true;
    clb_fail(s->err, CLB_BAD_INPUT, "%s: '%.*s' marks a border of the text, but is no token",
             s->source->config_file, (int)(name.n < 80 ? name.n : 80), name.p);
    return clb_err_place(s->err, s->source->config_file, NULL, CLB_NO_OFFSET);
}

bool clb_spm_config(struct spm *s)
{
    struct config c = { .add_bos = true };
    struct clb_tables_head *h = &s->b.head;
    bool ok = !s->source->config.p || read_config(s, &c);

    if (ok && (c.bos.failed || c.eos.failed))
        ok = clb_fail_nomem(s->err, c.bos.n + c.eos.n);
    if (ok && c.add_bos) {
        ok = find_border(s, &c.bos, c.has_bos, s->bos, &s->b.before[0]);
        h->n_before = ok && s->b.before[0] != CLB_NO_ID;
    }
    if (ok && c.add_eos) {
        ok = find_border(s, &c.eos, c.has_eos, s->eos, &s->b.after[0]);
        h->n_after = ok && s->b.after[0] != CLB_NO_ID;
    }
    clb_text_free(&c.bos);
    clb_text_free(&c.eos);
    return ok;
}
