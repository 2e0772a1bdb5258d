/* spm_model.c - the fields of a SentencePiece model file. */
#include <math.h>

#include "lib/base/mem.h"
#include "lib/import/spm_tokenizer_impl.h"
#include "lib/token/utf8.h"

static float as_float(uint64_t value)
{
    uint32_t bits = (uint32_t)value;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static bool unknown_field(struct clb_proto *r, const struct clb_proto_field *f, const char *message)
{
    return clb_proto_fail(r, "field %u of a %s is not known and may change the result", f->number,
                          message);
}

static bool check_piece(struct clb_proto *r, const struct spm_piece *p, uint32_t id)
{
    if (!p->name.n)
        return clb_proto_fail(r, "piece %u has no text", id);
    if (clb_utf8_valid(p->name.p, p->name.n) != p->name.n)
        return clb_proto_fail(r, "piece %u is not UTF-8", id);
    if (!isfinite(p->score))
        return clb_proto_fail(r, "piece %u has the score %g", id, (double)p->score);
    return (p->type >= SPM_NORMAL && p->type <= SPM_BYTE) ||
           clb_proto_fail(r, "piece %u has the unknown type %d", id, (int)p->type);
}

static bool read_piece(struct spm *s, const struct clb_proto *outer, struct clb_str message)
{
    struct spm_piece p = { .type = SPM_NORMAL };
    struct clb_proto r;
    struct clb_proto_field f;

    clb_proto_enter(&r, outer, message);
    while (clb_proto_next(&r, &f)) {
        if (f.number == 1 && clb_proto_want(&r, &f, CLB_WIRE_BYTES, "piece"))
            p.name = f.bytes;
        else if (f.number == 2 && clb_proto_want(&r, &f, CLB_WIRE_32, "score"))
            p.score = as_float(f.value);
        else if (f.number == 3 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "type"))
            p.type = f.value > SPM_BYTE ? 0 : (enum spm_type)f.value;
        else
            unknown_field(&r, &f, "piece");
    }
    if (r.failed || !check_piece(&r, &p, s->n_piece))
        return false;
    if (s->n_piece == s->room) {
        uint32_t room = s->room ? s->room * 2 : 4096;
        struct spm_piece *more = clb_grow(s->piece, room, sizeof *more, s->err);
        if (!more)
            return false;
        s->piece = more;
        s->room = room;
    }
    s->piece[s->n_piece++] = p;
    return true;
}

/* Of how the model was trained only a few things matter. */
static bool read_trainer(struct spm *s, const struct clb_proto *outer, struct clb_str message)
{
    struct clb_proto r;
    struct clb_proto_field f;

    clb_proto_enter(&r, outer, message);
    while (clb_proto_next(&r, &f)) {
        if (f.number == 3 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "model_type"))
            s->kind = f.value;
        else if (f.number == 24 &&
                 clb_proto_want(&r, &f, CLB_WIRE_VARINT, "treat_whitespace_as_suffix"))
            s->suffix = f.value;
        else if (f.number == 35 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "byte_fallback"))
            s->byte_fallback = f.value;
        else if (f.number == 41 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "bos_id"))
            s->bos = (int32_t)f.value;
        else if (f.number == 42 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "eos_id"))
            s->eos = (int32_t)f.value;
        else if (f.number == 44 && clb_proto_want(&r, &f, CLB_WIRE_BYTES, "unk_surface"))
            s->unk_surface = f.bytes;
    }
    return !r.failed;
}

static bool read_normalizer(struct spm *s, const struct clb_proto *outer, struct clb_str message)
{
    struct clb_proto r;
    struct clb_proto_field f;

    clb_proto_enter(&r, outer, message);
    while (clb_proto_next(&r, &f)) {
        if (f.number == 2 && clb_proto_want(&r, &f, CLB_WIRE_BYTES, "precompiled_charsmap"))
            s->charsmap = f.bytes;
        else if (f.number == 3 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "add_dummy_prefix"))
            s->dummy_prefix = f.value;
        else if (f.number == 4 &&
                 clb_proto_want(&r, &f, CLB_WIRE_VARINT, "remove_extra_whitespaces"))
            s->remove_extra = f.value;
        else if (f.number == 5 && clb_proto_want(&r, &f, CLB_WIRE_VARINT, "escape_whitespaces"))
            s->escape = f.value;
        else if (f.number != 1 && f.number != 6) /* its name, and the rules it was made from */
            unknown_field(&r, &f, "normalizer");
    }
    return !r.failed;
}

/* Text is never changed back, so a map for that is refused. */
static bool read_denormalizer(const struct clb_proto *outer, struct clb_str message)
{
    struct clb_proto r;
    struct clb_proto_field f;

    clb_proto_enter(&r, outer, message);
    while (clb_proto_next(&r, &f))
        if (f.number == 2 && f.bytes.n)
            clb_proto_fail(&r, "a denormalizer with a map is not supported");
    return !r.failed;
}

static bool check(const struct spm *s)
{
    uint32_t map = 0;

    if (!s->n_piece)
        return clb_spm_fail(s, "there are no pieces in it: this is no SentencePiece model");
    if (s->kind != SPM_UNIGRAM && s->kind != SPM_BPE)
        return clb_spm_fail(s, "model_type %llu is not supported: 1 (Unigram) and 2 (BPE) are",
                            (unsigned long long)s->kind);
    if (!s->charsmap.n)
        return true;
    if (s->charsmap.n > 4)
        memcpy(&map, s->charsmap.p, 4);
    if (!map || map % 4 || map > s->charsmap.n - 4)
        return clb_spm_fail(s, "precompiled_charsmap: a map of %u bytes in %zu", map,
                            s->charsmap.n);
    size_t rest = s->charsmap.n - 4 - map;
    return clb_utf8_valid(s->charsmap.p + 4 + map, rest) == rest ||
           clb_spm_fail(s, "precompiled_charsmap: its texts are not UTF-8");
}

bool clb_spm_read(struct spm *s)
{
    struct clb_proto r;
    struct clb_proto_field f;
    bool ok = true;

    clb_proto_open(&r, s->source->model, s->source->file, s->err);
    while (ok && clb_proto_next(&r, &f)) {
        if (f.number > 5)
            ok = unknown_field(&r, &f, "model");
        else if (!clb_proto_want(&r, &f, CLB_WIRE_BYTES, "a part of the model"))
            break;
        else if (f.number == 1)
            ok = read_piece(s, &r, f.bytes);
        else if (f.number == 2)
            ok = read_trainer(s, &r, f.bytes);
        else if (f.number == 3)
            ok = read_normalizer(s, &r, f.bytes);
        else if (f.number == 5)
            ok = read_denormalizer(&r, f.bytes);
    }
    return ok && !r.failed && check(s);
}
