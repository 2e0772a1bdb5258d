/* cuda_heads_up.c - k_up and v_up of MLA, cut up by head. In the file the rows of all heads follow
 * each other, so that a head may begin inside a tile; on the device each head has a block: its
 * tiles, then its row scales. All heads are then one grouped product, as experts are. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_sizes.h"

#include <string.h>

#include "lib/base/mem.h"

/* Row `from` of tiles becomes row `to` of others: its scales, and 4 bytes of every step. */
static void copy_row(enum clb_dtype t, uint32_t cols, uint8_t *tiles, uint32_t to,
                     const uint8_t *old, uint32_t from)
{
    uint64_t tile_bytes = clb_tile_bytes(t, cols), steps_at = clb_tile_steps_at(t, cols);
    uint32_t scale = t == CLB_INT4 ? 2 : t == CLB_MXFP4 ? 1 : 0;
    uint32_t groups = scale ? clb_cols_padded(t, cols) / CLB_GROUP : 0;

    tiles += to / CLB_TILE * tile_bytes;
    old += from / CLB_TILE * tile_bytes;
    to %= CLB_TILE;
    from %= CLB_TILE;
    for (uint32_t g = 0; g < groups; g++)
        memcpy(tiles + (g * CLB_TILE + to) * scale, old + (g * CLB_TILE + from) * scale, scale);
    for (uint64_t at = steps_at; at < tile_bytes; at += 64)
        memcpy(tiles + at + to * 4, old + at + from * 4, 4);
}

static void cut_head(uint8_t *block, const struct clb_matrix *m, const struct clb_matrix *head,
                     uint32_t h)
{
    float *scale = (float *)(void *)(block + clb_cuda_head_scales_at(head));

    memset(block, m->dtype == CLB_INT8 ? 0x80 : 0, clb_cuda_head_bytes(head));
    for (uint32_t r = 0; r < head->rows; r++) {
        copy_row(m->dtype, m->cols, block, r, m->tiles, h * head->rows + r);
        if (m->row_scale)
            scale[r] = m->row_scale[h * head->rows + r];
    }
}

/* All heads of a matrix to *at, which moves behind them. */
static bool send_matrix(struct clb_backend *be, struct clb_cuda_per_head *out,
                        const struct clb_matrix *m, uint64_t *at, struct clb_err *err)
{
    uint32_t n_head = be->host->arch->n_head;
    struct clb_matrix head = clb_cuda_head_matrix(m, n_head);
    uint64_t bytes = clb_cuda_head_bytes(&head);
    uint8_t *block = clb_new(1, bytes, err);
    const uint8_t **table = clb_new(n_head, sizeof *table, err);
    bool ok = block && table;

    for (uint32_t h = 0; ok && h < n_head; h++) {
        cut_head(block, m, &head, h);
        table[h] = be->heads + *at + h * bytes;
        ok = clb_cuda_send(&be->link, be->heads + *at + h * bytes, block, bytes, err);
    }
    *at += n_head * bytes;
    ok = ok && clb_cuda_send(&be->link, be->heads + *at, table, n_head * sizeof *table, err);
    *out = (struct clb_cuda_per_head){
        .w = head,
        .part = { 0, clb_cuda_head_scales_at(&head), CLB_CUDA_NONE },
        .block = (const uint8_t *const *)(const void *)(be->heads + *at),
    };
    *at += clb_cuda_aligned(n_head * sizeof *table);
    clb_free(table);
    clb_free(block);
    return ok;
}

bool clb_cuda_send_heads(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_weights *w = be->host;
    uint64_t at = 0;

    if (!be->head_bytes)
        return true;
    if (!be->heads)
        be->heads = clb_cuda_get(be, be->head_bytes, "matrices of heads", err);
    for (uint32_t i = 0; be->heads && i < w->arch->n_layer; i++)
        if (!send_matrix(be, &be->layer[i].k_up, &w->layer[i].k_up, &at, err) ||
            !send_matrix(be, &be->layer[i].v_up, &w->layer[i].v_up, &at, err))
            return clb_fail_in(err, "layer %u", i);
    return be->heads != NULL;
}
