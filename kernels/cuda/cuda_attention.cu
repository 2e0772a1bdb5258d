// cuda_attention.cu - softmax(q k) v over pages of 64 positions in f16 or int8; f32 pages are in
// cuda_attention_wide.cu. A block is four warps (for wide values eight) on up to 16 queries of one
// KV head. For each page, a warp takes its share of the 64 keys for the scores, then every fourth 8
// columns of the values; scores meet in shared memory. In both products the numbers that a lane
// takes lie side by side, on both sides, and so mma permutes them alike (see widen.cuh).
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/widen.cuh"

enum { WARPS_MOST = 8, FOLD_THREADS = 128 };

// Of both products: what a lane takes at a time are 8 bytes of a page.
template <enum clb_kv_dtype KV> struct step {
    enum {
        CODES = KV == CLB_KV_INT8,
        MMAS = CODES ? 2 : 1,
        LANE = 4 * MMAS,  // numbers of a lane
        ALL = 16 * MMAS,  // numbers of a warp, for one column
        BYTES = 2 / MMAS, // of a number
        LD_P = PAGE + ALL // rows are apart so that lanes do not meet in one bank
    };
    static __host__ __device__ __forceinline__ uint32_t ld_query(uint32_t key_dim)
    {
        return (key_dim + 63) / 64 * 64 + ALL;
    }
};

// What the warps of a block share.
template <enum clb_kv_dtype KV> struct shared_rows {
    uint16_t *q, *p;       // [QUERIES][ld_q], [QUERIES][LD_P]
    float *most, *sum;     // [WARPS_MOST][QUERIES] of the page at hand
    float *scale;          // likewise: largest scale of values; only for codes
    uint32_t *first, *end; // [QUERIES] a query sees keys first .. end - 1
    uint32_t ld_q;
};

template <enum clb_kv_dtype KV> static size_t shared_bytes(uint32_t key_dim)
{
    return QUERIES * ((step<KV>::ld_query(key_dim) + step<KV>::LD_P) * sizeof(uint16_t) +
                      (2 + step<KV>::CODES) * WARPS_MOST * sizeof(float) + 2 * sizeof(uint32_t));
}

template <enum clb_kv_dtype KV>
static __device__ __forceinline__ shared_rows<KV> carve(unsigned char *at, uint32_t key_dim)
{
    shared_rows<KV> s;

    s.ld_q = step<KV>::ld_query(key_dim);
    s.q = (uint16_t *)at;
    s.p = s.q + QUERIES * s.ld_q;
    s.most = (float *)(s.p + QUERIES * step<KV>::LD_P);
    s.sum = s.most + WARPS_MOST * QUERIES;
    s.scale = s.sum + WARPS_MOST * QUERIES;
    s.first = (uint32_t *)(s.scale + step<KV>::CODES * WARPS_MOST * QUERIES);
    s.end = s.first + QUERIES;
    return s;
}

// Of one thread: rows g and g + 8 of the queries, and its columns of the output. For codes, o is in
// units of `scale`, the largest scale of a value that the row has seen in this split.
template <int TILES> struct split_sums {
    float m[2], l[2], scale[2], o[TILES][4];
};

template <int TILES> static __device__ __forceinline__ void reset(split_sums<TILES> &s)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        s.m[i] = -INFINITY;
        s.l[i] = 0;
        s.scale[i] = 0;
    }
    UNROLL
    for (int j = 0; j < TILES; j++)
        UNROLL
    for (int i = 0; i < 4; i++)
        s.o[j][i] = 0;
}

// Queries to shared memory, in f16, padded with zeros; queries that are not there see nothing.
template <enum clb_kv_dtype KV>
static __device__ __forceinline__ void load_queries(const struct clb_cuda_attention &a,
                                                    const struct clb_cuda_queries &t,
                                                    const shared_rows<KV> &s)
{
    const uint32_t width = clb_cuda_kv_keys(KV, a.kv.key_dim);

    for (uint32_t i = 0; i < QUERIES; i++) {
        const float *q = query_of(a, t, i < t.n ? i : 0);
        for (uint32_t d = threadIdx.x; d < width; d += blockDim.x)
            s.q[i * s.ld_q + d] = f32_to_f16_within(i < t.n && d < a.kv.key_dim ? q[d] : 0);
    }
    if (threadIdx.x < QUERIES) {
        const struct seen see = threadIdx.x < t.n ? seen_by(a, t, threadIdx.x) : seen{ 0, 0 };
        s.first[threadIdx.x] = see.first;
        s.end[threadIdx.x] = see.end;
    }
    __syncthreads();
}

