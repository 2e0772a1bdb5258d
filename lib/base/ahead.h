/* ahead.h - reads parts of a mapped file that is not in memory ahead of those who compute on it.
 *
 * The system has a call for that (MADV_WILLNEED), but fills its cache with single pages, which cost
 * an entry in the page table each, and a fault for every few of them, now and in every later run. A
 * page fault in a mapping that wants huge pages reads 2 MB into one, but keeps its thread waiting.
 * So a few threads that do nothing else fault first. */
#ifndef CLB_BASE_AHEAD_H
#define CLB_BASE_AHEAD_H

#include <stdint.h>

#include "lib/base/mapfile.h"
#include "lib/base/numa.h"

struct clb_ahead;

/* Whether parts of [at, at + n) seem to be missing in memory; looks at a sample. The system tells
 * only who owns the file or may write it; for others a byte here and there is read, until one had
 * to come from the disk. */
bool clb_ahead_is_cold(const struct clb_mapfile *m, uint64_t at, uint64_t n);

/* `m` and `numa` (where pages go; NULL: anywhere) are borrowed. */
bool clb_ahead_new(struct clb_ahead **out, const struct clb_mapfile *m,
                   const struct clb_numa *numa, struct clb_err *err);
void clb_ahead_free(struct clb_ahead *a); /* NULL is fine; what was not begun is not read */
/* Queues [at, at + n) and returns at once; when very much is queued already, forgets it. Thread
 * safe. NULL is a no-op. */
void clb_ahead_want(struct clb_ahead *a, uint64_t at, uint64_t n);
/* Waits until nothing is queued or being read. */
void clb_ahead_wait(struct clb_ahead *a);

#endif
