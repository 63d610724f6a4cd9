# What a stream had been given up to now, and whether it is done.
from cuda.bindings.cydriver cimport CUstream
from libc.stdint cimport uint64_t

from vmmcy._driver cimport DriverFault


cdef extern from "fence.h" namespace "vmmcy" nogil:
    # Behind what a stream was given; whoever has one drops it once.
    cdef struct Fence:
        void* stream
        void* context
        void* event

    cdef cppclass LateStreams:
        bint hold(const Fence& fence, uint64_t number) noexcept
        void add(const Fence& fence, uint64_t number) noexcept


ctypedef enum Passing:
    NOT_YET
    PASSED
    UNKNOWN


# `fault` is without one before; each may be called under a native lock. What faults leaves
# the fence as it was: `fence_record` none, the others one to be asked again.
cdef bint fence_record(
    int device_id, CUstream stream, Fence* fence, DriverFault* fault
) noexcept nogil
cdef Passing fence_passed(Fence* fence, DriverFault* fault) noexcept nogil
cdef Passing fence_wait(Fence* fence, DriverFault* fault) noexcept nogil
cdef void fence_drop(Fence* fence) noexcept nogil
