"""Graph inputs before and after the walk: which are valid, and lists to and from arrays.

Known to ``graph_capture`` alone, and knows no driver. It is compiled because a loop over inputs
takes longer in Python than the walk itself.
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
    # Declared anew without `except`: `is_word` looks for the error itself, and drops it. The
    # form for `long long` takes a detour through bytes in Python 3.11.
    unsigned long PyLong_AsUnsignedLong(object value) noexcept


cdef object invalid_size(object nbytes, Py_ssize_t index):
    error = RuntimeError(f"Invalid graph capture input size: {nbytes}")
    error.add_note(f"graph capture input {index}")
    return error


def check(
    const uint64_t[::1] pointers,
    const uint64_t[::1] sizes,
    bint pointers_signed,
    bint sizes_signed,
):
    """Refuse the first input that is empty, negative, or ends past the address space.

    A signed array comes as the words that it is made of: the top bit is a sign.
    """
    cdef uint64_t top_bit = <uint64_t> 1 << 63
    cdef uint64_t pointer_sign = top_bit if pointers_signed else 0
    cdef uint64_t size_sign = top_bit if sizes_signed else 0
    cdef Py_ssize_t index
    with nogil:
        index = first_invalid(pointers, sizes, pointer_sign, size_sign)
    if index == sizes.shape[0]:
        return
    pointer = as_number(pointers[index], pointer_sign)
    nbytes = as_number(sizes[index], size_sign)
    if nbytes <= 0:
        raise invalid_size(nbytes, index)
    unsigned(pointer, f"graph capture input {index}: pointer")
    raise ValueError(
        f"graph capture input {index}: {nbytes} bytes at {pointer} end past the last 64-bit address"
    )


cdef Py_ssize_t first_invalid(
    const uint64_t[::1] pointers,
    const uint64_t[::1] sizes,
    uint64_t pointer_sign,
    uint64_t size_sign,
) noexcept nogil:
    """Index of the first input that is no range of bytes, their count if there is none."""
    cdef Py_ssize_t index
    for index in range(sizes.shape[0]):
        if (
            sizes[index] == 0
            or sizes[index] & size_sign
            or pointers[index] & pointer_sign
            or sizes[index] - 1 > UINT64_MAX - pointers[index]
        ):
            return index
    return sizes.shape[0]


cdef object as_number(uint64_t word, uint64_t sign):
    if word & sign:
        return <int64_t> word
    return word


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
    word[0] = PyLong_AsUnsignedLong(value)
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
