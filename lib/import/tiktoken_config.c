/* tiktoken_config.c - what tokenizer_config.json says of a tiktoken.model: the class that reads it,
 * and the special tokens. */
#include <stdio.h>

#include "lib/base/json.h"
#include "lib/import/tiktoken_impl.h"

/* -- classes ---------------------------------------------------------------------------------- */

/* Runs of Han; words, none of it Han, that end where a capital follows a small letter; numbers; the
 * rest. */
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define TAIL   "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char kimi[] = "[\\p{Han}]+"
                           "|" BEFORE UPPER "*" LOWER "+" TAIL "|" BEFORE UPPER "+" LOWER "*" TAIL
                           "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                           "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const struct tik_class classes[] = {
    { "tokenization_kimi.TikTokenTokenizer", kimi, 258, "<|reserved_token_" },
    { "tokenization_moonshot.TikTokenTokenizer", kimi, 258, "<|reserved_token_" },
};

/* The class may have the repository that it comes from in front: "owner/name--module.class". */
static const struct tik_class *find_class(struct clb_str name)
{
    const char *dashes = name.n ? memmem(name.p, name.n, "--", 2) : NULL;

    if (dashes)
        name = (struct clb_str){ dashes + 2, (size_t)(name.p + name.n - dashes - 2) };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (clb_str_is(name, classes[i].name))
            return &classes[i];
    return NULL;
}

/* "class", or a list that has it first: the slow one. */
static void read_map(struct clb_json *j, struct clb_text *name)
{
    struct clb_str key, s;

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        if (!clb_str_is(key, "AutoTokenizer")) {
            clb_json_skip(j, NULL);
            continue;
        }
        bool list = clb_json_peek(j) == CLB_JSON_ARRAY;
        if (list && !(clb_json_array(j) && clb_json_item(j)))
            continue;
        s = clb_json_string(j);
        clb_text_add(name, s.p, s.n);
        while (list && clb_json_item(j))
            clb_json_skip(j, NULL);
    }
}

static bool read_config(struct tik *t, struct clb_text *name, struct clb_text *plain)
{
    struct clb_json j;
    struct clb_str key, s;

    clb_json_open(&j, t->source->config.p, t->source->config.n, t->source->config_file);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "auto_map") && clb_json_peek(&j) == CLB_JSON_OBJECT) {
            read_map(&j, name);
        } else if (clb_str_is(key, "tokenizer_class") && clb_json_peek(&j) == CLB_JSON_STRING) {
            s = clb_json_string(&j);
            clb_text_add(plain, s.p, s.n);
        } else if (clb_str_is(key, "added_tokens_decoder")) {
            clb_json_skip(&j, &t->added);
        } else {
            clb_json_skip(&j, NULL);
        }
    }
    return clb_json_close(&j, t->err) &&
           (!(name->failed || plain->failed) || clb_fail_nomem(t->err, name->n + plain->n));
}

bool clb_tik_class(struct tik *t)
{
    struct clb_text name = { 0 }, plain = { 0 };
    char why[256];
    bool ok = false;

    if (!t->source->config.p)
        return clb_tiktoken_refuse(t->source->file,
                                   "there is no tokenizer_config.json to name its class", t->err);
    if (!read_config(t, &name, &plain))
        goto done;
    t->class = find_class((struct clb_str){ name.p ? name.p : "", name.n });
    ok = t->class;
    if (ok)
        goto done;
    const struct clb_text *said = name.n ? &name : &plain;
    if (said->n)
        snprintf(why, sizeof why, "the class '%.*s' is not known",
                 (int)(said->n < 80 ? said->n : 80), said->p);
    else
        snprintf(why, sizeof why, "tokenizer_config.json names no class");
    clb_tiktoken_refuse(t->source->file, why, t->err);
done:
    clb_text_free(&name);
    clb_text_free(&plain);
    return ok;
}

/* -- special tokens --------------------------------------------------------------------------- */

struct token {
    struct clb_text content;
    bool special, odd; /* odd: has a flag that the class does not look at */
};

