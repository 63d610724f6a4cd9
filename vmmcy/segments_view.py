"""What can be read of backed segments, open or closed."""

from __future__ import annotations

from vmmcy._core_owner import NEVER_MADE, CoreOwner
from vmmcy._segments import SegmentsCore


class SegmentsView(CoreOwner):
    """The readable half of `BackedSegments`."""

    _core: SegmentsCore

    @property
    def base(self) -> int:
        """The address of the first byte reserved."""
        return self._core.reservation.base

    @property
    def reserve_bytes(self) -> int:
        """The bytes of address space reserved."""
        return self._core.reservation.size

    @property
    def granularity(self) -> int:
        """The unit of segments, in bytes."""
        return self._core.reservation.granularity

    @property
    def device_id(self) -> int:
        """The device of the memory."""
        return self._core.reservation.device_id

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Address and size in bytes of each segment that is out, in address order."""
        self._refuse_in_child("segments")
        return self._core.segments()

    @property
    def segment_count(self) -> int:
        """The segments that are handed out and not freed."""
        return self._figures("segment_count")["segment_count"]

    @property
    def backed_bytes(self) -> int:
        """The device memory taken: of what is out, and of what was freed and not yet given back."""
        self._refuse_in_child("backed_bytes")
        return self._core.reservation.mapped_bytes()

    @property
    def leaving_bytes(self) -> int:
        """The bytes of segments that were freed and whose memory is not yet given back."""
        return self._figures("leaving_bytes")["leaving_bytes"]

    @property
    def ignored_frees(self) -> int:
        """The frees of what was no segment that is out."""
        return self._figures("ignored_frees")["ignored_frees"]

    @property
    def host_bytes(self) -> int:
        """The pinned host memory that is held for contents, used or not."""
        return self._core.host_bytes

    @property
    def paused(self) -> bool:
        """Whether the physical memory is taken away."""
        return bool(self._figures("paused")["paused"])

    @property
    def closed(self) -> bool:
        """Whether everything is given back."""
        return self._core.closed

    @property
    def last_error(self) -> Exception | None:
        """Why the last request through the C functions got NULL; None where it got memory."""
        self._refuse_in_child("last_error")
        return self._core.last_error()

    def __repr__(self) -> str:
        """Return place, size and state."""
        core = self._core
        if core is NEVER_MADE:
            return "<BackedSegments, never made>"
        place = f"{self.reserve_bytes} bytes at {self.base}, device {self.device_id}"
        if core.inherited:
            return f"<BackedSegments in {place}, a parent process's>"
        if core.closed:
            return f"<BackedSegments in {place}, closed>"
        figures = core.figures()
        state = "paused" if figures["paused"] else f"{figures['segment_bytes']} bytes"
        if core.is_shut:
            state += ", only close is left"
        elif core.reservation.close_only:
            state += ", a failure left something"
        return f"<BackedSegments in {place}, {figures['segment_count']} segments, {state}>"

    def _figures(self, name: str) -> dict[str, int]:
        self._refuse_in_child(name)
        return self._core.figures()

    def _refuse_in_child(self, method: str) -> None:
        if self._core.inherited:
            raise RuntimeError(
                f"{self._core.name}.{method}: the segments were made before this process was "
                "forked, and CUDA does not survive a fork: start workers with 'spawn' and make "
                "them there"
            )
