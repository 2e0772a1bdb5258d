/* cuda_sizes.h - what a model and its runs take: numbers and shapes, without calls of the runtime.
 * In every build: cuda_paper.c plans with them. */
#ifndef CLB_KERNELS_CUDA_CUDA_SIZES_H
#define CLB_KERNELS_CUDA_CUDA_SIZES_H

#include "kernels/cuda/cuda.h"

/* -- cuda_sizes.c: what of a model lies on devices, without calls of the runtime --------------- */

static inline uint64_t clb_cuda_aligned(uint64_t bytes)
{
    return (bytes + 255) & ~UINT64_C(255);
}

/* What the device can run; notes the kinds of its matrices. */
bool clb_cuda_check(struct clb_backend *be, struct clb_err *err);
/* k_up and v_up are cut up by head instead of being copied as they are: cuda_heads_up.c. */
static inline bool clb_cuda_by_head(const struct clb_tensor *t)
{
    return t->spec.role == CLB_K_UP || t->spec.role == CLB_V_UP;
}
/* The matrix of one head, without pointers. */
static inline struct clb_matrix clb_cuda_head_matrix(const struct clb_matrix *m, uint32_t n_head)
{
    return (struct clb_matrix){
        .dtype = m->dtype, .rows = m->rows / n_head, .cols = m->cols, .book = m->book
    };
}

/* Its block: tiles, then row scales, which begin there. */
static inline uint64_t clb_cuda_head_scales_at(const struct clb_matrix *head)
{
    return clb_cuda_aligned(clb_tiles_bytes(head->dtype, head->rows, head->cols));
}

static inline uint64_t clb_cuda_head_bytes(const struct clb_matrix *head)
{
    return clb_cuda_head_scales_at(head) +
           clb_cuda_aligned(clb_row_scale_bytes(head->dtype, head->rows));
}
/* Of all heads of all layers. */
uint64_t clb_cuda_per_head_bytes(const struct clb_weights *w);
/* Where dense tensors will lie, and how many bytes they are. */
bool clb_cuda_place(struct clb_backend *be, struct clb_err *err);
/* Experts: how many, in slots of which size, how many are needed at least. */
bool clb_cuda_experts_count(struct clb_backend *be, struct clb_err *err);
uint64_t clb_cuda_experts_least(const struct clb_backend *be);
/* Of the device: see struct clb_device_ops. */
uint64_t clb_cuda_available(const struct clb_backend *be);
bool clb_cuda_holds(const struct clb_backend *be, struct clb_err *err);
bool clb_cuda_kv_shape(struct clb_kv_shape *s, const struct clb_arch *a, enum clb_kv_dtype dtype,
                       struct clb_err *err);
bool clb_cuda_plan(const struct clb_backend *be, const struct clb_acts_shape *s, uint64_t run_bytes,
                   struct clb_device_plan *p, struct clb_err *err);
/* How many experts of all layers each device has, 0: the first one, and what there is no room for:
 * before anything has been decided, with `left` bytes of the first device for runs' experts. */
struct clb_cuda_division {
    uint64_t room[CLB_DEVICES_MOST], number[CLB_DEVICES_MOST];
    uint64_t n_rest;
};
bool clb_cuda_divide(struct clb_cuda_division *d, const struct clb_backend *be, uint64_t left,
                     uint64_t run_bytes, struct clb_err *err);
static inline uint64_t clb_cuda_table_bytes(const struct clb_backend *be)
{
    return be->experts.n_expert * sizeof *be->experts.table;
}

/* -- cuda_layout.c: shapes of activations, without calls of the runtime ------------------------ */

/* Everything that does not depend on memory; false: a size overflows. */
bool clb_cuda_measure(struct clb_acts *x, const struct clb_backend *be, const struct clb_arch *a,
                      const struct clb_acts_shape *s);
/* Cuts the block of the device, and its pinned counterpart. */
void clb_cuda_lay_out(struct clb_acts *x, struct clb_carver *c, const struct clb_backend *be,
                      const struct clb_arch *a);
void clb_cuda_lay_out_pinned(struct clb_acts *x, struct clb_carver *c, const struct clb_arch *a);
/* The same of a peer. */
void clb_cuda_peer_lay_out(struct clb_cuda_peer_acts *p, struct clb_carver *c,
                           const struct clb_backend *be, const struct clb_acts *x,
                           const struct clb_arch *a);
void clb_cuda_peer_lay_out_pinned(struct clb_cuda_peer_acts *p, struct clb_carver *c,
                                  const struct clb_arch *a, const struct clb_acts *x);
/* For experts on the CPU: all of it is pinned. */
void clb_cuda_host_lay_out(struct clb_cuda_host_acts *h, struct clb_carver *c,
                           const struct clb_backend *be, const struct clb_acts *x,
                           const struct clb_arch *a);
uint64_t clb_cuda_host_bytes(const struct clb_backend *be, const struct clb_acts *x,
                             const struct clb_arch *a); /* 0: not needed */
uint64_t clb_cuda_acts_bytes(const struct clb_backend *be, const struct clb_arch *a,
                             const struct clb_acts_shape *s);
uint64_t clb_cuda_acts_host_bytes(const struct clb_backend *be, const struct clb_arch *a,
                                  const struct clb_acts_shape *s);

#endif
