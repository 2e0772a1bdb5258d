/* smaps.h - what the system says about a mapping of this process. */
#ifndef TEST_UNIT_SMAPS_H
#define TEST_UNIT_SMAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The rest of a line about the mapping that holds `at`; "": there is none. */
static inline const char *smaps(const void *at, const char *key)
{
    static char line[512];
    FILE *f = fopen("/proc/self/smaps", "r");
    const char *found = "";
    bool here = false;

    while (f && !*found && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = from <= (uintptr_t)at && (uintptr_t)at < to;
        else if (here && !strncmp(line, key, strlen(key)))
            found = line + strlen(key);
    }
    if (f)
        fclose(f);
    return found;
}

#endif
