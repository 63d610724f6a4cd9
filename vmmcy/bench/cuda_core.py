"""The way of ``cuda.core``, where that is installed: a buffer of its virtual memory."""

from collections.abc import Callable


def allocator(device_id: int) -> Callable[[int], None] | None:
    """Return what makes a buffer of so many bytes and closes it; None without ``cuda.core``.

    Source: ``cuda.core.VirtualMemoryResource``, of ``cuda.core`` 1.
    """
    try:
        from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions
    except ImportError:
        return None
    resource = VirtualMemoryResource(Device(device_id), VirtualMemoryResourceOptions())

    def allocate_free(size_bytes: int) -> None:
        resource.allocate(size_bytes).close()

    return allocate_free
