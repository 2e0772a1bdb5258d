/* piece.h - what a token says by itself, inside a text. */
#ifndef CMD_COLIBRI_SERVE_PIECE_H
#define CMD_COLIBRI_SERVE_PIECE_H

#include <stdbool.h>

#include "lib/base/str.h"
#include "lib/colibri.h"

struct serve_pieces {
    struct colibri_decoder *decoder;
    struct clb_text text; /* of the last one */
    int32_t before[8];    /* ids of a letter */
    size_t n_before;
};
/* plain: special tokens say nothing. */
bool serve_pieces_open(struct serve_pieces *p, const struct colibri_model *model, bool plain);
void serve_pieces_close(struct serve_pieces *p);
/* Borrowed until the next call. */
struct clb_str serve_piece(struct serve_pieces *p, int32_t id);
size_t serve_piece_characters(struct serve_pieces *p, int32_t id);

#endif
