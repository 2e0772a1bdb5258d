#include "lib/import/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mapfile.h"
#include "lib/base/mem.h"
#include "lib/import/shard_index.h"

/* The largest published texts (tokenizers, indexes) have some 30 MB. */
enum { MOST_TEXT = 256 << 20 };

static const char single[] = "model.safetensors";

static const char *const text_name[CLB_CKPT_TEXTS] = {
    [CLB_CKPT_CONFIG] = "config.json",
    [CLB_CKPT_GENERATION] = "generation_config.json",
    [CLB_CKPT_TOKENIZER] = "tokenizer.json",
    [CLB_CKPT_TOKENIZER_MODEL] = "tokenizer.model",
    [CLB_CKPT_TIKTOKEN] = "tiktoken.model",
    [CLB_CKPT_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [CLB_CKPT_CHAT_TEMPLATE] = "chat_template.jinja",
    [CLB_CKPT_INDEX] = "model.safetensors.index.json",
};

const char *clb_checkpoint_text_name(const struct clb_checkpoint *c, int text)
{
    const char *slash;

    if (text != CLB_CKPT_MAP)
        return text_name[text];
    slash = strrchr(c->text[text].path, '/');
    return slash ? slash + 1 : c->text[text].path;
}

/* "dir/name"; NULL without memory. Owned by the caller. */
static char *path_of(const struct clb_checkpoint *c, const char *name, struct clb_err *err)
{
    size_t n = strlen(c->dir) + strlen(name) + 2;
    char *path = clb_new(n, 1, err);

    if (path)
        snprintf(path, n, "%s/%s", c->dir, name);
    return path;
}

static bool exists(const struct clb_checkpoint *c, const char *name)
{
    struct clb_err ignored;
    struct stat st;
    char *path = path_of(c, name, &ignored);
    bool there = path && (stat(path, &st) == 0 || errno != ENOENT);

    clb_free(path);
    return there;
}

/* Reads the whole file: unlike a mapping, a copy cannot vanish when somebody cuts the file. */
static bool read_text(struct clb_ckpt_file *f, const struct clb_mapfile *m, struct clb_err *err)
{
    const char *what;

    if (m->size > MOST_TEXT) {
        clb_fail(err, CLB_UNSUPPORTED, "%s: %zu bytes, but at most %d are read of such a file",
                 f->path, m->size, MOST_TEXT);
        return clb_err_place(err, f->path, NULL, CLB_NO_OFFSET);
    }
    if (!(f->data = clb_new(m->size, 1, err)) || !clb_mapfile_read(m, f->data, 0, m->size, err))
        return false;
    f->size = m->size;
    what = clb_import_not_the_file(f->data, f->size < 512 ? f->size : 512);
    if (!what)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "%s: %s", f->path, what);
    return clb_err_place(err, f->path, NULL, 0);
}

/* path is taken over. */
static bool open_text(struct clb_ckpt_file *f, char *path, struct clb_err *err)
{
    struct clb_mapfile m = { .fd = -1 };
    bool ok;

    f->path = path;
    ok = f->path && clb_mapfile_open(&m, f->path, err) && read_text(f, &m, err);
    clb_mapfile_close(&m);
    return ok;
}

static bool has_tokenizer(const struct clb_checkpoint *c)
{
    return c->text[CLB_CKPT_TOKENIZER].path || c->text[CLB_CKPT_TOKENIZER_MODEL].path;
}

