#include "best_fit.h"

#include <stdlib.h>
#include <string.h>

enum { NO_NODE = UINT32_MAX };

static void node_resize(struct best_fit_node *node, uint32_t count) {
    for (uint32_t i = count; i < node->count; i++) {
        node->rooms[i] = UINT64_MAX;
    }
    node->count = count;
}

static uint32_t node_take(struct best_fit *tree, uint32_t level) {
    uint32_t taken = tree->free_nodes;
    if (taken == NO_NODE) {
        taken = tree->fresh_node++;
    } else {
        tree->free_nodes = tree->nodes[taken].children[0];
    }
    tree->nodes[taken].level = level;
    tree->nodes[taken].count = BEST_FIT_CAPACITY + 1;
    node_resize(&tree->nodes[taken], 0);
    return taken;
}

static void node_give(struct best_fit *tree, uint32_t node) {
    tree->nodes[node].children[0] = tree->free_nodes;
    tree->free_nodes = node;
}

static void entries_move(struct best_fit_node *to, uint32_t at, const struct best_fit_node *from,
                         uint32_t start, uint32_t count) {
    memmove(&to->rooms[at], &from->rooms[start], count * sizeof to->rooms[0]);
    memmove(&to->order[at], &from->order[start], count * sizeof to->order[0]);
    if (to->level > 0) {
        memmove(&to->children[at], &from->children[start], count * sizeof to->children[0]);
    }
}

static void entry_insert(struct best_fit_node *node, uint32_t at, uint64_t room, uint32_t order,
                         uint32_t child) {
    entries_move(node, at + 1, node, at, node->count - at);
    node->rooms[at] = room;
    node->order[at] = order;
    node->children[at] = child;
    node->count++;
}

static void entry_remove(struct best_fit_node *node, uint32_t at) {
    entries_move(node, at, node, at + 1, node->count - at - 1);
    node_resize(node, node->count - 1);
}

/* Number of entries whose key is less than (room, order). Compares eight at a
 * time, without a branch: first the last room of each block, then a block. */
static uint32_t lower_bound(const struct best_fit_node *node, uint64_t room, uint32_t order) {
    uint32_t block = 0, at = 0;
    for (uint32_t i = BEST_FIT_BLOCK - 1; i < BEST_FIT_CAPACITY; i += BEST_FIT_BLOCK) {
        block += node->rooms[i] < room;
    }
    for (uint32_t i = 0; i < BEST_FIT_BLOCK; i++) {
        at += node->rooms[block * BEST_FIT_BLOCK + i] < room;
    }
    at += block * BEST_FIT_BLOCK;
    if (node->rooms[at] != room || room == UINT64_MAX) {
        return at;
    }
    for (uint32_t end = node->count; at < end;) {
        uint32_t middle = at + (end - at) / 2;
        if (node->rooms[middle] == room && node->order[middle] < order) {
            at = middle + 1;
        } else {
            end = middle;
        }
    }
    return at;
}

/* Entry of an inner node below which (room, order) belongs. */
static uint32_t child_for(const struct best_fit_node *node, uint64_t room, uint32_t order) {
    uint32_t not_above = lower_bound(node, room, order + 1);
    return not_above ? not_above - 1 : 0;
}

static void child_split(struct best_fit *tree, struct best_fit_node *parent, uint32_t at) {
    struct best_fit_node *left = &tree->nodes[parent->children[at]];
    uint32_t taken = node_take(tree, left->level);
    struct best_fit_node *right = &tree->nodes[taken];
    uint32_t kept = left->count / 2;
    right->count = left->count - kept;
    entries_move(right, 0, left, kept, right->count);
    node_resize(left, kept);
    entry_insert(parent, at + 1, right->rooms[0], right->order[0], taken);
}

static void insert(struct best_fit *tree, uint64_t room, uint32_t order) {
    if (room < tree->least_bytes) {
        return;
    }
    if (tree->nodes[tree->root].count == BEST_FIT_CAPACITY) {
        uint32_t root = node_take(tree, tree->nodes[tree->root].level + 1);
        entry_insert(&tree->nodes[root], 0, 0, 0, tree->root);
        tree->root = root;
        child_split(tree, &tree->nodes[root], 0);
    }
    struct best_fit_node *node = &tree->nodes[tree->root];
    while (node->level > 0) {
        uint32_t at = child_for(node, room, order);
        if (tree->nodes[node->children[at]].count == BEST_FIT_CAPACITY) {
            child_split(tree, node, at);
            at = child_for(node, room, order);
        }
        node = &tree->nodes[node->children[at]];
    }
    entry_insert(node, lower_bound(node, room, order), room, order, NO_NODE);
}

/* Give the sparse child at `at` entries of a sibling, or make the two one. */
static void child_fill_up(struct best_fit *tree, struct best_fit_node *parent, uint32_t at) {
    uint32_t left_at = at > 0 ? at - 1 : 0, right_at = left_at + 1;
    struct best_fit_node *left = &tree->nodes[parent->children[left_at]];
    struct best_fit_node *right = &tree->nodes[parent->children[right_at]];
    uint32_t total = left->count + right->count;
    if (total <= BEST_FIT_MERGED) {
        entries_move(left, left->count, right, 0, right->count);
        left->count = total;
        node_give(tree, parent->children[right_at]);
        entry_remove(parent, right_at);
        return;
    }
    uint32_t half = total / 2;
    if (left->count > half) {
        uint32_t moved = left->count - half;
        entries_move(right, moved, right, 0, right->count);
        entries_move(right, 0, left, half, moved);
    } else {
        uint32_t moved = half - left->count;
        entries_move(left, left->count, right, 0, moved);
        entries_move(right, 0, right, moved, right->count - moved);
    }
    node_resize(left, half);
    node_resize(right, total - half);
    parent->rooms[right_at] = right->rooms[0];
    parent->order[right_at] = right->order[0];
}

