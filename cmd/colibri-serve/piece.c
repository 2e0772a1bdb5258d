#include "cmd/colibri-serve/piece.h"

/* Decoders drop a space at the start of a text; so a letter stands before each token. */
static const char letter[] = "a";

bool serve_pieces_open(struct serve_pieces *p, const struct colibri_model *model, bool plain)
{
    *p = (struct serve_pieces){ 0 };
    int64_t n = colibri_encode(model, letter, sizeof letter - 1, COLIBRI_ENCODE_NO_BOS, p->before,
                               sizeof p->before / sizeof *p->before);
    p->n_before = n > 0 && n <= 8 ? (size_t)n : 0;
    return colibri_decoder_open(&p->decoder, model, plain) == COLIBRI_OK;
}

void serve_pieces_close(struct serve_pieces *p)
{
    colibri_decoder_close(p->decoder);
    clb_text_free(&p->text);
}

struct clb_str serve_piece(struct serve_pieces *p, int32_t id)
{
    const char *text;
    size_t n;

    clb_text_clear(&p->text);
    for (size_t i = 0; i <= p->n_before + 1; i++) {
        int status = i < p->n_before    ? colibri_decoder_feed(p->decoder, p->before[i], &text, &n)
                     : i == p->n_before ? colibri_decoder_feed(p->decoder, id, &text, &n)
                                        : colibri_decoder_flush(p->decoder, &text, &n);
        if (status == COLIBRI_OK)
            clb_text_add(&p->text, text, n);
    }
    size_t skip = p->n_before && p->text.n && p->text.p[0] == letter[0];
    return (struct clb_str){ p->text.n ? p->text.p + skip : "", p->text.n - skip };
}

size_t serve_piece_characters(struct serve_pieces *p, int32_t id)
{
    struct clb_str s = serve_piece(p, id);
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}
