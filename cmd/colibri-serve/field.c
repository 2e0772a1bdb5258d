#include "cmd/colibri-serve/field.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include "lib/base/json.h"

/* Our own reader first: it is strict, refuses what occurs twice, limits the depth, and says where.
 * Then json-c's makes the tree. */
static bool check(struct clb_str text, struct serve_refusal *no)
{
    struct clb_json j;
    struct clb_err err;

    clb_json_open(&j, text.p, text.n, "body");
    clb_json_skip(&j, NULL);
    if (clb_json_close(&j, &err))
        return true;
    if (err.code == CLB_NO_SPACE)
        return serve_refuse(no, 503, "no_memory", "%s", err.text);
    serve_refuse(no, 400, "invalid_json", "%.480s", err.text);
    snprintf(no->param, sizeof no->param, "%.63s", err.field);
    return false;
}

struct json_object *serve_parse(struct clb_str text, struct serve_refusal *no)
{
    size_t blank = 0;

    while (blank < text.n && isspace((unsigned char)text.p[blank]))
        blank++;
    if (blank == text.n) {
        serve_refuse(no, 400, "empty_body", "the body is empty; it must be a JSON object");
        return NULL;
    }
    if (!check(text, no))
        return NULL;
    struct json_tokener *t = json_tokener_new_ex(CLB_JSON_DEPTH + 1);
    struct json_object *o = t ? json_tokener_parse_ex(t, text.p, (int)text.n) : NULL;
    if (t && json_tokener_get_error(t) == json_tokener_continue) /* "5" may go on */
        o = json_tokener_parse_ex(t, "\n", 1);
    bool read = t && json_tokener_get_error(t) == json_tokener_success;
    if (t)
        json_tokener_free(t);
    if (!read)
        serve_refuse(no, 503, "no_memory", "no memory for a body of %zu bytes", text.n);
    else if (!json_object_is_type(o, json_type_object))
        serve_refuse(no, 400, "invalid_json", "the body is %s; it must be an object",
                     serve_type_of(o));
    else
        return o;
    json_object_put(o);
    return NULL;
}

const char *serve_type_of(const struct json_object *value)
{
    static const char *const name[] = {
        [json_type_null] = "null",        [json_type_boolean] = "true or false",
        [json_type_double] = "a number",  [json_type_int] = "a whole number",
        [json_type_object] = "an object", [json_type_array] = "an array",
        [json_type_string] = "a string",
    };

    return name[json_object_get_type(value)];
}

static bool wrong_type(struct serve_refusal *no, const char *name, struct json_object *value,
                       const char *want)
{
    return serve_refuse_field(no, name, "is %s; it must be %s", serve_type_of(value), want);
}

bool serve_read_text(struct json_object *value, const char *name, struct clb_str *text,
                     struct serve_refusal *no)
{
    if (!json_object_is_type(value, json_type_string))
        return wrong_type(no, name, value, "a string");
    *text = (struct clb_str){ json_object_get_string(value),
                              (size_t)json_object_get_string_len(value) };
    return true;
}

static bool is_number(struct json_object *value)
{
    return json_object_is_type(value, json_type_int) ||
           json_object_is_type(value, json_type_double);
}

bool serve_read_number(struct json_object *value, const char *name, double lo, double hi,
                       float *number, struct serve_refusal *no)
{
    double d = is_number(value) ? json_object_get_double(value) : 0;

    if (!is_number(value))
        return wrong_type(no, name, value, "a number");
    if (!isfinite(d) || d < lo || d > hi)
        return serve_refuse_field(no, name, "is %.40s; it must be from %g to %g",
                                  json_object_get_string(value), lo, hi);
    *number = (float)d;
    return true;
}

/* 16.0 is one, too: in some languages all numbers are written like that. */
static bool is_whole(struct json_object *value)
{
    double d = json_object_is_type(value, json_type_double) ? json_object_get_double(value) : 0.5;

    return json_object_is_type(value, json_type_int) || (fabs(d) < 0x1p53 && d == floor(d));
}

