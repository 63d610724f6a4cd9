# The driver calls that are made under a native lock, where the GIL must never be taken.
#
# cydriver's functions may take it on status 500, to see whether the function was missing. None
# of these is missing from a driver that cuda-bindings 12.9 accepts: so they are called without
# that look.
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport (
    CUcontext,
    CUdeviceptr,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle,
    CUresult,
    CUstream,
    CUstreamCaptureMode,
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
ctypedef CUresult (*range_function)(CUdeviceptr, size_t) noexcept nogil
ctypedef CUresult (*release_function)(CUmemGenericAllocationHandle) noexcept nogil
ctypedef CUresult (*retain_function)(CUmemGenericAllocationHandle*, void*) noexcept nogil
ctypedef CUresult (*push_function)(CUcontext) noexcept nogil
ctypedef CUresult (*pop_function)(CUcontext*) noexcept nogil
ctypedef CUresult (*exchange_function)(CUstreamCaptureMode*) noexcept nogil
ctypedef CUresult (*stream_function)(CUstream) noexcept nogil
ctypedef CUresult (*memset_function)(
    CUdeviceptr, unsigned char, size_t, CUstream
) noexcept nogil


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


cdef inline CUresult mem_address_free(CUdeviceptr address, size_t size_bytes) noexcept nogil:
    return (<range_function> cydriver.cuMemAddressFree)(address, size_bytes)


cdef inline CUresult mem_release(CUmemGenericAllocationHandle handle) noexcept nogil:
    return (<release_function> cydriver.cuMemRelease)(handle)


cdef inline CUresult mem_retain(
    CUmemGenericAllocationHandle* handle, CUdeviceptr address
) noexcept nogil:
    return (<retain_function> cydriver.cuMemRetainAllocationHandle)(handle, <void*> address)


cdef inline CUresult context_push(CUcontext context) noexcept nogil:
    return (<push_function> cydriver.cuCtxPushCurrent)(context)


cdef inline CUresult context_pop() noexcept nogil:
    cdef CUcontext popped = NULL
    return (<pop_function> cydriver.cuCtxPopCurrent)(&popped)


cdef inline CUresult capture_mode_exchange(CUstreamCaptureMode* mode) noexcept nogil:
    return (<exchange_function> cydriver.cuThreadExchangeStreamCaptureMode)(mode)


cdef inline CUresult stream_synchronize(CUstream stream) noexcept nogil:
    return (<stream_function> cydriver.cuStreamSynchronize)(stream)


cdef inline CUresult stream_destroy(CUstream stream) noexcept nogil:
    return (<stream_function> cydriver.cuStreamDestroy)(stream)


cdef inline CUresult memset_async(
    CUdeviceptr address, unsigned char value, size_t size_bytes, CUstream stream
) noexcept nogil:
    return (<memset_function> cydriver.cuMemsetD8Async)(address, value, size_bytes, stream)
