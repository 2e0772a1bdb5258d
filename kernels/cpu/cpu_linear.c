/* cpu_linear.c - the one driver of all matrix products, dense and of experts: cuts a list of them
 * into pieces (tiles x rows). Each thread takes neighbours one after the other, and then helps
 * those that are behind. With few rows the pieces are shares of the weights; with many, each holds
 * so many rows that their activations stay in L2. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum {
    PIECES_PER_THREAD = 32, /* enough that the last ones end together */
    MIN_COST = 5 * 65536,   /* of a piece worth taking: 64 KB of weights for one row */
    PAIRS = 32,             /* tiles of a matrix that is never cut into single ones */
    GATED_FLOATS = CLB_TILE * CLB_CPU_TILES, /* columns of a gated piece */
};

struct clb_cpu_rows clb_cpu_norm_rows(const struct clb_acts *x)
{
    return (struct clb_cpu_rows){
        .f32 = x->norm,
        .ld = x->ld_hidden,
        .record = x->record,
        .record_bytes = x->hidden_record,
    };
}

static uint32_t tiles_of(const struct clb_matrix *m)
{
    return clb_rows_padded(m->rows) / CLB_TILE;
}

/* What one tile costs with n rows, in bytes: reading it, then multiplying it. Four rows cost as
 * much as reading does. */
static uint64_t tile_cost(const struct clb_cpu_linear *l, uint32_t n)
{
    return clb_tile_bytes(l->w.dtype, l->w.cols) * (l->up.tiles ? 2 : 1) * (n + 4ull);
}

static void cut(struct clb_cpu_linear *l, uint64_t target, uint32_t first)
{
    uint32_t all = tiles_of(&l->w), most = l->up.tiles ? CLB_CPU_TILES : all;

    l->n_row_piece = (l->n_row + CLB_CPU_ROWS - 1) / CLB_CPU_ROWS;
    l->rows = (l->n_row + l->n_row_piece - 1) / l->n_row_piece;
    uint64_t want = target / tile_cost(l, l->rows);
    l->tiles = want > most ? most : want < 1 ? 1 : (uint32_t)want;
    if (l->tiles > 1)
        l->tiles &= ~1u; /* kernels take tiles in pairs */
    else if (all >= PAIRS)
        l->tiles = 2;
    l->first = first;
    l->end = first + (all + l->tiles - 1) / l->tiles * l->n_row_piece;
}

void clb_cpu_list_plan(const struct clb_backend *be, struct clb_cpu_list *list)
{
    unsigned n_thread = clb_pool_threads(be->pool);

    list->cost = 0;
    for (uint32_t i = 0; i < list->n; i++)
        list->cost += tile_cost(&list->l[i], list->l[i].n_row) * tiles_of(&list->l[i].w);
    uint64_t target = list->cost / (n_thread * PIECES_PER_THREAD);
    if (target < MIN_COST)
        target = MIN_COST;
    list->n_piece = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        cut(&list->l[i], target, list->n_piece);
        list->n_piece = list->l[i].end;
    }
    list->n_range = n_thread < CLB_CPU_RANGES ? n_thread : CLB_CPU_RANGES;
    for (uint32_t i = 0, first; i < list->n_range; i++) {
        clb_share(list->n_piece, i, list->n_range, &first, &list->range[i].end);
        atomic_init(&list->range[i].next, first);
    }
}

/* Tiles tile .. tile + n_tile - 1 on rows row .. row + n_row - 1 of a product. */
struct piece {
    uint32_t tile, n_tile, row, n_row;
    const void *x[CLB_CPU_ROWS]; /* what those rows are for the matrix at hand */
    const uint8_t *next;         /* the tile that this thread reads after the product at hand */
    const uint8_t *behind;       /* and after the piece, if nobody helps; NULL: not known */
};

static void point_at_rows(struct piece *p, const struct clb_cpu_rows *r, bool quantised)
{
    for (uint32_t i = 0; i < p->n_row; i++) {
        size_t row = r->index ? r->index[p->row + i] : p->row + i;
        p->x[i] = quantised ? (const void *)(r->record + row * r->record_bytes)
                            : (const void *)(r->f32 + row * r->ld);
    }
}

/* y[i][0 .. 16 n_tile) for the rows of the piece; tiles count from the piece's first. */
static void product(const struct clb_backend *be, const struct clb_matrix *w, const struct piece *p,
                    uint32_t tile, uint32_t n_tile, float *y, size_t ldy)
{
    size_t tile_bytes = clb_tile_bytes(w->dtype, w->cols), at = p->tile + tile;
    struct clb_matmul m = {
        .tiles = w->tiles + at * tile_bytes,
        .tile_bytes = tile_bytes,
        .n_tile = n_tile,
        .cols = clb_cols_padded(w->dtype, w->cols),
        .row_scale = w->row_scale ? w->row_scale + at * CLB_TILE : NULL,
        .book = w->book,
        .x = p->x,
        .n_row = p->n_row,
        .y = y,
        .ldy = ldy,
        .next = p->next,
        .next_bytes = p->next ? tile_bytes : 0,
    };
    be->k.matmul[w->dtype](&m);
}

