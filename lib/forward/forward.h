/* forward.h - one pass of a batch of rows through the network, stage by stage, and where its time
 * went. */
#ifndef CLB_FORWARD_FORWARD_H
#define CLB_FORWARD_FORWARD_H

#include "lib/backend/backend.h"
#include "lib/model/experts.h"

enum clb_stage {
    CLB_STAGE_EMBED,
    CLB_STAGE_PROJECT, /* attn_project */
    CLB_STAGE_MIX,     /* attn_mix */
    CLB_STAGE_OUTPUT,  /* attn_output */
    CLB_STAGE_GATE,
    CLB_STAGE_SCATTER,
    CLB_STAGE_EXPERTS,
    CLB_STAGE_GATHER,
    CLB_STAGE_MLP,
    CLB_STAGE_LOGITS,
    CLB_STAGES
};
/* "Embed", "AttnProject", "Attention", "AttnOutput", "Gate", "Scatter", "ExpertCompute", "Gather",
 * "DenseMLP", "Logits" */
extern const char *const clb_stage_name[CLB_STAGES];

/* Adds up over passes; the caller zeroes it. */
struct clb_profile {
    double seconds[CLB_STAGES];
    uint64_t bytes[CLB_STAGES]; /* weights (and KV cache in Attention) that the stage had to read,
                                   each once per pass */
    uint64_t macs[CLB_STAGES];  /* multiply-accumulates of its matrices */
    uint64_t f32_macs[CLB_STAGES]; /* of macs: those in f32; the others multiply int8 */
    double alone[CLB_STAGES];  /* of seconds: the caller computed the stage alone */
    double waited[CLB_STAGES]; /* of seconds: threads waited for each other, their mean */
    uint64_t passes, rows;
    uint64_t experts_touched; /* sum over passes and layers of active experts */
    uint64_t expert_slots;    /* sum of (row, rank) pairs */
    uint64_t routes_reused;   /* passes x layers whose index map was kept */
    uint64_t *expert_rows; /* [n_layer * n_expert] slots per expert; NULL: not wanted; borrowed */
};

struct clb_engine { /* everything a pass needs that outlives it; all borrowed */
    const struct clb_backend_ops *op;
    struct clb_backend *be;
    const struct clb_weights *w;
    struct clb_experts *experts;
    const uint8_t **block; /* [largest n_expert] scratch for expert addresses */
};

/* Runs the pass; logits [n_logit][vocab]. KV of every row is appended (lengths of the sequences are
 * raised by the caller's own bookkeeping after success). profile may be NULL: then no clock is
 * read. On failure the KV contents of the pass are undefined. */
bool clb_forward(const struct clb_engine *e, struct clb_acts *x, const struct clb_pass *p,
                 float *logits, struct clb_profile *profile, struct clb_err *err);

#endif
