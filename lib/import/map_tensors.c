/* map_tensors.c - the names of tensors in a map: patterns, and what they are for. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/map_impl.h"

enum { PATTERN = 200 };

/* What is no role. */
static const struct {
    const char *name;
    int target;
} others[] = {
    { "expert.gate", CLB_FOR_EXPERT + CLB_GATE },
    { "expert.up", CLB_FOR_EXPERT + CLB_UP },
    { "expert.down", CLB_FOR_EXPERT + CLB_DOWN },
    { "expert.gate_bias", CLB_FOR_EXPERT_BIAS + CLB_GATE },
    { "expert.up_bias", CLB_FOR_EXPERT_BIAS + CLB_UP },
    { "expert.down_bias", CLB_FOR_EXPERT_BIAS + CLB_DOWN },
    { "expert.gate_up", CLB_FOR_EXPERT_GATE_UP },
    { "expert.gate_up_bias", CLB_FOR_EXPERT_GATE_UP_BIAS },
    { "shared_gate_up", CLB_FOR_SHARED_GATE_UP },
    { "dense_gate_up", CLB_FOR_DENSE_GATE_UP },
    { "qkv", CLB_FOR_QKV },
    { "kv_b", CLB_FOR_KV_B },
};

/* "q", "expert.gate", "kv_b", ...: false when there is no such thing. */
static bool target_of(struct clb_str name, int *target)
{
    char role[64];

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (clb_str_is(name, others[i].name)) {
            *target = others[i].target;
            return true;
        }
    for (int r = 0; r < CLB_ROLE_COUNT; r++) {
        const struct clb_tensor_spec s = { .role = (enum clb_role)r, .layer = UINT32_MAX };

        clb_spec_name(&s, role);
        *target = r;
        if (clb_str_is(name, role))
            return true;
    }
    return false;
}

static bool of_expert(int target)
{
    return (target >= CLB_FOR_EXPERT && target < CLB_FOR_NOTHING) ||
           target == CLB_FOR_EXPERT_GATE_UP || target == CLB_FOR_EXPERT_GATE_UP_BIAS;
}

/* How many numbers the name of such a tensor has: the layer, the expert. */
static int numbers_of(int target, unsigned form)
{
    if (of_expert(target))
        return form & CLB_STACKED ? 1 : 2;
    return target >= CLB_ATTN_NORM;
}

static bool is_matrix(int target)
{
    switch (target) {
    case CLB_OUTPUT:
    case CLB_Q:
    case CLB_K:
    case CLB_V:
    case CLB_O:
    case CLB_Q_A:
    case CLB_KV_A:
    case CLB_ROUTER:
    case CLB_ROUTER_IN:
    case CLB_SHARED_GATE_PROJ:
    case CLB_SHARED_UP:
    case CLB_SHARED_DOWN:
    case CLB_DENSE_GATE:
    case CLB_DENSE_UP:
    case CLB_DENSE_DOWN:
    case CLB_FOR_EXPERT + CLB_GATE:
    case CLB_FOR_EXPERT + CLB_UP:
    case CLB_FOR_EXPERT + CLB_DOWN:
    case CLB_FOR_EXPERT_GATE_UP:
    case CLB_FOR_SHARED_GATE_UP:
    case CLB_FOR_DENSE_GATE_UP:
    case CLB_FOR_QKV:
        return true;
    default:
        return false;
    }
}

