/* verify.c - every byte of the file against its checksum. Bytes that no checksum covers must be
 * zero, so a change anywhere is found: prefix and header when the file is opened, blocks and gaps
 * here. */
#include "lib/format/reader.h"

#include <pthread.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/format/layout.h"

enum { CHUNK = 1 << 20 };

struct verify {
    const struct clb_reader *r;
    const struct clb_extent *extent; /* [n] ascending */
    uint32_t n;
    uint64_t data_at;
    uint8_t *buffer; /* CHUNK bytes per thread; NULL when the file is in memory anyway */
    atomic_uint next;
    pthread_mutex_t lock; /* of all below */
    clb_verify_fn *each;
    void *arg;
    struct clb_err *err; /* the failure that comes first in the file */
    uint64_t err_at;     /* where that is; UINT64_MAX: none */
};

/* Reads explicitly, so that a file cut short meanwhile is an error and not a signal. */
static const uint8_t *chunk(struct verify *v, uint8_t *buffer, uint64_t at, size_t n,
                            struct clb_err *err)
{
    if (!v->buffer)
        return v->r->data + at;
    return clb_mapfile_read(&v->r->map, buffer, at, n, err) ? buffer : NULL;
}

static bool same_crc(struct verify *v, uint8_t *buffer, const struct clb_extent *e,
                     struct clb_err *err)
{
    char name[96];
    uint32_t crc = 0;

    for (uint64_t done = 0; done < e->size;) {
        size_t n = e->size - done < CHUNK ? (size_t)(e->size - done) : CHUNK;
        const uint8_t *p = chunk(v, buffer, e->offset + done, n, err);
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

static bool all_zero(struct verify *v, uint8_t *buffer, uint64_t from, uint64_t to,
                     struct clb_err *err)
{
    for (uint64_t at = from; at < to;) {
        size_t n = to - at < CHUNK ? (size_t)(to - at) : CHUNK;
        const uint8_t *p = chunk(v, buffer, at, n, err);
        if (!p)
            return false;
        for (size_t i = 0; i < n; i++)
            if (p[i]) {
                clb_fail(err, CLB_BAD_INPUT,
                         "%s: byte %llu lies between two blocks and is %u, but must be zero",
                         v->r->path, (unsigned long long)(at + i), p[i]);
                return clb_err_place(err, v->r->path, "padding", at + i);
            }
        at += n;
    }
    return true;
}

static void report(struct verify *v, const char *what, uint64_t offset, uint64_t size, bool ok,
                   const struct clb_err *err)
{
    pthread_mutex_lock(&v->lock);
    if (!ok && offset < v->err_at) {
        *v->err = *err;
        v->err_at = offset;
    }
    if (v->each)
        v->each(v->arg, what, offset, size, ok);
    pthread_mutex_unlock(&v->lock);
}

/* Item i is the gap before extent i, then the extent; the last item is the gap at the end. */
static void verify_item(struct verify *v, uint8_t *buffer, uint32_t i)
{
    const struct clb_extent *e = &v->extent[i];
    uint64_t gap = i ? e[-1].offset + e[-1].size : v->data_at;
    uint64_t next = i < v->n ? e->offset : v->r->size;
    struct clb_err err;
    char name[96];

    if (gap < next && !all_zero(v, buffer, gap, next, &err))
        report(v, "padding", gap, next - gap, false, &err);
    if (i == v->n)
        return;
    bool ok = same_crc(v, buffer, e, &err);
    report(v, clb_extent_name(v->r, e, name), e->offset, e->size, ok, &err);
}

static void verify_thread(void *arg, unsigned thread, unsigned n_thread)
{
    struct verify *v = arg;
    uint32_t i;

    (void)n_thread;
    while (clb_take(&v->next, v->n + 1, &i))
        verify_item(v, v->buffer ? v->buffer + (size_t)thread * CHUNK : NULL, i);
}

bool clb_reader_verify(const struct clb_reader *r, clb_verify_fn *each, void *arg,
                       struct clb_err *err)
{
    struct verify v = { .r = r, .each = each, .arg = arg, .err = err, .err_at = UINT64_MAX };
    unsigned n_thread = clb_pool_default_threads(NULL, 0);
    struct clb_extent *extent = NULL;
    struct clb_pool *pool = NULL;
    size_t n;
    bool ok = false;

    pthread_mutex_init(&v.lock, NULL);
    if (!clb_extents_new(r, &extent, &n, err) || !clb_pool_new(&pool, n_thread, err))
        goto done;
    if (r->map.size && !(v.buffer = clb_new(n_thread, CHUNK, err)))
        goto done;
    v.extent = extent;
    v.n = (uint32_t)n;
    /* The header was checked when it was opened, its padding of spaces included. */
    memcpy(&v.data_at, r->data + 16, sizeof v.data_at);
    v.data_at += CLB_PREFIX_BYTES;
    clb_pool_run(pool, verify_thread, &v);
    ok = v.err_at == UINT64_MAX;
done:
    clb_pool_free(pool);
    clb_free(v.buffer);
    clb_free(extent);
    pthread_mutex_destroy(&v.lock);
    return ok;
}
