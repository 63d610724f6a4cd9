from vmmcy._handle_pool import PoolCore

class ReservationCore:
    """One reserved address range and the record of its mappings.

    Errors are those of `vmmcy.reservation.VmmReservation`, for which alone this is.
    """

    base: int
    requested_address: int
    size: int
    granularity: int
    device_id: int
    pool: PoolCore | None

    def __init__(
        self,
        prop: bytes,
        device_id: int,
        access_devices: tuple[int, ...],
        size: int,
        alignment: int,
        requested_address: int,
        pool: PoolCore | None = None,
    ) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether everything is undone."""

    @property
    def close_only(self) -> bool:
        """Whether a failure left what only `close` can undo."""

    @property
    def inherited(self) -> bool:
        """Whether it was made before this process was forked."""

    def check_open(self, method: str) -> None:
        """Raise what `method` would on a reservation in this state."""

    def check_map(self, offset: int, size: int) -> None:
        """Raise what `map` would before its first driver call."""

    def mappings(self) -> list[tuple[int, int, int, bool]]:
        """Return ``(offset, size_bytes, handle or 0, owned)`` of each, in address order."""

    def leaving_bytes(self) -> int:
        """Return the bytes that are mapped and leave after a stream."""

    def mapped_bytes(self) -> int:
        """Return the bytes that are mapped."""

    def map(self, offset: int, size: int, retain_handle: bool) -> int:
        """Back a vacant range with one new handle; return it if retained, else 0."""

    def map_existing(self, offset: int, size: int, handle: int) -> None:
        """Back a vacant range with the caller's handle."""

    def commit(self, offset: int, size: int, chunk_bytes: int | None) -> int:
        """Back every hole of a range; return the bytes newly backed."""

    def unmap(self, offset: int, size: int, release_handles: bool) -> None:
        """Take away the mappings that make up a range exactly."""

    def decommit(self, offset: int, size: int, stream: object) -> int:
        """Take away the mappings wholly inside a range, after a stream unless that is None."""

    def synchronize(self) -> int:
        """Wait for all that is leaving and give it back; return the bytes."""

    def close(self, release_handles: bool) -> None:
        """Undo all that is on record; what cannot be undone stays for the next close."""
