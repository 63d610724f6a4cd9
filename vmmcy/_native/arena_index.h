/* Which extent has the room: the one index that the policy in force needs. */
#pragma once
#include "best_fit.h"
#include "first_fit.h"

struct arena_index {
    bool is_best_fit;
    union {
        struct first_fit first;
        struct best_fit best;
    } of;
};

/* False when there is no memory. */
bool arena_index_make(struct arena_index *index, bool best_fit, uint32_t extent_count);
void arena_index_free(struct arena_index *index);
void arena_index_fill(struct arena_index *index, const struct extent_table *table,
                      uint64_t align_mask);

/* The room of one extent has changed. */
void arena_index_move(struct arena_index *index, uint32_t extent, uint64_t old_room,
                      uint64_t new_room);

/* The most room that any extent has. */
uint64_t arena_index_largest(const struct arena_index *index, const struct extent_table *table);
