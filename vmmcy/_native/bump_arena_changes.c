/* What an arena is made of, and how that changes. */
#include "bump_arena.h"

#include <stdlib.h>
#include <string.h>

/* Made before the slot's lock is taken, and freed after it. */
struct registration {
    struct extent_table table;
    struct arena_index index;
    struct retired retired;
};

static void registration_free(struct registration *registration) {
    extent_table_free(&registration->table);
    arena_index_free(&registration->index);
    retired_free(&registration->retired);
}

static enum arena_status registration_make(struct registration *made, const struct arena *arena,
                                           struct arena_request *request, bool keep) {
    const struct extent_table *kept = keep ? &arena->table : NULL;
    request->total = (uint64_t)request->count + (kept ? kept->count : 0);
    if (request->total > arena->max_extents) {
        return ARENA_TOO_MANY;
    }
    memset(made, 0, sizeof *made);
    enum extent_status status =
        extent_table_make(&made->table, kept, request->spans, request->count, request->overlap);
    if (status != EXTENTS_OK) {
        return status == EXTENTS_OVERLAP ? ARENA_OVERLAP : ARENA_NO_MEMORY;
    }
    if (!arena_index_make(&made->index, arena->index.is_best_fit, made->table.count) ||
        !retired_make(&made->retired, &arena->retired, &arena->table, &made->table)) {
        registration_free(made);
        return ARENA_NO_MEMORY;
    }
    return ARENA_OK;
}

/* Rooms and index anew, from extents and alignment. */
static void refill(struct arena *arena) {
    struct extent_table *table = &arena->table;
    for (uint32_t i = 0; i < table->count; i++) {
        table->extents[i].room_bytes = extent_room(&table->extents[i], arena->align_mask);
    }
    arena_forget_hint(arena);
    arena_index_fill(&arena->index, table, arena->align_mask);
}

/* The arena has what was made, and `made` has what it had. */
static void registration_swap(struct arena *arena, struct registration *made) {
    struct registration last = {arena->table, arena->index, arena->retired};
    arena->table = made->table;
    arena->index = made->index;
    arena->retired = made->retired;
    *made = last;
    refill(arena);
}

static void arena_destroy(void *state) {
    struct arena *arena = state;
    struct registration last = {arena->table, arena->index, arena->retired};
    registration_free(&last);
    pthread_mutex_destroy(&arena->changing);
    free(arena);
}

enum arena_status arena_open(struct arena **made, struct arena_request *request,
                             uint32_t max_extents, uint64_t align, bool best_fit, int device) {
    static const struct vmmcy_room room = {arena_malloc, arena_free, arena_outstanding,
                                           arena_destroy};
    struct arena *arena = aligned_alloc(_Alignof(struct arena), sizeof *arena);
    if (!arena) {
        return ARENA_NO_MEMORY;
    }
    memset(arena, 0, sizeof *arena);
    pthread_mutex_init(&arena->changing, NULL);
    arena->align_mask = align - 1;
    arena->device = device;
    arena->max_extents = max_extents;
    arena->index.is_best_fit = best_fit;
    struct registration registration;
    enum arena_status status = registration_make(&registration, arena, request, false);
    if (status == ARENA_OK) {
        registration_swap(arena, &registration);
        arena->slot = vmmcy_slot_claim(&room, arena);
        status = arena->slot ? ARENA_OK : ARENA_NO_SLOT;
    }
    if (status != ARENA_OK) {
        arena_destroy(arena);
        return status;
    }
    *made = arena;
    return ARENA_OK;
}

/* Hold off other changes; false, and nothing held, when the arena is shut. */
static bool change_begin(struct arena *arena) {
    pthread_mutex_lock(&arena->changing);
    slot_lock_take(&arena->slot->lock);
    bool is_open = arena->slot->open;
    slot_lock_give(&arena->slot->lock);
    if (!is_open) {
        pthread_mutex_unlock(&arena->changing);
    }
    return is_open;
}

static enum arena_status change_end(struct arena *arena, enum arena_status status) {
    pthread_mutex_unlock(&arena->changing);
    return status;
}

