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

void arena_index_fill(struct arena_index *index, const struct extent_table *table) {
    if (index->is_best_fit) {
        best_fit_fill(&index->of.best, table);
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

uint64_t arena_index_largest(const struct arena_index *index) {
    if (index->is_best_fit) {
        return index->of.best.nodes ? best_fit_largest(&index->of.best) : 0;
    }
    return index->of.first.memory ? first_fit_largest(&index->of.first) : 0;
}
