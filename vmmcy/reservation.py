"""Reservations: an address range, its mappings, and their teardown in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmmcy._arguments import (
    LIMIT_64_BIT,
    flag,
    integer,
    positive,
    power_of_two,
    unsigned,
)
from vmmcy._core_owner import refuse_twice
from vmmcy._ranges import (
    address_not_honoured,
    check_access,
    core_of_pool,
    devices_with_access,
    handle_number,
    origin_of_memory,
)
from vmmcy._reservation import ReservationCore
from vmmcy.backed_bytes import BackedBytes
from vmmcy.handle_pool import HandlePool
from vmmcy.properties import pack_user_prop
from vmmcy.reservation_view import ReservationView

if TYPE_CHECKING:
    from cuda.bindings.driver import CUmemAllocationProp, CUmemGenericAllocationHandle


class VmmReservation(ReservationView):
    """A range of addresses, and the physical memory that comes and goes under it.

    Safe to use from many threads at once. What it made is undone in order by `close`,
    which the context manager calls; dropping it open does the same with a
    ``ResourceWarning``. An object made before a fork is refused in the child.

    No call but `synchronize` and `close` waits for the device, and `commit` for the wiping
    where its pool scrubs. Before memory is taken away at
    once, the caller sees to it that no kernel uses it any more; what is decommitted with a
    stream goes when that is done, found out by whatever is called next.

    Parameters
    ----------
    size : int
        Bytes to reserve, a multiple of the granularity.
    prop : cuda.bindings.driver.CUmemAllocationProp, optional
        The properties of the memory that `map` and `commit` make; copied. By default
        memory of the device that can be exported as a POSIX file descriptor where the
        device can do that, found out once for each device by making one granule.
    device_id : int, optional
        The device; by default that of `prop`, else of the thread's context, else the
        only visible one.
    alignment : int
        Alignment of `base` in bytes, a power of two; 0 for the driver's own.
    requested_address : int
        Where the range should lie, a multiple of the granularity; 0 for anywhere. The
        driver takes this for a wish: see `address_honoured`.
    require_address : bool
        Raise where another address came back than `requested_address`.
    access_devices : iterable of int, optional
        The devices that may read and write the memory; by default only its own.
    pool : HandlePool, optional
        Where `commit` takes whole chunks from, and where they go back. Its device and its
        properties are the reservation's.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        An argument is out of range, or two of them contradict each other.
    RuntimeError
        `require_address` was not met. Nothing is left reserved, unless a note says so:
        that the driver did not take the addresses back either. Or `pool` is closed, or a
        parent process's.
    CudaDriverError
        The driver refused. Nothing is left reserved.

    Source: ``cuMemAddressReserve``, ``cuMemGetAllocationGranularity``.
    """

    NOUN = "reservation"

    def __init__(
        self,
        size: int,
        prop: CUmemAllocationProp | None = None,
        device_id: int | None = None,
        *,
        alignment: int = 0,
        requested_address: int = 0,
        require_address: bool = False,
        access_devices: Iterable[int] | None = None,
        pool: HandlePool | None = None,
    ) -> None:
        refuse_twice(self, self._core)
        if not type(size) is type(alignment) is type(requested_address) is int:
            size = integer(size, "size")
            alignment = integer(alignment, "alignment")
            requested_address = integer(requested_address, "requested_address")
        packed = None if prop is None else pack_user_prop(prop)
        pool_core = None if pool is None else core_of_pool(pool)
        if device_id is not None and type(device_id) is not int:
            device_id = integer(device_id, "device_id")
        required = flag(require_address, "require_address")
        devices = None if access_devices is None else devices_with_access(access_devices)
        if not 0 < size < LIMIT_64_BIT:
            positive(size, "size")
        if alignment:
            power_of_two(unsigned(alignment, "alignment"), "alignment")
        if requested_address:
            unsigned(requested_address, "requested_address")
        elif required:
            raise ValueError("require_address needs a requested_address")
        packed, device_id = origin_of_memory(packed, device_id, pool_core, devices)
        if devices:
            check_access(devices)
        core = ReservationCore(
            packed,
            device_id,
            devices or (device_id,),
            size,
            alignment,
            requested_address,
            pool_core,
        )
        if required and core.base != requested_address:
            raise address_not_honoured(core, requested_address)
        refuse_twice(self, self._core)
        self._core = core
        if pool is not None:
            self._pool = pool

    def map(self, offset: int, size: int, *, retain_handle: bool = False) -> int | None:
        """Back a vacant range with one new allocation.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`, multiples of the granularity.
        retain_handle : bool
            Keep the allocation handle and return it.

        Returns
        -------
        int or None
            The handle, as ``cuda.bindings`` takes it, or None if it was not retained. It
            belongs to the reservation: good until the range is unmapped or the
            reservation closed, unless by ``release_handles=False``.

        Raises
        ------
        TypeError
            An argument is of the wrong type.
        ValueError
            The range is outside, no multiple of the granularity, or not vacant.
        RuntimeError
            The reservation is closed, or a parent process's.
        CudaDriverError
            The driver refused. Nothing has changed, unless the error's notes say that
            the way back failed too: then only `close` is left.

        Source: ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``, ``cuMemRelease``.
        """
        return self._core.map(offset, size, retain_handle) or None

    def map_existing(
        self, offset: int, size: int, handle: int | CUmemGenericAllocationHandle
    ) -> None:
        """Back a vacant range with a handle that is, and stays, the caller's.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`, multiples of the granularity; `size` is that
            of the whole handle, else the driver answers NOT_SUPPORTED.
        handle : int or cuda.bindings.driver.CUmemGenericAllocationHandle
            A live allocation handle. That it is alive is the caller's promise: the
            driver crashes the process on a dead one. It may be released once mapped.

        Raises
        ------
        TypeError
            An argument is of the wrong type.
        ValueError
            The range is outside, no multiple of the granularity, or not vacant; or
            `handle` is 0.
        RuntimeError
            The reservation is closed, or a parent process's.
        CudaDriverError
            The driver refused. Nothing has changed, as for `map`.

        Source: ``cuMemMap``, ``cuMemSetAccess``.
        """
        self._core.map_existing(offset, size, handle_number(handle))

    def unmap(self, offset: int, size: int, *, release_handles: bool = True) -> None:
        """Take away the mappings that make up a range, one or many, whole: all or none.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`.
        release_handles : bool
            Release the retained handles; if false they become the caller's.

        Raises
        ------
        TypeError
            An argument is of the wrong type.
        ValueError
            The range is outside, cuts a mapping, or has a hole: also the second time.
        RuntimeError
            The reservation is closed, or a parent process's.
        CudaDriverError
            The driver refused. Nothing has changed, as for `map`.

        Source: ``cuMemRelease``, ``cuMemUnmap``.
        """
        self._core.unmap(offset, size, release_handles)

    def commit(self, offset: int, size: int, *, chunk_bytes: int | None = None) -> int:
        """Back whatever is not yet backed in a range, all or nothing.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`, rounded outwards to the granularity.
        chunk_bytes : int, optional
            The size of each new mapping from a hole's start on, the last one smaller; a
            multiple of the granularity. By default one mapping for each hole, which is
            fastest; but a mapping can only be given back whole. With a pool it is the pool's.

        Returns
        -------
        int
            The bytes newly backed, 0 if all was. Mappings of the range that are leaving
            after a stream stay as they are, and count: nothing is made for them.

        Raises
        ------
        TypeError
            An argument is of the wrong type.
        ValueError
            The range is outside, or `chunk_bytes` no multiple of the granularity, or not
            the pool's.
        RuntimeError
            The reservation or its pool is closed, or the reservation a parent process's.
        CudaDriverError
            The driver refused. Nothing has changed, as for `map`; what a pool keeps unused may
            have become less or, where a note says that a release failed too, more.

        Source: ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``, ``cuMemRelease``; for a pool with
        `scrub` also ``cuMemsetD8Async``, ``cuStreamSynchronize``.
        """
        return self._core.commit(offset, size, chunk_bytes)

    def decommit(self, offset: int, size: int, *, stream: object = None) -> int:
        """Give back the mappings that lie wholly inside a range, all or none.

        Parameters
        ----------
        offset, size : int
            The range in bytes from `base`; mappings that it cuts stay.
        stream : optional
            Give them back when this stream has done what it was given so far; nothing waits
            for that. A stream of torch, or another object with ``__cuda_stream__``, a
            ``CUstream`` of cuda.bindings, or its number, 0 for the legacy default stream.
            That it is alive is the caller's promise. By default they are given back at once.

        Returns
        -------
        int
            The bytes given back or leaving now, 0 if there were none: those that were leaving
            before are not counted again, and then go at once, or after both streams; so do those
            that `commit` has kept since, which are counted.
            Handles that were retained for them are released, a pool's go back to it.

        Raises
        ------
        TypeError
            An argument is of the wrong type.
        ValueError
            The range is outside, or `stream` no number of 64 bits.
        RuntimeError
            The reservation is closed, or a parent process's.
        CudaDriverError
            The driver refused. Nothing has changed, as for `map`.

        Notes
        -----
        While `stream` is being captured no event can be recorded on it. The mappings then leave
        after what it was given until the first call on this reservation behind the end of the
        capture, so that it has to live until then; and `synchronize` leaves them mapped. The
        per-thread default stream (2) cannot be put off and is refused by its capture's status.

        Source: ``cuMemRelease``, ``cuMemUnmap``; with a stream ``cuEventRecord``,
        ``cuEventQuery``.
        """
        return self._core.decommit(offset, size, stream)

    def synchronize(self) -> int:
        """Wait for the streams that mappings leave after, without the GIL, and give those back.

        Returns
        -------
        int
            The bytes given back. What leaves after a stream that is being captured is not
            waited for: `leaving_bytes` says how much that is.

        Raises
        ------
        RuntimeError
            The reservation is closed, or a parent process's.
        CudaDriverError
            The driver refused. What was not given back is still leaving: call it again.

        Source: ``cuEventSynchronize``, ``cuMemRelease``, ``cuMemUnmap``.
        """
        return self._core.synchronize()

    def backed(self, offset: int, size: int) -> BackedBytes:
        """Return the bytes of a range for ``cupy.asarray`` and others: see `BackedBytes`.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            Wrong types; outside, or not wholly backed; closed, or a parent process's.
        """
        return BackedBytes(self, offset, size)

    def close(self, *, release_handles: bool = True) -> None:
        """Undo everything: unmap, release, free the addresses. Closing twice is fine.

        Streams that mappings leave after are waited for, without the GIL.

        Parameters
        ----------
        release_handles : bool
            Release the retained handles; if false they become the caller's.

        Raises
        ------
        RuntimeError
            The reservation is a parent process's; or mappings leave after a stream that is
            being captured: nothing has changed, close it again after the capture.
        CudaDriverError
            The driver refused. What could be undone is, the rest stays on record and
            `closed` false: only `close` is left, and may be called again.

        Source: ``cuEventSynchronize``, ``cuMemUnmap``, ``cuMemRelease``, ``cuMemAddressFree``.
        """
        self._core.close(release_handles)

    def __enter__(self) -> VmmReservation:
        """Return the reservation itself."""
        self._core.check_open("__enter__")
        return self


def check_map(reservation: VmmReservation, offset: int, size: int) -> None:
    """Raise exactly what ``reservation.map(offset, size)`` would, without a driver call.

    Parameters
    ----------
    reservation : VmmReservation
        The reservation.
    offset, size : int
        The range in bytes from its base.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `VmmReservation.map`. What the driver will say only `map` can find out.
    """
    if not isinstance(reservation, VmmReservation):
        raise TypeError(f"reservation must be a VmmReservation, not {type(reservation).__name__}")
    reservation._core.check_map(offset, size)
