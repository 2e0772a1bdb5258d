/* verify.c - every byte of the file against its checksum. Bytes that no checksum covers must be
 * zero, so a change anywhere is found: prefix and header when the file is opened, blocks and gaps
 * here. */
#include "lib/format/reader.h"

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/format/layout.h"

enum { CHUNK = 1 << 20 };

struct verify {
    const struct clb_reader *r;
    uint8_t *buffer; /* CHUNK bytes; NULL when the file is in memory anyway */
    clb_verify_fn *each;
    void *arg;
    struct clb_err *err; /* holds the first failure */
    bool ok;
};

/* Reads explicitly, so that a file cut short meanwhile is an error and not a signal. */
static const uint8_t *chunk(struct verify *v, uint64_t at, size_t n, struct clb_err *err)
{
    if (!v->buffer)
        return v->r->data + at;
    return clb_mapfile_read(&v->r->map, v->buffer, at, n, err) ? v->buffer : NULL;
}

static bool same_crc(struct verify *v, const struct clb_extent *e, struct clb_err *err)
{
    char name[96];
    uint32_t crc = 0;

    for (uint64_t done = 0; done < e->size;) {
        size_t n = e->size - done < CHUNK ? (size_t)(e->size - done) : CHUNK;
        const uint8_t *p = chunk(v, e->offset + done, n, err);
        if (!p)
            return false;
        crc = clb_crc32(crc, p, n);
        done += n;
    }
    if (crc == e->crc32)
        return true;
    clb_fail(err, CLB_BAD_INPUT,
             "%s: %s is damaged: crc32 %08x, expected %08x (%llu bytes at offset %llu)", v->r->path,
             clb_extent_name(v->r, e, name), crc, e->crc32, (unsigned long long)e->size,
             (unsigned long long)e->offset);
    return clb_err_place(err, v->r->path, name, e->offset);
}

static bool all_zero(struct verify *v, uint64_t from, uint64_t to, struct clb_err *err)
{
    for (uint64_t at = from; at < to;) {
        size_t n = to - at < CHUNK ? (size_t)(to - at) : CHUNK;
        const uint8_t *p = chunk(v, at, n, err);
        if (!p)
            return false;
        for (size_t i = 0; i < n; i++)
            if (p[i]) {
                clb_fail(err, CLB_BAD_INPUT,
                         "%s: byte %llu between two blocks is %u, but must be zero", v->r->path,
                         (unsigned long long)(at + i), p[i]);
                return clb_err_place(err, v->r->path, "padding", at + i);
            }
        at += n;
    }
    return true;
}

static void report(struct verify *v, const char *what, uint64_t offset, uint64_t size, bool ok,
                   const struct clb_err *err)
{
    if (!ok && v->ok)
        *v->err = *err;
    v->ok = v->ok && ok;
    if (v->each)
        v->each(v->arg, what, offset, size, ok);
}

static void verify_extents(struct verify *v, const struct clb_extent *e, size_t n)
{
    uint64_t end = (uint64_t)((const uint8_t *)v->r->json.p - v->r->data);
    char name[96];

    /* The header was checked when it was opened, its padding of spaces included. */
    end = (end + v->r->json.n + CLB_PAGE - 1) / CLB_PAGE * CLB_PAGE;
    for (size_t i = 0; i <= n; i++) {
        uint64_t next = i < n ? e[i].offset : v->r->size;
        struct clb_err err;

        if (end < next && !all_zero(v, end, next, &err))
            report(v, "padding", end, next - end, false, &err);
        if (i == n)
            break;
        bool ok = same_crc(v, &e[i], &err);
        report(v, clb_extent_name(v->r, &e[i], name), e[i].offset, e[i].size, ok, &err);
        end = e[i].offset + e[i].size;
    }
}

bool clb_reader_verify(const struct clb_reader *r, clb_verify_fn *each, void *arg,
                       struct clb_err *err)
{
    struct verify v = { .r = r, .each = each, .arg = arg, .err = err, .ok = true };
    struct clb_extent *e;
    size_t n;

    if (!clb_extents_new(r, &e, &n, err))
        return false;
    if (r->map.size && !(v.buffer = clb_new(CHUNK, 1, err))) {
        clb_free(e);
        return false;
    }
    verify_extents(&v, e, n);
    clb_free(v.buffer);
    clb_free(e);
    return v.ok;
}
