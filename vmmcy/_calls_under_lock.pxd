# The driver calls that are made where the GIL must never be taken, as under a native lock.
#
# cydriver's functions may take it on status 500, to see whether the function was missing. None
# of these is missing from a driver that cuda-bindings 12.9 accepts: so they are called without
# that look.
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport (
    CUcontext,
    CUdevice,
    CUdeviceptr,
    CUevent,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle,
    CUresult,
    CUstream,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
)

ctypedef CUresult (*create_function)(
    CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long
) noexcept nogil
ctypedef CUresult (*map_function)(
    CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long
) noexcept nogil
ctypedef CUresult (*set_access_function)(
    CUdeviceptr, size_t, const CUmemAccessDesc*, size_t
) noexcept nogil
ctypedef CUresult (*reserve_function)(
    CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long
) noexcept nogil
ctypedef CUresult (*range_function)(CUdeviceptr, size_t) noexcept nogil
ctypedef CUresult (*release_function)(CUmemGenericAllocationHandle) noexcept nogil
ctypedef CUresult (*retain_function)(CUmemGenericAllocationHandle*, void*) noexcept nogil
ctypedef CUresult (*push_function)(CUcontext) noexcept nogil
ctypedef CUresult (*context_function)(CUcontext*) noexcept nogil
ctypedef CUresult (*device_function)(CUdevice*) noexcept nogil
ctypedef CUresult (*primary_retain_function)(CUcontext*, CUdevice) noexcept nogil
ctypedef CUresult (*primary_release_function)(CUdevice) noexcept nogil
ctypedef CUresult (*exchange_function)(CUstreamCaptureMode*) noexcept nogil
ctypedef CUresult (*stream_create_function)(CUstream*, unsigned int) noexcept nogil
ctypedef CUresult (*stream_function)(CUstream) noexcept nogil
ctypedef CUresult (*stream_context_function)(CUstream, CUcontext*) noexcept nogil
ctypedef CUresult (*capturing_function)(CUstream, CUstreamCaptureStatus*) noexcept nogil
ctypedef CUresult (*event_create_function)(CUevent*, unsigned int) noexcept nogil
ctypedef CUresult (*event_record_function)(CUevent, CUstream) noexcept nogil
ctypedef CUresult (*event_function)(CUevent) noexcept nogil
ctypedef CUresult (*memset_function)(
    CUdeviceptr, unsigned char, size_t, CUstream
) noexcept nogil
ctypedef CUresult (*to_host_function)(void*, CUdeviceptr, size_t, CUstream) noexcept nogil
ctypedef CUresult (*to_device_function)(CUdeviceptr, const void*, size_t, CUstream) noexcept nogil
ctypedef CUresult (*host_alloc_function)(void**, size_t, unsigned int) noexcept nogil
ctypedef CUresult (*host_free_function)(void*) noexcept nogil


cdef inline CUresult mem_create(
    CUmemGenericAllocationHandle* handle, size_t size_bytes, const CUmemAllocationProp* prop
) noexcept nogil:
    return (<create_function> cydriver.cuMemCreate)(handle, size_bytes, prop, 0)


cdef inline CUresult mem_map(
    CUdeviceptr address, size_t size_bytes, CUmemGenericAllocationHandle handle
) noexcept nogil:
    return (<map_function> cydriver.cuMemMap)(address, size_bytes, 0, handle, 0)


cdef inline CUresult mem_set_access(
    CUdeviceptr address, size_t size_bytes, const CUmemAccessDesc* access, size_t count
) noexcept nogil:
    return (<set_access_function> cydriver.cuMemSetAccess)(address, size_bytes, access, count)


cdef inline CUresult mem_unmap(CUdeviceptr address, size_t size_bytes) noexcept nogil:
    return (<range_function> cydriver.cuMemUnmap)(address, size_bytes)


cdef inline CUresult mem_address_reserve(
    CUdeviceptr* base, size_t size_bytes, size_t alignment, CUdeviceptr wished
) noexcept nogil:
    return (<reserve_function> cydriver.cuMemAddressReserve)(
        base, size_bytes, alignment, wished, 0
    )


cdef inline CUresult mem_address_free(CUdeviceptr address, size_t size_bytes) noexcept nogil:
    return (<range_function> cydriver.cuMemAddressFree)(address, size_bytes)


