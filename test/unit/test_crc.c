#include "lib/base/crc.h"

#include "test/check.h"

static uint8_t bytes[5000];

static void fill(void)
{
    uint64_t seed = 7;

    for (size_t i = 0; i < sizeof bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

/* The definition, bit by bit. */
static uint32_t slow(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void the_value_that_everybody_knows(void)
{
    CHECK_EQ(clb_crc32(0, "123456789", 9), 0xcbf43926u);
    CHECK_EQ(clb_crc32(0, "", 0), 0);
    CHECK_EQ(clb_crc32(17, "", 0), 17);
}

static void every_length_at_every_alignment(void)
{
    for (size_t n = 0; n < 400; n++)
        for (size_t at = 0; at < 17; at += 1 + at / 4)
            CHECK_EQ(clb_crc32((uint32_t)n * 2654435761u, bytes + at, n),
                     slow((uint32_t)n * 2654435761u, bytes + at, n));
    CHECK_EQ(clb_crc32(0, bytes, sizeof bytes), slow(0, bytes, sizeof bytes));
}

static void pieces_give_the_whole(void)
{
    uint32_t all = slow(0, bytes, sizeof bytes);

    for (size_t cut = 0; cut <= sizeof bytes; cut += 61) {
        uint32_t a = clb_crc32(0, bytes, cut), b = clb_crc32(0, bytes + cut, sizeof bytes - cut);

        CHECK_EQ(clb_crc32(a, bytes + cut, sizeof bytes - cut), all);
        CHECK_EQ(clb_crc32_combine(a, b, sizeof bytes - cut), all);
    }
}

int main(void)
{
    fill();
    TEST(the_value_that_everybody_knows);
    TEST(every_length_at_every_alignment);
    TEST(pieces_give_the_whole);
    return test_result();
}
