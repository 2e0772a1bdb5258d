#include "lib/base/crc.h"

#include <zlib.h>

uint32_t clb_crc32(uint32_t crc, const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(crc, bytes, n);
}

uint32_t clb_crc32_combine(uint32_t a, uint32_t b, uint64_t b_bytes)
{
    return (uint32_t)crc32_combine(a, b, (z_off_t)b_bytes);
}
