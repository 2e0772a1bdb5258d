#include "lib/import/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "lib/base/json.h"
#include "lib/base/mem.h"

/* Bytes: of the header length, and of the longest header (ten times what other readers accept). */
enum { PREFIX = 8, MOST_HEADER = 1000000000 };

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[CLB_ST_COUNT] = {
    [CLB_ST_F32] = { "F32", 4 },         [CLB_ST_F16] = { "F16", 2 },
    [CLB_ST_BF16] = { "BF16", 2 },       [CLB_ST_F64] = { "F64", 8 },
    [CLB_ST_F8_E4M3] = { "F8_E4M3", 1 }, [CLB_ST_F8_E5M2] = { "F8_E5M2", 1 },
    [CLB_ST_F8_E8M0] = { "F8_E8M0", 1 }, [CLB_ST_I8] = { "I8", 1 },
    [CLB_ST_U8] = { "U8", 1 },           [CLB_ST_I16] = { "I16", 2 },
    [CLB_ST_U16] = { "U16", 2 },         [CLB_ST_I32] = { "I32", 4 },
    [CLB_ST_U32] = { "U32", 4 },         [CLB_ST_I64] = { "I64", 8 },
    [CLB_ST_U64] = { "U64", 8 },         [CLB_ST_BOOL] = { "BOOL", 1 },
};

const char *clb_st_dtype_name(enum clb_st_dtype t)
{
    return dtypes[t].name;
}

uint32_t clb_st_dtype_bytes(enum clb_st_dtype t)
{
    return dtypes[t].bytes;
}

enum clb_dtype clb_st_as_dtype(enum clb_st_dtype t)
{
    return t == CLB_ST_F32 ? CLB_F32 : t == CLB_ST_BF16 ? CLB_BF16 : CLB_F16;
}

const char *clb_st_shape_text(char buf[static CLB_ST_SHAPE_TEXT], const uint64_t *shape,
                              uint32_t rank)
{
    size_t n = (size_t)snprintf(buf, CLB_ST_SHAPE_TEXT, "[");

    for (uint32_t i = 0; i < rank && n < CLB_ST_SHAPE_TEXT - 28; i++)
        n += (size_t)snprintf(buf + n, CLB_ST_SHAPE_TEXT - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)shape[i]);
    snprintf(buf + n, CLB_ST_SHAPE_TEXT - n, n < CLB_ST_SHAPE_TEXT - 28 ? "]" : "...");
    return buf;
}

const char *clb_import_not_the_file(const void *bytes, size_t n)
{
    static const char lfs[] = "version https://git-lfs";
    const char *p = bytes;

    if (n >= sizeof lfs - 1 && !memcmp(p, lfs, sizeof lfs - 1))
        return "is a Git LFS pointer, not the file itself; run 'git lfs pull' in that folder";
    for (; n && strchr(" \t\r\n", *p) && *p; p++)
        n--;
    if ((n >= 5 && !strncasecmp(p, "<html", 5)) || (n >= 9 && !strncasecmp(p, "<!doctype", 9)))
        return "is an HTML page, probably the answer of a web server instead of the download";
    return NULL;
}

/* Product of shape and dtype; false when it does not fit in 64 bits. */
static bool tensor_bytes(const struct clb_st_tensor *t, uint64_t *bytes)
{
    *bytes = dtypes[t->dtype].bytes;
    for (uint32_t i = 0; i < t->rank; i++)
        if (!clb_mul(*bytes, t->shape[i], bytes))
            return false;
    return true;
}

static bool read_dtype(struct clb_json *j, struct clb_st_tensor *t)
{
    struct clb_str s = clb_json_string(j);

    for (int i = 0; i < CLB_ST_COUNT; i++)
        if (clb_str_is(s, dtypes[i].name)) {
            t->dtype = (enum clb_st_dtype)i;
            return true;
        }
    return clb_json_ok(j) &&
           clb_json_fail(j, "unknown dtype '%.*s'", s.n < 32 ? (int)s.n : 32, s.p);
}

static void read_shape(struct clb_json *j, struct clb_st_tensor *t)
{
    clb_json_array(j);
    for (t->rank = 0; clb_json_item(j); t->rank++) {
        if (t->rank == CLB_ST_RANK) {
            clb_json_fail(j, "more than %d dimensions", CLB_ST_RANK);
            return;
        }
        t->shape[t->rank] = clb_json_u64(j, INT64_MAX);
    }
}

