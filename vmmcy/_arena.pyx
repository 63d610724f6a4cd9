"""Bump arenas, compiled: extents and cursors, first and best fit.

Arithmetic alone: this room knows no driver. It wraps the C rooms for ``arena.py``,
which says what each operation means. Every lock of theirs is waited for without
the GIL, and none of them takes the GIL.
"""

cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from vmmcy import _arguments

cdef extern from "Python.h":
    bint PyLong_CheckExact(object value)

LIBRARY_PATH = __file__
CLOSED_SLOT = VMMCY_SLOT_COUNT


cdef class ExtentList:
    """Extents as the caller gave them, types checked, values not yet.

    `fault` is the text of the first bad value: types come before everything, values
    only after the arena is known to be open and the number of extents to be allowed.
    """

    def __cinit__(self, extents):
        cdef const uint64_t[:, :] array
        cdef Py_ssize_t i
        self.spans = NULL
        self.fault = None
        if type(extents) is not list and hasattr(extents, "dtype"):
            numbers = _unsigned_pairs(extents)
            if numbers is not None:
                array = numbers
                self._reserve(array.shape[0])
                for i in range(self.count):
                    self.spans[i].base = array[i, 0]
                    self.spans[i].size_bytes = array[i, 1]
                self._check_ends()
                return
            extents = extents.tolist()
        pairs = extents if type(extents) is list else list(extents)
        self._reserve(len(pairs))
        if not self._read_exact(pairs):
            self._read_any(pairs)
        self._check_ends()

    def __dealloc__(self):
        PyMem_RawFree(self.spans)

    cdef int _reserve(self, Py_ssize_t count) except -1:
        self.count = count
        self.spans = <extent_span*>PyMem_RawMalloc((count + 1) * sizeof(extent_span))
        if self.spans == NULL:
            raise MemoryError
        return 0

    cdef bint _read_exact(self, list pairs) except -1:
        """Read tuples of two plain ints of at most 64 bits; False when there is another thing."""
        cdef Py_ssize_t i
        cdef tuple pair
        try:
            for i in range(self.count):
                if type(pairs[i]) is not tuple:
                    return False
                pair = <tuple>pairs[i]
                if len(pair) != 2:
                    return False
                if not PyLong_CheckExact(pair[0]) or not PyLong_CheckExact(pair[1]):
                    return False
                self.spans[i].base = PyLong_AsUnsignedLongLong(pair[0])
                self.spans[i].size_bytes = PyLong_AsUnsignedLongLong(pair[1])
        except OverflowError:
            return False
        return True

    cdef int _read_any(self, list pairs) except -1:
        """Read all else that is a pair of integers, NumPy's for one."""
        numbers = [_pair(pair, i) for i, pair in enumerate(pairs)]
        try:
            for i, (base, size_bytes) in enumerate(numbers):
                self.spans[i].base = _arguments.positive(base, f"base of extent {i}")
                self.spans[i].size_bytes = _arguments.positive(size_bytes, f"size of extent {i}")
        except ValueError as error:
            self.fault = str(error)
        return 0

    cdef int _check_ends(self) except -1:
        cdef Py_ssize_t i
        cdef uint64_t base, size_bytes
        if self.fault is not None:
            return 0
        for i in range(self.count):
            base = self.spans[i].base
            size_bytes = self.spans[i].size_bytes
            if base == 0 or size_bytes == 0:
                what = "base" if base == 0 else "size"
                self.fault = f"{what} of extent {i} must be at least 1, got 0"
                return 0
            if size_bytes - 1 > ~base:
                end = <object>base + <object>size_bytes
                self.fault = f"extent {i} [{base}, {end}) does not fit in 64 bits"
                return 0
        return 0

    cdef int check_values(self) except -1:
        if self.fault is not None:
            raise ValueError(self.fault)
        return 0

    def coalesce(self):
        """Return the extents sorted and joined, as a list of pairs; used up by it."""
        cdef uint32_t count
        cdef extent_span[2] overlap
        cdef extent_status status
        self.check_values()
        if self.count > <Py_ssize_t>0xFFFFFFFE:
            raise MemoryError
        count = <uint32_t>self.count
        with nogil:
            status = spans_coalesce(self.spans, &count, overlap)
        if status == EXTENTS_NO_MEMORY:
            raise MemoryError
        if status == EXTENTS_OVERLAP:
            raise _overlap_error(overlap)
        return [(self.spans[i].base, self.spans[i].size_bytes) for i in range(count)]


