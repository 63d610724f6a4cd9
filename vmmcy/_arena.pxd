# The C rooms below, as _arena.pyx and other compiled modules see them.
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t


cdef extern from "entry_points.h" nogil:
    const unsigned VMMCY_SLOT_COUNT

    struct vmmcy_slot:
        uint16_t number

    struct vmmcy_slot_census:
        unsigned open
        unsigned shut
        unsigned kept_back

    bint vmmcy_slot_shut(vmmcy_slot* slot, bint force)
    void vmmcy_slot_drop(vmmcy_slot* slot)
    bint vmmcy_slot_is_ours(const vmmcy_slot* slot)
    vmmcy_slot_census vmmcy_slot_count()
    uintptr_t vmmcy_malloc_address(unsigned slot)
    uintptr_t vmmcy_free_address(unsigned slot)


cdef extern from "bump_arena.h" nogil:
    struct extent_span:
        uint64_t base
        uint64_t size_bytes

    struct extent:
        uint64_t base
        uint64_t size_bytes
        uint64_t cursor

    enum extent_status:
        EXTENTS_OK
        EXTENTS_NO_MEMORY
        EXTENTS_OVERLAP

    extent_status spans_coalesce(extent_span* spans, uint32_t* count, extent_span* overlap)

    struct extent_table:
        uint32_t count

    struct arena:
        extent_table table
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

    enum arena_status:
        ARENA_OK
        ARENA_NO_MEMORY
        ARENA_OVERLAP
        ARENA_LIVE
        ARENA_NO_SLOT

    arena_status arena_open(arena** made, uint64_t align, bint best_fit, int device)
    arena_status arena_register(arena* self, const extent_span* spans, uint32_t count,
                                bint keep, bint require_idle, extent_span* overlap)
    void arena_set_align(arena* self, uint64_t align)
    arena_status arena_set_best_fit(arena* self, bint best_fit)
    uint64_t arena_reclaim(arena* self)
    void* arena_allocate(arena* self, size_t size_bytes)
    void arena_give(arena* self, void* address, size_t size_bytes)
    arena_figures arena_read(arena* self)
    uint32_t arena_copy_extents(arena* self, extent* copies, uint32_t most)
    const char* arena_fault(arena* self)


cdef class ExtentList:
    cdef extent_span* spans
    cdef readonly Py_ssize_t count
    cdef readonly str fault

    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef bint _read_exact(self, list pairs) except -1
    cdef int _read_any(self, list pairs) except -1
    cdef int _check_ends(self) except -1
    cdef int check_values(self) except -1


cdef class Figures:
    cdef arena_figures values


cdef class ArenaHold:
    cdef arena* arena
