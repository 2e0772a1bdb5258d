/* trie.h - the trie of added tokens, as the tables store it. */
#ifndef CLB_TOKEN_TRIE_H
#define CLB_TOKEN_TRIE_H

#include "lib/token/build.h"

struct clb_trie {
    struct clb_trie_node *node; /* owned */
    uint32_t n_node, node_room;
    uint32_t *edge; /* owned */
    uint32_t n_edge, edge_room;
};

/* Adds the trie of the added tokens that are (`normalised`) or are not looked for after the
 * normaliser; *root: CLB_NO_ID if there are none. Two tokens with one spelling are an error. */
bool clb_trie_add(struct clb_trie *t, const struct clb_build *b, bool normalised, uint32_t *root,
                  struct clb_err *err);
void clb_trie_free(struct clb_trie *t);

#endif
