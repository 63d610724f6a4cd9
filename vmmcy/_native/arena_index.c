#include "arena_index.h"

bool arena_index_make(struct arena_index *index, bool best_fit, uint32_t extent_count) {
    index->is_best_fit = best_fit;
    return best_fit ? best_fit_make(&index->of.best, extent_count)
                    : first_fit_make(&index->of.first, extent_count);
}

void arena_index_free(struct arena_index *index) {
    if (index->is_best_fit) {
        best_fit_free(&index->of.best);
    } else {
        first_fit_free(&index->of.first);
    }
}

void arena_index_fill(struct arena_index *index, const struct extent_table *table,
                      uint64_t align_mask) {
    if (index->is_best_fit) {
        best_fit_fill(&index->of.best, table, align_mask + 1);
    } else {
        first_fit_fill(&index->of.first, table);
    }
}

void arena_index_move(struct arena_index *index, uint32_t extent, uint64_t old_room,
                      uint64_t new_room) {
    if (index->is_best_fit) {
        best_fit_move(&index->of.best, extent, old_room, new_room);
    } else {
        first_fit_set(&index->of.first, extent, new_room);
    }
}

/* For rooms too small to be in the best-fit tree. */
static uint64_t largest_of_all(const struct extent_table *table) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        uint64_t room = table->extents[i].room_bytes;
        largest = room > largest ? room : largest;
    }
    return largest;
}

uint64_t arena_index_largest(const struct arena_index *index, const struct extent_table *table) {
    if (table->count == 0) {
        return 0;
    }
    uint64_t largest = index->is_best_fit ? best_fit_largest(&index->of.best)
                                          : first_fit_largest(&index->of.first);
    return largest ? largest : largest_of_all(table);
}
