"""Bump arenas, compiled: extents and cursors, first and best fit.

Arithmetic alone: this room knows no driver. It wraps the C rooms for ``arena.py``,
which says what each operation means. Every lock of theirs is waited for without
the GIL, and none of them takes the GIL.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from vmmcy._extents cimport ExtentList, overlap_error, too_many_error

LIBRARY_PATH = __file__
CLOSED_SLOT = VMMCY_SLOT_COUNT

cdef enum:
    # As many as are copied without asking for their number, and for memory.
    FEW_EXTENTS = 16


cdef arena_request request_for(ExtentList extents) noexcept:
    cdef arena_request request
    request.spans = extents.spans
    request.count = <uint32_t>extents.count
    return request


def slot_census():
    """Count the slots that are open, shut but held, and kept back: a tuple of three."""
    cdef vmmcy_slot_census census
    with nogil:
        census = vmmcy_slot_count()
    return census.open, census.shut, census.kept_back


def count_open_arenas(int device):
    """Count the open arenas of a device, or of any for -1."""
    cdef unsigned count
    with nogil:
        count = arena_count_open(device)
    return count


def entry_point_addresses(unsigned slot):
    """Return the addresses of a slot's malloc and free."""
    if slot > CLOSED_SLOT:
        raise IndexError(f"slot {slot} is not from 0 to {CLOSED_SLOT}")
    return vmmcy_malloc_address(slot), vmmcy_free_address(slot)


@cython.final
cdef class Figures:
    """The counts of an arena as they were at one moment."""

    @property
    def live_bytes(self):
        return self.values.counts.live_bytes

    @property
    def live_count(self):
        return self.values.counts.live_count

    @property
    def cursor_bytes(self):
        return self.values.counts.cursor_bytes

    @property
    def freed_bytes(self):
        return self.values.counts.freed_bytes

    @property
    def ignored_frees(self):
        return self.values.counts.ignored_frees

    @property
    def retired_count(self):
        return self.values.retired_count

    @property
    def capacity_bytes(self):
        return self.values.capacity_bytes

    @property
    def largest_free_bytes(self):
        return self.values.largest_free_bytes

    @property
    def extent_count(self):
        return self.values.extent_count

    @property
    def align(self):
        return self.values.align

    @property
    def best_fit(self):
        return self.values.is_best_fit


