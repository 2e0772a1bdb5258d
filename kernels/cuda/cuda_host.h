/* cuda_host.h - experts that the CPU multiplies for the CUDA backend, as both sides see them. Here
 * `struct clb_acts` is what the CPU backend needs for experts alone; the other one's is another.
 * Its arithmetic is the CPU's: activations of quantised matrices become int8. */
#ifndef CLB_KERNELS_CUDA_CUDA_HOST_H
#define CLB_KERNELS_CUDA_CUDA_HOST_H

#include "lib/backend/backend.h"
#include "lib/base/carve.h"

/* Cuts activations for `rows` rows of `top_k` experts each, with `ld` floats from row to row.
 * Without a base it only measures; then *out is not written. */
void clb_cuda_host_lay_out_cpu(const struct clb_backend *cpu, struct clb_carver *c,
                               const struct clb_arch *a, uint32_t rows, uint32_t top_k, size_t ld,
                               struct clb_acts **out);
/* A layer's rows are there: `in` [n_row][ld] in f32, zeros behind each. Of the routes' active
 * experts the CPU has the first n_active. Results of slot s go to out + s * ld. */
struct clb_cuda_host_layer {
    const struct clb_weights *w;
    const struct clb_layer *l;
    const struct clb_routes *routes;
    uint32_t n_active;
    const float *in;
    float *out;
};
void clb_cuda_host_begin(struct clb_backend *cpu, struct clb_acts *x,
                         const struct clb_cuda_host_layer *l);
/* Those whose block is not NULL. */
bool clb_cuda_host_compute(struct clb_backend *cpu, struct clb_acts *x, const struct clb_layer *l,
                           const uint8_t *const *block, struct clb_err *err);
/* Bytes per second at which its threads read this memory, which has been read before. */
double clb_cuda_host_rate(struct clb_backend *cpu, const uint8_t *at, uint64_t bytes);

#endif
