"""What can be read of a reservation, open or closed."""

from __future__ import annotations

from vmmcy._core_owner import NEVER_MADE, CoreOwner
from vmmcy._ranges import Mapping
from vmmcy._reservation import ReservationCore
from vmmcy.handle_pool import HandlePool


class ReservationView(CoreOwner):
    """The readable half of `VmmReservation`."""

    _core: ReservationCore
    _pool: HandlePool | None = None

    @property
    def base(self) -> int:
        """The address of the first byte."""
        return self._core.base

    @property
    def size(self) -> int:
        """The bytes reserved."""
        return self._core.size

    @property
    def device_id(self) -> int:
        """The device of the memory."""
        return self._core.device_id

    @property
    def granularity(self) -> int:
        """The unit of offsets and sizes, in bytes: the recommended granularity."""
        return self._core.granularity

    @property
    def pool(self) -> HandlePool | None:
        """The pool whose chunks `commit` uses, which lives as long as this."""
        return self._pool

    @property
    def address_honoured(self) -> bool:
        """Whether `base` is the address that was requested, or none was."""
        return self._core.requested_address in (0, self._core.base)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """What is mapped now, in address order."""
        return tuple(
            Mapping(offset, size_bytes, handle or None, owned)
            for offset, size_bytes, handle, owned in self._core.mappings()
        )

    @property
    def mapped_bytes(self) -> int:
        """The bytes that are mapped now."""
        return self._core.mapped_bytes()

    @property
    def leaving_bytes(self) -> int:
        """The bytes of `mapped_bytes` that are given back when their streams are done."""
        return self._core.leaving_bytes()

    @property
    def closed(self) -> bool:
        """Whether everything is undone."""
        return self._core.closed

    def __repr__(self) -> str:
        """Return place, size, device and state."""
        core = self._core
        if core is NEVER_MADE:
            return "<VmmReservation, never made>"
        place = f"{core.size} bytes at {core.base}, device {core.device_id}"
        if core.inherited:
            return f"<VmmReservation of {place}, a parent process's>"
        if core.closed:
            return f"<VmmReservation of {place}, closed>"
        mapped = f"{core.mapped_bytes()} bytes mapped"
        left = ", only close is left" if core.close_only else ""
        return f"<VmmReservation of {place}, {mapped}{left}>"
