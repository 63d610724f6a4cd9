/* Best fit: a B+ tree of the extents, ordered by room and then by the given
 * order, so that the first key from a size on is the tightest fit. Extents with
 * too little room for any request are not in it: as memory fills up, most are
 * that, and equal. All nodes come from one block made beforehand: malloc never
 * waits for memory.
 *
 * Source: R. Bayer, E. McCreight, "Organization and maintenance of large
 * ordered indices", 1972; splitting and filling up on the way down, as in
 * Cormen et al., "Introduction to Algorithms", ch. 18. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "extents.h"

enum {
    BEST_FIT_BLOCK = 8,     /* rooms in a cache line */
    BEST_FIT_CAPACITY = 63, /* a node is 1,024 bytes */
    BEST_FIT_MINIMUM = 16,  /* entries of every node but the root */
    BEST_FIT_MERGED = 48,   /* the most that a merge may leave: room for inserts to come */
};

/* Entry i of a leaf is an extent. Entry i of an inner node is a child, and its
 * key a lower bound of what is below; that of entry 0 counts as lower than all.
 * Rooms from `count` on are UINT64_MAX, so that a search need not know the count. */
struct best_fit_node {
    uint32_t count;
    uint32_t level; /* 0: a leaf */
    uint64_t rooms[BEST_FIT_CAPACITY + 1];
    uint32_t order[BEST_FIT_CAPACITY];
    uint32_t children[BEST_FIT_CAPACITY];
} __attribute__((aligned(64)));

struct best_fit {
    struct best_fit_node *nodes;
    uint64_t least_bytes; /* of any request: the alignment */
    uint32_t root;
    uint32_t free_nodes; /* a list through children[0] */
    uint32_t fresh_node; /* nodes from here on were never used */
};

/* False when there is no memory; empty until best_fit_fill. */
bool best_fit_make(struct best_fit *tree, uint32_t extent_count);
void best_fit_free(struct best_fit *tree);
void best_fit_fill(struct best_fit *tree, const struct extent_table *table, uint64_t least_bytes);
void best_fit_move(struct best_fit *tree, uint32_t index, uint64_t old_room, uint64_t new_room);

/* Take `size_bytes` from the extent with the least room of at least as much:
 * returns its index, or NO_EXTENT. The extent itself is only fetched into the cache. */
uint32_t best_fit_take(struct best_fit *tree, uint64_t size_bytes, const struct extent *extents);

/* The most room of any extent in the tree, 0 when there is none. */
uint64_t best_fit_largest(const struct best_fit *tree);

/* True when the tree holds each extent of the table with room for a request once, in order. */
bool best_fit_is_consistent(const struct best_fit *tree, const struct extent_table *table);
