// cuda_attention.cu - softmax(q k) v over pages of 64 positions. A block is four warps (for wide
// values eight) on up to 16 queries of one KV head. For each page, a warp takes its share of the 64
// keys for the scores, then every fourth 8 columns of the values; scores meet in shared memory.
// Both products read four inputs of a lane side by side, on both sides, and so let mma permute them
// alike (see widen.cuh).
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/warp.cuh"

enum { WARPS_MOST = 8, FOLD_THREADS = 128, QUERIES = CLB_CUDA_QUERIES, PAGE = 64 };
enum { LD_P = PAGE + 16 }; // 8 words more than a multiple of 32: rows do not share banks

static __host__ __device__ __forceinline__ uint32_t ld_query(uint32_t key_dim)
{
    return (key_dim + 63) / 64 * 64 + 16;
}
static size_t shared_bytes(uint32_t key_dim)
{
    return QUERIES * ((ld_query(key_dim) + LD_P) * sizeof(uint16_t) +
                      2 * WARPS_MOST * sizeof(float) + 2 * sizeof(uint32_t));
}

// What the warps of a block share.
struct shared_rows {
    uint16_t *q, *p;       // [QUERIES][ld_query], [QUERIES][LD_P]
    float *most, *sum;     // [WARPS_MOST][QUERIES] of the page at hand
    uint32_t *first, *end; // [QUERIES] a query sees keys first .. end - 1
    uint32_t ld_q;
};

// Of one thread: rows g and g + 8 of the queries, and its columns of the output.
template <int TILES> struct split_sums {
    float m[2], l[2], o[TILES][4];
};

template <int TILES> static __device__ __forceinline__ void reset(split_sums<TILES> &s)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        s.m[i] = -INFINITY;
        s.l[i] = 0;
    }
    UNROLL
    for (int j = 0; j < TILES; j++)
        UNROLL
    for (int i = 0; i < 4; i++)
        s.o[j][i] = 0;
}

// -- queries -------------------------------------------------------------------------------------

static __device__ __forceinline__ uint32_t row_of(const struct clb_cuda_attention &a,
                                                  const struct clb_cuda_queries &t, uint32_t i)
{
    return t.first_row + (t.first + i) / (a.n_head / a.kv.n_head);
}
static __device__ __forceinline__ uint32_t head_of(const struct clb_cuda_attention &a,
                                                   const struct clb_cuda_queries &t, uint32_t i)
{
    uint32_t group = a.n_head / a.kv.n_head;

    return blockIdx.y * group + (t.first + i) % group;
}

// The first key that a row at `position` sees.
static __device__ __forceinline__ uint32_t first_key(const struct clb_cuda_attention &a,
                                                     uint32_t position)
{
    uint32_t first = a.window && position >= a.window ? position - a.window + 1 : 0;
    uint32_t chunk = a.chunk ? position / a.chunk * a.chunk : 0;

    return first > chunk ? first : chunk;
}

// Queries to shared memory, in f16, padded with zeros; queries that are not there see nothing.
static __device__ __forceinline__ void load_queries(const struct clb_cuda_attention &a,
                                                    const struct clb_cuda_queries &t,
                                                    const struct shared_rows &s)
{
    const uint32_t width = clb_cuda_kv_keys(a.kv.key_dim);

    for (uint32_t i = 0; i < QUERIES; i++) {
        const float *q = a.q + row_of(a, t, i < t.n ? i : 0) * a.ld_q;
        q += head_of(a, t, i < t.n ? i : 0) * a.kv.key_dim;
        for (uint32_t d = threadIdx.x; d < width; d += blockDim.x)
            s.q[i * s.ld_q + d] = f32_to_f16(i < t.n && d < a.kv.key_dim ? q[d] : 0);
    }
    if (threadIdx.x < QUERIES) {
        uint32_t i = threadIdx.x, position = i < t.n ? a.position[row_of(a, t, i)] : 0;
        s.first[i] = i < t.n ? first_key(a, position) : 0;
        s.end[i] = i < t.n ? position + 1 : 0;
    }
    __syncthreads();
}

