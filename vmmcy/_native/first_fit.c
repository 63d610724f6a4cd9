#include "first_fit.h"

#include <stdlib.h>
#include <string.h>

static uint64_t node_maximum(const uint64_t *node) {
    uint64_t maximum = node[0];
    for (unsigned i = 1; i < FIRST_FIT_FANOUT; i++) {
        maximum = node[i] > maximum ? node[i] : maximum;
    }
    return maximum;
}

/* FIRST_FIT_FANOUT when no child has the room. */
static unsigned first_child_with(const uint64_t *node, uint64_t size_bytes) {
    unsigned fitting = 1u << FIRST_FIT_FANOUT;
    for (unsigned i = 0; i < FIRST_FIT_FANOUT; i++) {
        fitting |= (unsigned)(node[i] >= size_bytes) << i;
    }
    return (unsigned)__builtin_ctz(fitting);
}

static size_t node_count(uint32_t entry_count) {
    return ((size_t)entry_count + FIRST_FIT_FANOUT - 1) / FIRST_FIT_FANOUT;
}

bool first_fit_make(struct first_fit *tree, uint32_t extent_count) {
    size_t nodes_at[FIRST_FIT_MAX_LEVELS], total = 0;
    uint32_t level = 0;
    size_t entries = extent_count ? extent_count : 1;
    do {
        nodes_at[level] = node_count((uint32_t)entries);
        total += entries = nodes_at[level++];
    } while (entries > 1);
    tree->level_count = level;

    enum { NODE_BYTES = FIRST_FIT_FANOUT * sizeof(uint64_t) };
    tree->memory = aligned_alloc(NODE_BYTES, total * NODE_BYTES);
    if (!tree->memory) {
        return false;
    }
    memset(tree->memory, 0, total * NODE_BYTES);
    uint64_t *next = tree->memory;
    for (level = 0; level < tree->level_count; level++) {
        tree->levels[level] = next;
        next += nodes_at[level] * FIRST_FIT_FANOUT;
    }
    return true;
}

void first_fit_free(struct first_fit *tree) {
    free(tree->memory);
    tree->memory = NULL;
}

void first_fit_fill(struct first_fit *tree, const struct extent_table *table) {
    for (uint32_t i = 0; i < table->count; i++) {
        tree->levels[0][i] = table->extents[i].room_bytes;
    }
    uint32_t entries = table->count;
    for (uint32_t level = 1; level < tree->level_count; level++) {
        entries = (uint32_t)node_count(entries);
        for (uint32_t i = 0; i < entries; i++) {
            tree->levels[level][i] = node_maximum(&tree->levels[level - 1][i * FIRST_FIT_FANOUT]);
        }
    }
}

void first_fit_set(struct first_fit *tree, uint32_t index, uint64_t room_bytes) {
    for (uint32_t level = 0;; level++) {
        tree->levels[level][index] = room_bytes;
        if (level + 1 == tree->level_count) {
            return;
        }
        index /= FIRST_FIT_FANOUT;
        room_bytes = node_maximum(&tree->levels[level][index * FIRST_FIT_FANOUT]);
        if (tree->levels[level + 1][index] == room_bytes) {
            return;
        }
    }
}

uint32_t first_fit_find(const struct first_fit *tree, uint64_t size_bytes) {
    uint32_t index = 0;
    for (uint32_t level = tree->level_count; level-- > 0;) {
        unsigned child =
            first_child_with(&tree->levels[level][index * FIRST_FIT_FANOUT], size_bytes);
        if (child == FIRST_FIT_FANOUT) {
            return NO_EXTENT; /* only at the root: below it, some child has the node's maximum */
        }
        index = index * FIRST_FIT_FANOUT + child;
    }
    return index;
}

uint64_t first_fit_largest(const struct first_fit *tree) {
    return node_maximum(tree->levels[tree->level_count - 1]);
}

bool first_fit_is_consistent(const struct first_fit *tree) {
    for (uint32_t level = 1; level < tree->level_count; level++) {
        size_t entries = (size_t)(tree->levels[level] - tree->levels[level - 1]) / FIRST_FIT_FANOUT;
        for (size_t i = 0; i < entries; i++) {
            const uint64_t *node = &tree->levels[level - 1][i * FIRST_FIT_FANOUT];
            if (tree->levels[level][i] != node_maximum(node)) {
                return false;
            }
        }
    }
    return true;
}
