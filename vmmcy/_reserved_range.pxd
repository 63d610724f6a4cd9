# What a reservation owns, and what reads and ends it.
from libc.stdint cimport uint64_t

from vmmcy._handle_pool cimport PoolCore
from vmmcy._mapping cimport Record, Space
from vmmcy._outcome cimport Outcome


cdef class ReservedRange:
    cdef Record* record
    cdef Space space
    cdef readonly PoolCore pool
    cdef unsigned long made_under
    cdef readonly uint64_t base
    cdef readonly uint64_t requested_address
    cdef readonly uint64_t size
    cdef readonly size_t granularity
    cdef readonly int device_id

    cdef int _reserve(self, uint64_t alignment) except -1 nogil
    cdef void _take_from(self, PoolCore pool)
    cdef void forget_pool(self)
    cdef bint _end(self) noexcept nogil
    cdef void _undo(self, bint release_handles, Outcome* outcome) noexcept nogil
    cdef bint _enter(self, Outcome* outcome) noexcept nogil
    cdef bint _admit(self, Outcome* outcome) noexcept nogil
    cdef int _raise(self, const Outcome* outcome, str method) except -1
