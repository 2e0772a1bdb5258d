#include "lib/import/rope.h"

#include <math.h>
#include <stdio.h>

#include "lib/base/fmath.h"

#define TWO_PI 6.28318530717958647692

struct rope {
    struct clb_settings *set; /* the object that has the parameters */
    const char *object;       /* its key */
    uint32_t dim;
    double theta;
    double max_positions, original; /* original_max_position_embeddings, or max_positions */
    float *inv_freq;                /* [dim / 2] out */
    double scale;                   /* on cos and sin, out */
    double score_scale;             /* on scores, out; 0: none */
    float *inv_freq_long;           /* longrope: beyond the original context, out */
    double scale_long;              /* 0: there are no such */
};

/* theta ^ (2i / dim), the exponent and the power rounded to f32. */
static float power(const struct rope *r, uint32_t i)
{
    return (float)clb_pow(r->theta, (double)((float)(2 * i) / (float)r->dim));
}

static bool plain(struct rope *r, struct clb_err *err)
{
    (void)err;
    for (uint32_t i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] = 1.0f / power(r, i);
    return true;
}

static bool positive(struct rope *r, const char *key, double *v, struct clb_err *err)
{
    *v = 0;
    return clb_setting_f64(r->set, key, 1e-6, 1e9, v, err) &&
           (*v > 0 || clb_setting_missing(r->set, key, err));
}

static bool linear(struct rope *r, struct clb_err *err)
{
    double factor;

    if (!positive(r, "factor", &factor, err) || !plain(r, err))
        return false;
    for (uint32_t i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] /= (float)factor;
    return true;
}

/* Long wavelengths are stretched by `factor`, short ones stay, those between are blended. */
static bool llama3(struct rope *r, struct clb_err *err)
{
    double factor, low, high;

    if (!positive(r, "factor", &factor, err) || !positive(r, "low_freq_factor", &low, err) ||
        !positive(r, "high_freq_factor", &high, err) || !plain(r, err))
        return false;
    if (!(high > low)) {
        clb_fail(err, CLB_BAD_INPUT, "%s: '%shigh_freq_factor' %g is not above low_freq_factor %g",
                 r->set->file, r->set->prefix, high, low);
        return clb_err_place(err, r->set->file, "high_freq_factor", CLB_NO_OFFSET);
    }
    for (uint32_t i = 0; i < r->dim / 2; i++) {
        float f = r->inv_freq[i], wave = (float)TWO_PI / f;
        float blend = ((float)r->original / wave - (float)low) / (float)(high - low);

        if (wave > (float)(r->original / low))
            r->inv_freq[i] = f / (float)factor;
        else if (!(wave < (float)(r->original / high)))
            r->inv_freq[i] = (1.0f - blend) * f / (float)factor + blend * f;
    }
    return true;
}

static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1.0 : 0.1 * m * clb_log(factor) + 1.0;
}

/* What multiplies cos and sin. */
static bool yarn_scale(struct rope *r, double factor, struct clb_err *err)
{
    double m = 0, all = 0, given = -1;

    if (!clb_setting_f64(r->set, "attention_factor", 1e-6, 1e6, &given, err) ||
        !clb_setting_f64(r->set, "mscale", 0, 1e6, &m, err) ||
        !clb_setting_f64(r->set, "mscale_all_dim", 0, 1e6, &all, err))
        return false;
    if (all > 0)
        r->score_scale = yarn_mscale(factor, all) * yarn_mscale(factor, all);
    if (given > 0)
        r->scale = given;
    else if (m > 0 && all > 0)
        r->scale = yarn_mscale(factor, m) / yarn_mscale(factor, all);
    else
        r->scale = yarn_mscale(factor, 1);
    return true;
}

/* The dimension that turns `rotations` times over the original context. */
static double yarn_dim(const struct rope *r, double rotations)
{
    return (double)r->dim * clb_log(r->original / (rotations * TWO_PI)) / (2 * clb_log(r->theta));
}

static double floor_of(double x)
{
    double n = rint(x);

    return n > x ? n - 1 : n;
}

static bool yarn(struct rope *r, struct clb_err *err)
{
    double factor = r->max_positions / r->original, fast = 0, slow = 0;
    bool truncate = true;

    if (!clb_setting_f64(r->set, "factor", 1e-6, 1e9, &factor, err) ||
        !clb_setting_f64(r->set, "beta_fast", 0, 1e6, &fast, err) ||
        !clb_setting_f64(r->set, "beta_slow", 0, 1e6, &slow, err) ||
        !clb_setting_bool(r->set, "truncate", &truncate, err) || !yarn_scale(r, factor, err))
        return false;

    double low = yarn_dim(r, fast > 0 ? fast : 32), high = yarn_dim(r, slow > 0 ? slow : 1);
    if (truncate) {
        low = floor_of(low);
        high = -floor_of(-high);
    }
    low = low > 0 ? low : 0;
    high = high < r->dim - 1 ? high : r->dim - 1;
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < r->dim / 2; i++) {
        float p = power(r, i), ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1.0f - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);

        r->inv_freq[i] = 1.0f / ((float)factor * p) * (1.0f - keep) + 1.0f / p * keep;
    }
    return true;
}

