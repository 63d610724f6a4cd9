"""The engine's reservation: handles as ``cuda.bindings`` makes them, and a close that logs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vmmcy import reservation
from vmmcy._arguments import device_ordinal
from vmmcy._core_owner import NEVER_MADE, Uncopied, refuse_twice
from vmmcy._driver import visible_device
from vmmcy._properties import device_of_prop
from vmmcy.errors import CudaDriverError
from vmmcy.properties import pack_user_prop
from vmmcy.sglang.pointers import address_number
from vmmcy.sglang.status import labelled, notes_of

if TYPE_CHECKING:
    from cuda.bindings.driver import (
        CUdeviceptr,
        CUmemAllocationProp,
        CUmemGenericAllocationHandle,
    )

logger = logging.getLogger(__name__)


class VmmReservation(Uncopied):
    """A range of addresses, its mappings, and their teardown in order.

    Parameters
    ----------
    size : int
        Bytes to reserve, a multiple of the granularity.
    prop : cuda.bindings.driver.CUmemAllocationProp
        The properties of the memory that `map` makes; copied.
    device_id : int
        The device that may read and write the memory.
    alignment : int
        Alignment of `base` in bytes, a power of two; 0 for the driver's own.
    requested_address : int or cuda.bindings.driver.CUdeviceptr
        Where the range should lie; the driver takes this for a wish. 0 for anywhere.

    Raises
    ------
    TypeError, ValueError
        As `vmmcy.VmmReservation`.
    CudaDriverError
        The driver refused: ``cuMemAddressReserve(local): …``. Nothing is left reserved.

    Source: ``cuMemAddressReserve``.
    """

    _reservation: reservation.VmmReservation = NEVER_MADE
    _closed = False

    def __init__(
        self,
        size: int,
        prop: CUmemAllocationProp,
        device_id: int,
        *,
        alignment: int = 0,
        requested_address: int | CUdeviceptr = 0,
    ) -> None:
        refuse_twice(self, self._reservation)
        device_id = device_ordinal(device_id)
        placed_on = device_of_prop(pack_user_prop(prop))
        visible_device(device_id)
        try:
            made = reservation.VmmReservation(
                size,
                prop,
                device_id if placed_on is None else placed_on,
                alignment=alignment,
                requested_address=address_number(requested_address),
                access_devices=(device_id,),
            )
        except CudaDriverError as error:
            raise labelled(error, "local") from None
        refuse_twice(self, self._reservation)
        self._reservation = made

    @property
    def base(self) -> int:
        """The address of the first byte."""
        return self._reservation.base

    @property
    def size(self) -> int:
        """The bytes reserved."""
        return self._reservation.size

    def map(
        self, offset: int, size: int, *, retain_handle: bool
    ) -> CUmemGenericAllocationHandle | None:
        """Back a vacant range with one new allocation.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`, multiples of the granularity.
        retain_handle : bool
            Keep the allocation handle and return it.

        Returns
        -------
        cuda.bindings.driver.CUmemGenericAllocationHandle or None
            The handle if it was retained. It is the reservation's, which releases it in
            `close`, unless by ``release_handles=False``.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `vmmcy.VmmReservation.map`.
        CudaDriverError
            The driver refused: ``cuMemCreate(local): …`` and its like. Nothing has
            changed, unless the error's notes say that the way back failed too.
        """
        self._check_open("map")
        try:
            handle = self._reservation.map(offset, size, retain_handle=retain_handle)
        except CudaDriverError as error:
            raise labelled(error, "local") from None
        if handle is None:
            return None
        from cuda.bindings.driver import CUmemGenericAllocationHandle

        return CUmemGenericAllocationHandle(handle)

    def map_existing(
        self, offset: int, size: int, handle: int | CUmemGenericAllocationHandle
    ) -> None:
        """Back a vacant range with a handle that is, and stays, the caller's.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`, multiples of the granularity.
        handle : int or cuda.bindings.driver.CUmemGenericAllocationHandle
            A live allocation handle of `size` bytes.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `vmmcy.VmmReservation.map_existing`.
        CudaDriverError
            The driver refused: ``cuMemMap(existing): …`` and its like. As for `map`.
        """
        self._check_open("map_existing")
        try:
            self._reservation.map_existing(offset, size, handle)
        except CudaDriverError as error:
            raise labelled(error, "existing") from None

    def close(self, *, release_handles: bool = True) -> None:
        """Undo everything, and log what the driver refuses. Never raises.

        After it nothing can be mapped. Where something could not be undone, another close
        tries again.

        Parameters
        ----------
        release_handles : bool
            Release the retained handles; if false they become the caller's.
        """
        self._closed = True
        try:
            self._reservation.close(release_handles=release_handles)
        except CudaDriverError as error:
            answer = "; ".join([f"{error.name} ({error.text})", *notes_of(error)])
            logger.warning("%s(local) -> %s", error.call, answer)
        except (RuntimeError, MemoryError) as error:
            logger.warning("VmmReservation was not closed: %s", error)

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise RuntimeError(f"VmmReservation.{method} after close")