static bool is_pair(int target)
{
    return target == CLB_FOR_EXPERT_GATE_UP || target == CLB_FOR_EXPERT_GATE_UP_BIAS ||
           target == CLB_FOR_SHARED_GATE_UP || target == CLB_FOR_DENSE_GATE_UP;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool check_pattern(struct clb_json *j, const char *p)
{
    int n = 0;

    if (!*p || strlen(p) > PATTERN)
        return clb_json_fail(j, "a pattern has 1 to %d bytes", PATTERN);
    for (; *p; p++) {
        if ((*p == '#' && (is_digit(p[1]) || p[1] == '#')) || (is_digit(*p) && p[1] == '#'))
            return clb_json_fail(j, "a digit or '#' beside '#': where its number ends is "
                                    "not clear");
        if (*p == '*' && p[1])
            return clb_json_fail(j, "'*' can only be the end of a pattern");
        n += *p == '#';
    }
    return n <= 2 || clb_json_fail(j, "more than two '#'; they are the layer and the expert");
}

/* -- whether two patterns match the same name -------------------------------------------------- */

/* Places in two patterns that one name can have reached: [a][b], and whether it stands inside a
 * number of either. */
struct pair {
    const char *a, *b;
    bool seen[PATTERN + 2][PATTERN + 2]; /* all false between two calls of overlap */
    struct {
        uint16_t a, b;
    } todo[(PATTERN + 2) * (PATTERN + 2)];
    uint32_t n;
};

static void reach(struct pair *x, size_t a, size_t b)
{
    if (x->seen[a][b])
        return;
    x->seen[a][b] = true;
    x->todo[x->n].a = (uint16_t)a;
    x->todo[x->n++].b = (uint16_t)b;
}

/* The places after one more byte. '#' is one digit and more: after the first digit the place is the
 * one behind it, where any further digit stays. */
static void step(struct pair *x, size_t a, size_t b)
{
    char ca = x->a[a], cb = x->b[b];
    bool in_a = a > 0 && x->a[a - 1] == '#', in_b = b > 0 && x->b[b - 1] == '#';

    if (ca && cb && (ca == cb || (ca == '#' && is_digit(cb)) || (cb == '#' && is_digit(ca))))
        reach(x, a + 1, b + 1);
    if (in_a && cb && (cb == '#' || is_digit(cb)))
        reach(x, a, b + 1);
    if (in_b && ca && (ca == '#' || is_digit(ca)))
        reach(x, a + 1, b);
}

/* '*', which is the end, matches whatever the other one still has. */
static bool at_end(const char *a, const char *b)
{
    return *a == '*' || *b == '*' || (!*a && !*b);
}

static bool overlap(struct pair *x, const char *a, const char *b)
{
    bool both = false;

    x->a = a;
    x->b = b;
    x->n = 0;
    reach(x, 0, 0);
    for (uint32_t i = 0; i < x->n; i++) {
        both |= at_end(a + x->todo[i].a, b + x->todo[i].b);
        step(x, x->todo[i].a, x->todo[i].b);
    }
    for (uint32_t i = 0; i < x->n; i++)
        x->seen[x->todo[i].a][x->todo[i].b] = false;
    return both;
}

/* Two patterns part at their first bytes that differ, so comparing all pairs is cheap. */
static bool check_overlaps(const struct clb_map *m, struct clb_json *j, const char *pattern,
                           struct clb_err *err)
{
    struct pair *x = clb_new(1, sizeof *x, err);
    const char *other = NULL;

    if (!x)
        return false;
    for (uint32_t i = 0; !other && i < m->n_tensor; i++)
        if (overlap(x, m->tensor[i].pattern, pattern))
            other = m->tensor[i].pattern;
    clb_free(x);
    return !other || clb_json_fail(j, "the pattern '%.100s' matches the same tensors", other);
}

/* -- entries ----------------------------------------------------------------------------------- */

static bool add_tensor(struct clb_map *m, const struct clb_family_tensor *t, struct clb_json *j,
                       struct clb_err *err)
{
    if (m->n_tensor == CLB_MAP_MOST)
        return clb_json_fail(j, "more than %d tensors", CLB_MAP_MOST);
    if (m->n_tensor + 1 >= m->tensor_room) {
        uint32_t room = m->tensor_room ? 2 * m->tensor_room : 32;
        void *grown = clb_grow(m->tensor, room, sizeof *m->tensor, err);

        if (!grown)
            return false;
        m->tensor = grown;
        m->tensor_room = room;
        m->family.tensors = m->tensor;
    }
    char *own = clb_strdup(t->pattern, err);

    m->tensor[m->n_tensor] = (struct clb_family_tensor){ own, t->target, t->form };
    if (own)
        m->n_tensor++;
    m->tensor[m->n_tensor] = (struct clb_family_tensor){ NULL, 0, 0 };
    return own != NULL;
}

static bool read_is(struct clb_json *j, int *target)
{
    struct clb_str name = clb_json_string(j);

    if (!clb_json_ok(j))
        return false;
    if (!target_of(name, target))
        return clb_json_fail(j, "'%.*s' is no tensor of the model", name.n > 60 ? 60 : (int)name.n,
                             name.p);
    if (*target == CLB_ROPE_INV_FREQ || *target == CLB_ROPE_INV_FREQ_LONG)
        return clb_json_fail(j, "is computed by convert; null leaves the tensor out");
    if (*target == CLB_K_UP || *target == CLB_V_UP)
        return clb_json_fail(j, "is made by convert from 'kv_b'");
    return true;
}

static bool read_form(struct clb_json *j, unsigned *form)
{
    static const struct {
        const char *name;
        unsigned bit;
    } words[] = { { "stacked", CLB_STACKED },
                  { "transposed", CLB_TRANSPOSED },
                  { "interleaved", CLB_INTERLEAVED },
                  { "mxfp4", CLB_BLOCKS } };

    clb_json_array(j);
    while (clb_json_item(j)) {
        struct clb_str word = clb_json_string(j);
        unsigned bit = 0;

        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (clb_str_is(word, words[i].name))
                bit = words[i].bit;
        if (!bit)
            return clb_json_fail(j, "not known; known are stacked, transposed, interleaved, mxfp4");
        *form |= bit;
    }
    return clb_json_ok(j);
}

static bool ends_in_blocks(const char *pattern)
{
    static const char end[] = "_blocks";
    size_t n = strlen(pattern), k = sizeof end - 1;

    return n > k && !strcmp(pattern + n - k, end);
}

static bool check_form(struct clb_json *j, const struct clb_family_tensor *t)
{
    if (t->form & CLB_STACKED && !of_expert(t->target))
        return clb_json_fail(j, "only tensors of experts can be stacked");
    if (t->form & (CLB_TRANSPOSED | CLB_BLOCKS) && !is_matrix(t->target))
        return clb_json_fail(j, "only matrices (but embed and kv_b) can be transposed or mxfp4");
    if (t->form & CLB_TRANSPOSED && t->form & CLB_BLOCKS)
        return clb_json_fail(j, "transposed and mxfp4 exclude each other");
    if (t->form & CLB_INTERLEAVED && !is_pair(t->target))
        return clb_json_fail(j, "only gate and up in one tensor can be interleaved");
    return !(t->form & CLB_BLOCKS) || ends_in_blocks(t->pattern) ||
           clb_json_fail(j, "the name of mxfp4 codes ends in '_blocks', with '_scales' beside it");
}

static bool check_numbers(struct clb_json *j, const struct clb_family_tensor *t)
{
    int found = 0, wanted = numbers_of(t->target, t->form);

    for (const char *p = t->pattern; *p; p++)
        found += *p == '#';
    if (strchr(t->pattern, '*'))
        return clb_json_fail(j, "'*' stands only in names of tensors that are not used");
    return found == wanted ||
           clb_json_fail(j, "the pattern has %d '#', but a tensor of %s needs %s", found,
                         wanted == 0   ? "the whole model"
                         : wanted == 1 ? "a layer"
                                       : "an expert",
                         wanted == 0   ? "none"
                         : wanted == 1 ? "one, for the layer"
                                       : "two, for layer and expert");
}

static bool read_target(struct clb_json *j, struct clb_family_tensor *t)
{
    struct clb_str key;
    bool ok = true, is = false;

    if (clb_json_peek(j) == CLB_JSON_NULL)
        return clb_json_null(j);
    if (clb_json_peek(j) != CLB_JSON_OBJECT)
        return read_is(j, &t->target) && check_numbers(j, t);
    clb_json_object(j);
    while (ok && clb_json_key(j, &key)) {
        if (clb_str_is(key, "is"))
            ok = is = read_is(j, &t->target);
        else if (clb_str_is(key, "form"))
            ok = read_form(j, &t->form);
        else
            ok = clb_json_fail(j, "not known here; known are is and form");
    }
    return ok && clb_json_ok(j) && (is || clb_json_fail(j, "'is' is missing")) &&
           check_form(j, t) && check_numbers(j, t);
}

bool clb_map_read_tensors(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str key;
    char pattern[PATTERN + 2];

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        struct clb_family_tensor t = { pattern, CLB_FOR_NOTHING, 0 };
        size_t n = key.n < PATTERN + 1 ? key.n : PATTERN + 1;

        memcpy(pattern, key.p ? key.p : "", n);
        pattern[n] = 0;
        clb_json_peek(j);
        if (strlen(pattern) != n)
            return clb_json_fail(j, "the pattern contains a NUL");
        if (!check_pattern(j, pattern) || !check_overlaps(m, j, pattern, err) ||
            !read_target(j, &t) || !add_tensor(m, &t, j, err))
            return false;
    }
    return clb_json_ok(j);
}
