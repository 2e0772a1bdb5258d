/* human.h - numbers in a form for people. */
#ifndef CLB_BASE_HUMAN_H
#define CLB_BASE_HUMAN_H

#include <stdint.h>

enum { CLB_HUMAN = 32 };
/* "1.2 GB": powers of 1000. Returns buf. */
const char *clb_human_bytes(char buf[static CLB_HUMAN], uint64_t bytes);

#endif