// -- one page ------------------------------------------------------------------------------------

// The A registers of 16 inputs from rows g and g + 8.
static __device__ __forceinline__ void load_rows(uint32_t out[4], const uint16_t *rows, uint32_t ld,
                                                 uint32_t at)
{
    const uint32_t g = (threadIdx.x & 31) >> 2;
    const uint2 upper = *(const uint2 *)(rows + g * ld + at);
    const uint2 lower = *(const uint2 *)(rows + (g + 8) * ld + at);

    out[0] = upper.x;
    out[1] = lower.x;
    out[2] = upper.y;
    out[3] = lower.y;
}

// The warp's keys, TILES times 8: scores of rows g and g + 8, -inf where a row does not see the
// key.
template <int TILES>
static __device__ __forceinline__ void score(const struct clb_cuda_attention &a,
                                             const struct shared_rows &s, const uint16_t *keys,
                                             uint32_t page, float c[TILES][4])
{
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const uint32_t width = clb_cuda_kv_keys(a.kv.key_dim);

    for (uint32_t d = 4 * t; d < width; d += 16) {
        uint32_t q[4];
        load_rows(q, s.q, s.ld_q, d);
        UNROLL
        for (uint32_t n = 0; n < TILES; n++) {
            const uint2 k = *(const uint2 *)(keys + ((TILES * warp + n) * 8 + g) * width + d);
            const uint32_t column[2] = { k.x, k.y };
            mma_f16(c[n], q, column);
        }
    }
    UNROLL
    for (uint32_t n = 0; n < TILES; n++)
        UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t key = page * PAGE + (TILES * warp + n) * 8 + 2 * t + (i & 1),
                 row = g + 8 * (i >> 1);
        float v = c[n][i] * a.scale;
        if (a.softcap > 0)
            v = a.softcap * tanhf(v / a.softcap);
        c[n][i] = key >= s.first[row] && key < s.end[row] ? v : -INFINITY;
    }
}