cdef inline CUresult mem_release(CUmemGenericAllocationHandle handle) noexcept nogil:
    return (<release_function> cydriver.cuMemRelease)(handle)


cdef inline CUresult mem_retain(
    CUmemGenericAllocationHandle* handle, CUdeviceptr address
) noexcept nogil:
    return (<retain_function> cydriver.cuMemRetainAllocationHandle)(handle, <void*> address)


cdef inline CUresult context_current(CUcontext* context) noexcept nogil:
    return (<context_function> cydriver.cuCtxGetCurrent)(context)


cdef inline CUresult context_device(CUdevice* device) noexcept nogil:
    return (<device_function> cydriver.cuCtxGetDevice)(device)


cdef inline CUresult context_push(CUcontext context) noexcept nogil:
    return (<push_function> cydriver.cuCtxPushCurrent)(context)


cdef inline CUresult context_pop() noexcept nogil:
    cdef CUcontext popped = NULL
    return (<context_function> cydriver.cuCtxPopCurrent)(&popped)


cdef inline CUresult primary_retain(CUcontext* context, CUdevice device) noexcept nogil:
    return (<primary_retain_function> cydriver.cuDevicePrimaryCtxRetain)(context, device)


cdef inline CUresult primary_release(CUdevice device) noexcept nogil:
    return (<primary_release_function> cydriver.cuDevicePrimaryCtxRelease)(device)


cdef inline CUresult capture_mode_exchange(CUstreamCaptureMode* mode) noexcept nogil:
    return (<exchange_function> cydriver.cuThreadExchangeStreamCaptureMode)(mode)


cdef inline CUresult stream_create(CUstream* stream) noexcept nogil:
    return (<stream_create_function> cydriver.cuStreamCreate)(
        stream, cydriver.CU_STREAM_NON_BLOCKING
    )


cdef inline CUresult stream_synchronize(CUstream stream) noexcept nogil:
    return (<stream_function> cydriver.cuStreamSynchronize)(stream)


cdef inline CUresult stream_destroy(CUstream stream) noexcept nogil:
    return (<stream_function> cydriver.cuStreamDestroy)(stream)


cdef inline CUresult stream_context(CUstream stream, CUcontext* context) noexcept nogil:
    return (<stream_context_function> cydriver.cuStreamGetCtx)(stream, context)


cdef inline CUresult stream_is_capturing(
    CUstream stream, CUstreamCaptureStatus* status
) noexcept nogil:
    return (<capturing_function> cydriver.cuStreamIsCapturing)(stream, status)


cdef inline CUresult event_create(CUevent* event, unsigned int flags) noexcept nogil:
    return (<event_create_function> cydriver.cuEventCreate)(event, flags)


cdef inline CUresult event_record(CUevent event, CUstream stream) noexcept nogil:
    return (<event_record_function> cydriver.cuEventRecord)(event, stream)


cdef inline CUresult event_query(CUevent event) noexcept nogil:
    return (<event_function> cydriver.cuEventQuery)(event)


cdef inline CUresult event_synchronize(CUevent event) noexcept nogil:
    return (<event_function> cydriver.cuEventSynchronize)(event)


cdef inline CUresult event_destroy(CUevent event) noexcept nogil:
    return (<event_function> cydriver.cuEventDestroy)(event)


cdef inline CUresult memset_async(
    CUdeviceptr address, unsigned char value, size_t size_bytes, CUstream stream
) noexcept nogil:
    return (<memset_function> cydriver.cuMemsetD8Async)(address, value, size_bytes, stream)


cdef inline CUresult copy_to_host(
    void* host, CUdeviceptr address, size_t size_bytes, CUstream stream
) noexcept nogil:
    return (<to_host_function> cydriver.cuMemcpyDtoHAsync)(host, address, size_bytes, stream)


cdef inline CUresult copy_to_device(
    CUdeviceptr address, const void* host, size_t size_bytes, CUstream stream
) noexcept nogil:
    return (<to_device_function> cydriver.cuMemcpyHtoDAsync)(address, host, size_bytes, stream)


cdef inline CUresult host_alloc(void** host, size_t size_bytes) noexcept nogil:
    return (<host_alloc_function> cydriver.cuMemHostAlloc)(
        host, size_bytes, cydriver.CU_MEMHOSTALLOC_PORTABLE
    )


cdef inline CUresult host_free(void* host) noexcept nogil:
    return (<host_free_function> cydriver.cuMemFreeHost)(host)
