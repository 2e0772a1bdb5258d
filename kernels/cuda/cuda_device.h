/* cuda_device.h - which GPUs there are, and why one cannot be used: every reason is one sentence
 * that says what to do. */
#ifndef CLB_KERNELS_CUDA_CUDA_DEVICE_H
#define CLB_KERNELS_CUDA_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct clb_cuda_device {
    int index;
    int major, minor;           /* of its compute capability */
    int n_sm;                   /* multiprocessors */
    uint64_t memory, available; /* bytes */
    char name[256];
};

/* How many devices the driver shows. Fails when that is none: CLB_UNSUPPORTED with the reason. */
bool clb_cuda_device_count(int *n, struct clb_err *err);
/* The same; 0: none, for whatever reason. */
unsigned clb_cuda_devices(void);
/* Device `index` becomes this thread's, and its context exists. CLB_USAGE: there is no such device;
 * CLB_UNSUPPORTED: no driver, one that is too old for this build, no device, or one that is too
 * old; CLB_NO_SPACE: no memory for a context; CLB_DEVICE: anything else. */
bool clb_cuda_device_open(struct clb_cuda_device *d, uint32_t index, struct clb_err *err);
/* Kernels can be launched on the device, which is this thread's. Fails as opening does. */
bool clb_cuda_device_set_up(const struct clb_cuda_device *d, struct clb_err *err);
/* In one line, for people: runtime, driver, devices and libraries, or why there is none. */
void clb_cuda_about(char *text, size_t n);

#endif
