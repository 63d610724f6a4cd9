"""Allocation properties, the granularity, and what a device can really do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vmmcy._arguments import (
    LIMIT_64_BIT,
    device_ordinal,
    flag,
    integer,
    positive,
    shown,
    unsigned,
)
from vmmcy._driver import default_device, visible_device
from vmmcy._properties import (
    device_of_prop,
    free_memory_of,
    granularity_of,
    pack_device_prop,
    pack_prop,
    posix_fd_works,
    unpack_prop,
)

if TYPE_CHECKING:
    from cuda.bindings.driver import CUmemAccessDesc, CUmemAllocationProp

GRANULARITY_MINIMUM = 0
GRANULARITY_RECOMMENDED = 1
HANDLE_TYPE_NONE = 0
HANDLE_TYPE_POSIX_FD = 1

_can_export = functools.cache(posix_fd_works)


def align_up(value: int, alignment: int) -> int:
    """Return the least multiple of `alignment` that is not below `value`.

    Parameters
    ----------
    value : int
        A size or an address in bytes, from 0.
    alignment : int
        In bytes, from 1; need not be a power of two.

    Raises
    ------
    TypeError
        An argument is not an integer.
    ValueError
        An argument is out of range, or the result does not fit in 64 bits.
    """
    value, alignment = integer(value, "value"), integer(alignment, "alignment")
    value, alignment = unsigned(value, "value"), positive(alignment, "alignment")
    aligned = -(-value // alignment) * alignment
    if aligned >= LIMIT_64_BIT:
        raise ValueError(f"{value} aligned up to {alignment} does not fit in 64 bits")
    return aligned


def align_down(value: int, alignment: int) -> int:
    """Return the greatest multiple of `alignment` that is not above `value`.

    Parameters
    ----------
    value : int
        A size or an address in bytes, from 0.
    alignment : int
        In bytes, from 1; need not be a power of two.

    Raises
    ------
    TypeError
        An argument is not an integer.
    ValueError
        An argument is out of range.
    """
    value, alignment = integer(value, "value"), integer(alignment, "alignment")
    value, alignment = unsigned(value, "value"), positive(alignment, "alignment")
    return value // alignment * alignment


def make_device_allocation_prop(
    device_id: int | None = None,
    *,
    handle_types: int | str | None = "auto",
    gpu_direct_rdma: bool = False,
) -> CUmemAllocationProp:
    """Return the properties of pinned memory of one device.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of the thread's context, else the only visible one.
    handle_types : int or None or "auto"
        The ``CUmemAllocationHandleType`` bits that an export shall be possible as; None
        for none. ``"auto"`` is a POSIX file descriptor where the device can do that, found
        out once for each device by making such memory.
    gpu_direct_rdma : bool
        Whether third-party devices may access the memory.

    Returns
    -------
    cuda.bindings.driver.CUmemAllocationProp
        A new one, the caller's to change.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        There is no such device, or it is not clear which one.
    CudaDriverError
        The driver refused to answer; out of memory is not taken for "not supported".

    Source: ``cuMemCreate``; for ``"auto"`` also ``cuDeviceGetAttribute``.
    """
    if handle_types is None:
        handle_types = HANDLE_TYPE_NONE
    bits = None if isinstance(handle_types, str) else _enum_number(handle_types, "handle_types")
    if device_id is not None:
        device_id = integer(device_id, "device_id")
    gpu_direct_rdma = flag(gpu_direct_rdma, "gpu_direct_rdma")
    if bits is not None:
        _enum_value(bits, "handle_types")
    elif handle_types != "auto":
        raise ValueError(f"handle_types must be bits, None or 'auto', got {shown(handle_types)}")
    device_id = choose_device(device_id)
    if bits is None:
        packed = pack_exportable_prop(device_id, gpu_direct_rdma)
    else:
        packed = pack_device_prop(device_id, bits, gpu_direct_rdma)
    from cuda.bindings import driver

    prop = driver.CUmemAllocationProp()
    unpack_prop(packed, prop.getPtr())
    return prop


def get_allocation_granularity(
    prop: CUmemAllocationProp, flag: int = GRANULARITY_RECOMMENDED
) -> int:
    """Return the granularity of memory with these properties.

    Parameters
    ----------
    prop : cuda.bindings.driver.CUmemAllocationProp
        The properties; they are copied.
    flag : int or cuda.bindings.driver.CUmemAllocationGranularity_flags
        0 for the minimum, 1 for the recommended granularity, the unit of this library.

    Returns
    -------
    int
        In bytes.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        `flag` is neither 0 nor 1.
    CudaDriverError
        The driver does not take `prop`.

    Source: ``cuMemGetAllocationGranularity``.
    """
    packed = pack_user_prop(prop)
    value = _enum_value(flag, "flag")
    if value not in (GRANULARITY_MINIMUM, GRANULARITY_RECOMMENDED):
        raise ValueError(f"flag must be 0 (minimum) or 1 (recommended), got {value}")
    return granularity_of(packed, value)


def get_device_granularity(device_id: int | None = None) -> int:
    """Return the recommended granularity of a device's own memory.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of the thread's context, else the only visible one.

    Returns
    -------
    int
        In bytes: what a `VmmReservation` without properties uses.

    Raises
    ------
    TypeError
        `device_id` is not an integer.
    ValueError
        There is no such device, or it is not clear which one.
    CudaDriverError
        The driver refused to answer.

    Source: ``cuMemGetAllocationGranularity``.
    """
    packed = pack_exportable_prop(choose_device(device_id))
    return granularity_of(packed, GRANULARITY_RECOMMENDED)


def free_memory_bytes(device_id: int | None = None) -> int:
    """Return how much memory of a device nobody has, in this process or another.

    Ranks of a group each see a number of their own: let them agree on one, the least, before
    it decides how much is committed.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of the thread's context, else the only visible one.

    Returns
    -------
    int
        In bytes, at this moment. A device that was not in use gets its primary context, which
        takes memory itself.

    Raises
    ------
    TypeError
        `device_id` is not an integer.
    ValueError
        There is no such device, or it is not clear which one.
    CudaDriverError
        The driver refused to answer. The thread's context is as it was.

    Source: ``cuMemGetInfo``, which leaves a capture as it is.
    """
    return free_memory_of(choose_device(device_id))


def make_rw_access_desc(device_id: int | None = None) -> CUmemAccessDesc:
    """Return the description "this device may read and write" for ``cuMemSetAccess``.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of the thread's context, else the only visible one.

    Returns
    -------
    cuda.bindings.driver.CUmemAccessDesc
        A new one, the caller's to change.

    Raises
    ------
    TypeError
        `device_id` is not an integer.
    ValueError
        There is no such device, or it is not clear which one.
    """
    device_id = choose_device(device_id)
    from cuda.bindings import driver

    description = driver.CUmemAccessDesc()
    description.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = device_id
    description.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return description


def choose_device(device_id: int | None) -> int:
    """Return the device that `device_id` means, after a look whether there is one."""
    if device_id is None:
        return default_device()
    return visible_device(device_ordinal(device_id))


@functools.cache
def pack_exportable_prop(device_id: int, gpu_direct_rdma: bool = False) -> bytes:
    """Return packed properties of device memory, exportable where the device can.

    Raises
    ------
    ValueError
        There is no such device.
    """
    choose_device(device_id)
    handle_types = HANDLE_TYPE_POSIX_FD if _can_export(device_id) else HANDLE_TYPE_NONE
    return pack_device_prop(device_id, handle_types, gpu_direct_rdma)


def pack_user_prop(prop: CUmemAllocationProp) -> bytes:
    """Return the packed copy of a caller's `prop`, or raise a ``TypeError``."""
    from cuda.bindings import driver

    if not isinstance(prop, driver.CUmemAllocationProp):
        raise TypeError(
            f"prop must be a cuda.bindings.driver.CUmemAllocationProp, not {type(prop).__name__}"
        )
    return pack_prop(prop.getPtr())


