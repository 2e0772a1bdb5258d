/* crc.h - zlib's crc32 over buffers of any size. */
#ifndef CLB_BASE_CRC_H
#define CLB_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Continue from `crc` (0 to start). */
uint32_t clb_crc32(uint32_t crc, const void *bytes, size_t n);
/* Of a followed by b, from the checksums of both and the length of b. */
uint32_t clb_crc32_combine(uint32_t a, uint32_t b, uint64_t b_bytes);

#endif
