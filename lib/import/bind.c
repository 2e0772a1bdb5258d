#include "lib/import/bind.h"

#include "lib/base/mem.h"

struct binder {
    struct clb_binding *b;
    const struct clb_family *family;
    const struct clb_arch *arch;
    uint32_t n_further;
    const struct clb_checkpoint *ckpt;
    uint32_t *place; /* [role][n_layer + 1] owned: index in b->dense plus 1; 0: no such tensor */
    struct clb_problems *problems;
    struct clb_text *notes;
};

static uint32_t *place_of(const struct binder *x, int role, uint32_t layer)
{
    uint32_t n = x->arch->n_layer;

    return &x->place[(uint32_t)role * (n + 1) + (layer < n ? layer : n)];
}

static bool make_places(struct binder *x, struct clb_err *err)
{
    const struct clb_arch *a = x->arch;
    struct clb_binding *b = x->b;
    struct clb_tensor_spec s;

    b->n_dense = clb_arch_tensor_count(a);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        b->first[l] = b->n_expert_part;
        b->n_expert_part += a->layer_experts[l] * CLB_PARTS;
    }
    x->place = clb_new((size_t)CLB_ROLE_COUNT * (a->n_layer + 1), sizeof *x->place, err);
    b->dense = clb_new(b->n_dense, sizeof *b->dense, err);
    b->expert = clb_new(b->n_expert_part, sizeof *b->expert, err);
    if (!x->place || !b->dense || !b->expert)
        return false;
    for (uint32_t i = 0; clb_arch_tensor(a, i, &s); i++)
        *place_of(x, (int)s.role, s.layer) = i + 1;
    return true;
}

