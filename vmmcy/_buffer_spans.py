"""Buffers side by side in one reservation, each backed from its start as far as it is needed.

It knows bytes and no tensors: what `vmmcy.torch.KvArena` does with memory, on any driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from vmmcy._arguments import integer, iterable, unsigned
from vmmcy._properties import granularity_of
from vmmcy._ranges import core_of_pool, mapping_bytes, origin_of_memory
from vmmcy.handle_pool import HandlePool
from vmmcy.properties import GRANULARITY_RECOMMENDED, align_up
from vmmcy.reservation import VmmReservation

DEFAULT_CHUNK_BYTES = 64 << 20

# Reservations whose memory kernels may still use and nobody could wait for: kept to the end.
_never_unmapped: list[VmmReservation] = []


class BufferSpans:
    """Buffers of fixed place and size, of which a growing and shrinking head is backed.

    Of each buffer, mappings back a head without holes. None crosses a multiple of the chunk
    size, counted from the buffer's start, so that a tail can be given back.

    Parameters
    ----------
    sizes_bytes : sequence of int
        The most that each buffer can need.
    device_id : int or None
        See `VmmReservation`.
    chunk_bytes : int or None
        The largest mapping, a multiple of the granularity; None for 64 MiB, or the pool's.
    pool : HandlePool or None
        See `VmmReservation`.
    quiesce : callable
        Called before memory is taken away; returns when no kernel uses any of it, or raises.
    """

    def __init__(
        self,
        sizes_bytes: Sequence[int],
        device_id: int | None,
        chunk_bytes: int | None,
        quiesce: Callable[[], None],
        pool: HandlePool | None = None,
    ) -> None:
        pool_core = None if pool is None else core_of_pool(pool)
        packed, device_id = origin_of_memory(None, device_id, pool_core, None)
        granularity = granularity_of(packed, GRANULARITY_RECOMMENDED)
        chunk_bytes = mapping_bytes(chunk_bytes, pool_core, granularity)
        if chunk_bytes is None:
            chunk_bytes = align_up(DEFAULT_CHUNK_BYTES, granularity)
        self.offsets: list[int] = []
        end = 0
        for size_bytes in sizes_bytes:
            self.offsets.append(end)
            end = align_up(end + size_bytes, granularity)
        self.sizes_bytes = tuple(sizes_bytes)
        self.granularity = granularity
        self.chunk_bytes = chunk_bytes
        self.is_final = False
        self._quiesce = quiesce
        self._lock = threading.Lock()
        self._spans = [0] * len(self.sizes_bytes)
        self._backed = [0] * len(self.sizes_bytes)
        self.reservation = VmmReservation(end, device_id=device_id, pool=pool)

    @property
    def spans(self) -> tuple[int, ...]:
        """The bytes from each buffer's start that are promised."""
        return tuple(self._spans)

    def address(self, index: int) -> int:
        """Return where a buffer starts."""
        return self.reservation.base + self.offsets[index]

    def grow(self, spans: Iterable[int], method: str, *, final: bool = False) -> int:
        """Back at least `spans`, all or nothing; return the bytes newly backed."""
        wanted = _integers(spans)
        with self._at_work(method):
            self._check_fit(wanted)
            with self._all_or_nothing() as ends:
                for index, span in enumerate(wanted):
                    for offset, size in self._pieces(index, align_up(span, self.granularity)):
                        self.reservation.commit(
                            self.offsets[index] + offset, size, chunk_bytes=self.chunk_bytes
                        )
                        ends[index] = offset + size
            won = sum(ends) - sum(self._backed)
            self._backed = ends
            self._spans = [max(pair) for pair in zip(self._spans, wanted, strict=True)]
            self.is_final = final
            return won

    def shrink(self, spans: Iterable[int], method: str) -> int:
        """Give back the mappings past `spans`; return their bytes."""
        wanted = _integers(spans)
        with self._at_work(method):
            self._check_fit(wanted)
            starts = [align_up(span, self.granularity) for span in wanted]
            if any(start < backed for start, backed in zip(starts, self._backed, strict=True)):
                self._quiesce()
            won = 0
            for index, start in enumerate(starts):
                won += self._give_back(index, start)
                self._spans[index] = min(self._spans[index], wanted[index])
            return won

    def close(self) -> None:
        """Give everything back once no kernel uses it; again is fine."""
        if self.reservation._core.inherited:
            self.reservation.close()
        with self._lock:
            if not self.reservation.closed and self.reservation.mapped_bytes:
                self._quiesce()
            self.reservation.close()

    def __del__(self) -> None:
        """Wait as `close` does before the reservation goes, or keep it where that cannot be."""
        reservation = getattr(self, "reservation", None)
        if reservation is None or reservation.closed or reservation._core.inherited:
            return
        try:
            if reservation.mapped_bytes:
                self._quiesce()
        except Exception:
            _never_unmapped.append(reservation)

    def check_open(self, method: str) -> None:
        """Raise what `method` would on a closed arena, or a parent process's."""
        if self.reservation._core.inherited:
            self.reservation._core.check_open(method)
        if self.reservation.closed:
            raise RuntimeError(f"KvArena.{method} after close")

    @contextmanager
    def _at_work(self, method: str) -> Iterator[None]:
        """Hold the lock for `method`, or say why it is refused; a parent's lock is not touched."""
        self.check_open(method)
        with self._lock:
            self.check_open(method)
            if self.is_final:
                raise RuntimeError(
                    f"KvArena.{method} after finalize: the spans are final; "
                    "close the arena and make another"
                )
            yield

    def _check_fit(self, wanted: list[int]) -> None:
        """Refuse spans that are not one for each buffer, or past its end."""
        if len(wanted) != len(self.sizes_bytes):
            raise ValueError(f"{len(wanted)} spans for {len(self.sizes_bytes)} buffers")
        for index, (span, size_bytes) in enumerate(zip(wanted, self.sizes_bytes, strict=True)):
            if unsigned(span, f"spans[{index}]") > size_bytes:
                raise ValueError(
                    f"spans[{index}] is {span} bytes, but buffer {index} has {size_bytes}"
                )

    def _pieces(self, index: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what is not backed before `end`: up to the next chunk's start, then the rest."""
        start = self._backed[index]
        seam = min(align_up(start, self.chunk_bytes), end)
        for offset, stop in ((start, seam), (seam, end)):
            if offset < stop:
                yield offset, stop - offset

    @contextmanager
    def _all_or_nothing(self) -> Iterator[list[int]]:
        """Lend the ends of what is backed; after an error, give back what came past the old ones.

        What cannot be given back stays on record as backed.
        """
        ends = list(self._backed)
        try:
            yield ends
        except BaseException as error:
            for index, (start, end) in enumerate(zip(self._backed, ends, strict=True)):
                self._backed[index] = end
                try:
                    self._give_back(index, start)
                except RuntimeError as second:
                    error.add_note(f"on the way back, buffer {index}: {second}")
            raise

    def _give_back(self, index: int, start: int) -> int:
        """Give back the mappings of a buffer from `start` on; return their bytes."""
        size = self._backed[index] - start
        if size <= 0:
            return 0
        won = self.reservation.decommit(self.offsets[index] + start, size)
        self._backed[index] -= won
        return won


def _integers(spans: Iterable[int]) -> list[int]:
    """Return the spans as ints: types alone."""
    sizes = iterable(spans, "spans", "bytes, one a buffer")
    return [integer(span, f"spans[{index}]") for index, span in enumerate(sizes)]
