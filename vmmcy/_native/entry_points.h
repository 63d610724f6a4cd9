/* The table of C functions that torch and others call for memory.
 *
 * Slot k serves vmmcy_malloc_<k> and vmmcy_free_<k>. A room (the bump arena is
 * one) claims a slot for a state of its own; the table knows nothing about what
 * the state is. Static, so that it outlives the interpreter: an allocator that
 * is torn down at exit still finds its slot. No Python in here. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "slot_lock.h"

#define VMMCY_SLOT_COUNT 256

/* What a room does for its slots. Each is called with the slot's lock held, which those
 * whose work takes long give up meanwhile (vmmcy_slot_step_out); none may wait for the GIL.
 * `stream` is the caller's CUstream: of a malloc the one that will use the memory first, of
 * a free the one whose work so far may still use it. */
struct vmmcy_room {
    void *(*malloc_fn)(void *state, size_t size_bytes, int device, void *stream);
    void (*free_fn)(void *state, void *address, size_t size_bytes, void *stream);
    uint64_t (*outstanding_fn)(const void *state); /* allocations that may still be freed */
    void (*destroy_fn)(void *state);               /* without the lock: nobody else sees it */
};

/* A cache line each: arenas in use on different cores share none. */
struct vmmcy_slot {
    struct slot_lock lock;
    uint16_t number;
    bool open;      /* not shut yet */
    bool held;      /* somebody has its entry points */
    uint64_t stamp; /* fork count + 1 at the claim, 0 before the first */
    void *state;
    struct vmmcy_room room;
    uint32_t stepped_out; /* calls at work without the lock: they count as outstanding */
} __attribute__((aligned(64)));

struct vmmcy_slot_census {
    unsigned open;      /* slots in use */
    unsigned shut;      /* shut, and their entry points are still held */
    unsigned kept_back; /* shut and dropped, but what they handed out is not back */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Give `state` a slot, or return NULL when none is free. A slot is used again
 * only when nobody holds it and nothing that it handed out is outstanding; the
 * one dropped first comes first. */
struct vmmcy_slot *vmmcy_slot_claim(const struct vmmcy_room *room, void *state);

/* From now on malloc gives NULL; frees still count down. False, and nothing
 * done, when something is outstanding and `force` is not set. */
bool vmmcy_slot_shut(struct vmmcy_slot *slot, bool force);

/* The holder of a shut slot is gone. */
void vmmcy_slot_drop(struct vmmcy_slot *slot);

/* False in a process forked after the claim: the slot belongs to the parent. */
bool vmmcy_slot_is_ours(const struct vmmcy_slot *slot);

struct vmmcy_slot_census vmmcy_slot_count(void);

/* How many of this process's open slots `is_wanted` says yes to, asked without their locks:
 * it may read what does not change while a slot is open. */
unsigned vmmcy_slot_count_open(bool (*is_wanted)(const struct vmmcy_slot *slot, int device),
                               int device);

/* Allocations that may still be freed, and calls that are at work. */
uint64_t vmmcy_slot_outstanding(struct vmmcy_slot *slot);

/* In a room's malloc_fn or free_fn: give the lock up for what takes longer than a few dozen
 * instructions, and take it again for the return. Meanwhile the slot keeps its state. */
void vmmcy_slot_step_out(struct vmmcy_slot *slot);
void vmmcy_slot_step_in(struct vmmcy_slot *slot);

/* Addresses of the pair of functions; slot VMMCY_SLOT_COUNT is never claimed,
 * so its pair is the one of no arena. */
uintptr_t vmmcy_malloc_address(unsigned slot);
uintptr_t vmmcy_free_address(unsigned slot);
#ifdef __cplusplus
}
#endif