static void add_bias(const struct clb_backend *be, const struct clb_matrix *w,
                     const struct piece *p, float *y, size_t ldy)
{
    uint32_t at = p->tile * CLB_TILE, n = p->n_tile * CLB_TILE;

    if (!w->bias)
        return;
    if (n > w->rows - at)
        n = w->rows - at;
    for (uint32_t i = 0; i < p->n_row; i++)
        be->k.add(y + i * ldy, w->bias + at, n);
}

/* Rows of y that end inside the last tile: that tile goes to scratch first. */
static void product_tight(const struct clb_backend *be, const struct clb_matrix *w,
                          const struct piece *p, float *y, size_t ldy, float *scratch)
{
    uint32_t whole = p->n_tile - 1, last = w->rows - (p->tile + whole) * CLB_TILE;

    if (whole)
        product(be, w, p, 0, whole, y, ldy);
    product(be, w, p, whole, 1, scratch, CLB_TILE);
    for (uint32_t i = 0; i < p->n_row; i++)
        memcpy(y + i * ldy + whole * CLB_TILE, scratch + i * CLB_TILE, last * sizeof *y);
}

static void plain(const struct clb_backend *be, const struct clb_cpu_linear *l, struct piece *p,
                  float *scratch)
{
    float *y = l->y + p->row * l->ldy + p->tile * CLB_TILE;

    p->next = p->behind;
    point_at_rows(p, &l->x, clb_cpu_quantised(&l->w));
    if (l->ldy < clb_rows_padded(l->w.rows) && p->tile + p->n_tile == tiles_of(&l->w))
        product_tight(be, &l->w, p, y, l->ldy, scratch);
    else
        product(be, &l->w, p, 0, p->n_tile, y, l->ldy);
    add_bias(be, &l->w, p, y, l->ldy);
}

static void gated(const struct clb_backend *be, const struct clb_acts *x,
                  const struct clb_cpu_linear *l, struct piece *p, float *scratch)
{
    float *gate = scratch, *up = scratch + CLB_CPU_ROWS * GATED_FLOATS;
    float *y = l->y + p->row * l->ldy + p->tile * CLB_TILE;

    point_at_rows(p, &l->x, clb_cpu_quantised(&l->w));
    p->next = l->up.tiles + p->tile * clb_tile_bytes(l->up.dtype, l->up.cols);
    product(be, &l->w, p, 0, p->n_tile, gate, GATED_FLOATS);
    p->next = p->behind;
    add_bias(be, &l->w, p, gate, GATED_FLOATS);
    point_at_rows(p, &l->x, clb_cpu_quantised(&l->up));
    product(be, &l->up, p, 0, p->n_tile, up, GATED_FLOATS);
    add_bias(be, &l->up, p, up, GATED_FLOATS);
    for (uint32_t i = 0; i < p->n_row; i++)
        be->k.glu(x->a->act, y + i * l->ldy, gate + i * GATED_FLOATS, up + i * GATED_FLOATS,
                  p->n_tile * CLB_TILE, x->a->act_limit, x->a->act_alpha);
}

/* A piece of range *at, or of the one behind it, and so on through all; *n: ranges to look at. */
static bool take(struct clb_cpu_list *list, uint32_t *at, uint32_t *n, uint32_t *i)
{
    for (; *n > 0; --*n, *at = (*at + 1) % list->n_range)
        if (clb_take(&list->range[*at].next, list->range[*at].end, i))
            return true;
    return false;
}

/* Where piece i lies, in *l or behind it. */
static void locate(const struct clb_cpu_linear **l, struct piece *p, uint32_t i)
{
    while (i >= (*l)->end)
        ++*l;
    uint32_t k = i - (*l)->first, all = tiles_of(&(*l)->w);

    p->tile = k / (*l)->n_row_piece * (*l)->tiles;
    p->row = k % (*l)->n_row_piece * (*l)->rows;
    p->n_tile = all - p->tile < (*l)->tiles ? all - p->tile : (*l)->tiles;
    p->n_row = (*l)->n_row - p->row < (*l)->rows ? (*l)->n_row - p->row : (*l)->rows;
}

/* Where piece i begins, in l or behind it. */
static const uint8_t *start_of(const struct clb_cpu_linear *l, uint32_t i)
{
    struct piece p;

    locate(&l, &p, i);
    return l->w.tiles + p.tile * clb_tile_bytes(l->w.dtype, l->w.cols);
}

void clb_cpu_list_run(const struct clb_backend *be, const struct clb_acts *x,
                      struct clb_cpu_list *list, unsigned thread)
{
    float *scratch = x->gated + (size_t)thread * 2 * CLB_CPU_ROWS * GATED_FLOATS;
    const struct clb_cpu_linear *l = list->l;
    struct piece p;
    uint32_t at = thread % list->n_range, n = list->n_range, i;

    while (take(list, &at, &n, &i)) {
        if (i < l->first)
            l = list->l;
        locate(&l, &p, i);
        p.behind = i + 1 < list->range[at].end ? start_of(l, i + 1) : NULL;
        if (l->up.tiles)
            gated(be, x, l, &p, scratch);
        else
            plain(be, l, &p, scratch);
    }
}
