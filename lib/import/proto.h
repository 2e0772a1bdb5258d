/* proto.h - reads the wire format of protocol buffers: a message is a list of numbered fields.
 *
 * One level at a time, without copying: a field that holds a message is opened as a reader of its
 * own. Errors are sticky: read all fields, then ask clb_proto_ok. */
#ifndef CLB_IMPORT_PROTO_H
#define CLB_IMPORT_PROTO_H

#include "lib/base/err.h"
#include "lib/base/str.h"

enum clb_wire { CLB_WIRE_VARINT = 0, CLB_WIRE_64 = 1, CLB_WIRE_BYTES = 2, CLB_WIRE_32 = 5 };

struct clb_proto {
    const char *start, *p, *end; /* start: of the file, for offsets in messages */
    const char *file;
    struct clb_err *err;
    bool failed;
};

struct clb_proto_field {
    uint32_t number;
    enum clb_wire wire;
    uint64_t value;       /* not for CLB_WIRE_BYTES */
    struct clb_str bytes; /* CLB_WIRE_BYTES; borrowed */
};

void clb_proto_open(struct clb_proto *r, struct clb_str file_bytes, const char *file,
                    struct clb_err *err);
/* The message that a field holds. */
void clb_proto_enter(struct clb_proto *r, const struct clb_proto *outer, struct clb_str message);
/* The next field; false at the end or after an error. */
bool clb_proto_next(struct clb_proto *r, struct clb_proto_field *f);
/* A field of this type? Else an error that names it. */
bool clb_proto_want(struct clb_proto *r, const struct clb_proto_field *f, enum clb_wire wire,
                    const char *name);
/* Always false. "FILE: byte N: why". */
bool clb_proto_fail(struct clb_proto *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
