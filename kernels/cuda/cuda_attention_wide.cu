// cuda_attention_wide.cu - attention over pages of f32, in f32: tensor cores would round. A block
// is four warps on up to 8 queries of one KV head, half a tile. For each page a thread has one key
// and four queries for the scores; then a warp has whole queries for their maxima and sums; then a
// thread has columns of the values and all queries.
#include "kernels/cuda/attention.cuh"

enum { WIDE = 8, WARPS = 4, THREADS = 32 * WARPS, OWN = WIDE / WARPS, FOUR = 4 };
enum { LD_P = WIDE + 4 }; // float4, and lanes that write p do not all meet in one bank

static __host__ __device__ __forceinline__ uint32_t ld_query(uint32_t key_dim)
{
    return clb_cuda_kv_keys(CLB_KV_F32, key_dim);
}
static size_t shared_bytes(uint32_t key_dim)
{
    return (WIDE * (ld_query(key_dim) + PAGE + 6) + PAGE * LD_P + 2 * WIDE) * sizeof(float);
}

// What the warps of a block share. Arrays that are not of pages are [WIDE].
struct shared_rows {
    float *q, *p, *score;       // [WIDE][ld_q], [PAGE][LD_P], [WIDE][PAGE]
    float *decay;               // what the page leaves of sums
    float *sum, *keep, *add;    // the fold of a split: its l, see fold()
    float *m, *l;               // of all splits
    uint32_t *first, *end;      // a query sees keys first .. end - 1
    uint32_t ld_q, from, limit; // queries from .. from + limit - 1 of the tile: 4 or 8
};

static __device__ __forceinline__ struct shared_rows carve(unsigned char *at, uint32_t key_dim,
                                                           uint32_t from, uint32_t n)
{
    struct shared_rows s;

    s.ld_q = ld_query(key_dim);
    s.from = from;
    s.limit = n > FOUR ? WIDE : FOUR;
    s.q = (float *)at;
    s.p = s.q + WIDE * s.ld_q;
    s.score = s.p + PAGE * LD_P;
    s.decay = s.score + WIDE * PAGE;
    s.sum = s.decay + WIDE;
    s.keep = s.sum + WIDE;
    s.add = s.keep + WIDE;
    s.m = s.add + WIDE;
    s.l = s.m + WIDE;
    s.first = (uint32_t *)(s.l + WIDE);
    s.end = s.first + WIDE;
    return s;
}

// Maxima and sums of a warp's queries, warp + WARPS * h: the same in all lanes.
struct owned {
    float m[OWN], l[OWN];
};
static __device__ __forceinline__ void reset(owned &r)
{
    UNROLL
    for (int h = 0; h < OWN; h++) {
        r.m[h] = -INFINITY;
        r.l[h] = 0;
    }
}

// Columns threadIdx.x + THREADS * j of the output.
template <int COLS> struct columns {
    float o[COLS][WIDE];
};
template <int COLS> static __device__ __forceinline__ void reset(columns<COLS> &c)
{
    UNROLL
    for (int j = 0; j < COLS; j++)
        UNROLL
    for (int i = 0; i < WIDE; i++)
        c.o[j][i] = 0;
}

// -- queries -------------------------------------------------------------------------------------

// Padded with zeros; queries that are not there see nothing.
static __device__ __forceinline__ void load_queries(const struct clb_cuda_attention &a,
                                                    const struct clb_cuda_queries &t,
                                                    const struct shared_rows &s)
{
    for (uint32_t i = 0; i < s.limit; i++) {
        const bool there = s.from + i < t.n;
        const float *q = query_of(a, t, there ? s.from + i : 0);
        for (uint32_t d = threadIdx.x; d < s.ld_q; d += THREADS)
            s.q[i * s.ld_q + d] = there && d < a.kv.key_dim ? q[d] : 0;
    }
    if (threadIdx.x < s.limit) {
        const uint32_t i = s.from + threadIdx.x;
        const struct seen see = i < t.n ? seen_by(a, t, i) : seen{ 0, 0 };
        s.first[threadIdx.x] = see.first;
        s.end[threadIdx.x] = see.end;
    }
    __syncthreads();
}

// -- one page ------------------------------------------------------------------------------------