bool clb_checkpoint_open(struct clb_checkpoint *c, const char *dir, struct clb_err *err)
{
    struct stat st;
    size_t n = strlen(dir);

    *c = (struct clb_checkpoint){ 0 };
    while (n > 1 && dir[n - 1] == '/')
        n--;
    c->dir = clb_strdup(dir, err);
    if (!c->dir)
        return false;
    c->dir[n] = 0;
    if (stat(c->dir, &st) != 0) {
        clb_fail_sys(err, CLB_BAD_INPUT, "%s", c->dir);
        return clb_err_place(err, c->dir, NULL, CLB_NO_OFFSET);
    }
    if (!S_ISDIR(st.st_mode)) {
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: not a folder; the folder of a Hugging Face checkpoint is expected", c->dir);
        return clb_err_place(err, c->dir, NULL, CLB_NO_OFFSET);
    }
    for (int i = 0; i < CLB_CKPT_MAP; i++) {
        if ((i == CLB_CKPT_TOKENIZER_MODEL || i == CLB_CKPT_TIKTOKEN) && has_tokenizer(c))
            continue;
        if (exists(c, text_name[i]) && !open_text(&c->text[i], path_of(c, text_name[i], err), err))
            return false;
    }
    if (c->text[CLB_CKPT_CONFIG].path)
        return true;
    clb_fail(err, CLB_BAD_INPUT,
             "%s: no config.json; the folder of a Hugging Face checkpoint is expected", c->dir);
    return clb_err_place(err, c->dir, NULL, CLB_NO_OFFSET);
}

bool clb_checkpoint_open_map(struct clb_checkpoint *c, const char *path, struct clb_err *err)
{
    struct clb_ckpt_file *f = &c->text[CLB_CKPT_MAP];

    if (!open_text(f, clb_strdup(path, err), err))
        return false;
    for (int i = 0; i < CLB_CKPT_MAP; i++)
        if (!strcmp(clb_checkpoint_text_name(c, CLB_CKPT_MAP), text_name[i]))
            return clb_fail(err, CLB_USAGE,
                            "--map %s: a file of a checkpoint has this name; give the map another",
                            path);
    return true;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);

    return n > n_end && !strcmp(name + n - n_end, end);
}

char *clb_checkpoint_ending(const struct clb_checkpoint *c, const char *end, struct clb_err *err)
{
    DIR *dir = opendir(c->dir);
    struct dirent *e;
    char *path = NULL, first[sizeof e->d_name] = "";

    while (dir && (e = readdir(dir)))
        if (ends_in(e->d_name, end) && (!*first || strcmp(e->d_name, first) < 0))
            memcpy(first, e->d_name, strlen(e->d_name) + 1);
    if (dir)
        closedir(dir);
    *err = (struct clb_err){ .code = CLB_OK };
    if (*first)
        path = path_of(c, first, err);
    return path;
}

static bool is_weights(const char *name)
{
    static const char *const end[] = { ".safetensors", ".bin", ".pth", ".pt", ".gguf" };

    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (ends_in(name, end[i]))
            return true;
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Weight files of the folder that no index names, sorted; at most `room`, *more are left out. */
static uint32_t unused_files(const struct clb_checkpoint *c, char *name[], uint32_t room,
                             uint32_t *more)
{
    DIR *dir = opendir(c->dir);
    uint32_t n = 0;
    struct dirent *e;
    struct clb_err ignored;

    *more = 0;
    while (dir && (e = readdir(dir))) {
        const char *key = e->d_name;

        if (!is_weights(key))
            continue;
        if (c->n_shard && bsearch(&key, c->shard_name, c->n_shard, sizeof *c->shard_name, by_text))
            continue;
        if (n < room && (name[n] = clb_strdup(key, &ignored)))
            n++;
        else
            ++*more;
    }
    if (dir)
        closedir(dir);
    qsort(name, n, sizeof *name, by_text);
    return n;
}

static void note_unused(const struct clb_checkpoint *c, struct clb_text *notes)
{
    char *name[64];
    uint32_t more, n = unused_files(c, name, 64, &more);

    for (uint32_t i = 0; i < n; i++) {
        clb_note(notes, "%s: not used: %s", name[i],
                 c->text[CLB_CKPT_INDEX].path ? "the index does not name it" : "no index names it");
        clb_free(name[i]);
    }
    if (more)
        clb_note(notes, "and %u more weight files that are not used", more);
}

/* Without weights of the right kind: says which of the wrong kind are there. */
static bool no_weights(const struct clb_checkpoint *c, struct clb_err *err)
{
    char *name[8];
    uint32_t more, n = unused_files(c, name, 8, &more);

    if (n)
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: no model.safetensors and no model.safetensors.index.json; '%s' is not read: "
                 "only safetensors with these names are",
                 c->dir, name[0]);
    else
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: no weights: neither model.safetensors nor model.safetensors.index.json",
                 c->dir);
    for (uint32_t i = 0; i < n; i++)
        clb_free(name[i]);
    return clb_err_place(err, c->dir, NULL, CLB_NO_OFFSET);
}

