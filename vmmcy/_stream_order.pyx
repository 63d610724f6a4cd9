"""One stream behind everything that its device was given, without anybody waiting for it."""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUcontext, CUevent, CUresult, CUstream
from libc.stdint cimport uintptr_t

from vmmcy._driver cimport (
    ContextBinding,
    ensure_driver,
    enter_context,
    leave_context,
    make_driver_error,
)


def order_behind_device(uintptr_t stream, int device_id) -> bool:
    cdef ContextBinding binding
    cdef CUresult status
    cdef const char* call = NULL
    with nogil:
        ensure_driver()
        enter_context(device_id, &binding)
        status = order(<CUstream> stream, &call)
        leave_context(&binding)
    if status == cydriver.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        return False
    if status != cydriver.CUDA_SUCCESS:
        raise make_driver_error(status, call)
    return True


cdef CUresult order(CUstream stream, const char** call) noexcept nogil:
    """Return the first status that is no success, with its call; the event goes in any case."""
    cdef CUcontext context = NULL
    cdef CUevent event = NULL
    cdef CUresult status
    call[0] = b"cuCtxGetCurrent"
    status = cydriver.cuCtxGetCurrent(&context)
    if status == cydriver.CUDA_SUCCESS:
        call[0] = b"cuEventCreate"
        status = cydriver.cuEventCreate(&event, cydriver.CU_EVENT_DISABLE_TIMING)
    if status != cydriver.CUDA_SUCCESS:
        return status
    call[0] = b"cuCtxRecordEvent"
    status = cydriver.cuCtxRecordEvent(context, event)
    if status == cydriver.CUDA_SUCCESS:
        call[0] = b"cuStreamWaitEvent"
        status = cydriver.cuStreamWaitEvent(stream, event, 0)
    if status != cydriver.CUDA_SUCCESS:
        cydriver.cuEventDestroy(event)
        return status
    call[0] = b"cuEventDestroy"
    return cydriver.cuEventDestroy(event)
