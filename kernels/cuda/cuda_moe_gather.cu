// cuda_moe_gather.cu - Gather: one block per row sums the row's experts in ascending rank, adds the
// shared expert and the residual, and takes the norm that the next branch reads.
#include "kernels/cuda/rows.cuh"

static __global__ void __launch_bounds__(ROW_THREADS) gather(const struct clb_cuda_gather g)
{
    CLB_SHARED(float, part, ROW_WARPS);
    const uint32_t row = blockIdx.x, *slot = g.slot + (size_t)row * g.top_k;
    const float *weight = g.weight ? g.weight + (size_t)row * g.top_k : NULL;
    float *shared = g.shared ? g.shared + row * g.ld : NULL;
    const float shared_weight = g.shared_gate ? 1 / (1 + expf(-g.shared_gate[row])) : 1;
    const float scale = g.residual_scale > 0 ? g.residual_scale : 1;
    float *x = g.x + row * g.ld;
    // the sum may stand where an output stood: nobody else reads that row
    float *sum = g.top_k ? g.expert_out + slot[0] * g.ld : shared;

    for (uint32_t first = threadIdx.x; first < g.n; first += ROW_STEP) {
        float v[ROW_EACH] = {};
        for (uint32_t i = 0; i < g.top_k; i++) {
            const float w = weight ? weight[i] : 1, *from = g.expert_out + slot[i] * g.ld;
            UNROLL
            for (uint32_t k = 0, c = first; k < ROW_EACH; k++, c += ROW_THREADS)
                v[k] = fmaf(w, c < g.n ? from[c] : 0, v[k]);
        }
        UNROLL
        for (uint32_t k = 0, c = first; k < ROW_EACH; k++, c += ROW_THREADS) {
            if (shared && c < g.n)
                v[k] = fmaf(shared_weight, shared[c], v[k]);
            if (!g.after.on && c < g.n)
                v[k] = fmaf(scale, v[k], x[c]);
        }
        UNROLL
        for (uint32_t k = 0, c = first; k < ROW_EACH; k++, c += ROW_THREADS)
            if (c < g.n)
                (g.after.on ? sum : x)[c] = v[k];
    }
    if (g.after.on) {
        const struct row_norm n = measure(g.after, sum, g.n, part);
        for (uint32_t c = threadIdx.x; c < g.n; c += ROW_THREADS)
            x[c] = fmaf(scale, normed(g.after, n, sum[c], c), x[c]);
    }
    write_branch(g.next, x, g.n, row, part);
}

void clb_cuda_moe_gather(const struct clb_cuda_gather *g, struct CUstream_st *stream)
{
    CLB_LAUNCH(gather, g->n_row, ROW_THREADS, 0, stream, *g);
}