/* Fills shard_name from the index, or with the one file. */
static bool name_shards(struct clb_checkpoint *c, const struct clb_shard_index *ix,
                        struct clb_err *err)
{
    uint32_t n = ix->n_file ? ix->n_file : 1;

    c->shard_name = clb_new(n, sizeof *c->shard_name, err);
    c->shard = clb_new(n, sizeof *c->shard, err);
    if (!c->shard_name || !c->shard)
        return false;
    for (; c->n_shard < n; c->n_shard++) {
        c->shard_name[c->n_shard] = clb_strdup(ix->n_file ? ix->file[c->n_shard] : single, err);
        if (!c->shard_name[c->n_shard])
            return false;
        if (!exists(c, c->shard_name[c->n_shard]))
            clb_problem(&c->problems, "shard '%s' is missing, but the index names it",
                        c->shard_name[c->n_shard]);
    }
    return clb_problems_none(&c->problems, c->dir, err);
}

static int by_name(const void *pa, const void *pb)
{
    const struct clb_ckpt_tensor *a = pa, *b = pb;
    int order = strcmp(a->t->name, b->t->name);

    return order ? order : (a->shard > b->shard) - (a->shard < b->shard);
}

static bool open_headers(struct clb_checkpoint *c, struct clb_err *err)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->n_shard; i++) {
        char *path = path_of(c, c->shard_name[i], err);
        bool ok = path && clb_safetensors_open(&c->shard[i], path, err);

        clb_free(path);
        if (!ok)
            return false;
        n += c->shard[i].n_tensor;
    }
    c->tensor = n <= UINT32_MAX ? clb_new(n, sizeof *c->tensor, err) : NULL;
    if (!c->tensor)
        return n <= UINT32_MAX ? false
                               : clb_fail(err, CLB_BAD_INPUT, "%s: too many tensors", c->dir);
    for (uint32_t i = 0; i < c->n_shard; i++)
        for (uint32_t k = 0; k < c->shard[i].n_tensor; k++)
            c->tensor[c->n_tensor++] = (struct clb_ckpt_tensor){ &c->shard[i].tensor[k], i };
    qsort(c->tensor, c->n_tensor, sizeof *c->tensor, by_name);
    for (uint32_t i = 1; i < c->n_tensor; i++)
        if (!strcmp(c->tensor[i - 1].t->name, c->tensor[i].t->name))
            clb_problem(&c->problems, "tensor '%s' is in '%s' and in '%s'", c->tensor[i].t->name,
                        c->shard_name[c->tensor[i - 1].shard], c->shard_name[c->tensor[i].shard]);
    return true;
}