static void read_offsets(struct clb_json *j, struct clb_st_tensor *t)
{
    uint32_t n = 0;

    clb_json_array(j);
    for (; clb_json_item(j); n++) {
        uint64_t v = clb_json_u64(j, INT64_MAX);

        if (n == 0)
            t->begin = v;
        else
            t->end = v;
    }
    if (clb_json_ok(j) && n != 2)
        clb_json_fail(j, "%u numbers, but begin and end are expected", n);
}

/* One value of the header's top object. data_bytes: how much follows the header. */
static void read_tensor(struct clb_json *j, struct clb_st_tensor *t, uint64_t data_bytes)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0;
    uint64_t bytes;
    struct clb_str key;
    char shape[CLB_ST_SHAPE_TEXT];

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        if (clb_str_is(key, "dtype")) {
            read_dtype(j, t);
            seen |= DTYPE;
        } else if (clb_str_is(key, "shape")) {
            read_shape(j, t);
            seen |= SHAPE;
        } else if (clb_str_is(key, "data_offsets")) {
            read_offsets(j, t);
            seen |= OFFSETS;
        } else {
            clb_json_skip(j, NULL);
            clb_json_fail(j, "a key that the format does not have");
        }
    }
    if (!clb_json_ok(j))
        return;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        clb_json_fail(j, "'%s' is missing",
                      seen & DTYPE ? seen & SHAPE ? "data_offsets" : "shape" : "dtype");
    else if (t->begin > t->end)
        clb_json_fail(j, "data_offsets [%llu, %llu] are reversed", (unsigned long long)t->begin,
                      (unsigned long long)t->end);
    else if (t->end > data_bytes)
        clb_json_fail(j,
                      "data_offsets end at %llu, but only %llu bytes of data follow the header: "
                      "the file is truncated or damaged",
                      (unsigned long long)t->end, (unsigned long long)data_bytes);
    else if (!tensor_bytes(t, &bytes) || bytes != t->end - t->begin)
        clb_json_fail(j, "shape %s of %s does not take the %llu bytes of data_offsets",
                      clb_st_shape_text(shape, t->shape, t->rank), dtypes[t->dtype].name,
                      (unsigned long long)(t->end - t->begin));
}

/* "__metadata__": texts about the file; nothing in them matters here. */
static void read_metadata(struct clb_json *j)
{
    struct clb_str key;

    clb_json_object(j);
    while (clb_json_key(j, &key))
        if (clb_json_peek(j) == CLB_JSON_STRING)
            clb_json_skip(j, NULL);
        else if (clb_json_ok(j))
            clb_json_fail(j, "metadata must be texts, found %s",
                          clb_json_type_name(clb_json_peek(j)));
}

/* Makes room for one more tensor; NULL (and err filled) without memory. */
static struct clb_st_tensor *next_tensor(struct clb_safetensors *st, uint32_t *room,
                                         struct clb_err *err)
{
    if (st->n_tensor == *room) {
        uint32_t more = *room ? *room * 2 : 256;
        void *grown = more > *room ? clb_grow(st->tensor, more, sizeof *st->tensor, err) : NULL;

        if (!grown)
            return NULL;
        st->tensor = grown;
        *room = more;
    }
    st->tensor[st->n_tensor] = (struct clb_st_tensor){ 0 };
    return &st->tensor[st->n_tensor];
}

static bool read_entries(struct clb_safetensors *st, struct clb_json *j, struct clb_err *err)
{
    uint32_t room = 0;
    struct clb_str key;

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        if (clb_str_is(key, "__metadata__")) {
            read_metadata(j);
            continue;
        }
        struct clb_st_tensor *t = next_tensor(st, &room, err);

        if (!t)
            return false;
        if (!key.n || memchr(key.p, 0, key.n))
            clb_json_fail(j, "a tensor name that is empty or contains a NUL");
        clb_text_add(&st->names, key.p, key.n);
        clb_text_add(&st->names, "", 1);
        read_tensor(j, t, st->map.size - st->data_at);
        st->n_tensor++;
    }
    return !st->names.failed || clb_fail_nomem(err, st->names.n + key.n);
}

/* Read, not taken from the mapping: a file that gets shorter meanwhile is an ordinary error. */
static bool read_header(struct clb_safetensors *st, struct clb_err *err)
{
    size_t n = (size_t)st->data_at - PREFIX;
    char *text = clb_new(n, 1, err);
    struct clb_json j;
    bool ok = false;

    if (!text || !clb_mapfile_read(&st->map, text, PREFIX, n, err))
        goto done;
    clb_json_open(&j, text, n, st->map.path);
    j.base = PREFIX;
    ok = read_entries(st, &j, err);
    if (ok)
        ok = clb_json_close(&j, err);
    else
        clb_json_abandon(&j);
done:
    clb_free(text);
    return ok;
}

