"""Graph inputs before and after the walk: what a caller gives, checked, and lists from arrays.

Known to ``graph_capture`` and ``_walk``, and knows no driver. It is compiled because a loop over
inputs takes longer in Python than the walk itself, and reads arrays through the buffer protocol,
because ten typed memoryviews take longer than the walk of a thousand inputs.
"""

cimport cython
from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from vmmcy._words cimport is_word

import numpy as np

from vmmcy._arguments import integer, iterable, shown, two_items, unsigned


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

cdef type Array = np.ndarray
cdef object SIGNED = np.dtype(np.int64)
cdef object UNSIGNED = np.dtype(np.uint64)
cdef uint64_t TOP_BIT = <uint64_t> 1 << 63


# --- Arrays, read in place --------------------------------------------------------------------

@cython.final
cdef class Words:

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef Words words_in(object array):
    """The words of a plain array of 64-bit integers, None for any other array."""
    cdef Words words = Words.__new__(Words)
    if type(array) is not Array:
        return None
    dtype = array.dtype
    words.signed = dtype is SIGNED
    if not words.signed and dtype is not UNSIGNED:
        # Equal and yet another object: so unpickled arrays have it.
        words.signed = dtype == SIGNED
        if not words.signed and dtype != UNSIGNED:
            return None
    PyObject_GetBuffer(array, &words.view, PyBUF_STRIDES)
    if words.view.ndim != 1 or <uintptr_t> words.view.buf % sizeof(uint64_t) != 0:
        return None
    words.count = words.view.shape[0]
    if words.count > 1 and words.view.strides[0] != sizeof(uint64_t):
        return None
    words.data = <const uint64_t*> words.view.buf
    return words


@cython.final
cdef class GraphInputs:

    def __cinit__(self, pointers, sizes):
        self.pointers = words_in(pointers)
        self.sizes = words_in(sizes)
        if self.pointers is None or self.sizes is None or self.pointers.count != self.sizes.count:
            pointers, sizes = plain_arrays(pointers, sizes)
            self.pointers = words_in(pointers)
            self.sizes = words_in(sizes)
        check(self, TOP_BIT * self.pointers.signed, TOP_BIT * self.sizes.signed)


def inputs_of_pairs(graph_inputs):
    """Return the inputs that an iterable of (pointer, nbytes) pairs holds."""
    pairs = iterable(graph_inputs, "graph_inputs", "(pointer, nbytes) pairs")
    return GraphInputs(*unpack(tuple(pairs)))


cdef tuple plain_arrays(object pointers, object sizes):
    """Return whatever stands for two arrays of integers as arrays that `words_in` takes."""
    pointers, sizes = as_array(pointers, "pointers"), as_array(sizes, "sizes")
    if pointers.ndim != 1 or pointers.shape != sizes.shape:
        raise ValueError(
            "pointers and sizes must have one dimension and the same length, "
            f"not shapes {pointers.shape} and {sizes.shape}"
        )
    if pointers.dtype == object or sizes.dtype == object:
        return unpack(tuple(zip(pointers.tolist(), sizes.tolist(), strict=True)))
    return contiguous(pointers), contiguous(sizes)


