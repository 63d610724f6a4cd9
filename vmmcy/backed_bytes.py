"""A backed range as what other libraries take for an array, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmmcy._core_owner import NEVER_MADE
from vmmcy._ranges import inside
from vmmcy.reservation_view import ReservationView

if TYPE_CHECKING:
    from vmmcy.reservation import VmmReservation

INTERFACE_VERSION = 3
UNSIGNED_BYTE = "|u1"


class BackedBytes:
    """The bytes of a range of a reservation, for ``cupy.asarray``, ``torch.as_tensor`` and others.

    They take it through ``__cuda_array_interface__``, without a copy, and keep it for as long as
    their array; it keeps the reservation. Whether the range is backed is looked up each time
    somebody takes it; what is leaving still is until it has gone. `VmmReservation.backed` makes
    them.

    Parameters
    ----------
    reservation : VmmReservation
        Where the bytes lie.
    offset, size : int
        The range in bytes from the reservation's base; any bytes, not only whole granules.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        The range is outside, or not wholly backed.
    RuntimeError
        The reservation is closed, or a parent process's.

    Source: the CUDA Array Interface, version 3.
    """

    _reservation: VmmReservation = NEVER_MADE

    def __init__(self, reservation: VmmReservation, offset: int, size: int) -> None:
        if not isinstance(reservation, ReservationView):
            raise TypeError(
                f"reservation must be a VmmReservation, not {type(reservation).__name__}"
            )
        self._offset, self._size = inside(reservation._core, "backed", offset, size)
        self._reservation = reservation
        self._check()

    @property
    def reservation(self) -> VmmReservation:
        """Where the bytes lie."""
        return self._reservation

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """One dimension of bytes; raises as the constructor does where they are no longer there."""
        self._check()
        return {
            "version": INTERFACE_VERSION,
            "shape": (self._size,),
            "typestr": UNSIGNED_BYTE,
            "data": (self._reservation.base + self._offset, False),
            "strides": None,
        }

    def __repr__(self) -> str:
        """Return the range and where it is."""
        if self._reservation is NEVER_MADE:
            return "<BackedBytes, never made>"
        return f"<BackedBytes [{self._offset}, {self._offset + self._size}) of {self._reservation}>"

    def _check(self) -> None:
        """Refuse a range with a hole: whoever takes it asks the driver about its address."""
        self._reservation._core.check_open("backed")
        start, end = self._offset, self._offset + self._size
        for mapping in self._reservation.mappings:
            if mapping.offset > start or start >= end:
                break
            start = max(start, mapping.offset + mapping.size_bytes)
        if start < end:
            raise ValueError(
                f"VmmReservation.backed: nothing is mapped at {start}, in [{self._offset}, {end}); "
                "commit the range first"
            )
