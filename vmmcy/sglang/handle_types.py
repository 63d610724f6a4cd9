"""How memory of a device can be exported, found out by making some, and its properties."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from vmmcy import properties
from vmmcy._arguments import device_ordinal, integer, shown
from vmmcy._driver import visible_device
from vmmcy.errors import CudaDriverError
from vmmcy.sglang.status import check_drv

if TYPE_CHECKING:
    from cuda.bindings.driver import CUmemAllocationProp

logger = logging.getLogger(__name__)

NONE, POSIX_FD, FABRIC = 0, 1, 8
_NAMES = {NONE: "NONE", POSIX_FD: "POSIX_FD", FABRIC: "FABRIC"}

# How drivers say that they do not make such memory; an old one takes the bit for a mistake.
_CANNOT = (
    "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_NOT_SUPPORTED",
    "CUDA_ERROR_INVALID_VALUE",
)


def allocation_handle_type_name(handle_type: int) -> str:
    """Return FABRIC, POSIX_FD or NONE, and of any other number its digits.

    Raises
    ------
    TypeError
        `handle_type` is no integer.
    """
    number = integer(handle_type, "handle_type")
    return _NAMES.get(number, shown(number))


def get_device_allocation_handle_type(device_id: int) -> int:
    """Return the best way in which memory of a device can be exported, found out once.

    Parameters
    ----------
    device_id : int
        The device.

    Returns
    -------
    int
        FABRIC, else POSIX file descriptor, as members of ``CUmemAllocationHandleType``;
        else 0: the first of them with which one granule could be made.

    Raises
    ------
    TypeError, ValueError
        `device_id` is no device.
    RuntimeError
        None of them works.
    CudaDriverError
        The driver refused for another reason than that it cannot, such as out of memory.
        Nothing is left behind, and the next call tries again.

    Source: ``cuMemGetAllocationGranularity``, ``cuMemCreate``, ``cuMemRelease``.
    """
    return _best_type(visible_device(device_ordinal(device_id)))


@functools.cache
def _best_type(device_id: int) -> int:
    from cuda.bindings.driver import CUmemAllocationHandleType

    refusal = None
    for handle_type in (FABRIC, POSIX_FD, NONE):
        try:
            _make_granule(device_id, handle_type)
        except CudaDriverError as error:
            if error.name not in _CANNOT:
                raise
            refusal = error
            name = allocation_handle_type_name(handle_type)
            logger.warning("device %d cannot make %s memory: %s", device_id, name, error)
        else:
            name = allocation_handle_type_name(handle_type)
            logger.info("device %d makes %s memory", device_id, name)
            return handle_type and CUmemAllocationHandleType(handle_type)
    raise RuntimeError("no supported CUDA VMM allocation handle type") from refusal


def make_device_allocation_prop(
    device_id: int,
    *,
    handle_types: int | str | None = "auto",
    gpu_direct_rdma: bool = False,
) -> CUmemAllocationProp:
    """Return the properties of pinned memory of one device.

    Parameters
    ----------
    device_id : int
        The device.
    handle_types : int or None or "auto"
        How it shall be possible to export the memory: 0 or None not at all, 1 as a POSIX file
        descriptor, 8 as a FABRIC handle; ``"auto"`` as `get_device_allocation_handle_type`
        says.
    gpu_direct_rdma : bool
        Whether third-party devices may access the memory.

    Returns
    -------
    cuda.bindings.driver.CUmemAllocationProp
        A new one, the caller's to change.

    Raises
    ------
    TypeError, ValueError
        `device_id` is no device, or `handle_types` none of the above.
    RuntimeError, CudaDriverError
        As `get_device_allocation_handle_type`, for ``"auto"``.
    """
    device_id = device_ordinal(device_id)
    if isinstance(handle_types, str) and handle_types == "auto":
        handle_types = get_device_allocation_handle_type(device_id)
    return properties.make_device_allocation_prop(
        device_id, handle_types=_known_type(handle_types), gpu_direct_rdma=gpu_direct_rdma
    )


def _known_type(handle_types: Any) -> int:
    """Return a caller's way of exporting as its number."""
    if handle_types is None:
        return NONE
    try:
        number = integer(handle_types, "handle_types")
    except TypeError:
        raise ValueError(
            "handle_types must be 'auto', an integer, or None, "
            f"not {type(handle_types).__name__} {shown(handle_types)}"
        ) from None
    if number not in _NAMES:
        raise ValueError(f"invalid CUDA handle-type value: {shown(number)}")
    return number


def get_device_granularity(device_id: int) -> int:
    """Return the recommended granularity, in bytes, of a device's default memory.

    Raises
    ------
    TypeError, ValueError, RuntimeError, CudaDriverError
        As `make_device_allocation_prop`.

    Source: ``cuMemGetAllocationGranularity``.
    """
    return _granularity(device_ordinal(device_id))


@functools.cache
def _granularity(device_id: int) -> int:
    return properties.get_allocation_granularity(make_device_allocation_prop(device_id))


def _make_granule(device_id: int, handle_type: int) -> None:
    """Make and release one granule; where the release fails, its way back is another."""
    from cuda.bindings import driver

    name = allocation_handle_type_name(handle_type)
    prop = make_device_allocation_prop(device_id, handle_types=handle_type)
    size_bytes = properties.get_allocation_granularity(prop)
    handle: Any = check_drv(driver.cuMemCreate(size_bytes, prop, 0), f"cuMemCreate({name} probe)")
    try:
        check_drv(driver.cuMemRelease(handle), f"cuMemRelease({name} probe)")
    except CudaDriverError:
        driver.cuMemRelease(handle)
        raise
