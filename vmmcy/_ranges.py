"""What a reservation and its methods take and tell: ranges, devices, handles, mappings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from vmmcy._arguments import (
    device_ordinal,
    integer,
    iterable,
    positive,
    shown,
    two_items,
    unsigned,
    whole_granules,
    within_64_bits,
)
from vmmcy._driver import visible_device
from vmmcy.errors import CudaDriverError
from vmmcy.handle_pool import HandlePool
from vmmcy.properties import choose_prop

if TYPE_CHECKING:
    from cuda.bindings.driver import CUmemGenericAllocationHandle

    from vmmcy._handle_pool import PoolCore
    from vmmcy._reservation import ReservationCore


class Mapping(NamedTuple):
    """One handle at one place in one reservation, as it was when asked.

    Parameters
    ----------
    offset : int
        Of its first byte, in bytes from the reservation's base.
    size_bytes : int
        Its size, which is that of the whole handle.
    handle : int or None
        The allocation handle, None where the reservation knows of none that is alive, or it
        is a pool's.
    owned : bool
        Whether the reservation releases `handle`; false for a caller's own.
    """

    offset: int
    size_bytes: int
    handle: int | None
    owned: bool


def inside(core: ReservationCore, method: str, offset: int, size: int) -> tuple[int, int]:
    """Return the range as ints after the checks for types, state and bounds."""
    offset, size = integer(offset, "offset"), integer(size, "size")
    core.check_open(method)
    if offset < 0 or size <= 0 or offset + size > core.size:
        raise ValueError(
            f"mapping [{shown(offset)}, {shown(offset + size)}) is outside reservation "
            f"[0, {core.size})"
        )
    return offset, size


def granules(core: ReservationCore, method: str, offset: int, size: int) -> tuple[int, int]:
    """Return the range as ints after all checks that need no look at the record."""
    offset, size = inside(core, method, offset, size)
    whole_granules(offset, core.granularity, "offset")
    whole_granules(size, core.granularity, "size")
    return offset, size


def devices_with_access(devices: Iterable[int]) -> tuple[int, ...]:
    """Return the devices in the given order as ints: types alone."""
    items = iterable(devices, "access_devices", "device ordinals")
    ordinals = tuple(integer(item, f"access_devices[{index}]") for index, item in enumerate(items))
    if not ordinals:
        raise ValueError("access_devices is empty: nobody could use the memory")
    return ordinals


def check_access(ordinals: tuple[int, ...]) -> None:
    """Refuse devices that there are not, and a device that is named twice."""
    for index, ordinal in enumerate(ordinals):
        name = f"access_devices[{index}]"
        visible_device(device_ordinal(ordinal, name), name)
    if len(set(ordinals)) != len(ordinals):
        raise ValueError(f"access_devices names a device twice: {shown(list(ordinals))}")


def core_of_pool(pool: HandlePool) -> PoolCore:
    """Return the core of what has to be a pool: types alone."""
    if not isinstance(pool, HandlePool):
        raise TypeError(f"pool must be a HandlePool, not {type(pool).__name__}")
    return pool._core


def origin_of_memory(
    packed: bytes | None,
    device_id: int | None,
    pool: PoolCore | None,
    access_devices: tuple[int, ...] | None,
    owner: str = "VmmReservation",
) -> tuple[bytes, int]:
    """Return the properties and the device that a reservation's arguments, or `owner`'s, mean.

    Raises
    ------
    RuntimeError
        The pool is closed.
    ValueError
        One argument contradicts another, or there is no such device.
    """
    if pool is None:
        return choose_prop(packed, device_id)
    if pool.closed or pool.close_only:
        raise RuntimeError(f"{owner}: the pool is closed")
    if device_id is not None and device_ordinal(device_id) != pool.device_id:
        raise ValueError(f"device_id is {device_id}, but the pool's is {pool.device_id}")
    if packed not in (None, pool.packed_prop):
        raise ValueError("prop is not that of the pool: leave it out")
    if pool.scrub and access_devices and pool.device_id not in access_devices:
        raise ValueError(
            f"access_devices {shown(list(access_devices))} lacks device {pool.device_id}, which "
            "has to wipe the memory: the pool scrubs"
        )
    return pool.packed_prop, pool.device_id


def mapping_bytes(chunk_bytes: int | None, pool: PoolCore | None, granularity: int) -> int | None:
    """Return the size that mappings are cut into, which is the pool's where there is one."""
    if chunk_bytes is not None:
        positive(chunk_bytes, "chunk_bytes")
        whole_granules(chunk_bytes, granularity, "chunk_bytes")
    if pool is None:
        return chunk_bytes
    if chunk_bytes not in (None, pool.chunk_bytes):
        raise ValueError(
            f"chunk_bytes {chunk_bytes} is not that of the HandlePool, {pool.chunk_bytes}"
        )
    return pool.chunk_bytes


def ranges_to_keep(keep: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of addresses as pairs of words, ascending, those that overlap as one."""
    ranges = []
    for index, pair in enumerate(iterable(keep, "keep", "(address, size_bytes) pairs")):
        place, size = two_items(pair, f"keep[{index}]", "an (address, size_bytes) pair")
        address = integer(place, f"the address of keep[{index}]")
        size_bytes = integer(size, f"the size of keep[{index}]")
        positive(address, f"the address of keep[{index}]")
        positive(size_bytes, f"the size of keep[{index}]")
        within_64_bits(address + size_bytes - 1, f"the last byte of keep[{index}],")
        ranges.append((address, size_bytes))
    joined: list[tuple[int, int]] = []
    for address, size_bytes in sorted(ranges):
        if joined and address < sum(joined[-1]):
            first, kept_bytes = joined[-1]
            joined[-1] = first, max(kept_bytes, address + size_bytes - first)
        else:
            joined.append((address, size_bytes))
    return joined


def handle_number(handle: int | CUmemGenericAllocationHandle) -> int:
    """Return a handle of either kind as an ``int``, before any look at its value."""
    if type(handle).__name__ == "CUmemGenericAllocationHandle":
        return int(handle)
    return integer(handle, "handle")


def stream_number(stream: object) -> int:
    """Return a stream of any kind as the number that the driver knows it by."""
    if hasattr(stream, "cuda_stream"):
        stream = stream.cuda_stream
    elif hasattr(stream, "__cuda_stream__"):
        stream = _handle_of(stream)
    elif type(stream).__name__ in ("CUstream", "cudaStream_t"):
        return int(stream)  # type: ignore[call-overload, no-any-return]
    return unsigned(integer(stream, "stream"), "stream")


def _handle_of(stream: Any) -> object:
    """Return the handle of an object that has the CUDA stream protocol, whose version is 0."""
    protocol = stream.__cuda_stream__
    answer = protocol() if callable(protocol) else protocol
    if not isinstance(answer, tuple) or len(answer) != 2 or answer[0] != 0:
        raise TypeError(
            "stream: __cuda_stream__() must give (0, handle), "
            f"not {type(answer).__name__} {shown(answer)}"
        )
    return answer[1]


def address_not_honoured(core: ReservationCore, requested_address: int) -> RuntimeError:
    """Return the error after the addresses that came instead are freed."""
    error = RuntimeError(
        f"address {requested_address} was required, and the driver reserved {core.base} instead"
    )
    for _ in range(2):
        try:
            core.close(True)
            return error
        except CudaDriverError as failure:
            error.add_note(f"on the way back: {failure}")
    error.add_note(f"the {core.size} bytes of addresses at {core.base} may stay reserved")
    return error