static int by_offset(const void *pa, const void *pb)
{
    const struct clb_st_tensor *a = *(const struct clb_st_tensor *const *)pa;
    const struct clb_st_tensor *b = *(const struct clb_st_tensor *const *)pb;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

static bool misplaced(const struct clb_safetensors *st, const char *tensor, uint64_t at,
                      struct clb_err *err)
{
    clb_fail_in(err, "%s: byte %llu", st->map.path, (unsigned long long)at);
    return clb_err_place(err, st->map.path, tensor, at);
}

/* The order in the file must leave no gap. */
static bool check_order(const struct clb_safetensors *st, struct clb_err *err)
{
    uint64_t at = st->data_at;

    for (uint32_t i = 0; i < st->n_tensor; i++) {
        const struct clb_st_tensor *t = st->order[i];

        if (t->begin < at) {
            clb_fail(err, CLB_BAD_INPUT, "tensor '%s' overlaps tensor '%s'", t->name,
                     st->order[i - 1]->name);
            return misplaced(st, t->name, t->begin, err);
        }
        if (t->begin > at) {
            clb_fail(err, CLB_BAD_INPUT, "%llu bytes before tensor '%s' belong to no tensor",
                     (unsigned long long)(t->begin - at), t->name);
            return misplaced(st, t->name, at, err);
        }
        at = t->end;
    }
    if (at == st->map.size)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "%llu bytes after the last tensor belong to no tensor",
             (unsigned long long)(st->map.size - at));
    return misplaced(st, NULL, at, err);
}

/* Names and absolute offsets, once no array moves any more. */
static bool settle(struct clb_safetensors *st, struct clb_err *err)
{
    const char *name = st->names.p;

    st->order = clb_new(st->n_tensor, sizeof *st->order, err);
    if (!st->order)
        return false;
    for (uint32_t i = 0; i < st->n_tensor; i++) {
        struct clb_st_tensor *t = &st->tensor[i];

        t->name = name;
        name += strlen(name) + 1;
        t->begin += st->data_at;
        t->end += st->data_at;
        st->order[i] = t;
    }
    qsort(st->order, st->n_tensor, sizeof *st->order, by_offset);
    return check_order(st, err);
}

/* The length field, and whether this is such a file at all. */
static bool read_length(struct clb_safetensors *st, struct clb_err *err)
{
    const struct clb_mapfile *m = &st->map;
    uint64_t length = 0;
    unsigned long long size = m->size;
    uint8_t start[512];
    size_t n = m->size < sizeof start ? m->size : sizeof start;

    if (!clb_mapfile_read(m, start, 0, n, err))
        return false;
    const char *what = clb_import_not_the_file(start, n);
    for (size_t i = PREFIX; i-- > 0 && size >= PREFIX;)
        length = length << 8 | start[i];
    if (what) {
        clb_fail(err, CLB_BAD_INPUT, "%s", what);
    } else if (size < PREFIX) {
        clb_fail(err, CLB_BAD_INPUT,
                 "%llu bytes, but a safetensors file begins with an 8-byte header length", size);
    } else if (length < 2) {
        clb_fail(err, CLB_BAD_INPUT, "byte 0: a header length of %llu holds no header",
                 (unsigned long long)length);
    } else if (length > size - PREFIX) {
        clb_fail(err, CLB_BAD_INPUT,
                 "byte 0: a header length of %llu goes beyond the end of the file (%llu bytes): it "
                 "is truncated, or no safetensors file",
                 (unsigned long long)length, size);
    } else if (length > MOST_HEADER) {
        clb_fail(err, CLB_BAD_INPUT,
                 "byte 0: a header length of %llu; at most %d bytes are read",
                 (unsigned long long)length, MOST_HEADER);
    } else {
        st->data_at = PREFIX + length;
        return true;
    }
    clb_fail_in(err, "%s", m->path);
    return clb_err_place(err, m->path, NULL, 0);
}

bool clb_safetensors_open(struct clb_safetensors *st, const char *path, struct clb_err *err)
{
    *st = (struct clb_safetensors){ .map.fd = -1 };
    if (clb_mapfile_open(&st->map, path, err) && read_length(st, err) && read_header(st, err) &&
        settle(st, err))
        return true;
    clb_safetensors_close(st);
    return false;
}

void clb_safetensors_close(struct clb_safetensors *st)
{
    clb_mapfile_close(&st->map);
    clb_free(st->tensor);
    clb_free(st->order);
    clb_text_free(&st->names);
    *st = (struct clb_safetensors){ .map.fd = -1 };
}
