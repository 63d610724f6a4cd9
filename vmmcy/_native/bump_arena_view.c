/* Reading an arena: figures, extents, and whether all of it still adds up. */
#include "bump_arena.h"

#include <string.h>

struct arena_figures arena_read(struct arena *arena) {
    slot_lock_take(&arena->slot->lock);
    arena_flush_hint(arena);
    const struct retired *retired = &arena->retired;
    bool all_doubtful = retired->doubtful > retired->outstanding;
    struct arena_figures figures = {
        .counts = arena->counts,
        .retired_count = all_doubtful ? 0 : retired->outstanding - retired->doubtful,
        .capacity_bytes = arena->table.capacity_bytes,
        .largest_free_bytes = arena_index_largest(&arena->index, &arena->table),
        .align = arena->align_mask + 1,
        .extent_count = arena->table.count,
        .is_best_fit = arena->index.is_best_fit,
    };
    slot_lock_give(&arena->slot->lock);
    return figures;
}

uint32_t arena_copy_extents(struct arena *arena, struct extent *copies, uint32_t most) {
    slot_lock_take(&arena->slot->lock);
    uint32_t count = arena->table.count;
    memcpy(copies, arena->table.extents, (count < most ? count : most) * sizeof *copies);
    slot_lock_give(&arena->slot->lock);
    return count;
}

/* Other rooms have slots too. */
static bool is_arena_of(const struct vmmcy_slot *slot, int device) {
    const struct arena *arena = slot->state;
    return slot->room.malloc_fn == arena_malloc &&
           (device == ARENA_ANY_DEVICE || device == arena->device);
}

unsigned arena_count_open(int device) {
    return vmmcy_slot_count_open(is_arena_of, device);
}

static const char *extent_fault(const struct extent *extent, uint64_t align_mask) {
    if (extent->cursor > extent->size_bytes) {
        return "a cursor is past the end of its extent";
    }
    if (extent->room_bytes != extent_room(extent, align_mask)) {
        return "a room is not what is left after the aligned cursor";
    }
    if (extent->live_bytes > extent->cursor || extent->live_count > extent->cursor) {
        return "more is live than was handed out";
    }
    return extent->live_count || !extent->live_bytes ? NULL : "bytes are live, but no allocation";
}

static const char *table_fault(const struct arena *arena) {
    const struct extent_table *table = &arena->table;
    struct arena_counts sums = {0, 0, 0, 0, 0};
    uint64_t capacity_bytes = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct extent *extent = &table->extents[i];
        const char *fault = extent_fault(extent, arena->align_mask);
        if (fault) {
            return fault;
        }
        uint32_t rank = extent_rank_at(table, extent->base);
        if (rank == NO_EXTENT || table->order[rank] != i ||
            extent_rank_at(table, extent->base + extent->size_bytes - 1) != rank) {
            return "an extent is not found by its addresses";
        }
        sums.live_bytes += extent->live_bytes;
        sums.live_count += extent->live_count;
        sums.cursor_bytes += extent->cursor;
        capacity_bytes += extent->size_bytes;
    }
    bool add_up = sums.live_bytes == arena->counts.live_bytes &&
                  sums.live_count == arena->counts.live_count &&
                  sums.cursor_bytes == arena->counts.cursor_bytes &&
                  capacity_bytes == table->capacity_bytes;
    return add_up ? NULL : "the sums are not those of the extents";
}

static const char *hint_fault(const struct arena *arena) {
    const struct extent_table *table = &arena->table;
    for (uint32_t i = 0; i < table->count; i++) {
        if (i < arena->hint && table->extents[i].room_bytes >= arena->hint_bytes) {
            return "an extent before the hint has the room";
        }
        if (arena->index.of.first.levels[0][i] != table->extents[i].room_bytes) {
            return "a leaf of the first-fit tree is not its extent's room";
        }
    }
    return NULL;
}

const char *arena_fault(struct arena *arena) {
    slot_lock_take(&arena->slot->lock);
    const char *fault = table_fault(arena);
    if (!fault && arena->index.is_best_fit) {
        fault = best_fit_is_consistent(&arena->index.of.best, &arena->table)
                    ? NULL
                    : "the best-fit tree is not in order";
    } else if (!fault) {
        arena_flush_hint(arena);
        fault = first_fit_is_consistent(&arena->index.of.first)
                    ? hint_fault(arena)
                    : "a node of the first-fit tree is not its children's maximum";
    }
    if (!fault && !retired_is_consistent(&arena->retired, &arena->table)) {
        fault = "what is retired does not add up";
    }
    slot_lock_give(&arena->slot->lock);
    return fault;
}
