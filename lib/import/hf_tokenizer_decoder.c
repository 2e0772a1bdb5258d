/* hf_tokenizer_decoder.c - the decoder, and with it the text of every piece.
 *
 * A chain of decoders is brought into one form: what each piece becomes on its own is worked out
 * here, once; what needs the neighbours (byte fallback, the first or the last piece, the start of
 * the text) stays for the decoder. */
#include <stdio.h>

#include "lib/import/hf_tokenizer_impl.h"
#include "lib/token/encode.h"
#include "lib/token/utf8.h"

/* Pieces have lost their borders: they were fused, or bytes of several became characters. */
static bool is_fused(const struct hf *h)
{
    return h->b.head.decoder_flags & (CLB_DECODE_BYTES | CLB_DECODE_FALLBACK);
}

static struct hf_piece_op *new_op(struct hf *h, const struct hf_fields *f)
{
    if (h->n_op < sizeof h->op / sizeof *h->op)
        return &h->op[h->n_op++];
    clb_hf_refuse(h, f->raw, "a decoder of more than %zu steps", sizeof h->op / sizeof *h->op);
    return NULL;
}

static bool is_one_char(struct clb_str s, uint32_t *c)
{
    unsigned n = 0;

    if (s.n)
        *c = clb_utf8_get(s.p, s.p + s.n, &n);
    return s.n && n == s.n;
}

/* State of the chain: h->b.head.decoder_flags and whether Fuse was seen. */
#define FUSED (1u << 31)

static bool place(struct hf *h, const struct hf_fields *f, uint32_t not_after)
{
    if (!(h->b.head.decoder_flags & not_after))
        return true;
    return clb_hf_refuse(
        h, f->raw, "the decoder '%s' is not supported at this place of the sequence", f->type);
}

static bool replace(struct hf *h, const struct hf_fields *f)
{
    struct hf_piece_op *op = new_op(h, f);

    if (!op)
        return false;
    op->step = (struct clb_step){ .op = CLB_DO_REPLACE };
    if (!clb_hf_pattern(h, f, &op->step))
        return false;
    op->step.with = clb_build_string(&h->b, clb_hf_string(h, f->content));
    return true;
}

static bool strip(struct hf *h, const struct hf_fields *f)
{
    struct clb_tables_head *head = &h->b.head;
    uint32_t c;

    if (!is_one_char(clb_hf_string(h, f->content), &c))
        return clb_hf_refuse(h, f->raw, "the content of Strip is one character");
    if (!(head->decoder_flags & (FUSED | CLB_DECODE_BYTES))) {
        struct hf_piece_op *op = is_fused(h) ? NULL : new_op(h, f);
        if (!op)
            return place(h, f, UINT32_MAX);
        *op = (struct hf_piece_op){
            .strip = true, .strip_char = c, .start = f->start, .stop = f->stop
        };
        return true;
    }
    if (f->stop || head->strip)
        return clb_hf_refuse(h, f->raw, "Strip at the end of the text is not supported");
    head->strip = f->start;
    head->strip_char = c;
    return true;
}

/* Pieces after the first: the replacement is a space. In the first it disappears. */
static bool metaspace(struct hf *h, const struct hf_fields *f)
{
    uint32_t c;

    if (!is_one_char(clb_hf_string(h, f->text), &c))
        return clb_hf_refuse(h, f->raw, "the replacement of Metaspace is one character");
    if (f->given & HF_ADD_PREFIX_SPACE && !f->add_prefix_space && !f->never)
        return clb_hf_refuse(h, f->raw,
                             "add_prefix_space is false, which contradicts prepend_scheme");
    if (!f->never) {
        h->b.head.decoder_flags |= CLB_DECODE_FIRST;
        h->b.head.mark = clb_build_string(&h->b, clb_hf_string(h, f->text));
        return true;
    }
    struct hf_piece_op *op = new_op(h, f);
    if (!op)
        return false;
    op->step = (struct clb_step){ .op = CLB_DO_REPLACE, .find = CLB_FIND_TEXT };
    op->step.text = clb_build_string(&h->b, clb_hf_string(h, f->text));
    op->step.with = clb_build_string(&h->b, clb_str(" "));
    return true;
}

