/* The bump arena: extents, the policy that picks one, and the counts.
 *
 * Layers, each knowing only those before it: _extents (where an address belongs),
 * _first_fit and _best_fit (which extent has the room), _retired (late frees),
 * this file. The arena knows no driver and no Python.
 *
 * `arena_malloc` to `arena_flush_hint` are called with the slot's lock held. All
 * others take it themselves, after they have got the memory that they need; those
 * that change extents or policy are called one at a time. */
#pragma once
#include "best_fit.h"
#include "entry_points.h"
#include "first_fit.h"
#include "retired.h"

#define ARENA_ANY_DEVICE (-1)

struct arena_index {
    bool is_best_fit;
    union {
        struct first_fit first;
        struct best_fit best;
    } of;
};

struct arena_counts {
    uint64_t live_bytes; /* rounded, as all bytes here */
    uint64_t live_count;
    uint64_t cursor_bytes;
    uint64_t freed_bytes;
    uint64_t ignored_frees;
};

struct arena {
    /* What changes with each malloc: a cache line. First fit remembers that no
     * extent before `hint` has room for `hint_bytes`: rooms only shrink, so a
     * request of that size or more may start there. The tree learns of the
     * hinted extent's room when the hint moves on. */
    struct arena_counts counts __attribute__((aligned(64)));
    uint64_t hint_bytes;
    uint32_t hint;

    /* What stays: another. */
    uint64_t align_mask __attribute__((aligned(64)));
    int device;
    struct arena_index index;
    struct extent_table table;
    struct retired retired;
    struct vmmcy_slot *slot;
};

struct arena_figures {
    struct arena_counts counts;
    uint64_t retired_count;
    uint64_t capacity_bytes;
    uint64_t largest_free_bytes;
};

enum arena_status { ARENA_OK, ARENA_NO_MEMORY, ARENA_OVERLAP, ARENA_LIVE, ARENA_NO_SLOT };

#ifdef __cplusplus
extern "C" {
#endif
/* An arena without extents, in a slot of its own. */
enum arena_status arena_open(struct arena **made, uint64_t align, bool best_fit, int device);

void *arena_malloc(void *arena, size_t size_bytes, int device);
void arena_free(void *arena, void *address, size_t size_bytes);
uint64_t arena_outstanding(const void *arena);

/* Tell the first-fit tree the room of the hinted extent. */
void arena_flush_hint(struct arena *arena);

/* Register `spans` instead of the extents there are, or after them with `keep`.
 * Nothing changes unless it succeeds. */
enum arena_status arena_register(struct arena *arena, const struct extent_span *spans,
                                 uint32_t count, bool keep, bool require_idle,
                                 struct extent_span overlap[2]);
void arena_set_align(struct arena *arena, uint64_t align);
enum arena_status arena_set_best_fit(struct arena *arena, bool best_fit);

/* Extents with nothing live start again; returns the bytes won. */
uint64_t arena_reclaim(struct arena *arena);

void *arena_allocate(struct arena *arena, size_t size_bytes);
void arena_give(struct arena *arena, void *address, size_t size_bytes);
struct arena_figures arena_read(struct arena *arena);

/* Copy up to `most` extents, give their number. */
uint32_t arena_copy_extents(struct arena *arena, struct extent *copies, uint32_t most);

/* What is wrong inside, or NULL. */
const char *arena_fault(struct arena *arena);
#ifdef __cplusplus
}
#endif