static bool divide(struct rope *r, const char *key, float *inv_freq, struct clb_err *err)
{
    double factor[CLB_MAX_ROPE / 2];
    uint32_t n = 0;

    if (!clb_setting_reals(r->set, key, 1e-6, 1e9, factor, CLB_MAX_ROPE / 2, &n, err))
        return false;
    if (!n)
        return clb_setting_missing(r->set, key, err);
    if (n != r->dim / 2)
        return clb_setting_fail(r->set, clb_setting_find(r->set, key), err,
                                "has %u factors, but %u are expected", n, r->dim / 2);
    for (uint32_t i = 0; i < n; i++)
        inv_freq[i] = 1.0f / ((float)factor[i] * power(r, i));
    return true;
}

/* LongRoPE (arXiv:2402.13753): every frequency has its own factor, one set for contexts up to the
 * original length and one for longer ones. */
static bool longrope(struct rope *r, struct clb_err *err)
{
    double factor = r->max_positions / r->original, near = 0, far = 0, given = 0;

    if (!divide(r, "short_factor", r->inv_freq, err) ||
        !divide(r, "long_factor", r->inv_freq_long, err) ||
        !clb_setting_f64(r->set, "factor", 1e-6, 1e9, &factor, err) ||
        !clb_setting_f64(r->set, "attention_factor", 1e-6, 1e6, &given, err) ||
        !clb_setting_f64(r->set, "short_mscale", 1e-6, 1e6, &near, err) ||
        !clb_setting_f64(r->set, "long_mscale", 1e-6, 1e6, &far, err))
        return false;
    double usual = given > 0 ? given
                   : factor > 1
                       ? sqrt(1 + clb_log(factor) / clb_log(r->original > 2 ? r->original : 2))
                       : 1;
    r->scale = near > 0 ? near : usual;
    r->scale_long = far > 0 ? far : usual;
    return true;
}

/* NTK scaling for the length at hand (which stays within max_position_embeddings, where it does
 * nothing); with alpha (Hunyuan) the base is scaled once and for all. */
static bool dynamic(struct rope *r, struct clb_err *err)
{
    static const char *const without_effect[] = { "factor", "beta_fast", "beta_slow", "mscale",
                                                  "mscale_all_dim" };
    double alpha = 0;

    for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++)
        clb_setting_no_effect(r->set, without_effect[i]);
    if (!clb_setting_f64(r->set, "alpha", 1e-6, 1e12, &alpha, err))
        return false;
    if (alpha > 0)
        r->theta *= clb_pow(alpha, (double)r->dim / ((double)r->dim - 2));
    return plain(r, err);
}

static const struct {
    const char *name;
    bool (*compute)(struct rope *r, struct clb_err *err);
} types[] = {
    { "default", plain }, { "linear", linear },     { "llama3", llama3 },
    { "yarn", yarn },     { "longrope", longrope }, { "dynamic", dynamic },
};

/* 'type' is the older spelling of 'rope_type'. */
static bool read_type(struct rope *r, char type[static 32], struct clb_err *err)
{
    const struct clb_setting *old = clb_setting_find(r->set, "type");
    char name[32] = "default";

    if (!clb_setting_text(r->set, "type", name, sizeof name, err))
        return false;
    memcpy(type, name, sizeof name);
    if (!clb_setting_text(r->set, "rope_type", type, sizeof name, err))
        return false;
    if (!old || !strcmp(name, type))
        return true;
    return clb_setting_fail(r->set, old, err, "is \"%s\", but '%srope_type' is \"%s\"", name,
                            r->set->prefix, type);
}

static bool compute(struct rope *r, struct clb_err *err)
{
    char type[32];

    if (!read_type(r, type, err))
        return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i].name))
            return types[i].compute(r, err);
    clb_fail(err, CLB_BAD_INPUT,
             "%s: '%srope_type' is '%s', which is not known; known are default, linear, "
             "llama3, yarn, longrope and dynamic",
             r->set->file, r->set->prefix, type);
    return clb_err_place(err, r->set->file, "rope_type", CLB_NO_OFFSET);
}

/* How many bytes of a value fit into a message. */
static int shown(const struct clb_setting *e)
{
    return e->raw.n < 32 ? (int)e->raw.n : 32;
}