enum arena_status arena_set_extents(struct arena *arena, struct arena_request *request,
                                    bool require_idle) {
    struct registration registration;
    if (!change_begin(arena)) {
        return ARENA_CLOSED;
    }
    enum arena_status status = registration_make(&registration, arena, request, false);
    if (status != ARENA_OK) {
        return change_end(arena, status);
    }
    slot_lock_take(&arena->slot->lock);
    if (require_idle && arena->counts.live_count) {
        status = ARENA_LIVE;
    } else {
        retired_merge(&registration.retired, &arena->retired, &arena->table);
        arena->counts = (struct arena_counts){.ignored_frees = arena->counts.ignored_frees};
        registration_swap(arena, &registration);
    }
    slot_lock_give(&arena->slot->lock);
    registration_free(&registration);
    return change_end(arena, status);
}

enum arena_status arena_add_extents(struct arena *arena, struct arena_request *request) {
    struct registration registration;
    if (!change_begin(arena)) {
        return ARENA_CLOSED;
    }
    enum arena_status status = registration_make(&registration, arena, request, true);
    if (status != ARENA_OK) {
        return change_end(arena, status);
    }
    slot_lock_take(&arena->slot->lock);
    memcpy(registration.table.extents, arena->table.extents,
           arena->table.count * sizeof *arena->table.extents);
    retired_keep(&registration.retired, &arena->retired, &arena->table, &registration.table);
    registration_swap(arena, &registration);
    slot_lock_give(&arena->slot->lock);
    registration_free(&registration);
    return change_end(arena, ARENA_OK);
}

enum arena_status arena_set_align(struct arena *arena, uint64_t align) {
    if (!change_begin(arena)) {
        return ARENA_CLOSED;
    }
    slot_lock_take(&arena->slot->lock);
    arena->align_mask = align - 1;
    refill(arena);
    slot_lock_give(&arena->slot->lock);
    return change_end(arena, ARENA_OK);
}

enum arena_status arena_set_best_fit(struct arena *arena, bool best_fit) {
    struct arena_index index;
    if (!change_begin(arena)) {
        return ARENA_CLOSED;
    }
    if (arena->index.is_best_fit == best_fit) {
        return change_end(arena, ARENA_OK);
    }
    if (!arena_index_make(&index, best_fit, arena->table.count)) {
        return change_end(arena, ARENA_NO_MEMORY);
    }
    slot_lock_take(&arena->slot->lock);
    struct arena_index last = arena->index;
    arena->index = index;
    refill(arena);
    slot_lock_give(&arena->slot->lock);
    arena_index_free(&last);
    return change_end(arena, ARENA_OK);
}

/* Start `extent` again, and return the bytes won. */
static uint64_t extent_restart(struct arena *arena, uint32_t index) {
    struct extent *extent = &arena->table.extents[index];
    uint64_t won = extent->cursor, room = extent->room_bytes;
    extent->cursor = 0;
    extent->room_bytes = extent_room(extent, arena->align_mask);
    arena_index_move(&arena->index, index, room, extent->room_bytes);
    return won;
}

enum arena_status arena_reclaim(struct arena *arena, uint64_t *won) {
    if (!change_begin(arena)) {
        return ARENA_CLOSED;
    }
    slot_lock_take(&arena->slot->lock);
    arena_flush_hint(arena);
    arena_forget_hint(arena);
    *won = 0;
    for (uint32_t i = 0; i < arena->table.count; i++) {
        const struct extent *extent = &arena->table.extents[i];
        if (extent->live_count == 0 && extent->cursor) {
            *won += extent_restart(arena, i);
        }
    }
    arena->counts.cursor_bytes -= *won;
    slot_lock_give(&arena->slot->lock);
    return change_end(arena, ARENA_OK);
}

void arena_forget_extents(struct arena *arena) {
    struct registration last = {.index.is_best_fit = arena->index.is_best_fit};
    slot_lock_take(&arena->slot->lock);
    if (!arena->slot->open && arena_outstanding(arena) == 0) {
        struct registration nothing = last;
        last = (struct registration){arena->table, arena->index, arena->retired};
        arena->table = nothing.table;
        arena->index = nothing.index;
        arena->retired = nothing.retired;
    }
    slot_lock_give(&arena->slot->lock);
    registration_free(&last);
}
