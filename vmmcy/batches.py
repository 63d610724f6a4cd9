"""Many ranges of many reservations at once, all or nothing."""

from collections.abc import Iterable
from typing import Any

from vmmcy import _batches
from vmmcy._arguments import iterable, positive, shown
from vmmcy.reservation import VmmReservation

Ranges = Iterable[tuple[VmmReservation, int, int]]
_RANGE_KIND = "(reservation, offset, size) ranges"


def commit_many(ranges: Ranges, *, chunk_bytes: int | None = None) -> int:
    """Back whatever is not yet backed in many ranges, all or nothing.

    Access is set in one call for each stretch of touching new mappings.

    Parameters
    ----------
    ranges : iterable of (VmmReservation, int, int)
        Reservation, offset and size in bytes, as for `VmmReservation.commit`. Reservations may
        come in any order and more than once, ranges may touch or overlap.
    chunk_bytes : int, optional
        As for `VmmReservation.commit`, for each range.

    Returns
    -------
    int
        The bytes newly backed, and those kept that were leaving; 0 if all was there to stay.

    Raises
    ------
    TypeError, ValueError
        As `VmmReservation.commit`; a note names the range.
    RuntimeError
        A reservation or its pool is closed, or a reservation a parent process's.
    CudaDriverError
        The driver refused. Nothing has changed, unless the error's notes say that the way back
        failed too: of the reservations concerned then only `close` is left.

    Source: as `VmmReservation.commit`.
    """
    if chunk_bytes is not None:
        chunk_bytes = positive(chunk_bytes, "chunk_bytes")
    return _batches.commit_many(iterable(ranges, "ranges", _RANGE_KIND), checked, chunk_bytes)


def decommit_many(ranges: Ranges) -> int:
    """Give back the mappings that lie wholly inside any of many ranges, all or none.

    Memory is unmapped in one call for each stretch without other mappings in between. Where that
    is more than one, a reference holds the memory until all are done, so that those that
    succeeded can be undone, with the contents, when another fails.

    Parameters
    ----------
    ranges : iterable of (VmmReservation, int, int)
        Reservation, offset and size in bytes, as for `VmmReservation.decommit`. Reservations may
        come in any order and more than once, ranges may touch or overlap.

    Returns
    -------
    int
        The bytes given back, without those that were leaving already; 0 if there were none.

    Raises
    ------
    TypeError, ValueError
        As `VmmReservation.decommit`; a note names the range.
    RuntimeError
        A reservation is closed, or a parent process's.
    CudaDriverError
        The driver refused. Nothing has changed, unless the error's notes say that the way back
        failed too, or the failure is of ``cuMemRelease`` behind the last unmap, twice: of the
        reservations concerned then only `close` is left.

    Source: ``cuMemUnmap``, ``cuMemRelease``; for more than one stretch also
    ``cuMemRetainAllocationHandle`` and, on the way back, ``cuMemMap``, ``cuMemSetAccess``.
    """
    return _batches.decommit_many(iterable(ranges, "ranges", _RANGE_KIND), checked)


def checked(index: int, entry: Any) -> tuple[VmmReservation, int, int]:
    """Return a range as a tuple about a reservation, or raise."""
    try:
        reservation, offset, size = entry if isinstance(entry, tuple | list) else ()
    except ValueError as error:
        text = f"range {index} must be (reservation, offset, size), not {shown(entry)}"
        raise TypeError(text) from error
    if not isinstance(reservation, VmmReservation):
        raise TypeError(
            f"range {index} must begin with a VmmReservation, not {type(reservation).__name__}"
        )
    return reservation, offset, size
