def pack_device_prop(device_id: int, handle_types: int, gpu_direct_rdma: bool) -> bytes:
    """Return the packed property of pinned memory of `device_id`."""

def pack_prop(address: int) -> bytes:
    """Return the packed copy of the ``CUmemAllocationProp`` at `address`."""

def unpack_prop(prop: bytes, address: int) -> None:
    """Write the packed `prop` over the ``CUmemAllocationProp`` at `address`."""

def device_of_prop(prop: bytes) -> int | None:
    """Return the device on which `prop` places memory, None for host memory."""

def granularity_of(prop: bytes, flag: int) -> int:
    """Return the granularity, in bytes, of memory with the packed `prop`.

    Source: ``cuMemGetAllocationGranularity``.
    """

def free_memory_of(device_id: int) -> int:
    """Return the bytes of `device_id` that nobody has.

    Source: ``cuMemGetInfo``.
    """

def posix_fd_works(device_id: int) -> bool:
    """Tell whether memory of `device_id` can be exported as a file descriptor.

    Source: ``cuDeviceGetAttribute``, then ``cuMemCreate`` and ``cuMemRelease`` of one
    granule: an attribute alone is no proof.
    """
