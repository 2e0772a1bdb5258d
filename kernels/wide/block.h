/* block.h - words for block kernels: functions that exist once per number of rows, T = 1 ...
 * 6, so that every bound is a literal and sums stay in registers. They are named
 * <kind>_<R>x<T> and made by each_t.inc from one body. */
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
/* The series of two tiles, as long as TWO_UP_TO says. */
#define TWO_SERIES_0(kind)  { NULL }
#define TWO_SERIES_1(kind)  { NULL, kind##_2x1 }
#define TWO_SERIES_6(kind)  BLOCK_SERIES(kind, 2)
#define TWO_SERIES_(kind, n) TWO_SERIES_##n(kind)
#define TWO_SERIES__(kind, n) TWO_SERIES_(kind, n)
#define TWO_SERIES(kind) TWO_SERIES__(kind, TWO_UP_TO)
#define UNROLL _Pragma("GCC unroll 16")

#endif
