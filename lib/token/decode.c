/* decode.c - ids to text.
 *
 * Text leaves as soon as nothing that follows can change it. What has to wait: the bytes of an
 * unfinished character
 * (`pending`), and with a word suffix the whole last piece, which reads differently if it is the
 * last. */
#include "lib/base/mem.h"
#include "lib/token/tables.h"
#include "lib/token/utf8.h"

struct clb_decoder {
    const struct clb_tokenizer *t;
    bool skip_special;
    bool started;    /* a piece was seen */
    bool lead_done;  /* CLB_DECODE_LEAD: no piece loses its mark any more */
    bool begun;      /* there is text */
    bool bad_run;    /* this run of byte pieces is not UTF-8: U+FFFD for each */
    uint32_t strip;  /* so many strip_char may still be dropped */
    uint32_t held;   /* CLB_DECODE_SUFFIX: the last piece, or CLB_NO_ID */
    char pending[4]; /* the start of a character */
    unsigned n_pending;
    struct clb_text out;
};

static const char replacement[] = "\xef\xbf\xbd";

/* -- characters out --------------------------------------------------------------------------- */

static void emit(struct clb_decoder *d, const char *s, size_t n)
{
    unsigned len;

    while (d->strip && n) {
        if (clb_utf8_get(s, s + n, &len) != d->t->head->strip_char) {
            d->strip = 0;
            break;
        }
        d->strip--;
        s += len;
        n -= len;
    }
    d->begun |= n > 0;
    clb_text_add(&d->out, s, n);
}

static void emit_bad(struct clb_decoder *d, unsigned count)
{
    while (count--)
        emit(d, replacement, 3);
}

/* Bytes of a byte-level piece: characters as they are complete, U+FFFD for what cannot become one.
 */
static void emit_bytes(struct clb_decoder *d, const char *s, size_t n)
{
    while (n) {
        if (!d->n_pending) {
            size_t good = clb_utf8_valid(s, n);
            emit(d, s, good);
            s += good;
            n -= good;
            if (!n)
                return;
        }
        d->pending[d->n_pending++] = *s;
        int step = clb_utf8_step(d->pending, d->n_pending);
        if (step >= 0) {
            s++;
            n--;
        }
        if (step > 0) {
            emit(d, d->pending, d->n_pending);
            d->n_pending = 0;
        } else if (step < 0) {
            emit_bad(d, 1);
            if (d->n_pending == 1) { /* the byte itself is bad; else it is looked at again */
                s++;
                n--;
            }
            d->n_pending = 0;
        }
    }
}

/* The same for a run of <0xNN> in which a bad byte spoils only itself. */
static void emit_lenient(struct clb_decoder *d, char byte)
{
    d->pending[d->n_pending++] = byte;
    while (d->n_pending) {
        int step = clb_utf8_step(d->pending, d->n_pending);
        if (step == 0)
            return;
        unsigned n = step > 0 ? (unsigned)step : 1;
        if (step > 0)
            emit(d, d->pending, n);
        else
            emit_bad(d, 1);
        d->n_pending -= n;
        memmove(d->pending, d->pending + n, d->n_pending);
    }
}

/* One byte of a run of <0xNN>. */
static void emit_fallback(struct clb_decoder *d, char byte)
{
    if (d->t->head->decoder_flags & CLB_DECODE_LENIENT) {
        emit_lenient(d, byte);
        return;
    }
    d->pending[d->n_pending++] = byte;
    int step = d->bad_run ? -1 : clb_utf8_step(d->pending, d->n_pending);
    if (step == 0)
        return;
    if (step > 0)
        emit(d, d->pending, d->n_pending);
    else
        emit_bad(d, d->n_pending);
    d->bad_run = step < 0;
    d->n_pending = 0;
}

static void end_run(struct clb_decoder *d)
{
    emit_bad(d, d->n_pending);
    d->n_pending = 0;
    d->bad_run = false;
}

