#include "lib/sample/rng.h"

#include <string.h>

void clb_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x[4], k0 = key[0], k1 = key[1];

    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        uint32_t y0 = (uint32_t)(b >> 32) ^ x[1] ^ k0, y2 = (uint32_t)(a >> 32) ^ x[3] ^ k1;

        x[0] = y0;
        x[1] = (uint32_t)b;
        x[2] = y2;
        x[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, x, sizeof x);
}

uint64_t clb_rng_at(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = { (uint32_t)position, (uint32_t)(position >> 32), 0, 0 };
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    uint32_t out[4];

    clb_philox4x32(counter, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}
