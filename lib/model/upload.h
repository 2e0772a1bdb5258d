/* upload.h - weights on their way to a device. */
#ifndef CLB_MODEL_UPLOAD_H
#define CLB_MODEL_UPLOAD_H

#include "lib/model/model.h"

/* The weights are on the device, as many experts as there is room for beside `run_bytes`. */
bool clb_upload(struct clb_model *m, uint64_t run_bytes, struct clb_err *err);

#endif