cdef class ArenaHold:
    """An arena in its slot, which is not used again while this object lives.

    The arena and every `EntryPoints` object made from it share one.
    """

    def __cinit__(
        self, ExtentList extents, uint32_t max_extents, uint64_t align, bint best_fit, int device
    ):
        cdef arena* made = NULL
        cdef arena_request request = request_for(extents)
        cdef arena_status status
        with nogil:
            status = arena_open(&made, &request, max_extents, align, best_fit, device)
        check_status(status, &request, max_extents, "__init__")
        self.arena = made

    def __dealloc__(self):
        # The parent's slots stay as they are in a forked child.
        if self.arena != NULL and vmmcy_slot_is_ours(self.arena.slot):
            with nogil:
                vmmcy_slot_shut(self.arena.slot, True)
                vmmcy_slot_drop(self.arena.slot)

    @property
    def slot(self):
        """Number of the slot."""
        return self.arena.slot.number

    @property
    def is_ours(self):
        """False in a process that was forked since."""
        return vmmcy_slot_is_ours(self.arena.slot)

    @property
    def outstanding(self):
        """What may still be freed, of extents there are and of retired ones."""
        cdef arena_figures figures
        with nogil:
            figures = arena_read(self.arena)
        return figures.counts.live_count + figures.retired_count

    def set_extents(self, ExtentList extents, bint require_idle):
        """Register extents in place of those there are; False when something is live."""
        cdef arena_request request = request_for(extents)
        cdef arena_status status
        extents.check(self.arena.max_extents)
        with nogil:
            status = arena_set_extents(self.arena, &request, require_idle)
        if status == ARENA_LIVE:
            return False
        check_status(status, &request, self.arena.max_extents, "set_extents")
        return True

    def add_extents(self, ExtentList extents):
        """Register extents after those there are."""
        cdef arena_request request = request_for(extents)
        cdef arena_status status
        extents.check(self.arena.max_extents, already=self.figures().extent_count)
        with nogil:
            status = arena_add_extents(self.arena, &request)
        check_status(status, &request, self.arena.max_extents, "add_extents")

    def set_align(self, uint64_t align):
        """Align what is handed out from now on."""
        cdef arena_status status
        with nogil:
            status = arena_set_align(self.arena, align)
        check_status(status, NULL, 0, "set_align")

    def set_best_fit(self, bint best_fit):
        """Change the policy."""
        cdef arena_status status
        with nogil:
            status = arena_set_best_fit(self.arena, best_fit)
        check_status(status, NULL, 0, "set_best_fit")

    def allocate(self, size_t size_bytes):
        """Return an address, or 0 when nothing fits."""
        cdef void* address
        with nogil:
            address = arena_allocate(self.arena, size_bytes)
        return <uintptr_t>address

    def free(self, uintptr_t address, size_t size_bytes):
        """Count a free."""
        with nogil:
            arena_give(self.arena, <void*>address, size_bytes)

    def reclaim(self):
        """Start idle extents again; return the bytes won."""
        cdef uint64_t won = 0
        cdef arena_status status
        with nogil:
            status = arena_reclaim(self.arena, &won)
        check_status(status, NULL, 0, "reclaim")
        return won

    def shut(self, bint force):
        """Hand out nothing any more; return the last figures and extents.

        None when something is live and `force` is not set.
        """
        cdef Figures last = Figures.__new__(Figures)
        cdef extent[FEW_EXTENTS] few
        cdef uint32_t count = 0
        cdef bint shut
        with nogil:
            shut = vmmcy_slot_shut(self.arena.slot, force)
            if shut:
                last.values = arena_read(self.arena)
                # A change that had begun may end in between: this is how many were copied.
                count = arena_copy_extents(self.arena, few, FEW_EXTENTS)
        if not shut:
            return None
        if count > FEW_EXTENTS:
            return last, self.extents()
        return last, listed(few, count)

    def forget_extents(self):
        """Give the memory of a shut arena's extents back, if nothing that it handed out is live."""
        with nogil:
            arena_forget_extents(self.arena)

    def figures(self):
        """Return all counts, read at one moment."""
        cdef Figures figures = Figures.__new__(Figures)
        with nogil:
            figures.values = arena_read(self.arena)
        return figures

    def extents(self):
        """Return a list of (base, size_bytes, cursor)."""
        cdef extent* copies = NULL
        cdef uint32_t most = 0, count = FEW_EXTENTS
        try:
            while most < count:
                PyMem_RawFree(copies)
                most = count
                copies = <extent*>PyMem_RawMalloc(most * sizeof(extent))
                if copies == NULL:
                    raise MemoryError
                with nogil:
                    count = arena_copy_extents(self.arena, copies, most)
            return listed(copies, count)
        finally:
            PyMem_RawFree(copies)

    def fault(self):
        """Return what is wrong inside, or None."""
        cdef const char* fault
        with nogil:
            fault = arena_fault(self.arena)
        return None if fault == NULL else fault.decode()


cdef list listed(const extent* extents, uint32_t count):
    return [(extents[i].base, extents[i].size_bytes, extents[i].cursor) for i in range(count)]


cdef int check_status(
    arena_status status, const arena_request* request, limit, str method
) except -1:
    """Raise what `status` says; nothing has changed then."""
    if status == ARENA_OK:
        return 0
    if status == ARENA_CLOSED:
        raise RuntimeError(f"BumpArena.{method} after close")
    if status == ARENA_TOO_MANY:
        raise too_many_error(request.total, limit)
    if status == ARENA_OVERLAP:
        raise overlap_error(request.overlap)
    if status == ARENA_NO_SLOT:
        raise no_slot_error()
    raise MemoryError(f"BumpArena.{method}: no host memory left")


cdef object no_slot_error():
    """Say who has the slots."""
    live, shut, kept_back = slot_census()
    return RuntimeError(
        f"{VMMCY_SLOT_COUNT} arenas and backed segments are the most at once: {live} are live, "
        f"{kept_back} are kept back because memory that they handed out was never freed, and "
        f"{shut} because their entry points are still held; close arenas, free what they "
        "handed out, and drop the pools and allocators made from them"
    )


# ---- the table of entry points, for other rooms: what each does, entry_points.h says


cdef vmmcy_slot* claim_slot(const vmmcy_room* room, void* state) noexcept nogil:
    return vmmcy_slot_claim(room, state)


cdef bint shut_slot(vmmcy_slot* slot, bint force) noexcept nogil:
    return vmmcy_slot_shut(slot, force)


cdef void drop_slot(vmmcy_slot* slot) noexcept nogil:
    vmmcy_slot_drop(slot)


cdef bint slot_is_ours(const vmmcy_slot* slot) noexcept nogil:
    return vmmcy_slot_is_ours(slot)


cdef uint64_t slot_outstanding(vmmcy_slot* slot) noexcept nogil:
    return vmmcy_slot_outstanding(slot)


cdef void step_out_of_slot(vmmcy_slot* slot) noexcept nogil:
    vmmcy_slot_step_out(slot)


cdef void step_into_slot(vmmcy_slot* slot) noexcept nogil:
    vmmcy_slot_step_in(slot)
