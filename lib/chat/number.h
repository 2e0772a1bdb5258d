/* number.h - numbers as text, the way Python writes and reads them; neither locale nor rounding
 * mode matter. */
#ifndef CLB_CHAT_NUMBER_H
#define CLB_CHAT_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLB_NUMBER_TEXT = 352 }; /* bytes: the longest, "%.20f" of the largest double */

/* Decimal text that was checked already: the nearest double. */
double clb_number_read(const char *s, size_t n);
/* Like Python's float(s) of text without white space around: digits with underscores, a point, an
 * exponent, inf and nan. */
bool clb_float_read(const char *s, size_t n, double *out);
/* Like Python's int(s). False: it is none, or beyond 64 bits. */
bool clb_integer_read(const char *s, size_t n, int64_t *out);
/* repr(float): the shortest text that reads back as the same number. */
void clb_number_repr(char out[static CLB_NUMBER_TEXT], double v);
/* "%.{digits}f", digits 0 to 20. */
void clb_number_fixed(char out[static CLB_NUMBER_TEXT], double v, int digits);

#endif