static bool suffix(struct hf *h, const struct hf_fields *f)
{
    if (!f->text.n)
        return clb_hf_refuse(h, f->raw, "an empty suffix is not supported");
    h->b.head.decoder_flags |= CLB_DECODE_SUFFIX;
    h->b.head.mark = clb_build_string(&h->b, clb_hf_string(h, f->text));
    return true;
}

static bool decoder_step(struct hf *h, struct clb_str raw, int depth)
{
    const uint32_t borders =
        FUSED | CLB_DECODE_BYTES | CLB_DECODE_FALLBACK | CLB_DECODE_FIRST | CLB_DECODE_SUFFIX;
    uint32_t *flags = &h->b.head.decoder_flags;
    struct hf_fields f;

    if (!clb_hf_read_fields(h, raw, &f))
        return false;
    if (!strcmp(f.type, "Sequence"))
        return clb_hf_check_fields(h, &f, HF_LIST, 0) &&
               clb_hf_each(h, f.list, depth, decoder_step);
    if (!strcmp(f.type, "Fuse")) {
        *flags |= FUSED;
        return clb_hf_check_fields(h, &f, 0, 0);
    }
    if (!strcmp(f.type, "Strip"))
        return clb_hf_check_fields(h, &f, HF_CONTENT | HF_START | HF_STOP, 0) &&
               place(h, &f, CLB_DECODE_FIRST | CLB_DECODE_SUFFIX) && strip(h, &f);
    if (!strcmp(f.type, "Replace"))
        return clb_hf_check_fields(h, &f, HF_PATTERN | HF_CONTENT, 0) && place(h, &f, borders) &&
               replace(h, &f);
    if (!strcmp(f.type, "Metaspace"))
        return clb_hf_check_fields(h, &f, HF_REPLACEMENT,
                                   HF_PREPEND_SCHEME | HF_SPLIT | HF_ADD_PREFIX_SPACE |
                                       HF_STR_REP) &&
               place(h, &f, borders) && metaspace(h, &f);
    if (!strcmp(f.type, "BPEDecoder"))
        return clb_hf_check_fields(h, &f, HF_SUFFIX, 0) && place(h, &f, borders) && suffix(h, &f);
    if (!strcmp(f.type, "ByteFallback")) {
        bool ok = clb_hf_check_fields(h, &f, 0, 0) && place(h, &f, borders);
        *flags |= CLB_DECODE_FALLBACK;
        return ok;
    }
    if (!strcmp(f.type, "ByteLevel")) {
        bool ok = clb_hf_check_fields(h, &f, HF_ADD_PREFIX_SPACE | HF_TRIM_OFFSETS, HF_USE_REGEX) &&
                  place(h, &f, borders);
        *flags |= CLB_DECODE_BYTES;
        return ok;
    }
    return clb_hf_refuse(h, raw, "the decoder '%s' is not supported", f.type);
}

bool clb_hf_decoder(struct hf *h, struct clb_str raw, int depth)
{
    struct clb_tables_head *head = &h->b.head;

    if (!decoder_step(h, raw, depth))
        return false;
    head->decoder_flags &= ~FUSED;
    if (head->model_flags & CLB_MODEL_BYTE_LEVEL &&
        (head->decoder_flags != CLB_DECODE_BYTES || h->n_op))
        return clb_hf_refuse(h, raw,
                             "with the pre-tokenizer ByteLevel the decoder must be ByteLevel");
    return true;
}

/* -- texts ------------------------------------------------------------------------------------ */

/* Takes up to `most` of the character off the start or the end. */
static struct clb_str strip_side(struct clb_str s, uint32_t c, uint32_t most, bool end)
{
    for (unsigned n; most && s.n; most--) {
        uint32_t first =
            end ? clb_utf8_before(s.p, s.p + s.n, &n) : clb_utf8_get(s.p, s.p + s.n, &n);
        if (first != c)
            break;
        s.p += end ? 0 : n;
        s.n -= n;
    }
    return s;
}

static void apply(const struct hf *h, const struct hf_piece_op *op, struct clb_str s,
                  struct clb_text *out)
{
    struct clb_tokenizer view = { .head = &h->b.head,
                                  .strings = h->b.strings.p,
                                  .programs = (const void *)h->b.programs.p };

