# The reservation's core: for `reservation.py`, and without the GIL for allocator callbacks.
from cuda.bindings.cydriver cimport CUstream
from libc.stdint cimport uint64_t

from vmmcy._outcome cimport Outcome
from vmmcy._reserved_range cimport ReservedRange


# A range of a reservation, in bytes from its base.
cdef struct Bytes:
    uint64_t offset
    uint64_t size


cdef class ReservationCore(ReservedRange):
    # Ranges are checked already: inside the reservation and whole granules. Where there is a pool,
    # `try_commit` cuts into its chunks whatever `chunk_bytes` is.
    cdef void try_map(
        self, uint64_t offset, uint64_t size_bytes, bint retain, Outcome* outcome
    ) noexcept nogil
    cdef void try_map_existing(
        self, uint64_t offset, uint64_t size_bytes, uint64_t handle, Outcome* outcome
    ) noexcept nogil
    cdef void try_commit(
        self, uint64_t offset, uint64_t size_bytes, uint64_t chunk_bytes, Outcome* outcome
    ) noexcept nogil
    cdef void try_unmap(
        self, uint64_t offset, uint64_t size_bytes, bint release_handles, Outcome* outcome
    ) noexcept nogil
    cdef void try_decommit(
        self, uint64_t offset, uint64_t size_bytes, Outcome* outcome
    ) noexcept nogil
    cdef void try_decommit_after(
        self, uint64_t offset, uint64_t size_bytes, CUstream stream, Outcome* outcome
    ) noexcept nogil
    cdef void try_settle(self, bint wait, Outcome* outcome) noexcept nogil
    cdef void try_mend(self, Outcome* outcome) noexcept nogil
    cdef void try_close(self, bint release_handles, Outcome* outcome) noexcept nogil

    cdef bint _is_plain(self, offset, size, Bytes* taken) except -1
    cdef int _take_inside(self, offset, size, str method, Bytes* taken) except -1
    cdef int _take_granules(self, offset, size, str method, Bytes* taken) except -1
    cdef uint64_t _take_commit(self, offset, size, chunk_bytes, Bytes* taken) except 0