// -- registers of mma ----------------------------------------------------------------------------

// A: the lane's numbers of rows g and g + 8, from `at` on.
template <int MMAS>
static __device__ __forceinline__ void load_rows(uint32_t out[MMAS][4], const uint16_t *rows,
                                                 uint32_t ld, uint32_t at)
{
    const uint32_t g = (threadIdx.x & 31) >> 2;
    const uint16_t *upper = rows + g * ld + at, *lower = rows + (g + 8) * ld + at;

    if (MMAS == 1) {
        const uint2 u = *(const uint2 *)upper, l = *(const uint2 *)lower;
        out[0][0] = u.x;
        out[0][1] = l.x;
        out[0][2] = u.y;
        out[0][3] = l.y;
    } else {
        const uint4 u = *(const uint4 *)upper, l = *(const uint4 *)lower;
        out[0][0] = u.x;
        out[0][1] = l.x;
        out[0][2] = u.y;
        out[0][3] = l.y;
        out[MMAS - 1][0] = u.z;
        out[MMAS - 1][1] = l.z;
        out[MMAS - 1][2] = u.w;
        out[MMAS - 1][3] = l.w;
    }
}

// B: the lane's numbers of one column.
template <enum clb_kv_dtype KV>
static __device__ __forceinline__ void load_column(uint32_t out[step<KV>::MMAS][2],
                                                   const uint8_t *at)
{
    const uint2 v = *(const uint2 *)at;

    if (KV == CLB_KV_INT8) {
        widen_bytes(v.x ^ 0x80808080u, out[0][0], out[0][1]);
        widen_bytes(v.y ^ 0x80808080u, out[step<KV>::MMAS - 1][0], out[step<KV>::MMAS - 1][1]);
    } else {
        out[0][0] = v.x;
        out[0][1] = v.y;
    }
}

// -- one page ------------------------------------------------------------------------------------

// Of one KV head.
struct page_parts {
    const uint8_t *keys, *values;
    const float *key_scale, *value_scale; // [PAGE] of codes
};
template <enum clb_kv_dtype KV>
static __device__ __forceinline__ page_parts parts_of(const struct clb_cuda_attention &a,
                                                      const uint8_t *keys)
{
    const uint8_t *values = keys + clb_cuda_kv_values_at(KV, a.kv.key_dim);

    return { keys, values,
             (const float *)(keys + clb_cuda_kv_numbers_bytes(
                                        KV, clb_cuda_kv_keys(KV, a.kv.key_dim))),
             (const float *)(values + clb_cuda_kv_numbers_bytes(
                                          KV, clb_cuda_kv_values(KV, a.kv.value_dim))) };
}

// Of the thread's columns of scores: two keys of each of the warp's TILES times 8.
template <enum clb_kv_dtype KV, int TILES>
static __device__ __forceinline__ void load_scales(float2 out[TILES], const float *of)
{
    const uint32_t warp = threadIdx.x / 32, t = threadIdx.x & 3;

    UNROLL
    for (uint32_t n = 0; n < TILES; n++)
        if (step<KV>::CODES)
            out[n] = *(const float2 *)(of + (TILES * warp + n) * 8 + 2 * t);
}

// Scores of rows g and g + 8, -inf where a row does not see the key.
template <enum clb_kv_dtype KV, int TILES>
static __device__ __forceinline__ void score(const struct clb_cuda_attention &a,
                                             const shared_rows<KV> &s, const page_parts &parts,
                                             uint32_t page, float c[TILES][4])
{
    using S = step<KV>;
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const uint32_t width = clb_cuda_kv_keys(KV, a.kv.key_dim);
    float2 scale[TILES] = {};

    load_scales<KV, TILES>(scale, parts.key_scale);
    for (uint32_t d = S::LANE * t; d < width; d += S::ALL) {
        uint32_t q[S::MMAS][4];
        load_rows<S::MMAS>(q, s.q, s.ld_q, d);
        UNROLL
        for (uint32_t n = 0; n < TILES; n++) {
            uint32_t k[S::MMAS][2];
            load_column<KV>(k, parts.keys +
                                   (((TILES * warp + n) * 8 + g) * width + d) * S::BYTES);
            UNROLL
            for (int i = 0; i < S::MMAS; i++)
                mma_f16(c[n], q[i], k[i]);
        }
    }
    UNROLL
    for (uint32_t n = 0; n < TILES; n++)
        UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t key = page * PAGE + (TILES * warp + n) * 8 + 2 * t + (i & 1);
        const uint32_t row = g + 8 * (i >> 1);
        if (S::CODES)
            c[n][i] *= i & 1 ? scale[n].y : scale[n].x;
        c[n][i] = score_of(a, c[n][i], key >= s.first[row] && key < s.end[row]);
    }
}

