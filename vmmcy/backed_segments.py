"""Segments that are backed when they are asked for, through C functions, paused and resumed."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from vmmcy import _arena
from vmmcy._arguments import integer, positive, rounded_up, shown
from vmmcy._core_owner import NEVER_MADE, refuse_twice
from vmmcy._properties import granularity_of
from vmmcy._ranges import core_of_pool, mapping_bytes, origin_of_memory, ranges_to_keep
from vmmcy._reservation import ReservationCore
from vmmcy._segments import SegmentsCore
from vmmcy.entry_points import EntryPoints
from vmmcy.handle_pool import HandlePool
from vmmcy.properties import GRANULARITY_RECOMMENDED
from vmmcy.segments_view import SegmentsView

DEFAULT_RESERVE_BYTES = 1 << 40
PATIENCE = 3  # how often to wait anew for what others have freed meanwhile


class BackedSegments(SegmentsView):
    """Hands out segments of a reservation through C functions, each backed on its own.

    What ``vmmcy.torch.BackedPool`` does with memory, without torch. `entry_points.malloc` takes an
    address range and commits it; `free` takes it back **in stream order**: the memory goes, and the
    addresses are handed out again, when the stream has done what it was given before. Whoever
    calls next sees to that; nobody waits, except `synchronize`, `pause`, `close` and who drops the
    last reference.

    `pause` takes the physical memory of all segments away, `resume` brings it back at the same
    addresses. While paused, `malloc` gives NULL, and a segment that is freed does not come back.

    Safe to use from many threads at once. Dropped open, it closes with a ``ResourceWarning`` where
    nothing is out; what is out keeps its memory for ever.

    Parameters
    ----------
    reserve_bytes : int, optional
        Addresses to reserve, rounded up to granules; 1 TiB by default, since they cost nothing.
    device_id : int, optional
        The device; see `VmmReservation`.
    chunk_bytes : int, optional
        The largest mapping within a segment, a multiple of the granularity; by default each
        segment is one mapping, which is fastest. With a pool it is the pool's.
    pool : HandlePool, optional
        Where whole chunks of segments come from, and where they go back to: then `pause` frees the
        device's memory only as far as the pool is full, and the rest with ``pool.trim()``.
        Its device and its properties are those of the segments; it has to stay open.
    quiesce : callable, optional
        Called before memory is taken away; returns when no kernel uses any of the segments, or
        raises. By default that is the caller's promise.
    name : str, optional
        What the errors call them.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong type or out of range.
    RuntimeError
        256 arenas and backed segments are live or kept back already, or `pool` is closed or a
        parent process's. Nothing is left of this one.
    CudaDriverError
        The driver refused the addresses. Nothing is left reserved.

    Source: ``cuMemAddressReserve``, ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``.
    """

    INSTEAD = "make another"
    NOUN = "segments"
    _entry_points: weakref.ref[EntryPoints] | None = None

    def __init__(
        self,
        reserve_bytes: int | None = None,
        *,
        device_id: int | None = None,
        chunk_bytes: int | None = None,
        pool: HandlePool | None = None,
        quiesce: Callable[[], object] | None = None,
        name: str = "BackedSegments",
    ) -> None:
        refuse_twice(self, self._core)
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__} {shown(name)}")
        if not (quiesce is None or callable(quiesce)):
            kind = type(quiesce).__name__
            raise TypeError(f"quiesce must be callable, not {kind} {shown(quiesce)}")
        size_bytes = DEFAULT_RESERVE_BYTES if reserve_bytes is None else reserve_bytes
        size_bytes = positive(integer(size_bytes, "reserve_bytes"), "reserve_bytes")
        if chunk_bytes is not None:
            chunk_bytes = integer(chunk_bytes, "chunk_bytes")
        pool_core = None if pool is None else core_of_pool(pool)
        packed, device_id = origin_of_memory(None, device_id, pool_core, None, name)
        granularity = granularity_of(packed, GRANULARITY_RECOMMENDED)
        chunk_bytes = mapping_bytes(chunk_bytes, pool_core, granularity)
        size_bytes = rounded_up(size_bytes, granularity, "reserve_bytes")
        reservation = ReservationCore(packed, device_id, (device_id,), size_bytes, 0, 0, pool_core)
        core = SegmentsCore(reservation, chunk_bytes, str.__str__(name))
        refuse_twice(self, self._core)
        self._pool = pool
        self._quiesce = quiesce
        # Reentrant: `quiesce` may well call the segments themselves.
        self._lock = threading.RLock()
        self._core = core

    @property
    def entry_points(self) -> EntryPoints:
        """The C functions that serve the segments; after close, those that serve nothing."""
        made = None if self._entry_points is None else self._entry_points()
        if made is None:
            core = self._core if self._is_open("entry_points") else None
            made = EntryPoints.of_slot(core.slot if core else _arena.CLOSED_SLOT, core)
            self._entry_points = weakref.ref(made)
        return made

    def pause(self, keep: Iterable[tuple[int, int]] = ()) -> None:
        """Take the physical memory of all segments away, all or nothing.

        Waits first for `quiesce`, and for the streams of what was freed. `malloc` gives NULL from
        then on.

        Parameters
        ----------
        keep : iterable of (int, int), optional
            Address and size in bytes of what the host shall keep, each within one segment.
            The rest comes back with undefined contents. The pinned host memory for it is got the
            first time, about 0.4 s a GiB, and stays for the next: see `release_host`.

        Raises
        ------
        TypeError, ValueError
            `keep` is no pairs of integers, or one of them lies in no segment.
        RuntimeError
            The segments are paused, closed, or a parent process's; or what was freed on a stream
            cannot be waited for, as while it is being captured, and there is no `quiesce`.
        CudaDriverError
            The driver refused a copy, the host memory or the unmapping. Nothing has changed, except
            that host memory which was got for this stays for the next time.

        Source: ``cuMemUnmap``; ``cuMemHostAlloc``, ``cuMemcpyDtoHAsync``.
        """
        ranges = ranges_to_keep(keep)
        with self._at_work("pause"):
            if self._core.figures()["paused"]:
                raise RuntimeError(f"{self._core.name}.pause: paused already; resume first")
            for _ in range(PATIENCE):
                if self._core.pause(ranges, self._wait_for_device()):
                    return
            raise self._may_be_used("pause")

    def resume(self) -> None:
        """Bring the memory of all segments back at the same addresses, all or nothing.

        Raises
        ------
        RuntimeError
            The segments are not paused, closed, or a parent process's.
        CudaDriverError
            The driver refused, as when there is no memory left (`CudaOutOfMemoryError`). They stay
            paused, what the host keeps stays there, and it can be tried again. Where the
            error's notes say that the way back failed too, what came back stays until then.

        Source: ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``; ``cuMemcpyHtoDAsync``.
        """
        with self._at_work("resume"):
            if not self._core.figures()["paused"]:
                raise RuntimeError(f"{self._core.name}.resume: not paused")
            self._core.resume()

    def synchronize(self) -> int:
        """Wait for what the streams had been given before each free, and give the memory back.

        What could not be waited for that way, as a stream that is being captured, waits for
        `quiesce`; where there is none it stays.

        Returns
        -------
        int
            The bytes given back.

        Raises
        ------
        RuntimeError
            The segments are closed, or a parent process's.
        """
        with self._at_work("synchronize"):
            return self._give_back_freed()

    def release_host(self) -> None:
        """Give the pinned host memory back.

        Raises
        ------
        RuntimeError
            It keeps contents of paused segments; or a parent process's.
        CudaDriverError
            The driver refused; what it did not take is still in `host_bytes`.

        Source: ``cuMemFreeHost``.
        """
        with self._at_work("release_host"):
            if self._core.kept_bytes:
                kept = f"the host keeps {self._core.kept_bytes} bytes of paused segments"
                raise RuntimeError(f"{self._core.name}.release_host: {kept}; resume them first")
            self._core.release_host()

    def close(self) -> None:
        """Give everything back; closing twice is fine.

        Raises
        ------
        RuntimeError
            A segment is out, or they are a parent process's; or what was freed cannot be waited
            for, as of `pause`. Nothing has changed.
        CudaDriverError
            The driver refused. What could be undone is, and `close` may be called again.

        Source: ``cuMemUnmap``, ``cuMemAddressFree``, ``cuMemFreeHost``.
        """
        self._refuse_in_child("close")
        with self._lock:
            if self._core.closed and not self._core.host_bytes:
                return
            for _ in range(PATIENCE):
                self._give_back_freed(promised=self._quiesce is None)
                if self._core.outstanding:
                    figures = self._core.figures()
                    raise RuntimeError(
                        f"{self._core.name}.close: {figures['segment_count']} segments of "
                        f"{figures['segment_bytes']} bytes are out; free them first"
                    )
                if not self._core.figures()["late"] and self._core.close():
                    return
            raise self._may_be_used("close")

    def __del__(self, _warn: Any = warnings.warn) -> None:
        """Warn if still open, and give back what was freed; what is out keeps its memory."""
        super().__del__(_warn)
        core = self._core
        if core is NEVER_MADE or core.inherited or core.closed:
            return
        core.shut()
        with suppress(Exception):  # where nobody could wait the memory is kept
            self._give_back_freed()
            if not core.outstanding:
                core.close()

    def __enter__(self) -> Self:
        """Return the segments themselves."""
        self._check_open("__enter__")
        return self

    def _give_back_freed(self, promised: bool = False) -> int:
        """Wait for the streams of what was freed, or else for the device; the bytes given back."""
        given = self._core.synchronize(promised)
        if self._core.figures()["late"] and self._quiesce is not None:
            given += self._core.settle(self._wait_for_device())
        return given

    def _wait_for_device(self) -> int:
        """Wait until no kernel uses anything; how many segments had left before that.

        Where nobody can wait for the device, the streams of those have to do.
        """
        left_count = self._core.figures()["left_count"]
        if self._quiesce is None:
            self._core.synchronize(True)
            return 0
        self._quiesce()
        return left_count

    def _may_be_used(self, method: str) -> RuntimeError:
        size_bytes = self._core.figures()["leaving_bytes"]
        return RuntimeError(
            f"{self._core.name}.{method}: {size_bytes} freed bytes may still be in use: "
            "end the capture of their stream, or have others free no more, and call again"
        )

    @contextmanager
    def _at_work(self, method: str) -> Iterator[None]:
        """Hold the lock for `method`; a parent's lock is not touched."""
        self._refuse_in_child(method)
        with self._lock:
            self._check_open(method)
            yield

    def _check_open(self, method: str) -> None:
        if not self._is_open(method):
            raise RuntimeError(f"{self._core.name}.{method} after close")

    def _is_open(self, method: str) -> bool:
        """Whether they are open or closed; waits for whoever is closing them now."""
        if self._core.closed:
            return False
        self._refuse_in_child(method)
        if not self._core.is_shut:
            return True
        with self._lock:
            if self._core.closed:
                return False
        raise RuntimeError(
            f"{self._core.name}.{method}: an earlier failure left what only close can undo; "
            "call that, again if it raises"
        )