static void erase(struct best_fit *tree, uint64_t room, uint32_t order) {
    if (room < tree->least_bytes) {
        return;
    }
    struct best_fit_node *node = &tree->nodes[tree->root];
    while (node->level > 0) {
        uint32_t at = child_for(node, room, order);
        if (tree->nodes[node->children[at]].count <= BEST_FIT_MINIMUM) {
            child_fill_up(tree, node, at);
            at = child_for(node, room, order);
        }
        node = &tree->nodes[node->children[at]];
    }
    entry_remove(node, lower_bound(node, room, order));
    while (tree->nodes[tree->root].level > 0 && tree->nodes[tree->root].count == 1) {
        uint32_t root = tree->root;
        tree->root = tree->nodes[root].children[0];
        node_give(tree, root);
    }
}

bool best_fit_make(struct best_fit *tree, uint32_t extent_count) {
    size_t most = 0, at_level = extent_count;
    do {
        at_level = at_level / BEST_FIT_MINIMUM + 1;
        most += at_level;
    } while (at_level > 1);
    tree->nodes = aligned_alloc(_Alignof(struct best_fit_node), most * sizeof *tree->nodes);
    if (!tree->nodes) {
        return false;
    }
    tree->free_nodes = NO_NODE;
    tree->fresh_node = 0;
    tree->root = node_take(tree, 0);
    return true;
}

void best_fit_free(struct best_fit *tree) {
    free(tree->nodes);
    tree->nodes = NULL;
}

void best_fit_fill(struct best_fit *tree, const struct extent_table *table, uint64_t least_bytes) {
    tree->least_bytes = least_bytes;
    tree->free_nodes = NO_NODE;
    tree->fresh_node = 0;
    tree->root = node_take(tree, 0);
    for (uint32_t i = 0; i < table->count; i++) {
        insert(tree, table->extents[i].room_bytes, i);
    }
}

void best_fit_move(struct best_fit *tree, uint32_t index, uint64_t old_room, uint64_t new_room) {
    erase(tree, old_room, index);
    insert(tree, new_room, index);
}

static struct best_fit_node *edge_leaf(const struct best_fit *tree, struct best_fit_node *node,
                                       bool last) {
    while (node->level > 0) {
        node = &tree->nodes[node->children[last ? node->count - 1 : 0]];
    }
    return node;
}

uint32_t best_fit_take(struct best_fit *tree, uint64_t size_bytes, const struct extent *extents) {
    struct best_fit_node *leaf = &tree->nodes[tree->root];
    struct best_fit_node *next = NULL; /* the subtree just right of the way down */
    while (leaf->level > 0) {
        uint32_t at = child_for(leaf, size_bytes, 0);
        if (at + 1 < leaf->count) {
            next = &tree->nodes[leaf->children[at + 1]];
        }
        leaf = &tree->nodes[leaf->children[at]];
    }
    uint32_t at = lower_bound(leaf, size_bytes, 0);
    if (at == leaf->count) {
        if (!next) {
            return NO_EXTENT;
        }
        leaf = edge_leaf(tree, next, false);
        at = 0;
    }
    uint64_t room = leaf->rooms[at];
    uint32_t index = leaf->order[at];
    __builtin_prefetch(&extents[index], 1);
    if (leaf->count > BEST_FIT_MINIMUM) {
        entry_remove(leaf, at);
    } else {
        erase(tree, room, index);
    }
    insert(tree, room - size_bytes, index);
    return index;
}

uint64_t best_fit_largest(const struct best_fit *tree) {
    const struct best_fit_node *leaf = edge_leaf(tree, &tree->nodes[tree->root], true);
    return leaf->count ? leaf->rooms[leaf->count - 1] : 0;
}

/* Extents below `node`, all within [low, high) and with the rooms that the table
 * has; UINT32_MAX when something is wrong. */
static uint32_t count_sound(const struct best_fit *tree, const struct extent_table *table,
                            uint32_t index, unsigned __int128 low, unsigned __int128 high) {
    const struct best_fit_node *node = &tree->nodes[index];
    if (index != tree->root && (node->count < BEST_FIT_MINIMUM)) {
        return UINT32_MAX;
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < node->count; i++) {
        unsigned __int128 key = (unsigned __int128)node->rooms[i] << 32 | node->order[i];
        if (node->level == 0) {
            if (key < low || key >= high || node->order[i] >= table->count ||
                table->extents[node->order[i]].room_bytes != node->rooms[i]) {
                return UINT32_MAX;
            }
            low = key + 1;
            found++;
            continue;
        }
        unsigned __int128 end = high;
        if (i + 1 < node->count) {
            end = (unsigned __int128)node->rooms[i + 1] << 32 | node->order[i + 1];
        }
        uint32_t below = count_sound(tree, table, node->children[i], i ? key : low, end);
        if (below == UINT32_MAX || end > high) {
            return UINT32_MAX;
        }
        found += below;
    }
    return found;
}

bool best_fit_is_consistent(const struct best_fit *tree, const struct extent_table *table) {
    uint32_t with_room = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        with_room += table->extents[i].room_bytes >= tree->least_bytes;
    }
    unsigned __int128 end = (unsigned __int128)1 << 96;
    return count_sound(tree, table, tree->root, 0, end) == with_room;
}
