"""Timing loops in C: the bare driver calls, and allocators behind a function pointer.

Every function returns the nanoseconds of its loop, taken around the calls alone.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport (
    CUdeviceptr,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle,
)
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.vector cimport vector
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from vmmcy._driver cimport ContextBinding, check, ensure_driver, enter_context, leave_context


cdef extern from "_peers.h" nogil:
    ctypedef void* (*malloc_function)(size_t, int, void*)
    ctypedef void (*free_function)(void*, size_t, int, void*)
    int peers_set_extents(const uint64_t* bases, const uint64_t* sizes, size_t count)
    void* peer_bare_add(size_t, int, void*)
    void* peer_mutex_add(size_t, int, void*)
    void* peer_mutex_scan(size_t, int, void*)
    void* peer_mutex_scan_best(size_t, int, void*)
    void peer_bare_free(void*, size_t, int, void*)
    void peer_mutex_scan_free(void*, size_t, int, void*)
    const malloc_function* peers_private
    enum: PRIVATE_PEERS
    int64_t peers_time_threads(
        const malloc_function* functions, size_t threads, size_t size_bytes, int64_t count
    )


PEERS = {
    "bare-add": <uintptr_t> &peer_bare_add,
    "mutex-add": <uintptr_t> &peer_mutex_add,
    "mutex-scan": <uintptr_t> &peer_mutex_scan,
    "mutex-scan-best": <uintptr_t> &peer_mutex_scan_best,
    "bare-free": <uintptr_t> &peer_bare_free,
    "mutex-scan-free": <uintptr_t> &peer_mutex_scan_free,
}
PRIVATE = [<uintptr_t> peers_private[_k] for _k in range(PRIVATE_PEERS)]


cdef int64_t now_ns() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return time.tv_sec * 1_000_000_000 + time.tv_nsec


def set_peer_extents(const uint64_t[::1] bases, const uint64_t[::1] sizes) -> None:
    """Give the peers these extents, all of them empty."""
    if peers_set_extents(&bases[0], &sizes[0], bases.shape[0]) != 0:
        raise MemoryError(f"no memory for {bases.shape[0]} extents of the peers")


def time_mallocs(address: int, const uint64_t[::1] sizes) -> int:
    """Call the allocator at `address` once for each of `sizes`, in bytes."""
    cdef malloc_function allocate = <malloc_function> <uintptr_t> address
    cdef Py_ssize_t index
    cdef int64_t started, elapsed
    cdef bint refused = False
    with nogil:
        started = now_ns()
        for index in range(sizes.shape[0]):
            refused |= allocate(sizes[index], 0, NULL) == NULL
        elapsed = now_ns() - started
    if refused:
        raise MemoryError("the allocator ran out of room while it was timed")
    return elapsed


def time_frees(address: int, const uint64_t[::1] pointers, size_t size_bytes) -> int:
    """Call the free function at `address` once for each of `pointers`."""
    cdef free_function release = <free_function> <uintptr_t> address
    cdef Py_ssize_t index
    cdef int64_t started, elapsed
    with nogil:
        started = now_ns()
        for index in range(pointers.shape[0]):
            release(<void*> <uintptr_t> pointers[index], size_bytes, 0, NULL)
        elapsed = now_ns() - started
    return elapsed


def time_threads(const uint64_t[::1] addresses, size_t size_bytes, int64_t count) -> int:
    """Let a thread for each allocator in `addresses` call it `count` times, all at once."""
    cdef int64_t elapsed
    with nogil:
        elapsed = peers_time_threads(
            <const malloc_function*> &addresses[0], addresses.shape[0], size_bytes, count
        )
    if elapsed < 0:
        raise MemoryError("an allocator ran out of room while it was timed")
    return elapsed


def time_address_ranges(const uint64_t[::1] addresses, int device_id) -> int:
    """Ask the driver for the range of each address: ``cuMemGetAddressRange`` alone."""
    cdef CUdeviceptr base
    cdef size_t size
    cdef Py_ssize_t index
    cdef int64_t started, elapsed
    cdef ContextBinding binding
    with nogil:
        ensure_driver()
        enter_context(device_id, &binding)
        started = now_ns()
        for index in range(addresses.shape[0]):
            check(
                cydriver.cuMemGetAddressRange(&base, &size, addresses[index]),
                b"cuMemGetAddressRange",
            )
        elapsed = now_ns() - started
        leave_context(&binding)
    return elapsed


cdef int back(
    uint64_t base, size_t size_bytes, int device_id, CUmemGenericAllocationHandle* handle
) except -1 nogil:
    """Create, map, and set access."""
    cdef CUmemAllocationProp prop = device_memory(device_id)
    cdef CUmemAccessDesc access
    access.location = prop.location
    access.flags = cydriver.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    check(cydriver.cuMemCreate(handle, size_bytes, &prop, 0), b"cuMemCreate")
    check(cydriver.cuMemMap(base, size_bytes, 0, handle[0], 0), b"cuMemMap")
    check(cydriver.cuMemSetAccess(base, size_bytes, &access, 1), b"cuMemSetAccess")
    return 0


def time_map_unmap(uint64_t base, size_t size_bytes, int device_id, int64_t count) -> int:
    """Create, map, set access, release and unmap, `count` times at one place."""
    cdef CUmemGenericAllocationHandle handle
    cdef int64_t _call, started, elapsed
    with nogil:
        ensure_driver()
        started = now_ns()
        for _call in range(count):
            back(base, size_bytes, device_id, &handle)
            check(cydriver.cuMemRelease(handle), b"cuMemRelease")
            check(cydriver.cuMemUnmap(base, size_bytes), b"cuMemUnmap")
        elapsed = now_ns() - started
    return elapsed


def time_allocate(size_t size_bytes, int device_id) -> int:
    """Reserve, create, map, set access, release, and all of it back."""
    cdef CUmemGenericAllocationHandle handle
    cdef CUdeviceptr base
    cdef int64_t elapsed
    with nogil:
        ensure_driver()
        elapsed = -now_ns()
        check(cydriver.cuMemAddressReserve(&base, size_bytes, 0, 0, 0), b"cuMemAddressReserve")
        back(base, size_bytes, device_id, &handle)
        check(cydriver.cuMemRelease(handle), b"cuMemRelease")
        check(cydriver.cuMemUnmap(base, size_bytes), b"cuMemUnmap")
        check(cydriver.cuMemAddressFree(base, size_bytes), b"cuMemAddressFree")
        elapsed += now_ns()
    return elapsed


def map_unchecked(uint64_t base, size_t size_bytes, int device_id, bint retain) -> int:
    """Make the driver calls of one `map`, and nothing else; return the handle if retained."""
    cdef CUmemGenericAllocationHandle handle
    with nogil:
        back(base, size_bytes, device_id, &handle)
        if not retain:
            check(cydriver.cuMemRelease(handle), b"cuMemRelease")
            handle = 0
    return handle


def unmap_unchecked(uint64_t base, size_t size_bytes, uint64_t handle) -> None:
    """Make the driver calls of one `unmap`, and nothing else; `handle` is 0 or goes first."""
    with nogil:
        if handle:
            check(cydriver.cuMemRelease(handle), b"cuMemRelease")
        check(cydriver.cuMemUnmap(base, size_bytes), b"cuMemUnmap")


def time_commit(uint64_t base, size_t size_bytes, int device_id) -> int:
    """Create, map, set access and release, in the clock; the unmap is outside."""
    cdef CUmemGenericAllocationHandle handle
    cdef int64_t elapsed
    with nogil:
        ensure_driver()
        elapsed = -now_ns()
        back(base, size_bytes, device_id, &handle)
        check(cydriver.cuMemRelease(handle), b"cuMemRelease")
        elapsed += now_ns()
        check(cydriver.cuMemUnmap(base, size_bytes), b"cuMemUnmap")
    return elapsed


def create_handles(uint64_t[::1] handles, size_t size_bytes, int device_id) -> None:
    """Create a handle of `size_bytes` for each entry, and write it there."""
    cdef CUmemAllocationProp prop = device_memory(device_id)
    cdef CUmemGenericAllocationHandle handle
    cdef Py_ssize_t index
    ensure_driver()
    for index in range(handles.shape[0]):
        check(cydriver.cuMemCreate(&handle, size_bytes, &prop, 0), b"cuMemCreate")
        handles[index] = handle


def release_handles(const uint64_t[::1] handles) -> None:
    """Release each of them."""
    cdef Py_ssize_t index
    for index in range(handles.shape[0]):
        check(cydriver.cuMemRelease(handles[index]), b"cuMemRelease")


def time_kept(
    uint64_t base, const uint64_t[::1] handles, size_t size_bytes, int device_id, bint with_unmap
) -> int:
    """Map handles that stay side by side, and set access once, in the clock.

    Unmapping them is in it only `with_unmap`.
    """
    cdef CUmemAccessDesc access
    cdef size_t index, count = handles.shape[0]
    cdef int64_t started, elapsed
    access.location = device_memory(device_id).location
    access.flags = cydriver.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    with nogil:
        ensure_driver()
        started = now_ns()
        for index in range(count):
            check(
                cydriver.cuMemMap(base + index * size_bytes, size_bytes, 0, handles[index], 0),
                b"cuMemMap",
            )
        check(cydriver.cuMemSetAccess(base, count * size_bytes, &access, 1), b"cuMemSetAccess")
        elapsed = now_ns() - started
        check(cydriver.cuMemUnmap(base, count * size_bytes), b"cuMemUnmap")
        if with_unmap:
            elapsed = now_ns() - started
    return elapsed


def time_pause_resume(
    const uint64_t[::1] addresses, const uint64_t[::1] sizes, int device_id
) -> int:
    """Unmap all segments in one call, and back each again; they are in order and touch.

    Access is set for each: in one call over all it takes longer.
    """
    cdef CUmemAllocationProp prop = device_memory(device_id)
    cdef CUmemAccessDesc access
    cdef CUmemGenericAllocationHandle handle
    cdef Py_ssize_t index, last = sizes.shape[0] - 1
    cdef uint64_t span_bytes = addresses[last] + sizes[last] - addresses[0]
    cdef vector[CUmemGenericAllocationHandle] handles
    cdef int64_t started, elapsed
    access.location = prop.location
    access.flags = cydriver.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handles.reserve(sizes.shape[0])
    with nogil:
        ensure_driver()
        started = now_ns()
        check(cydriver.cuMemUnmap(addresses[0], span_bytes), b"cuMemUnmap")
        for index in range(sizes.shape[0]):
            check(cydriver.cuMemCreate(&handle, sizes[index], &prop, 0), b"cuMemCreate")
            check(cydriver.cuMemMap(addresses[index], sizes[index], 0, handle, 0), b"cuMemMap")
            check(
                cydriver.cuMemSetAccess(addresses[index], sizes[index], &access, 1),
                b"cuMemSetAccess",
            )
            handles.push_back(handle)
        for handle in handles:
            check(cydriver.cuMemRelease(handle), b"cuMemRelease")
        elapsed = now_ns() - started
    return elapsed


def time_pinned_copy(CUdeviceptr address, size_t size_bytes, bint to_host, int device_id) -> int:
    """Copy between device memory and pinned memory of the host, once, and wait for it."""
    cdef void* host = NULL
    cdef int64_t started, elapsed
    cdef ContextBinding binding
    with nogil:
        ensure_driver()
        enter_context(device_id, &binding)
        check(cydriver.cuMemHostAlloc(&host, size_bytes, 0), b"cuMemHostAlloc")
        started = now_ns()
        if to_host:
            check(cydriver.cuMemcpyDtoH(host, address, size_bytes), b"cuMemcpyDtoH")
        else:
            check(cydriver.cuMemcpyHtoD(address, host, size_bytes), b"cuMemcpyHtoD")
        elapsed = now_ns() - started
        check(cydriver.cuMemFreeHost(host), b"cuMemFreeHost")
        leave_context(&binding)
    return elapsed


cdef CUmemAllocationProp device_memory(int device_id) noexcept nogil:
    cdef CUmemAllocationProp prop
    memset(&prop, 0, sizeof(prop))
    prop.type = cydriver.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = device_id
    prop.requestedHandleTypes = cydriver.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return prop


def time_reserve_free(size_t size_bytes, int64_t count) -> int:
    """Reserve `size_bytes` of address space and free it, `count` times."""
    cdef CUdeviceptr base
    cdef int64_t _call, started, elapsed
    with nogil:
        ensure_driver()
        started = now_ns()
        for _call in range(count):
            check(
                cydriver.cuMemAddressReserve(&base, size_bytes, 0, 0, 0), b"cuMemAddressReserve"
            )
            check(cydriver.cuMemAddressFree(base, size_bytes), b"cuMemAddressFree")
        elapsed = now_ns() - started
    return elapsed
