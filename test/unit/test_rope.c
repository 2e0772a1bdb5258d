/* Inverse frequencies against values that numpy computed in float32 with the formulas of the
 * reference. */
#include <math.h>

#include "lib/import/rope.h"
#include "test/check.h"

static struct clb_arch arch;
static float inv_freq[CLB_MAX_ROPE / 2], inv_freq_long[CLB_MAX_ROPE / 2];
static struct clb_problems problems;
static struct clb_err err;

static bool read_part(const char *json, uint32_t dim, uint32_t max_positions, bool partial,
                      uint32_t rope_dim)
{
    struct clb_settings config = { 0 };
    struct clb_rope_source from = { &config, 1e4, partial, false, NULL, 0, 0 };

    clb_problems_free(&problems);
    arch = (struct clb_arch){ .head_dim = dim, .max_positions = max_positions,
                              .rope_dim = rope_dim };
    bool ok = clb_settings_read(&config, json, strlen(json), "config.json", &err) &&
              clb_rope_read(&from, &arch, inv_freq, inv_freq_long, &problems, &err) &&
              clb_problems_none(&problems, "config.json", &err);
    clb_settings_free(&config);
    clb_problems_free(&problems);
    return ok;
}

static bool read_rope(const char *json, uint32_t dim, uint32_t max_positions)
{
    return read_part(json, dim, max_positions, false, 0);
}

static void expect(const float *want, uint32_t n, double scale)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(inv_freq[i] / want[i] - 1) < 4e-7f))
            CHECK_EQ(i, -1);
    CHECK(fabs((double)(arch.rope_scale > 0 ? arch.rope_scale : 1) / scale - 1) < 1e-6);
    CHECK_EQ(arch.rope_dim, 2 * n);
}

static void plain_and_linear(void)
{
    static const float plain[] = { 1,
                                   0.316227764f,
                                   0.100000001f,
                                   0.0316227786f,
                                   0.00999999978f,
                                   0.00316227786f,
                                   0.00100000005f,
                                   0.000316227786f };
    static const float linear[] = { 0.333333343f,    0.0646409169f,   0.0125353439f,
                                    0.00243088836f,  0.000471404492f, 9.14160628e-05f,
                                    1.77276524e-05f, 3.43779516e-06f };

    CHECK(read_rope("{\"rope_theta\":10000.0,\"rope_scaling\":null}", 16, 4096));
    expect(plain, 8, 1);
    CHECK(read_rope("{}", 16, 4096)); /* the family's default */
    expect(plain, 8, 1);
    CHECK(read_rope("{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}", 16,
                    4096));
    expect(plain, 8, 1);
    CHECK(read_rope("{\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":3.0}}",
                    16, 4096));
    expect(linear, 8, 1);
}

static void yarn(void)
{
    static const float simple[] = { 1,
                                    0.111142464f,
                                    0.00790569466f,
                                    0.00140585331f,
                                    0.000250000012f,
                                    4.44569851e-05f,
                                    7.90569356e-06f,
                                    1.40585337e-06f };
    static const float mscale[] = { 1,
                                    0.316227764f,
                                    0.100000001f,
                                    0.0239147246f,
                                    0.00512499968f,
                                    0.000849862176f,
                                    2.49999994e-05f,
                                    7.90569447e-06f };
    static const float whole[] = { 1,
                                   0.225418001f,
                                   0.0508132726f,
                                   0.00679495931f,
                                   0.000456483918f,
                                   1.8188337e-05f,
                                   4.09997847e-06f,
                                   9.24208962e-07f };
    static const float given[] = { 1,
                                   0.197642356f,
                                   0.0250000004f,
                                   0.00790569466f,
                                   0.00249999994f,
                                   0.000790569466f,
                                   0.000250000012f,
                                   7.90569466e-05f };

    CHECK(read_rope("{\"rope_theta\":1e6,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                    "\"original_max_position_embeddings\":64}}",
                    16, 256));
    expect(simple, 8, 1.13862944);
    CHECK(read_rope("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_"
                    "all_dim\":0.707,"
                    "\"beta_fast\":32,\"beta_slow\":1,\"original_max_position_embeddings\":4096}}",
                    16, 163840));
    expect(mscale, 8, 1.0857264);
    CHECK(read_rope("{\"rope_parameters\":{\"rope_theta\":150000,\"rope_type\":\"yarn\",\"factor\":"
                    "32,\"truncate\":false,"
                    "\"original_max_position_embeddings\":4096}}",
                    16, 131072));
    expect(whole, 8, 1.34657359);
    CHECK(read_rope("{\"original_max_position_embeddings\":64,\"rope_scaling\":{\"rope_type\":"
                    "\"yarn\",\"factor\":null,"
                    "\"attention_factor\":1.25,\"beta_fast\":8,\"beta_slow\":2}}",
                    16, 256));
    expect(given, 8, 1.25);
}

static void llama3(void)
{
    static const float want[] = { 1,
                                  0.440366626f,
                                  0.193922758f,
                                  0.0853971019f,
                                  0.0376060307f,
                                  0.0165604409f,
                                  0.00729266508f,
                                  0.00321144611f,
                                  0.000524846022f,
                                  7.78465546e-05f,
                                  3.42810235e-05f,
                                  1.50962178e-05f,
                                  6.64786967e-06f,
                                  2.92749974e-06f,
                                  1.28917316e-06f,
                                  5.6770881e-07f };

    CHECK(read_rope("{\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":"
                    "8,\"low_freq_factor\":1,"
                    "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
                    32, 131072));
    expect(want, 16, 1);
}

