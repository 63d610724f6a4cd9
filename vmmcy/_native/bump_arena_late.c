/* Late frees of an arena: whose a doubtful one was, as far as it can be known. */
#include "bump_arena.h"

#include <string.h>

/* One of the extent's allocations is freed, and it is not known which: the bytes
 * are back with the last. */
static void take_one(struct arena *arena, struct extent *extent) {
    if (extent->live_count == 0) {
        return;
    }
    uint64_t freed = extent->live_count == 1 ? extent->live_bytes : 0;
    extent->live_count--;
    extent->live_bytes -= freed;
    arena->counts.live_count--;
    arena->counts.live_bytes -= freed;
    arena->counts.freed_bytes += freed;
}

/* A doubtful free was one of the extent's after all. */
static void settle_one(struct arena *arena, struct extent *extent, uint64_t *doubts) {
    (*doubts)--;
    arena->retired.doubtful--;
    arena->counts.ignored_frees--;
    take_one(arena, extent);
}

/* The free of one of the range's allocations has come for certain: so one less of
 * the doubtful ones can have been the range's. */
static void take_certain(struct arena *arena, uint32_t range_rank) {
    struct retired *retired = &arena->retired;
    const struct extent_table *table = &arena->table;
    struct retired_range *range = &retired->ranges[range_rank];
    range->outstanding--;
    retired->outstanding--;
    uint64_t last = range->base + (range->size_bytes - 1);
    uint32_t rank = extent_rank_below(table, range->base);
    for (; retired->doubtful && rank < table->count && table->bases[rank] <= last; rank++) {
        uint64_t *doubts = &retired->doubts[rank + range_rank];
        struct extent *extent = &table->extents[table->order[rank]];
        bool overlaps = extent->base + (extent->size_bytes - 1) >= range->base;
        if (overlaps && *doubts > range->outstanding) {
            settle_one(arena, extent, doubts);
        }
    }
}

bool arena_take_late(struct arena *arena, uint64_t address, uint32_t rank) {
    struct retired *retired = &arena->retired;
    uint32_t range_rank = retired_rank_at(retired, address);
    if (range_rank == NO_EXTENT) {
        return false;
    }
    if (rank == NO_EXTENT) {
        arena->counts.ignored_frees++;
        take_certain(arena, range_rank);
        return true;
    }
    uint64_t *doubts = &retired->doubts[rank + range_rank];
    if (*doubts < retired->ranges[range_rank].outstanding) {
        arena->counts.ignored_frees++;
        (*doubts)++;
        retired->doubtful++;
    } else {
        /* This or one of the doubtful ones is the extent's. */
        take_one(arena, &arena->table.extents[arena->table.order[rank]]);
    }
    return true;
}

void arena_settle_all(struct arena *arena) {
    struct extent_table *table = &arena->table;
    struct retired *retired = &arena->retired;
    for (uint32_t i = 0; i < table->count; i++) {
        table->extents[i].live_count = 0;
        table->extents[i].live_bytes = 0;
    }
    for (uint32_t i = 0; i < retired->count; i++) {
        retired->ranges[i].outstanding = 0;
    }
    memset(retired->doubts, 0, ((size_t)table->count + retired->count) * sizeof *retired->doubts);
    arena->counts.ignored_frees -= arena->counts.live_count;
    arena->counts.freed_bytes += arena->counts.live_bytes;
    arena->counts.live_count = 0;
    arena->counts.live_bytes = 0;
    retired->outstanding = 0;
    retired->doubtful = 0;
}