/* s with `mark` replaced. */
static void emit_marked(struct clb_decoder *d, struct clb_str s, const char *with)
{
    struct clb_str mark = clb_tables_string(d->t, d->t->head->mark);
    const char *p = s.p, *end = s.p + s.n, *q;

    while (mark.n && (q = memmem(p, (size_t)(end - p), mark.p, mark.n))) {
        emit(d, p, (size_t)(q - p));
        emit(d, with, strlen(with));
        p = q + mark.n;
    }
    emit(d, p, (size_t)(end - p));
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* A piece of a SentencePiece model: at the start of the text the mark for a space is left out. */
static void emit_lead(struct clb_decoder *d, uint32_t id, struct clb_str text)
{
    const struct clb_tables_head *h = d->t->head;
    struct clb_str mark = clb_tables_string(d->t, h->mark), piece = clb_piece_content(d->t, id);
    bool plain = !(clb_piece_flags(d->t, id) & CLB_PIECE_SPECIAL);

    d->lead_done |= d->begun;
    if (plain && !d->lead_done && text.n && piece.n >= mark.n && !memcmp(piece.p, mark.p, mark.n)) {
        text.p++;
        text.n--;
        d->lead_done = !(h->decoder_flags & CLB_DECODE_LEADS);
    }
    emit(d, text.p, text.n);
}

static void put_piece(struct clb_decoder *d, uint32_t id)
{
    const struct clb_tables_head *h = d->t->head;
    struct clb_str text = clb_piece_text(d->t, id);

    if (h->decoder_flags & CLB_DECODE_JOIN && d->started)
        emit(d, " ", 1);
    if (h->decoder_flags & CLB_DECODE_BYTES)
        emit_bytes(d, text.p, text.n);
    else if (d->t->flags[id] & CLB_PIECE_BYTE && text.n == 1)
        emit_fallback(d, text.p[0]);
    else {
        end_run(d);
        if (h->decoder_flags & CLB_DECODE_FIRST)
            emit_marked(d, text, d->started ? " " : "");
        else if (h->decoder_flags & CLB_DECODE_LEAD)
            emit_lead(d, id, text);
        else
            emit(d, text.p, text.n);
    }
    d->started = true;
}

static bool is_dropped(const struct clb_decoder *d, int32_t id)
{
    unsigned flags = clb_piece_flags(d->t, (uint32_t)id);

    return !(flags & CLB_PIECE_EXISTS) || (d->skip_special && flags & CLB_PIECE_SKIP);
}

static bool give(struct clb_decoder *d, struct clb_str *text, struct clb_err *err)
{
    if (d->out.failed)
        return clb_fail_nomem(err, d->out.n);
    *text = (struct clb_str){ d->out.p, d->out.n };
    return true;
}

/* Appends to d->out. */
static bool feed(struct clb_decoder *d, int32_t id, struct clb_err *err)
{
    const struct clb_tables_head *h = d->t->head;

    if (is_dropped(d, id))
        return true;
    if (clb_piece_text(d->t, (uint32_t)id).n > h->max_text)
        return clb_fail(err, CLB_BAD_INPUT,
                        "the tokenizer tables are damaged: piece %d is longer than %u bytes", id,
                        h->max_text);
    if (h->decoder_flags & CLB_DECODE_SUFFIX) {
        if (d->held != CLB_NO_ID)
            emit_marked(d, clb_piece_text(d->t, d->held), " ");
        d->held = (uint32_t)id;
    } else {
        put_piece(d, (uint32_t)id);
    }
    return true;
}

bool clb_decoder_feed(struct clb_decoder *d, int32_t id, struct clb_str *text, struct clb_err *err)
{
    clb_text_clear(&d->out);
    return feed(d, id, err) && give(d, text, err);
}

/* Appends to d->out what was held back. */
static void flush(struct clb_decoder *d)
{
    if (d->held != CLB_NO_ID)
        emit_marked(d, clb_piece_text(d->t, d->held), "");
    else if (d->t->head->decoder_flags & CLB_DECODE_BYTES)
        emit_bad(d, d->n_pending != 0); /* an unfinished character is one U+FFFD */
    else
        emit_bad(d, d->n_pending);
    d->n_pending = 0;
    d->bad_run = d->started = d->lead_done = d->begun = false;
    d->held = CLB_NO_ID;
    d->strip = d->t->head->strip;
}

bool clb_decoder_flush(struct clb_decoder *d, struct clb_str *text, struct clb_err *err)
{
    clb_text_clear(&d->out);
    flush(d);
    return give(d, text, err);
}

/* -- open, close, all at once ----------------------------------------------------------------- */

/* A piece whose every byte becomes U+FFFD, what was pending, a space. */
size_t clb_decoder_most(const struct clb_tokenizer *t)
{
    return 3 * (size_t)t->head->max_text + 64;
}

static bool reserve(struct clb_text *out, size_t room, struct clb_err *err)
{
    char *p = clb_grow(NULL, room, 1, err);

    if (!p)
        return false;
    *p = 0;
    *out = (struct clb_text){ .p = p, .room = room };
    return true;
}

bool clb_decoder_open(struct clb_decoder **out, const struct clb_tokenizer *t, bool skip_special,
                      struct clb_err *err)
{
    struct clb_decoder *d = clb_new(1, sizeof *d, err);

    *out = NULL;
    if (!d)
        return false;
    *d = (struct clb_decoder){
        .t = t, .skip_special = skip_special, .strip = t->head->strip, .held = CLB_NO_ID
    };
    if (!reserve(&d->out, clb_decoder_most(t), err)) {
        clb_free(d);
        return false;
    }
    *out = d;
    return true;
}

void clb_decoder_close(struct clb_decoder *d)
{
    if (!d)
        return;
    clb_text_free(&d->out);
    clb_free(d);
}

/* Is the run of byte pieces that starts at id[0] valid as a whole? (A run that is not becomes
 * U+FFFD throughout, which a stream cannot know in time.) */
static bool run_is_good(const struct clb_decoder *d, const int32_t *id, size_t n)
{
    char pending[4];
    unsigned n_pending = 0;

    for (size_t i = 0; i < n; i++) {
        if (is_dropped(d, id[i]))
            continue;
        struct clb_str text = clb_piece_text(d->t, (uint32_t)id[i]);
        if (!(d->t->flags[id[i]] & CLB_PIECE_BYTE) || text.n != 1)
            break;
        pending[n_pending++] = text.p[0];
        int step = clb_utf8_step(pending, n_pending);
        if (step < 0)
            return false;
        if (step > 0)
            n_pending = 0;
    }
    return n_pending == 0;
}

/* The bytes of all pieces, one behind the other, at *bytes (owned by the caller) with a NUL. */
static bool gather(const struct clb_decoder *d, const int32_t *id, size_t n, char **bytes,
                   size_t *size, struct clb_err *err)
{
    enum { STRIDE = 16 }; /* most pieces are shorter: a copy of fixed size is fast */
    const char *last = d->t->text + d->t->head->section[CLB_TEXT].size;
    size_t at = 0, room = 0;
    char *p = NULL;

    for (size_t i = 0; i < n; i++) {
        if (is_dropped(d, id[i]))
            continue;
        struct clb_str s = clb_piece_text(d->t, (uint32_t)id[i]);
        if (!s.n)
            continue;
        if (room - at <= s.n + STRIDE) {
            room = 2 * room + s.n + 4096;
            char *more = clb_grow(p, room, 1, err);
            if (!more) {
                clb_free(p);
                return false;
            }
            p = more;
        }
        memcpy(p + at, s.p, s.n <= STRIDE && last - s.p >= STRIDE ? STRIDE : s.n);
        at += s.n;
    }
    if (p)
        p[at] = 0;
    *bytes = p;
    *size = at;
    return true;
}

/* Without anything that happens at the border of pieces the whole is their bytes. */
static bool decode_bytes(const struct clb_decoder *d, const int32_t *id, size_t n,
                         struct clb_text *out, struct clb_err *err)
{
    char *bytes;
    size_t size;

    if (!gather(d, id, n, &bytes, &size, err))
        return false;
    if (bytes && clb_utf8_valid(bytes, size) < size)
        clb_utf8_repair((struct clb_str){ bytes, size }, out);
    else if (bytes)
        clb_text_add(out, bytes, size);
    clb_free(bytes);
    return true;
}

static bool decode_pieces(struct clb_decoder *d, const int32_t *id, size_t n, struct clb_text *out,
                          struct clb_err *err)
{
    const bool lenient = d->t->head->decoder_flags & CLB_DECODE_LENIENT;
    bool in_run = false;

    for (size_t i = 0; i < n; i++) {
        if (!lenient && !is_dropped(d, id[i])) {
            bool byte = d->t->flags[id[i]] & CLB_PIECE_BYTE;
            if (byte && !in_run)
                d->bad_run = !run_is_good(d, id + i, n - i);
            in_run = byte;
        }
        if (!feed(d, id[i], err))
            return false;
    }
    flush(d);
    if (d->out.failed)
        return clb_fail_nomem(err, d->out.n);
    clb_text_add(out, d->out.p, d->out.n);
    return true;
}

bool clb_decode(const struct clb_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                struct clb_text *out, struct clb_err *err)
{
    struct clb_decoder *d;

    if (!clb_decoder_open(&d, t, skip_special, err))
        return false;
    bool ok = t->head->decoder_flags == CLB_DECODE_BYTES && !t->head->strip
                  ? decode_bytes(d, id, n, out, err)
                  : decode_pieces(d, id, n, out, err);
    if (ok && out->failed)
        ok = clb_fail_nomem(err, out->n);
    clb_decoder_close(d);
    return ok;
}