/* Up to the model's own length NTK scaling by length does nothing; alpha scales the base:
 * 10000 * 16 ^ (4 / 2). */
static void dynamic(void)
{
    static const float plain[] = { 1, 0.01f }, scaled[] = { 1, 0.000625f };

    CHECK(read_rope("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", 4, 64));
    expect(plain, 2, 1);
    CHECK(read_rope("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1,\"alpha\":16}}", 4, 64));
    expect(scaled, 2, 1);
    CHECK_EQ(arch.rope_long_from, 0);
}

/* Without factors of their own cos and sin grow by sqrt(1 + ln(64 / 16) / ln 16) = sqrt(1.5). */
static void longrope(void)
{
    static const float near[] = { 1, 0.005f };

    CHECK(read_rope(
        "{\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"longrope\","
        "\"short_factor\":[1,2],\"long_factor\":[4,8]}}",
        4, 64));
    expect(near, 2, sqrt(1.5));
    CHECK_EQ(arch.rope_long_from, 16);
    CHECK(fabsf(arch.rope_scale_long - sqrtf(1.5f)) < 1e-6f);
    CHECK(inv_freq_long[0] == 0.25f && fabsf(inv_freq_long[1] / 0.00125f - 1) < 1e-6f);
    CHECK(read_rope(
        "{\"rope_scaling\":{\"type\":\"longrope\",\"original_max_position_embeddings\":16,"
        "\"short_factor\":[1,2],\"long_factor\":[4,8],\"short_mscale\":1.25,"
        "\"long_mscale\":1.5}}",
        4, 64));
    expect(near, 2, 1.25);
    CHECK(arch.rope_scale_long == 1.5f);
}

static void refuses_what_it_does_not_know(void)
{
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"hyper\"}}", 16, 64));
    CHECK_HAS(err.text, "'hyper'");
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2]}}", 4,
                     64));
    CHECK_HAS(err.text, "long_factor' is missing");
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2],"
                     "\"long_factor\":[1,2,3]}}",
                     4, 64));
    CHECK_HAS(err.text, "has 3 factors, but 2 are expected");
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,0]}}", 4,
                     64));
    CHECK_HAS(err.text, "entry 2: numbers");
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"beta_fast\":32}}",
                     16, 64));
    CHECK_HAS(err.text, "'rope_scaling.beta_fast' is 32"); /* means something, but not here */
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"linear\"}}", 16, 64));
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", 16, 64));
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":3}}", 16, 64));
    CHECK(!read_rope("{\"rope_scaling\":[1]}", 16, 64));
    CHECK(!read_rope("{\"rope_theta\":-1}", 16, 64));
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"dtype\":32}}", 16,
                     64));
    CHECK_HAS(err.text, "'rope_scaling.dtype' is 32"); /* irrelevant only at the top level */
    CHECK(!read_rope("{}", 1024, 64));
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK(
        !read_rope("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                   "\"high_freq_factor\":4}}",
                   16, 64));
}

static void refuses_contradictions(void)
{
    CHECK(read_rope(
        "{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":3}}", 16, 64));
    CHECK(!read_rope("{\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"yarn\",\"factor\":3}}",
                     16, 64));
    CHECK_HAS(err.text,
              "'rope_scaling.type': is \"yarn\", but 'rope_scaling.rope_type' is \"linear\"");
    CHECK(read_rope("{\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":1e4}}", 16, 64));
    CHECK(!read_rope("{\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":1e6}}", 16, 64));
    CHECK_HAS(err.text, "'rope_parameters.rope_theta': is 1e6, but 'rope_theta' outside is 10000");
    CHECK(!read_rope("{\"rope_theta\":10001,\"rope_scaling\":{\"rope_theta\":1e4}}", 16, 64));
    CHECK(!read_rope("{\"original_max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"yarn\","
                     "\"original_max_position_embeddings\":64}}",
                     16, 64));
    CHECK_HAS(err.text, "is 64, but 'original_max_position_embeddings' outside is 32");
}

/* As a share of a head, as a width (MiniMax), or both, if they agree. */
static void a_part_of_a_head(void)
{
    CHECK(read_part("{\"partial_rotary_factor\":0.5}", 16, 64, true, 0));
    CHECK_EQ(arch.rope_dim, 8);
    CHECK(read_part("{}", 16, 64, true, 8));
    CHECK_EQ(arch.rope_dim, 8);
    CHECK(read_part("{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", 16, 64, true, 8));
    CHECK(!read_part("{\"partial_rotary_factor\":0.25}", 16, 64, true, 8));
    CHECK_HAS(err.text, "'partial_rotary_factor' 0.25 rotates 4 of 16 dimensions, but 8 is given");
    CHECK(!read_part("{\"partial_rotary_factor\":0.5,\"rope_parameters\":"
                     "{\"partial_rotary_factor\":0.25}}",
                     16, 64, true, 0));
    CHECK(!read_part("{\"partial_rotary_factor\":0.1}", 16, 64, true, 0));
    CHECK_HAS(err.text, "1 dimensions of a head of 16");
}

int main(void)
{
    TEST(a_part_of_a_head);
    TEST(plain_and_linear);
    TEST(yarn);
    TEST(llama3);
    TEST(dynamic);
    TEST(longrope);
    TEST(refuses_what_it_does_not_know);
    TEST(refuses_contradictions);
    return test_result();
}
