"""Graph inputs as the walk reads them: words where they lie, already checked."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t


cdef class Words:
    """A one-dimensional array of native 64-bit integers, kept alive and in its place."""

    cdef Py_buffer view
    cdef const uint64_t* data
    cdef Py_ssize_t count


cdef class GraphInputs:
    """Addresses and sizes in bytes: none is empty, none ends past the address space."""

    cdef Words pointers
    cdef Words sizes


cdef inline uint64_t* words_of_new(object array) except NULL:
    """The words of an array that nobody else knows yet."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    PyBuffer_Release(&view)
    return <uint64_t*> view.buf