    uint64_t budget = CLB_BUILD_BUDGET;

    if (op->strip) {
        s = strip_side(s, op->strip_char, op->start, false);
        s = strip_side(s, op->strip_char, op->stop, true);
        clb_text_add(out, s.p, s.n);
    } else {
        clb_step_apply(&view, &op->step, (struct clb_part){ s.p, s.p + s.n, s.p }, out, &budget);
        out->failed |= !budget;
    }
}

/* The byte of <0xNN>, or -1. */
static int byte_of(struct clb_str s)
{
    int b = 0;

    if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = s.p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        b = b * 16 + digit;
    }
    return b;
}

struct buffers {
    struct clb_text now, next, bytes;
};

static void set_text(struct hf *h, uint32_t id, struct buffers *t)
{
    struct clb_build_piece *p = &h->b.piece[id];
    struct clb_span from = p->flags & CLB_PIECE_ADDED ? p->find : p->content;
    uint32_t flags = h->b.head.decoder_flags;
    int byte = -1;

    clb_text_clear(&t->now);
    clb_text_add(&t->now, h->b.bytes.p + from.at, from.n);
    for (uint32_t i = 0; i < h->n_op; i++) {
        clb_text_clear(&t->next);
        apply(h, &h->op[i], (struct clb_str){ t->now.p ? t->now.p : "", t->now.n }, &t->next);
        struct clb_text swap = t->now;
        t->now = t->next;
        t->next = swap;
    }
    struct clb_str s = { t->now.p ? t->now.p : "", t->now.n };
    clb_text_clear(&t->bytes);
    if (flags & CLB_DECODE_FALLBACK && (byte = byte_of(s)) >= 0) {
        p->flags |= CLB_PIECE_BYTE;
        p->text = clb_build_bytes(&h->b, (struct clb_str){ &(char){ (char)byte }, 1 });
    } else if (flags & CLB_DECODE_BYTES && clb_byte_level_read(s, &t->bytes)) {
        p->text =
            clb_build_bytes(&h->b, (struct clb_str){ t->bytes.p ? t->bytes.p : "", t->bytes.n });
    } else {
        if (h->b.head.model_flags & CLB_MODEL_BYTE_LEVEL)
            p->flags &= ~(uint32_t)CLB_PIECE_MODEL; /* no word is spelled like that */
        p->text = s.n == from.n && !h->n_op ? from : clb_build_bytes(&h->b, s);
    }
}

/* The reference leaves out what it finds, in the form that the decoder sees, among the special
 * tokens. */
static void set_skip(struct hf *h, uint32_t id)
{
    struct clb_build_piece *p = &h->b.piece[id];
    struct clb_span seen = p->flags & CLB_PIECE_ADDED ? p->find : p->content;
    uint32_t special = clb_build_find(&h->b, (struct clb_str){ h->b.bytes.p + seen.at, seen.n });

    if (special != CLB_NO_ID && h->b.piece[special].flags & CLB_PIECE_SPECIAL)
        p->flags |= CLB_PIECE_SKIP;
}

bool clb_hf_texts(struct hf *h)
{
    struct buffers t = { .now = { 0 } };

    if (h->b.head.model_flags & CLB_MODEL_BYTE_LEVEL && h->b.head.decoder_flags & CLB_DECODE_JOIN)
        return clb_fail(h->err, CLB_BAD_INPUT,
                        "%s: byte %llu: with the pre-tokenizer ByteLevel the decoder must "
                        "be ByteLevel",
                        h->file, (unsigned long long)h->byte_level_at);
    for (uint32_t id = 0; id < h->b.n_piece; id++) {
        if (!(h->b.piece[id].flags & CLB_PIECE_EXISTS))
            continue;
        set_text(h, id, &t);
        set_skip(h, id);
    }
    bool ok = !t.now.failed && !t.next.failed && !t.bytes.failed && !h->b.bytes.failed;
    clb_text_free(&t.now);
    clb_text_free(&t.next);
    clb_text_free(&t.bytes);
    return ok || clb_fail_nomem(h->err, h->b.bytes.n);
}
