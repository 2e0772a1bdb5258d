/* map_tensors.c - the names of tensors in a map: patterns, and what they are for. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/map_impl.h"

enum { PATTERN = 200 };

/* "q", "expert.gate", "kv_b", ...: false when there is no such thing. */
static bool target_of(struct clb_str name, int *target)
{
    char full[64];

    for (int p = 0; p < CLB_PARTS; p++) {
        snprintf(full, sizeof full, "expert.%s", clb_part_name[p]);
        if (clb_str_is(name, full)) {
            *target = CLB_FOR_EXPERT + p;
            return true;
        }
    }
    *target = CLB_FOR_KV_B;
    if (clb_str_is(name, "kv_b"))
        return true;
    for (int r = 0; r < CLB_ROLE_COUNT; r++) {
        const struct clb_tensor_spec s = { .role = (enum clb_role)r, .layer = UINT32_MAX };

        clb_spec_name(&s, full);
        *target = r;
        if (clb_str_is(name, full))
            return true;
    }
    return false;
}

/* How many numbers the name of such a tensor has: the layer, the expert. */
static int numbers_of(int target)
{
    if (target >= CLB_FOR_EXPERT && target < CLB_FOR_EXPERT + CLB_PARTS)
        return 2;
    return target >= CLB_ATTN_NORM;
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

static bool overlap(struct pair *x, const char *a, const char *b)
{
    bool both = false;

    x->a = a;
    x->b = b;
    x->n = 0;
    reach(x, 0, 0);
    for (uint32_t i = 0; i < x->n; i++) {
        both |= !a[x->todo[i].a] && !b[x->todo[i].b];
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

static bool add_tensor(struct clb_map *m, const char *pattern, int target, struct clb_json *j,
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
    char *own = clb_strdup(pattern, err);

    m->tensor[m->n_tensor] = (struct clb_family_tensor){ .pattern = own, .target = target };
    if (own)
        m->n_tensor++;
    m->tensor[m->n_tensor] = (struct clb_family_tensor){ .pattern = NULL };
    return own != NULL;
}

static bool read_target(struct clb_json *j, const char *pattern, int *target)
{
    int found = 0, wanted;

    *target = CLB_FOR_NOTHING;
    if (clb_json_peek(j) == CLB_JSON_NULL)
        return clb_json_null(j);

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
    wanted = numbers_of(*target);
    for (const char *p = pattern; *p; p++)
        found += *p == '#';
    return found == wanted ||
           clb_json_fail(j, "the pattern has %d '#', but a tensor of %s needs %s", found,
                         wanted == 0   ? "the whole model"
                         : wanted == 1 ? "a layer"
                                       : "an expert",
                         wanted == 0   ? "none"
                         : wanted == 1 ? "one, for the layer"
                                       : "two, for layer and expert");
}

bool clb_map_read_tensors(struct clb_map *m, struct clb_json *j, struct clb_err *err)
{
    struct clb_str key;
    char pattern[PATTERN + 2];
    int target;

    clb_json_object(j);
    while (clb_json_key(j, &key)) {
        size_t n = key.n < PATTERN + 1 ? key.n : PATTERN + 1;

        memcpy(pattern, key.p ? key.p : "", n);
        pattern[n] = 0;
        clb_json_peek(j);
        if (strlen(pattern) != n)
            return clb_json_fail(j, "the pattern contains a NUL");
        if (!check_pattern(j, pattern) || !check_overlaps(m, j, pattern, err) ||
            !read_target(j, pattern, &target) || !add_tensor(m, pattern, target, j, err))
            return false;
    }
    return clb_json_ok(j);
}