// The largest of a row in this warp, to shared memory.
static __device__ __forceinline__ void store_most(float *to, uint32_t row, float most)
{
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
    if (!(threadIdx.x & 3))
        to[threadIdx.x / 32 * QUERIES + row] = most;
}
template <int WARPS>
static __device__ __forceinline__ float most_of(const float *of, uint32_t row, float most)
{
    for (uint32_t w = 0; w < WARPS; w++)
        most = fmaxf(most, of[w * QUERIES + row]);
    return most;
}

// Rows' maxima, and the largest scales of the values that they see, over the page.
template <enum clb_kv_dtype KV, int TILES>
static __device__ __forceinline__ void maxima(const shared_rows<KV> &s, const float c[TILES][4],
                                              const float2 scale[TILES])
{
    const uint32_t g = (threadIdx.x & 31) >> 2;

    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float most = -INFINITY, largest = 0;
        UNROLL
        for (uint32_t n = 0; n < TILES; n++) {
            most = fmaxf(most, fmaxf(c[n][2 * h], c[n][2 * h + 1]));
            if (c[n][2 * h] != -INFINITY)
                largest = fmaxf(largest, scale[n].x);
            if (c[n][2 * h + 1] != -INFINITY)
                largest = fmaxf(largest, scale[n].y);
        }
        store_most(s.most, g + 8 * h, most);
        if (step<KV>::CODES)
            store_most(s.scale, g + 8 * h, largest);
    }
    __syncthreads();
}

// A row's scale becomes the largest yet; what o in the old unit is worth in it. A row that sees no
// larger one keeps its bits.
static __device__ __forceinline__ float rescale(float *scale, float largest, float *inverse)
{
    const float old = *scale;

    *scale = largest;
    *inverse = largest > 0 ? fminf(1 / largest, 3.40282347e38f) : 0;
    return largest == old ? 1 : old * *inverse;
}

static __device__ __forceinline__ float exponent(float score, float most)
{
    return score == -INFINITY ? 0 : expf(score - most);
}

// p, its sums, and what old sums (decay[0]) and outputs (decay[1]) are worth, of rows g and g + 8.
template <enum clb_kv_dtype KV, int WARPS, int TILES, class Sums>
static __device__ __forceinline__ void exponents(const shared_rows<KV> &s, const float c[TILES][4],
                                                 const float2 scale[TILES], Sums &sums,
                                                 float decay[2][2])
{
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;

    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = g + 8 * h;
        const float most = most_of<WARPS>(s.most, row, sums.m[h]);
        float sum = 0, inverse = 1;

        decay[0][h] = decay[1][h] = decay_to(most, sums.m[h]);
        sums.m[h] = most;
        if (step<KV>::CODES)
            decay[1][h] *= rescale(&sums.scale[h], most_of<WARPS>(s.scale, row, sums.scale[h]),
                                   &inverse);
        UNROLL
        for (uint32_t n = 0; n < TILES; n++) {
            float one = exponent(c[n][2 * h], most), two = exponent(c[n][2 * h + 1], most);
            sum += one + two;
            if (step<KV>::CODES) {
                one *= scale[n].x * inverse;
                two *= scale[n].y * inverse;
            }
            *(uint32_t *)(s.p + row * step<KV>::LD_P + (TILES * warp + n) * 8 + 2 * t) =
                f32_to_f16(one) | (uint32_t)f32_to_f16(two) << 16;
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (!t)
            s.sum[warp * QUERIES + row] = sum;
    }
    __syncthreads();
}

// o += p v
template <enum clb_kv_dtype KV, int WARPS, int TILES>
static __device__ __forceinline__ void mix(const struct clb_cuda_attention &a,
                                           const shared_rows<KV> &s, const uint8_t *values,
                                           float o[TILES][4])
{
    using S = step<KV>;
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const uint32_t tiles = clb_cuda_kv_values(KV, a.kv.value_dim) / 8;

    UNROLL
    for (uint32_t k = S::LANE * t, i = 0; i < PAGE / S::ALL; k += S::ALL, i++) {
        uint32_t p[S::MMAS][4];
        load_rows<S::MMAS>(p, s.p, S::LD_P, k);
        UNROLL
        for (uint32_t j = 0; j < TILES; j++) {
            const uint32_t tile = warp + WARPS * j;
            uint32_t v[S::MMAS][2];
            if (tile >= tiles)
                continue;
            load_column<KV>(v, values + ((tile * 8 + g) * PAGE + k) * S::BYTES);
            UNROLL
            for (int m = 0; m < S::MMAS; m++)
                mma_f16(o[j], p[m], v[m]);
        }
    }
}

