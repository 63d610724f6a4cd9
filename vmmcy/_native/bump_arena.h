/* The bump arena: extents, the policy that picks one, and the counts.
 *
 * Layers, each knowing only those before it: extents (where an address belongs),
 * first_fit and best_fit (which extent has the room), arena_index (the policy in
 * force), retired (late frees), the arena: bump_arena.c hands out and takes back,
 * _late decides whose a late free was, _changes registers extents and policies,
 * _view reads. The arena knows no driver and no Python.
 *
 * Two locks: `changing` is held by whatever changes or measures the extents, so that
 * it may take its time and get memory; the slot's, taken after it, for the few
 * instructions in which an allocation could see the difference. */
#pragma once
#include <pthread.h>

#include "arena_index.h"
#include "entry_points.h"
#include "retired.h"

#define ARENA_ANY_DEVICE (-1)

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
    uint32_t max_extents;
    struct arena_index index;
    struct extent_table table;
    struct retired retired;
    struct vmmcy_slot *slot;
    pthread_mutex_t changing;
};

struct arena_figures {
    struct arena_counts counts;
    uint64_t retired_count; /* handed out by extents of before, and not back */
    uint64_t capacity_bytes;
    uint64_t largest_free_bytes;
    uint64_t align;
    uint32_t extent_count;
    bool is_best_fit;
};

enum arena_status {
    ARENA_OK,
    ARENA_NO_MEMORY,
    ARENA_CLOSED,
    ARENA_TOO_MANY,
    ARENA_OVERLAP,
    ARENA_LIVE,
    ARENA_NO_SLOT,
};

/* Extents to register, and what comes of it. */
struct arena_request {
    const struct extent_span *spans;
    uint32_t count;
    uint64_t total;                /* set for ARENA_TOO_MANY: how many there would be */
    struct extent_span overlap[2]; /* set for ARENA_OVERLAP */
};

#ifdef __cplusplus
extern "C" {
#endif
/* An arena over the requested extents, in a slot of its own. */
enum arena_status arena_open(struct arena **made, struct arena_request *request,
                             uint32_t max_extents, uint64_t align, bool best_fit, int device);

/* ---- with the slot's lock held */

void *arena_malloc(void *arena, size_t size_bytes, int device, void *stream);
void arena_free(void *arena, void *address, size_t size_bytes, void *stream);
uint64_t arena_outstanding(const void *arena);

/* After rooms have grown: what the hint knew is no longer true. */
void arena_forget_hint(struct arena *arena);

/* Tell the first-fit tree the room of the hinted extent. */
void arena_flush_hint(struct arena *arena);

/* Count a free at `address` where it may be a retired allocation's; false when it
 * cannot. `rank` is that of the extent of which it may be a live allocation's, else
 * NO_EXTENT. */
bool arena_take_late(struct arena *arena, uint64_t address, uint32_t rank);

/* Nothing is out any more, of old extents or new: no doubt is left. */
void arena_settle_all(struct arena *arena);

/* ---- these take the locks; nothing changes unless they give ARENA_OK */

/* Register extents instead of those there are. */
enum arena_status arena_set_extents(struct arena *arena, struct arena_request *request,
                                    bool require_idle);
/* Register extents after those there are. */
enum arena_status arena_add_extents(struct arena *arena, struct arena_request *request);
enum arena_status arena_set_align(struct arena *arena, uint64_t align);
enum arena_status arena_set_best_fit(struct arena *arena, bool best_fit);

/* Extents with nothing live start again; `*won` becomes the bytes won. */
enum arena_status arena_reclaim(struct arena *arena, uint64_t *won);

/* Give the extents' memory back, of a shut arena with nothing outstanding. */
void arena_forget_extents(struct arena *arena);

void *arena_allocate(struct arena *arena, size_t size_bytes);
void arena_give(struct arena *arena, void *address, size_t size_bytes);
struct arena_figures arena_read(struct arena *arena);

/* Copy up to `most` extents, give their number. */
uint32_t arena_copy_extents(struct arena *arena, struct extent *copies, uint32_t most);

/* How many arenas of a device are open, or of any for ARENA_ANY_DEVICE. */
unsigned arena_count_open(int device);

/* What is wrong inside, or NULL. */
const char *arena_fault(struct arena *arena);
#ifdef __cplusplus
}
#endif
