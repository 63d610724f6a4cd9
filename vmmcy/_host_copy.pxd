# Pinned host memory that keeps device memory's bytes, and the copies there and back.
from cuda.bindings.cydriver cimport CUresult, CUstream
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from vmmcy._driver cimport DriverFault


cdef extern from "kept_bytes.h" namespace "vmmcy" nogil:
    cdef struct Kept:
        uint64_t offset
        uint64_t size_bytes
        uint64_t host_offset


cdef struct Slab:
    char* base
    uint64_t size_bytes


cdef class HostBuffer:
    cdef vector[Slab] slabs
    cdef CUstream stream
    cdef unsigned long made_under
    cdef readonly int device_id
    cdef readonly uint64_t size_bytes

    # All of `kept` to the host or back; returns when no copy is under way any more. The caller has
    # a context, and `base` is the device address of their offset 0.
    cdef void copy(
        self, uint64_t base, const vector[Kept]* kept, bint to_host, DriverFault* fault
    ) noexcept nogil
    cdef void _enqueue(
        self, uint64_t base, const Kept* part, bint to_host, DriverFault* fault
    ) noexcept nogil
    cdef CUresult _pin(self, Slab* slab) noexcept nogil
    cdef void _grow(self, uint64_t missing_bytes, DriverFault* fault) noexcept nogil
    cdef void _give_up(self, DriverFault* fault) noexcept nogil
