/* backend.c - the one place that knows which backends this build has; what all of them refuse. */
#include "lib/backend/backend.h"

#include <string.h>

const struct clb_backend_ops *clb_backend_find(const char *name, struct clb_err *err)
{
    if (!strcmp(name, clb_backend_cpu.name))
        return &clb_backend_cpu;
#ifdef CLB_CUDA
    if (!strcmp(name, clb_backend_cuda.name))
        return &clb_backend_cuda;
#endif
    if (!strcmp(name, "cuda"))
        clb_fail(err, CLB_UNSUPPORTED,
                 "this build has no CUDA backend; build with 'make CUDA=1', or use 'cpu'");
    else
        clb_fail(err, CLB_USAGE, "there is no backend '%s'; backends are 'auto', 'cpu' and 'cuda'",
                 name);
    return NULL;
}

const struct clb_backend_ops *clb_backend_device(void)
{
#ifdef CLB_CUDA
    return &clb_backend_cuda;
#else
    return NULL;
#endif
}

bool clb_pass_check(const struct clb_pass *p, const struct clb_acts_shape *s, uint32_t top_k,
                    struct clb_err *err)
{
    if (p->n_row > s->max_rows || p->n_logit > s->max_logits || p->n_seq > s->max_seqs)
        return clb_fail(
            err, CLB_USAGE,
            "a pass of %u rows, %u with logits, %u sequences; activations hold %u, %u, %u",
            p->n_row, p->n_logit, p->n_seq, s->max_rows, s->max_logits, s->max_seqs);
    if (p->top_k > top_k)
        return clb_fail(err, CLB_USAGE, "%u experts per token; activations hold %u", p->top_k,
                        top_k);
    if (clb_pass_candidates(p) > s->max_candidates)
        return clb_fail(err, CLB_USAGE, "%u candidates; activations hold %u",
                        clb_pass_candidates(p), s->max_candidates);
    return true;
}

uint32_t clb_pass_candidates(const struct clb_pass *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; p->n_candidate && i < p->n_logit; i++)
        n += p->n_candidate[i];
    return n;
}