// Rows' maxima over the page; then p, its sums, and what old sums are worth (decay).
template <int WARPS, int TILES>
static __device__ __forceinline__ void exponents(const struct shared_rows &s, float c[TILES][4],
                                                 float m[2], float decay[2])
{
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;

    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float most = -INFINITY;
        UNROLL
        for (uint32_t n = 0; n < TILES; n++)
            most = fmaxf(most, fmaxf(c[n][2 * h], c[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        if (!t)
            s.most[warp * QUERIES + g + 8 * h] = most;
    }
    __syncthreads();
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = g + 8 * h;
        float most = m[h], sum = 0;

        for (uint32_t w = 0; w < WARPS; w++)
            most = fmaxf(most, s.most[w * QUERIES + row]);
        decay[h] = m[h] == -INFINITY ? 0 : expf(m[h] - most);
        m[h] = most;
        UNROLL
        for (uint32_t n = 0; n < TILES; n++) {
            float one = c[n][2 * h] == -INFINITY ? 0 : expf(c[n][2 * h] - most);
            float two = c[n][2 * h + 1] == -INFINITY ? 0 : expf(c[n][2 * h + 1] - most);
            sum += one + two;
            *(uint32_t *)(s.p + row * LD_P + (TILES * warp + n) * 8 + 2 * t) =
                f32_to_f16(one) | (uint32_t)f32_to_f16(two) << 16;
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (!t)
            s.sum[warp * QUERIES + row] = sum;
    }
    __syncthreads();
}

template <int WARPS, int TILES>
static __device__ __forceinline__ void one_page(const struct clb_cuda_attention &a,
                                                const struct shared_rows &s, const uint16_t *keys,
                                                uint32_t page, split_sums<TILES> &sums)
{
    const uint32_t warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const uint16_t *values = keys + PAGE * clb_cuda_kv_keys(a.kv.key_dim);
    const uint32_t tiles = clb_cuda_kv_values(a.kv.value_dim) / 8;
    enum { KEYS = PAGE / 8 / WARPS };
    float c[KEYS][4] = {}, decay[2];

    score<KEYS>(a, s, keys, page, c);
    exponents<WARPS, KEYS>(s, c, sums.m, decay);
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float sum = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            sum += s.sum[w * QUERIES + g + 8 * h];
        sums.l[h] = fmaf(sums.l[h], decay[h], sum);
    }
    UNROLL
    for (int j = 0; j < TILES; j++)
        UNROLL
    for (int i = 0; i < 4; i++)
        sums.o[j][i] *= decay[i >> 1];
    UNROLL
    for (uint32_t k = 0; k < PAGE; k += 16) {
        uint32_t p[4];
        load_rows(p, s.p, LD_P, k + 4 * t);
        UNROLL
        for (uint32_t j = 0; j < TILES; j++) {
            uint32_t tile = warp + WARPS * j;
            if (tile >= tiles)
                continue;
            const uint2 v = *(const uint2 *)(values + (tile * 8 + g) * PAGE + k + 4 * t);
            const uint32_t column[2] = { v.x, v.y };
            mma_f16(sums.o[j], p, column);
        }
    }
}

// -- folds ---------------------------------------------------------------------------------------

// Sums with maximum m_b join sums with maximum m: both are scaled to the new maximum.
static __device__ __forceinline__ void fold(float *m, float *l, float m_b, float l_b, float *keep,
                                            float *add)
{
    float most = fmaxf(*m, m_b);

    *keep = *m == -INFINITY ? 0 : expf(*m - most);
    *add = expf(m_b - most);
    *l = fmaf(*l, *keep, l_b * *add);
    *m = most;
}

// One output of a head: value `column` of query i of the tile.
static __device__ __forceinline__ void finish(const struct clb_cuda_attention &a,
                                              const struct clb_cuda_queries &t, uint32_t i,
                                              uint32_t column, float m, float l, float o)
{
    const uint32_t head = head_of(a, t, i);
    const size_t at = row_of(a, t, i) * a.ld_out + head * a.ld_head + column;

    if (a.sink) {
        float most = fmaxf(m, a.sink[head]), keep = expf(m - most);
        l = fmaf(l, keep, expf(a.sink[head] - most));
        o *= keep;
    }
    o /= l;
    if (a.wide)
        a.wide[at] = o;
    else
        a.out[at] = a.bf16 ? f32_to_bf16(o) : f32_to_f16(o);
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

static __device__ __forceinline__ float *partial_of(const struct clb_cuda_attention &a,
                                                    uint32_t split)
{
    uint32_t splits = clb_cuda_splits(a.last_position);

    return a.partial + ((size_t)(blockIdx.x * a.kv.n_head + blockIdx.y) * splits + split) *
                           QUERIES * (a.kv.value_dim + 2);
}

// A split to memory: per query its o, then m and l.
template <int WARPS, int TILES>
static __device__ __forceinline__ void store_split(const struct clb_cuda_attention &a,
                                                   uint32_t split, uint32_t n,
                                                   const split_sums<TILES> &s)
{
    float *to = partial_of(a, split);
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
        if (s.m[h] == -INFINITY)
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

static __device__ __forceinline__ struct shared_rows carve(unsigned char *at, uint32_t key_dim)
{
    struct shared_rows s;

    s.ld_q = ld_query(key_dim);
    s.q = (uint16_t *)at;
    s.p = s.q + QUERIES * s.ld_q;
    s.most = (float *)(s.p + QUERIES * LD_P);
    s.sum = s.most + WARPS_MOST * QUERIES;
    s.first = (uint32_t *)(s.sum + WARPS_MOST * QUERIES);
    s.end = s.first + QUERIES;
    return s;
}

// 8 * WARPS * TILES columns of values are the most that there may be.
template <int WARPS, int TILES>
static __global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    attention(const struct clb_cuda_attention a)
{
    CLB_DYNAMIC_SHARED(unsigned char, memory);
    const struct shared_rows s = carve(memory, a.kv.key_dim);
    const struct clb_cuda_queries t = a.tile[blockIdx.x];
    const uint32_t *table = a.kv.table + t.sequence * a.kv.ld_table;
    uint32_t from = UINT32_MAX, end = 0;
    split_sums<TILES> total, sums;

    load_queries(a, t, s);
    for (uint32_t i = 0; i < t.n; i++) {
        from = s.first[i] < from ? s.first[i] : from;
        end = s.end[i] > end ? s.end[i] : end;
    }
    uint32_t split = a.split_first ? blockIdx.z : from / CLB_CUDA_SPLIT;
    const uint32_t last = a.split_first ? split : (end - 1) / CLB_CUDA_SPLIT;
    reset(total);
    for (; split <= last; split++) {
        const uint32_t begin = split * (CLB_CUDA_SPLIT / PAGE);
        const uint32_t stop = begin + CLB_CUDA_SPLIT / PAGE;
        reset(sums);
        for (uint32_t page = begin; page < stop; page++)
            if ((page + 1) * PAGE > from && page * PAGE < end)
                one_page<WARPS>(a, s,
                                (const uint16_t *)(a.kv.pages + table[page] * a.kv.page_bytes +
                                                   blockIdx.y * a.kv.head_bytes),
                                page, sums);
        if (a.split_first)
            store_split<WARPS>(a, split, t.n, sums);
        else
            fold_split(total, sums);
    }
    if (a.split_first)
        return;
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
            const float *from = partial_of(a, split) + query * (width + 2);
            float keep, add;
            if (from[width] == -INFINITY)
                continue;
            fold(&m, &l, from[width], from[width + 1], &keep, &add);
            o = fmaf(o, keep, from[v % width] * add);
        }
        finish(a, t, query, v % width, m, l, o);
    }
}

static __global__ void __launch_bounds__(FOLD_THREADS) append(const struct clb_cuda_append a)
{
    const uint32_t row = blockIdx.x, position = a.position[row], at = position % PAGE;
    const uint32_t width = clb_cuda_kv_keys(a.kv.key_dim);
    const size_t page = a.kv.table[a.sequence[row] * a.kv.ld_table + position / PAGE];

    for (uint32_t head = 0; head < a.kv.n_head; head++) {
        uint16_t *keys = (uint16_t *)(a.kv.pages + page * a.kv.page_bytes + head * a.kv.head_bytes);
        uint16_t *values = keys + PAGE * width;
        const float *k = a.key + row * a.ld_key + head * a.kv.key_dim;
        const float *v = a.value + row * a.ld_value + head * a.kv.value_dim;

        for (uint32_t d = threadIdx.x; d < a.kv.key_dim; d += FOLD_THREADS)
            keys[at * width + d] = f32_to_f16(k[d]);
        for (uint32_t d = threadIdx.x; d < a.kv.value_dim; d += FOLD_THREADS)
            values[d * PAGE + at] = f32_to_f16(v[d]);
    }
}

// -- host ----------------------------------------------------------------------------------------

void clb_cuda_run_append(const struct clb_cuda_append *a, struct CUstream_st *stream)
{
    CLB_LAUNCH(append, a->n_row, FOLD_THREADS, 0, stream, *a);
}

template <int WARPS, int TILES>
static void launch(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    dim3 grid(a->n_tile, a->kv.n_head, a->split_first ? clb_cuda_splits(a->last_position) : 1);

    CLB_LAUNCH((attention<WARPS, TILES>), grid, 32 * WARPS, shared_bytes(a->kv.key_dim), stream,
               *a);
    if (a->split_first)
        CLB_LAUNCH(attention_fold, dim3(a->n_tile, a->kv.n_head), FOLD_THREADS, 0, stream, *a);
}

void clb_cuda_run_attention(const struct clb_cuda_attention *a, struct CUstream_st *stream)
{
    if (a->kv.value_dim <= 128)
        launch<4, 4>(a, stream);
    else if (a->kv.value_dim <= 256)
        launch<4, 8>(a, stream);
    else
        launch<8, 8>(a, stream);
}
