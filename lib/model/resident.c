#include "lib/model/resident.h"

#include <inttypes.h>

#include "lib/model/available.h"

/* Where dense tensors lie in the file, and among them the embedding. */
struct dense {
    uint64_t first, end;
    uint64_t rows, behind_rows; /* both `end` when it is not there */
};

static struct dense find_dense(const struct clb_reader *r)
{
    struct dense d = { .first = r->size };

    for (uint32_t i = 0; i < r->n_tensors; i++) {
        uint64_t at = r->tensors[i].offset, behind = at + r->tensors[i].size;

        d.first = at < d.first ? at : d.first;
        d.end = behind > d.end ? behind : d.end;
    }
    d.rows = d.behind_rows = d.end;
    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (r->tensors[i].spec.role == CLB_EMBED) {
            d.rows = r->tensors[i].offset;
            d.behind_rows = d.rows + r->tensors[i].size;
        }
    return d;
}

/* The embedding is looked up by row, all else is read in full; the expert store speaks for experts.
 * Under a limit nothing beside the dense tensors may be mapped along. False: the system cannot read
 * in huge pages, or there is nothing large. */
static bool tell_use(const struct clb_model *m, const struct dense *d)
{
    const struct clb_mapfile *map = &m->reader.map;
    enum clb_map_use use = m->limit > 0 ? CLB_MAP_STREAM_WITHIN : CLB_MAP_STREAM;

    bool before = clb_mapfile_use(map, d->first, d->rows - d->first, use);
    bool behind = clb_mapfile_use(map, d->behind_rows, d->end - d->behind_rows, use);

    clb_mapfile_use(map, d->rows, d->behind_rows - d->rows, CLB_MAP_LOOKUP);
    return before || behind;
}

bool clb_resident_begin(struct clb_model *m, struct clb_err *err)
{
    const struct clb_reader *r = &m->reader;
    struct dense d = find_dense(r);
    bool cache = clb_model_has_cache(m);
    uint64_t from = cache ? d.first : 0, to = cache ? d.end : r->size;

    m->available = clb_memory_available("");
    if (r->map.size == 0)
        return true;
    m->is_large = m->available && r->size > m->available;
    if (!tell_use(m, &d))
        return true;
    if (!m->is_large && !clb_ahead_is_cold(&r->map, from, to - from))
        return true;
    if (!clb_ahead_new(&m->ahead, &r->map, &m->residence.numa, err))
        return false;
    clb_ahead_want(m->ahead, d.first, d.rows - d.first);
    clb_ahead_want(m->ahead, d.behind_rows, d.end - d.behind_rows);
    if (m->residence.lock)
        clb_ahead_want(m->ahead, from, to - from);
    return true;
}

bool clb_resident_lock(struct clb_model *m, struct clb_err *err)
{
    const struct clb_reader *r = &m->reader;
    struct dense d = find_dense(r);
    bool cache = clb_model_has_cache(m);
    uint64_t from = cache ? d.first : 0, bytes = (cache ? d.end : r->size) - from;

    if (!m->residence.lock)
        return true;
    if (m->available && bytes > m->available) {
        clb_fail(err, CLB_NO_SPACE,
                 "%s: %" PRIu64 " bytes of weights are to be locked in memory, but %" PRIu64
                 " are available",
                 r->path, bytes, m->available);
        return clb_err_place(err, r->path, NULL, CLB_NO_OFFSET);
    }
    if (!clb_pages_lock(r->data + from, bytes, &m->residence, "weights", err)) {
        clb_err_place(err, r->path, NULL, CLB_NO_OFFSET);
        return clb_fail_in(err, "%s", r->path);
    }
    m->locked = r->data + from;
    m->locked_bytes = bytes;
    return true;
}

void clb_resident_rows(const struct clb_model *m, const int32_t *id, uint32_t n)
{
    const struct clb_weights *w = &m->weights;
    uint64_t row = clb_rows_bytes(w->embed_dtype, 1, w->arch->hidden_size);
    uint64_t at = (uint64_t)((const uint8_t *)w->embed - m->reader.data);

    for (uint32_t i = 0; m->ahead && i < n; i++)
        clb_mapfile_want(&m->reader.map, at + (uint64_t)id[i] * row, row);
}

void clb_resident_end(struct clb_model *m)
{
    clb_ahead_free(m->ahead);
    clb_pages_unlock(m->locked, m->locked_bytes, &m->residence);
}
