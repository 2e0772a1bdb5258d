#include "lib/import/shard_index.h"

#include <stdlib.h>

#include "lib/base/json.h"
#include "lib/base/mem.h"

/* A plain name: hub folders are flat, and a path could lead anywhere. */
static bool plain_name(struct clb_str s)
{
    return s.n && s.n < 256 && !memchr(s.p, '/', s.n) && !memchr(s.p, 0, s.n) &&
           !clb_str_is(s, ".") && !clb_str_is(s, "..");
}

/* Appends "tensor\0file\0" pairs to the text. */
static void read_map(struct clb_shard_index *ix, struct clb_json *j)
{
    struct clb_str s;

    clb_json_object(j);
    while (clb_json_key(j, &s) && ix->n_entry < UINT32_MAX) {
        if (!s.n || memchr(s.p, 0, s.n))
            clb_json_fail(j, "a tensor name that is empty or contains a NUL");
        clb_text_add(&ix->text, s.p, s.n);
        clb_text_add(&ix->text, "", 1);
        s = clb_json_string(j);
        if (clb_json_ok(j) && !plain_name(s))
            clb_json_fail(j, "'%.*s' is not the name of a file in this folder",
                          s.n < 100 ? (int)s.n : 100, s.p);
        clb_text_add(&ix->text, s.p, s.n);
        clb_text_add(&ix->text, "", 1);
        ix->n_entry++;
    }
}

static bool parse(struct clb_shard_index *ix, const char *json, size_t n, const char *path,
                  struct clb_err *err)
{
    struct clb_json j;
    struct clb_str key;
    bool found = false;

    clb_json_open(&j, json, n, path);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "weight_map")) {
            found = true;
            read_map(ix, &j);
        } else {
            clb_json_skip(&j, NULL);
        }
    }
    if (!clb_json_close(&j, err))
        return false;
    if (ix->text.failed)
        return clb_fail_nomem(err, ix->text.n);
    if (found && ix->n_entry)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "%s: 'weight_map' %s", path, found ? "is empty" : "is missing");
    return clb_err_place(err, path, "weight_map", CLB_NO_OFFSET);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_tensor(const void *pa, const void *pb)
{
    const struct clb_index_entry *a = pa, *b = pb;

    return strcmp(a->tensor, b->tensor);
}

/* Sorts, and turns file names into indices. */
static bool settle(struct clb_shard_index *ix, struct clb_err *err)
{
    const char *p = ix->text.p;
    uint32_t n = 0;

    ix->entry = clb_new(ix->n_entry, sizeof *ix->entry, err);
    ix->file = clb_new(ix->n_entry, sizeof *ix->file, err);
    if (!ix->entry || !ix->file)
        return false;
    for (uint32_t i = 0; i < ix->n_entry; i++) {
        ix->entry[i].tensor = p;
        p += strlen(p) + 1;
        ix->file[i] = p;
        p += strlen(p) + 1;
    }
    qsort(ix->file, ix->n_entry, sizeof *ix->file, by_text);
    for (uint32_t i = 0; i < ix->n_entry; i++)
        if (i == 0 || strcmp(ix->file[i], ix->file[n - 1]))
            ix->file[n++] = ix->file[i];
    ix->n_file = n;
    for (uint32_t i = 0; i < ix->n_entry; i++) {
        const char *file = ix->entry[i].tensor + strlen(ix->entry[i].tensor) + 1;
        const char **at = bsearch(&file, ix->file, n, sizeof *ix->file, by_text);

        ix->entry[i].file = (uint32_t)(at - ix->file);
    }
    qsort(ix->entry, ix->n_entry, sizeof *ix->entry, by_tensor);
    return true;
}

bool clb_shard_index_read(struct clb_shard_index *ix, const char *json, size_t n, const char *path,
                          struct clb_err *err)
{
    *ix = (struct clb_shard_index){ 0 };
    if (parse(ix, json, n, path, err) && settle(ix, err))
        return true;
    clb_shard_index_free(ix);
    return false;
}

void clb_shard_index_free(struct clb_shard_index *ix)
{
    clb_free(ix->entry);
    clb_free(ix->file);
    clb_text_free(&ix->text);
    *ix = (struct clb_shard_index){ 0 };
}