// A key, four queries.
static __device__ __forceinline__ void score_page(const struct clb_cuda_attention &a,
                                                  const struct shared_rows &s, const float *keys,
                                                  uint32_t page)
{
    const uint32_t lane = threadIdx.x % PAGE, first = threadIdx.x / PAGE * FOUR;
    const uint32_t key = page * PAGE + lane;
    float c[FOUR] = {};

    if (first >= s.limit)
        return;
    UNROLL_BY(2)
    for (uint32_t d = 0; d < s.ld_q; d += 4) {
        float k[4];
        UNROLL
        for (int i = 0; i < 4; i++)
            k[i] = keys[(d + i) * PAGE + lane];
        UNROLL
        for (int i = 0; i < FOUR; i++) {
            const float4 q = *(const float4 *)(s.q + (first + i) * s.ld_q + d);
            c[i] = fmaf(q.x, k[0], c[i]);
            c[i] = fmaf(q.y, k[1], c[i]);
            c[i] = fmaf(q.z, k[2], c[i]);
            c[i] = fmaf(q.w, k[3], c[i]);
        }
    }
    UNROLL
    for (int i = 0; i < FOUR; i++)
        s.score[(first + i) * PAGE + lane] =
            score_of(a, c[i], key >= s.first[first + i] && key < s.end[first + i]);
}

static __device__ __forceinline__ float exponent(float score, float most)
{
    return score == -INFINITY ? 0 : expf(score - most);
}

// The warp's queries: maximum, p, sum.
static __device__ __forceinline__ void exponents(const struct shared_rows &s, owned &r)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;

    UNROLL
    for (int h = 0; h < OWN; h++) {
        const uint32_t i = warp + WARPS * h;
        if (i >= s.limit)
            continue;
        const float *score = s.score + i * PAGE + lane;
        const float most = fmaxf(r.m[h], warp_max(fmaxf(score[0], score[32])));
        const float one = exponent(score[0], most), two = exponent(score[32], most);
        const float decay = decay_to(most, r.m[h]);

        s.p[lane * LD_P + i] = one;
        s.p[(lane + 32) * LD_P + i] = two;
        r.l[h] = fmaf(r.l[h], decay, warp_sum(one + two));
        r.m[h] = most;
        if (!lane)
            s.decay[i] = decay;
    }
}

static __device__ __forceinline__ void add_four(float o[FOUR], const float *p, float v)
{
    const float4 w = *(const float4 *)p;

    o[0] = fmaf(w.x, v, o[0]);
    o[1] = fmaf(w.y, v, o[1]);
    o[2] = fmaf(w.z, v, o[2]);
    o[3] = fmaf(w.w, v, o[3]);
}

template <int COLS>
static __device__ __forceinline__ void mix_page(const struct clb_cuda_attention &a,
                                                const struct shared_rows &s, const float *values,
                                                columns<COLS> &c)
{
    const uint32_t width = a.kv.value_dim;

    UNROLL
    for (uint32_t i = 0; i < WIDE; i++)
        if (i < s.limit)
            UNROLL
    for (int j = 0; j < COLS; j++)
        c.o[j][i] *= s.decay[i];
    UNROLL_BY(4)
    for (uint32_t key = 0; key < PAGE; key++)
        UNROLL
    for (int j = 0; j < COLS; j++) {
        const uint32_t column = threadIdx.x + THREADS * j;
        const float v = column < width ? values[key * width + column] : 0;
        add_four(c.o[j], s.p + key * LD_P, v);
        if (s.limit > FOUR)
            add_four(c.o[j] + FOUR, s.p + key * LD_P + FOUR, v);
    }
}

// -- splits --------------------------------------------------------------------------------------

// Calls f(query of the block, column, o) for every value that there is.
template <int COLS, class F>
static __device__ __forceinline__ void each_value(const struct clb_cuda_attention &a, uint32_t n,
                                                  const columns<COLS> &c, F f)
{
    UNROLL
    for (int j = 0; j < COLS; j++) {
        const uint32_t column = threadIdx.x + THREADS * j;
        UNROLL
        for (uint32_t i = 0; i < WIDE; i++)
            if (i < n && column < a.kv.value_dim)
                f(i, column, c.o[j][i]);
    }
}
// Calls f(query of the block, h) in one lane for every query that the warp owns.
template <class F> static __device__ __forceinline__ void each_owned(uint32_t n, F f)
{
    UNROLL
    for (int h = 0; h < OWN; h++) {
        const uint32_t i = threadIdx.x / 32 + WARPS * h;
        if (!(threadIdx.x & 31) && i < n)
            f(i, h);
    }
}

