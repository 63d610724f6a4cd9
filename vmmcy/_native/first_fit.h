/* First fit: a tree of maxima over the rooms of the extents, eight children to
 * a node, so that a node's children are one cache line. The leftmost leaf with
 * enough room is found from the root down. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "extents.h"

enum { FIRST_FIT_FANOUT = 8, FIRST_FIT_MAX_LEVELS = 6 }; /* 8^6 > 65,536 extents */

struct first_fit {
    uint64_t *levels[FIRST_FIT_MAX_LEVELS]; /* levels[0][i]: room of extent i; the last: one node */
    uint32_t level_count;
    uint64_t *memory;
};

/* False when there is no memory; the rooms are 0 until first_fit_fill. */
bool first_fit_make(struct first_fit *tree, uint32_t extent_count);
void first_fit_free(struct first_fit *tree);
void first_fit_fill(struct first_fit *tree, const struct extent_table *table);
void first_fit_set(struct first_fit *tree, uint32_t index, uint64_t room_bytes);

/* Index of the first extent with at least `size_bytes` of room, or NO_EXTENT. */
uint32_t first_fit_find(const struct first_fit *tree, uint64_t size_bytes);
uint64_t first_fit_largest(const struct first_fit *tree);

/* True when every node holds the maximum of its children. */
bool first_fit_is_consistent(const struct first_fit *tree);
