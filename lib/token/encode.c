#include "lib/token/encode.h"

#include "lib/base/mem.h"
#include "lib/token/utf8.h"

enum { LONGEST_TEXT = 1 << 30, WORTH_REMEMBERING = 1 << 14 };

bool clb_ids_grow(struct clb_ids *ids, size_t more, struct clb_err *err)
{
    size_t room = ids->room ? ids->room : 64;

    while (room - ids->n < more)
        room *= 2;
    int32_t *id = clb_grow(ids->id, room, sizeof *id, err);
    if (!id)
        return false;
    ids->id = id;
    ids->room = room;
    return true;
}

void clb_ids_free(struct clb_ids *ids)
{
    clb_free(ids->id);
    *ids = (struct clb_ids){ 0 };
}

bool clb_damaged(const struct clb_encoder *e, const char *what, uint32_t value)
{
    return clb_fail(e->err, CLB_BAD_INPUT, "the tokenizer tables are damaged: %s %u of %u pieces",
                    what, value, e->t->head->n_piece);
}

bool clb_too_long(const struct clb_encoder *e)
{
    return clb_fail(e->err, CLB_BAD_INPUT,
                    "a pattern of the tokenizer takes too many steps on this text");
}

static bool push_template(struct clb_encoder *e, const uint32_t *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!clb_push_id(e, id[i]))
            return false;
    return true;
}

static struct clb_part whole_text(const char *text, size_t n)
{
    unsigned first = 0;

    if (n)
        clb_utf8_get(text, text + n, &first);
    return (struct clb_part){ text, text + n, text + first };
}

void clb_encoder_done(struct clb_encoder *e)
{
    for (int i = 0; i < 2; i++)
        clb_text_free(&e->text[i]);
    for (int i = 0; i < CLB_MAX_STEPS; i++)
        clb_text_free(&e->step[i]);
    clb_free(e->word.id);
    clb_free(e->word.next);
    clb_free(e->word.prev);
    clb_free(e->word.heap);
    clb_free(e->seen);
    clb_free(e->best);
}

bool clb_encode(const struct clb_tokenizer *t, const char *text, size_t n,
                const struct clb_encode_options *o, struct clb_ids *ids, struct clb_err *err)
{
    const struct clb_tables_head *h = t->head;
    struct clb_text repaired = { 0 };
    size_t before = ids->n;
    struct clb_encoder e = {
        .t = t,
        .parse_special = o->parse_special || o->origin,
        .no_special = (!o->parse_special || o->origin) &&
                      h->model_flags & CLB_MODEL_SPECIAL_REACHABLE,
        .origin = o->origin,
        .ids = ids,
        .stop = o->most ? ids->n + o->most + 1 : SIZE_MAX,
        .err = err,
        .budget = (1u << 26) + 256 * (uint64_t)n,
    };
    bool ok = false;

    if (n > LONGEST_TEXT)
        return clb_fail(err, CLB_USAGE, "a text of %zu bytes: at most %d can be encoded", n,
                        LONGEST_TEXT);
    if (n == 0)
        text = "";
    e.whole = text;
    if (clb_utf8_valid(text, n) != n) {
        if (o->origin) {
            clb_fail(err, CLB_BAD_INPUT, "the text is not UTF-8");
            goto done;
        }
        clb_utf8_repair((struct clb_str){ text, n }, &repaired);
        if (repaired.failed) {
            clb_fail_nomem(err, n);
            goto done;
        }
        text = repaired.p;
        n = repaired.n;
    }
    if (n >= WORTH_REMEMBERING && h->model == CLB_MODEL_BPE) {
        e.seen = clb_new(CLB_SEEN_WORDS, sizeof *e.seen, err);
        if (!e.seen)
            goto done;
    }
    ok = (!o->add_special || push_template(&e, t->template, h->n_before)) &&
         clb_added_split(&e, 0, whole_text(text, n), clb_normalise_part) &&
         (!o->add_special || push_template(&e, t->template + h->n_before, h->n_after));
    ok = ok || ids->n >= e.stop; /* enough: no error was met on the way */
done:
    clb_encoder_done(&e);
    clb_text_free(&repaired);
    if (!ok)
        ids->n = before;
    return ok;
}
