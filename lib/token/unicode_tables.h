/* unicode_tables.h - the arrays that tools/unicode.py writes; read through unicode.h. */
#ifndef CLB_TOKEN_UNICODE_TABLES_H
#define CLB_TOKEN_UNICODE_TABLES_H

#include <stdint.h>

enum {
    CLB_UC_CANONICAL = 2060,
    CLB_UC_COMPAT = 3678,
    CLB_UC_PAIRS = 940,
    CLB_UC_LOWER = 185,
    CLB_UC_NUMERIC = 13
};

/* Tables in three stages: blocks of 16 code points, groups of blocks, and which group where. */
extern const uint8_t clb_uc_class_top[2176];    /* of every 512 code points */
extern const uint16_t clb_uc_class_mid[3392];   /* [group][32] blocks */
extern const uint8_t clb_uc_class_block[11520]; /* [block][16] */
extern const uint32_t clb_uc_numeric_extra[CLB_UC_NUMERIC];

/* Index into clb_uc_ccc, | 0x40: a text in NFC may change at it, | 0x80: a text in NFKC may. */
extern const uint8_t clb_uc_norm_top[1088];   /* of every 1024 code points */
extern const uint8_t clb_uc_norm_mid[2048];   /* [group][64] blocks */
extern const uint8_t clb_uc_norm_block[3840]; /* [block][16] */
extern const uint8_t clb_uc_ccc[55];

/* Sorted code points, low halves: those of plane p are [plane[p], plane[p + 1]). The full
 * decomposition of [i] is bytes[i] bytes of UTF-8 in the text; at[i / 16] is where that of the
 * first of 16 begins. */
extern const uint16_t clb_uc_canonical_plane[4], clb_uc_canonical[CLB_UC_CANONICAL];
extern const uint16_t clb_uc_canonical_at[CLB_UC_CANONICAL / 16 + 1];
extern const uint8_t clb_uc_canonical_bytes[CLB_UC_CANONICAL];
extern const uint8_t clb_uc_canonical_text[7861];
/* The same for compatibility, only where it differs from the canonical one. */
extern const uint16_t clb_uc_compat_plane[4], clb_uc_compat[CLB_UC_COMPAT];
extern const uint16_t clb_uc_compat_at[CLB_UC_COMPAT / 16 + 1];
extern const uint8_t clb_uc_compat_bytes[CLB_UC_COMPAT];
extern const uint8_t clb_uc_compat_text[10304];

/* First, second, composed, all of one plane; sorted. */
extern const uint16_t clb_uc_pairs_plane[4], clb_uc_pairs[CLB_UC_PAIRS][3];
/* first, first + step, ... (n of them): `add` makes them lower case. */
struct clb_uc_range {
    uint32_t first;
    int32_t add;
    uint8_t n, step;
};
extern const struct clb_uc_range clb_uc_lower[CLB_UC_LOWER]; /* sorted; U+0130 is not here */

#endif
