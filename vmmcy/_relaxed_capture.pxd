# The thread's capture mode relaxed for a while: what waits then leaves everybody's capture valid.
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUstreamCaptureMode

from vmmcy._calls_under_lock cimport capture_mode_exchange
from vmmcy._driver cimport DriverFault, done, given_back


# False, and nothing to restore, where the driver refuses.
cdef inline bint relax_captures(CUstreamCaptureMode* before, DriverFault* fault) noexcept nogil:
    before[0] = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
    return done(capture_mode_exchange(before), b"cuThreadExchangeStreamCaptureMode", fault)


# What fails is tried once more.
cdef inline void restore_captures(CUstreamCaptureMode before, DriverFault* fault) noexcept nogil:
    cdef CUstreamCaptureMode mode = before
    if not given_back(capture_mode_exchange(&mode)):
        mode = before
        done(capture_mode_exchange(&mode), b"cuThreadExchangeStreamCaptureMode", fault)