/* A number that may stand in the object, outside it, or in both places alike. */
static bool read_either(struct rope *r, struct clb_settings *config, const char *key, double lo,
                        double hi, double *out, struct clb_err *err)
{
    double in = NAN, outside = NAN;

    if (!clb_setting_f64(config, key, lo, hi, &outside, err) ||
        !clb_setting_f64(r->set, key, lo, hi, &in, err))
        return false;
    if (in < outside || in > outside) {
        const struct clb_setting *a = clb_setting_find(r->set, key);
        const struct clb_setting *b = clb_setting_find(config, key);

        return clb_setting_fail(r->set, a, err, "is %.*s, but '%s' outside is %.*s", shown(a),
                                a->raw.p, key, shown(b), b->raw.p);
    }
    if (!isnan(in) || !isnan(outside))
        *out = isnan(in) ? outside : in;
    return true;
}

/* The object with the parameters, whichever of the two spellings is used. */
static bool open_object(struct rope *r, struct clb_settings *config, struct clb_err *err)
{
    struct clb_settings other = { 0 }, *set = r->set;
    bool ok = clb_settings_nested(set, config, "rope_scaling", err) &&
              clb_settings_nested(&other, config, "rope_parameters", err);

    if (ok && set->n && other.n) {
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: has 'rope_scaling' and 'rope_parameters'; one is expected", config->file);
        ok = clb_err_place(err, config->file, "rope_parameters", CLB_NO_OFFSET);
    } else if (ok && other.n) {
        clb_settings_free(set);
        *set = other;
        r->object = "rope_parameters";
        return true;
    }
    clb_settings_free(&other);
    return ok;
}

/* The part of a head that is rotated: an even number of dimensions. */
static bool read_dim(struct rope *r, const struct clb_rope_source *from, const struct clb_arch *a,
                     struct clb_err *err)
{
    double part = from->part;

    if (from->partial &&
        !read_either(r, from->config, "partial_rotary_factor", 1e-6, 1, &part, err))
        return false;
    r->dim = part > 0      ? (uint32_t)((double)a->head_dim * part)
             : a->rope_dim ? a->rope_dim
                           : a->head_dim;
    if (a->rope_dim && r->dim != a->rope_dim) {
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: 'partial_rotary_factor' %g rotates %u of %u dimensions, but %u is given too",
                 from->config->file, part, r->dim, a->head_dim, a->rope_dim);
        return clb_err_place(err, from->config->file, "partial_rotary_factor", CLB_NO_OFFSET);
    }
    if (r->dim >= 2 && r->dim % 2 == 0)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "%s: %u dimensions of a head of %u are to be rotated",
             from->config->file, r->dim, a->head_dim);
    return clb_err_place(err, from->config->file, "head_dim", CLB_NO_OFFSET);
}

static void fill(struct clb_arch *a, const struct rope *r, bool scales_attention)
{
    if (scales_attention && r->score_scale > 0)
        a->attn_scale = (float)(r->score_scale / sqrt(a->head_dim));
    a->rope_dim = r->dim;
    a->rope_scale = r->scale == 1 ? 0 : (float)r->scale;
    if (!(r->scale_long > 0))
        return;
    a->rope_long_from = (uint32_t)r->original;
    a->rope_scale_long = (float)r->scale_long;
}

bool clb_rope_read(const struct clb_rope_source *from, struct clb_arch *a, float *inv_freq,
                   float *inv_freq_long, struct clb_problems *problems, struct clb_err *err)
{
    struct clb_settings set = { 0 };
    struct rope r = {
        .set = &set, .object = "rope_scaling", .inv_freq = inv_freq,
        .inv_freq_long = inv_freq_long, .scale = 1
    };
    bool ok = false;

    r.theta = from->default_theta;
    r.max_positions = r.original = a->max_positions;
    if (a->head_dim > CLB_MAX_ROPE) {
        clb_fail(err, CLB_UNSUPPORTED, "%s: a head has %u dimensions, but %d is the most",
                 from->config->file, a->head_dim, CLB_MAX_ROPE);
        return clb_err_place(err, from->config->file, "head_dim", CLB_NO_OFFSET);
    }
    if (!open_object(&r, from->config, err) || !read_dim(&r, from, a, err) ||
        !read_either(&r, from->config, "rope_theta", 1.5, 1e12, &r.theta, err) ||
        !read_either(&r, from->config, "original_max_position_embeddings", 1, 1e9, &r.original,
                     err) ||
        !(r.theta > 0 || clb_setting_missing(from->config, "rope_theta", err)) ||
        !compute(&r, err))
        goto done;
    clb_settings_check_rest(&set, from->ignore, from->n_ignore, problems);
    fill(a, &r, from->scales_attention);
    ok = true;
done:
    clb_settings_adopt(from->config, r.object, &set);
    clb_settings_free(&set);
    return ok;
}