/* A layer behind the others, which predicts further tokens: nothing of it is used. */
static bool is_further_layer(const struct binder *x, const char *name)
{
    static const char prefix[] = "model.layers.";
    uint32_t layer = 0;
    const char *p = name + sizeof prefix - 1;

    if (!x->n_further || strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    while (*p >= '0' && *p <= '9' && layer < 1 << 20)
        layer = layer * 10 + (uint32_t)(*p++ - '0');
    return *p == '.' && layer >= x->arch->n_layer && layer < x->arch->n_layer + x->n_further;
}

static void surplus(const struct binder *x, const struct clb_ckpt_tensor *t,
                    const uint32_t number[2], int target)
{
    const struct clb_arch *a = x->arch;
    const char *name = t->t->name;

    if (number[0] != UINT32_MAX && number[0] >= a->n_layer)
        clb_problem(x->problems, "tensor '%s' is surplus: config.json has %u layers", name,
                    a->n_layer);
    else if (number[1] != UINT32_MAX && a->layer_experts[number[0]])
        clb_problem(x->problems, "tensor '%s' is surplus: config.json has %u experts", name,
                    a->layer_experts[number[0]]);
    else if (target == CLB_OUTPUT)
        clb_problem(x->problems, "tensor '%s' is surplus: 'tie_word_embeddings' is true", name);
    else
        clb_problem(x->problems, "tensor '%s' is surplus: config.json describes no such tensor",
                    name);
}

/* Both halves of kv_b_proj are filled from it. */
static const struct clb_ckpt_tensor **
slots_of_kv_b(const struct binder *x, const struct clb_ckpt_tensor *t, const uint32_t number[2])
{
    uint32_t k = 0, v = 0;

    if (number[0] < x->arch->n_layer) {
        k = *place_of(x, CLB_K_UP, number[0]);
        v = *place_of(x, CLB_V_UP, number[0]);
    }
    if (!k || !v) {
        surplus(x, t, number, CLB_FOR_KV_B);
        return NULL;
    }
    if (!x->b->dense[v - 1])
        x->b->dense[v - 1] = t;
    return &x->b->dense[k - 1];
}

/* Where a tensor of this name goes; NULL: nowhere, and that was reported or noted. */
static const struct clb_ckpt_tensor **slot_of(const struct binder *x,
                                              const struct clb_ckpt_tensor *t)
{
    const struct clb_arch *a = x->arch;
    uint32_t number[2], at = 0;
    int target;

    if (is_further_layer(x, t->t->name)) {
        clb_note(x->notes, "tensor '%s' is not used: it predicts further tokens", t->t->name);
        return NULL;
    }
    if (!clb_family_match(x->family, t->t->name, &target, number)) {
        clb_problem(x->problems, "tensor '%s' is surplus: %s has no such tensor", t->t->name,
                    x->family->model_type);
        return NULL;
    }
    if (target == CLB_FOR_NOTHING) {
        clb_note(x->notes, "tensor '%s' is not used", t->t->name);
        return NULL;
    }
    if (target == CLB_FOR_KV_B)
        return slots_of_kv_b(x, t, number);
    if (target >= CLB_FOR_EXPERT) {
        if (number[0] < a->n_layer && number[1] < a->layer_experts[number[0]])
            return &x->b->expert[x->b->first[number[0]] + number[1] * CLB_PARTS +
                                 (uint32_t)(target - CLB_FOR_EXPERT)];
    } else if (number[0] == UINT32_MAX || number[0] < a->n_layer) {
        at = *place_of(x, target, number[0]);
        if (target == CLB_OUTPUT && a->tied_embeddings)
            at = 0;
    }
    if (at)
        return &x->b->dense[at - 1];
    surplus(x, t, number, target);
    return NULL;
}

static void check_tensor(const struct binder *x, const struct clb_ckpt_tensor *t, uint32_t rank,
                         uint32_t rows, uint32_t cols)
{
    uint64_t want[2] = { rank == 1 ? cols : rows, cols };
    const struct clb_st_tensor *s = t->t;
    char found[CLB_ST_SHAPE_TEXT], expected[CLB_ST_SHAPE_TEXT];

    if (rank == 1 && s->rank == 2 && s->shape[0] == 1 && s->shape[1] == cols)
        rank = 2, want[0] = 1; /* a vector may be published as a row */
    if (s->rank != rank || memcmp(s->shape, want, rank * sizeof *want) != 0)
        clb_problem(x->problems, "tensor '%s' has shape %s, but %s is expected", s->name,
                    clb_st_shape_text(found, s->shape, s->rank),
                    clb_st_shape_text(expected, want, rank));
    if (s->dtype != CLB_ST_F32 && s->dtype != CLB_ST_F16 && s->dtype != CLB_ST_BF16)
        clb_problem(x->problems, "tensor '%s' is stored as %s, but F32, F16 or BF16 is expected",
                    s->name, clb_st_dtype_name(s->dtype));
}

static void missing(const struct binder *x, int target, uint32_t layer, uint32_t expert)
{
    char name[256];

    if (clb_family_name(x->family, target, layer, expert, name, sizeof name))
        clb_problem(x->problems, "tensor '%s' is missing", name);
}

/* [heads * (nope + value)][latent], reported once. */
static void check_kv_b(const struct binder *x, const struct clb_tensor_spec *s,
                       const struct clb_ckpt_tensor *t)
{
    const struct clb_arch *a = x->arch;

    if (s->role == CLB_V_UP)
        return;
    if (t)
        check_tensor(x, t, 2, a->n_head * (a->qk_nope_dim + a->value_dim), a->kv_lora_rank);
    else
        missing(x, CLB_FOR_KV_B, s->layer, 0);
}

static void check_dense(const struct binder *x)
{
    const struct clb_ckpt_tensor **dense = x->b->dense;
    uint32_t embed = *place_of(x, CLB_EMBED, UINT32_MAX),
             output = *place_of(x, CLB_OUTPUT, UINT32_MAX);
    struct clb_tensor_spec s;

    for (uint32_t i = 0; clb_arch_tensor(x->arch, i, &s); i++) {
        if (s.role == CLB_OUTPUT && x->arch->tied_embeddings)
            continue;
        if (s.role == CLB_K_UP || s.role == CLB_V_UP)
            check_kv_b(x, &s, dense[i]);
        else if (dense[i])
            check_tensor(x, dense[i], s.form == CLB_FORM_VECTOR ? 1 : 2, s.rows, s.cols);
        else
            missing(x, (int)s.role, s.layer, 0);
    }
    if (x->arch->tied_embeddings && embed && output)
        dense[output - 1] = dense[embed - 1];
}

static void check_experts(const struct binder *x)
{
    const struct clb_arch *a = x->arch;

    for (uint32_t l = 0; l < a->n_layer; l++)
        for (uint32_t e = 0; e < a->layer_experts[l]; e++)
            for (int p = 0; p < CLB_PARTS; p++) {
                const struct clb_ckpt_tensor *t = clb_bound_expert(x->b, l, e, (enum clb_part)p);

                if (!t)
                    missing(x, CLB_FOR_EXPERT + p, l, e);
                else if (p == CLB_DOWN)
                    check_tensor(x, t, 2, a->hidden_size, a->expert_size);
                else
                    check_tensor(x, t, 2, a->expert_size, a->hidden_size);
            }
}

bool clb_bind(struct clb_binding *b, const struct clb_family *f, const struct clb_arch *a,
              uint32_t n_further, const struct clb_checkpoint *c, struct clb_problems *problems,
              struct clb_text *notes, struct clb_err *err)
{
    struct binder x = { b, f, a, n_further, c, NULL, problems, notes };
    bool ok = false;

    *b = (struct clb_binding){ 0 };
    if (!make_places(&x, err))
        goto done;
    for (uint32_t i = 0; i < c->n_tensor; i++) {
        const struct clb_ckpt_tensor **slot = slot_of(&x, &c->tensor[i]);

        if (slot && *slot)
            clb_problem(problems, "tensors '%s' and '%s' are for the same place", (*slot)->t->name,
                        c->tensor[i].t->name);
        else if (slot)
            *slot = &c->tensor[i];
    }
    check_dense(&x);
    check_experts(&x);
    ok = clb_problems_none(problems, c->dir, err);
done:
    clb_free(x.place);
    if (!ok)
        clb_bind_free(b);
    return ok;
}

void clb_bind_free(struct clb_binding *b)
{
    clb_free(b->dense);
    clb_free(b->expert);
    *b = (struct clb_binding){ 0 };
}
