# The C rooms below, as _arena.pyx and other compiled modules see them. Their code is in this
# module's library alone: others reach the table of entry points through the functions at the end.
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t

from vmmcy._extents cimport extent_span


cdef extern from "entry_points.h" nogil:
    const unsigned VMMCY_SLOT_COUNT

    struct vmmcy_slot:
        uint16_t number

    struct vmmcy_room:
        void* (*malloc_fn)(void* state, size_t size_bytes, int device, void* stream) noexcept nogil
        void (*free_fn)(void* state, void* address, size_t size_bytes, void* stream) noexcept nogil
        uint64_t (*outstanding_fn)(const void* state) noexcept nogil
        void (*destroy_fn)(void* state) noexcept nogil

    struct vmmcy_slot_census:
        unsigned open
        unsigned shut
        unsigned kept_back

    vmmcy_slot* vmmcy_slot_claim(const vmmcy_room* room, void* state)
    bint vmmcy_slot_shut(vmmcy_slot* slot, bint force)
    void vmmcy_slot_drop(vmmcy_slot* slot)
    bint vmmcy_slot_is_ours(const vmmcy_slot* slot)
    uint64_t vmmcy_slot_outstanding(vmmcy_slot* slot)
    void vmmcy_slot_step_out(vmmcy_slot* slot)
    void vmmcy_slot_step_in(vmmcy_slot* slot)
    vmmcy_slot_census vmmcy_slot_count()
    uintptr_t vmmcy_malloc_address(unsigned slot)
    uintptr_t vmmcy_free_address(unsigned slot)


cdef extern from "bump_arena.h" nogil:
    struct extent:
        uint64_t base
        uint64_t size_bytes
        uint64_t cursor

    struct arena:
        uint32_t max_extents
        vmmcy_slot* slot

    struct arena_counts:
        uint64_t live_bytes
        uint64_t live_count
        uint64_t cursor_bytes
        uint64_t freed_bytes
        uint64_t ignored_frees

    struct arena_figures:
        arena_counts counts
        uint64_t retired_count
        uint64_t capacity_bytes
        uint64_t largest_free_bytes
        uint64_t align
        uint32_t extent_count
        bint is_best_fit

    enum arena_status:
        ARENA_OK
        ARENA_NO_MEMORY
        ARENA_CLOSED
        ARENA_TOO_MANY
        ARENA_OVERLAP
        ARENA_LIVE
        ARENA_NO_SLOT

    struct arena_request:
        const extent_span* spans
        uint32_t count
        uint64_t total
        extent_span[2] overlap

    arena_status arena_open(
        arena** made,
        arena_request* request,
        uint32_t max_extents,
        uint64_t align,
        bint best_fit,
        int device,
    )
    arena_status arena_set_extents(arena* self, arena_request* request, bint require_idle)
    arena_status arena_add_extents(arena* self, arena_request* request)
    arena_status arena_set_align(arena* self, uint64_t align)
    arena_status arena_set_best_fit(arena* self, bint best_fit)
    arena_status arena_reclaim(arena* self, uint64_t* won)
    void arena_forget_extents(arena* self)
    void* arena_allocate(arena* self, size_t size_bytes)
    void arena_give(arena* self, void* address, size_t size_bytes)
    arena_figures arena_read(arena* self)
    uint32_t arena_copy_extents(arena* self, extent* copies, uint32_t most)
    unsigned arena_count_open(int device)
    const char* arena_fault(arena* self)


cdef class Figures:
    cdef arena_figures values


cdef class ArenaHold:
    cdef arena* arena


cdef vmmcy_slot* claim_slot(const vmmcy_room* room, void* state) noexcept nogil
cdef bint shut_slot(vmmcy_slot* slot, bint force) noexcept nogil
cdef void drop_slot(vmmcy_slot* slot) noexcept nogil
cdef bint slot_is_ours(const vmmcy_slot* slot) noexcept nogil
cdef uint64_t slot_outstanding(vmmcy_slot* slot) noexcept nogil
cdef void step_out_of_slot(vmmcy_slot* slot) noexcept nogil
cdef void step_into_slot(vmmcy_slot* slot) noexcept nogil
cdef object no_slot_error()
