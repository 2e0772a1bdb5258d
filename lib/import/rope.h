/* rope.h - rotary position parameters of a config.json, in both published spellings (rope_theta
 * with rope_scaling, or rope_parameters), to inverse frequencies. The steps are those of the
 * reference implementation, rounded to f32 where it rounds. */
#ifndef CLB_IMPORT_ROPE_H
#define CLB_IMPORT_ROPE_H

#include "lib/format/arch.h"
#include "lib/import/hf_config.h"

struct clb_rope_source {
    struct clb_settings *config; /* config.json */
    double default_theta;        /* what the reference takes when rope_theta is not given; 0: it
                                    must be given */
    bool partial;                /* partial_rotary_factor means something */
    bool scales_attention;       /* yarn's mscale_all_dim also scales scores (DeepSeek) */
    struct clb_ignore *ignore;   /* [n_ignore] keys that the user accepts */
    uint32_t n_ignore;
    double part; /* partial_rotary_factor without the key; 0: the whole head */
};

/* a->head_dim and a->max_positions are known; a->rope_dim, where not 0, is the width to rotate.
 * Fills a->rope_dim, a->rope_scale, a->attn_scale and inv_freq[rope_dim / 2] (room for
 * CLB_MAX_ROPE / 2), and for longrope a->rope_long_from, a->rope_scale_long and inv_freq_long.
 * Keys that were not used are problems. */
bool clb_rope_read(const struct clb_rope_source *from, struct clb_arch *a, float *inv_freq,
                   float *inv_freq_long, struct clb_problems *problems, struct clb_err *err);

#endif
