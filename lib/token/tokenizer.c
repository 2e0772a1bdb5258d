#include "lib/token/tokenizer.h"

#include "lib/base/mem.h"
#include "lib/token/tables.h"

bool clb_tokenizer_open(struct clb_tokenizer **out, const void *tables, size_t n,
                        struct clb_err *err)
{
    struct clb_tokenizer *t = clb_new(1, sizeof *t, err);

    *out = NULL;
    if (!t)
        return false;
    if (!clb_tables_open(t, tables, n, err)) {
        clb_free(t);
        return clb_fail_in(err, "tokenizer.tables");
    }
    *out = t;
    return true;
}

void clb_tokenizer_close(struct clb_tokenizer *t)
{
    clb_free(t);
}

uint32_t clb_tokenizer_size(const struct clb_tokenizer *t)
{
    return t->head->n_piece;
}

struct clb_str clb_token_bytes(const struct clb_tokenizer *t, int32_t id)
{
    return clb_piece_content(t, (uint32_t)id);
}

bool clb_token_special(const struct clb_tokenizer *t, int32_t id)
{
    return clb_piece_flags(t, (uint32_t)id) & CLB_PIECE_SPECIAL;
}

int32_t clb_token_find(const struct clb_tokenizer *t, struct clb_str content)
{
    int32_t found = -1;

    for (uint32_t id = 0; id < t->head->n_piece; id++) {
        if (!(t->flags[id] & CLB_PIECE_EXISTS) || !clb_str_eq(clb_piece_content(t, id), content))
            continue;
        if (t->flags[id] & CLB_PIECE_ADDED)
            return (int32_t)id;
        if (found < 0)
            found = (int32_t)id;
    }
    return found;
}
