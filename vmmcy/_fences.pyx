"""What a stream had been given up to now, and whether it is done.

A fence is an event behind the work of a stream. Nothing here ends anybody's capture: a stream
that is being captured gets no event, so its fence is put off and recorded when it is next asked
after the capture; and the calling thread's capture mode is relaxed while it queries or waits,
which lets it do that for events that were recorded outside a capture. Events are made in the
context of their stream; asking and destroying them needs none.

An event is made for each fence. Used ones could be kept, but only as long as the context that
they belong to, which nobody tells us; and making one takes a microsecond.

What ends a capture was measured on an H200: ``tests/test_sim_streams.py`` holds it.

Sources: ``cuEventRecord``, ``cuEventQuery``, ``cuEventSynchronize``, ``cuStreamIsCapturing``,
``cuThreadExchangeStreamCaptureMode``.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport (
    CUcontext,
    CUevent,
    CUresult,
    CUstream,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
)
from libc.stdint cimport uintptr_t

from vmmcy._calls_under_lock cimport (
    context_pop,
    context_push,
    event_create,
    event_destroy,
    event_function,
    event_query,
    event_record,
    event_synchronize,
    stream_context,
    stream_is_capturing,
)
from vmmcy._driver cimport DriverFault, done, driver_is_gone, given_back, usual_context
from vmmcy._relaxed_capture cimport relax_captures, restore_captures

# The legacy default stream, and that of each thread.
cdef enum:
    LEGACY = 1
    PER_THREAD = 2


cdef bint fence_record(
    int device_id, CUstream stream, Fence* fence, DriverFault* fault
) noexcept nogil:
    """Put a fence behind what `stream` was given so far.

    A default stream is that of the thread's context if it is of the device, else of the
    device's primary context.
    """
    cdef CUcontext context = NULL
    fence.stream = stream if stream != NULL else <void*> <uintptr_t> LEGACY
    fence.event = NULL
    if <uintptr_t> fence.stream <= PER_THREAD:
        context = usual_context(device_id, fault)
    elif not done(stream_context(stream, &context), b"cuStreamGetCtx", fault):
        context = NULL
    fence.context = context
    if context == NULL:
        return False
    is_recorded(fence, fault)
    if fault.status != cydriver.CUDA_SUCCESS:
        fence_drop(fence)
        return False
    return True


cdef Passing fence_passed(Fence* fence, DriverFault* fault) noexcept nogil:
    """Whether all in front of the fence is done, without waiting."""
    return ask(fence, event_query, b"cuEventQuery", fault)


cdef Passing fence_wait(Fence* fence, DriverFault* fault) noexcept nogil:
    """Wait for all in front of the fence; NOT_YET where a capture has to end first."""
    return ask(fence, event_synchronize, b"cuEventSynchronize", fault)


cdef void fence_drop(Fence* fence) noexcept nogil:
    """Forget what is in front of the fence; an event that the driver keeps is lost."""
    if fence.event != NULL:
        destroy(<CUevent> fence.event)
    fence.event = NULL


cdef Passing ask(
    Fence* fence, event_function asked, const char* call, DriverFault* fault
) noexcept nogil:
    cdef CUstreamCaptureMode mode
    cdef CUresult status = cydriver.CUDA_SUCCESS
    if not is_recorded(fence, fault):
        return lost(fault) if fault.status != cydriver.CUDA_SUCCESS else NOT_YET
    if relax_captures(&mode, fault):
        status = asked(<CUevent> fence.event)
        if status != cydriver.CUDA_ERROR_NOT_READY:
            done(status, call, fault)
        restore_captures(mode, fault)
    if fault.status != cydriver.CUDA_SUCCESS:
        return lost(fault)
    return PASSED if status == cydriver.CUDA_SUCCESS else NOT_YET


cdef Passing lost(DriverFault* fault) noexcept nogil:
    """What a fault says of the work: that it is over where the driver is gone, else nothing."""
    if driver_is_gone(fault.status):
        fault.status = cydriver.CUDA_SUCCESS
        return PASSED
    return UNKNOWN


cdef bint is_recorded(Fence* fence, DriverFault* fault) noexcept nogil:
    """Whether the fence has its event: it gets it here unless the stream is being captured."""
    if fence.event == NULL and done(
        context_push(<CUcontext> fence.context), b"cuCtxPushCurrent", fault
    ):
        if can_record(fence, fault):
            record(fence, fault)
        pop(fault)
    return fence.event != NULL and fault.status == cydriver.CUDA_SUCCESS


cdef bint can_record(const Fence* fence, DriverFault* fault) noexcept nogil:
    cdef CUstreamCaptureStatus capture = cydriver.CU_STREAM_CAPTURE_STATUS_NONE
    cdef CUresult status = stream_is_capturing(<CUstream> fence.stream, &capture)
    # What the legacy stream answers while a stream that it waits for is being captured.
    if status == cydriver.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return False
    # To be recorded later, perhaps by another thread, which has another stream of that name.
    if (
        capture != cydriver.CU_STREAM_CAPTURE_STATUS_NONE
        and <uintptr_t> fence.stream == PER_THREAD
    ):
        status = cydriver.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    return (
        done(status, b"cuStreamIsCapturing", fault)
        and capture == cydriver.CU_STREAM_CAPTURE_STATUS_NONE
    )


cdef void record(Fence* fence, DriverFault* fault) noexcept nogil:
    cdef CUevent event = NULL
    # Who waits for it sleeps: the time of the processor is Python's.
    if not done(
        event_create(&event, cydriver.CU_EVENT_DISABLE_TIMING | cydriver.CU_EVENT_BLOCKING_SYNC),
        b"cuEventCreate",
        fault,
    ):
        return
    if done(event_record(event, <CUstream> fence.stream), b"cuEventRecord", fault):
        fence.event = event
    else:
        destroy(event)


cdef void destroy(CUevent event) noexcept nogil:
    if not given_back(event_destroy(event)):
        event_destroy(event)


cdef void pop(DriverFault* fault) noexcept nogil:
    if not given_back(context_pop()):
        done(context_pop(), b"cuCtxPopCurrent", fault)