static void read_token(struct clb_json *j, struct token *k)
{
    struct clb_str key, s;

    clb_text_clear(&k->content);
    k->special = k->odd = false;
    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        if (clb_str_is(key, "content")) {
            s = clb_json_string(j);
            clb_text_add(&k->content, s.p, s.n);
        } else if (clb_str_is(key, "special")) {
            k->special = clb_json_bool(j);
        } else if (clb_str_is(key, "lstrip") || clb_str_is(key, "rstrip") ||
                   clb_str_is(key, "single_word")) {
            k->odd |= clb_json_bool(j);
        } else {
            clb_json_skip(j, NULL);
        }
    }
}

/* Names are compared with those of special tokens only: a text of a special token that the ranks
 * have too is two tokens, as in the reference. */
static uint32_t find_special(const struct tik *t, struct clb_str name)
{
    for (uint32_t id = t->n_rank; id < t->b.n_piece; id++)
        if (t->b.piece[id].flags & CLB_PIECE_EXISTS && clb_str_eq(clb_build_name(&t->b, id), name))
            return id;
    return CLB_NO_ID;
}

static bool add_special(struct tik *t, struct clb_str name, uint32_t id, bool skip)
{
    uint32_t other = find_special(t, name);

    if (other != CLB_NO_ID)
        return clb_tik_fail(t, t->source->config_file,
                            "added_tokens_decoder: '%.*s' would be token %u and token %u",
                            (int)(name.n < 80 ? name.n : 80), name.p, other, id);
    if (!clb_build_add(&t->b, name, id, t->err))
        return clb_fail_in(t->err, "%s", t->source->config_file);
    struct clb_build_piece *p = &t->b.piece[id];
    p->text = p->find = p->content;
    p->flags |= CLB_PIECE_ADDED | CLB_PIECE_SPECIAL | (skip ? CLB_PIECE_SKIP : 0u);
    return true;
}

static bool check_id(const struct tik *t, struct clb_json *j, uint32_t id)
{
    if (id < t->n_rank)
        return clb_json_fail(j, "added token %u, but that is a rank of %s, which has %u", id,
                             t->source->file, t->n_rank);
    if (id - t->n_rank >= t->class->n_special)
        return clb_json_fail(j, "added token %u, but behind the %u ranks of %s are %u ids", id,
                             t->n_rank, t->source->file, t->class->n_special);
    return id < t->source->vocab_size ||
           clb_json_fail(j, "added token %u, but the model has a vocabulary of %u", id,
                         t->source->vocab_size);
}

static bool named(struct tik *t, struct clb_json *j, struct token *k)
{
    struct clb_str key;
    bool ok = true;

    clb_json_object(j);
    while (ok && clb_json_key(j, &key)) {
        uint32_t id;

        if (!clb_json_number_key(j, key, "token id", &id))
            return false;
        read_token(j, k);
        if (!clb_json_ok(j) || !check_id(t, j, id))
            return false;
        if (k->content.failed)
            return clb_fail_nomem(t->err, k->content.n);
        if (!k->content.n)
            return clb_json_fail(j, "added token %u has no content", id);
        if (k->odd)
            return clb_json_fail(
                j, "added token %u: lstrip, rstrip and single_word are not supported here", id);
        ok = add_special(t, (struct clb_str){ k->content.p, k->content.n }, id, k->special);
    }
    return ok;
}

static bool all_named(struct tik *t)
{
    struct token k = { .special = false };
    struct clb_json j;

    if (!t->added.p)
        return clb_tik_fail(t, t->source->config_file, "has no added_tokens_decoder");
    clb_json_open(&j, t->added.p, t->added.n, t->source->config_file);
    j.base = (uint64_t)(t->added.p - t->source->config.p);
    bool ok = named(t, &j, &k);
    clb_text_free(&k.content);
    if (ok || !clb_json_ok(&j))
        return clb_json_close(&j, t->err);
    clb_json_abandon(&j);
    return false;
}

/* The reference has an id and a text for each of n_special, also for those that the model does not
 * have; these are left out. */
bool clb_tik_special(struct tik *t)
{
    uint32_t end = t->n_rank + t->class->n_special;
    bool ok = all_named(t);

    if (end > t->source->vocab_size)
        end = t->source->vocab_size;
    for (uint32_t id = t->n_rank; ok && id < end; id++) {
        char name[48];
        if (id < t->b.n_piece && t->b.piece[id].flags & CLB_PIECE_EXISTS)
            continue;
        snprintf(name, sizeof name, "%s%u|>", t->class->reserved, id);
        ok = add_special(t, clb_str(name), id, false);
    }
    return ok;
}
