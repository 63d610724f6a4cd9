"""Allocation properties as the driver reads them, and what a device can really do.

A packed property is the ``bytes`` of one CUmemAllocationProp: nobody can change it
behind our back, and none of ``cuda.bindings.driver``, slow to import, is needed for it.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

from vmmcy._driver cimport (
    ContextBinding,
    check,
    ensure_driver,
    enter_context,
    given_back,
    leave_context,
    leave_context_after,
    raise_retried,
)
from vmmcy._handle_pool cimport create_handle


cdef bytes packed(const CUmemAllocationProp* prop):
    return (<const char*> prop)[:sizeof(CUmemAllocationProp)]


cdef const CUmemAllocationProp* unpacked(bytes prop) except NULL:
    if len(prop) != sizeof(CUmemAllocationProp):
        raise ValueError(f"{len(prop)} bytes are no CUmemAllocationProp")
    return <const CUmemAllocationProp*> <const char*> prop


def pack_device_prop(int device_id, unsigned int handle_types, bint gpu_direct_rdma) -> bytes:
    cdef CUmemAllocationProp prop
    memset(&prop, 0, sizeof(prop))
    prop.type = cydriver.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = device_id
    prop.requestedHandleTypes = <cydriver.CUmemAllocationHandleType> handle_types
    prop.allocFlags.gpuDirectRDMACapable = gpu_direct_rdma
    return packed(&prop)


def pack_prop(uintptr_t address) -> bytes:
    return packed(<const CUmemAllocationProp*> address)


def unpack_prop(bytes prop, uintptr_t address):
    memcpy(<void*> address, unpacked(prop), sizeof(CUmemAllocationProp))


def device_of_prop(bytes prop):
    cdef const CUmemAllocationProp* fields = unpacked(prop)
    if fields.location.type == cydriver.CU_MEM_LOCATION_TYPE_DEVICE:
        return fields.location.id
    return None


def granularity_of(bytes prop, unsigned int flag) -> int:
    cdef size_t granularity = 0
    ensure_driver()
    check(
        cydriver.cuMemGetAllocationGranularity(
            &granularity, unpacked(prop), <cydriver.CUmemAllocationGranularity_flags> flag
        ),
        b"cuMemGetAllocationGranularity",
    )
    return granularity


def free_memory_of(int device_id) -> int:
    cdef size_t free_bytes = 0
    cdef size_t total_bytes = 0
    cdef ContextBinding binding
    binding.bound = False
    try:
        with nogil:
            ensure_driver()
            enter_context(device_id, &binding)
            check(cydriver.cuMemGetInfo(&free_bytes, &total_bytes), b"cuMemGetInfo")
            leave_context(&binding)
    except BaseException as error:
        leave_context_after(error, &binding)
        raise
    return free_bytes


def posix_fd_works(int device_id) -> bool:
    """Tell whether memory of `device_id` can be made exportable, by making some.

    The attribute alone is not enough: drivers say yes there to what they then refuse.
    """
    cdef int says_yes = 0
    cdef CUmemGenericAllocationHandle handle = 0
    cdef size_t size_bytes
    cdef const CUmemAllocationProp* fields
    cdef CUresult status
    ensure_driver()
    check(
        cydriver.cuDeviceGetAttribute(
            &says_yes,
            cydriver.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            device_id,
        ),
        b"cuDeviceGetAttribute",
    )
    if not says_yes:
        return False
    prop = pack_device_prop(
        device_id, cydriver.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, False
    )
    fields = unpacked(prop)
    size_bytes = granularity_of(prop, cydriver.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    with nogil:
        status = create_handle(&handle, size_bytes, fields, device_id, NULL)
    if status == cydriver.CUDA_ERROR_NOT_PERMITTED or status == cydriver.CUDA_ERROR_NOT_SUPPORTED:
        return False
    check(status, b"cuMemCreate")
    release_granule(handle, size_bytes)
    return True


cdef int release_granule(CUmemGenericAllocationHandle handle, size_bytes) except -1:
    """Release what was made to try; where that fails, its way back is to try again."""
    cdef CUresult first = cydriver.cuMemRelease(handle)
    if given_back(first):
        return 0
    return raise_retried(
        first,
        cydriver.cuMemRelease(handle),
        b"cuMemRelease",
        f"the {size_bytes} bytes of handle {handle} stay allocated",
    )
