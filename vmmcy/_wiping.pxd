# Wiping memory before it goes to another owner.
from cuda.bindings.cydriver cimport CUcontext, CUdeviceptr, CUstream, CUstreamCaptureMode

from vmmcy._outcome cimport Outcome


# A stream of our own in the primary context of a device; NULL where none is open.
cdef struct Wiper:
    CUcontext context
    CUstream stream


cdef int open_wiper(Wiper* wiper, int device_id) except -1
cdef bint close_wiper(Wiper* wiper, Outcome* outcome) noexcept nogil

# In this order, on one thread; `end_wiping` also where a `wipe` has failed.
cdef bint begin_wiping(
    const Wiper* wiper, CUstreamCaptureMode* mode, Outcome* outcome
) noexcept nogil
cdef bint wipe(
    const Wiper* wiper, CUdeviceptr address, size_t size_bytes, Outcome* outcome
) noexcept nogil
cdef bint end_wiping(
    const Wiper* wiper, CUstreamCaptureMode* mode, Outcome* outcome
) noexcept nogil
