#include <errno.h>
#include <sys/random.h>
#include <time.h>

#include "cmd/colibri-serve/serve.h"

uint64_t serve_random_seed(void)
{
    struct timespec now;
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, 0) == sizeof seed)
        return seed;
    clock_gettime(CLOCK_MONOTONIC, &now); /* a system without it: at least not always the same */
    return (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec << 20;
}

void serve_random_id(char id[static SERVE_ID + 1])
{
    for (int i = 0; i < SERVE_ID;) {
        uint64_t bits = serve_random_seed();
        for (int k = 0; k < 16 && i < SERVE_ID; k++, bits >>= 4)
            id[i++] = "0123456789abcdef"[bits & 15];
    }
    id[SERVE_ID] = '\0';
}
