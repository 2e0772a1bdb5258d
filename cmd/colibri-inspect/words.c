/* words.c - small things that several answers need. */
#include <stdio.h>

#include "cmd/colibri-inspect/inspect.h"

const char *inspect_expert_dtype(const struct clb_reader *r)
{
    return clb_dtype_name(r->experts[0].part[CLB_GATE].dtype);
}

const char *inspect_dense_dtype(const struct clb_reader *r)
{
    return clb_dtype_name(clb_reader_find(r, CLB_OUTPUT, UINT32_MAX)->dtype);
}

const char *inspect_amount(char buf[static 32], double n)
{
    static const char *const unit[] = { "", " k", " M", " B", " T" };
    int u = 0;

    while (n >= 1000 && u < 4) {
        n /= 1000;
        u++;
    }
    snprintf(buf, 32, u == 0 || n >= 100 ? "%.0f%s" : n >= 10 ? "%.1f%s" : "%.2f%s", n, unit[u]);
    return buf;
}

const char *inspect_safe(char *buf, size_t room, const char *text)
{
    size_t n = 0;

    for (const unsigned char *p = (const unsigned char *)text; *p && n + 1 < room; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 to U+009F in UTF-8 */
        if (*p < 0x20 || *p == 0x7f || c1)
            buf[n++] = '?';
        else
            buf[n++] = (char)*p;
        p += c1;
    }
    buf[n] = 0;
    return buf;
}

const char *inspect_name(char buf[static INSPECT_PATH], const struct clb_reader *r)
{
    return inspect_safe(buf, INSPECT_PATH, r->path);
}

const char *const inspect_kind_name[KINDS] = {
    "embedding", "attention",      "norms, positions", "routers",
    "experts",   "shared experts", "dense layers",     "output",
};

enum inspect_kind inspect_kind_of(enum clb_role role)
{
    switch (role) {
    case CLB_EMBED:
        return KIND_EMBEDDING;
    case CLB_OUTPUT:
    case CLB_OUTPUT_BIAS:
        return KIND_OUTPUT;
    case CLB_ROUTER:
    case CLB_ROUTER_BIAS:
    case CLB_ROUTER_CORRECTION:
    case CLB_ROUTER_IN:
        return KIND_ROUTERS;
    case CLB_SHARED_GATE:
    case CLB_SHARED_GATE_PROJ:
    case CLB_SHARED_UP:
    case CLB_SHARED_DOWN:
        return KIND_SHARED;
    case CLB_DENSE_GATE:
    case CLB_DENSE_UP:
    case CLB_DENSE_DOWN:
        return KIND_DENSE;
    case CLB_Q:
    case CLB_Q_BIAS:
    case CLB_K:
    case CLB_K_BIAS:
    case CLB_V:
    case CLB_V_BIAS:
    case CLB_SINKS:
    case CLB_Q_A:
    case CLB_KV_A:
    case CLB_K_UP:
    case CLB_V_UP:
    case CLB_O:
    case CLB_O_BIAS:
        return KIND_ATTENTION;
    default:
        return KIND_NORMS;
    }
}

bool inspect_print(struct clb_text *t, struct clb_err *err)
{
    bool ok = !t->failed || clb_fail_nomem(err, t->n);

    if (ok && t->n)
        fwrite(t->p, 1, t->n, stdout);
    clb_text_free(t);
    return ok;
}
