"""Lists of graph inputs to arrays, and the walk's arrays to lists.

Known to ``graph_capture``, and to ``_walk`` for one error. Knows no driver: it is here because
a loop over inputs is too slow in Python, which needs longer for the lists than for the walk.
"""

from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport Py_INCREF
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

import numpy as np

from vmmcy._arguments import integer, unsigned


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()
    # Declared anew without `except`: `is_word` looks for the error itself, and drops it.
    unsigned long long PyLong_AsUnsignedLongLong(object value) noexcept


def invalid_size(nbytes, Py_ssize_t index):
    """Return the error for an input of no or negative size."""
    error = RuntimeError(f"Invalid graph capture input size: {nbytes}")
    error.add_note(f"graph capture input {index}")
    return error


def unpack(tuple pairs):
    """Return the pointers and the sizes of `pairs` as two arrays of uint64.

    Types come first: a value out of range is raised when the types of all are known to be good.
    """
    cdef Py_ssize_t index, count = len(pairs)
    pointers = np.empty(count, np.uint64)
    sizes = np.empty(count, np.uint64)
    cdef uint64_t[::1] pointers_view = pointers
    cdef uint64_t[::1] sizes_view = sizes
    out_of_range = None
    for index in range(count):
        pair = pairs[index]
        try:
            if type(pair) is tuple and len(<tuple> pair) == 2:
                pointer, nbytes = (<tuple> pair)[0], (<tuple> pair)[1]
            else:
                pointer, nbytes = two_items(pair, index)
            if not is_word(pointer, &pointers_view[index]):
                pointers_view[index] = pointer_word(pointer, index)
            if not is_word(nbytes, &sizes_view[index]):
                sizes_view[index] = size_word(nbytes, index)
        except (ValueError, RuntimeError) as error:
            out_of_range = out_of_range or error
    if out_of_range is not None:
        raise out_of_range
    return pointers, sizes


cdef inline bint is_word(object value, uint64_t* word):
    """Store `value` if it is an ``int`` from 0 to 2**64 - 1, else leave it to the slow way."""
    if not PyLong_CheckExact(value):
        return False
    word[0] = PyLong_AsUnsignedLongLong(value)
    if word[0] == UINT64_MAX and PyErr_Occurred():
        PyErr_Clear()
        return False
    return True


cdef uint64_t pointer_word(object value, Py_ssize_t index) except? 0:
    return unsigned(value, f"graph capture input {index}: pointer")


cdef uint64_t size_word(object value, Py_ssize_t index) except? 0:
    name = f"graph capture input {index}: nbytes"
    nbytes = integer(value, name)
    if nbytes <= 0:
        raise invalid_size(nbytes, index)
    return unsigned(nbytes, name)


cdef tuple two_items(object pair, Py_ssize_t index):
    expected = f"graph capture input {index} must be a (pointer, nbytes) pair, not {pair!r}"
    try:
        items = tuple(pair)
    except TypeError as error:
        raise TypeError(expected) from error
    if len(items) != 2:
        raise ValueError(expected)
    return items


def as_lists(
    const uint64_t[::1] base_pointers,
    const uint64_t[::1] base_sizes,
    const int64_t[::1] chunk_indptr,
    const int64_t[::1] chunk_indices,
    const uint64_t[::1] input_offsets,
):
    """Return the arrays as the three lists of ``compute_graph_capture_bases``.

    The garbage collector is held off: it would walk the unfinished lists a hundred times,
    and finds nothing in ints.
    """
    collecting = PyGC_Disable()
    try:
        bases = list(zip(list_of_words(base_pointers), list_of_words(base_sizes), strict=True))
        chunks = rows_of_indices(
            chunk_indptr, chunk_indices, input_offsets.shape[0], len(bases)
        )
        return bases, chunks, list_of_words(input_offsets)
    finally:
        if collecting:
            PyGC_Enable()


cdef list list_of_words(const uint64_t[::1] words):
    cdef Py_ssize_t index, count = words.shape[0]
    cdef list result = PyList_New(count)
    for index in range(count):
        put(result, index, words[index])
    return result


cdef list rows_of_indices(
    const int64_t[::1] indptr,
    const int64_t[::1] indices,
    Py_ssize_t num_inputs,
    Py_ssize_t num_bases,
):
    """A list of indices for each input, which all share one int for each base."""
    cdef list numbers = list(range(num_bases))
    cdef list result = PyList_New(num_inputs)
    cdef list row
    cdef Py_ssize_t index, place, start, stop
    if indptr.shape[0] != num_inputs + 1:
        raise ValueError(f"chunk_indptr has {indptr.shape[0]} items for {num_inputs} inputs")
    for index in range(num_inputs):
        start, stop = indptr[index], indptr[index + 1]
        if not 0 <= start <= stop <= indices.shape[0]:
            raise ValueError(f"chunk_indptr is inconsistent at input {index}")
        row = PyList_New(stop - start)
        for place in range(start, stop):
            if not 0 <= indices[place] < num_bases:
                raise ValueError(f"chunk_indices[{place}] is no index of a base")
            put(row, place - start, numbers[indices[place]])
        put(result, index, row)
    return result


cdef inline int put(list result, Py_ssize_t index, object item) except -1:
    Py_INCREF(item)
    PyList_SET_ITEM(result, index, item)
    return 0
