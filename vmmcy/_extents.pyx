"""Extents as a caller gives them: pairs of integers, in a list, an array or else.

Known to ``arena`` and ``_arena``. Compiled because 65,536 pairs are read at once.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint32_t, uint64_t

from vmmcy._words cimport is_word

import numpy as np

from vmmcy import _arguments
from vmmcy._limits import LIMIT_VARIABLE

# More than fit into the memory of any machine, and one less than what stands for none.
_MOST_SPANS = 0xFFFFFFFE


cdef class ExtentList:
    """Extents as the caller gave them, types checked, values not yet.

    `fault` is the text of the first bad value: types come before everything, values
    only after the arena is known to be open and the number of extents to be allowed.
    """

    def __cinit__(self, extents):
        cdef const uint64_t[:, :] array
        cdef Py_ssize_t i
        cdef list pairs
        self.spans = NULL
        self.fault = None
        if isinstance(extents, np.ndarray):
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
        # A list of our own: the caller's may change while its integers are asked for theirs.
        pairs = list(_arguments.iterable(extents, "extents", "(base, size_bytes) pairs"))
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
        for i in range(self.count):
            if type(pairs[i]) is not tuple:
                return False
            pair = <tuple>pairs[i]
            if len(pair) != 2:
                return False
            if not is_word(pair[0], &self.spans[i].base):
                return False
            if not is_word(pair[1], &self.spans[i].size_bytes):
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

    def check(self, limit, already=0):
        """Raise when there are too many, with those `already` there, or one has a bad value."""
        if already + self.count > limit:
            raise too_many_error(already + self.count, limit)
        if self.fault is not None:
            raise ValueError(self.fault)

    def coalesce(self):
        """Return the extents sorted and joined, as a list of pairs; used up by it."""
        cdef uint32_t count
        cdef extent_span[2] overlap
        cdef extent_status status
        if self.count > _MOST_SPANS:
            raise MemoryError
        self.check(self.count)
        count = <uint32_t>self.count
        with nogil:
            status = spans_coalesce(self.spans, &count, overlap)
        if status == EXTENTS_NO_MEMORY:
            raise MemoryError
        if status == EXTENTS_OVERLAP:
            raise overlap_error(overlap)
        return [(self.spans[i].base, self.spans[i].size_bytes) for i in range(count)]


def _unsigned_pairs(array):
    """Return a NumPy array as uint64, or None where its values need a closer look."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("extents must not be masked: pass an array of those that count")
    # What NumPy makes of nothing is no statement about what it is of.
    if array.dtype.kind == "O" or array.size == 0:
        return None
    if array.dtype.kind not in "iu":
        raise TypeError(f"extents must be an array of integers, not of {array.dtype}")
    if array.ndim != 2 or array.shape[1] != 2:
        raise TypeError(f"extents must be an array of shape (n, 2), not {array.shape}")
    if array.dtype.kind == "i" and array.min() < 0:
        return None
    return array.astype("uint64", copy=False)


def _pair(pair, i):
    base, size_bytes = _arguments.two_items(pair, f"extent {i}", "a (base, size_bytes) pair")
    return (
        _arguments.integer(base, f"base of extent {i}"),
        _arguments.integer(size_bytes, f"size of extent {i}"),
    )


cdef object overlap_error(const extent_span* overlap):
    cdef list names = [
        f"[{overlap[i].base}, {<object>overlap[i].base + overlap[i].size_bytes})" for i in range(2)
    ]
    return ValueError(f"extents {names[0]} and {names[1]} overlap")


cdef object too_many_error(count, limit):
    return ValueError(f"{count} extents exceed {LIMIT_VARIABLE} ({limit})")
