/* quant_config.h - `quantization_config` of a config.json: how the publisher quantised the
 * weights. */
#ifndef CLB_IMPORT_QUANT_CONFIG_H
#define CLB_IMPORT_QUANT_CONFIG_H

#include "lib/import/hf_config.h"

struct clb_quant {
    enum {
        CLB_QUANT_NONE,
        CLB_QUANT_FP8,  /* F8_E4M3, a scale for each block of block_rows x block_cols */
        CLB_QUANT_MXFP4 /* 4-bit codes, a scale for each 32 inputs */
    } method;
    uint32_t block_rows, block_cols;
};

/* Another method refuses the model; keys that were not used are problems. */
bool clb_quant_read(struct clb_quant *q, struct clb_settings *config, struct clb_ignore *ignore,
                    uint32_t n_ignore, struct clb_problems *problems, struct clb_err *err);

#endif
