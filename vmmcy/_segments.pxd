# Segments that pause and resume.
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from vmmcy._backing cimport Backing, Verdict
from vmmcy._driver cimport ContextBinding
from vmmcy._host_copy cimport HostBuffer, Kept
from vmmcy._outcome cimport Outcome
from vmmcy._reservation cimport ReservationCore


cdef class SegmentsCore:
    cdef Backing* backing
    cdef HostBuffer host
    cdef readonly ReservationCore reservation
    cdef readonly str name
    cdef readonly bint is_shut  # hands out nothing any more
    cdef bint awaits  # the pool, which is not closed meanwhile

    cdef void _await_pool(self, bint awaits) noexcept nogil
    cdef Verdict _check(self, vector[Kept]* kept) noexcept nogil
    cdef void _take_all(self, vector[Kept]* kept, Outcome* outcome) noexcept nogil
    cdef Verdict _pause(
        self, vector[Kept]* kept, uint64_t waited_for, Outcome* outcome
    ) noexcept nogil
    cdef Verdict _resume(self, Outcome* outcome) noexcept nogil
    cdef int _leave(
        self, Verdict verdict, const Outcome* outcome, ContextBinding* binding, str method
    ) except -1
    cdef int _raise(self, Verdict verdict, const Outcome* outcome, str method) except -1
