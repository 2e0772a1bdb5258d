#include "lib/import/quant_config.h"

#include <string.h>

/* The key is absent, or its text is one of words[n]. */
static bool one_of(struct clb_settings *s, const char *key, const char *const *words, int n,
                   char text[static 64], struct clb_err *err)
{
    if (!clb_setting_text(s, key, text, 64, err))
        return false;
    for (int i = 0; i < n; i++)
        if (!text[0] || !strcmp(text, words[i]))
            return true;
    return clb_setting_fail(s, clb_setting_find(s, key), err, "is '%s', which is not known", text);
}

/* Only what says how weights are stored matters: activations are not quantised as the publisher
 * would. */
static bool read_fp8(struct clb_quant *q, struct clb_settings *s, struct clb_err *err)
{
    static const char *const schemes[] = { "dynamic" };
    static const char *const formats[] = { "e4m3", "float8_e4m3fn", "float8_e4m3" };
    static const char *const scales[] = { "ue8m0", "float" };
    uint32_t block[2] = { 128, 128 }, n = 2;
    char scheme[64] = "", format[64] = "", scale[64] = "";

    if (!one_of(s, "activation_scheme", schemes, 1, scheme, err) ||
        !one_of(s, "fmt", formats, 3, format, err) ||
        !one_of(s, "scale_fmt", scales, 2, scale, err) ||
        !clb_setting_list(s, "weight_block_size", 1 << 24, block, 2, &n, err))
        return false;
    if (n != 2 || !block[0] || !block[1])
        return clb_setting_fail(s, clb_setting_find(s, "weight_block_size"), err,
                                "two numbers of 1 or more are expected");
    q->method = CLB_QUANT_FP8;
    q->block_rows = block[0];
    q->block_cols = block[1];
    return true;
}

static bool read_method(struct clb_quant *q, struct clb_settings *s, struct clb_err *err)
{
    char method[64] = "";

    if (!clb_setting_text(s, "quant_method", method, sizeof method, err))
        return false;
    if (!method[0])
        return clb_setting_missing(s, "quant_method", err);
    /* Which modules stay as they are is seen at their tensors. */
    clb_setting_no_effect(s, "modules_to_not_convert");
    clb_setting_no_effect(s, "ignored_layers");
    if (!strcmp(method, "fp8"))
        return read_fp8(q, s, err);
    if (strcmp(method, "mxfp4") != 0)
        return clb_setting_fail(s, clb_setting_find(s, "quant_method"), err,
                                "'%s' is not known; known are fp8 and mxfp4", method);
    q->method = CLB_QUANT_MXFP4;
    return true;
}

bool clb_quant_read(struct clb_quant *q, struct clb_settings *config, struct clb_ignore *ignore,
                    uint32_t n_ignore, struct clb_problems *problems, struct clb_err *err)
{
    struct clb_settings s = { 0 };
    bool ok = clb_settings_nested(&s, config, "quantization_config", err);

    *q = (struct clb_quant){ .method = CLB_QUANT_NONE };
    if (ok && s.n) {
        ok = read_method(q, &s, err);
        if (ok)
            clb_settings_check_rest(&s, ignore, n_ignore, problems);
    }
    clb_settings_adopt(config, "quantization_config", &s);
    clb_settings_free(&s);
    return ok;
}
