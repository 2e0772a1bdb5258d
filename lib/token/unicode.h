/* unicode.h - classes, normalisation and lower case of characters.
 *
 * The data is our own (tools/unicode.py writes unicode_tables.c) and pinned to the versions that
 * the reference uses, so that text is cut in the same places whatever is installed. A code point
 * given to these functions is below 0x110000. */
#ifndef CLB_TOKEN_UNICODE_H
#define CLB_TOKEN_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/str.h"
#include "lib/token/unicode_tables.h"

/* General categories, in the order of tools/unicode.py; the low five bits of clb_uc(). */
enum clb_uc_category { /* clang-format off */
    CLB_LU, CLB_LL, CLB_LT, CLB_LM, CLB_LO, CLB_MN, CLB_MC, CLB_ME, CLB_ND, CLB_NL,
    CLB_NO, CLB_PC, CLB_PD, CLB_PS, CLB_PE, CLB_PI, CLB_PF, CLB_PO, CLB_SM, CLB_SC,
    CLB_SK, CLB_SO, CLB_ZS, CLB_ZL, CLB_ZP, CLB_CC, CLB_CF, CLB_CS, CLB_CO, CLB_CN,
}; /* clang-format on */
/* The other bits of clb_uc(). */
#define CLB_UC_SPACE 0x20u /* \s: White_Space */
#define CLB_UC_WORD  0x40u /* \w: Alphabetic, marks, decimal digits, connectors, joiners */
#define CLB_UC_HAN   0x80u /* script Han */

/* Sets of categories: bit c is category c. */
#define CLB_SET(c)       (1u << (c))
#define CLB_SET_TO(a, b) ((CLB_SET(b) << 1) - CLB_SET(a)) /* a..b */
#define CLB_SET_L        CLB_SET_TO(CLB_LU, CLB_LO)
#define CLB_SET_M        CLB_SET_TO(CLB_MN, CLB_ME)
#define CLB_SET_N        CLB_SET_TO(CLB_ND, CLB_NO)
#define CLB_SET_P        CLB_SET_TO(CLB_PC, CLB_PO)
#define CLB_SET_S        CLB_SET_TO(CLB_SM, CLB_SO)
#define CLB_SET_Z        CLB_SET_TO(CLB_ZS, CLB_ZP)
#define CLB_SET_C        CLB_SET_TO(CLB_CC, CLB_CN)

/* Category and the three bits of a code point. */
static inline uint32_t clb_uc(uint32_t c)
{
    uint32_t block = clb_uc_class_mid[(uint32_t)clb_uc_class_top[c >> 9] << 5 | (c >> 4 & 31)];

    return clb_uc_class_block[block << 4 | (c & 15)];
}
static inline bool clb_uc_in(uint32_t c, uint32_t set)
{
    return set >> (clb_uc(c) & 31) & 1;
}
bool clb_uc_is_numeric(
    uint32_t c); /* what Digits splits off: numbers, and 13 younger than the classes */

/* Appends the lower case of s, character by character without context. */
void clb_lower_case(struct clb_str s, struct clb_text *out);

enum clb_form { CLB_NFC, CLB_NFD, CLB_NFKC, CLB_NFKD };
/* s in that form already (for NFD and NFKD only ASCII is recognised)? */
bool clb_is_normal(struct clb_str s, enum clb_form form);
/* Appends s in that form. s is valid UTF-8. */
void clb_normalise(struct clb_str s, enum clb_form form, struct clb_text *out);

#endif
