#include "lib/import/bind.h"

#include "lib/base/mem.h"
#include "lib/import/bind_impl.h"

static uint32_t *place_of(const struct clb_binder *x, int role, uint32_t layer)
{
    uint32_t n = x->arch->n_layer;

    return &x->place[(uint32_t)role * (n + 1) + (layer < n ? layer : n)];
}

static bool make_places(struct clb_binder *x, struct clb_err *err)
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
    b->slice_at = clb_new((size_t)x->ckpt->n_tensor + 1, sizeof *b->slice_at, err);
    if (!x->place || !b->dense || !b->expert || !b->slice_at)
        return false;
    if (a->expert_bias && !(b->bias = clb_new(b->n_expert_part, sizeof *b->bias, err)))
        return false;
    for (uint32_t i = 0; clb_arch_tensor(a, i, &s); i++)
        *place_of(x, (int)s.role, s.layer) = i + 1;
    return true;
}

/* -- what is not needed ---------------------------------------------------------------------- */

/* A layer behind the others, which predicts further tokens: nothing of it is used. */
static bool is_further_layer(const struct clb_binder *x, const char *name, uint32_t *layer)
{
    static const char prefix[] = "model.layers.";
    uint32_t n = x->extra->n_further;
    const char *p = name + sizeof prefix - 1;

    if (!n || strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    for (*layer = 0; *p >= '0' && *p <= '9' && *layer < 1 << 20; p++)
        *layer = *layer * 10 + (uint32_t)(*p - '0');
    return *p == '.' && *layer >= x->arch->n_layer && *layer < x->arch->n_layer + n;
}

static void leave_out(struct clb_binder *x, const struct clb_family_tensor *line, uint32_t layer,
                      const char *name)
{
    uint32_t i = 0;

    while (i < x->n_unused && (x->unused[i].line != line || x->unused[i].layer != layer))
        i++;
    if (i == CLB_UNUSED) {
        clb_note(x->notes, "tensor '%s' is not used", name);
        return;
    }
    if (i == x->n_unused)
        x->unused[x->n_unused++] = (struct clb_unused){ line, layer, 0, name };
    x->unused[i].n++;
}

/* One note for all that have one reason: a layer of a large model has a thousand tensors. */
static void note_unused(const struct clb_binder *x)
{
    for (uint32_t i = 0; i < x->n_unused; i++) {
        const struct clb_unused *u = &x->unused[i];

        if (!u->line)
            clb_note(x->notes,
                     "%u tensors 'model.layers.%u.*' are not used: they predict further tokens",
                     u->n, u->layer);
        else if (u->n == 1)
            clb_note(x->notes, "tensor '%s' is not used", u->first);
        else
            clb_note(x->notes, "%u tensors '%s' are not used", u->n, u->line->pattern);
    }
}

static void surplus(const struct clb_binder *x, const struct clb_ckpt_tensor *t,
                    const uint32_t number[2])
{
    const struct clb_arch *a = x->arch;
    const char *name = t->t->name;

    if (number[0] != UINT32_MAX && number[0] >= a->n_layer)
        clb_problem(x->problems, "tensor '%s' is surplus: config.json has %u layers", name,
                    a->n_layer);
    else if (number[1] != UINT32_MAX && a->layer_experts[number[0]])
        clb_problem(x->problems, "tensor '%s' is surplus: config.json has %u experts", name,
                    a->layer_experts[number[0]]);
    else
        clb_problem(x->problems, "tensor '%s' is surplus: config.json describes no such tensor",
                    name);
}

/* -- places ---------------------------------------------------------------------------------- */

/* Adds the place of a role; false when the model has none. */
static bool add_role(const struct clb_binder *x, struct clb_claim *c, int role, uint32_t layer)
{
    struct clb_tensor_spec s;
    uint32_t at = 0;

    if (layer == UINT32_MAX || layer < x->arch->n_layer)
        at = *place_of(x, role, layer);
    if (!at)
        return false;
    clb_arch_tensor(x->arch, at - 1, &s);
    c->kind = s.form == CLB_FORM_VECTOR ? CLB_CLAIM_VECTOR
              : s.form == CLB_FORM_ROWS ? CLB_CLAIM_ROWS
                                        : CLB_CLAIM_MATRIX;
    c->rows[c->n] = c->kind == CLB_CLAIM_VECTOR ? s.cols : s.rows;
    c->cols = c->kind == CLB_CLAIM_VECTOR ? 1 : s.cols;
    c->view[c->n++] = &x->b->dense[at - 1];
    return true;
}

/* Of one expert, or of all of a layer. */
static bool add_part(const struct clb_binder *x, struct clb_claim *c, bool bias, enum clb_part part,
                     const uint32_t number[2])
{
    const struct clb_arch *a = x->arch;
    uint32_t n = number[0] < a->n_layer ? a->layer_experts[number[0]] : 0;
    uint32_t expert = c->stacked ? 0 : number[1];
    struct clb_view *views = bias ? x->b->bias : x->b->expert;

    if (expert >= n || !views)
        return false;
    c->kind = bias ? CLB_CLAIM_VECTOR : CLB_CLAIM_MATRIX;
    c->slices = c->stacked ? n : 1;
    c->rows[c->n] = part == CLB_DOWN ? a->hidden_size : a->expert_size;
    c->cols = bias ? 1 : part == CLB_DOWN ? a->expert_size : a->hidden_size;
    c->view[c->n++] = &views[clb_bound_index(x->b, number[0], expert, part)];
    return true;
}

static bool add_kv_b(const struct clb_binder *x, struct clb_claim *c, uint32_t layer)
{
    const struct clb_arch *a = x->arch;

    if (!add_role(x, c, CLB_K_UP, layer) || !add_role(x, c, CLB_V_UP, layer))
        return false;
    c->kind = CLB_CLAIM_KV_B;
    c->rows[0] = a->n_head * a->qk_nope_dim;
    c->rows[1] = a->n_head * a->value_dim;
    c->cols = a->kv_lora_rank;
    return true;
}

/* What a tensor with this target fills; false when config.json describes no such thing. */
static bool claim(const struct clb_binder *x, struct clb_claim *c, const uint32_t number[2])
{
    uint32_t layer = number[0];

    if (c->target < CLB_FOR_EXPERT)
        return add_role(x, c, c->target, layer);
    if (c->target < CLB_FOR_EXPERT_BIAS)
        return add_part(x, c, false, (enum clb_part)(c->target - CLB_FOR_EXPERT), number);
    if (c->target < CLB_FOR_NOTHING)
        return add_part(x, c, true, (enum clb_part)(c->target - CLB_FOR_EXPERT_BIAS), number);
    switch (c->target) {
    case CLB_FOR_KV_B:
        return add_kv_b(x, c, layer);
    case CLB_FOR_EXPERT_GATE_UP:
    case CLB_FOR_EXPERT_GATE_UP_BIAS: {
        bool bias = c->target == CLB_FOR_EXPERT_GATE_UP_BIAS;

        return add_part(x, c, bias, CLB_GATE, number) && add_part(x, c, bias, CLB_UP, number);
    }
    case CLB_FOR_SHARED_GATE_UP:
        return add_role(x, c, CLB_SHARED_GATE_PROJ, layer) && add_role(x, c, CLB_SHARED_UP, layer);
    case CLB_FOR_DENSE_GATE_UP:
        return add_role(x, c, CLB_DENSE_GATE, layer) && add_role(x, c, CLB_DENSE_UP, layer);
    case CLB_FOR_QKV:
        return add_role(x, c, CLB_Q, layer) && add_role(x, c, CLB_K, layer) &&
               add_role(x, c, CLB_V, layer);
    default:
        return false;
    }
}

/* A tensor of the checkpoint to its places; what is wrong is reported. */
static void place(struct clb_binder *x, const struct clb_ckpt_tensor *t)
{
    const char *name = t->t->name;
    const struct clb_family_tensor *line;
    uint32_t number[2], layer;

    if (is_further_layer(x, name, &layer)) {
        leave_out(x, NULL, layer, name);
        return;
    }
    if (clb_bind_is_scale(x, t))
        return;
    line = clb_family_match(x->family, name, number);
    if (!line) {
        clb_problem(x->problems, "tensor '%s' is surplus: %s has no such tensor", name,
                    x->family->model_type);
        return;
    }
    if (line->target == CLB_FOR_NOTHING) {
        leave_out(x, line, 0, name);
        return;
    }
    if (line->target == CLB_OUTPUT && x->arch->tied_embeddings) {
        clb_note(x->notes, "tensor '%s' is not used: 'tie_word_embeddings' is true", name);
        x->b->tied_output = t;
        return;
    }
    struct clb_claim c = { .t = t,
                           .target = line->target,
                           .form = line->form,
                           .slices = 1,
                           .stacked = line->form & CLB_STACKED };

    if (!claim(x, &c, number))
        surplus(x, t, number);
    else if (c.view[0]->t)
        clb_problem(x->problems, "tensors '%s' and '%s' are for the same place",
                    c.view[0]->t->t->name, name);
    else
        clb_bind_views(x, &c);
}

/* -- what is missing ------------------------------------------------------------------------- */

/* The target of a tensor that could hold it: itself, or itself and others. */
static int other_target(int target)
{
    switch (target) {
    case CLB_FOR_EXPERT + CLB_GATE:
    case CLB_FOR_EXPERT + CLB_UP:
        return CLB_FOR_EXPERT_GATE_UP;
    case CLB_FOR_EXPERT_BIAS + CLB_GATE:
    case CLB_FOR_EXPERT_BIAS + CLB_UP:
        return CLB_FOR_EXPERT_GATE_UP_BIAS;
    case CLB_SHARED_GATE_PROJ:
    case CLB_SHARED_UP:
        return CLB_FOR_SHARED_GATE_UP;
    case CLB_DENSE_GATE:
    case CLB_DENSE_UP:
        return CLB_FOR_DENSE_GATE_UP;
    case CLB_K_UP:
    case CLB_V_UP:
        return CLB_FOR_KV_B;
    case CLB_Q:
    case CLB_K:
    case CLB_V:
        return CLB_FOR_QKV;
    default:
        return target;
    }
}

/* One tensor for several places is reported at the first of them. */
static bool is_first(int target)
{
    switch (target) {
    case CLB_FOR_EXPERT + CLB_UP:
    case CLB_FOR_EXPERT_BIAS + CLB_UP:
    case CLB_SHARED_UP:
    case CLB_DENSE_UP:
    case CLB_V_UP:
    case CLB_K:
    case CLB_V:
        return false;
    default:
        return true;
    }
}

/* what: in the words of the model, where the family has no name for it. */
static void missing(const struct clb_binder *x, int target, uint32_t layer, uint32_t expert,
                    const char *what)
{
    char name[256];
    const struct clb_family_tensor *line =
        clb_family_name(x->family, target, layer, expert, name, sizeof name);

    if (!line) {
        line = clb_family_name(x->family, other_target(target), layer, expert, name, sizeof name);
        if (line && !is_first(target))
            return;
    }
    if (!line)
        clb_problem(x->problems, "config.json asks for '%s', but %s has no tensor for it", what,
                    x->family->model_type);
    else if (!(line->form & CLB_STACKED) || expert == 0)
        clb_problem(x->problems, "tensor '%s' is missing", name);
}

static void check_dense(const struct clb_binder *x)
{
    struct clb_view *dense = x->b->dense;
    uint32_t embed = *place_of(x, CLB_EMBED, UINT32_MAX),
             output = *place_of(x, CLB_OUTPUT, UINT32_MAX);
    struct clb_tensor_spec s;
    char name[64];

    if (x->arch->tied_embeddings && embed && output)
        dense[output - 1] = dense[embed - 1];
    for (uint32_t i = 0; clb_arch_tensor(x->arch, i, &s); i++) {
        if (dense[i].t || (s.role == CLB_OUTPUT && x->arch->tied_embeddings) ||
            s.role == CLB_ROPE_INV_FREQ || s.role == CLB_ROPE_INV_FREQ_LONG)
            continue;
        clb_spec_name(&s, name);
        missing(x, (int)s.role, s.layer, 0, name);
    }
}

static void check_experts(const struct clb_binder *x)
{
    const struct clb_arch *a = x->arch;

    for (uint32_t l = 0; l < a->n_layer; l++)
        for (uint32_t e = 0; e < a->layer_experts[l]; e++)
            for (int p = 0; p < CLB_PARTS; p++) {
                uint32_t i = clb_bound_index(x->b, l, e, (enum clb_part)p);

                if (!x->b->expert[i].t)
                    missing(x, CLB_FOR_EXPERT + p, l, e, clb_part_name[p]);
                if (x->b->bias && !x->b->bias[i].t)
                    missing(x, CLB_FOR_EXPERT_BIAS + p, l, e, "expert_bias");
            }
}

bool clb_bind(struct clb_binding *b, const struct clb_family *f, const struct clb_arch *a,
              const struct clb_family_extra *extra, const struct clb_checkpoint *c,
              struct clb_problems *problems, struct clb_text *notes, struct clb_err *err)
{
    struct clb_binder x = { .b = b,
                            .family = f,
                            .arch = a,
                            .extra = extra,
                            .ckpt = c,
                            .problems = problems,
                            .notes = notes };
    bool ok = false;

    *b = (struct clb_binding){ 0 };
    if (!make_places(&x, err))
        goto done;
    for (uint32_t i = 0; i < c->n_tensor; i++)
        place(&x, &c->tensor[i]);
    note_unused(&x);
    check_dense(&x);
    check_experts(&x);
    ok = clb_problems_none(problems, c->dir, err) && clb_bind_count(b, c, err);
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
    clb_free(b->bias);
    clb_free(b->slice_at);
    *b = (struct clb_binding){ 0 };
}
