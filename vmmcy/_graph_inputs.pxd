"""Graph inputs as the walk reads them: words where they lie, already checked."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t


cdef class Words:
    """A one-dimensional array of native 64-bit integers, kept alive and in its place."""

    cdef Py_buffer view
    cdef const uint64_t* data
    cdef Py_ssize_t count
    cdef bint signed


cdef class GraphInputs:
    """Addresses and sizes in bytes: none is empty, none ends past the address space."""

    cdef Words pointers
    cdef Words sizes


cdef class GraphCaptureBases:
    """What the walk found; a compiled class, for a frozen dataclass takes longer than a walk."""

    cdef readonly object base_pointers
    cdef readonly object base_sizes
    cdef readonly object chunk_indptr
    cdef readonly object chunk_indices
    cdef readonly object input_offsets


cdef inline uint64_t* words_of_new(object array) except NULL:
    """The words of an array that nobody else knows yet."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    PyBuffer_Release(&view)
    return <uint64_t*> view.buf
