/* trie.h - tries of tokens, as the tables store them. */
#ifndef CLB_TOKEN_TRIE_H
#define CLB_TOKEN_TRIE_H

#include "lib/token/build.h"

struct clb_trie {
    struct clb_trie_node *node; /* owned */
    uint32_t n_node, node_room;
    uint32_t *edge; /* owned */
    uint32_t n_edge, edge_room;
};

enum clb_trie_kind {
    CLB_TRIE_RAW,        /* added tokens that are looked for in the text as it is */
    CLB_TRIE_NORMALISED, /* added tokens that are looked for after the normaliser */
    CLB_TRIE_PIECES,     /* the vocabulary of the model */
};
/* Adds a trie; *root: CLB_NO_ID if there is nothing to put in. Two tokens with one spelling are an
 * error. */
bool clb_trie_add(struct clb_trie *t, const struct clb_build *b, enum clb_trie_kind kind,
                  uint32_t *root, struct clb_err *err);
bool clb_trie_add_node(struct clb_trie *t, uint32_t *index, struct clb_err *err);
void clb_trie_free(struct clb_trie *t);

#endif
