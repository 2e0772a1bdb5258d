#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "cmd/colibri-serve/serve.h"
#include "lib/base/mem.h"

enum { MOST = 10000, LONGEST = 512 };

struct serve_keys {
    struct clb_text bytes; /* the keys one behind the other */
    size_t end[MOST];      /* where each ends */
    size_t n;
};

void serve_keys_free(struct serve_keys *k)
{
    if (k)
        clb_text_free(&k->bytes);
    clb_free(k);
}

static struct clb_str trim(char *line, size_t n)
{
    while (n && strchr(" \t\r\n", line[n - 1]) && line[n - 1])
        n--;
    while (n && (*line == ' ' || *line == '\t')) {
        line++;
        n--;
    }
    return (struct clb_str){ line, n };
}

static bool add(struct serve_keys *k, struct clb_str key, struct clb_err *err)
{
    if (key.n == 0 || key.p[0] == '#')
        return true;
    if (key.n > LONGEST)
        return clb_fail(err, CLB_BAD_INPUT, "a key has %zu bytes; at most %d", key.n, LONGEST);
    for (size_t i = 0; i < key.n; i++)
        if (key.p[i] <= ' ' || key.p[i] > '~')
            return clb_fail(err, CLB_BAD_INPUT, "a key has a byte 0x%02x", (uint8_t)key.p[i]);
    if (k->n == MOST)
        return clb_fail(err, CLB_BAD_INPUT, "more than %d keys", MOST);
    clb_text_add(&k->bytes, key.p, key.n);
    if (k->bytes.failed)
        return clb_fail_nomem(err, key.n);
    k->end[k->n++] = k->bytes.n;
    return true;
}

static bool read_keys(struct serve_keys *k, const char *path, struct clb_err *err)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0, number = 0;
    bool ok = f || clb_fail_sys(err, CLB_BAD_INPUT, "%s", path);

    for (ssize_t n; ok && (n = getline(&line, &room, f)) >= 0;) {
        number++;
        ok = add(k, trim(line, (size_t)n), err) || clb_fail_in(err, "%s: line %zu", path, number);
    }
    if (ok && ferror(f))
        ok = clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be read", path);
    if (ok && k->n == 0)
        ok = clb_fail(err, CLB_BAD_INPUT, "%s: no key in it, so nobody could ask", path);
    if (f)
        fclose(f);
    free(line);
    return ok;
}

bool serve_keys_load(struct serve_keys **out, const char *path, struct clb_err *err)
{
    struct serve_keys *k = clb_new(1, sizeof *k, err);

    *out = NULL;
    if (!k)
        return false;
    if (!read_keys(k, path, err)) {
        serve_keys_free(k);
        return false;
    }
    *out = k;
    return true;
}

/* Every byte of `given` is looked at, whatever the key: the time tells only the lengths. */
static unsigned differ(struct clb_str key, struct clb_str given)
{
    volatile unsigned d = key.n != given.n;

    for (size_t i = 0; i < given.n; i++)
        d |= (unsigned char)given.p[i] ^ (unsigned char)key.p[i % key.n];
    return d;
}

bool serve_keys_allow(const struct serve_keys *k, const char *header)
{
    struct clb_str given = { "", 0 };
    unsigned allowed = 0;

    if (header && !strncasecmp(header, "Bearer ", 7))
        given = clb_str(header + 7 + strspn(header + 7, " "));
    while (given.n && (given.p[given.n - 1] == ' ' || given.p[given.n - 1] == '\t'))
        given.n--;
    for (size_t i = 0, start = 0; i < k->n; start = k->end[i++])
        allowed |= differ((struct clb_str){ k->bytes.p + start, k->end[i] - start }, given) == 0;
    return allowed;
}
