/* hf_tokenizer_fields.c - the small objects of a tokenizer.json: {"type": ..., a few known fields}.
 */
#include <stdio.h>

#include "lib/import/hf_regex.h"
#include "lib/import/hf_tokenizer_impl.h"
#include "lib/token/pattern.h"
#include "lib/token/utf8.h"

static const char *const field_name[] = {
    "prepend",      "pattern",
    "content",      "behavior",
    "invert",       "individual_digits",
    "replacement",  "prepend_scheme",
    "split",        "add_prefix_space",
    "trim_offsets", "use_regex",
    "strip_left",   "strip_right",
    "start",        "stop",
    "suffix",       "",
    "str_rep",      "sep",
    "cls",          "single",
    "pair",         "special_tokens",
};
enum { N_FIELD = sizeof field_name / sizeof *field_name };
static const char *const list_name[] = { "normalizers", "pretokenizers", "processors", "decoders" };

static struct clb_span keep(struct hf *h, struct clb_str s)
{
    struct clb_span span = { (uint32_t)h->scratch.n, (uint32_t)s.n };

    clb_text_add(&h->scratch, s.p, s.n);
    return h->scratch.failed ? (struct clb_span){ 0, 0 } : span;
}

struct clb_str clb_hf_string(const struct hf *h, struct clb_span s)
{
    return (struct clb_str){ h->scratch.p ? h->scratch.p + s.at : "", s.n };
}

/* {"String": s} or {"Regex": s} */
static void read_pattern(struct hf *h, struct clb_json *j, struct hf_fields *f)
{
    struct clb_str key;
    unsigned n = 0;

    for (clb_json_object(j); clb_json_key(j, &key); n++) {
        bool regex = clb_str_is(key, "Regex");
        if (!regex && !clb_str_is(key, "String"))
            clb_json_fail(j, "a pattern is a String or a Regex, not '%.*s'", (int)key.n, key.p);
        f->pattern_raw = (struct clb_str){ j->text + j->at, 0 };
        f->pattern = keep(h, clb_json_string(j));
        f->is_regex = regex;
    }
    if (clb_json_ok(j) && n != 1)
        clb_json_fail(j, "a pattern has one of String and Regex");
}

/* The index of the string in the list; complains with all that were expected. */
static unsigned choose(struct clb_json *j, const char *const list[], unsigned n)
{
    struct clb_str s = clb_json_string(j);
    char all[128] = "";

    for (unsigned i = 0; i < n; i++) {
        if (clb_str_is(s, list[i]))
            return i;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", list[i]);
    }
    clb_json_fail(j, "'%.*s' is none of %s", (int)s.n, s.p, all);
    return 0;
}

static void read_scheme(struct clb_json *j, struct hf_fields *f)
{
    static const char *const scheme[] = { "always", "first", "never" };
    unsigned i = choose(j, scheme, 3);

    f->never = i == 2;
    f->scheme = i == 1 ? CLB_PREPEND_MISSING_FIRST : CLB_PREPEND_MISSING;
}

static void read_behavior(struct clb_json *j, struct hf_fields *f)
{
    static const char *const behavior[] = { [CLB_REMOVED] = "Removed",
                                            [CLB_ISOLATED] = "Isolated",
                                            [CLB_CONTIGUOUS] = "Contiguous",
                                            [CLB_MERGED_PREVIOUS] = "MergedWithPrevious",
                                            [CLB_MERGED_NEXT] = "MergedWithNext" };
    f->behavior = (enum clb_behavior)choose(j, behavior, 5);
}

/* Where a field goes that is true or false; NULL: it is of another kind. */
static bool *flag_of(struct hf_fields *f, enum hf_field field)
{
    switch (field) {
    case HF_INVERT:
        return &f->invert;
    case HF_INDIVIDUAL_DIGITS:
        return &f->individual_digits;
    case HF_SPLIT:
        return &f->split;
    case HF_ADD_PREFIX_SPACE:
        return &f->add_prefix_space;
    case HF_USE_REGEX:
        return &f->use_regex;
    case HF_STRIP_LEFT:
        return &f->strip_left;
    case HF_STRIP_RIGHT:
        return &f->strip_right;
    default:
        return NULL;
    }
}

/* Where a field goes that is kept as text, to be read later; NULL: it is not. */
static struct clb_str *raw_of(struct hf_fields *f, enum hf_field field)
{
    switch (field) {
    case HF_LIST:
        return &f->list;
    case HF_SEP:
        return &f->sep;
    case HF_CLS:
        return &f->cls;
    case HF_SINGLE:
        return &f->single;
    case HF_SPECIAL_TOKENS:
        return &f->special_tokens;
    default: /* HF_PAIR: two texts at once are never encoded; HF_STR_REP repeats the replacement */
        return NULL;
    }
}

