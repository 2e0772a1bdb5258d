#include "lib/base/human.h"

#include <stdio.h>

const char *clb_human_bytes(char buf[static CLB_HUMAN], uint64_t bytes)
{
    static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double v = (double)bytes;
    unsigned u = 0;

    if (bytes < 1000) {
        snprintf(buf, CLB_HUMAN, "%u B", (unsigned)bytes);
        return buf;
    }
    for (; v >= 999.5 && u < 6; u++)
        v /= 1000;
    snprintf(buf, CLB_HUMAN, "%.*f %s", v < 99.95, v, unit[u]);
    return buf;
}
