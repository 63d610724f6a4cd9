#include "bump_arena.h"

#include <stdlib.h>
#include <string.h>

static bool index_make(struct arena_index *index, bool best_fit, uint32_t extent_count) {
    index->is_best_fit = best_fit;
    return best_fit ? best_fit_make(&index->of.best, extent_count)
                    : first_fit_make(&index->of.first, extent_count);
}

static void index_free(struct arena_index *index) {
    if (index->is_best_fit) {
        best_fit_free(&index->of.best);
    } else {
        first_fit_free(&index->of.first);
    }
}

/* After rooms have grown: what the hint knew is no longer true. Best fit has no
 * hint: it points past the last extent, where there is never room. */
static void forget_hint(struct arena *arena) {
    arena->hint_bytes = 0;
    arena->hint = arena->index.is_best_fit ? arena->table.count : 0;
}

static void index_fill(struct arena *arena) {
    forget_hint(arena);
    if (arena->index.is_best_fit) {
        best_fit_fill(&arena->index.of.best, &arena->table);
    } else {
        first_fit_fill(&arena->index.of.first, &arena->table);
    }
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
        found = best_fit_take(&index->of.best, size_bytes);
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

void *arena_malloc(void *state, size_t size_bytes, int device) {
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

void arena_free(void *state, void *address, size_t size_bytes) {
    struct arena *arena = state;
    uint64_t freed_at = (uintptr_t)address;
    if (arena->retired.outstanding && retired_take_free(&arena->retired, freed_at)) {
        arena->counts.ignored_frees++;
        return;
    }
    uint32_t index = extent_at(&arena->table, freed_at);
    struct extent *extent = index == NO_EXTENT ? NULL : &arena->table.extents[index];
    if (!extent || freed_at - extent->base >= extent->cursor || extent->live_count == 0) {
        arena->counts.ignored_frees++;
        return;
    }
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

uint64_t arena_outstanding(const void *state) {
    const struct arena *arena = state;
    return arena->counts.live_count + arena->retired.outstanding;
}

static void arena_destroy(void *state) {
    struct arena *arena = state;
    index_free(&arena->index);
    extent_table_free(&arena->table);
    retired_free(&arena->retired);
    free(arena);
}

enum arena_status arena_open(struct arena **made, uint64_t align, bool best_fit, int device) {
    static const struct vmmcy_room room = {arena_malloc, arena_free, arena_outstanding,
                                           arena_destroy};
    struct arena *arena = aligned_alloc(_Alignof(struct arena), sizeof *arena);
    if (!arena) {
        return ARENA_NO_MEMORY;
    }
    memset(arena, 0, sizeof *arena);
    arena->align_mask = align - 1;
    arena->device = device;
    if (extent_table_make(&arena->table, NULL, NULL, 0, NULL) != EXTENTS_OK ||
        !index_make(&arena->index, best_fit, 0)) {
        arena_destroy(arena);
        return ARENA_NO_MEMORY;
    }
    index_fill(arena);
    arena->slot = vmmcy_slot_claim(&room, arena);
    if (!arena->slot) {
        arena_destroy(arena);
        return ARENA_NO_SLOT;
    }
    *made = arena;
    return ARENA_OK;
}

static void keep_extents(struct extent_table *table, const struct extent_table *before) {
    memcpy(table->extents, before->extents, before->count * sizeof *table->extents);
}

static void rooms_fill(struct extent_table *table, uint64_t align_mask) {
    for (uint32_t i = 0; i < table->count; i++) {
        table->extents[i].room_bytes = extent_room(&table->extents[i], align_mask);
    }
}

/* What arena_register makes before it takes the lock, and frees after it. */
struct registration {
    struct extent_table table;
    struct arena_index index;
    struct retired retired;
};

static void registration_free(struct registration *made) {
    extent_table_free(&made->table);
    index_free(&made->index);
    retired_free(&made->retired);
}

static enum arena_status registration_make(struct registration *made, const struct arena *arena,
                                           const struct extent_span *spans, uint32_t count,
                                           bool keep, struct extent_span overlap[2]) {
    memset(made, 0, sizeof *made);
    enum extent_status status =
        extent_table_make(&made->table, keep ? &arena->table : NULL, spans, count, overlap);
    if (status != EXTENTS_OK) {
        return status == EXTENTS_OVERLAP ? ARENA_OVERLAP : ARENA_NO_MEMORY;
    }
    if (!index_make(&made->index, arena->index.is_best_fit, made->table.count) ||
        !retired_make(&made->retired, &arena->retired, &arena->table)) {
        registration_free(made);
        return ARENA_NO_MEMORY;
    }
    return ARENA_OK;
}

/* With the lock held: `next` becomes what the arena has, and gets what it had. */
static void registration_swap(struct arena *arena, struct registration *next, bool keep) {
    struct registration last = {arena->table, arena->index, arena->retired};
    if (keep) {
        keep_extents(&next->table, &arena->table);
    } else {
        retired_merge(&next->retired, &arena->retired, &arena->table);
        arena->retired = next->retired;
        uint64_t ignored_frees = arena->counts.ignored_frees;
        arena->counts = (struct arena_counts){.ignored_frees = ignored_frees};
    }
    arena->table = next->table;
    arena->index = next->index;
    rooms_fill(&arena->table, arena->align_mask);
    index_fill(arena);
    next->table = last.table;
    next->index = last.index;
    next->retired = keep ? next->retired : last.retired;
}

enum arena_status arena_register(struct arena *arena, const struct extent_span *spans,
                                 uint32_t count, bool keep, bool require_idle,
                                 struct extent_span overlap[2]) {
    struct registration registration;
    enum arena_status status = registration_make(&registration, arena, spans, count, keep, overlap);
    if (status != ARENA_OK) {
        return status;
    }
    slot_lock_take(&arena->slot->lock);
    if (require_idle && arena->counts.live_count) {
        status = ARENA_LIVE;
    } else {
        registration_swap(arena, &registration, keep);
    }
    slot_lock_give(&arena->slot->lock);
    registration_free(&registration);
    return status;
}

void arena_set_align(struct arena *arena, uint64_t align) {
    slot_lock_take(&arena->slot->lock);
    arena->align_mask = align - 1;
    rooms_fill(&arena->table, arena->align_mask);
    index_fill(arena);
    slot_lock_give(&arena->slot->lock);
}

enum arena_status arena_set_best_fit(struct arena *arena, bool best_fit) {
    struct arena_index index;
    if (arena->index.is_best_fit == best_fit) {
        return ARENA_OK;
    }
    if (!index_make(&index, best_fit, arena->table.count)) {
        return ARENA_NO_MEMORY;
    }
    slot_lock_take(&arena->slot->lock);
    struct arena_index last = arena->index;
    arena->index = index;
    index_fill(arena);
    slot_lock_give(&arena->slot->lock);
    index_free(&last);
    return ARENA_OK;
}

uint64_t arena_reclaim(struct arena *arena) {
    uint64_t won = 0;
    slot_lock_take(&arena->slot->lock);
    arena_flush_hint(arena);
    forget_hint(arena);
    for (uint32_t i = 0; i < arena->table.count; i++) {
        struct extent *extent = &arena->table.extents[i];
        if (extent->live_count || extent->cursor == 0) {
            continue;
        }
        uint64_t room = extent->room_bytes;
        won += extent->cursor;
        extent->cursor = 0;
        extent->room_bytes = extent_room(extent, arena->align_mask);
        if (arena->index.is_best_fit) {
            best_fit_move(&arena->index.of.best, i, room, extent->room_bytes);
        } else {
            first_fit_set(&arena->index.of.first, i, extent->room_bytes);
        }
    }
    arena->counts.cursor_bytes -= won;
    slot_lock_give(&arena->slot->lock);
    return won;
}

void *arena_allocate(struct arena *arena, size_t size_bytes) {
    slot_lock_take(&arena->slot->lock);
    /* Through the slot: once it is shut, nothing is handed out. */
    void *address = arena->slot->room.malloc_fn(arena, size_bytes, arena->device);
    slot_lock_give(&arena->slot->lock);
    return address;
}

void arena_give(struct arena *arena, void *address, size_t size_bytes) {
    slot_lock_take(&arena->slot->lock);
    arena_free(arena, address, size_bytes);
    slot_lock_give(&arena->slot->lock);
}