template <enum clb_kv_dtype KV, int WARPS, int TILES>
static __device__ __forceinline__ void one_page(const struct clb_cuda_attention &a,
                                                const shared_rows<KV> &s, const uint8_t *head,
                                                uint32_t page, split_sums<TILES> &sums)
{
    enum { KEYS = PAGE / 8 / WARPS };
    const page_parts parts = parts_of<KV>(a, head);
    const uint32_t g = (threadIdx.x & 31) >> 2;
    float c[KEYS][4] = {}, decay[2][2];
    float2 scale[KEYS] = {};

    score<KV, KEYS>(a, s, parts, page, c);
    load_scales<KV, KEYS>(scale, parts.value_scale);
    maxima<KV, KEYS>(s, c, scale);
    exponents<KV, WARPS, KEYS>(s, c, scale, sums, decay);
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float sum = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            sum += s.sum[w * QUERIES + g + 8 * h];
        sums.l[h] = fmaf(sums.l[h], decay[0][h], sum);
    }
    UNROLL
    for (int j = 0; j < TILES; j++)
        UNROLL
    for (int i = 0; i < 4; i++)
        sums.o[j][i] *= decay[1][i >> 1];
    mix<KV, WARPS, TILES>(a, s, parts.values, sums.o);
}

// -- splits --------------------------------------------------------------------------------------

// Asks for pages of a split that are seen, all at once. With few blocks each page is waited for,
// its keys and then its values: from the memory of the device that takes three times as long.
static __device__ __forceinline__ void fetch_split(const struct clb_cuda_attention &a,
                                                   const struct clb_cuda_queries &t,
                                                   const struct seen &see, uint32_t split)
{
    UNROLL_BY(1)
    for (uint32_t page = split * SPLIT_PAGES; page < (split + 1) * SPLIT_PAGES; page++)
        if ((page + 1) * PAGE > see.first && page * PAGE < see.end)
            prefetch(page_of(a, t, page), a.kv.head_bytes);
}

// All pages of a split that any query of the tile sees.
template <enum clb_kv_dtype KV, int WARPS, int TILES>
static __device__ __forceinline__ void one_split(const struct clb_cuda_attention &a,
                                                 const struct clb_cuda_queries &t,
                                                 const shared_rows<KV> &s, const struct seen &see,
                                                 uint32_t split, split_sums<TILES> &sums)
{
    reset(sums);
    for (uint32_t page = split * SPLIT_PAGES; page < (split + 1) * SPLIT_PAGES; page++)
        if ((page + 1) * PAGE > see.first && page * PAGE < see.end)
            one_page<KV, WARPS>(a, s, page_of(a, t, page), page, sums);
    UNROLL
    for (int j = 0; j < TILES; j++)
        UNROLL
    for (int i = 0; i < 4; i++)
        if (step<KV>::CODES)
            sums.o[j][i] *= sums.scale[i >> 1];
}

// Calls f(query, column, i, j) for every value of o[j][i] that there is.
template <int WARPS, int TILES, class F>
static __device__ __forceinline__ void each_value(const struct clb_cuda_attention &a, uint32_t n,
                                                  F f)
{
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;

    UNROLL
    for (uint32_t j = 0; j < TILES; j++)
        UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t column = (warp + WARPS * j) * 8 + 2 * t + (i & 1), query = g + 8 * (i >> 1);
        if (query < n && column < a.kv.value_dim)
            f(query, column, i, j);
    }
}

template <int WARPS, int TILES>
static __device__ __forceinline__ void store_split(const struct clb_cuda_attention &a,
                                                   uint32_t split, uint32_t n,
                                                   const split_sums<TILES> &s)
{
    float *to = partial_of(a, blockIdx.x, split);
    const uint32_t width = a.kv.value_dim, g = (threadIdx.x & 31) >> 2;

    each_value<WARPS, TILES>(a, n, [&](uint32_t query, uint32_t column, uint32_t i, uint32_t j) {
        to[query * (width + 2) + column] = s.o[j][i];
    });
    UNROLL
    for (uint32_t h = 0; h < 2; h++)
        if (threadIdx.x < 32 && !(threadIdx.x & 3) && g + 8 * h < n) {
            to[(g + 8 * h) * (width + 2) + width] = s.m[h];
            to[(g + 8 * h) * (width + 2) + width + 1] = s.l[h];
        }
}