/* Both lists are sorted by name: one walk finds what only one of them has. */
static void compare(struct clb_checkpoint *c, const struct clb_shard_index *ix)
{
    uint32_t i = 0, k = 0;

    while (i < ix->n_entry || k < c->n_tensor) {
        const struct clb_index_entry *e = &ix->entry[i];
        const struct clb_ckpt_tensor *t = &c->tensor[k];
        int order = i == ix->n_entry ? 1 : k == c->n_tensor ? -1 : strcmp(e->tensor, t->t->name);

        if (order < 0) {
            clb_problem(&c->problems,
                        "tensor '%s': the index says it is in '%s', but no shard has it", e->tensor,
                        ix->file[e->file]);
            i++;
        } else if (order > 0) {
            clb_problem(&c->problems, "tensor '%s' of '%s' is not in the index", t->t->name,
                        c->shard_name[t->shard]);
            k++;
        } else {
            if (e->file != t->shard)
                clb_problem(&c->problems,
                            "tensor '%s': the index says it is in '%s', but it is in '%s'",
                            e->tensor, ix->file[e->file], c->shard_name[t->shard]);
            i++;
            do /* a name that two shards have was reported before */
                k++;
            while (k < c->n_tensor && !strcmp(c->tensor[k].t->name, e->tensor));
        }
    }
}

/* Loaders disagree about which of the two they prefer. */
static bool check_single(const struct clb_checkpoint *c, const struct clb_shard_index *ix,
                         struct clb_err *err)
{
    if (!c->text[CLB_CKPT_INDEX].path)
        return exists(c, single) || no_weights(c, err);
    for (uint32_t i = 0; i < ix->n_file; i++)
        if (!strcmp(ix->file[i], single))
            return true;
    if (!exists(c, single))
        return true;
    clb_fail(err, CLB_BAD_INPUT, "%s: has %s, and %s that does not name it; remove one of them",
             c->dir, single, text_name[CLB_CKPT_INDEX]);
    return clb_err_place(err, c->dir, NULL, CLB_NO_OFFSET);
}

bool clb_checkpoint_open_shards(struct clb_checkpoint *c, struct clb_text *notes,
                                struct clb_err *err)
{
    const struct clb_ckpt_file *m = &c->text[CLB_CKPT_INDEX];
    struct clb_shard_index ix = { 0 };
    bool ok = false;

    if (m->path && !clb_shard_index_read(&ix, (const char *)m->data, m->size, m->path, err))
        goto done;
    if (!check_single(c, &ix, err) || !name_shards(c, &ix, err) || !open_headers(c, err))
        goto done;
    if (m->path)
        compare(c, &ix);
    note_unused(c, notes);
    ok = clb_problems_none(&c->problems, c->dir, err);
done:
    clb_shard_index_free(&ix);
    return ok;
}

static int has_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct clb_ckpt_tensor *)tensor)->t->name);
}

const struct clb_ckpt_tensor *clb_checkpoint_find(const struct clb_checkpoint *c, const char *name)
{
    return bsearch(name, c->tensor, c->n_tensor, sizeof *c->tensor, has_name);
}

void clb_checkpoint_close(struct clb_checkpoint *c)
{
    for (int i = 0; i < CLB_CKPT_TEXTS; i++) {
        clb_free(c->text[i].path);
        clb_free(c->text[i].data);
    }
    for (uint32_t i = 0; i < c->n_shard; i++) {
        clb_safetensors_close(&c->shard[i]);
        clb_free(c->shard_name[i]);
    }
    clb_free(c->shard);
    clb_free(c->shard_name);
    clb_free(c->tensor);
    clb_free(c->dir);
    clb_problems_free(&c->problems);
    *c = (struct clb_checkpoint){ 0 };
}

bool clb_checkpoint_has(const struct clb_checkpoint *c, const char *path)
{
    struct stat want, st;
    struct dirent *e;
    bool found = false;
    DIR *dir;

    if (stat(path, &want) != 0)
        return false;
    if (c->text[CLB_CKPT_MAP].path && stat(c->text[CLB_CKPT_MAP].path, &st) == 0 &&
        st.st_dev == want.st_dev && st.st_ino == want.st_ino)
        return true;
    if (!(dir = opendir(c->dir)))
        return false;
    while (!found && (e = readdir(dir)))
        found = fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && st.st_dev == want.st_dev &&
                st.st_ino == want.st_ino;
    closedir(dir);
    return found;
}