def _unsigned_pairs(array):
    """Return a NumPy array as uint64, or None where its values need a closer look."""
    if array.dtype.kind == "O":
        return None
    if array.dtype.kind not in "iu":
        raise TypeError(f"extents must be an array of integers, not of {array.dtype}")
    if array.ndim != 2 or array.shape[1] != 2:
        if array.size == 0:
            return None
        raise TypeError(f"extents must be an array of shape (n, 2), not {array.shape}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        return None
    return array.astype("uint64", copy=False)


def _pair(pair, i):
    try:
        base, size_bytes = pair
    except (TypeError, ValueError):
        raise TypeError(f"extent {i} must be a (base, size_bytes) pair, not {pair!r}") from None
    return (
        _arguments.integer(base, f"base of extent {i}"),
        _arguments.integer(size_bytes, f"size of extent {i}"),
    )


cdef object _overlap_error(extent_span* overlap):
    cdef list names = [
        f"[{overlap[i].base}, {<object>overlap[i].base + overlap[i].size_bytes})" for i in range(2)
    ]
    return ValueError(f"extents {names[0]} and {names[1]} overlap")


def slot_census():
    """Count the slots that are open, shut but held, and kept back: a tuple of three."""
    cdef vmmcy_slot_census census
    with nogil:
        census = vmmcy_slot_count()
    return census.open, census.shut, census.kept_back


def entry_point_addresses(unsigned slot):
    """Return the addresses of a slot's malloc and free."""
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


cdef class ArenaHold:
    """An arena in its slot, which is not used again while this object lives.

    The arena and every `EntryPoints` object made from it share one.
    """

    def __cinit__(self, uint64_t align, bint best_fit, int device):
        cdef arena_status status
        cdef arena* made = NULL
        with nogil:
            status = arena_open(&made, align, best_fit, device)
        if status == ARENA_NO_MEMORY:
            raise MemoryError
        if status == ARENA_NO_SLOT:
            raise _no_slot_error()
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
    def extent_count(self):
        """Number of extents registered."""
        return self.arena.table.count

    def register(self, ExtentList extents, bint keep, bint require_idle):
        """Register extents; False when something is live and `require_idle` is set."""
        cdef extent_span[2] overlap
        cdef arena_status status
        extents.check_values()
        with nogil:
            status = arena_register(
                self.arena, extents.spans, <uint32_t>extents.count, keep, require_idle, overlap
            )
        if status == ARENA_NO_MEMORY:
            raise MemoryError
        if status == ARENA_OVERLAP:
            raise _overlap_error(overlap)
        return status == ARENA_OK

    def set_align(self, uint64_t align):
        """Align what is handed out from now on."""
        with nogil:
            arena_set_align(self.arena, align)

    def set_best_fit(self, bint best_fit):
        """Change the policy."""
        cdef arena_status status
        with nogil:
            status = arena_set_best_fit(self.arena, best_fit)
        if status == ARENA_NO_MEMORY:
            raise MemoryError

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
        cdef uint64_t won
        with nogil:
            won = arena_reclaim(self.arena)
        return won

    def close(self, bint force):
        """Hand out nothing any more; False when something is live and `force` is not set."""
        cdef bint shut
        with nogil:
            shut = vmmcy_slot_shut(self.arena.slot, force)
            if shut:
                # With nothing live, the memory of the extents goes back at once.
                arena_register(self.arena, NULL, 0, False, True, NULL)
        return shut

    def figures(self):
        """Return all counts, read at one moment."""
        cdef Figures figures = Figures.__new__(Figures)
        with nogil:
            figures.values = arena_read(self.arena)
        return figures

    def extents(self):
        """Return a list of (base, size_bytes, cursor)."""
        cdef extent* copies
        cdef uint32_t most = 0, count = self.arena.table.count
        copies = NULL
        try:
            while most < count:
                PyMem_RawFree(copies)
                most = count
                copies = <extent*>PyMem_RawMalloc(most * sizeof(extent))
                if copies == NULL:
                    raise MemoryError
                with nogil:
                    count = arena_copy_extents(self.arena, copies, most)
            return [(copies[i].base, copies[i].size_bytes, copies[i].cursor) for i in range(count)]
        finally:
            PyMem_RawFree(copies)

    def fault(self):
        """Return what is wrong inside, or None."""
        cdef const char* fault
        with nogil:
            fault = arena_fault(self.arena)
        return None if fault == NULL else fault.decode()


def _no_slot_error():
    live, shut, kept_back = slot_census()
    return RuntimeError(
        f"{VMMCY_SLOT_COUNT} arenas are the most at once: {live} are live, {kept_back} are kept "
        f"back because memory that they handed out was never freed, and {shut} because their "
        "entry points are still held; close arenas, free what they handed out, and drop the "
        "pools and allocators made from them"
    )