template <int TILES>
static __device__ __forceinline__ void fold_split(split_sums<TILES> &total,
                                                  const split_sums<TILES> &s)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        float keep, add;
        if (s.l[h] == 0) // nothing is seen; of NaN alone there is no maximum, but a sum
            continue;
        fold(&total.m[h], &total.l[h], s.m[h], s.l[h], &keep, &add);
        UNROLL
        for (int j = 0; j < TILES; j++)
            UNROLL
        for (int i = 2 * h; i < 2 * h + 2; i++)
            total.o[j][i] = fmaf(total.o[j][i], keep, s.o[j][i] * add);
    }
}

// -- kernels -------------------------------------------------------------------------------------

// 8 * WARPS * TILES columns of values are the most that there may be.
template <enum clb_kv_dtype KV, int WARPS, int TILES>
static __global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    attention(const struct clb_cuda_attention a)
{
    CLB_DYNAMIC_SHARED(unsigned char, memory);
    const shared_rows<KV> s = carve<KV>(memory, a.kv.key_dim);
    const struct clb_cuda_queries t = a.tile[blockIdx.x];
    struct seen see = { UINT32_MAX, 0 }; // by any query
    split_sums<TILES> total, sums;

    load_queries(a, t, s);
    for (uint32_t i = 0; i < t.n; i++) {
        see.first = s.first[i] < see.first ? s.first[i] : see.first;
        see.end = s.end[i] > see.end ? s.end[i] : see.end;
    }
    if (t.n <= a.n_head / a.kv.n_head) // one row: it is decoded
        fetch_split(a, t, see, a.split_first ? blockIdx.z : see.first / CLB_CUDA_SPLIT);
    if (a.split_first) {
        one_split<KV, WARPS>(a, t, s, see, blockIdx.z, sums);
        store_split<WARPS>(a, blockIdx.z, t.n, sums);
        return;
    }
    reset(total);
    for (uint32_t split = see.first / CLB_CUDA_SPLIT; split <= (see.end - 1) / CLB_CUDA_SPLIT;
         split++) {
        one_split<KV, WARPS>(a, t, s, see, split, sums);
        fold_split(total, sums);
    }
    each_value<WARPS, TILES>(a, t.n, [&](uint32_t query, uint32_t column, uint32_t i, uint32_t j) {
        finish(a, t, query, column, total.m[i >> 1], total.l[i >> 1], total.o[j][i]);
    });
}

// Splits that lie in memory, in the order in which one block would have taken them.
static __global__ void __launch_bounds__(FOLD_THREADS)
    attention_fold(const struct clb_cuda_attention a)
{
    const struct clb_cuda_queries t = a.tile[blockIdx.x];
    const uint32_t width = a.kv.value_dim, splits = clb_cuda_splits(a.last_position);

    for (uint32_t v = threadIdx.x; v < t.n * width; v += FOLD_THREADS) {
        const uint32_t query = v / width;
        float m = -INFINITY, l = 0, o = 0;

        for (uint32_t split = 0; split < splits; split++) {
            const float *from = partial_of(a, blockIdx.x, split) + query * (width + 2);
            float keep, add;
            if (from[width + 1] == 0)
                continue;
            fold(&m, &l, from[width], from[width + 1], &keep, &add);
            o = fmaf(o, keep, from[v % width] * add);
        }
        finish(a, t, query, v % width, m, l, o);
    }
}

// -- host ----------------------------------------------------------------------------------------

template <enum clb_kv_dtype KV, int WARPS, int TILES>
static void launch(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    dim3 grid(a->n_tile, a->kv.n_head, a->split_first ? clb_cuda_splits(a->last_position) : 1);

    CLB_LAUNCH((attention<KV, WARPS, TILES>), grid, 32 * WARPS, shared_bytes<KV>(a->kv.key_dim),
               stream, *a);
}

template <enum clb_kv_dtype KV>
static void launch_any(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    if (a->kv.value_dim <= 128)
        launch<KV, 4, 4>(a, stream);
    else if (a->kv.value_dim <= 256)
        launch<KV, 4, 8>(a, stream);
    else
        launch<KV, 8, 8>(a, stream);
}

void clb_cuda_run_attention(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    if (a->kv.dtype == CLB_KV_F32)
        clb_cuda_run_attention_wide(a, stream);
    else if (a->kv.dtype == CLB_KV_F16)
        launch_any<CLB_KV_F16>(a, stream);
    else
        launch_any<CLB_KV_INT8>(a, stream);
    if (a->split_first)
        CLB_LAUNCH(attention_fold, dim3(a->n_tile, a->kv.n_head), FOLD_THREADS, 0, stream, *a);
}