static void read_field(struct hf *h, struct clb_json *j, enum hf_field field, struct hf_fields *f)
{
    bool *flag = flag_of(f, field);

    switch (field) {
    case HF_PREPEND:
    case HF_REPLACEMENT:
    case HF_SUFFIX:
        f->text = keep(h, clb_json_string(j));
        break;
    case HF_CONTENT:
        f->content = keep(h, clb_json_string(j));
        break;
    case HF_PATTERN:
        read_pattern(h, j, f);
        break;
    case HF_BEHAVIOR:
        read_behavior(j, f);
        break;
    case HF_PREPEND_SCHEME:
        read_scheme(j, f);
        break;
    case HF_TRIM_OFFSETS:
        clb_json_bool(j);
        break;
    case HF_START:
        f->start = (uint32_t)clb_json_u64(j, UINT32_MAX);
        break;
    case HF_STOP:
        f->stop = (uint32_t)clb_json_u64(j, UINT32_MAX);
        break;
    default:
        if (flag)
            *flag = clb_json_bool(j);
        else
            clb_json_skip(j, raw_of(f, field));
    }
}

static uint32_t field_of(struct clb_str key)
{
    for (size_t i = 0; i < sizeof list_name / sizeof *list_name; i++)
        if (clb_str_is(key, list_name[i]))
            return HF_LIST;
    for (unsigned i = 0; i < N_FIELD; i++)
        if (key.n && clb_str_is(key, field_name[i]))
            return 1u << i;
    return 0;
}

bool clb_hf_read_fields(struct hf *h, struct clb_str raw, struct hf_fields *f)
{
    struct clb_json j;
    struct clb_str key;

    *f = (struct hf_fields){ .raw = raw, .use_regex = true, .split = true };
    clb_text_clear(&h->scratch);
    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        uint32_t field = field_of(key);
        if (clb_str_is(key, "type")) {
            struct clb_str type = clb_json_string(&j);
            snprintf(f->type, sizeof f->type, "%.*s", (int)type.n, type.p);
        } else if (field) {
            f->given |= field;
            read_field(h, &j, (enum hf_field)field, f);
        } else {
            clb_hf_unknown(&j, key);
        }
    }
    if (!clb_json_close(&j, h->err))
        return false;
    if (h->scratch.failed)
        return clb_fail_nomem(h->err, raw.n);
    if (!f->type[0])
        return clb_hf_refuse(h, raw, "this object has no 'type'");
    return true;
}

bool clb_hf_check_fields(struct hf *h, const struct hf_fields *f, uint32_t must, uint32_t may)
{
    for (unsigned i = 0; i < N_FIELD; i++) {
        const char *name = 1u << i == HF_LIST ? "a list of steps" : field_name[i];
        if (must >> i & 1 && !(f->given >> i & 1))
            return clb_hf_refuse(h, f->raw, "'%s' lacks '%s'", f->type, name);
        if (f->given >> i & 1 && !((must | may) >> i & 1))
            return clb_hf_refuse(h, f->raw, "'%s' with '%s' is not understood", f->type, name);
    }
    return true;
}

bool clb_hf_pattern(struct hf *h, const struct hf_fields *f, struct clb_step *step)
{
    struct clb_str s = clb_hf_string(h, f->pattern);

    if (!s.n)
        return clb_hf_refuse(h, f->pattern_raw, "an empty pattern is not supported");
    if (!f->is_regex) {
        step->find = CLB_FIND_TEXT;
        step->text = clb_build_string(&h->b, s);
        return true;
    }
    step->find = clb_pattern_known(s);
    if (step->find != CLB_FIND_NONE)
        return true;
    size_t at = h->b.programs.n;
    if (!clb_hf_regex_compile(&h->b.programs, s, h->err)) {
        char why[sizeof h->err->text];
        snprintf(why, sizeof why, "%s", h->err->text);
        return clb_hf_refuse(h, f->pattern_raw, "the pattern '%.*s%s' is not supported: %s",
                             (int)(s.n > 60 ? 60 : s.n), s.p, s.n > 60 ? "..." : "", why);
    }
    step->find = CLB_FIND_PROGRAM;
    step->text = (struct clb_span){ (uint32_t)(at / 4), (uint32_t)((h->b.programs.n - at) / 4) };
    return true;
}

bool clb_hf_each(struct hf *h, struct clb_str list, int depth,
                 bool (*part)(struct hf *h, struct clb_str raw, int depth))
{
    struct clb_json j;
    struct clb_str item;
    bool ok = true;

    if (depth > 8)
        return clb_hf_refuse(h, list, "sequences are nested more than 8 deep");
    clb_hf_open(h, &j, list);
    clb_json_array(&j);
    while (ok && clb_json_item(&j))
        ok = clb_json_skip(&j, &item) && part(h, item, depth + 1);
    if (ok || !clb_json_ok(&j))
        return clb_json_close(&j, h->err);
    clb_json_abandon(&j);
    return false;
}