static bool read_count(struct json_object *value, const struct serve_field *f, uint32_t *count,
                       struct serve_refusal *no)
{
    if (!is_whole(value))
        return wrong_type(no, f->name, value, "a whole number");
    int64_t i = json_object_get_int64(value); /* a larger one saturates */
    if ((double)i < f->lo || (double)i > f->hi)
        return serve_refuse_field(no, f->name, "is %.40s; it must be from %.0f to %.0f",
                                  json_object_get_string(value), f->lo, f->hi);
    *count = i < 0 ? 0 : (uint32_t)i;
    return true;
}

/* 64 bits of either sign. What is beyond json-c makes the largest or the smallest, which so cannot
 * be told from it. */
static bool read_seed(struct json_object *value, const struct serve_field *f, uint64_t *seed,
                      struct serve_refusal *no)
{
    if (!is_whole(value))
        return wrong_type(no, f->name, value, "a whole number of 64 bits");
    int64_t i = json_object_get_int64(value);
    *seed = i < 0 ? (uint64_t)i : json_object_get_uint64(value);
    return (i != INT64_MIN && *seed != UINT64_MAX) || i == -1 ||
           serve_refuse_field(no, f->name, "does not fit in 64 bits");
}

static bool is_empty(struct json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        return true;
    case json_type_boolean:
        return !json_object_get_boolean(value);
    case json_type_string:
        return json_object_get_string_len(value) == 0 ||
               !strcmp(json_object_get_string(value), "none");
    case json_type_array:
        return json_object_array_length(value) == 0;
    case json_type_object:
        return json_object_object_length(value) == 0;
    default:
        return false;
    }
}

static bool read_one(const struct serve_field *f, struct json_object *value, void *to, void *arg,
                     struct serve_refusal *no)
{
    char *at = (char *)to + f->at;
    float number;

    switch (f->kind) {
    case SERVE_FIELD_BOOL:
        if (!json_object_is_type(value, json_type_boolean))
            return wrong_type(no, f->name, value, "true or false");
        *(bool *)at = json_object_get_boolean(value);
        return true;
    case SERVE_FIELD_COUNT:
        return read_count(value, f, (uint32_t *)(void *)at, no);
    case SERVE_FIELD_NUMBER:
        return serve_read_number(value, f->name, f->lo, f->hi, (float *)(void *)at, no);
    case SERVE_FIELD_SEED:
        return read_seed(value, f, (uint64_t *)(void *)at, no);
    case SERVE_FIELD_ONLY:
        if (!serve_read_number(value, f->name, -INFINITY, INFINITY, &number, no))
            return false;
        return (double)number == f->lo ||
               serve_refuse_field(no, f->name, "is not supported; only %g is", f->lo);
    case SERVE_FIELD_EMPTY:
        return is_empty(value) || serve_refuse_field(no, f->name, "is not supported");
    case SERVE_FIELD_TRUE:
        if (!json_object_is_type(value, json_type_boolean))
            return wrong_type(no, f->name, value, "true or false");
        return json_object_get_boolean(value) ||
               serve_refuse_field(no, f->name, "is not supported; only true is");
    case SERVE_FIELD_ANY:
        return true;
    case SERVE_FIELD_TAKE:
        break;
    }
    return f->take(arg, value, f->name, no);
}

bool serve_read_fields(const struct serve_field *table, unsigned where, struct json_object *object,
                       void *to, void *arg, struct serve_refusal *no)
{
    struct json_object_iterator i = json_object_iter_begin(object),
                                end = json_object_iter_end(object);

    for (; !json_object_iter_equal(&i, &end); json_object_iter_next(&i)) {
        const char *name = json_object_iter_peek_name(&i);
        struct json_object *value = json_object_iter_peek_value(&i);
        const struct serve_field *f = table;
        while (f->name && (!(f->where & where) || strcmp(f->name, name)))
            f++;
        if (!f->name) {
            serve_refuse_field(no, name, "is not a field of this request");
            no->code = "unknown_field";
            return false;
        }
        if (value && !read_one(f, value, to, arg, no))
            return false;
    }
    return true;
}
