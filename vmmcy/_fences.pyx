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

from vmmcy._driver cimport DriverFault, done, driver_is_gone, given_back, usual_context

# Called under a lock of the caller's, where the GIL must not be taken: see _mapping.pyx.
ctypedef CUresult (*push_function)(CUcontext) noexcept nogil
ctypedef CUresult (*pop_function)(CUcontext*) noexcept nogil
ctypedef CUresult (*mode_function)(CUstreamCaptureMode*) noexcept nogil
ctypedef CUresult (*context_function)(CUstream, CUcontext*) noexcept nogil
ctypedef CUresult (*capturing_function)(CUstream, CUstreamCaptureStatus*) noexcept nogil
ctypedef CUresult (*make_event_function)(CUevent*, unsigned int) noexcept nogil
ctypedef CUresult (*record_function)(CUevent, CUstream) noexcept nogil
ctypedef CUresult (*event_function)(CUevent) noexcept nogil

cdef:
    push_function push_context = <push_function> cydriver.cuCtxPushCurrent
    pop_function pop_context = <pop_function> cydriver.cuCtxPopCurrent
    mode_function exchange_mode = <mode_function> cydriver.cuThreadExchangeStreamCaptureMode
    context_function context_of_stream = <context_function> cydriver.cuStreamGetCtx
    capturing_function is_capturing = <capturing_function> cydriver.cuStreamIsCapturing
    make_event_function make_event = <make_event_function> cydriver.cuEventCreate
    record_function record_event = <record_function> cydriver.cuEventRecord
    event_function query_event = <event_function> cydriver.cuEventQuery
    event_function wait_for_event = <event_function> cydriver.cuEventSynchronize
    event_function destroy_event = <event_function> cydriver.cuEventDestroy

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
    elif not done(context_of_stream(stream, &context), b"cuStreamGetCtx", fault):
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
    return ask(fence, query_event, b"cuEventQuery", fault)


cdef Passing fence_wait(Fence* fence, DriverFault* fault) noexcept nogil:
    """Wait for all in front of the fence; NOT_YET where a capture has to end first."""
    return ask(fence, wait_for_event, b"cuEventSynchronize", fault)


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
    mode = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
    if done(exchange_mode(&mode), b"cuThreadExchangeStreamCaptureMode", fault):
        status = asked(<CUevent> fence.event)
        if status != cydriver.CUDA_ERROR_NOT_READY:
            done(status, call, fault)
        restore_mode(mode, fault)
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
        push_context(<CUcontext> fence.context), b"cuCtxPushCurrent", fault
    ):
        if can_record(fence, fault):
            record(fence, fault)
        pop(fault)
    return fence.event != NULL and fault.status == cydriver.CUDA_SUCCESS


cdef bint can_record(const Fence* fence, DriverFault* fault) noexcept nogil:
    cdef CUstreamCaptureStatus capture = cydriver.CU_STREAM_CAPTURE_STATUS_NONE
    cdef CUresult status = is_capturing(<CUstream> fence.stream, &capture)
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
        make_event(&event, cydriver.CU_EVENT_DISABLE_TIMING | cydriver.CU_EVENT_BLOCKING_SYNC),
        b"cuEventCreate",
        fault,
    ):
        return
    if done(record_event(event, <CUstream> fence.stream), b"cuEventRecord", fault):
        fence.event = event
    else:
        destroy(event)


cdef void destroy(CUevent event) noexcept nogil:
    if not given_back(destroy_event(event)):
        destroy_event(event)


cdef void restore_mode(CUstreamCaptureMode mode, DriverFault* fault) noexcept nogil:
    cdef CUstreamCaptureMode own = mode
    if not given_back(exchange_mode(&own)):
        own = mode
        done(exchange_mode(&own), b"cuThreadExchangeStreamCaptureMode", fault)


cdef void pop(DriverFault* fault) noexcept nogil:
    cdef CUcontext popped = NULL
    if not given_back(pop_context(&popped)):
        done(pop_context(&popped), b"cuCtxPopCurrent", fault)