template <int COLS>
static __device__ __forceinline__ void store_split(const struct clb_cuda_attention &a, float *to,
                                                   uint32_t n, const owned &r,
                                                   const columns<COLS> &c)
{
    const uint32_t width = a.kv.value_dim;

    each_value(a, n, c,
               [&](uint32_t i, uint32_t column, float o) { to[i * (width + 2) + column] = o; });
    each_owned(n, [&](uint32_t i, int h) {
        to[i * (width + 2) + width] = r.m[h];
        to[i * (width + 2) + width + 1] = r.l[h];
    });
}

template <int COLS>
static __device__ __forceinline__ void fold_split(const struct shared_rows &s, owned &total,
                                                  const owned &r, columns<COLS> &sums,
                                                  const columns<COLS> &c)
{
    UNROLL
    for (int h = 0; h < OWN; h++) {
        const uint32_t i = threadIdx.x / 32 + WARPS * h;
        float keep = 1, add = 0;

        if (i >= s.limit)
            continue;
        if (r.l[h] != 0)
            fold(&total.m[h], &total.l[h], r.m[h], r.l[h], &keep, &add);
        if (threadIdx.x & 31)
            continue;
        s.sum[i] = r.l[h];
        s.keep[i] = keep;
        s.add[i] = add;
    }
    __syncthreads();
    UNROLL
    for (uint32_t i = 0; i < WIDE; i++)
        if (i < s.limit && s.sum[i] != 0)
            UNROLL
    for (int j = 0; j < COLS; j++)
        sums.o[j][i] = fmaf(sums.o[j][i], s.keep[i], c.o[j][i] * s.add[i]);
}

// -- kernel --------------------------------------------------------------------------------------

// THREADS * COLS columns of values are the most that there may be.
template <int COLS>
static __global__ void __launch_bounds__(THREADS, COLS == 1 ? 4 : 2)
    attention_wide(const struct clb_cuda_attention a)
{
    CLB_DYNAMIC_SHARED(unsigned char, memory);
    const struct clb_cuda_queries t = a.tile[blockIdx.x / 2];
    const uint32_t at = blockIdx.x % 2 * WIDE;
    uint32_t from = UINT32_MAX, end = 0;
    owned total, r;
    columns<COLS> sums, c;

    if (at >= t.n)
        return;
    const uint32_t n = t.n - at < WIDE ? t.n - at : (uint32_t)WIDE;
    const struct shared_rows s = carve(memory, a.kv.key_dim, at, n);
    load_queries(a, t, s);
    for (uint32_t i = 0; i < n; i++) {
        from = s.first[i] < from ? s.first[i] : from;
        end = s.end[i] > end ? s.end[i] : end;
    }
    uint32_t split = a.split_first ? blockIdx.z : from / CLB_CUDA_SPLIT;
    const uint32_t last = a.split_first ? split : (end - 1) / CLB_CUDA_SPLIT;
    reset(total);
    reset(sums);
    for (; split <= last; split++) {
        reset(r);
        reset(c);
        for (uint32_t page = split * SPLIT_PAGES; page < (split + 1) * SPLIT_PAGES; page++) {
            if ((page + 1) * PAGE <= from || page * PAGE >= end)
                continue;
            const uint8_t *head = page_of(a, t, page);
            score_page(a, s, (const float *)head, page);
            __syncthreads();
            exponents(s, r);
            __syncthreads();
            mix_page(a, s,
                     (const float *)(head + clb_cuda_kv_values_at(CLB_KV_F32, a.kv.key_dim)), c);
        }
        if (a.split_first)
            store_split(a, partial_of(a, blockIdx.x / 2, split) + at * (a.kv.value_dim + 2), n, r,
                        c);
        else
            fold_split(s, total, r, sums, c);
    }
    if (a.split_first)
        return;
    each_owned(n, [&](uint32_t i, int h) {
        s.m[i] = total.m[h];
        s.l[i] = total.l[h];
    });
    __syncthreads();
    each_value(a, n, sums, [&](uint32_t i, uint32_t column, float o) {
        finish(a, t, at + i, column, s.m[i], s.l[i], o);
    });
}

void clb_cuda_run_attention_wide(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    dim3 grid(2 * a->n_tile, a->kv.n_head, a->split_first ? clb_cuda_splits(a->last_position) : 1);
    const size_t shared = shared_bytes(a->kv.key_dim);

    if (a->kv.value_dim <= THREADS)
        CLB_LAUNCH(attention_wide<1>, grid, THREADS, shared, stream, *a);
    else
        CLB_LAUNCH(attention_wide<4>, grid, THREADS, shared, stream, *a);
}
