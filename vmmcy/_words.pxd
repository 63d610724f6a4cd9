# Plain ints as 64-bit words, without a detour through Python: for the usual case.
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport UINT64_MAX, uint64_t


cdef extern from "Python.h":
    # Declared anew without `except`: `is_word` looks for the error itself, and drops it. The
    # form for `long long` takes a detour through bytes in Python 3.11.
    unsigned long PyLong_AsUnsignedLong(object value) noexcept


cdef inline bint is_word(object value, uint64_t* word):
    """Store `value` if it is an ``int`` from 0 to 2**64 - 1, else leave it to the slow way."""
    if not PyLong_CheckExact(value):
        return False
    word[0] = PyLong_AsUnsignedLong(value)
    if word[0] == UINT64_MAX and PyErr_Occurred():
        PyErr_Clear()
        return False
    return True
