/* hf_regex.c - the structure of a regular expression: sequences, groups, repetition. */
#include "lib/import/hf_regex.h"

#include "lib/import/hf_regex_impl.h"
#include "lib/token/program.h"
#include "lib/token/utf8.h"

static uint32_t parse_alternatives(struct clb_regex *r);

/* -- code ------------------------------------------------------------------------------------- */

static void emit(struct clb_regex *r, uint32_t word)
{
    if (r->n == CLB_REGEX_CODE)
        clb_regex_refuse(r, r->p, "a pattern that is too large");
    else
        r->code[r->n++] = word;
}

/* Makes room for `words` words before `at`. Distances inside a moved block stay right. */
static void insert(struct clb_regex *r, uint32_t at, uint32_t words)
{
    if (r->n + words > CLB_REGEX_CODE) {
        clb_regex_refuse(r, r->p, "a pattern that is too large");
        return;
    }
    memmove(r->code + at + words, r->code + at, (r->n - at) * sizeof *r->code);
    r->n += words;
}

static void patch(struct clb_regex *r, uint32_t at, uint32_t op)
{
    if (!r->failed)
        r->code[at] = op | (r->n - at) << 8;
}

/* -- atoms ------------------------------------------------------------------------------------ */

/* Two letters that another single character is the case of, as U+00DF is of ss. */
static bool folds_together(uint32_t a, uint32_t b)
{
    static const char pairs[][3] = { "ss", "ff", "fi", "fl", "st" };

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if ((a | 32) == (uint32_t)pairs[i][0] && (b | 32) == (uint32_t)pairs[i][1])
            return true;
    return false;
}

static void emit_char(struct clb_regex *r, uint32_t c)
{
    bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';

    if (!r->fold || (c < 128 && !letter)) {
        emit(r, CLB_P_CHAR | c << 8);
        r->last_fold = 0;
        return;
    }
    if (r->last_fold && folds_together(r->last_fold, c))
        clb_regex_refuse(r, r->p, "letters in (?i: that one character can stand for");
    uint32_t *set = clb_regex_set_new(r);
    if (!set)
        return;
    clb_regex_set_folded(r, set, c, c);
    clb_regex_set_done(set);
    emit(r, CLB_P_SET | (r->n_set - 1) << 8);
    r->last_fold = c;
}

static void emit_dot(struct clb_regex *r)
{
    uint32_t *set = clb_regex_set_new(r);

    if (!set)
        return;
    set[0] = CLB_SET_NEGATED;
    clb_regex_set_range(r, set, '\n', '\n');
    clb_regex_set_done(set);
    emit(r, CLB_P_SET | (r->n_set - 1) << 8);
}

/* Least characters that the escape matches. r->p is on the backslash. */
static uint32_t parse_escape(struct clb_regex *r)
{
    static const char anchor[] = "AzZ";
    static const uint32_t op[] = { CLB_P_TEXT_START, CLB_P_TEXT_END, CLB_P_TEXT_LINE_END };
    const char *found;

    if (++r->p == r->end) {
        clb_regex_refuse(r, r->p, "a backslash at the end");
        return 0;
    }
    if ((found = memchr(anchor, *r->p, 3))) {
        r->p++;
        emit(r, op[found - anchor]);
        return 0;
    }
    uint32_t c = clb_regex_escaped_char(r);
    if (c != UINT32_MAX) {
        if (!r->failed)
            emit_char(r, c);
        return 1;
    }
    uint32_t *set = clb_regex_set_new(r);
    if (set) {
        clb_regex_escaped_set(r, set);
        clb_regex_set_done(set);
        emit(r, CLB_P_SET | (r->n_set - 1) << 8);
    }
    return 1;
}

/* (...), (?:...), (?i:...), (?>...), (?=...), (?!...); r->p is on the parenthesis. */
static uint32_t parse_group(struct clb_regex *r)
{
    static const struct {
        const char *head;
        uint32_t op; /* 0: only a group */
        bool fold;
    } kind[] = {
        { "(?:", 0, false },
        { "(?i:", 0, true },
        { "(?=", CLB_P_LOOK, false },
        { "(?!", CLB_P_LOOK_NOT, false },
        { "(?>", CLB_P_ATOMIC, false },
        { "(", 0, false },
    };
    struct clb_str rest = { r->p, (size_t)(r->end - r->p) };
    const char *at = r->p;
    size_t i = 0;
    bool fold = r->fold;

    while (!clb_str_starts(rest, kind[i].head))
        i++;
    r->p += strlen(kind[i].head);
    r->nested += kind[i].op != 0;
    if ((kind[i].head[1] == 0 && r->p < r->end && *r->p == '?') || ++r->depth > CLB_REGEX_DEPTH ||
        r->nested > CLB_PROGRAM_NESTED) {
        clb_regex_refuse(r, at, "a group that is not understood");
        return 0;
    }
    r->fold |= kind[i].fold;
    uint32_t start = r->n;
    if (kind[i].op)
        emit(r, 0);
    uint32_t least = parse_alternatives(r);
    if (!r->failed && (r->p == r->end || *r->p != ')'))
        clb_regex_refuse(r, at, "a group that does not end");
    if (r->failed)
        return 0;
    r->p++;
    r->depth--;
    r->nested -= kind[i].op != 0;
    r->fold = fold;
    r->last_fold = 0;
    if (kind[i].op) {
        emit(r, CLB_P_END);
        patch(r, start, kind[i].op);
    }
    return kind[i].op == CLB_P_LOOK || kind[i].op == CLB_P_LOOK_NOT ? 0 : least;
}

