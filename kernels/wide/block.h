/* block.h - words for block kernels: functions that exist once per number of rows, T = 1 ... 6, so
 * that every bound is a literal and sums stay in registers. They are named <kind>_<R>x<T> and made by
 * each_t.inc from one body. */
#ifndef CLB_KERNELS_WIDE_BLOCK_H
#define CLB_KERNELS_WIDE_BLOCK_H

enum { MAX_T = 6 };

#define BLOCK_NAME_(kind, r, t) kind##_##r##x##t
#define BLOCK_NAME(kind, r, t)  BLOCK_NAME_(kind, r, t)
#define BLOCK_SERIES(kind, r)                                                              \
    {                                                                                      \
        NULL, kind##_##r##x1, kind##_##r##x2, kind##_##r##x3, kind##_##r##x4,              \
            kind##_##r##x5, kind##_##r##x6                                                 \
    }
#define UNROLL _Pragma("GCC unroll 16")

#endif
