# Extents as a caller gave them, for the compiled arena to register.
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "extents.h" nogil:
    struct extent_span:
        uint64_t base
        uint64_t size_bytes

    enum extent_status:
        EXTENTS_OK
        EXTENTS_NO_MEMORY
        EXTENTS_OVERLAP

    extent_status spans_coalesce(extent_span* spans, uint32_t* count, extent_span* overlap)


cdef class ExtentList:
    cdef extent_span* spans
    cdef readonly Py_ssize_t count
    cdef readonly str fault

    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef bint _read_exact(self, list pairs) except -1
    cdef int _read_any(self, list pairs) except -1
    cdef int _check_ends(self) except -1


cdef object overlap_error(const extent_span* overlap)
cdef object too_many_error(count, limit)