static uint32_t parse_atom(struct clb_regex *r)
{
    unsigned n;

    switch (*r->p) {
    case '[':
        if (clb_regex_read_set(r))
            emit(r, CLB_P_SET | (r->n_set - 1) << 8);
        return 1;
    case '(':
        return parse_group(r);
    case '\\':
        return parse_escape(r);
    case '.':
        r->p++;
        emit_dot(r);
        return 1;
    case '^':
    case '$':
        emit(r, *r->p++ == '^' ? CLB_P_LINE_START : CLB_P_LINE_END);
        return 0;
    case '*':
    case '+':
    case '?':
    case '{':
        clb_regex_refuse(r, r->p, "a repetition of nothing");
        return 0;
    }
    uint32_t c = clb_utf8_get(r->p, r->end, &n);
    r->p += n;
    emit_char(r, c);
    return 1;
}

/* -- repetition ------------------------------------------------------------------------------- */

struct times {
    uint32_t least, most; /* most UINT32_MAX: any number */
    enum clb_greed greed;
};

static uint32_t number(struct clb_regex *r, bool *there)
{
    uint32_t v = 0;

    for (*there = false; r->p < r->end && *r->p >= '0' && *r->p <= '9' && v < 1000; r->p++) {
        v = v * 10 + (uint32_t)(*r->p - '0');
        *there = true;
    }
    return v;
}

/* {n}, {n,}, {,m}, {n,m} */
static void parse_braces(struct clb_regex *r, struct times *t)
{
    const char *at = r->p++;
    bool least, most = false;

    t->least = number(r, &least);
    t->most = t->least;
    if (r->p < r->end && *r->p == ',') {
        r->p++;
        t->most = number(r, &most);
        if (!most)
            t->most = UINT32_MAX;
    }
    if ((!least && !most) || r->p == r->end || *r->p++ != '}' || t->most < t->least ||
        (t->most >= 1000 && t->most != UINT32_MAX) || t->least >= 1000)
        clb_regex_refuse(r, at, "a repetition that is not understood");
    t->greed = CLB_GREEDY;
    if (!r->failed && r->p < r->end && (*r->p == '?' || *r->p == '+'))
        clb_regex_refuse(r, at, "a repetition in braces with ? or + behind it");
}

/* False: no repetition here. */
static bool parse_times(struct clb_regex *r, struct times *t)
{
    if (r->p == r->end || !strchr("*+?{", *r->p) || !*r->p)
        return false;
    if (*r->p == '{') {
        parse_braces(r, t);
    } else {
        char c = *r->p++;
        *t = (struct times){ c == '+', c == '?' ? 1 : UINT32_MAX, CLB_GREEDY };
        if (r->p < r->end && (*r->p == '?' || *r->p == '+'))
            t->greed = *r->p++ == '?' ? CLB_LAZY : CLB_POSSESSIVE;
    }
    if (r->p < r->end && *r->p && strchr("*+?{", *r->p))
        clb_regex_refuse(r, r->p, "a repetition of a repetition");
    return !r->failed;
}

/* The set that the single instruction at `start` takes a character of. */
static uint32_t as_set(struct clb_regex *r, uint32_t start)
{
    uint32_t word = r->code[start];

    if ((word & 255) == CLB_P_SET)
        return word >> 8;
    uint32_t *set = clb_regex_set_new(r);
    if (!set)
        return 0;
    clb_regex_set_range(r, set, word >> 8, word >> 8);
    clb_regex_set_done(set);
    return r->n_set - 1;
}

