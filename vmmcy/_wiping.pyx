"""Wiping on a stream of our own: it waits for that stream alone, and leaves every capture valid.

While anyone captures, waiting for a stream would invalidate the capture, unless the thread that
waits has its capture mode relaxed: so it is, from `begin_wiping` to `end_wiping`.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUdeviceptr, CUstreamCaptureMode

from vmmcy._calls_under_lock cimport (
    capture_mode_exchange,
    context_pop,
    context_push,
    memset_async,
    stream_destroy,
    stream_synchronize,
)
from vmmcy._driver cimport (
    ContextBinding,
    check,
    leave_context,
    leave_context_after,
    primary_context,
)
from vmmcy._outcome cimport Outcome, done, undone


cdef int open_wiper(Wiper* wiper, int device_id) except -1:
    """Make the stream; the thread's context is left as it was."""
    cdef ContextBinding binding
    binding.bound = False
    try:
        with nogil:
            wiper.context = primary_context(device_id)
            check(cydriver.cuCtxPushCurrent(wiper.context), b"cuCtxPushCurrent")
            binding.bound = True
            check(
                cydriver.cuStreamCreate(&wiper.stream, cydriver.CU_STREAM_NON_BLOCKING),
                b"cuStreamCreate",
            )
            leave_context(&binding)
    except BaseException as error:
        leave_context_after(error, &binding)
        raise
    return 0


cdef bint close_wiper(Wiper* wiper, Outcome* outcome) noexcept nogil:
    """Whether there is no stream any more."""
    if wiper.stream != NULL and undone(
        stream_destroy(wiper.stream), b"cuStreamDestroy", outcome
    ):
        wiper.stream = NULL
    return wiper.stream == NULL


cdef bint begin_wiping(
    const Wiper* wiper, CUstreamCaptureMode* mode, Outcome* outcome
) noexcept nogil:
    """Enter the stream's context with a relaxed capture mode; `mode` is that of before."""
    if not done(context_push(wiper.context), b"cuCtxPushCurrent", outcome):
        return False
    mode[0] = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
    if done(capture_mode_exchange(mode), b"cuThreadExchangeStreamCaptureMode", outcome):
        return True
    leave(outcome)
    return False


cdef bint wipe(
    const Wiper* wiper, CUdeviceptr address, size_t size_bytes, Outcome* outcome
) noexcept nogil:
    """Begin to fill a range with zeroes."""
    return done(
        memset_async(address, 0, size_bytes, wiper.stream), b"cuMemsetD8Async", outcome
    )


cdef bint end_wiping(
    const Wiper* wiper, CUstreamCaptureMode* mode, Outcome* outcome
) noexcept nogil:
    """Wait for what has begun, also behind a failure, and leave the thread as it was."""
    cdef bint waited = done(
        stream_synchronize(wiper.stream), b"cuStreamSynchronize", outcome
    )
    cdef bint restored = restore(mode, outcome)
    return leave(outcome) and waited and restored


cdef bint restore(CUstreamCaptureMode* mode, Outcome* outcome) noexcept nogil:
    """Give the thread its capture mode back; what fails is tried once more."""
    if done(capture_mode_exchange(mode), b"cuThreadExchangeStreamCaptureMode", outcome):
        return True
    done(capture_mode_exchange(mode), b"cuThreadExchangeStreamCaptureMode", outcome)
    return False


cdef bint leave(Outcome* outcome) noexcept nogil:
    """Leave the context; what fails is tried once more."""
    if undone(context_pop(), b"cuCtxPopCurrent", outcome):
        return True
    undone(context_pop(), b"cuCtxPopCurrent", outcome)
    return False
