#include "lib/base/crc.h"

#include <zlib.h>

uint32_t clb_crc32(uint32_t crc, const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(crc, bytes, n);
}