def choose_prop(packed: bytes | None, device_id: int | None) -> tuple[bytes, int]:
    """Return the packed properties and the device that a caller's two arguments mean.

    Raises
    ------
    ValueError
        The two name different devices, or there is no such device.
    """
    if packed is None:
        if device_id is None:
            device_id = default_device()
        elif type(device_id) is not int:  # to the cache False and 0.0 are 0
            device_id = integer(device_id, "device_id")
        return pack_exportable_prop(device_id), device_id
    if device_id is not None:
        device_id = device_ordinal(device_id)
    placed_on = device_of_prop(packed)
    if None not in (placed_on, device_id) and placed_on != device_id:
        raise ValueError(f"prop places memory on device {placed_on}, but device_id is {device_id}")
    return packed, choose_device(device_id if placed_on is None else placed_on)


def _enum_number(number: Any, name: str) -> int:
    """Return the number of an int or of a ``cuda.bindings`` enum member: types alone."""
    return integer(getattr(number, "value", number), name)


def _enum_value(number: Any, name: str) -> int:
    """Return the 32 bits of an int or of a ``cuda.bindings`` enum member."""
    value = unsigned(_enum_number(number, name), name)
    if value >= 1 << 32:
        raise ValueError(f"{name} {value} does not fit in 32 bits")
    return value