/* The block [start, n) again and again: copies for `least`, then a loop or nested options. */
static void repeat_block(struct clb_regex *r, uint32_t start, const struct times *t)
{
    uint32_t split = t->greed == CLB_LAZY ? CLB_P_SPLIT_LAZY : CLB_P_SPLIT, size = r->n - start;
    uint32_t copies = t->most == UINT32_MAX ? t->least + 1 : t->most;

    if ((uint64_t)copies * (size + 2) > CLB_REGEX_CODE || copies == 0) {
        clb_regex_refuse(r, r->p, "a repetition that is too large");
        return;
    }
    for (uint32_t i = 1; i < copies; i++)
        for (uint32_t k = 0; k < size; k++)
            emit(r, r->code[start + k]);
    uint32_t from = start + t->least * size;
    if (t->most == UINT32_MAX) {
        insert(r, from, 1);
        emit(r, CLB_P_BACK | (r->n - from) << 8);
        patch(r, from, split);
        return;
    }
    for (uint32_t i = t->least; i < copies; i++) { /* x(x(x)?)? : each option covers the rest */
        uint32_t at = from + (i - t->least) * (size + 1);
        insert(r, at, 1);
    }
    for (uint32_t i = t->least; i < copies; i++)
        patch(r, from + (i - t->least) * (size + 1), split);
}

static void repeat_atom(struct clb_regex *r, uint32_t start, uint32_t least, const struct times *t)
{
    uint32_t op = r->code[start] & 255;

    if (r->n == start + 1 && (op == CLB_P_CHAR || op == CLB_P_SET)) {
        uint32_t set = as_set(r, start);
        r->n = start;
        emit(r, CLB_P_REPEAT | set << 8);
        emit(r, t->greed);
        emit(r, t->least);
        emit(r, t->most);
        return;
    }
    if (least == 0 && t->most == UINT32_MAX) {
        clb_regex_refuse(r, r->p, "a repetition of what may be empty");
        return;
    }
    if (t->greed == CLB_POSSESSIVE) {
        struct times greedy = { t->least, t->most, CLB_GREEDY };
        repeat_block(r, start, &greedy);
        insert(r, start, 1);
        emit(r, CLB_P_END);
        patch(r, start, CLB_P_ATOMIC);
        return;
    }
    repeat_block(r, start, t);
}

/* -- the whole -------------------------------------------------------------------------------- */

/* Least number of characters that it matches. */
static uint32_t parse_sequence(struct clb_regex *r)
{
    uint32_t least = 0;

    r->last_fold = 0;
    while (r->p < r->end && *r->p != '|' && *r->p != ')') {
        uint32_t start = r->n, atom = parse_atom(r);
        struct times t = { 1, 1, CLB_GREEDY };
        if (!r->failed && parse_times(r, &t) && !r->failed) {
            repeat_atom(r, start, atom, &t);
            r->last_fold = 0;
        }
        least += atom * t.least;
    }
    return least;
}

static uint32_t parse_alternatives(struct clb_regex *r)
{
    uint32_t start = r->n, least = parse_sequence(r);

    if (r->failed || r->p == r->end || *r->p != '|')
        return least;
    r->p++;
    insert(r, start, 1);
    uint32_t jump = r->n;
    emit(r, 0);
    patch(r, start, CLB_P_SPLIT);
    if (++r->depth > 4 * CLB_REGEX_DEPTH)
        clb_regex_refuse(r, r->p, "too many alternatives");
    uint32_t other = parse_alternatives(r);
    r->depth--;
    patch(r, jump, CLB_P_JUMP);
    return other < least ? other : least;
}

static void write_program(const struct clb_regex *r, struct clb_text *out)
{
    uint32_t head[2] = { r->n, r->n_set };

    clb_text_add(out, head, sizeof head);
    for (uint32_t i = 0; i < r->n_set; i++) {
        uint32_t at = 2 + r->n_set + r->n + r->set_at[i];
        clb_text_add(out, &at, sizeof at);
    }
    clb_text_add(out, r->code, r->n * sizeof *r->code);
    clb_text_add(out, r->set, r->n_word * sizeof *r->set);
}

bool clb_hf_regex_compile(struct clb_text *out, struct clb_str pattern, struct clb_err *err)
{
    struct clb_regex r = {
        .pattern = pattern, .p = pattern.p, .end = pattern.p + pattern.n, .err = err
    };

    if (pattern.n && memchr(pattern.p, 0, pattern.n))
        clb_regex_refuse(&r, pattern.p, "a NUL");
    uint32_t least = parse_alternatives(&r);
    if (!r.failed && r.p < r.end)
        clb_regex_refuse(&r, r.p, "a parenthesis too many");
    if (!r.failed && !least)
        clb_regex_refuse(&r, pattern.p, "a match that may be empty");
    emit(&r, CLB_P_END);
    if (r.failed)
        return false;
    write_program(&r, out);
    return true;
}
