#include "bump_arena.h"

#include <stdlib.h>
#include <string.h>

/* Best fit has no hint: it points past the last extent, where there is never room. */
void arena_forget_hint(struct arena *arena) {
    arena->hint_bytes = 0;
    arena->hint = arena->index.is_best_fit ? arena->table.count : 0;
}

void arena_flush_hint(struct arena *arena) {
    if (!arena->index.is_best_fit && arena->table.count) {
        first_fit_set(&arena->index.of.first, arena->hint,
                      arena->table.extents[arena->hint].room_bytes);
    }
}

static void *hand_out(struct arena *arena, struct extent *extent, uint64_t size_bytes) {
    uint64_t offset = extent->size_bytes - extent->room_bytes;
    /* Both are multiples of the alignment from here on: no padding until it changes. */
    extent->room_bytes -= size_bytes;
    arena->counts.cursor_bytes += offset + size_bytes - extent->cursor;
    extent->cursor = offset + size_bytes;
    extent->live_bytes += size_bytes;
    extent->live_count++;
    arena->counts.live_bytes += size_bytes;
    arena->counts.live_count++;
    return (void *)(uintptr_t)(extent->base + offset);
}

static __attribute__((noinline)) void *malloc_from_index(struct arena *arena, uint64_t size_bytes) {
    struct arena_index *index = &arena->index;
    uint32_t found;
    if (index->is_best_fit) {
        found = best_fit_take(&index->of.best, size_bytes, arena->table.extents);
    } else {
        arena_flush_hint(arena);
        found = first_fit_find(&index->of.first, size_bytes);
        if (found != NO_EXTENT) {
            arena->hint = found;
            arena->hint_bytes = size_bytes;
        }
    }
    return found == NO_EXTENT ? NULL : hand_out(arena, &arena->table.extents[found], size_bytes);
}

void *arena_malloc(void *state, size_t size_bytes, int device, void *stream) {
    (void)stream; /* of one stream or another: to the arena all memory is the same */
    struct arena *arena = state;
    uint64_t mask = arena->align_mask;
    uint64_t needed = size_bytes ? size_bytes : 1;
    bool other_device = arena->device != ARENA_ANY_DEVICE && arena->device != device;
    if (other_device || needed > UINT64_MAX - mask) {
        return NULL;
    }
    needed = (needed + mask) & ~mask;
    struct extent *hinted = &arena->table.extents[arena->hint];
    if (needed >= arena->hint_bytes && needed <= hinted->room_bytes) {
        return hand_out(arena, hinted, needed);
    }
    return malloc_from_index(arena, needed);
}

/* Count one of the extent's allocations as freed. */
static void take_back(struct arena *arena, struct extent *extent, uint64_t size_bytes) {
    uint64_t mask = arena->align_mask;
    uint64_t freed = size_bytes ? size_bytes : 1;
    freed = freed > UINT64_MAX - mask ? UINT64_MAX : (freed + mask) & ~mask;
    /* The alignment may have changed since, or the size be wrong: with the last
     * allocation all bytes are back, and never more than there were. */
    if (freed > extent->live_bytes || extent->live_count == 1) {
        freed = extent->live_bytes;
    }
    extent->live_count--;
    extent->live_bytes -= freed;
    arena->counts.live_count--;
    arena->counts.live_bytes -= freed;
    arena->counts.freed_bytes += freed;
}

void arena_free(void *state, void *address, size_t size_bytes, void *stream) {
    (void)stream;
    struct arena *arena = state;
    uint64_t freed_at = (uintptr_t)address;
    uint32_t rank = extent_rank_at(&arena->table, freed_at);
    struct extent *extent =
        rank == NO_EXTENT ? NULL : &arena->table.extents[arena->table.order[rank]];
    if (extent && (freed_at - extent->base >= extent->cursor || extent->live_count == 0)) {
        extent = NULL;
    }
    bool is_counted =
        arena->retired.outstanding && arena_take_late(arena, freed_at, extent ? rank : NO_EXTENT);
    if (!is_counted && extent) {
        take_back(arena, extent, size_bytes);
    } else if (!is_counted) {
        arena->counts.ignored_frees++;
    }
    if (arena->retired.outstanding && arena_outstanding(arena) == 0) {
        arena_settle_all(arena);
    }
}

uint64_t arena_outstanding(const void *state) {
    const struct arena *arena = state;
    return arena->counts.live_count + arena->retired.outstanding - arena->retired.doubtful;
}

void *arena_allocate(struct arena *arena, size_t size_bytes) {
    slot_lock_take(&arena->slot->lock);
    /* Through the slot: once it is shut, nothing is handed out. */
    void *address = arena->slot->room.malloc_fn(arena, size_bytes, arena->device, NULL);
    slot_lock_give(&arena->slot->lock);
    return address;
}

void arena_give(struct arena *arena, void *address, size_t size_bytes) {
    slot_lock_take(&arena->slot->lock);
    arena_free(arena, address, size_bytes, NULL);
    slot_lock_give(&arena->slot->lock);
}