cdef object as_array(object values, str name):
    """Return `values` as an array of integers, or of objects that are still to be checked."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be masked: pass an array of those that count")
    # NumPy makes floats of a list with numbers below and above 2**63.
    array = np.asarray(values, dtype=object if isinstance(values, (list, tuple)) else None)
    if array.ndim == 0 and not isinstance(values, Array):
        raise TypeError(
            f"{name} must be an array of integers, not {type(values).__name__} {shown(values)}"
        )
    if array.size == 0 and array.dtype == np.float64:
        # What NumPy makes of nothing is no statement about what it is of.
        return array.astype(UNSIGNED)
    if array.dtype.kind not in "iuO":
        raise TypeError(f"{name} must be integers, not an array of {array.dtype}")
    return array


cdef object contiguous(object array):
    """Return an integer array as native 64-bit words, copied only where it is anything else."""
    words = np.ascontiguousarray(array, SIGNED if array.dtype.kind == "i" else UNSIGNED)
    # A view, since a subclass and a dtype of the same width pass through unchanged.
    words = words.view(SIGNED if array.dtype.kind == "i" else UNSIGNED, Array)
    return words if words.flags.aligned else words.copy()


# --- Which inputs are valid -------------------------------------------------------------------

cdef object invalid_size(object nbytes, Py_ssize_t index):
    error = RuntimeError(f"Invalid graph capture input size: {shown(nbytes)}")
    error.add_note(f"graph capture input {index}")
    return error


cdef int check(GraphInputs inputs, uint64_t pointer_sign, uint64_t size_sign) except -1:
    """Refuse the first input that is empty, negative, or ends past the address space.

    A signed array comes as the words that it is made of: its sign is the top bit.
    """
    cdef const uint64_t* pointers = inputs.pointers.data
    cdef const uint64_t* sizes = inputs.sizes.data
    cdef Py_ssize_t index = 0, last = inputs.sizes.count - 1
    cdef bint valid
    with nogil:
        valid = all_valid(pointers, sizes, inputs.sizes.count, pointer_sign, size_sign)
    if valid:
        return 0
    # The end is looked for too: another thread may have changed the arrays since.
    while index < last and all_valid(pointers + index, sizes + index, 1, pointer_sign, size_sign):
        index += 1
    pointer = as_number(pointers[index], pointer_sign)
    nbytes = as_number(sizes[index], size_sign)
    if nbytes <= 0:
        raise invalid_size(nbytes, index)
    unsigned(pointer, f"graph capture input {index}: pointer")
    raise ValueError(
        f"graph capture input {index}: {nbytes} bytes at {pointer} end past the last 64-bit address"
    )


cdef bint all_valid(
    const uint64_t* pointers,
    const uint64_t* sizes,
    Py_ssize_t count,
    uint64_t pointer_sign,
    uint64_t size_sign,
) noexcept nogil:
    """Whether every input is a range of bytes: no branches, so that it takes several at once."""
    cdef uint64_t size_less_1, last, faults = 0
    cdef Py_ssize_t index
    for index in range(count):
        size_less_1 = sizes[index] - 1
        last = pointers[index] + size_less_1
        # In the top bit: a borrow, a carry, a sign.
        faults |= size_less_1 & ~sizes[index]
        faults |= pointers[index] & size_less_1 | (pointers[index] | size_less_1) & ~last
        faults |= pointers[index] & pointer_sign | sizes[index] & size_sign
    return faults & TOP_BIT == 0


cdef object as_number(uint64_t word, uint64_t sign):
    if word & sign:
        return <int64_t> word
    return word


# --- Pairs to arrays --------------------------------------------------------------------------

cdef tuple unpack(tuple pairs):
    """Return the pointers and the sizes of `pairs` as two arrays of uint64.

    Types come first: a value out of range is raised when the types of all are known to be good.
    """
    cdef Py_ssize_t index, count = len(pairs)
    pointers, sizes = np.empty(count, UNSIGNED), np.empty(count, UNSIGNED)
    cdef uint64_t* pointer_words = words_of_new(pointers)
    cdef uint64_t* size_words = words_of_new(sizes)
    out_of_range = None
    for index in range(count):
        pair = pairs[index]
        if (
            type(pair) is not tuple
            or len(<tuple> pair) != 2
            or not is_word((<tuple> pair)[0], &pointer_words[index])
            or not is_word((<tuple> pair)[1], &size_words[index])
        ):
            error = unpack_one(pair, index, &pointer_words[index], &size_words[index])
            out_of_range = out_of_range or error
    if out_of_range is not None:
        raise out_of_range
    return pointers, sizes


cdef object unpack_one(object pair, Py_ssize_t index, uint64_t* pointer, uint64_t* size):
    """Take a pair that is not two plain words; raise of types, return an error of values."""
    first, second = two_items(pair, f"graph capture input {index}", "a (pointer, nbytes) pair")
    try:
        pointer[0] = pointer_word(first, index)
        size[0] = size_word(second, index)
    except (ValueError, RuntimeError) as error:
        return error
    return None


cdef uint64_t pointer_word(object value, Py_ssize_t index) except? 0:
    return unsigned(value, f"graph capture input {index}: pointer")


cdef uint64_t size_word(object value, Py_ssize_t index) except? 0:
    name = f"graph capture input {index}: nbytes"
    nbytes = integer(value, name)
    if nbytes <= 0:
        raise invalid_size(nbytes, index)
    return unsigned(nbytes, name)


# --- Arrays to lists --------------------------------------------------------------------------

cdef class GraphCaptureBases:
    """Allocations and the inputs that they cover, compressed like a sparse matrix.

    The chunks of input ``j`` are ``chunk_indices[chunk_indptr[j]:chunk_indptr[j + 1]]``. The
    arrays are the caller's alone: writable, and shared with nothing.

    Attributes
    ----------
    base_pointers : ndarray of uint64, shape (num_bases,)
        Address of each distinct allocation, in the order first met.
    base_sizes : ndarray of uint64, shape (num_bases,)
        Its size in bytes.
    chunk_indptr : ndarray of int64, shape (num_inputs + 1,)
        Where each input's chunks begin and end in `chunk_indices`.
    chunk_indices : ndarray of int64, shape (num_chunks,)
        Indices into the bases: the chunks of each input, in address order.
    input_offsets : ndarray of uint64, shape (num_inputs,)
        Bytes from the base of an input's first chunk to the input.
    """

    def __init__(self, base_pointers, base_sizes, chunk_indptr, chunk_indices, input_offsets):
        self.base_pointers = base_pointers
        self.base_sizes = base_sizes
        self.chunk_indptr = chunk_indptr
        self.chunk_indices = chunk_indices
        self.input_offsets = input_offsets

    def __repr__(self):
        return (
            f"GraphCaptureBases(base_pointers={self.base_pointers!r}, "
            f"base_sizes={self.base_sizes!r}, chunk_indptr={self.chunk_indptr!r}, "
            f"chunk_indices={self.chunk_indices!r}, input_offsets={self.input_offsets!r})"
        )

    def as_lists(self):
        """Return what `compute_graph_capture_bases` returns.

        Raises
        ------
        TypeError
            One of the arrays is no contiguous one of its dtype.
        ValueError
            The arrays were changed and no longer fit each other.
        """
        cdef Words pointers = field(self.base_pointers, "base_pointers", UNSIGNED)
        cdef Words sizes = field(self.base_sizes, "base_sizes", UNSIGNED)
        cdef Words indptr = field(self.chunk_indptr, "chunk_indptr", SIGNED)
        cdef Words indices = field(self.chunk_indices, "chunk_indices", SIGNED)
        cdef Words offsets = field(self.input_offsets, "input_offsets", UNSIGNED)
        if sizes.count != pointers.count:
            raise ValueError(
                f"base_sizes has {sizes.count} items for {pointers.count} base_pointers"
            )
        if indptr.count != offsets.count + 1:
            raise ValueError(f"chunk_indptr has {indptr.count} items for {offsets.count} inputs")
        # The garbage collector would walk the unfinished lists a hundred times, and finds
        # nothing in ints.
        collecting = PyGC_Disable()
        try:
            bases = list(zip(list_of_words(pointers), list_of_words(sizes), strict=True))
            return bases, rows_of_indices(indptr, indices, len(bases)), list_of_words(offsets)
        finally:
            if collecting:
                PyGC_Enable()


cdef Words field(object array, str name, object dtype):
    words = words_in(array)
    if words is None or words.signed != (dtype is SIGNED):
        raise TypeError(
            f"{name} must be a contiguous array of {dtype}, not {type(array).__name__} "
            f"{shown(array)}"
        )
    return words


cdef list list_of_words(Words words):
    cdef Py_ssize_t index
    cdef list result = PyList_New(words.count)
    for index in range(words.count):
        put(result, index, words.data[index])
    return result


cdef list rows_of_indices(Words indptr, Words indices, Py_ssize_t num_bases):
    """A list of indices for each input, which all share one int for each base."""
    cdef const int64_t* starts = <const int64_t*> indptr.data
    cdef list numbers = list(range(num_bases))
    cdef list result = PyList_New(indptr.count - 1)
    cdef list row
    cdef Py_ssize_t index, place, start, stop
    cdef int64_t number
    for index in range(indptr.count - 1):
        start, stop = starts[index], starts[index + 1]
        if not 0 <= start <= stop <= indices.count:
            raise ValueError(f"chunk_indptr is inconsistent at input {index}")
        row = PyList_New(stop - start)
        for place in range(start, stop):
            number = <int64_t> indices.data[place]
            if not 0 <= number < num_bases:
                raise ValueError(f"chunk_indices[{place}] is no index of a base")
            put(row, place - start, numbers[number])
        put(result, index, row)
    return result


cdef inline int put(list result, Py_ssize_t index, object item) except -1:
    Py_INCREF(item)
    PyList_SET_ITEM(result, index, item)
    return 0
