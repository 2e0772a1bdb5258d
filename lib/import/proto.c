#include "lib/import/proto.h"

#include <stdarg.h>
#include <stdio.h>

void clb_proto_open(struct clb_proto *r, struct clb_str file_bytes, const char *file,
                    struct clb_err *err)
{
    *r = (struct clb_proto){ .start = file_bytes.p,
                             .p = file_bytes.p,
                             .end = file_bytes.p + file_bytes.n,
                             .file = file,
                             .err = err };
}

void clb_proto_enter(struct clb_proto *r, const struct clb_proto *outer, struct clb_str message)
{
    *r = *outer;
    r->p = message.p;
    r->end = message.p + message.n;
}

bool clb_proto_fail(struct clb_proto *r, const char *fmt, ...)
{
    uint64_t at = (uint64_t)(r->p - r->start);
    char why[256];
    va_list ap;

    if (r->failed)
        return false;
    r->failed = true;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_fail(r->err, CLB_BAD_INPUT, "%s: byte %llu: %s", r->file, (unsigned long long)at, why);
    return clb_err_place(r->err, r->file, NULL, at);
}

static uint64_t varint(struct clb_proto *r)
{
    const char *start = r->p;
    uint64_t v = 0;

    for (unsigned shift = 0; r->p < r->end && shift < 64; shift += 7) {
        uint8_t b = (uint8_t)*r->p++;
        if (shift == 63 && b > 1)
            break;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128)
            return v;
    }
    r->p = start;
    clb_proto_fail(r, "a number that does not end");
    return 0;
}

static uint64_t fixed(struct clb_proto *r, unsigned n)
{
    uint64_t v = 0;

    if (r->end - r->p < (ptrdiff_t)n) {
        clb_proto_fail(r, "the file ends inside a number");
        return 0;
    }
    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)(uint8_t)r->p[i] << 8 * i;
    r->p += n;
    return v;
}

bool clb_proto_next(struct clb_proto *r, struct clb_proto_field *f)
{
    if (r->failed || r->p == r->end)
        return false;
    const char *start = r->p;
    uint64_t key = varint(r);
    *f = (struct clb_proto_field){ .number = (uint32_t)(key >> 3), .wire = key & 7 };
    if (r->failed)
        return false;
    if (key >> 3 == 0 || key >> 3 >= 1u << 29) {
        r->p = start;
        return clb_proto_fail(r, "field number %llu: this is no protocol buffer",
                              (unsigned long long)(key >> 3));
    }
    if (f->wire == CLB_WIRE_VARINT)
        f->value = varint(r);
    else if (f->wire == CLB_WIRE_64 || f->wire == CLB_WIRE_32)
        f->value = fixed(r, f->wire == CLB_WIRE_64 ? 8 : 4);
    else if (f->wire == CLB_WIRE_BYTES) {
        uint64_t n = varint(r);
        if (!r->failed && n > (uint64_t)(r->end - r->p))
            clb_proto_fail(r, "field %u has %llu bytes, but only %zu are left", f->number,
                           (unsigned long long)n, (size_t)(r->end - r->p));
        if (r->failed)
            return false;
        f->bytes = (struct clb_str){ r->p, (size_t)n };
        r->p += n;
    } else {
        r->p = start;
        clb_proto_fail(r, "field %u has the unknown wire type %u", f->number, (unsigned)(key & 7));
    }
    return !r->failed;
}

bool clb_proto_want(struct clb_proto *r, const struct clb_proto_field *f, enum clb_wire wire,
                    const char *name)
{
    return f->wire == wire ||
           clb_proto_fail(r, "'%s' has wire type %u, expected %u", name, f->wire, wire);
}
