/* program.c - runs compiled patterns: backtracking, with a stack of fixed size and a budget of
 * steps. */
#include "lib/token/program.h"

#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

enum { STACK = 192 };

/* -- sets ------------------------------------------------------------------------------------- */

/* Among ranges that ascend. */
static bool in_sorted(const uint32_t *range, uint32_t n, uint32_t c)
{
    uint32_t low = 0;

    while (n) {
        uint32_t half = n / 2;
        if (range[2 * (low + half)] <= c) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low && c <= range[2 * low - 1];
}

bool clb_set_has(const uint32_t *set, uint32_t c)
{
    if (c < 128)
        return set[2 + c / 32] >> c % 32 & 1;
    uint32_t class = clb_uc(c), flags = set[0];
    bool has = set[1] >> (class & 31) & 1;
    if (flags & CLB_SET_BUT_HAN && class & CLB_UC_HAN)
        return false;
    if (flags & (class & CLB_UC_SPACE ? CLB_SET_SPACE : CLB_SET_NOT_SPACE))
        has = true;
    if (flags & (class & CLB_UC_HAN ? CLB_SET_HAN : CLB_SET_NOT_HAN))
        has = true;
    if (flags & CLB_SET_SORTED)
        has = has || in_sorted(set + 7, set[6], c);
    else
        for (uint32_t i = 0; i < set[6] && !has; i++)
            has = c >= set[7 + 2 * i] && c <= set[8 + 2 * i];
    return has != (flags & CLB_SET_NEGATED);
}

/* -- check ------------------------------------------------------------------------------------ */

static uint32_t size_of(uint32_t op)
{
    return op == CLB_P_REPEAT ? 4 : 1;
}

static bool is_jump(uint32_t op)
{
    return op >= CLB_P_SPLIT && op <= CLB_P_ATOMIC;
}

static bool check_sets(const uint32_t *program, uint32_t n)
{
    uint32_t n_code = program[0], n_set = program[1];

    for (uint32_t i = 0; i < n_set; i++) {
        uint32_t at = program[2 + i];
        if (at < 2 + n_set + n_code || at > n || n - at < CLB_SET_WORDS)
            return false;
        if (program[at + 6] > (n - at - CLB_SET_WORDS) / 2)
            return false;
    }
    return true;
}

/* Every instruction is known and complete, and every jump ends at the start of one. */
static bool check_code(const uint32_t *code, uint32_t n, uint32_t n_set)
{
    bool starts[CLB_PROGRAM_MOST] = { false };
    uint32_t op = 0;

    for (uint32_t at = 0; at < n; at += size_of(op)) {
        op = code[at] & 255;
        if (op == 0 || op >= CLB_P_N || n - at < size_of(op))
            return false;
        if ((op == CLB_P_SET || op == CLB_P_REPEAT) && code[at] >> 8 >= n_set)
            return false;
        starts[at] = true;
    }
    for (uint32_t at = 0; at < n; at += size_of(op)) {
        uint32_t by = code[at] >> 8;
        op = code[at] & 255;
        if (!is_jump(op))
            continue;
        if (op == CLB_P_BACK ? by > at || !starts[at - by] : by >= n - at || !starts[at + by])
            return false;
    }
    return op == CLB_P_END;
}

static bool check_words(const uint32_t *program, uint32_t n)
{
    return n >= 3 && n <= CLB_PROGRAM_MOST && program[0] <= n && program[1] <= n &&
           program[0] + program[1] + 2 <= n && check_sets(program, n) &&
           check_code(program + 2 + program[1], program[0], program[1]);
}

bool clb_program_check(const struct clb_tokenizer *t, struct clb_span words, struct clb_err *err)
{
    uint64_t all = t->head->section[CLB_PROGRAMS].size / 4;
    bool inside = words.at <= all && words.n <= all - words.at;

    return (inside && check_words(t->programs + words.at, words.n)) ||
           clb_fail(err, CLB_BAD_INPUT, "the pattern of %u words at %u of PROGRAMS is not sound",
                    words.n, words.at);
}

/* -- run -------------------------------------------------------------------------------------- */

struct machine {
    const uint32_t *program;
    const char *begin, *end;
    uint64_t *budget;
};

/* Where to go on when a try fails. A repetition keeps what it may still give back (greedy: at goes
 * down to limit) or take (lazy: at goes up, at most `left` times). */
struct retry {
    const uint32_t *pc;
    const char *at, *limit; /* limit NULL: a plain alternative */
    const uint32_t *set;    /* lazy */
    uint32_t left;
};

static bool spend(const struct machine *m)
{
    if (*m->budget == 0)
        return false;
    --*m->budget;
    return true;
}

static const uint32_t *set_of(const struct machine *m, uint32_t instruction)
{
    return m->program + m->program[2 + (instruction >> 8)];
}

static bool take(const struct machine *m, const uint32_t *set, const char **at)
{
    unsigned n;

    if (*at >= m->end || !spend(m) || !clb_set_has(set, clb_utf8_get(*at, m->end, &n)))
        return false;
    *at += n;
    return true;
}

static bool at_anchor(const struct machine *m, uint32_t op, const char *at)
{
    switch (op) {
    case CLB_P_LINE_START:
        return at == m->begin || (at[-1] == '\n' && at < m->end);
    case CLB_P_LINE_END:
        return at == m->end || *at == '\n';
    case CLB_P_TEXT_START:
        return at == m->begin;
    case CLB_P_TEXT_END:
        return at == m->end;
    default:
        return at == m->end || (at + 1 == m->end && *at == '\n');
    }
}

/* Takes what a REPEAT takes at first; false: too few. What it may do later goes to r (limit NULL:
 * nothing). */
static bool repeat(const struct machine *m, const uint32_t *pc, const char **at, struct retry *r)
{
    const uint32_t *set = set_of(m, pc[0]);
    uint32_t least = pc[2], most = pc[3], n = 0;

    for (; n < least; n++)
        if (!take(m, set, at))
            return false;
    *r = (struct retry){ .pc = pc + 4, .at = *at, .set = set, .left = most - n };
    if (pc[1] == CLB_LAZY) {
        r->limit = *at;
        return true;
    }
    for (; n < most && take(m, set, at); n++)
        ;
    if (pc[1] == CLB_GREEDY && *at > r->at) {
        r->limit = r->at;
        r->at = *at;
        r->set = NULL;
    }
    return true;
}

/* The next try of the topmost retry, which stays while it has more. */
static bool back_up(const struct machine *m, struct retry *stack, unsigned *n, const uint32_t **pc,
                    const char **at)
{
    unsigned len;

    while (*n && spend(m)) {
        struct retry *r = &stack[*n - 1];
        *pc = r->pc;
        if (!r->limit) {
            *at = r->at;
            --*n;
            return true;
        }
        if (r->set) {
            if (r->left && take(m, r->set, &r->at)) {
                r->left--;
                *at = r->at;
                return true;
            }
        } else if (r->at > r->limit) {
            clb_utf8_before(r->limit, r->at, &len);
            *at = r->at -= len;
            return true;
        }
        --*n;
    }
    return false;
}

static const char *run(const struct machine *m, const uint32_t *pc, const char *at, int depth);

/* LOOK, LOOK_NOT and ATOMIC: moves pc and at on, or fails. */
static bool run_nested(const struct machine *m, const uint32_t **pc, const char **at, int depth)
{
    uint32_t op = **pc & 255;
    const char *stop = run(m, *pc + 1, *at, depth + 1);

    if (!stop == (op != CLB_P_LOOK_NOT))
        return false;
    if (op == CLB_P_ATOMIC)
        *at = stop;
    *pc += **pc >> 8;
    return true;
}

/* One instruction; false: it does not match here. */
static bool step(const struct machine *m, const uint32_t **pc, const char **at, struct retry *r,
                 int depth)
{
    const uint32_t *now = *pc;
    uint32_t op = *now & 255, arg = *now >> 8;
    unsigned n;

    switch (op) {
    case CLB_P_CHAR:
        if (*at >= m->end || clb_utf8_get(*at, m->end, &n) != arg)
            return false;
        *at += n;
        break;
    case CLB_P_SET:
        if (!take(m, set_of(m, *now), at))
            return false;
        break;
    case CLB_P_REPEAT:
        *pc += 4;
        return repeat(m, now, at, r);
    case CLB_P_SPLIT:
        *r = (struct retry){ .pc = now + arg, .at = *at };
        break;
    case CLB_P_SPLIT_LAZY:
        *r = (struct retry){ .pc = now + 1, .at = *at };
        *pc = now + arg;
        return true;
    case CLB_P_JUMP:
        *pc = now + arg;
        return true;
    case CLB_P_BACK:
        *pc = now - arg;
        return true;
    case CLB_P_LOOK:
    case CLB_P_LOOK_NOT:
    case CLB_P_ATOMIC:
        return run_nested(m, pc, at, depth);
    default:
        if (!at_anchor(m, op, *at))
            return false;
    }
    *pc = now + 1;
    return true;
}

/* Runs from pc to END: where the match stops, or NULL. */
static const char *run(const struct machine *m, const uint32_t *pc, const char *at, int depth)
{
    struct retry stack[STACK];
    unsigned n = 0;

    if (depth > CLB_PROGRAM_NESTED)
        *m->budget = 0;
    while (spend(m)) {
        struct retry r = { .pc = NULL };
        if ((*pc & 255) == CLB_P_END)
            return at;
        if (!step(m, &pc, &at, &r, depth)) {
            if (!back_up(m, stack, &n, &pc, &at))
                return NULL;
            continue;
        }
        bool can_retry = r.pc && (r.limit || !r.set);
        if (can_retry && n == STACK)
            *m->budget = 0;
        else if (can_retry)
            stack[n++] = r;
    }
    return NULL;
}

size_t clb_program_run(const uint32_t *program, const char *begin, const char *p, const char *end,
                       uint64_t *budget)
{
    const struct machine m = { program, begin, end, budget };
    const char *stop = run(&m, program + 2 + program[1], p, 0);

    return stop ? (size_t)(stop - p) : 0;
}

/* -- find ------------------------------------------------------------------------------------- */

/* What most programs are: [a]?[b]+ or [b]+ or [b] or [b]+$. These need no machine. */
struct shape {
    const uint32_t *before, *set; /* before NULL: no [a]? */
    bool once;
    uint32_t anchor; /* behind it; 0: none */
};

static bool is_repeat(const uint32_t *code, uint32_t least, uint32_t most)
{
    return (code[0] & 255) == CLB_P_REPEAT && code[1] == CLB_GREEDY && code[2] == least &&
           code[3] == most;
}

static bool shape_of(const uint32_t *program, struct shape *s)
{
    const uint32_t *code = program + 2 + program[1], *end = code + program[0];

    *s = (struct shape){ NULL, NULL, false, 0 };
    if (end - code == 2 && (*code & 255) == CLB_P_SET) {
        s->set = program + program[2 + (*code >> 8)];
        s->once = true;
        return true;
    }
    if (end - code == 9 && is_repeat(code, 0, 1)) {
        s->before = program + program[2 + (*code >> 8)];
        code += 4;
    }
    if (end - code == 6 && !s->before && (code[4] & 255) >= CLB_P_LINE_START)
        s->anchor = code[4] & 255;
    if (end - code != (s->anchor ? 6 : 5) || !is_repeat(code, 1, UINT32_MAX))
        return false;
    s->set = program + program[2 + (*code >> 8)];
    return true;
}

/* Whether the set has the character at p < end, of n bytes. */
static inline bool has_at(const uint32_t *set, const char *p, const char *end, unsigned *n)
{
    uint8_t c = (uint8_t)*p;

    if (c >= 0x80)
        return clb_set_has(set, clb_utf8_get(p, end, n));
    *n = 1;
    return set[2 + c / 32] >> c % 32 & 1;
}

static const char *run_of(const uint32_t *set, const char *p, const char *end, bool once)
{
    unsigned n;

    while (p < end && has_at(set, p, end, &n)) {
        p += n;
        if (once)
            break;
    }
    return p;
}

/* [b]+ and an anchor: a run gives back until it holds. Where it does not, no later start in the
 * same run helps. */
static bool find_anchored(const struct shape *s, const struct machine *m, const char **from,
                          const char **to)
{
    unsigned n;

    for (const char *p = *from; p < m->end;) {
        const char *run_end = run_of(s->set, p, m->end, false), *stop = run_end;
        while (stop > p && !at_anchor(m, s->anchor, stop)) {
            clb_utf8_before(p, stop, &n);
            stop -= n;
        }
        if (stop > p) {
            *from = p;
            *to = stop;
            return true;
        }
        clb_utf8_get(p, m->end, &n);
        p = run_end > p ? run_end : p + n;
    }
    return false;
}

static bool find_shape(const struct shape *s, const char *end, const char **from, const char **to)
{
    unsigned n;

    for (const char *p = *from; p < end; p += n) {
        bool starts = has_at(s->set, p, end, &n);
        if (!starts && !s->before)
            continue;
        const char *start = s->before && has_at(s->before, p, end, &n) ? p + n : p;
        const char *stop = run_of(s->set, start, end, s->once);
        if (stop == start && start > p && starts)
            stop = run_of(s->set, start = p, end, s->once);
        if (stop > start) {
            *from = p;
            *to = stop;
            return true;
        }
    }
    return false;
}

/* The set of which a match must begin with a character; NULL: it may begin otherwise. */
static const uint32_t *first_set(const uint32_t *program)
{
    const uint32_t *code = program + 2 + program[1];
    uint32_t op = *code & 255;

    if (op == CLB_P_SET || (op == CLB_P_REPEAT && code[2] > 0))
        return program + program[2 + (*code >> 8)];
    return NULL;
}

bool clb_program_find(const uint32_t *program, const char *begin, const char *end,
                      const char **from, const char **to, uint64_t *budget)
{
    const uint32_t *first = first_set(program);
    struct shape s;
    unsigned n;

    if (shape_of(program, &s) && s.anchor)
        return find_anchored(&s, &(struct machine){ program, begin, end, budget }, from, to);
    if (s.set)
        return find_shape(&s, end, from, to);
    for (const char *p = *from; p < end && *budget; p += n) {
        uint32_t c = clb_utf8_get(p, end, &n);
        size_t taken = 0;
        if (!first || clb_set_has(first, c))
            taken = clb_program_run(program, begin, p, end, budget);
        if (taken) {
            *from = p;
            *to = p + taken;
            return true;
        }
    }
    return false;
}
